"""Fine-tuning: a pretrained checkpoint, a fresh task head on top, and all of it trained on one task's data.

    data -> labels, examples -> model with a task head -> train, epoch by epoch, scored on dev -> the best epoch
         -> a folder that transformers loads, with training.json beside the weights

Devlin et al. 2018, section 3: the same way for every task, only what goes in and comes out differs.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from minibert.checkpoints import hub
from minibert.checkpoints.load import has_head, load
from minibert.checkpoints.tensor_files import weights_sha256
from minibert.config import Config
from minibert.device import choose_device, choose_dtype
from minibert.heads import Head
from minibert.tasks.base import Encoded, Measure, Task
from minibert.text.tokenizer import Tokenizer, load_tokenizer
from minibert.train.batches import Batches
from minibert.train.folder import Trained, figures, sha256_of
from minibert.train.keeper import Keeper
from minibert.train.loop import Loss, Progress, Settings, new_optimizer, packed_loss, readable_loss, train
from minibert.train.outputs import outputs
from minibert.train.packed import packed_output

SAVE_EVERY = 200  # steps


class DegenerateWarning(UserWarning):
    """A model that always gives the commonest answer has learned nothing."""


@dataclass(frozen=True)
class Request:
    """What to train on what, and how; Settings has the rest."""

    model: str = "distilbert-base-uncased"  # a Hub name or a folder
    settings: Settings = field(default_factory=Settings)
    max_length: int = 128  # tokens of a row
    freeze: str = "none"  # none, embeddings, a number of layers from below, or encoder
    step: str = "packed"  # or "readable"
    device: str = "auto"
    save_every: int = SAVE_EVERY
    class_weights: tuple[float, ...] | None = None  # of the labels, in their order; None: all alike


# ---------------------------------------------------------------------------------------------------------------
# One run


@dataclass(frozen=True)
class Job:
    """A task with its data as the model is given it: all that can be known before anything is trained."""

    task: Task
    request: Request
    source: hub.Source
    tokenizer: Tokenizer
    labels: list[str]
    encoded: Encoded
    dev: Any  # data to be scored on; None: none
    held_out: Encoded | None  # its examples

    @classmethod
    def of(cls, task: Task, data: Any, dev: Any, request: Request) -> Job:
        """Check and encode. Raises ValueError for data that cannot be learned, before anything is loaded."""
        labels = task.labels_of(data)
        source = hub.locate(request.model)
        most = min(request.max_length, Config.from_file(source.folder / "config.json").max_tokens)
        tokenizer = load_tokenizer(source.folder, max_length=most)
        encoded = task.encode(data, tokenizer, labels, most)
        held_out = None if dev is None else task.encode(dev, tokenizer, labels, most)
        return cls(task, request, source, tokenizer, labels, encoded, dev, held_out)

    @property
    def asked(self) -> dict[str, Any]:
        """All that decides which weights come out, as JSON has it."""
        return {
            "task": self.task.name,
            "task_settings": {name: str(value) for name, value in sorted(vars(self.task).items())},
            **{name: getattr(self.request, name) for name in ("max_length", "freeze", "step", "class_weights")},
            **asdict(self.settings),
            "labels": self.labels,
            "weights_sha256": weights_sha256(self.source.folder),
            "tokenizer": self.tokenizer.fingerprint,
            "train_sha256": sha256_of(self.encoded),
            "dev_sha256": sha256_of(self.held_out),
        }

    @cached_property
    def settings(self) -> Settings:
        """With the precision that the hardware has; "auto" and bfloat16 fall back, the second with a warning."""
        device = torch.device(choose_device(self.request.device))
        dtype = choose_dtype(self.request.settings.precision, device)
        return replace(self.request.settings, precision="bfloat16" if dtype == torch.bfloat16 else "float32")

    def batches(self, pad_id: int) -> Batches:
        """The data, in batches of every epoch."""
        size, seed = self.settings.batch_size, self.settings.seed
        return Batches(self.encoded.examples, size, seed, pad_id, self.encoded.choices)

    def measure(self, model: Head) -> Measure:
        """How good the model is on dev."""
        assert self.held_out is not None  # whoever asks has looked
        found = answers(self.task, model, self.held_out, self.dev, self.labels, self.settings.precision)
        return self.task.measure(found, self.dev, self.labels)


def run(job: Job, folder: Path, *, restart: bool = False) -> Trained:
    """Train one model. The state of the run is kept in `folder`; a run that was begun there is resumed.

    Raises what Keeper and train raise; warns where the model has learned nothing.
    """
    request, settings, begin = job.request, job.settings, time.perf_counter()
    with Keeper(folder, job.asked, request.save_every, restart) as keeper:
        torch.manual_seed(settings.seed)
        model = new_model(job.source.folder, job.task, job.labels).to(choose_device(request.device))
        sizes = freeze(model, request.freeze)
        optimizer = new_optimizer(model, settings)
        progress = keeper.resume(model, optimizer)
        before = progress.tokens

        def after_epoch(progress: Progress) -> None:
            scores = [one[job.task.main] for one in progress.scores]
            if not scores or scores[-1] > max(scores[:-1], default=-math.inf):
                progress.best = progress.epoch - 1
                keeper.keep_best(model)
            keeper.save(progress, model, optimizer)

        train(
            model,
            job.batches(model.config.pad_token_id),
            settings,
            loss_of=loss_function(request),
            score=(lambda model: job.measure(model).figures) if job.held_out else None,
            progress=progress,
            optimizer=optimizer,
            after_step=lambda progress: keeper.after_step(progress, model, optimizer),
            after_epoch=after_epoch,
        )
        keeper.take_best(model)
    measure = job.measure(model) if job.held_out else None
    warn_of_nothing_learned(measure)
    seconds = time.perf_counter() - begin
    notes = [*job.encoded.notes, *(job.held_out.notes if job.held_out else ())]
    speed = {"seconds": round(seconds, 3), "tokens_per_second": round((progress.tokens - before) / seconds, 1)}
    told = figures(job.asked, progress, sizes, measure, notes=notes, **speed)
    return Trained(model, job.tokenizer, job.labels, progress, measure, told)


def warn_of_nothing_learned(measure: Measure | None) -> None:
    """Say so where the score on dev is that of one answer for all."""
    if measure is not None and measure.figures.get("degenerate"):
        warnings.warn(
            f"degenerate: the score on dev, {measure.score:.3f}, is that of always giving the commonest answer; try "
            "another seed, a lower learning rate or more data",
            DegenerateWarning,
            stacklevel=3,
        )


def new_model(folder: Path, task: Task, labels: Sequence[str]) -> Head:
    """The checkpoint with the task's head: its own where it has one for these labels, else a fresh one."""
    config = Config.from_file(folder / "config.json")
    own = has_head(folder, task.head) and (not labels or list(config.id2label.values()) == list(labels))
    if own:
        return load(folder, head=task.head)
    model = load(folder, head=task.head, new_head=True, num_labels=len(labels) or None)
    changes: dict[str, Any] = {"problem_type": task.problem_type()}
    if labels:
        changes["id2label"] = dict(enumerate(labels))
    model.config = replace(model.config, **changes)
    return model


