"""Fine-tuning: a pretrained checkpoint, a fresh task head on top, and all of it trained on one task's data.

    data -> labels, examples -> model with a task head -> train, epoch by epoch, scored on dev -> the best epoch
         -> a folder that transformers loads, with training.json beside the weights

Devlin et al. 2018, section 3: the same way for every task, only what goes in and comes out differs.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
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
from minibert.tasks.base import Encoded, Task
from minibert.text.tokenizer import load_tokenizer
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


def run(task: Task, data: Any, dev: Any, request: Request, folder: Path, *, restart: bool = False) -> Trained:
    """Train one model; the state of the run is kept in `folder`, and a run that was begun there is resumed.

    Raises ValueError for data that cannot be learned, before anything is loaded, and what Keeper and train raise.
    """
    labels = task.labels_of(data)
    source = hub.locate(request.model)
    tokenizer = load_tokenizer(source.folder, max_length=fitting(source.folder, request.max_length))
    encoded = task.encode(data, tokenizer, labels, tokenizer.max_length)
    held_out = None if dev is None else task.encode(dev, tokenizer, labels, tokenizer.max_length)
    settings = on_this_machine(request)
    asked = {
        "task": task.name,
        "task_settings": {name: str(value) for name, value in sorted(vars(task).items())},
        **{name: getattr(request, name) for name in ("max_length", "freeze", "step", "class_weights")},
        **asdict(settings),
        "labels": labels,
        "weights_sha256": weights_sha256(source.folder),
        "tokenizer": tokenizer.fingerprint,
        "train_sha256": sha256_of(encoded),
        "dev_sha256": sha256_of(held_out),
    }
    begin = time.perf_counter()
    with ExitStack() as stack:
        keeper = stack.enter_context(Keeper(folder, asked, request.save_every, restart))
        torch.manual_seed(settings.seed)
        model = new_model(source.folder, task, labels).to(choose_device(request.device))
        sizes = freeze(model, request.freeze)
        optimizer = new_optimizer(model, settings)
        progress = keeper.resume(model, optimizer)
        resumed = progress.tokens

        def score(model: Head) -> dict[str, Any]:
            assert held_out is not None  # it is not asked otherwise
            return task.measure(answers(task, model, held_out, dev, labels, settings.precision), dev, labels).figures

        def after_epoch(progress: Progress) -> None:
            scores = [one[task.main] for one in progress.scores]
            if not scores or scores[-1] > max(scores[:-1], default=-float("inf")):
                progress.best = progress.epoch - 1
                keeper.keep_best(model)
            keeper.save(progress, model, optimizer)

        train(
            model,
            Batches(encoded.examples, settings.batch_size, settings.seed, model.config.pad_token_id, encoded.choices),
            settings,
            loss_of=loss_function(request),
            score=score if held_out is not None else None,
            progress=progress,
            optimizer=optimizer,
            after_step=lambda progress: keeper.after_step(progress, model, optimizer),
            after_epoch=after_epoch,
        )
        keeper.take_best(model)
    measure = None
    if held_out is not None:
        measure = task.measure(answers(task, model, held_out, dev, labels, settings.precision), dev, labels)
    seconds = time.perf_counter() - begin
    told = figures(
        asked,
        progress,
        sizes,
        measure,
        seconds=round(seconds, 3),
        tokens_per_second=round((progress.tokens - resumed) / seconds, 1),
        notes=[*encoded.notes, *(held_out.notes if held_out else ())],
    )
    if measure is not None and measure.figures.get("degenerate"):
        warnings.warn(
            f"degenerate: the score on dev, {measure.score:.3f}, is that of always giving the commonest answer; try "
            "another seed, a lower learning rate or more data",
            DegenerateWarning,
            stacklevel=2,
        )
    return Trained(model, tokenizer, labels, progress, measure, told)


def fitting(folder: Path, max_length: int) -> int:
    """max_length, or the positions that the model has where they are fewer."""
    return min(max_length, Config.from_file(folder / "config.json").max_tokens)


def on_this_machine(request: Request) -> Settings:
    """The settings with the precision that the hardware has; "auto" and bfloat16 warn or fall back as elsewhere."""
    device = torch.device(choose_device(request.device))
    dtype = choose_dtype(request.settings.precision, device)
    return replace(request.settings, precision="bfloat16" if dtype == torch.bfloat16 else "float32")


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
    sizes = {
        wanted: sum(p.numel() for p in model.parameters() if p.requires_grad == wanted) for wanted in (True, False)
    }
    return {"trained": sizes[True], "frozen": sizes[False]}


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
