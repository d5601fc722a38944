"""From ids to batches without padding, and work one item ahead in another thread.

In a packed batch the tokens of all texts follow one another, the longest texts first, in groups of similar length that
attention pads. In inference a group has texts of one length and needs no mask.

    T  tokens of all texts in a packed batch; B texts, S tokens of each in a group
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise, repeat, takewhile
from typing import Any, Self, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from minibert.config import Config
from minibert.utils.device import move

Item = TypeVar("Item")
Result = TypeVar("Result")

# On a CPU oneDNN compiles a kernel of about a megabyte for each number of rows and caches it. To keep these few, the
# tokens of a batch are padded to a multiple of TOKEN_BUCKET and, where the last layer computes only the first token of
# each text, the texts to a multiple of TEXT_BUCKET. In a batch of fewer than PADDED_FROM tokens, such as a single
# sentence, the padding would cost more than it saves. No two batches of training have the same number of tokens: it is
# rounded up to one with few significant binary digits.
TOKEN_BUCKET, TEXT_BUCKET, PADDED_FROM = 16, 32, 256
SIGNIFICANT_DIGITS = 5


def map_ahead(function: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result, None, None]:
    """Yield function(item) for each item, in order, from a worker thread that is one item ahead.

    Items are taken in the caller's thread, so that only `function` can keep the worker busy. The worker ends when the
    iterator is exhausted or closed, and after an error or an interrupt. Errors in the worker are raised here.
    """
    worker = ThreadPoolExecutor(1, thread_name_prefix="minibert-ahead")
    try:
        futures = (worker.submit(function, item) for item in items)
        for future, _ in pairwise(chain(futures, (None,))):
            yield future.result()  # type: ignore[union-attr]  # None is only ever the second of a pair
    finally:
        worker.shutdown(cancel_futures=True)


def iterate_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Return the same items, each computed by a worker thread while the one before is used."""
    end: Any = object()
    ahead = map_ahead(lambda _: next(items, end), repeat(None))
    return takewhile(lambda item: item is not end, ahead)


# ---------------------------------------------------------------------------------------------------------------
# Packed batches


def check_rows(config: Config, ids: Sequence[Sequence[int]], second: Sequence[int] | None = None) -> NDArray[np.int64]:
    """Return the number of tokens of each row, (N), or ValueError with the first row that does not fit the encoder."""
    if second is not None and config.type_vocab_size == 1 and config.family.pairs_in_segments:
        raise ValueError("the checkpoint has type_vocab_size 1, one segment; a pair needs two")
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    for row in np.flatnonzero((lengths < 1) | (lengths > config.max_tokens)):
        raise ValueError(
            f"row {row} has {lengths[row] or 'no'} tokens and the checkpoint has {config.max_tokens} positions; "
            f"pass 1 to {config.max_tokens} tokens"
        )
    flat = np.fromiter(chain.from_iterable(ids), np.int64, lengths.sum())
    for place in np.flatnonzero((flat < 0) | (flat >= config.vocab_size)):
        row = np.searchsorted(lengths.cumsum(), place, side="right")
        raise ValueError(
            f"row {row} holds the id {flat[place]}; the checkpoint has vocab_size {config.vocab_size}: 0 to "
            f"{config.vocab_size - 1}"
        )
    return lengths


def batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Yield row numbers by length, the longest first, so that there is little padding and memory peaks at once."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    while order:
        count = max(1, batch_tokens // lengths[order[0]])
        yield order[:count]
        order = order[count:]


@dataclass(frozen=True)
class Group:
    """Rows of similar length, padded to the longest of them."""

    rows: int
    width: int
    cells: Tensor | None = None  # (n): row · width + column of each token; None: the tokens fill the rows
    tokens_at: Tensor | None = None  # (rows · width): the token in each cell; in padding token 0, which is masked
    mask: Tensor | None = None  # (rows,1,1,width), True for a token; None: no padding

    @classmethod
    def of_lengths(cls, lengths: Tensor) -> Self:
        """Return a group of rows with these numbers of tokens, (rows)."""
        width = max(1, int(lengths.max()))
        real = torch.arange(width) < lengths[:, None]
        if bool(real.all()):
            return cls(len(lengths), width)
        cells = real.flatten().nonzero().squeeze(1)
        tokens_at = torch.zeros(real.numel(), dtype=torch.int64).index_copy(0, cells, torch.arange(len(cells)))
        return cls(len(lengths), width, cells, tokens_at, real[:, None, None])

    @property
    def tokens(self) -> int:
        """How many tokens the rows have."""
        return self.rows * self.width if self.cells is None else len(self.cells)

    def pad(self, x: Tensor) -> Tensor:
        """(n, ...) -> (rows, width, ...); padding has the numbers of token 0."""
        if self.cells is not None:
            # torch leaves Function.apply untyped.
            x = Pad.apply(x, self.tokens_at, self.cells)  # type: ignore[no-untyped-call]
        return x.view(self.rows, self.width, *x.shape[1:])

    def unpad(self, x: Tensor) -> Tensor:
        """(rows, width, ...) -> (n, ...)."""
        return x.flatten(0, 1) if self.cells is None else x.flatten(0, 1).index_select(0, self.cells)


class Pad(torch.autograd.Function):
    """A cell for each token and for padding, whose gradient is 0, since no token attends to it: one kernel each way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tokens_at: Tensor, cells: Tensor) -> Tensor:
        """(n, ...) -> (rows · width, ...)."""
        ctx.save_for_backward(cells)
        return x.index_select(0, tokens_at) if len(x) else x.new_zeros(len(tokens_at), *x.shape[1:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """(rows · width, ...) -> (n, ...)."""
        return gradients[0].index_select(0, *ctx.saved_tensors), None, None


def pad_groups(x: Tensor, groups: Sequence[Group]) -> list[Tensor]:
    """(T, ...) -> (rows, width, ...) for each group; rows of x after the T tokens are left out."""
    sizes = [group.tokens for group in groups]
    # One group, as in training on a GPU, is not split: the gradient of a split is a copy.
    parts = [x] if sizes == [len(x)] else torch.split(x[: sum(sizes)], sizes)
    return [group.pad(part) for group, part in zip(groups, parts, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Packed:
    """The tokens of a batch without padding, group by group, rows of similar length in the same group (model.Layout).

    Only attention pads them, group by group. On a CPU a few tokens may follow that round up their number.
    """

    ids: Tensor  # (T), and so are positions, columns and segments
    positions: Tensor  # rows of the table of positions
    columns: Tensor  # in its row
    segments: Tensor | None  # 1 for the tokens of second texts, else 0; None: 0 for all
    groups: list[Group]
    read: Tensor | None  # (N): which of the T tokens are read from the last layer; None: all
    read_groups: list[Group]  # of these tokens
    order: Tensor | None = None  # which of the tokens that are read is the first of the batch, ...; None: in order
    keeps_padding: bool = False  # padding is among the tokens, which attend to no padding
    is_last: bool = False  # whether this is the layout of the last layer
    window: int | None = None  # of this layer: a token attends to those at most half of it away; None: to all

    @property
    def longest(self) -> int:
        """The number of tokens of the longest row."""
        return max(group.width for group in self.groups)

    def within(self, window: int | None) -> Self:
        """Return the layout for a layer with this window; without one that is as wide as the texts."""
        return replace(self, window=None if window is None or self.longest <= window // 2 + 1 else window)

    def last(self) -> Self:
        """Return the layout for the last layer."""
        return replace(self, is_last=True)

    def wanted(self, x: Tensor) -> Tensor:
        """Return the rows of x whose output is needed: (T,D) -> (T,D), or in the last layer (N,D)."""
        return x.index_select(0, self.read) if self.is_last and self.read is not None else x


@dataclass(frozen=True, kw_only=True)
class PackedTexts(Packed):
    """Texts sorted by length, a group for each length, so that nothing is padding: the layout of fast inference."""

    bounds: Tensor  # (B + 1) int32: text b is in the rows bounds[b] to bounds[b + 1]
    first: Tensor  # (B, and rows that round up B): the row of the [CLS] of each text, or of its token at `places`
    cells: Tensor  # (T): text · longest + column, for `pad`; empty on a CPU

    def first_tokens(self, x: Tensor) -> Tensor:
        """(T,D) -> (B + extra,D): the [CLS] of each text, or its token at `places`, and the extra rows."""
        return x.index_select(0, self.first)

    def by_group(self, x: Tensor) -> list[Tensor]:
        """(T, ...) as one (B, S, ...) for each group; (B, ...), one row for each text, as (B, 1, ...)."""
        all_tokens = len(x) == len(self.ids)
        return pad_groups(x, self.groups if all_tokens else [Group(group.rows, 1) for group in self.groups])

    def pad(self, x: Tensor) -> Tensor:
        """(T, ...) -> (B, longest, ...), zeros for padding: fewer kernels than one for each group."""
        rows = len(self.bounds) - 1
        shape = x.shape[1:]
        return x.new_zeros(rows * self.longest, *shape).index_copy(0, self.cells, x).view(rows, -1, *shape)

    @cached_property
    def mask(self) -> Tensor:
        """(B, longest), False for padding."""
        return torch.arange(self.longest, device=self.bounds.device) < self.bounds.diff()[:, None]


def pack(
    rows: Sequence[Sequence[int]],
    device: torch.device,
    second: Sequence[int] | None = None,
    padding_id: int | None = None,
    places: Sequence[int] = (),
    first_position: int = 0,
    first_only: bool = False,
) -> PackedTexts:
    """Pack texts that are sorted by their number of tokens.

    second: where the second text of each pair begins; rows after these have segment 0. padding_id: an id that has no
    position. places: the token of each text that counts as its first; for rows after these, the first.
    first_position: the row of the table of positions for the first token. first_only: only the first token of each text
    is read from the last layer.
    """
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))  # (B)
    bounds = np.concatenate(([0], lengths.cumsum()))  # (B + 1)
    ids = np.fromiter(chain.from_iterable(rows), np.int64, bounds[-1])  # (T)
    columns = np.arange(bounds[-1]) - np.repeat(bounds[:-1], lengths)  # (T)
    changes = np.flatnonzero(np.diff(lengths, prepend=0, append=0))  # the texts where another length begins
    groups = [Group(int(end - start), int(lengths[start])) for start, end in pairwise(changes)]

    on_cpu = device.type == "cpu"
    padded = on_cpu and len(ids) >= max(PADDED_FROM, 2 * len(rows))  # else B + extra could be T
    extra = -len(rows) % TEXT_BUCKET if padded else 0
    segments = None
    if second is not None:
        starts = np.append(second, lengths[len(second) :])  # (B)
        segments = torch.from_numpy((columns >= np.repeat(starts, lengths)).astype(np.int64))  # (T)
    positions = first_position + (columns if padding_id is None else numbers_of_real(ids != padding_id, bounds) - 1)
    first = np.concatenate((bounds[:-1], np.zeros(extra, np.int64)))
    first[: len(places)] += np.asarray(places, np.int64)
    cells = columns[:0] if on_cpu else columns + np.repeat(np.arange(len(rows)) * lengths.max(), lengths)  # (T)
    arrays = {"ids": ids, "positions": positions, "columns": columns, "bounds": bounds.astype(np.int32)}
    arrays |= {"first": first, "cells": cells}
    tensors = move({name: torch.from_numpy(array) for name, array in arrays.items()} | {"segments": segments}, device)
    return PackedTexts(
        **tensors,
        groups=groups,
        read=tensors["first"] if first_only else None,
        read_groups=[Group(group.rows, 1) for group in groups] if first_only else groups,
    )


def numbers_of_real(real: NDArray[np.bool_], bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of each real token among those of its text, from 1, and 0 for padding, (T), (B + 1) -> (T)."""
    counts = np.concatenate(([0], real.cumsum()))  # (T + 1)
    return np.where(real, counts[1:] - np.repeat(counts[bounds[:-1]], np.diff(bounds)), 0)


def padded(x: Tensor) -> Tensor:
    """Return x (T), after which zeros round up T: from T to 2 T there are only 16 numbers of rows."""
    return F.pad(x, (0, missing_tokens(len(x), SIGNIFICANT_DIGITS))) if len(x) >= PADDED_FROM else x


def missing_tokens(tokens: int, digits: int, least: int = 1) -> int:
    """Return how many tokens round a number of them up to one with `digits` significant binary digits.

    least: the smallest number of which the result is a multiple, a power of two.
    """
    return -tokens % max(least, 1 << max(0, tokens.bit_length() - digits))


def padding_texts(tokens: int, bucket: int) -> list[list[int]]:
    """Return texts of id 0 that round up the tokens of a batch to a multiple of `bucket`, if that is worthwhile."""
    if tokens < PADDED_FROM and bucket == TOKEN_BUCKET:
        return []
    count, rest = divmod(-tokens % bucket, TOKEN_BUCKET)
    return [[0] * TOKEN_BUCKET] * count + ([[0] * rest] if rest else [])


def last_bucket(total: int, tokens: int) -> int:
    """Return the bucket size for the last batch of `total` tokens in batches of `tokens`; the more tokens, the larger.

    The last batch may have any size, and each chunk of texts has one. A power of two, at most a quarter of a batch,
    leaves four sizes; at most 1/64 of all tokens are padding.
    """
    most = min(total // 64, tokens // 4)
    return 1 << most.bit_length() - 1 if most >= TOKEN_BUCKET else TOKEN_BUCKET
