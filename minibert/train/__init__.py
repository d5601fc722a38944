"""Training: a pretrained checkpoint learns a task.

In reading order:

    batches         rows of token ids to batches, in an order that a seed and an epoch decide
    packed          the training step with the padding taken out
    distributed     several processes that train one model, started by torchrun
    loop            the training loop, every line of it
    outputs         many examples through a model: logits, or the states of a frozen encoder
    keeper          a run on the disk, that a killed process resumes
    folder          what is kept of a training
    curve           how a training went, as a picture
    finetuning      a task head on top, and all of it trained on one task's data
    classifier      the same as a scikit-learn classifier
    corpus          raw text in windows, document by document
    vocabulary      a WordPiece vocabulary learned from text
    pairs           documents to rows of one text or two
    stream          rows to batches, masked, as far as training has come
    baselines       what hidden words can be guessed by without a model
    doctor          a look at a corpus before anything is learned from it
    electra         the losses of a generator and of what tells its guesses from the text
    pretraining     a language learned from raw text
    student         a smaller model that begins as a part of another
    distillation    a student learns from a teacher
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minibert.train.distillation import distill
    from minibert.train.finetuning import finetune
    from minibert.train.pretraining import pretrain

ROOMS = {"distill": "distillation", "finetune": "finetuning", "pretrain": "pretraining"}
__all__ = ["distill", "finetune", "pretrain"]


def __getattr__(name: str) -> object:
    if name not in ROOMS:
        raise AttributeError(f"module 'minibert.train' has no attribute {name!r}; it has {', '.join(ROOMS)}")
    return getattr(importlib.import_module(f"minibert.train.{ROOMS[name]}"), name)
