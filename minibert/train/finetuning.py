"""Fine-tuning: a pretrained checkpoint, a fresh task head on top, and all of it trained on one task's data.

    data -> labels, examples -> model with a task head -> train, epoch by epoch, scored on dev -> the best epoch
         -> a folder that transformers loads, with training.json beside the weights

Devlin et al. 2018, section 3: the same way for every task, only what goes in and comes out differs.
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from minibert.checkpoints import hub
from minibert.checkpoints.load import has_head, load
from minibert.checkpoints.tensor_files import weights_sha256
from minibert.config import Config
from minibert.device import choose_device, choose_dtype
from minibert.files import read_json
from minibert.heads import Head
from minibert.tasks import task_class
from minibert.tasks.base import Encoded, Measure, Task
from minibert.tasks.classification import Classification
from minibert.tasks.labels import class_weights
from minibert.text.texts import as_texts
from minibert.text.tokenizer import Tokenizer, load_tokenizer
from minibert.train import distributed
from minibert.train.batches import Batch, Batches
from minibert.train.folder import REPORT, Trained, check_out, figures, sha256_of, write_folder
from minibert.train.frozen_encoder import States, can_be_kept
from minibert.train.keeper import Keeper, forget
from minibert.train.loop import Loss, Progress, Settings, new_optimizer, readable_loss, train
from minibert.train.outputs import outputs
from minibert.train.packed import Output, packed_output

SAVE_EVERY = 200  # steps


class DegenerateWarning(UserWarning):
    """A model that always gives the commonest answer has learned nothing."""


@dataclass(frozen=True)
class Request:
    """What to train on what, and how; Settings has the rest."""

    model: str = "distilbert-base-uncased"  # a Hub name or a folder
    settings: Settings = field(default_factory=Settings)
    max_length: int | None = None  # tokens of a row; None: the task's row_length, or all positions of the model
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
    def of(cls, task: Task, data: Any, dev: Any, request: Request) -> Self:
        """Check and encode. Raises ValueError for data that cannot be learned, before anything is loaded."""
        if request.step not in ("packed", "readable"):
            raise ValueError(f"step is {request.step!r}; choose packed or readable")
        loss_function(request)
        distributed.check(request.settings.batch_size, request.settings.shard)
        task, labels = task.resolve(data), task.labels_of(data)
        source = hub.locate(request.model)
        limit = Config.from_file(source.folder / "config.json").max_tokens
        if request.max_length is not None and request.max_length > limit:
            raise ValueError(f"max_length is {request.max_length}; the model has {limit} positions, the most it can be")
        most = min(task.row_length, limit) if request.max_length is None else request.max_length
        request = replace(request, max_length=most)
        tokenizer = load_tokenizer(source.folder, max_length=most)
        encoded = task.encode(data, tokenizer, labels, most)
        held_out = None if dev is None else task.encode(dev, tokenizer, labels, most)
        if task.fresh_head and not has_head(source.folder, task.head):
            encoded = replace(encoded, notes=(task.fresh_head, *encoded.notes))
        return cls(task, request, source, tokenizer, labels, encoded, dev, held_out)

    @property
    def asked(self) -> dict[str, Any]:
        """All that decides which weights come out, as JSON has it."""
        return {
            "task": self.task.name,
            "task_settings": {name: str(value) for name, value in sorted(vars(self.task).items())},
            **{name: getattr(self.request, name) for name in ("max_length", "freeze", "step", "class_weights")},
            **asdict(self.settings),
            "processes": distributed.here().size,
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
        precision = "bfloat16" if dtype == torch.bfloat16 else "float32"
        return replace(self.request.settings, precision=precision, exact=self.request.step == "readable")

    def new_model(self) -> Head:
        """The model as training begins."""
        return new_model(self.source.folder, self.task, self.labels)

    def batches(self, pad_id: int) -> Batches:
        """The data, in batches of every epoch, of which this rank has its rows."""
        size, seed, world = self.settings.batch_size, self.settings.seed, distributed.here()
        change = self.task.augment(self.tokenizer, seed)
        examples, choices = self.encoded.examples, self.encoded.choices
        return Batches(examples, size, seed, pad_id, choices, change, world.rank, world.size)

    def measure(self, model: Head, states: States | None = None) -> Measure:
        """How good the model is on dev; `states`, where its encoder is frozen and they are known."""
        assert self.held_out is not None  # whoever asks has looked
        task, precision = self.task, self.settings.precision
        logits = states.logits(model) if states else outputs(model, self.held_out, precision, task.reduce)
        found = task.decode(logits, self.held_out, self.dev, self.labels)
        return task.measure(found, self.dev, self.labels)

    def states(self, model: Head, encoded: Encoded | None) -> States | None:
        """What the encoder makes of examples, once and for all; None where that is not frozen, or not constant."""
        wanted = self.request.freeze == "encoder" and self.request.step == "packed"
        if not wanted or encoded is None or not can_be_kept(model, encoded):
            return None
        return States.of(model, encoded, self.settings.precision)


def run(
    job: Job,
    folder: Path,
    *,
    restart: bool = False,
    loss_of: Callable[[Request, Output], Loss] | None = None,
    say: Callable[[Progress], None] = lambda progress: None,
) -> Trained:
    """Train one model. The state of the run is kept in `folder`; a run that was begun there is resumed.

    loss_of: how a loss comes from outputs, in place of loss_function. say: told of each epoch when it is over.
    Raises what Keeper and train raise; warns where the model has learned nothing.
    """
    request, settings, begin = job.request, job.settings, time.perf_counter()
    world = distributed.here()
    device = world.begin(request.device)
    with Keeper(folder, job.asked, request.save_every, restart, world) as keeper:
        torch.manual_seed(settings.seed)
        model = job.new_model().to(device)
        sizes = freeze(model, request.freeze)
        world.join(model, settings.shard)
        world.seed(settings.seed)
        optimizer = new_optimizer(model, settings)
        progress = keeper.resume(model, optimizer)
        before = progress.tokens
        with world.whole_model():
            learned, known = (job.states(model, encoded) for encoded in (job.encoded, job.held_out))

        def after_epoch(progress: Progress) -> None:
            scores = [one[job.task.main] for one in progress.scores]
            if progress.best < 0 or not scores or scores[-1] > scores[progress.best]:
                progress.best = progress.epoch - 1
                keeper.keep_best(model)
            keeper.save(progress, model, optimizer)
            say(progress)

        train(
            model,
            job.batches(model.config.pad_token_id),
            settings,
            loss_of=(loss_of or loss_function)(request, learned.output if learned else packed_output),
            score=(lambda model: job.measure(model, known).figures) if job.held_out else None,
            progress=progress,
            optimizer=optimizer,
            world=world,
            after_step=lambda progress: keeper.after_step(progress, model, optimizer),
            after_epoch=after_epoch,
        )
        model = world.plain(model, lambda: job.new_model().to(device))
        keeper.take_best(model)
    measure = world.same(lambda: job.measure(model, known)) if job.held_out else None
    warn_of_nothing_learned(measure)
    seconds = time.perf_counter() - begin
    notes = [*job.encoded.notes, *(job.held_out.notes if job.held_out else ())]
    speed = {"seconds": round(seconds, 3), "tokens_per_second": round((progress.tokens - before) / seconds, 1)}
    told = figures(job.asked, progress, sizes, measure, notes=notes, **speed)
    return Trained(model, job.tokenizer, job.task, job.labels, progress, measure, told)


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


def loss_function(request: Request, output_of: Output = packed_output) -> Loss:
    """How the loss of a batch is computed; output_of: by the packed step, or from the states of a frozen encoder."""
    if request.class_weights is None:
        return partial(own_loss, output_of) if request.step == "packed" else readable_loss
    if request.settings.accumulate > 1 or request.step != "packed":
        raise ValueError("class weights need accumulate=1 and the packed step: parts of a step would count unevenly")
    return WeightedLoss(torch.tensor(request.class_weights), output_of)


def answers(
    task: Task, model: Head, encoded: Encoded, data: Any, labels: Sequence[str], precision: str = "float32"
) -> list[Any]:
    """One answer for each row of the data."""
    return task.decode(outputs(model, encoded, precision, task.reduce), encoded, data, labels)


def own_loss(output_of: Output, model: Head, batch: Batch) -> Tensor:
    """The loss of the task head itself."""
    loss: Tensor = output_of(model, batch).loss
    return loss


@dataclass(frozen=True)
class WeightedLoss:
    """Cross entropy in which each label counts by its weight, (K)."""

    weights: Tensor
    output_of: Output

    def __call__(self, model: Head, batch: Batch) -> Tensor:
        """The mean over the texts, ()."""
        logits = self.output_of(model, replace(batch, labels={})).logits  # (B,K)
        return nn.functional.cross_entropy(logits, batch.labels["labels"], weight=self.weights.to(logits))

    def weight_of(self, batch: Batch) -> float:
        """What the mean is divided by."""
        return float(self.weights[batch.labels["labels"]].sum(dtype=torch.float64))


# ---------------------------------------------------------------------------------------------------------------
# From Python


def new_task(name: str, **settings: Any) -> Task:
    """The task of this name with these settings. Raises ValueError for a name that is none."""
    return task_class(name)(**settings)


def finetune(
    task: str | Task,
    data: object,
    labels: Iterable[object] | None = None,
    *,
    pairs: Sequence[str] | None = None,
    dev: object = None,
    out: str | os.PathLike[str] | None = None,
    model: str | os.PathLike[str] = "distilbert-base-uncased",
    max_length: int | None = None,
    freeze: str = "none",
    class_weight: str | Mapping[str, float] | None = None,
    step: str = "packed",
    device: str = "auto",
    restart: bool = False,
    overwrite: bool = False,
    **settings: Any,
) -> Head:
    """Train a checkpoint for a task and return the model with its head, in eval mode, its labels in config.id2label.

    task: "classify", "tag", "answer", "choose", "mask", or a Task with settings of its own. data: a file, what its
    `read` returns, or for "classify" texts, with labels and perhaps pairs beside them. dev: the same, a file or (texts,
    labels); the best epoch on it is kept. out: a new folder for the finished checkpoint; a killed run is resumed by the
    same call. overwrite: what minibert wrote in `out` is replaced, and nothing else. settings: epochs,
    batch_size, learning_rate, ... (train.loop.Settings).
    Raises ValueError for an `out` that holds something and for data that cannot be learned, before anything is loaded,
    and what Keeper and train raise.
    """
    if out is not None:
        check_out(Path(out), overwrite, model)
    task = new_task(task) if isinstance(task, str) else task
    learned = as_data(task, data, labels, pairs)
    given: tuple[Any, ...] = dev if isinstance(dev, tuple) else (dev,)
    held_out = None if dev is None else as_data(task, *given)
    asked = Request(
        model=os.fspath(model),
        settings=Settings(**settings),
        max_length=max_length,
        freeze=freeze,
        step=step,
        device=device,
        class_weights=weights_of(task, learned, class_weight),
    )
    job = Job.of(task, learned, held_out, asked)
    if out is None:
        with tempfile.TemporaryDirectory(prefix="minibert-finetune-") as folder:
            return run(job, Path(folder)).model
    place = Path(out)
    check_out(place, overwrite, job.source.folder)
    trained = run(job, place.with_name(place.name + ".training"), restart=restart)
    write_folder(trained, place, overwrite)
    forget(place.with_name(place.name + ".training"))
    return trained.model


def as_data(task: Task, data: object, labels: object = None, pairs: Sequence[str] | None = None) -> Any:
    """Data of the task: read from a file, made of texts and labels, or as it is."""
    if isinstance(data, str | os.PathLike):
        return task.read(os.fspath(data))
    if labels is None:
        return data
    if not isinstance(task, Classification):
        raise TypeError(f"task {task.name!r} takes a file or what its `read` returns, not texts with labels")
    return task.from_labels(list(as_texts(data)), labels, pairs)  # type: ignore[arg-type]  # from_labels says what it takes


def weights_of(task: Task, data: Any, how: str | Mapping[str, float] | None) -> tuple[float, ...] | None:
    """A weight for each label, in the order of the labels, for a classification; None: all alike."""
    if how is None:
        return None
    if not isinstance(task, Classification) or task.problem_type() != "single_label_classification":
        raise ValueError(f"class_weight is {how!r}, and this task {task.name!r} has not one class a text")
    return tuple(class_weights(data.known_labels, task.labels_of(data), how))


# ---------------------------------------------------------------------------------------------------------------
# A folder that was trained


@dataclass(frozen=True)
class Reader:
    """A trained folder, ready to answer."""

    task: Task
    model: Head
    tokenizer: Tokenizer
    labels: list[str]
    max_length: int

    @classmethod
    def load(cls, folder: str | os.PathLike[str], device: str = "auto") -> Reader:
        """What finetune wrote. Raises FileNotFoundError where it is not there, ValueError where it is damaged."""
        place = Path(folder)
        if not (place / REPORT).is_file():
            raise FileNotFoundError(f"{place} has no {REPORT}: it is no folder that `minibert finetune` wrote")
        report = read_json(place / REPORT)
        try:
            settings = {"mask_rate" if name == "rate" else name: value for name, value in report["settings"].items()}
            task = new_task(report["task"], **settings)  # an earlier minibert wrote "rate"
            labels, max_length = list(map(str, report["labels"])), int(report["asked"]["max_length"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"{place / REPORT} is damaged ({error!r}); train again") from None
        model = load(place, head=task.head, device=choose_device(device))
        max_length = min(max_length, model.config.max_tokens)
        return cls(task, model, load_tokenizer(place, max_length=max_length), labels, max_length)

    def with_columns(self, columns: Mapping[str, str | None]) -> Reader:
        """The same for a file whose columns are called otherwise; of tasks whose files have columns."""
        named = {name: column for name, column in columns.items() if column is not None}
        if named and not isinstance(self.task, Classification):
            raise ValueError(f"files of the task {self.task.name!r} have no {', '.join(named)} to choose")
        if not isinstance(self.task, Classification):
            return self
        return replace(self, task=Classification(**(vars(self.task) | named)))

    def answer(self, data: Any) -> list[Any]:
        """One answer for each row of the data."""
        encoded = self.task.encode(data, self.tokenizer, self.labels, self.max_length)
        return answers(self.task, self.model, encoded, data, self.labels)

    def measure(self, data: Any) -> Measure:
        """The answers against the truth."""
        return self.task.measure(self.answer(data), data, self.labels)
