"""The training loop, every line of it: steps, learning rate, weight decay, clipping, accumulation, resuming.

    for each epoch, in an order that the seed determines:
        for each batch:
            loss -> gradients -> clipped to a maximum norm -> AdamW -> weights
            yield the progress, so that the caller can log, save and evaluate

Nothing depends on when it runs: the order of the rows, the learning rate of a step and its masked tokens are functions
of seed, epoch and step; dropout draws from torch's generator, whose state is saved with the weights. So on a CPU the
same seed gives the same bits, and a run that was killed and resumed gives those of an uninterrupted run. A GPU adds up
gradients in an order of its own, so that two runs with the same seed differ in rounding, whether resumed or not.
Several processes take the same step together, each with its rows of every batch (distributed.py).
The recipe is BERT's (Devlin et al. 2018, appendix A.3), with Adam's bias correction.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from minibert.heads import Head, Reads
from minibert.inputs import unchecked
from minibert.kernels.matmul import keep_freed_memory
from minibert.kernels.packing import iterate_ahead
from minibert.kernels.parts import with_parts
from minibert.prediction.collate import ExampleBatch
from minibert.prediction.packed import OutputFunction, packed_output
from minibert.quick import QUICK
from minibert.train.batches import Batches, Stream
from minibert.train.distributed import SINGLE_PROCESS, DistributedContext
from minibert.train.settings import TrainSettings
from minibert.utils.device import autocast, move
from minibert.utils.printing import progress_bar

TINY = torch.finfo(torch.float32).tiny  # the least sum of weights in a batch


class NotFiniteError(RuntimeError):
    """A loss or gradient is NaN or infinite, so that nothing can be learned from it."""


# ---------------------------------------------------------------------------------------------------------------
# AdamW and its learning rate


def new_optimizer(model: nn.Module, settings: TrainSettings) -> torch.optim.AdamW:
    """Return AdamW with weight decay only on matrices; every trained parameter is in one group, a tied one once."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},  # biases and LayerNorm
    ]
    adam: dict[str, Any] = {"betas": (0.9, settings.beta2), "eps": settings.epsilon, "fused": settings.fused}
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=settings.learning_rate, **adam)


def learning_rate_at(step: int, steps: int, settings: TrainSettings) -> float:
    """Return the learning rate of a step, counted from 0: linear warmup from 0, then linear decay to 0."""
    warmup = math.ceil(settings.warmup * steps)
    if step < warmup:
        return settings.learning_rate * (step / warmup)
    return settings.learning_rate * max(0.0, (steps - step) / max(1, steps - warmup))


