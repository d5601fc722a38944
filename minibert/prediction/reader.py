"""A folder that holds a model with a task head, ready to answer texts: `minibert.predict`.

    folder -> its kind -> a reader: Classifier or Reader -> data -> answers -> a dict for each text

A folder of `minibert classify train` is opened by frozen.Classifier. Reader opens every other folder, a checkpoint with
a task head: one of `minibert finetune`, whose training.json has the settings of the task, or one that transformers
wrote with save_pretrained.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minibert.checkpoints.checkpoint import Checkpoint
from minibert.checkpoints.load import load
from minibert.heads import Head, MaskedLM
from minibert.prediction.frozen import CLASSIFIER_FILE, Classifier
from minibert.prediction.logits import predict_logits
from minibert.tables.texts import as_name
from minibert.tasks import TASKS, task_class
from minibert.tasks.base import Encoded, Measure, Prediction, Task
from minibert.tasks.masked_text import MaskedText
from minibert.tasks.names import as_numbers, label_names
from minibert.text.tokenizer import Tokenizer, load_tokenizer
from minibert.utils.device import choose_device
from minibert.utils.files import AnyPath, read_json, user_path
from minibert.utils.printing import block, cut
from minibert.utils.settings import check_number, with_settings

REPORT = "training.json"  # of a folder that `minibert finetune` wrote


def open_folder(name: AnyPath) -> Checkpoint | Path:
    """Open a checkpoint, by its name on the Hub or its folder; of `minibert classify train`, return the folder.

    Raises FileNotFoundError or ValueError for anything else.
    """
    name = as_name(name, "it comes before the texts")
    frozen = (user_path(name) / CLASSIFIER_FILE).exists()
    return user_path(name) if frozen else Checkpoint.open(name)


def folder_kind(name: AnyPath) -> str:
    """Return what a folder, or a checkpoint by its name on the Hub, holds.

    "frozen", a classifier of `minibert classify train`; the task of its head, one of TASKS; or "encoder", a checkpoint
    without any of these heads. Raises FileNotFoundError or ValueError if it is not a checkpoint.
    """
    checkpoint = open_folder(name)
    if not isinstance(checkpoint, Checkpoint):
        return "frozen"
    tasks = {task_class(task).head: task for task in TASKS}
    if checkpoint.head not in tasks and checkpoint.has_head(MaskedLM.name):  # BertForPreTraining has it too
        return MaskedText.name
    return tasks.get(checkpoint.head or "", "encoder")


@dataclass(frozen=True)
class Reader:
    """A model with a task head, its tokenizer and its labels."""

    task: Task
    model: Head
    tokenizer: Tokenizer
    labels: list[str]
    max_length: int
    batch_tokens: int | None = None

    @classmethod
    def of(cls, model: Head, tokenizer: Tokenizer, task: Task | None = None, **more: Any) -> Reader:
        """Return the reader of a loaded model. task: with its settings; None: those that config.json implies.

        Raises what task_name and label_names raise.
        """
        kind = task_name(model)
        labels = label_names(model.config) if model.has_labels else []
        task = task or task_class(kind).of_config(model.config)
        return cls(task, model, tokenizer, labels, tokenizer.max_length, **more)

    @classmethod
    def of_loaded(cls, model: Head, tokenizer: Tokenizer | None) -> Reader:
        """Return the reader of a model in memory, with its checkpoint's tokenizer and task; tokenizer: another one.

        Raises TypeError if there is no tokenizer, and what `of` raises.
        """
        kind = task_name(model)
        if model.task is None and model.checkpoint is not None:
            model.task, max_length = trained_task(model.checkpoint.folder, kind)
            if tokenizer is None and model.tokenizer is None:
                model.tokenizer = load_tokenizer(model.checkpoint, max_length=max_length)
        tokenizer = tokenizer or model.tokenizer
        if tokenizer is None:
            raise TypeError("a loaded model reads texts with its tokenizer; pass tokenizer=load_tokenizer(...)")
        return cls.of(model, tokenizer, model.task)

    @property
    def pairs(self) -> bool | None:
        """Whether a row is two texts; None: it may be either."""
        return self.task.pairs

    def answer(self, data: Any) -> list[Any]:
        """Return one prediction for each row of the data. Warns of texts that were cut (TruncationWarning), once."""
        return self.task.answer(data, self)

    def encoded(self, data: Any) -> Encoded:
        """Return the examples of the data. Warns of texts that were cut (TruncationWarning), once."""
        encoded = self.task.encode(data, self.tokenizer, self.labels, self.max_length)
        if encoded.truncation:
            warnings.warn(encoded.truncation, stacklevel=4)
        return encoded

    def decoded(self, encoded: Encoded, data: Any) -> list[Any]:
        """Return one prediction for each row of the data, from its examples."""
        logits = predict_logits(self.model, encoded, "float32", self.task.reduce, self.batch_tokens)
        return self.task.decode(logits, encoded, data, self.labels)

    def measure(self, data: Any) -> Measure:
        """Return the predictions compared with the labels, and the notes on the data.

        If the data has the labels 0, 1, ..., these are the model's LABEL_0, LABEL_1, ...
        """
        reader = replace(self, labels=as_numbers(self.labels, self.task.names_in(data)))
        encoded = reader.encoded(data)
        measure = self.task.measure(reader.decoded(encoded, data), data, reader.labels)
        return replace(measure, text="\n".join([measure.text, *(block("note", note) for note in encoded.notes)]))


def task_name(model: Head) -> str:
    """Return the task of a model's head. Raises ValueError for a head that was never trained or that no task has."""
    task = {task_class(name).head: name for name in TASKS}.get(model.name)
    if task is None or not model.head_is_trained:
        state = "was never trained" if task else f"is not for a task; choose from {', '.join(TASKS)}"
        raise ValueError(f"the task head {model.name!r} {state}")
    return task


