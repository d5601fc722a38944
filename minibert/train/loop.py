"""The training loop, every line of it: steps, learning rate, weight decay, clipping, accumulation, resuming.

    for each epoch, in an order that the seed determines:
        for each batch:
            loss -> gradients -> clipped to a maximum norm -> AdamW -> weights

Nothing depends on when it runs: the order of the rows, the learning rate of a step and its masked tokens are functions
of seed, epoch and step; dropout draws from torch's generator, whose state is saved with the weights. So on a CPU the
same seed gives the same bits, and a run that was killed and resumed gives those of an uninterrupted run. A GPU adds up
gradients in an order of its own, so that two runs with the same seed differ in rounding, whether resumed or not.
Several processes take the same step together, each with its rows of every batch (distributed.py).
The recipe is that of BERT (Devlin et al. 2018, appendix A.3), with Adam's bias correction.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, cast

import torch
from torch import Tensor, nn

from minibert.heads import Head
from minibert.inputs import IGNORED, unchecked
from minibert.kernels.matmul import keep_freed_memory
from minibert.kernels.packing import iterate_ahead
from minibert.kernels.parts import with_parts
from minibert.prediction.collate import ExampleBatch
from minibert.prediction.packed import OutputFunction, packed_output
from minibert.quick import QUICK
from minibert.train.batches import Batches, Stream
from minibert.train.distributed import SINGLE_PROCESS, DistributedContext
from minibert.train.interrupts import delayed_signals
from minibert.train.settings import TrainSettings
from minibert.utils.device import autocast, move
from minibert.utils.printing import progress_bar

# The loss of a batch, a mean over its texts or labelled tokens; of several objectives by name. A loss function may have
# attributes: `over` says over which of "texts", "tokens" and "labels" (the default) the loss of each name is a mean,
# `scales` how much each name counts in the sum (1), and `weight_of(batch)` by what a weighted mean over labels divides.
Losses = Tensor | dict[str, Tensor]
Loss = Callable[[Any, ExampleBatch], Losses]
TINY = torch.finfo(torch.float32).tiny  # the least sum of weights in a batch


class NotFiniteError(RuntimeError):
    """A loss or gradient is NaN or infinite, so that nothing can be learned from it."""


@dataclass
class Progress:
    """How far a run is: all that a resumed run needs beside weights, optimizer and random state."""

    step: int = 0  # steps done
    epoch: int = 0  # epochs done
    batch: int = 0  # batches done in the current epoch
    tokens: int = 0  # without padding
    curve: list[float] = field(default_factory=list)  # the loss of each step
    parts: dict[str, list[float]] = field(default_factory=dict)  # that of each objective, where there are several
    scores: list[dict[str, Any]] = field(default_factory=list)  # of each evaluation
    best: int = -1  # the epoch with the best of them
    pending: list[tuple[Sequence[ExampleBatch], dict[str, Tensor]]] = field(
        default_factory=list
    )  # losses not yet flushed

    def flush_losses(self) -> None:
        """Read the losses of the last steps, which waits for a GPU. Raises NotFiniteError."""
        if not self.pending:
            return
        values = iter(torch.stack([loss for _, losses in self.pending for loss in losses.values()]).tolist())
        for parts, losses in self.pending:
            self.curve.append(finite(next(values), parts, len(self.curve) + 1))
            for name in list(losses)[1:]:
                self.parts.setdefault(name, []).append(next(values))
        self.pending.clear()


def finite(loss: float, parts: Sequence[ExampleBatch], step: int) -> float:
    """The loss, or NotFiniteError with the step and the rows."""
    if not math.isfinite(loss):
        rows = [row for part in parts for row in part.rows]
        raise NotFiniteError(
            f"the loss of step {step} or its gradient is not finite ({loss}), of the rows "
            f"{', '.join(map(str, rows[:40]))}; a lower learning rate or float32 may help; the last checkpoint is kept"
        )
    return loss


def readable_output(model: Head, batch: ExampleBatch) -> Any:
    """The output of the model's own forward pass, with padding; its loss is bit for bit that of transformers."""
    shape, batch = (-1, batch.choices) if batch.choices else (-1,), move(batch, model.device)
    ids, mask, segments = (
        x.unflatten(0, shape) if batch.choices else x  # type: ignore[no-untyped-call]  # torch leaves it untyped
        for x in (batch.input_ids, batch.attention_mask, batch.token_type_ids)
    )
    return model(ids, attention_mask=mask, token_type_ids=segments, **batch.labels)


def own_loss(output_of: OutputFunction, model: Head, batch: ExampleBatch) -> Tensor:
    """The loss of the task head itself."""
    return cast(Tensor, output_of(model, batch).loss)


readable_loss = partial(own_loss, readable_output)
packed_loss = partial(own_loss, packed_output)  # the same without padding, within 1e-5