def warn_of_one_step(steps: int, settings: TrainSettings) -> None:
    """Warn if the only step is the first of the warmup, at a rate of 0; transformers' schedule has it too."""
    if not learning_rate_at(steps - 1, steps, settings):
        warnings.warn(
            f"this run has one step, and with warmup {settings.warmup:g} its learning rate is 0: nothing is learned; "
            "give it more steps (epochs, steps, a smaller batch_size) or warmup 0",
            stacklevel=3,
        )


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all groups of parameters."""
    for group in optimizer.param_groups:
        group["lr"] = rate


# ---------------------------------------------------------------------------------------------------------------
# One step


@dataclass(frozen=True)
class StepResult:
    """What one step reports, () each; reading it waits for a GPU."""

    loss: Tensor
    gradient_norm: Tensor  # before the gradient is clipped
    terms: dict[str, Tensor]  # of the loss, each before its scale, by name


def one_step(
    model: nn.Module,
    batches: Sequence[ExampleBatch],
    optimizer: torch.optim.Optimizer,
    loss_of: Loss,
    settings: TrainSettings,
    step: int,
    context: DistributedContext = SINGLE_PROCESS,
) -> StepResult:
    """Update the weights once, by the gradient of the loss over all these batches.

    step: its number, for messages. Raises NotFiniteError before the weights change on the CPU, where reading a loss
    costs nothing; of a GPU, Progress.flush_losses raises it.
    """
    optimizer.zero_grad(set_to_none=True)
    total = torch.zeros(())
    for loss, terms in weighted_losses(model, batches, loss_of, settings.precision, context):
        loss.backward()  # type: ignore[no-untyped-call]  # it adds to the gradient; torch leaves it untyped
        total = total + torch.stack([loss, *terms.values()]).detach()
    loss, *values = context.sum(total) / context.size
    norm = nn.utils.clip_grad_norm_(model.parameters(), settings.clip).to(loss)  # of no gradient it is on the CPU
    if loss.is_cpu:
        check_loss(float(loss), float(norm), batches, step)
    optimizer.step()
    return StepResult(loss, norm, dict(zip(terms, values, strict=True)))


def weighted_losses(
    model: nn.Module, batches: Sequence[ExampleBatch], loss_of: Loss, precision: str, context: DistributedContext
) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """Yield the loss of each batch, (), and its terms by name, so weighted that they add up to the loss of the step.

    With a single batch and process all weights are 1. A term is a mean over texts or tokens, of which batches and ranks
    have different numbers, so each mean counts by its share of them; DistributedDataParallel then takes the mean over
    the ranks:

        weight = ranks · texts or tokens of this batch / those of all batches on all ranks

    The caller calls backward on each loss before the next one; after the last, all ranks have the gradient of the step.
    """
    device = next(model.parameters()).device
    loss_of = loss_of.of_step(model, batches, precision, context)
    terms = [loss_of.terms(model, batch) for batch in batches]
    counts = torch.tensor([[term.count for term in own.values()] for own in terms], dtype=torch.float64)
    sums = zip(terms[0], context.sum(counts.sum(dim=0)).tolist(), strict=True)
    # Where no rank has a label, that term is left out, and its own parameters, such as the decoder, have no gradient.
    totals = {name: total for name, total in sums if total}
    complete = len(totals) == len(terms[0])
    for number, (batch, own) in enumerate(zip(batches, terms, strict=True), start=1):
        with context.no_sync(unless=complete and number == len(batches)):
            with autocast(device, precision):
                means = context.forward(model, loss_of.means, batch)
            loss, weighted = torch.zeros((), device=device, requires_grad=True), dict[str, Tensor]()
            for name, total in totals.items():
                # All ranks must compute the same terms: one of which only this rank has no label adds zero.
                mean = means[name] if own[name].count else means[name].nan_to_num()  # the mean of nothing is NaN
                weighted[name] = mean * (context.size * own[name].count / total)
                loss = loss + weighted[name] * own[name].scale
            yield loss, weighted
    if not complete:
        context.average_gradients(model)


def check_loss(loss: float, gradient_norm: float, batches: Sequence[ExampleBatch], step: int) -> None:
    """Raise NotFiniteError, with the step and its rows, unless both are finite."""
    if not (math.isfinite(loss) and math.isfinite(gradient_norm)):
        rows = [row for batch in batches for row in batch.rows]
        raise NotFiniteError(
            f"the loss of step {step} or its gradient is not finite (loss {loss:g}, gradient {gradient_norm:g}), of "
            f"the rows {', '.join(map(str, rows[:40]))}; a lower learning rate or float32 may help; the last "
            "checkpoint is kept"
        )


# ---------------------------------------------------------------------------------------------------------------
# What is minimised


@dataclass(frozen=True)
class Term:
    """How one loss of a batch enters that of a step: `scale` times the mean over the texts or tokens of the step."""

    count: float  # how many texts or tokens of the batch the loss is a mean over, or the sum of their weights
    scale: float = 1.0


class Loss(ABC):
    """What is minimised: a sum of means over texts or tokens, by name.

    The counts are known before the model runs: dividing by those of the whole step makes the gradients of micro-batches
    and ranks add up to the gradient of one large batch.
    """

    def of_step(self, model: Any, batches: Sequence[ExampleBatch], precision: str, context: DistributedContext) -> Loss:
        """Return the loss for these batches of one step, of this rank; another one if it is not a sum over batches."""
        return self

    @abstractmethod
    def terms(self, model: Any, batch: ExampleBatch) -> dict[str, Term]:
        """Return the terms of a batch by name; counts are 0 for a rank without a row (ExampleBatch.idle)."""

    @abstractmethod
    def means(self, model: Any, batch: ExampleBatch) -> dict[str, Tensor]:
        """Return the mean of each term over the batch, () each, by the same names."""

    def __call__(self, model: Any, batch: ExampleBatch) -> Tensor:
        """Return the loss of one batch, ()."""
        terms = self.terms(model, batch)
        return torch.stack([mean * terms[name].scale for name, mean in self.means(model, batch).items()]).sum()


def readable_output(model: Head, batch: ExampleBatch) -> Any:
    """Return the output of the model's own forward pass, with padding; its loss is bit for bit that of transformers."""
    batch = move(batch, model.device)
    ids, mask, segments = (
        x.unflatten(0, (-1, batch.choices)) if batch.choices else x  # type: ignore[no-untyped-call]  # torch leaves it untyped
        for x in (batch.input_ids, batch.attention_mask, batch.token_type_ids)
    )
    return model(ids, attention_mask=mask, token_type_ids=segments, **batch.labels)


