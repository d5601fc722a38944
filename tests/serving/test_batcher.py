"""The queue of the server by itself: each client gets the answers of its own items, in order, whatever others do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minibert.serving.batcher import Batcher

BUDGET = 32
Item = tuple[int, int]  # a unique number, and tokens
# Requests: when each comes (turns of the loop), and the tokens of its items.
REQUESTS = st.lists(
    st.tuples(st.integers(0, 5), st.lists(st.integers(1, 48), min_size=1, max_size=12)), min_size=1, max_size=12
)


class Computer:
    """Doubles numbers, remembers the batches, and fails for some numbers."""

    def __init__(self, fails: Iterable[int] = ()) -> None:
        self.batches: list[list[Item]] = []
        self.fails = set(fails)

    def __call__(self, items: list[Item]) -> list[int]:
        self.batches.append(items)
        if wrong := self.fails.intersection(number for number, _ in items):
            raise ValueError(f"number {min(wrong)}")
        return [2 * number for number, _ in items]


class Held(Computer):
    """The same, but each batch waits until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self, items: list[Item]) -> list[int]:
        self.begun.release()
        assert self.go.acquire(timeout=20)
        return super().__call__(items)


def run(
    work: Callable[[Batcher[Item, int]], Awaitable[Any]],
    compute: Callable[[list[Item]], Sequence[int]],
    *,
    queue_tokens: int = 100_000,
    wait: float = 0.0,
) -> Any:
    """Work with a batcher that runs."""

    async def main() -> Any:
        with ThreadPoolExecutor(1) as executor:
            batcher = Batcher[Item, int](compute, executor, batch_tokens=BUDGET, queue_tokens=queue_tokens, wait=wait)
            running = asyncio.create_task(batcher.run())
            try:
                return await asyncio.wait_for(work(batcher), 20)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    return asyncio.run(main())


def as_items(requests: Sequence[tuple[int, Sequence[int]]]) -> list[list[Item]]:
    """Each token count with a number of its own."""
    number = iter(range(1000))
    return [[(next(number), tokens) for tokens in sizes] for _, sizes in requests]


async def answered(batcher: Batcher[Item, int], items: Sequence[Item], turns: int = 0) -> list[int]:
    """Come after some turns of the loop, and wait for the answers."""
    for _ in range(turns):
        await asyncio.sleep(0)
    return await batcher.submit(items, [tokens for _, tokens in items])


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("the condition was never met")


@given(REQUESTS, st.sets(st.integers(0, 60), max_size=4))
@settings(max_examples=80, deadline=None)
def test_each_client_gets_its_own_answers_in_their_order_and_only_a_request_that_fails_fails(
    requests: list[tuple[int, list[int]]], wrong: set[int]
) -> None:
    everything, compute = as_items(requests), Computer(wrong)

    async def work(batcher: Batcher[Item, int]) -> list[Any]:
        found = await asyncio.gather(
            *(answered(batcher, items, turns) for items, (turns, _) in zip(everything, requests, strict=True)),
            return_exceptions=True,
        )
        assert batcher.tokens == 0 and all(one.answer.done() for one in batcher.queue)
        return found

    for items, answer in zip(everything, run(work, compute), strict=True):
        if wrong.intersection(number for number, _ in items):
            assert isinstance(answer, ValueError)
        else:
            assert answer == [2 * number for number, _ in items]
    computed = [number for batch in compute.batches for number, _ in batch]
    if not wrong.intersection(computed):
        assert sorted(computed) == [number for items in everything for number, _ in items], "each is computed once"
    for batch in compute.batches:
        assert len(batch) == 1 or sum(tokens for _, tokens in batch) <= BUDGET


@given(REQUESTS, st.sets(st.integers(0, 11)))
@settings(max_examples=60)
def test_a_client_that_disconnects_leaves_nothing_behind(
    requests: list[tuple[int, list[int]]], leaving: set[int]
) -> None:
    everything, compute = as_items(requests), Computer()

    async def work(batcher: Batcher[Item, int]) -> list[Any]:
        tasks = [
            asyncio.ensure_future(answered(batcher, items, turns))
            for items, (turns, _) in zip(everything, requests, strict=True)
        ]
        await asyncio.sleep(0.0005)
        for number in leaving & set(range(len(tasks))):
            tasks[number].cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)
        assert batcher.tokens == 0 and all(one.answer.done() for one in batcher.queue)
        return found

    for number, (items, answer) in enumerate(zip(everything, run(work, compute), strict=True)):
        stayed = answer == [2 * item for item, _ in items]
        assert stayed or (number in leaving and isinstance(answer, asyncio.CancelledError))


