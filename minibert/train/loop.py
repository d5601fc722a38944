"""The training loop, every line of it: steps, learning rate, weight decay, clipping, accumulation, resuming.

    for each epoch, in an order that the seed decides:
        for each batch:
            loss -> gradients -> clipped to a length -> AdamW -> weights

Nothing depends on when it runs: the order of the rows, the learning rate of a step and what is masked in it are
functions of seed, epoch and step; dropout draws from torch's generator, whose state is saved with the weights. So the
same seed gives the same bits, and a run that was killed and resumed gives those of a run that was not.
Several processes take the same step together, each with its rows of every batch; `world` is all that knows of them
(distributed.py), and alone it does nothing.
The recipe is that of BERT (Devlin et al. 2018, appendix A.3), with Adam's bias correction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from tqdm import tqdm

from minibert.heads import Head
from minibert.inputs import unchecked
from minibert.kernels.memory import keep_freed_memory
from minibert.kernels.training import Quick
from minibert.losses import IGNORED
from minibert.train.batches import Batch
from minibert.train.distributed import ALONE, World
from minibert.train.packed import packed_output

# A way to compute the loss of one batch, a mean over its texts or its labelled tokens; of several objectives by name.
Losses = Tensor | dict[str, Tensor]
Loss = Callable[[Any, Batch], Losses]
# What the loss of an objective is a mean over: texts, all tokens, or for any other one what has a label.
OVER = {
    "next-sentence": "texts",
    "sentence-order": "texts",
    "replaced-token-detection": "tokens",
    "distillation": "tokens",
    "cosine": "tokens",
}
# What a model scores on data that it does not learn from; more is better.
Score = Callable[[Any], dict[str, Any]]


@dataclass(frozen=True)
class Settings:
    """How to train; the defaults are those of BERT's paper."""

    epochs: int = 3
    batch_size: int = 32  # texts in a step, of all processes together, for each of `accumulate` parts
    learning_rate: float = 5e-5
    warmup: float = 0.1  # the share of the steps in which the learning rate rises
    weight_decay: float = 0.01  # of matrices; never of biases and LayerNorm
    clip: float = 1.0  # the largest length of all gradients together
    beta2: float = 0.999  # how long Adam remembers the squares of gradients
    epsilon: float = 1e-8  # what Adam adds to their root
    accumulate: int = 1  # batches whose gradients make one step
    seed: int = 0
    precision: str = "float32"  # of the matrix products: bfloat16 by autocast; weights and optimizer stay in float32
    scales: dict[str, float] = field(default_factory=dict)  # how much objectives count in the loss; 1 if not named
    fused: bool = True  # torch's fused AdamW, whose last bits differ from those of the plain one
    exact: bool = True  # to the bit; False: some of it done in another way, sooner, with other last bits (quick.py)
    shard: str = "none"  # "full": each of several processes keeps a part of weights, gradients and moments


class NotFiniteError(RuntimeError):
    """A loss is NaN or infinite: nothing can be learned from it."""


@dataclass
class Progress:
    """How far a run is: all that a resumed run needs beside weights, optimizer and random state."""

    step: int = 0  # steps done
    epoch: int = 0  # epochs done
    batch: int = 0  # batches done in the one that is under way
    tokens: int = 0  # read so far, padding left out
    curve: list[float] = field(default_factory=list)  # the loss of each step
    parts: dict[str, list[float]] = field(default_factory=dict)  # that of each objective, where there are several
    scores: list[dict[str, Any]] = field(default_factory=list)  # after each epoch
    best: int = -1  # the epoch with the best of them
    pending: list[tuple[Sequence[Batch], dict[str, Tensor]]] = field(default_factory=list)  # losses not looked at yet

    def look(self) -> None:
        """Take in the losses of the last steps, for which a GPU is waited for. Raises NotFiniteError."""
        for parts, losses in self.pending:
            self.curve.append(finite(float(losses["loss"]), parts, len(self.curve) + 1))
            for name, loss in losses.items():
                if name != "loss":
                    self.parts.setdefault(name, []).append(float(loss))
        self.pending.clear()


