"""Tasks: the data of each, how it is encoded for a model, and how predictions are decoded and measured.

In reading order:

    settings        the settings of each task
    base            what a task defines: reading, encoding, decoding, measuring
    metrics         predictions compared with the true labels
    names           what is accepted as a label, and the order of labels
    labels          what the label of a text is: one name, several, or a number
    classification  texts or pairs to labels
    choice          which of several texts answers a question
    entities        the entities that tags mark, and their score
    sentences       words and their tags, and the files that have them
    tagging         a tag for each word
    questions       questions on passages and their answers, and the files that have them: SQuAD
    answering       questions to spans of a passage, and the score of SQuAD
    masked_text     masked tokens: filling masks, and continued pretraining
    scoring         how likely a masked language model finds a text
    frozen          features + logistic regression, and its folder
    demo            the main job, start to end, and its data
    samples         the small files that README's commands read
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minibert.tasks.base import Task

# By the name in `minibert finetune NAME`: the module and the class that define the task, and its line in `--help`. No
# class is imported before it is needed.
TASKS = {
    "classify": ("classification", "Classification", "labels for texts or pairs"),
    "tag": ("tagging", "Tagging", "a tag for each word"),
    "answer": ("answering", "Answering", "answers extracted from passages"),
    "choose": ("choice", "Choice", "one of several choices"),
    "mask": ("masked_text", "MaskedText", "continued pretraining with masked tokens"),
}


def task_class(name: str) -> type[Task]:
    """The class of a fine-tuning task. Raises ValueError for an unknown name."""
    if name not in TASKS:
        raise ValueError(f"task {name!r} is not known; choose from {', '.join(TASKS)}")
    module, task, _ = TASKS[name]
    found: type[Task] = getattr(importlib.import_module(f"{__name__}.{module}"), task)
    return found
