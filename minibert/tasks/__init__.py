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
    vector_measures  how good vectors are, on pairs of texts and by search
    embedding       vectors of texts that belong together
    scoring         how likely a masked language model finds a text
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, NamedTuple

from minibert.tables.formats import TextSettings
from minibert.tasks.settings import (
    AnsweringSettings,
    ChoiceSettings,
    ClassificationSettings,
    EmbeddingSettings,
    MaskedTextSettings,
    TaggingSettings,
)

if TYPE_CHECKING:
    from minibert.tasks.base import Task


class Entry(NamedTuple):
    """A task as `minibert finetune NAME --help` shows it, and its class, which is imported when it is needed."""

    module: str
    class_name: str
    settings: type[TextSettings]  # each field with a help text is a flag
    help: str
    data_help: str


# By the name in `minibert finetune NAME`. A new task is a module with its class, its settings, and an entry here.
TASKS = {
    "classify": Entry(
        "classification",
        "Classification",
        ClassificationSettings,
        "labels for texts or pairs",
        "labelled texts: .tsv, .csv, .jsonl, .json or .parquet; - is standard input; or a folder with a folder of .txt "
        "files for each label",
    ),
    "tag": Entry(
        "tagging",
        "Tagging",
        TaggingSettings,
        "a tag for each word",
        "a word and its tag on each line, an empty line between sentences (CoNLL); or .csv, .jsonl",
    ),
    "answer": Entry(
        "answering",
        "Answering",
        AnsweringSettings,
        "answers extracted from passages",
        "questions on passages: SQuAD 1.1 or 2.0 JSON, or a question in each row",
    ),
    "choose": Entry(
        "choice",
        "Choice",
        ChoiceSettings,
        "one of several choices",
        'JSON lines of {"question", "choices": [...], "label"}, perhaps "context"; or SWAG',
    ),
    "embed": Entry(
        "embedding",
        "Embedding",
        EmbeddingSettings,
        "vectors of texts that belong together",
        "texts in one column: unsupervised; two: pairs; three: pairs and their similarity, a number; three or more: "
        "pairs and hard negatives",
    ),
    "mask": Entry(
        "masked_text",
        "MaskedText",
        MaskedTextSettings,
        "continued pretraining with masked tokens",
        "raw text: one text per line, an empty line between documents; or a table",
    ),
}


def task_class(name: str) -> type[Task]:
    """Return the class of a fine-tuning task. Raises ValueError for an unknown name."""
    if name not in TASKS:
        raise ValueError(f"task {name!r} is not known; choose from {', '.join(TASKS)}")
    module = importlib.import_module(f"{__name__}.{TASKS[name].module}")
    kind: type[Task] = getattr(module, TASKS[name].class_name)
    return kind