def test_cancelled_requests_are_not_computed() -> None:
    compute = Held()

    async def work(batcher: Batcher[Item, int]) -> None:
        first = batcher.submit([(1, 30)], [30])
        await until(lambda: compute.begun.acquire(blocking=False))
        second, third = batcher.submit([(2, 30)], [30]), batcher.submit([(3, 30)], [30])
        second.cancel()
        compute.go.release(3)
        assert (await first, await third) == ([2], [6])

    run(work, compute)
    assert [number for batch in compute.batches for number, _ in batch] == [1, 3]


def test_requests_that_arrive_while_the_machine_computes_are_computed_together() -> None:
    compute = Held()

    async def work(batcher: Batcher[Item, int]) -> None:
        first = batcher.submit([(0, 1)], [1])
        await until(lambda: compute.begun.acquire(blocking=False))
        others = [batcher.submit([(number, 2)], [2]) for number in range(1, 17)]
        compute.go.release(9)
        await asyncio.gather(first, *others)

    run(work, compute)
    assert [len(batch) for batch in compute.batches] == [1, 16]


def test_as_many_as_last_time_are_awaited_but_not_forever() -> None:
    compute = Computer()

    async def work(batcher: Batcher[Item, int]) -> list[int]:
        batcher.together = 3
        await asyncio.gather(*(answered(batcher, [(number, 2)], turns=3 * number) for number in range(3)))
        together = [len(batch) for batch in compute.batches]
        await asyncio.wait_for(answered(batcher, [(9, 2)]), 10)  # two more never come
        await asyncio.wait_for(answered(batcher, [(10, 2)]), 10)
        return together

    assert run(work, compute, wait=0.2) == [3]
    assert [len(batch) for batch in compute.batches] == [3, 1, 1]


def test_a_client_alone_never_waits_for_others() -> None:
    async def work(batcher: Batcher[Item, int]) -> None:
        for number in range(5):
            await asyncio.wait_for(answered(batcher, [(number, 2)]), 10)

    run(work, Computer(), wait=10_000)


def test_a_short_request_is_not_held_up_by_a_long_one_and_that_goes_on() -> None:
    compute = Held()

    async def work(batcher: Batcher[Item, int]) -> None:
        long = batcher.submit([(number, 8) for number in range(1000)], [8] * 1000)
        await until(lambda: compute.begun.acquire(blocking=False))
        for number in range(1000, 1050):  # fifty short ones, one after the other
            short = batcher.submit([(number, 8)], [8])
            compute.go.release(2)  # the batch that is being computed, and the one after it
            assert await asyncio.wait_for(short, 10) == [2 * number]
            await until(lambda: compute.begun.acquire(blocking=False))
        assert not long.done()
        compute.go.release(10_000)
        await long

    run(work, compute)
    shared = [batch for batch in compute.batches if any(number >= 1000 for number, _ in batch)]
    assert len(shared) == 50
    assert all(any(number < 1000 for number, _ in batch) for batch in shared), "the long one has its share of each"


def test_a_long_request_is_not_starved_by_many_short_ones() -> None:
    compute = Held()

    async def work(batcher: Batcher[Item, int]) -> None:
        long = batcher.submit([(number, 16) for number in range(6)], [16] * 6)
        pending = {batcher.submit([(100 + number, 8)], [8]) for number in range(8)}
        for number in range(
            200, 260
        ):  # each answer is followed by a request: there are always more than fit into a batch
            if long.done():
                break
            compute.go.release()
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            pending |= {batcher.submit([(10 * number + one, 8)], [8]) for one in range(len(done))}
        assert long.done()
        compute.go.release(10_000)
        await asyncio.gather(*pending)

    run(work, compute)


def test_a_full_queue_refuses_until_there_is_room() -> None:
    compute = Held()

    async def work(batcher: Batcher[Item, int]) -> None:
        first = batcher.submit([(1, 60)], [60])
        second = batcher.submit([(2, 40)], [40])
        with pytest.raises(asyncio.QueueFull):
            batcher.submit([(3, 1)], [1])
        second.cancel()
        await asyncio.sleep(0)
        third = batcher.submit([(4, 40)], [40])  # there is room again
        compute.go.release(9)
        assert (await first, await third) == ([2], [8])

    run(work, compute, queue_tokens=100)


def test_a_wrong_number_of_answers_is_an_error() -> None:
    async def work(batcher: Batcher[Item, int]) -> None:
        for items in ([(1, 2), (2, 2)], [(3, 2)]):  # the queue lives on
            with pytest.raises(ValueError, match="shorter"):
                await answered(batcher, items)

    run(work, lambda items: [number for number, _ in items][1:])


def test_a_queue_that_mixes_up_answers_would_be_noticed() -> None:
    with pytest.raises(AssertionError):
        assert run(lambda batcher: answered(batcher, [(1, 2), (2, 2)]), lambda items: [4, 2]) == [2, 4]