def finite(loss: float, parts: Sequence[Batch], step: int) -> float:
    """The loss, or NotFiniteError with the step and the rows."""
    if not math.isfinite(loss):
        rows = [row for part in parts for row in part.rows]
        raise NotFiniteError(
            f"the loss of step {step} or its gradient is not finite ({loss}), of the rows "
            f"{', '.join(map(str, rows[:40]))}; a lower rate or float32 may help, and what was saved before is kept"
        )
    return loss


def readable_loss(model: Head, batch: Batch) -> Tensor:
    """The loss by the model as it is, padding and all: bit for bit that of transformers."""
    shape = (-1, batch.choices) if batch.choices else (-1,)
    ids, mask, segments = (
        x.unflatten(0, shape) if batch.choices else x  # type: ignore[no-untyped-call]  # torch leaves it untyped
        for x in (batch.input_ids, batch.attention_mask, batch.token_type_ids)
    )
    loss: Tensor = model(ids, attention_mask=mask, token_type_ids=segments, **batch.labels).loss
    return loss


def packed_loss(model: Head, batch: Batch) -> Tensor:
    """The same without padding, within 1e-5."""
    loss: Tensor = packed_output(model, batch).loss
    return loss


def new_optimizer(model: nn.Module, settings: Settings) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices alone; every trained parameter is in one group, a tied one once."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},  # biases and LayerNorm
    ]
    how: dict[str, Any] = {"betas": (0.9, settings.beta2), "eps": settings.epsilon, "fused": settings.fused}
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=settings.learning_rate, **how)


def rate(step: int, steps: int, settings: Settings) -> float:
    """The learning rate of a step, counted from 0: up from 0 in a line, then down to 0."""
    rising = math.ceil(settings.warmup * steps)
    if step < rising:
        return settings.learning_rate * (step / rising)
    return settings.learning_rate * max(0.0, (steps - step) / max(1, steps - rising))


