"""Batches without padding: texts one after the other, and what fills a batch up.

    T  tokens of all texts in a packed batch; B texts, S tokens of each in a group

Texts are sorted by length, so that those of equal length are neighbours and form an exact group (B, S, D) that needs no
mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from minibert.config import Config

# On a CPU oneDNN makes a kernel for each number of rows that it meets, of a megabyte or so, and keeps it. So
# that it meets few, a batch is filled up with texts that nobody reads to a multiple of TOKEN_STEP tokens, and where the
# last layer computes first tokens only, these to a multiple of TEXT_STEP. Not a batch of fewer tokens than FILLED_FROM,
# such as a single sentence: there the filling would cost more than it saves.
TOKEN_STEP, TEXT_STEP, FILLED_FROM = 16, 32, 256


def check_rows(config: Config, ids: Sequence[Sequence[int]], second: Sequence[int] | None = None) -> NDArray[np.int64]:
    """The number of tokens of each row of ids, (N), or ValueError with the first row that the encoder cannot take."""
    if second is not None and config.type_vocab_size == 1 and config.family.pairs_in_segments:
        raise ValueError("the checkpoint has type_vocab_size 1, one segment; a pair needs two")
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    limit = config.max_tokens
    for row in np.flatnonzero((lengths < 1) | (lengths > limit)):
        if lengths[row] == 0:
            raise ValueError(f"row {row} has no tokens; the shortest text is [CLS] [SEP], 2 tokens")
        raise ValueError(f"row {row} has {lengths[row]} tokens and the checkpoint has {limit} positions; truncate")
    flat = np.fromiter(chain.from_iterable(ids), np.int64, lengths.sum())
    for place in np.flatnonzero((flat < 0) | (flat >= config.vocab_size)):
        row = np.searchsorted(lengths.cumsum(), place, side="right")
        raise ValueError(
            f"row {row} holds the id {flat[place]}; the checkpoint has vocab_size "
            f"{config.vocab_size}: 0 to {config.vocab_size - 1}"
        )
    return lengths


@dataclass
class Packed:
    """Texts one after the other, those of equal length neighbours."""

    ids: Tensor  # (T)
    positions: Tensor  # (T), counted from 0 at each [CLS]; from 1 where one id takes no position: that one has 0
    bounds: Tensor  # (B + 1) int32: text b is the rows bounds[b] to bounds[b + 1]
    longest: int  # tokens of the longest text
    segments: Tensor | None  # (T): 1 for the tokens of second texts, else 0; None: 0 for all
    groups: list[tuple[int, int]]  # (texts, tokens of each) of neighbours of equal length
    filling: int = 0  # how many rows more than B the first tokens are filled up with

    @property
    def starts(self) -> Tensor:
        """(B): the row of each [CLS]."""
        return self.bounds[:-1]

    def first_tokens(self, x: Tensor) -> Tensor:
        """(T,D) -> (B,D): the [CLS] of each text, and after them the rows that nobody reads."""
        return x[F.pad(self.starts, (0, self.filling))]

    def by_group(self, x: Tensor) -> list[Tensor]:
        """(T, ...) as one (B, S, ...) for each group; (B, ...), one row for each text, as (B, 1, ...)."""
        sizes = [texts * S if len(x) == len(self.ids) else texts for texts, S in self.groups]
        parts = zip(torch.split(x[: sum(sizes)], sizes), self.groups, strict=True)
        return [part.view(texts, -1, *x.shape[1:]) for part, (texts, _) in parts]


def pack(
    rows: Sequence[Sequence[int]],
    device: torch.device,
    second: Sequence[int] | None = None,
    unplaced: int | None = None,
) -> Packed:
    """Put texts, sorted by their number of tokens, one after the other.

    second: where the second text of each pair begins; rows after these are of segment 0. unplaced: an id that takes no
    position.
    """
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))  # (B)
    bounds = np.concatenate(([0], lengths.cumsum()))  # (B + 1)
    ids = np.fromiter(chain.from_iterable(rows), np.int64, bounds[-1])  # (T)
    places = np.arange(bounds[-1]) - np.repeat(bounds[:-1], lengths)  # (T)
    changes = np.flatnonzero(np.diff(lengths, prepend=0, append=0))  # the texts where another length begins
    groups = [(int(end - start), int(lengths[start])) for start, end in pairwise(changes)]

    def move(values: NDArray[np.integer]) -> Tensor:
        tensor = torch.from_numpy(values)
        return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)

    filled = device.type == "cpu" and len(ids) >= max(FILLED_FROM, 2 * len(rows))  # else B + filling could be T
    filling = -len(rows) % TEXT_STEP if filled else 0
    longest, segments = int(lengths.max()), None
    if second is not None:
        starts = np.append(second, lengths[len(second) :])  # (B)
        segments = move((places >= np.repeat(starts, lengths)).astype(np.int64))  # (T)
    positions = places if unplaced is None else counted(ids != unplaced, bounds)
    return Packed(move(ids), move(positions), move(bounds.astype(np.int32)), longest, segments, groups, filling)


def counted(placed: NDArray[np.bool_], bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """(T): the number of each token among those of its text that are placed, from 1; 0 for the others."""
    numbers: NDArray[np.int64] = placed.cumsum()  # through all texts
    before = np.concatenate(([0], numbers))[bounds[:-1]]  # (B)
    numbers -= np.repeat(before, np.diff(bounds))
    numbers[~placed] = 0
    return numbers


def filler(tokens: int, step: int) -> list[list[int]]:
    """Texts of id 0 that bring the tokens of a batch to a multiple of `step`, where that is worth it."""
    if tokens < FILLED_FROM and step == TOKEN_STEP:
        return []
    whole, rest = divmod(-tokens % step, TOKEN_STEP)
    return [[0] * TOKEN_STEP] * whole + ([[0] * rest] if rest else [])


def last_step(total: int, tokens: int) -> int:
    """The step for the last batch of `total` tokens in batches of `tokens`: the larger, the more came before.

    A last batch has any size, and that of the next portion another. A power of two: at most a quarter of a batch, which
    leaves four sizes, and a 64th of all that is computed.
    """
    most = min(total // 64, tokens // 4)
    return 1 << most.bit_length() - 1 if most >= TOKEN_STEP else TOKEN_STEP
