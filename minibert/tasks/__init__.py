"""Tasks: the data of each, how it is encoded for a model, and how predictions are decoded and measured.

In reading order:

    base            what a task defines: reading, encoding, decoding, measuring
    metrics         predictions compared with the true labels
    labels          what the label of a text is: one name, several, or a number
    classification  texts or pairs to labels
    choice          which of several texts answers a question
    entities        the spans of words that tags mark, and their score
    tagging         a tag for each word
    squad           questions on passages: the file and the official score
    answering       questions to spans of a passage
    masked_text     masked tokens: filling masks, and continued pretraining
    reviews         labelled texts for the demo
    frozen          features + logistic regression, and its folder
    folders         what a folder holds
    demo            the main job, start to end
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from minibert.tasks.base import Task


class Entry(NamedTuple):
    """A fine-tuning task: the module of this package and the class that define it, and its line in `--help`."""

    module: str
    task: str
    help: str


TASKS = {  # by the name in `minibert finetune NAME`; no class is imported before it is needed
    "classify": Entry("classification", "Classification", "labels for texts or pairs"),
    "tag": Entry("tagging", "Tagging", "a tag for each word"),
    "answer": Entry("answering", "Answering", "answers extracted from passages"),
    "choose": Entry("choice", "Choice", "one of several choices"),
    "mask": Entry("masked_text", "MaskedText", "continued pretraining with masked tokens"),
}


def task_class(name: str) -> type[Task]:
    """The class of a fine-tuning task. Raises ValueError for an unknown name."""
    if name not in TASKS:
        raise ValueError(f"task {name!r} is not known; choose from {', '.join(TASKS)}")
    entry = TASKS[name]
    found: type[Task] = getattr(importlib.import_module(f"{__name__}.{entry.module}"), entry.task)
    return found
