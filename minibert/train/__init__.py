"""Training: a pretrained checkpoint learns a task, or a model learns a language.

In reading order:

    settings        the settings of every training, each with its limits and help
    corpus          raw text in windows, document by document
    batches         rows of token ids to batches: of examples, and of a corpus
    distributed     several processes that train one model, started by torchrun
    interrupts      Ctrl-C and SIGTERM wait for the end of a step
    loop            the training loop, every line of it
    checkpointer    the checkpoints of a run, from which a killed run resumes
    run             one run of any training, and the folder it writes
    start           the model with which fine-tuning starts: its head kept or new, layers frozen
    finetuning      a task head on top, and all of it trained on one task's data
    sentence_vectors  sentence vectors, whose loss compares all texts of a step
    estimator       both from Python: a function for every task, and a scikit-learn classifier
    vocabulary      a WordPiece vocabulary learned from text
    objectives      what is predicted of a row: masked tokens, pairs of sentences, replaced tokens
    pretraining     a language learned from raw text, whose statistics come first
    distillation    a student learns from a teacher
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from minibert.utils.habits import unknown_attribute

if TYPE_CHECKING:
    from minibert.train.distillation import distill
    from minibert.train.estimator import finetune
    from minibert.train.pretraining import pretrain

MODULES = {"distill": "distillation", "finetune": "estimator", "pretrain": "pretraining"}
__all__ = ["distill", "finetune", "pretrain"]


def __getattr__(name: str) -> object:
    if name not in MODULES:
        raise unknown_attribute("module minibert.train", name, MODULES)
    return getattr(importlib.import_module(f"minibert.train.{MODULES[name]}"), name)