def freeze(model: Head, what: str) -> dict[str, int]:
    """Stop the training of "none", "embeddings", "encoder", or the embeddings and so many layers from below.

    Returns how many parameters are trained and frozen. Raises ValueError for anything else.
    """
    encoder = model.encoder
    parts: list[nn.Module]
    if what == "encoder":
        parts = [encoder]
    elif what in ("none", "embeddings"):
        parts = [encoder.embeddings] if what == "embeddings" else []
    elif what.isdecimal() and 0 <= int(what) <= len(encoder.layers):
        parts = [encoder.embeddings, *list(encoder.layers)[: int(what)]]
    else:
        raise ValueError(
            f"freeze is {what!r}; choose none, embeddings, encoder, or a number of layers up to {len(encoder.layers)}"
        )
    for part in parts:
        part.requires_grad_(False)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return {"trained": trained, "frozen": sum(parameter.numel() for parameter in model.parameters()) - trained}


def loss_function(request: Request) -> Loss:
    """How the loss of a batch is computed."""
    loss_of: Loss = {"packed": packed_loss, "readable": readable_loss}[request.step]
    return loss_of if request.class_weights is None else partial(weighted_loss, torch.tensor(request.class_weights))


def answers(
    task: Task, model: Head, encoded: Encoded, data: Any, labels: Sequence[str], precision: str = "float32"
) -> list[Any]:
    """One answer for each row of the data."""
    return task.decode(outputs(model, encoded, precision), encoded, data, labels)


def weighted_loss(weights: Tensor, model: Head, batch: Any) -> Tensor:
    """Cross entropy in which each label counts by its weight."""
    unlabelled = replace(batch, labels={})
    logits = packed_output(model, unlabelled).logits
    return nn.functional.cross_entropy(logits, batch.labels["labels"], weight=weights.to(logits))
