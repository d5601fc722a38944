"""Requests that arrive together are computed together.

    submit(items, tokens) -> the queue -> a batch of items of several requests -> compute, in a thread of its own
                          -> the answers, each back to its request, in the order of its items

While one batch is computed the next one gathers, so the queue waits only when the machine is idle: for as many requests
as came together the last time, and never longer than `wait`. A client that is alone never waits.

The queue is first in, first out, by chunks of equal size: each request that waits gets an equal share of the tokens of
a batch, and queues again for its next chunk. So a short request is not held up by a long one, nor a long one by many
short ones.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclass(eq=False)
class Waiting(Generic[Item, Answer]):
    """A client's items, one at least, and the answers that it awaits."""

    items: Sequence[Item]
    tokens: Sequence[int]  # of each item
    answer: asyncio.Future[list[Answer]]
    answers: list[Answer] = field(default_factory=list)  # so far; batches are computed in order
    taken: int = 0  # items in batches so far


Chunk = tuple[Waiting[Item, Answer], range]  # a request and the numbers of some of its items


class Batcher(Generic[Item, Answer]):
    """A queue in front of a function that computes many items at once. Its methods run in one event loop.

    compute: items to answers, as many and in their order; called in `executor`. batch_tokens: the maximum of a batch,
    one item at the least. queue_tokens: the maximum of all requests that are not answered. wait: seconds. computed:
    called after each batch with its items, tokens and seconds.
    """

    def __init__(
        self,
        compute: Callable[[list[Item]], Iterable[Answer]],
        executor: Executor,
        *,
        batch_tokens: int,
        queue_tokens: int,
        wait: float = 0.005,
        computed: Callable[[int, int, float], None] = lambda items, tokens, seconds: None,
    ) -> None:
        self.compute, self.executor, self.computed = compute, executor, computed
        self.batch_tokens, self.queue_tokens, self.wait = batch_tokens, queue_tokens, wait
        self.queue: deque[Waiting[Item, Answer]] = deque()
        self.tokens = 0  # of all requests that are not answered
        self.together = 1  # requests in the last batch
        self.submitted = asyncio.Event()

    def submit(self, items: Sequence[Item], tokens: Sequence[int]) -> asyncio.Future[list[Answer]]:
        """The answers to come; if it is cancelled, waiting items are not computed. Raises asyncio.QueueFull."""
        total = sum(tokens)
        if self.tokens + total > self.queue_tokens:
            raise asyncio.QueueFull
        answer: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        self.tokens += total
        answer.add_done_callback(lambda _: self._settle(total))
        self.queue.append(Waiting(items, tokens, answer))
        self.submitted.set()
        return answer

    def _settle(self, tokens: int) -> None:
        self.tokens -= tokens

    async def run(self) -> None:
        """Compute what arrives, until this is cancelled."""
        while True:
            await self._gather()
            if batch := self._take():
                await self._answer(batch)

    async def _gather(self) -> None:
        """Wait for a request, and then for those that come with it."""
        while not self.queue:
            self.submitted.clear()
            await self.submitted.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.wait):
                while len(self.queue) < self.together and self.tokens < self.batch_tokens:
                    self.submitted.clear()
                    await self.submitted.wait()

    def _take(self) -> list[Chunk[Item, Answer]]:
        """The next batch: chunks from the front of the queue that fit, one item at the least."""
        batch: list[Chunk[Item, Answer]] = []
        room, share = self.batch_tokens, self.batch_tokens // len(self.queue)
        while self.queue and room > 0:
            first = self.queue.popleft()
            if first.answer.done():  # its client disconnected, or it failed
                continue
            start, used = first.taken, 0
            for tokens in islice(first.tokens, start, None):
                if (batch and used + tokens > room) or (used and used + tokens > min(share, room)):
                    break
                first.taken, used = first.taken + 1, used + tokens
            if first.taken < len(first.items):
                (self.queue.append if used else self.queue.appendleft)(first)
            if not used:  # its next item needs more room than this batch has left
                break
            batch.append((first, range(start, first.taken)))
            room -= used
        self.together = max(1, len({id(one) for one, _ in batch}))
        return batch

    async def _answer(self, batch: list[Chunk[Item, Answer]]) -> None:
        """Compute a batch. If that fails, compute each request by itself, so that none fails because of another."""
        began, items = time.perf_counter(), [one.items[number] for one, chunk in batch for number in chunk]
        try:
            answers = await asyncio.get_running_loop().run_in_executor(self.executor, self.compute, items)
            each = iter([answer for _, answer in zip(items, answers, strict=True)])
        except Exception as error:  # whatever it is, a client awaits it
            for one, chunk in batch:
                if len(batch) > 1 and not one.answer.done():
                    await self._answer([(one, chunk)])
                elif not one.answer.done():
                    one.answer.set_exception(error)
            return
        tokens = sum(one.tokens[number] for one, chunk in batch for number in chunk)
        self.computed(len(items), tokens, time.perf_counter() - began)
        for one, chunk in batch:
            one.answers += [next(each) for _ in chunk]
            if len(one.answers) == len(one.items) and not one.answer.done():
                one.answer.set_result(one.answers)