@dataclass(frozen=True)
class HeadLoss(Loss):
    """The loss of the task head itself."""

    output_of: OutputFunction

    def terms(self, model: Head, batch: ExampleBatch) -> dict[str, Term]:
        """Return how many tokens carry a label; for a head that labels texts, how many texts."""
        of_tokens = model.reads & (Reads.LABELLED | Reads.REAL)
        return {"loss": Term(batch.labelled_tokens if of_tokens else batch.texts)}

    def means(self, model: Head, batch: ExampleBatch) -> dict[str, Tensor]:
        """Return the head's loss."""
        return {"loss": self.output_of(model, batch).loss}


readable_loss = HeadLoss(readable_output)
packed_loss = HeadLoss(packed_output)  # the same without padding, within 1e-5


@dataclass(frozen=True)
class WeightedLoss(Loss):
    """The loss of texts, of one label each or of several, in which each text has a weight, (N)."""

    weights: Tensor
    output_of: OutputFunction

    def terms(self, model: Head, batch: ExampleBatch) -> dict[str, Term]:
        """Return the sum of the weights."""
        whole = self.weights[list(batch.rows)].sum(dtype=torch.float64)
        return {"loss": Term(0.0 if batch.idle else float(whole))}

    def means(self, model: Head, batch: ExampleBatch) -> dict[str, Tensor]:
        """Return the weighted mean over the texts."""
        logits = self.output_of(model, replace(batch, labels={})).logits  # (B,K)
        labels = batch.labels["labels"]  # (B) or (B,K)
        weights = self.weights[list(batch.rows)].to(logits)
        if labels.dim() == 2:  # several labels
            each = nn.functional.binary_cross_entropy_with_logits(logits, labels.to(logits), reduction="none").mean(1)
        else:
            each = nn.functional.cross_entropy(logits, labels, reduction="none")
        return {"loss": (each * weights).sum() / weights.sum().clamp(min=TINY)}


# ---------------------------------------------------------------------------------------------------------------
# All steps


