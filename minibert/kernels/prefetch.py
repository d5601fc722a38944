"""While the device computes one portion of texts, a thread tokenizes the next one.

    texts -> portions -> ids and their counts (a worker thread, one portion ahead) -> the device

The tokenizers library releases Python's lock while it works, so that both really run at once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TypeVar

import torch

from minibert.text.texts import TextOrPair
from minibert.text.tokenized import Tokenized
from minibert.text.tokenizer import Tokenizer

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Portion:
    """Texts or pairs, the first of which is row `first` of all, and their ids."""

    first: int
    texts: list[TextOrPair]
    tokens: Tokenized

    @property
    def rows(self) -> range:
        """Their row numbers."""
        return range(self.first, self.first + len(self.texts))


def map_ahead(function: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result, None, None]:
    """function(item) of each item, in order, by a worker thread that is one item ahead.

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


def tokenized(
    texts: Iterable[list[TextOrPair]],
    tokenizer: Tokenizer,
    device: torch.device,
    *,
    long: str,
    stride: int | None = None,
    first: int = 0,
) -> Generator[Portion, None, None]:
    """The portions with their ids; `first` is the row of the first text, long and stride are those of a Recipe.

    One portion ahead, unless the device is the CPU: there both would compete for the same cores, and tokenizing takes
    only 1 % of the processor time (SST-2, all-MiniLM-L6-v2, float32).
    """

    def tokenize(texts: list[TextOrPair]) -> Portion:
        nonlocal first
        row, first = first, first + len(texts)  # called in order, by one thread at a time
        return Portion(row, texts, tokenizer.encode_texts(texts, long=long, stride=stride, first_row=row))

    yield from map(tokenize, texts) if device.type == "cpu" else map_ahead(tokenize, texts)