class Source(Protocol):
    """Where batches come from: Batches of examples, or a corpus that is streamed."""

    @property
    def an_epoch(self) -> int:
        """How many batches an epoch has."""
        ...

    def of_epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from number `first` on, the same each time."""
        ...


def weights_of(batch: Batch, loss_of: Loss) -> dict[str, float]:
    """How much a batch has of what means are taken over: texts, tokens, and labels of tokens, or of texts.

    A loss that counts labels otherwise has a `weight_of(batch)` that says how much they are.
    """
    texts, labels = 0 if batch.idle else len(batch.rows), batch.labels.get("labels")
    labelled: float = texts
    if hasattr(loss_of, "weight_of"):
        labelled = 0 if batch.idle else loss_of.weight_of(batch)
    elif labels is not None and labels.shape == batch.input_ids.shape and not labels.is_floating_point():
        labelled = 0 if batch.idle else int((labels != IGNORED).sum())
    return {"texts": texts, "tokens": batch.tokens, "labels": labelled}


def part_of_loss(
    model: Head, part: Batch, shares: dict[str, float], loss_of: Loss, settings: Settings
) -> dict[str, Tensor]:
    """What one part adds to the loss of a step, and to that of each objective, ().

    shares: of all texts, tokens and labels of the step those in this part; what is not named is left out.
    """
    lower = torch.autocast(part.input_ids.device.type, torch.bfloat16)
    with lower if settings.precision == "bfloat16" else nullcontext():
        losses = loss_of(model, part)
    found = {"loss": torch.zeros((), device=part.input_ids.device)}
    for name, loss in losses.items() if isinstance(losses, dict) else (("loss", losses),):
        over = OVER.get(name, "labels")
        if over in shares:
            known = loss if shares[over] else loss.nan_to_num()  # the mean of nothing is not a number
            mean = known * shares[over]  # times 1: the same bits
            found["loss"] = found["loss"] + mean * settings.scales.get(name, 1.0)
            if name != "loss":
                found[name] = mean.detach()
    return found


def one_step(
    model: nn.Module,
    parts: Sequence[Batch],
    optimizer: torch.optim.Optimizer,
    loss_of: Loss,
    settings: Settings,
    step: int,
    world: World = ALONE,
) -> dict[str, Tensor]:
    """Gradients of the batches together, one update of the weights; returns the loss, and that of each objective, ().

    With several batches each counts by its texts or labelled tokens, so that they give what one large batch gives, and
    so do those of several ranks; a batch without a label teaches nothing and is left out. A loss is NaN where a
    gradient is not finite. `step` is for messages.
    Raises NotFiniteError on the CPU, where looking at a loss costs nothing, before the weights change.
    """
    device = next(model.parameters()).device
    totals: dict[str, Tensor] = {"loss": torch.zeros((), device=device)}
    optimizer.zero_grad(set_to_none=True)
    weights = [weights_of(part, loss_of) for part in parts]
    whole = world.sum_numbers({over: sum(one[over] for one in weights) for over in weights[0]})
    for number, (part, own) in enumerate(zip(parts, weights, strict=True), start=1):
        # Several ranks must compute the same: what only this one has none of adds zero.
        shares = {over: own[over] / whole[over] for over in own if own[over] or (world.size > 1 and whole[over])}
        with nullcontext() if settings.exact else Quick(), world.summing(last=number == len(parts)):
            losses = world.through(model, part_of_loss, part.to(device), shares, loss_of, settings)
            if losses["loss"].requires_grad:
                (losses["loss"] * world.size).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        totals |= {name: totals.get(name, 0) + loss.detach() for name, loss in losses.items()}
    totals = world.sum_tensors(totals)
    totals["loss"] = totals["loss"] + 0 * world.clip(model, settings.clip)
    if device.type == "cpu":
        finite(float(totals["loss"]), parts, step)
    optimizer.step()
    return totals


def train(
    model: nn.Module,
    batches: Source,
    settings: Settings,
    *,
    loss_of: Loss = packed_loss,
    score: Score | None = None,
    progress: Progress | None = None,
    optimizer: torch.optim.AdamW | None = None,
    world: World = ALONE,
    after_step: Callable[[Progress], None] = lambda progress: None,
    after_epoch: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Train the model in place, from where `progress` and `optimizer` are; leaves it in eval mode.

    loss_of: packed_loss or readable_loss. score: asked after each epoch. after_step and after_epoch: whoever saves.
    world: the ranks that the model was joined with; `batches` gives each its rows.
    Raises NotFiniteError, with the step and the rows, for a loss that is NaN or infinite.
    """
    look_every = 1 if next(model.parameters()).device.type == "cpu" else 20
    progress = progress or Progress()
    optimizer = optimizer or new_optimizer(model, settings)
    steps, before = settings.epochs * -(-batches.an_epoch // settings.accumulate), progress.tokens
    bar = tqdm(total=steps, initial=progress.step, unit="step", delay=2, disable=None if world.first else True)
    with bar, unchecked(), keep_freed_memory():  # the batches are our own
        while progress.epoch < settings.epochs:
            learn(model)
            for parts in in_parts(batches.of_epoch(progress.epoch, progress.batch), settings.accumulate):
                for group in optimizer.param_groups:
                    group["lr"] = rate(progress.step, steps, settings)
                losses = one_step(model, parts, optimizer, loss_of, settings, progress.step + 1, world)
                progress.step, progress.batch = progress.step + 1, progress.batch + len(parts)
                progress.tokens += world.sum_of(part.tokens for part in parts)
                progress.pending.append((parts, losses))
                if len(progress.pending) >= look_every:
                    progress.look()
                    speed = (progress.tokens - before) / max(bar.format_dict["elapsed"], 1e-9)
                    told = {"loss": f"{progress.curve[-1]:.3f}", "tokens/s": f"{speed:,.0f}"}
                    bar.set_postfix(epoch=progress.epoch + 1, **told, refresh=False)
                bar.update()
                after_step(progress)
            progress.look()
            progress.epoch, progress.batch = progress.epoch + 1, 0
            model.eval()
            if score is not None:
                progress.scores.append(world.ask(model, score))
            after_epoch(progress)
    optimizer.zero_grad(set_to_none=True)
    model.head_is_trained = True  # type: ignore[assignment]  # a flag of every task head, no module
    return progress


def learn(model: nn.Module) -> None:
    """Training mode, but for modules of which nothing is trained: what is frozen has no dropout."""
    model.train()
    for module in model.modules():
        parameters = list(module.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            module.eval()


def in_parts(batches: Iterator[Batch], count: int) -> Iterator[list[Batch]]:
    """Lists of up to `count` batches."""
    while part := list(islice(batches, count)):
        yield part