@dataclass
class Progress:
    """How far a run is: all that a resumed run needs beside weights, optimizer and random state."""

    step: int = 0  # steps done
    epoch: int = 0  # epochs done
    batch: int = 0  # batches done in the current epoch
    tokens: int = 0  # without padding
    curve: list[float] = field(default_factory=list)  # the loss of each step
    terms: dict[str, list[float]] = field(default_factory=dict)  # of each step, each term of the loss by name
    scores: list[dict[str, Any]] = field(default_factory=list)  # of each evaluation
    best: int = -1  # the epoch with the best of them
    pending: list[tuple[Sequence[ExampleBatch], StepResult]] = field(default_factory=list)  # not yet flushed

    def add(self, batches: Sequence[ExampleBatch], result: StepResult, context: DistributedContext) -> None:
        """Count one step on these batches of this rank; its losses are read later."""
        self.step += 1
        self.batch += len(batches)
        self.tokens += int(context.sum(torch.tensor(sum(batch.tokens for batch in batches))))
        self.pending.append((batches, result))

    def flush_losses(self) -> None:
        """Read the losses of the last steps, which waits for a GPU. Raises NotFiniteError."""
        if not self.pending:
            return
        results = [(result.loss, result.gradient_norm, *result.terms.values()) for _, result in self.pending]
        values = iter(torch.stack([value for result in results for value in result]).tolist())
        for batches, result in self.pending:
            loss = next(values)
            check_loss(loss, next(values), batches, len(self.curve) + 1)
            self.curve.append(loss)
            for name in result.terms:
                self.terms.setdefault(name, []).append(next(values))
        self.pending.clear()


def train(
    model: nn.Module,
    batches: Batches | Stream,
    settings: TrainSettings,
    *,
    loss_of: Loss = packed_loss,
    progress: Progress | None = None,
    optimizer: torch.optim.AdamW | None = None,
    context: DistributedContext = SINGLE_PROCESS,
) -> Iterator[Progress]:
    """Train the model in place; yield the progress after each step, and again after each epoch, where `batch` is 0.

    The object is the same each time; a given `progress` and `optimizer` are continued. After an epoch the model is in
    eval mode. Unless settings.exact, a copy with faster parts, which shares the parameters, computes the steps.
    context: the ranks that share each step; `batches` gives each its rows. Raises NotFiniteError, with step and rows.
    """
    computed = model if settings.exact else with_parts(model, QUICK)
    context.wrap(computed)
    flush_every, prepared = (1, iter) if next(model.parameters()).is_cpu else (20, iterate_ahead)
    progress, optimizer = progress or Progress(), optimizer or new_optimizer(model, settings)
    steps = settings.epochs * -(-batches.batches_per_epoch // settings.accumulate)
    before = progress.tokens
    warn_of_one_step(steps, settings)
    with progress_bar(name="training", total=steps, initial=progress.step, unit="step") as bar, keep_freed_memory():
        while progress.epoch < settings.epochs:
            set_train_mode(computed)
            in_order = prepared(batches.epoch_batches(progress.epoch, progress.batch))
            while of_step := list(islice(in_order, settings.accumulate)):
                set_learning_rate(optimizer, learning_rate_at(progress.step, steps, settings))
                with unchecked():  # the batches are valid
                    result = one_step(computed, of_step, optimizer, loss_of, settings, progress.step + 1, context)
                progress.add(of_step, result, context)
                if len(progress.pending) >= flush_every:
                    progress.flush_losses()
                    show_loss(bar, progress.curve[-1], progress.tokens - before)
                bar.update()
                yield progress
            progress.flush_losses()
            progress.epoch += 1
            progress.batch = 0
            computed.eval()
            yield progress
    optimizer.zero_grad(set_to_none=True)
    if isinstance(model, Head):
        model.head_is_trained = True


def show_loss(bar: Any, loss: float, tokens: int) -> None:
    """Show the loss of the last step and the tokens per second beside the progress bar."""
    speed = tokens / max(bar.format_dict["elapsed"], 1e-9)
    bar.set_postfix_str(f"loss {loss:.3f}, {speed:,.0f} tokens/s", refresh=False)


def set_train_mode(model: nn.Module) -> None:
    """Set training mode, except for modules whose parameters are all frozen: these have no dropout."""
    model.train()
    for module in model.modules():
        parameters = list(module.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            module.eval()
