"""A folder of every kind that holds a model with a task head."""

from pathlib import Path
from typing import Any

import transformers

from minibert.prediction.frozen import train
from minibert.train import finetune
from support.words import labelled, write_words_checkpoint

# By task, the head of the checkpoint that transformers writes.
HEADS = {
    "classify": "sequence-classification",
    "tag": "token-classification",
    "answer": "question-answering",
    "choose": "multiple-choice",
    "mask": "masked-lm",
}
KINDS = ("frozen", "tuned", *HEADS)
TAGS: dict[str, Any] = {"num_labels": 3, "id2label": {0: "O", 1: "B-thing", 2: "I-thing"}}
TAGS["label2id"] = {tag: number for number, tag in TAGS["id2label"].items()}


def write_theirs(folder: Path, head: str | None, family: str = "bert", **sizes: Any) -> Path:
    """A folder as transformers writes it, with its tokenizer."""
    write_words_checkpoint(folder, family, head, **{"max_position_embeddings": 120} | sizes)
    transformers.BertTokenizer.from_pretrained(folder).save_pretrained(folder)
    return folder


def write_kinds(home: Path) -> Path:
    """In `home` a folder for each of KINDS, and "encoder", a checkpoint without a task head."""
    for task, head in HEADS.items():
        write_theirs(home / task, head, **TAGS if task == "tag" else {})
    write_theirs(home / "encoder", None)
    texts, labels = labelled()
    train(texts, labels, model=home / "encoder", folds=0).save(home / "frozen")
    finetune(
        "classify", texts, labels, model=home / "encoder", out=home / "tuned", epochs=1, batch_size=8, max_length=20
    )
    return home
