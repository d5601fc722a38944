"""An engine and a tokenizer for a checkpoint or an encoder: made once in a process, and anew when these change."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch

from minibert.checkpoints.checkpoint import Checkpoint
from minibert.checkpoints.load import load
from minibert.kernels.matmul import release_memory
from minibert.model import Encoder
from minibert.text.tokenizer import Tokenizer, load_tokenizer
from minibert.vectors.engine import Engine

SAMPLES = 32  # texts that calibrate int8


Files = tuple[tuple[str, int, int], ...]  # name, size and modification time of each


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A checkpoint ready for use. The encoder itself is not kept: the engine holds the weights in its form."""

    engine: Engine
    checkpoint: Checkpoint
    files: Files  # when they were read

    @cached_property
    def weights(self) -> str:
        """The sha256 of the weights, computed when first used, since that takes a while."""
        if not set(self.files) <= set(files_in(self.checkpoint.folder)):
            raise ValueError(f"the files in {self.checkpoint.folder} have changed since they were read; start again")
        return self.checkpoint.weights_sha256


def files_in(folder: Path) -> Files:
    """Return the state of a folder, which shows whether it changed."""
    return tuple((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(folder.iterdir()))


ENGINES: WeakKeyDictionary[Encoder, tuple[Any, Engine]] = WeakKeyDictionary()  # the last engine of each


def engine_of(encoder: Encoder, precision: str, tokenizer: Tokenizer) -> Engine:
    """Return the engine of an encoder in memory, the same one until its weights change.

    tokenizer: of the texts that calibrate int8.
    Building an engine reads all weights, and so would comparing them. Their addresses and torch's counts of writes show
    a change; one number per row and column shows a write through `.data`, which torch does not count.
    """
    texts = samples(tokenizer, precision)
    parameters = list(encoder.parameters())
    if any(weights.is_inference() for weights in parameters):  # torch does not count their writes
        return Engine(encoder, precision, samples=texts)
    places = [(weights.data_ptr(), weights._version, weights.dtype, weights.shape) for weights in parameters]
    sampled = torch.cat([spread_numbers(weights.detach()) for weights in parameters]).nan_to_num()
    now = (precision, texts, encoder.config, encoder.pooler is None, places)
    known = ENGINES.get(encoder)
    if known is not None and known[0][0] == now and torch.equal(known[0][1], sampled):
        return known[1]
    ENGINES[encoder] = (now, sampled), Engine(encoder, precision, samples=texts)
    return ENGINES[encoder][1]


def spread_numbers(weights: torch.Tensor) -> torch.Tensor:
    """Return at least one number per row and column, in float64."""
    step = max(1, min(weights.shape) - 1)
    step = step if math.gcd(step, weights.shape[-1]) == 1 else 1
    return weights.flatten()[::step].double()


@functools.lru_cache(maxsize=2)  # two, so that a comparison of two models loads each once
def load_checkpoint(checkpoint: Checkpoint, files: Files, device: str, precision: str) -> LoadedCheckpoint:
    """Load a checkpoint once per process, and again if the files in its folder have changed."""
    texts = samples(shared_tokenizer(checkpoint, files, None), precision)
    engine = Engine(load(checkpoint, device=device), precision, keep_encoder=False, samples=texts)
    release_memory()  # of the weights as they were before the engine changed their form
    return LoadedCheckpoint(engine, checkpoint, files)


@functools.lru_cache(maxsize=4)
def shared_tokenizer(checkpoint: Checkpoint, files: Files, max_length: int | None) -> Tokenizer:
    """Load the tokenizer of a checkpoint in this state, with this max_length."""
    return load_tokenizer(checkpoint, max_length=max_length)


def samples(tokenizer: Tokenizer, precision: str) -> list[list[int]] | None:
    """Return the ids of the reviews, shipped with minibert, that calibrate int8; None at other precisions."""
    if precision != "int8":
        return None
    lines = (resources.files("minibert") / "data" / "reviews.tsv").read_text("utf-8").splitlines()[:SAMPLES]
    return tokenizer.encode_texts([line.partition("\t")[0] for line in lines]).ids  # cut without a warning
