"""Whole checkpoints up the parity ladder: the encoder and every head, against transformers or against ourselves."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from minibert.checkpoints.hub import Source
from minibert.checkpoints.load import load
from minibert.families.base import Family
from minibert.parity import checkpoints
from minibert.parity.causes import explain
from minibert.parity.checkpoints import Size, Task, make_batch
from minibert.parity.compare import (
    EQUAL,
    MEASURED,
    Bounds,
    Row,
    compare,
    compare_full_length,
    compare_training,
    first_divergent,
)

TOKENS = 24  # S of the batch for a checkpoint of any size; every position is used once, by the encoder alone


def trained_head(family: Family) -> str:
    """The task head that is trained at full size, where a step takes seconds: the one of pretraining."""
    return next(head for head in ("pretraining", "replaced-token-detection", "masked-lm") if head in family.heads)


@dataclass
class Result:
    """One checkpoint up the ladder."""

    checkpoint: str
    origin: str  # where it comes from, in words
    tiny: bool = False
    rows: list[Row] = field(default_factory=list)
    cause: str = ""  # why the first divergent tensor differs
    seconds: float = 0.0

    @property
    def first(self) -> Row | None:
        """The first divergent tensor."""
        return first_divergent(self.rows)

    def add(self, rows: list[Row], head: str | None) -> None:
        """Take in the rows of one head (None: the bare encoder)."""
        self.rows += [replace(row, head=head or "encoder", checkpoint=self.checkpoint) for row in rows]


def climb(
    result: Result,
    ours: nn.Module,
    theirs: nn.Module,
    asked: Task,
    head: str | None,
    *,
    train: bool,
    bounds: Bounds = EQUAL,
) -> None:
    """Compare one pair of models on every rung and note the cause of the first difference. `train` changes both."""
    rows = compare(ours, theirs, asked.batch, asked.labels or None, bounds)
    if head is None:
        longest = int(ours.config.max_tokens)  # type: ignore[union-attr,arg-type]  # a Module that has a config
        rows += compare_full_length(ours, theirs, make_batch(theirs.config, longest, rows=2), bounds)
    first = first_divergent(rows)
    if first and not result.cause:
        result.cause = explain(ours, theirs, asked.batch, first) if bounds == EQUAL else "outside the measured bound"
    if train:
        rows += compare_training(ours, theirs, asked.batch, asked.labels)
        first = first_divergent(rows)
        if first and not result.cause:
            result.cause = explain(ours, theirs, asked.batch, first)
    result.add(rows, head)


def climb_random(size: Size) -> Result:
    """A checkpoint made at random by transformers, the encoder and every head that its model type has."""
    began = time.perf_counter()
    result = Result(size.name, "random parameters, written by transformers", tiny=not size.full)
    for head in (None, *size.family.heads):
        with tempfile.TemporaryDirectory() as folder:
            theirs = checkpoints.make(size, head, Path(folder))
            if mistake := checkpoints.mistake_upstream(theirs, head, Path(folder)):
                result.origin += f"; not {head}, which this transformers builds {mistake}"
                continue
            ours = load(folder, head=head)
        asked = checkpoints.task(head, theirs.config, size.tokens, size.seed)
        train = bool(asked.labels) and (not size.full or head == trained_head(size.family))
        climb(result, ours, theirs, asked, head, train=train)
    result.seconds = time.perf_counter() - began
    return result


def climb_checkpoint(source: Source) -> Result:
    """A checkpoint as it is. A head that it does not hold is drawn at random on top of its encoder."""
    began = time.perf_counter()
    result = Result(source.name, f"from {source.origin}")
    encoder = load(source.folder)
    family, pooler = encoder.config.family, encoder.pooler is not None
    for head in (None, *family.heads):
        theirs, complete = checkpoints.open_upstream(source.folder, family, head, pooler)
        ours = encoder if head is None else load_head(source.folder, theirs, head, complete)
        asked = checkpoints.task(head, theirs.config, min(TOKENS, encoder.config.max_tokens))
        climb(result, ours, theirs, asked, head, train=head == trained_head(family))
    result.seconds = time.perf_counter() - began
    return result


def load_head(folder: Path, theirs: Any, head: str, complete: bool) -> Any:
    """Our model with a head: from the checkpoint itself or, where that lacks the head, from what upstream saves."""
    if complete:
        return load(folder, head=head)
    with tempfile.TemporaryDirectory() as written, checkpoints.quiet():
        theirs.save_pretrained(written)
        return load(written, head=head)


def climb_path(source: Source, device: str, dtype: torch.dtype, attention: str) -> Result:
    """Another device, dtype or attention against our written-out float32 path on the CPU, within measured bounds.

    Training is left out: dropout draws other numbers on another device. transformers is not needed.
    """
    began = time.perf_counter()
    kind = str(dtype).removeprefix("torch.")
    result = Result(f"{source.name}: {device}, {kind}, {attention}", f"from {source.origin}")
    for head in (None, *load(source.folder).config.family.heads):
        new: Any = {"head": head, "new_head": True} if head else {}
        reference: nn.Module = load(source.folder, **new)
        on_top = {name for name, _ in reference.named_parameters() if head and not name.startswith("encoder.")}
        checkpoints.randomise(reference, 0, only=on_top)
        ours: nn.Module = load(source.folder, dtype=dtype, device=device, attention=attention, **new)
        ours.load_state_dict(reference.state_dict())  # copies into the dtype and onto the device
        config: Any = reference.config
        asked = checkpoints.task(head, config, min(TOKENS, config.max_tokens))
        climb(result, ours, reference, asked, head, train=False, bounds=MEASURED[dtype])
    result.seconds = time.perf_counter() - began
    return result
