"""While the device computes one portion of texts, a thread makes the next one ids.

    texts -> portions -> ids and their account (a worker thread, one portion ahead) -> whoever computes

The tokenizers library does not hold Python's lock while it works, so both really run at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch

from minibert.text.texts import TextOrPair
from minibert.text.tokenized import Tokenized
from minibert.text.tokenizer import Tokenizer

Given = TypeVar("Given")
Made = TypeVar("Made")


@dataclass(frozen=True)
class Portion:
    """Texts or pairs, the first of which is row `first` of all, and their ids."""

    first: int
    texts: list[TextOrPair]
    tokens: Tokenized

    @property
    def rows(self) -> range:
        """Their rows of all."""
        return range(self.first, self.first + len(self.texts))


def map_ahead(function: Callable[[Given], Made], items: Iterable[Given]) -> Generator[Made, None, None]:
    """function(item) of each item, in order, by a worker thread that is one item ahead.

    Items are taken in the caller's thread, so that nothing but `function` can keep the worker busy: it has ended when
    the iterator is exhausted or closed, or an error or an interrupt comes. Errors in the worker are raised here.
    """
    worker = ThreadPoolExecutor(1, thread_name_prefix="minibert-ahead")
    waiting: deque[Future[Made]] = deque()
    try:
        for item in items:
            waiting.append(worker.submit(function, item))
            if len(waiting) > 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
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
    """The portions with their ids; `first` is the row of the first text, long and stride those of a Recipe.

    One portion ahead, unless the device is the CPU: there both would compete for the same cores, and there is next to
    nothing to gain (tokenizing SST-2 takes 1 % of the processor time that all-MiniLM-L6-v2 takes in float32).
    """

    def numbered() -> Iterator[tuple[int, list[TextOrPair]]]:
        row = first
        for portion in texts:
            yield row, portion
            row += len(portion)

    def tokenize(portion: tuple[int, list[TextOrPair]]) -> Portion:
        row, texts = portion
        return Portion(row, texts, tokenizer.encode_texts(texts, long=long, stride=stride, first_row=row))

    yield from map(tokenize, numbered()) if device.type == "cpu" else map_ahead(tokenize, numbered())