def trained_task(folder: Path, kind: str) -> tuple[Task | None, int | None]:
    """Return the task, with its settings, and max_length of a folder of `minibert finetune`; None for any other."""
    report = read_json(folder / REPORT) if (folder / REPORT).is_file() else {}
    if report.get("task") != kind:  # written by transformers, or by `minibert pretrain`
        return None, None
    try:
        max_length: int = report["asked"]["max_length"]
        check_number("max_length", max_length, int, minimum=1, maximum=2**24)
        return task_class(kind)(**report["settings"]), max_length
    except (KeyError, TypeError, ValueError) as error:
        problem = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{folder / REPORT} is damaged ({cut(problem, 400)}); train again") from None


def open_reader(
    name: AnyPath,
    *,
    model: str | None = None,
    device: str = "auto",
    batch_tokens: int | None = None,
) -> Classifier | Reader:
    """Open a folder of any kind, or a checkpoint by its name on the Hub.

    model: the checkpoint of a frozen classifier, if it was moved. Raises FileNotFoundError or ValueError, in one
    sentence, if there is no task head or the folder is damaged.
    """
    if batch_tokens is not None:
        batch_tokens = check_number("batch_tokens", batch_tokens, int, minimum=1)
    checkpoint = open_folder(name)
    if not isinstance(checkpoint, Checkpoint):
        return Classifier.load(checkpoint, model=model, device=device, batch_tokens=batch_tokens)
    kind = folder_kind(checkpoint)
    if model is not None:
        raise ValueError(f"model is {model!r}, and {name} holds its own model; leave it out")
    if kind not in TASKS:
        raise ValueError(
            f"{name} holds no task head; a folder of `minibert finetune`, or of transformers, has one, and config.json "
            "names it in `architectures`"
        )
    task, max_length = trained_task(checkpoint.folder, kind)
    loaded = load(checkpoint, head=task_class(kind).head, device=choose_device(device))
    return Reader.of(loaded, load_tokenizer(checkpoint, max_length=max_length), task, batch_tokens=batch_tokens)


def with_given_words(reader: Classifier | Reader) -> Classifier | Reader:
    """Return the reader of a tagger for texts split at spaces only. Raises ValueError for other tasks."""
    task: Any = reader.task.with_given_words()
    return replace(reader, task=task)


@with_settings()
def predict(
    model: AnyPath | Head | Classifier | Reader,
    texts: object,
    pairs: object = None,
    *,
    tokenizer: Tokenizer | None = None,
    device: str = "auto",
    pretokenized: bool = False,
) -> list[Prediction]:
    """Return what a model with a task head says of texts, a dict for each text.

    model: a folder of `minibert classify train`, of `minibert finetune` or of transformers, also by its name on the
    Hub; or a loaded model, which stays on its device. tokenizer: of a loaded model, if not its checkpoint's. pairs:
    second texts, the passages of questions. pretokenized: for a tagger: words are separated only by spaces.

        one label        {"label", "probability", "probabilities": {label: probability}}
        several labels   {"labels": (...), "probability": (of each), "probabilities": {...}}
        a number         {"value"}; several {"values": {name: value}}
        tags             {"entities": [{"text", "label", "start", "end", "score"}]}  text[start:end] of the given text
        answers          {"answer", "start", "end", "score"}                         of the passage
        choices          {"number", "choice", "probability", "probabilities"}
        masked LM        {"masks": [[{"token", "probability"}, ...] of each mask], "filled"}

    Raises what opening the folder raises, TypeError or ValueError, with the row, for anything but texts, and ValueError
    for pairs where single texts are expected or the reverse.
    """
    if isinstance(model, Head):
        reader: Any = Reader.of_loaded(model, tokenizer)
    elif tokenizer is not None:
        raise TypeError("tokenizer is for a loaded model; a folder has its own")
    else:
        reader = model if isinstance(model, Classifier | Reader) else open_reader(model, device=device)
    reader = with_given_words(reader) if pretokenized else reader
    if reader.pairs is not None and reader.pairs != (pairs is not None):
        raise ValueError(f"this model reads {'pairs: give the second texts' if reader.pairs else 'one text per row'}")
    given: list[Any] = [
        [column] if isinstance(column, str) else column for column in (texts, pairs) if column is not None
    ]
    data = reader.task.from_texts(*given)
    predictions: list[Prediction] = reader.task.as_dicts(reader.answer(data), data)
    return predictions
