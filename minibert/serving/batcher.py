"""Requests that arrive together are computed together.

    submit(items, tokens) -> the queue -> a batch of items of several requests -> compute, in a thread of its own
                          -> the results, back to each request, in the order of its items

While one batch is computed, the next one gathers. If nothing is being computed, the queue waits for as many requests as
the last batch had, and never longer than `wait`; a client that is alone never waits.

The queue is fair: requests take turns, one item each, until the batch is full. A short request is not held up by a long
one, nor a long one by many short ones.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class Pending:
    """A request in the queue: its items, at least one, and the results that its client awaits."""

    items: Sequence[Any]
    tokens: Sequence[int]  # of each item
    future: asyncio.Future[list[Any]]
    results: list[Any] = field(default_factory=list)  # of the first items; batches are computed in order
    taken: int = 0  # items that a batch has or had


Items = list[tuple[Pending, int]]  # requests, each with the number of one of its items


class Batcher:
    """A queue in front of a function that computes many items at once. Its methods run in one event loop.

    compute: items to results, as many and in their order; called in `executor`. batch_tokens: the most tokens of a
    batch, which has at least one item. queue_tokens: the most tokens of all requests without an answer. wait: seconds.
    computed: called after each batch with the numbers of its items and tokens.
    """

    def __init__(
        self,
        compute: Callable[[list[Any]], Iterable[Any]],
        executor: Executor,
        *,
        batch_tokens: int,
        queue_tokens: int,
        wait: float = 0.005,
        computed: Callable[[int, int], None] = lambda items, tokens: None,
    ) -> None:
        self.compute = compute
        self.executor = executor
        self.computed = computed
        self.batch_tokens = batch_tokens
        self.queue_tokens = queue_tokens
        self.wait = wait
        self.queue: deque[Pending] = deque()
        self.tokens = 0  # of all requests without an answer
        self.together = 1  # requests in the last batch
        self.submitted = asyncio.Event()

    def submit(self, items: Sequence[Any], tokens: Sequence[int]) -> asyncio.Future[list[Any]]:
        """Return the results to come; if this is cancelled, waiting items are dropped. Raises asyncio.QueueFull."""
        total = sum(tokens)
        if self.tokens + total > self.queue_tokens:
            raise asyncio.QueueFull
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self.tokens += total

        def settle(_: object) -> None:
            self.tokens -= total

        future.add_done_callback(settle)
        self.queue.append(Pending(items, tokens, future))
        self.submitted.set()
        return future

    async def run(self) -> None:
        """Compute what arrives, until this is cancelled."""
        while True:
            await self._gather()
            if batch := self._take():
                await self._compute(batch)

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

    def _take(self) -> Items:
        """Return the next batch: one item of each request in turn, until the next item does not fit."""
        batch: Items = []
        left = self.batch_tokens
        while self.queue and (not batch or self.queue[0].tokens[self.queue[0].taken] <= left):
            request = self.queue.popleft()
            if request.future.done():  # its client disconnected, or it failed
                continue
            batch.append((request, request.taken))
            left -= request.tokens[request.taken]
            request.taken += 1
            if request.taken < len(request.items):
                self.queue.append(request)
        self.together = max(1, len({request for request, _ in batch}))
        return batch

    async def _compute(self, batch: Items) -> None:
        """Compute a batch. If that fails, compute each request by itself, so that none fails because of another."""
        items = [request.items[number] for request, number in batch]
        try:
            results = await asyncio.get_running_loop().run_in_executor(self.executor, self.compute, items)
            computed = list(zip(batch, results, strict=True))
        except Exception as error:  # whatever it is, a client awaits it
            requests = dict.fromkeys(request for request, _ in batch)
            for request in requests:
                if len(requests) > 1 and not request.future.done():
                    await self._compute([item for item in batch if item[0] is request])
                elif not request.future.done():
                    request.future.set_exception(error)
            return
        self.computed(len(items), sum(request.tokens[number] for request, number in batch))
        for (request, _), result in computed:
            request.results.append(result)
            if len(request.results) == len(request.items) and not request.future.done():
                request.future.set_result(request.results)
