"""From ids to batches without padding, and work one item ahead in another thread.

In a packed batch the tokens of all texts follow one another. Texts are sorted by length, so that texts of equal
length are neighbours and form a group (B, S, D) that needs no mask.

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
# sentence, the padding would cost more than it saves.
TOKEN_BUCKET, TEXT_BUCKET, PADDED_FROM = 16, 32, 256


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


@dataclass
class Packed:
    """Texts one after the other, those of equal length next to each other: the layout of fast inference (model.Layout).

    first_only: the output of the last layer is needed only for the first token of each text.
    """

    ids: Tensor  # (T)
    positions: Tensor  # (T): rows of the table of positions
    bounds: Tensor  # (B + 1) int32: text b is in the rows bounds[b] to bounds[b + 1]
    first: Tensor  # (B): the row of the [CLS] of each text, or of its token at `places`
    longest: int  # tokens of the longest text
    segments: Tensor | None  # (T): 1 for the tokens of second texts, else 0; None: 0 for all
    groups: list[tuple[int, int]]  # (texts, tokens of each) of neighbours of equal length
    cells: Tensor  # (T): text · longest + column, for `pad`; empty on a CPU
    extra: int = 0  # rows after the first tokens of the B texts that round up their number
    first_only: bool = False
    is_last: bool = False  # whether this is the layout of the last layer
    window: int | None = None  # of this layer: a token attends to those at most half of it away; None: to all

    def within(self, window: int | None) -> Self:
        """Return the layout for a layer with this window; without one that is as wide as the texts."""
        return replace(self, window=None if window is None or self.longest <= window // 2 + 1 else window)

    def last(self) -> Self:
        """Return the layout for the last layer."""
        return replace(self, is_last=True)

    def wanted(self, x: Tensor) -> Tensor:
        """Return the rows of x whose output is needed: (T,D) -> (T,D), or in the last layer (B + extra,D)."""
        return self.first_tokens(x) if self.is_last and self.first_only else x

    def first_tokens(self, x: Tensor) -> Tensor:
        """(T,D) -> (B + extra,D): the [CLS] of each text, or its token at `places`, and the extra rows."""
        return x[F.pad(self.first, (0, self.extra)) if self.extra else self.first]

    def by_group(self, x: Tensor) -> list[Tensor]:
        """(T, ...) as one (B, S, ...) for each group; (B, ...), one row for each text, as (B, 1, ...)."""
        sizes = [texts * S if len(x) == len(self.ids) else texts for texts, S in self.groups]
        parts = zip(torch.split(x[: sum(sizes)], sizes), self.groups, strict=True)
        return [part.view(texts, -1, *x.shape[1:]) for part, (texts, _) in parts]

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
) -> Packed:
    """Pack texts that are sorted by their number of tokens.

    second: where the second text of each pair begins; rows after these have segment 0. padding_id: an id that has no
    position. places: the token of each text that counts as its first; for rows after these, the first.
    first_position: the row of the table of positions for the first token. first_only: see Packed.
    """
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))  # (B)
    bounds = np.concatenate(([0], lengths.cumsum()))  # (B + 1)
    ids = np.fromiter(chain.from_iterable(rows), np.int64, bounds[-1])  # (T)
    columns = np.arange(bounds[-1]) - np.repeat(bounds[:-1], lengths)  # (T)
    changes = np.flatnonzero(np.diff(lengths, prepend=0, append=0))  # the texts where another length begins
    groups = [(int(end - start), int(lengths[start])) for start, end in pairwise(changes)]

    on_cpu = device.type == "cpu"
    padded = on_cpu and len(ids) >= max(PADDED_FROM, 2 * len(rows))  # else B + extra could be T
    extra = -len(rows) % TEXT_BUCKET if padded else 0
    segments = None
    if second is not None:
        starts = np.append(second, lengths[len(second) :])  # (B)
        segments = torch.from_numpy((columns >= np.repeat(starts, lengths)).astype(np.int64))  # (T)
    positions = columns + first_position
    if padding_id is not None:  # the number of each real token among those of its text
        real = ids != padding_id
        counts = np.concatenate(([0], real.cumsum()))  # (T + 1)
        positions = np.where(real, counts[1:] - np.repeat(counts[bounds[:-1]], lengths), 0) + first_position - 1
    longest = int(lengths.max())
    first = bounds[:-1].copy()  # (B)
    first[: len(places)] += np.asarray(places, np.int64)
    cells = columns[:0] if on_cpu else columns + np.repeat(np.arange(len(rows)) * longest, lengths)  # (T)
    arrays = (torch.from_numpy(array) for array in (ids, positions, bounds.astype(np.int32), first, cells))
    ids, positions, bounds, first, cells, segments = move((*arrays, segments), device)
    return Packed(ids, positions, bounds, first, longest, segments, groups, cells, extra, first_only)


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
