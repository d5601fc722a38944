"""The settings of each task, which are the flags of its `minibert finetune`.

Nothing here imports torch, so that `--help` is fast.
"""

import re
from dataclasses import dataclass

from minibert.tables.formats import FileSettings, TextSettings
from minibert.utils.printing import brief
from minibert.utils.settings import setting


def names(text: str) -> tuple[str, ...]:
    """Return "O, B-PER" as ("O", "B-PER"), for a setting that is a list of names."""
    return tuple(name.strip() for name in text.split(","))


def parse_columns(text: str) -> tuple[str | int, ...]:
    """Return names or numbers of columns: "2,-1" as (2, -1), "token,ner" as ("token", "ner")."""
    return tuple(int(name) if re.fullmatch(r"-?\d+", name) else name for name in names(text))


@dataclass(frozen=True)
class ClassificationSettings(FileSettings):
    """The settings of tasks.classification.Classification."""

    text: str | int | None = setting(
        None, "column of the texts: name, or number without a header (default: sentence or text)", metavar="COLUMN"
    )
    pair: str | int | None = setting(None, "column of second texts", metavar="COLUMN")
    label: str | int | None = setting(None, "column of the labels (default: label)", metavar="COLUMN")
    separator: str | None = setting(None, "between several labels of a text, such as |", metavar="CHARACTER")
    regression: bool = setting(False, "labels are numbers")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.separator == "" or (self.regression and self.separator is not None):
            raise ValueError(f"separator is {self.separator!r}; it must not be empty, and regression has no separator")


@dataclass(frozen=True)
class TaggingSettings(TextSettings):
    """The settings of tasks.tagging.Tagging."""

    pretokenized: bool = False
    format: str | None = setting(
        None, "txt (CoNLL), csv, jsonl, json or parquet (default: by the file name, else txt)", metavar="TYPE"
    )
    columns: tuple[str | int, ...] | None = setting(
        None,
        "columns of word and tag: names in a header, or numbers from 1, -1 is the last (default: the usual names, or "
        "first and last)",
        metavar="WORD,TAG",
        parse=parse_columns,
    )
    tag_names: tuple[str, ...] | None = setting(
        None,
        "of tags that are numbers, from 0, as in ner_tags of Hugging Face: O,B-PER,...",
        metavar="NAMES",
        parse=names,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.columns is not None and (not isinstance(self.columns, tuple) or len(set(self.columns)) != 2):
            raise ValueError(f"columns is {brief(self.columns)}; it must be two, such as (1, 4) or ('token', 'ner')")


@dataclass(frozen=True)
class AnsweringSettings(TextSettings):
    """The settings of tasks.answering.Answering."""

    max_question: int | None = setting(
        None, "tokens of a question (default: 64, fewer for a model of few positions)", minimum=1
    )
    stride: int | None = setting(
        None, "tokens from one window of a passage to the next (default: 128, or half a window)", minimum=1
    )
    max_answer: int = setting(30, "tokens of an answer", minimum=1)
    n_best: int = setting(20, "candidate answers to keep", minimum=1)
    null_threshold: float = setting(0.0, "margin by which no answer must beat the best answer")
    unanswerable: bool | None = None
    repair: bool = setting(
        False,
        "take an answer that is not at its start from the nearest place where it occurs; leave out what occurs nowhere",
    )
    format: str | None = setting(
        None, "json, jsonl, csv, tsv or parquet (default: by the file name, else json)", metavar="TYPE"
    )
    delimiter: str | None = setting(None, "of a .csv or .tsv (default: found in the first rows)", metavar="CHARACTER")


@dataclass(frozen=True)
class ChoiceSettings(TextSettings):
    """The settings of tasks.choice.Choice."""

    format: str | None = setting(None, "jsonl, json, csv, tsv or parquet (default: by the file name)", metavar="TYPE")


@dataclass(frozen=True)
class MaskedTextSettings(FileSettings):
    """The settings of tasks.masked_text.MaskedText."""

    mask_rate: float = setting(0.15, "fraction of the tokens to predict", above=0, below=1)
    whole_words: bool = setting(False, "mask all tokens of a word together")
    text: str | None = setting(
        None, "of a table: name or number of the text column (default: sentence or text)", metavar="COLUMN"
    )


@dataclass(frozen=True)
class EmbeddingSettings(FileSettings):
    """The settings of tasks.embedding.Embedding."""

    text: str | int | None = setting(
        None, "column of the texts: name, or number without a header (default: all columns, in order)", metavar="COLUMN"
    )
    pair: str | int | None = setting(None, "column of the texts that belong to them", metavar="COLUMN")
    negatives: tuple[str | int, ...] = setting(
        (), "columns of texts that do not belong to them: hard negatives", metavar="COLUMN,COLUMN", parse=parse_columns
    )
    label: str | int | None = setting(None, "column of numbers: how similar text and pair are", metavar="COLUMN")
    pooling: str = setting(
        "auto", "{choices}; auto: as the checkpoint's files state, else mean", choices=("auto", "mean", "cls")
    )
    normalize: bool | None = setting(None, "vectors of length 1 (default: as the checkpoint's files state)")
    scale: float = setting(20.0, "factor of the cosines: the inverse of the temperature", above=0, maximum=1000)
    loss: str = setting(
        "cosent", "of similarities: {choices}, their order or their values", choices=("cosent", "cosine")
    )
    dimensions: int | None = None  # numbers of a vector that are kept, as the checkpoint's files state; None: all
    highest: float = setting(1.0, "similarity of equal texts, for --loss cosine; the lowest is 0", above=0)
