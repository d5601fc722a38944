"""Fine-tuning: a pretrained checkpoint with a task head, all of it trained on the data of one task.

    data -> labels, examples -> model with a task head -> train, evaluated on dev after each epoch -> the best epoch
         -> a folder that transformers loads, with training.json beside the weights

The head is fresh, unless the checkpoint has a trained one for the same labels, which then goes on learning.

Devlin et al. 2018, section 3: every task is trained in the same way, only its inputs and outputs differ.
"""

import os
import statistics
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from minibert.checkpoints.checkpoint import Checkpoint
from minibert.heads import Head
from minibert.prediction.logits import States, can_be_kept, predict_logits
from minibert.prediction.packed import OutputFunction, packed_output
from minibert.tables.texts import column_names
from minibert.tasks.base import Encoded, Measure, Task
from minibert.text.tokenizer import TruncationWarning, load_tokenizer
from minibert.train import distributed
from minibert.train.batches import Batches
from minibert.train.loop import HeadLoss, Loss, WeightedLoss, readable_output
from minibert.train.run import Goal, Run, resolve_precision
from minibert.train.settings import FinetuneSettings
from minibert.train.start import fitting_labels, freeze, new_model
from minibert.utils.printing import Figures, block, counted


@dataclass(frozen=True)
class FinetuneRun(Run):
    """A task, its data as the model reads it, and a checkpoint."""

    settings: FinetuneSettings
    task: Task
    checkpoint: Checkpoint
    labels: list[str]
    encoded: Encoded
    dev: Any  # data for evaluation, or None
    held_out: Encoded | None  # its examples
    weights: Tensor | None = None  # of the training texts, (N); None: equal

    @classmethod
    def of(
        cls, task: Task, data: Any, dev: Any, settings: FinetuneSettings, checkpoint: Checkpoint | None = None
    ) -> Self:
        """Check and encode. checkpoint: settings.model, if it is open already.

        Raises ValueError for data that cannot be learned, before anything is loaded.
        """
        distributed.check(settings.batch_size)
        task = task.resolve(data)
        labels = task.labels_of(data)
        by_label = weights = None
        if settings.class_weight is not None:
            by_label = dict(zip(labels, task.class_weights(data, labels, settings.class_weight), strict=True))
            weights = torch.tensor([by_label[label] for label in data.known_labels])
        checkpoint = checkpoint or Checkpoint.open(settings.model)
        known, reason = fitting_labels(checkpoint, task, labels)
        note = f"the task head is new: {reason}" if reason else task.fresh_head if known is None else ""
        labels = labels if known is None else known
        length = settings.max_length or min(task.row_length, checkpoint.config.max_tokens)
        tokenizer = load_tokenizer(checkpoint, max_length=length)
        encoded = task.encode(data, tokenizer, labels, length)
        held_out = None if dev is None else task.encode(dev, tokenizer, labels, length)
        if not encoded.examples:
            raise ValueError(
                f"none of {counted(len(data), 'row')} has a token that the vocabulary knows: nothing to learn from"
            )
        if note:
            encoded = replace(encoded, notes=(note, *encoded.notes))
        settings = resolve_precision(settings, max_length=length, class_weight=by_label)
        run = cls(settings, tokenizer, task, checkpoint, labels, encoded, dev, held_out, weights)
        for cut in run.cuts:
            warnings.warn(cut, stacklevel=3)
        return run

    @property
    def main(self) -> str:
        """The main figure of the task."""
        return self.task.main

    @property
    def notes(self) -> list[str]:
        """What a user should know about the data, beside the warnings of texts that were cut."""
        return list(dict.fromkeys([*self.encoded.notes, *(self.held_out.notes if self.held_out else ())]))

    @property
    def cuts(self) -> list[TruncationWarning]:
        """The warnings of texts that were cut, in the data and in dev."""
        return [encoded.truncation for encoded in (self.encoded, self.held_out) if encoded and encoded.truncation]

    @property
    def summary(self) -> str:
        """The number of rows, and the notes, for people."""
        dev = f", {self.held_out.rows:,} for evaluation" if self.held_out else ""
        lines = [block("data", f"{counted(self.encoded.rows, 'row')}{dev}; {self.computed_in}")]
        return "\n".join([*lines, *(block("note", note) for note in self.notes)])

    @property
    def config(self) -> dict[str, Any]:
        """The config with the task, and hashes of data and starting weights."""
        return super().config | {
            "task": self.task.name,
            "task_settings": {name: str(value) for name, value in sorted(vars(self.task).items())},
            "labels": self.labels,
            "weights_sha256": self.checkpoint.weights_sha256,
            "train_sha256": self.encoded.sha256,
            "dev_sha256": None if self.held_out is None else self.held_out.sha256,
        }

    @property
    def report(self) -> Figures:
        """What a Reader needs, and notes on the data."""
        notes = [*map(str, self.cuts), *self.notes]
        return {"task": self.task.name, "settings": vars(self.task), "labels": self.labels, "notes": notes}

    def new_model(self) -> Head:
        """Return the checkpoint with a task head, frozen as the settings say.

        A new head of a regression begins at the mean of the labels, from which a small learning rate gets away slowly.
        """
        model: Any = new_model(self.checkpoint, self.task, self.labels)
        if self.task.problem_type == "regression" and not model.head_is_trained:
            nn.init.constant_(
                model.classifier.bias, statistics.mean(example.labels["labels"] for example in self.encoded.examples)
            )
        return freeze(model, self.settings.freeze)

    def batches(self, folder: Path | None = None) -> Batches:
        """Return the training data in batches."""
        settings = self.settings
        context = distributed.context()
        return Batches(
            self.encoded.examples,
            settings.batch_size,
            settings.seed,
            self.tokenizer.pad_id,
            self.encoded.choices,
            self.task.augment(self.tokenizer, settings.seed),
            context.rank,
            context.size,
        )

    def goal(self, model: Head) -> Goal:
        """Return the task's loss and its score on dev; constant states of a frozen encoder are computed here, once."""
        output_of = packed_output if self.settings.step == "packed" else readable_output
        states = None
        if self.settings.freeze == "encoder" and self.settings.step == "packed":
            if can_be_kept(model, self.encoded):
                output_of = States.of(model, self.encoded, self.settings.precision).output
            if self.held_out and can_be_kept(model, self.held_out):
                states = States.of(model, self.held_out, self.settings.precision)
        return Goal(self.loss_of(output_of), partial(self.measure, states=states) if self.held_out else None)

    def finished(self, model: Head) -> dict[str, Head]:
        """Return the model with the tokenizer and the task with which it answers texts."""
        model.task = self.task
        return super().finished(model)

    def loss_of(self, output_of: OutputFunction) -> Loss:
        """Return the loss function, from the output of the model."""
        return HeadLoss(output_of) if self.weights is None else WeightedLoss(self.weights, output_of)

    def predict(self, model: Head, states: States | None = None) -> list[Any]:
        """Return the predictions for dev; states: of its encoder, if that is frozen."""
        task = self.task
        encoded = self.held_out
        assert encoded is not None
        if states:
            logits = states.logits(model)
        else:
            logits = predict_logits(model, encoded, self.settings.precision, task.reduce)
        return task.decode(logits, encoded, self.dev, self.labels)

    def measure(self, model: Head, states: States | None = None) -> Measure:
        """Return the score on dev; states: of its encoder, if that is frozen."""
        return self.task.measure(self.predict(model, states), self.dev, self.labels)


def as_data(task: Task, data: Any, labels: Iterable[object] | None = None, pairs: Sequence[str] | None = None) -> Any:
    """Return the task's data: read from a file, a table or rows, made of texts and labels, or as it is.

    Raises TypeError or ValueError, with the row or the names of the columns, for what is not such data.
    """
    data = list(data) if isinstance(data, Iterator) else data
    is_file = isinstance(data, str | os.PathLike)
    is_table = is_file or column_names(data) is not None
    if is_table and not (labels is None and pairs is None):
        raise TypeError("labels and pairs are for plain texts; a file or a table has them as columns: label=, pair=")
    if labels is not None or pairs is not None:
        return task.from_labels(data, labels, pairs)
    is_own = is_dataclass(data) or (isinstance(data, list) and data and is_dataclass(data[0]))
    return data if is_own else task.read(data)
