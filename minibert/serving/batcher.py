"""Requests that arrive together are computed together.

    submit(items, tokens) -> the queue -> a batch of items of several requests -> compute, in a thread of its own
                          -> the answers, each back to its request, in the order of its items

While one batch is computed the next one gathers, so there is a wait only where the machine is idle: for as many
requests as came together the last time, and never longer than `wait`. A client that is alone never waits.

The queue is fair: all requests that wait get equal shares of the tokens that are computed, as processes do of a
processor. A short request is thus not held up by a long one, whose other items go on as their turns come. This is fair
queueing (Demers, Keshav, Shenker 1989): a clock counts the tokens that each waiting request has had, a request begins
with the clock as it arrives, and whoever is farthest behind is next.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")

PACE = 10_000.0  # tokens a second, until some have been measured


class QueueFullError(RuntimeError):
    """There is no room in the queue; seconds: until there probably is."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the queue is full; try again in {seconds:.1f} s")
        self.seconds = seconds


@dataclass(eq=False)
class Request(Generic[Item, Answer]):
    """Items that one client waits for."""

    items: Sequence[Item]
    tokens: Sequence[int]  # of each item
    begun_at: float  # by the clock of the queue
    answer: asyncio.Future[list[Answer]]
    answers: dict[int, Answer] = field(default_factory=dict)  # by the number of the item, as they come
    taken: int = 0  # items that were put into batches
    had: int = 0  # tokens of these

    @property
    def waits(self) -> bool:
        """Whether there are items that no batch has taken, and somebody who wants their answers."""
        return self.taken < len(self.items) and not self.answer.done()

    @property
    def turn(self) -> float:
        """When it is next; whoever has the smallest is first."""
        return self.begun_at + self.had


Place = tuple[Request[Item, Answer], int]  # a request and the number of one of its items


class Batcher(Generic[Item, Answer]):
    """A queue in front of one function that computes many items at once. Its methods run in one event loop.

    compute: items to answers, as many and in their order; called in `executor`. batch_tokens: the most in a batch, one
    item at the least. queue_tokens: the most that wait or are computed. wait: seconds. computed: is told of each batch
    its items, its tokens and its seconds.
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
        self.waiting: list[Request[Item, Answer]] = []  # with items that no batch has taken
        self.tokens = 0  # of all requests that are not answered
        self.untaken = 0  # of these, tokens that no batch has taken
        self.together = 1  # requests of the last batch
        self.clock = 0.0  # tokens that each request which waits has had, were the shares equal
        self.pace = PACE  # tokens a second
        self.arrived = asyncio.Event()

    # -- for those who ask

    def submit(self, items: Sequence[Item], tokens: Sequence[int]) -> asyncio.Future[list[Answer]]:
        """The answers to come. Cancelled, what waits of the request is not computed. Raises QueueFullError."""
        total = sum(tokens)
        if self.tokens + total > self.queue_tokens:
            raise QueueFullError(self.tokens / self.pace)
        answer: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        if not items:
            answer.set_result([])
            return answer
        request = Request[Item, Answer](items, tokens, self.clock, answer)
        self.tokens += total
        self.untaken += total
        self.waiting.append(request)
        answer.add_done_callback(lambda _: self._settle(request))
        self.arrived.set()
        return answer

    def _settle(self, request: Request[Item, Answer]) -> None:
        """Forget a request that was answered, failed, or is wanted no more."""
        total = sum(request.tokens)
        self.tokens -= total
        self.untaken -= total - request.had
        request.had, request.taken = total, len(request.items)
        with suppress(ValueError):  # it is there only while items of it wait
            self.waiting.remove(request)

    # -- the life of the queue

    async def run(self) -> None:
        """Compute what arrives, until this is cancelled."""
        while True:
            await self._gather()
            if batch := self._take():
                await self._answer(batch)

    async def _gather(self) -> None:
        """Wait for a request, and then for those that come with it."""
        while not self.waiting:
            self.arrived.clear()
            await self.arrived.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.wait):
                while self.waiting and len(self.waiting) < self.together and self.untaken < self.batch_tokens:
                    self.arrived.clear()
                    await self.arrived.wait()

    def _take(self) -> list[Place[Item, Answer]]:
        """The items of the next batch, those first whose requests are farthest behind; one that has no room waits."""
        batch: list[Place[Item, Answer]] = []
        room, sharing, number = self.batch_tokens, max(1, len(self.waiting)), itertools.count()
        turns = [(request.turn, next(number), request) for request in self.waiting if request.waits]
        heapq.heapify(turns)
        while turns and room > 0:
            _, _, request = heapq.heappop(turns)
            tokens = request.tokens[request.taken]
            if tokens > room and batch:
                continue
            batch.append((request, request.taken))
            request.taken += 1
            request.had += tokens
            room -= tokens
            if request.waits:
                heapq.heappush(turns, (request.turn, next(number), request))
        taken = self.batch_tokens - room
        self.untaken -= taken
        self.clock += taken / sharing
        self.together = len({id(request) for request, _ in batch})
        self.waiting = [request for request in self.waiting if request.waits]
        return batch

    async def _answer(self, batch: list[Place[Item, Answer]]) -> None:
        """Compute a batch. Where that fails, each request by itself, so that none fails for another one's sake."""
        began, items = time.perf_counter(), [request.items[number] for request, number in batch]
        loop = asyncio.get_running_loop()
        try:
            answers = list(await loop.run_in_executor(self.executor, self.compute, items))
            if len(answers) != len(items):
                raise RuntimeError(f"{len(items)} items were computed, and there are {len(answers)} answers")
        except Exception as error:  # whatever it is, it belongs to somebody who waits
            await self._apart(batch, error)
            return
        self._measure(batch, time.perf_counter() - began)
        for (request, number), answer in zip(batch, answers, strict=True):
            request.answers[number] = answer
            if len(request.answers) == len(request.items) and not request.answer.done():
                request.answer.set_result([request.answers[row] for row in range(len(request.items))])

    async def _apart(self, batch: list[Place[Item, Answer]], error: Exception) -> None:
        """The requests of a batch that failed, one at a time; one that was alone in it fails."""
        of_each: dict[int, list[Place[Item, Answer]]] = {}
        for place in batch:
            of_each.setdefault(id(place[0]), []).append(place)
        for places in of_each.values():
            request = places[0][0]
            if len(of_each) > 1 and not request.answer.done():
                await self._answer(places)
            elif not request.answer.done():
                request.answer.set_exception(error)

    def _measure(self, batch: list[Place[Item, Answer]], seconds: float) -> None:
        """The pace, as a mean that forgets."""
        tokens = sum(request.tokens[number] for request, number in batch)
        self.pace += 0.1 * (tokens / max(seconds, 1e-6) - self.pace)
        self.computed(len(batch), tokens, seconds)