@dataclass(frozen=True)
class WeightedLoss:
    """The loss of texts, of one label each or of several, in which each has a weight, (N)."""

    weights: Tensor
    output_of: OutputFunction

    def __call__(self, model: Head, batch: ExampleBatch) -> Tensor:
        """The weighted mean over the texts, ()."""
        logits, labels = self.output_of(model, replace(batch, labels={})).logits, batch.labels["labels"]  # (B,K), (B)
        weights = self.weights[list(batch.rows)].to(logits)
        if labels.dim() == 2:  # (B,K) of several labels
            each = nn.functional.binary_cross_entropy_with_logits(logits, labels.to(logits), reduction="none").mean(1)
        else:
            each = nn.functional.cross_entropy(logits, labels, reduction="none")
        return (each * weights).sum() / weights.sum().clamp(min=TINY)

    def weight_of(self, batch: ExampleBatch) -> float:
        """The sum of the weights, by which the mean is divided."""
        return float(self.weights[list(batch.rows)].sum(dtype=torch.float64))


def new_optimizer(model: nn.Module, settings: TrainSettings) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices alone; every trained parameter is in one group, a tied one once."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},  # biases and LayerNorm
    ]
    adam: dict[str, Any] = {"betas": (0.9, settings.beta2), "eps": settings.epsilon, "fused": settings.fused}
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=settings.learning_rate, **adam)


def learning_rate_at(step: int, steps: int, settings: TrainSettings) -> float:
    """The learning rate of a step, counted from 0: linear warmup from 0, then linear decay to 0."""
    warmup = math.ceil(settings.warmup * steps)
    if step < warmup:
        return settings.learning_rate * (step / warmup)
    return settings.learning_rate * max(0.0, (steps - step) / max(1, steps - warmup))


def warn_of_one_step(steps: int, settings: TrainSettings) -> None:
    """Warn where the only step is the first of the warmup, at a rate of 0; transformers' schedule has it too."""
    if not learning_rate_at(steps - 1, steps, settings):
        warnings.warn(
            f"this run has one step, and with warmup {settings.warmup:g} its learning rate is 0: nothing is learned; "
            "give it more steps (epochs, steps, a smaller batch_size) or warmup 0",
            stacklevel=3,
        )


def sizes_of(batch: ExampleBatch, loss_of: Loss) -> dict[str, float]:
    """How many texts, tokens and labels a batch has, over which losses are means."""
    labels: Any = batch.labels.get("labels")
    of_tokens = labels is not None and labels.shape == batch.input_ids.shape and not labels.is_floating_point()
    counted = int((labels != IGNORED).sum()) if of_tokens else len(batch.rows)
    weight_of = getattr(loss_of, "weight_of", lambda batch: counted)
    return {
        "texts": 0 if batch.idle else len(batch.rows),
        "tokens": batch.tokens,
        "labels": 0 if batch.idle else weight_of(batch),
    }


def part_losses(
    model: Head, part: ExampleBatch, shares: dict[str, float], loss_of: Loss, settings: TrainSettings
) -> dict[str, Tensor]:
    """What one batch of a step adds to its loss, and to that of each objective, ().

    shares: which part of all texts, tokens and labels of the step is in this batch; losses over others are left out.
    """
    device = next(model.parameters()).device
    with autocast(device, settings.precision):
        losses = loss_of(model, part)
    overs, scales = getattr(loss_of, "over", {}), getattr(loss_of, "scales", {})
    found = {"loss": torch.zeros((), device=device)}
    for name, loss in (losses if isinstance(losses, dict) else {"loss": losses}).items():
        over = overs.get(name, "labels")
        if over in shares:
            known = loss if shares[over] else loss.nan_to_num()  # the mean of nothing is NaN
            mean = known * shares[over]  # times 1: the same bits
            found["loss"] = found["loss"] + mean * scales.get(name, 1.0)
            found |= {name: mean.detach()} if name != "loss" else {}
    return found


def one_step(
    model: nn.Module,
    parts: Sequence[ExampleBatch],
    optimizer: torch.optim.Optimizer,
    loss_of: Loss,
    settings: TrainSettings,
    step: int,
    context: DistributedContext = SINGLE_PROCESS,
) -> dict[str, Tensor]:
    """Gradients of the batches together, one update of the weights; returns the loss, and that of each objective, ().

    With several batches each is weighted by its texts or labelled tokens, so that they give what one large batch gives,
    and so do those of several ranks; a batch without a label is left out. A loss is NaN where a gradient is not finite.
    `step` is for messages.
    Raises NotFiniteError before the weights change on the CPU, where reading a loss costs nothing.
    """
    device = next(model.parameters()).device
    totals: dict[str, Tensor] = {"loss": torch.zeros((), device=device)}
    optimizer.zero_grad(set_to_none=True)
    sizes = [sizes_of(part, loss_of) for part in parts]
    ours = torch.tensor([[one[over] for one in sizes] for over in sizes[0]], dtype=torch.float64).sum(dim=1)
    whole = dict(zip(sizes[0], context.sum(ours).tolist(), strict=True))
    # Where no rank has a label, that loss is left out, and its own parameters, such as the decoder, have no gradient.
    all_used = all(whole.values())
    for number, (part, own) in enumerate(zip(parts, sizes, strict=True), start=1):
        # All ranks must compute the same losses: one of which only this rank has no label adds zero.
        shares = {over: own[over] / whole[over] for over in own if own[over] or (context.size > 1 and whole[over])}
        with context.no_sync(unless=all_used and number == len(parts)):
            losses = context.forward(model, part_losses, part, shares, loss_of, settings)
            if losses["loss"].requires_grad:
                (losses["loss"] * context.size).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        totals |= {name: totals.get(name, 0) + loss.detach() for name, loss in losses.items()}
    if not all_used:
        context.sum_gradients(model)
    totals = dict(zip(totals, context.sum(torch.stack(list(totals.values()))), strict=True))
    totals["loss"] = totals["loss"] + 0 * nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
    if device.type == "cpu":
        finite(float(totals["loss"]), parts, step)
    optimizer.step()
    return totals


def train(
    model: nn.Module,
    batches: Batches | Stream,
    settings: TrainSettings,
    *,
    loss_of: Loss = packed_loss,
    progress: Progress | None = None,
    optimizer: torch.optim.AdamW | None = None,
    context: DistributedContext = SINGLE_PROCESS,
    after_step: Callable[[Progress], None] = lambda progress: None,
    after_epoch: Callable[[Progress], None] = lambda progress: None,
    before_stop: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Train the model in place, from the given `progress` and `optimizer` on; leaves it in eval mode.

    Unless settings.exact, a copy with faster parts, which shares the parameters, computes the steps.
    loss_of: packed_loss, readable_loss or another function of model and batch. after_step, after_epoch: called with the
    progress; after an epoch the model is in eval mode. before_stop: called with it after the step in which Ctrl-C or
    SIGTERM arrived at any rank. context: the ranks that share each step; `batches` gives each its rows.
    Raises NotFiniteError, with step and rows, for a loss that is not finite; KeyboardInterrupt after before_stop.
    """
    computed = model if settings.exact else with_parts(model, QUICK)
    context.wrap(computed)
    flush_every, prepared = (1, iter) if next(model.parameters()).is_cpu else (20, iterate_ahead)
    progress, optimizer = progress or Progress(), optimizer or new_optimizer(model, settings)
    steps, before = settings.epochs * -(-batches.batches_per_epoch // settings.accumulate), progress.tokens
    warn_of_one_step(steps, settings)
    bar = progress_bar(name="training", total=steps, initial=progress.step, unit="step")
    with bar, unchecked(), keep_freed_memory(), delayed_signals() as signals:  # unchecked: the batches are valid
        while progress.epoch < settings.epochs:
            set_train_mode(computed)
            in_order = prepared(batches.epoch_batches(progress.epoch, progress.batch))
            while parts := list(islice(in_order, settings.accumulate)):
                set_learning_rate(optimizer, learning_rate_at(progress.step, steps, settings))
                losses = one_step(computed, parts, optimizer, loss_of, settings, progress.step + 1, context)
                progress.step, progress.batch = progress.step + 1, progress.batch + len(parts)
                counts = context.sum(torch.tensor([sum(part.tokens for part in parts), len(signals)]))
                progress.tokens += int(counts[0])
                progress.pending.append((parts, losses))
                if len(progress.pending) >= flush_every:
                    progress.flush_losses()
                    show_loss(bar, progress.curve[-1], progress.tokens - before)
                bar.update()
                after_step(progress)
                if counts[1]:
                    before_stop(progress)
                    raise KeyboardInterrupt
            progress.flush_losses()
            progress.epoch, progress.batch = progress.epoch + 1, 0
            computed.eval()
            after_epoch(progress)
    optimizer.zero_grad(set_to_none=True)
    model.head_is_trained = True  # type: ignore[assignment]  # a flag of every task head, no module
    return progress


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Of all groups of parameters."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def show_loss(bar: Any, loss: float, tokens: int) -> None:
    """The loss of the last step and the tokens a second, beside the progress bar."""
    speed = tokens / max(bar.format_dict["elapsed"], 1e-9)
    bar.set_postfix_str(f"loss {loss:.3f}, {speed:,.0f} tokens/s", refresh=False)


def set_train_mode(model: nn.Module) -> None:
    """Training mode, except for modules whose parameters are all frozen: these have no dropout."""
    model.train()
    for module in model.modules():
        parameters = list(module.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            module.eval()
