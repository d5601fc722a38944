"""The queue of the server by itself: each client gets the answers of its own items, in order, whatever others do."""

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
        self.batches = []
        self.fails = set(fails)

    def __call__(self, items: list[Item]) -> list[int]:
        self.batches.append(items)
        if wrong := self.fails.intersection(number for number, _ in items):
            raise ValueError(f"number {min(wrong)}")
        return [2 * number for number, _ in items]


def run(
    work: Callable[[Batcher], Awaitable[Any]],
    compute: Callable[[list[Item]], Sequence[int]],
    wait: float = 0.0,
) -> Any:
    """Work with a batcher that runs."""

    async def main():
        with ThreadPoolExecutor(1) as executor:
            batcher = Batcher(compute, executor, batch_tokens=BUDGET, queue_tokens=100_000, wait=wait)
            running = asyncio.create_task(batcher.run())
            try:
                return await asyncio.wait_for(work(batcher), 20)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    return asyncio.run(main())


async def submitted(batcher: Batcher, items: Sequence[Item], turns: int = 0) -> list[int]:
    """Come after some turns of the loop, and wait for the results."""
    for _ in range(turns):
        await asyncio.sleep(0)
    return await batcher.submit(items, [tokens for _, tokens in items])


@given(REQUESTS, st.sets(st.integers(0, 60), max_size=4), st.sets(st.integers(0, 11), max_size=4))
@settings(max_examples=120, deadline=None)
def test_each_client_gets_its_own_results_in_order_whoever_fails_or_disconnects(requests, wrong, leaving):
    number, compute = iter(range(1000)), Computer(wrong)
    everything = [(turns, [(next(number), tokens) for tokens in sizes]) for turns, sizes in requests]

    async def work(batcher):
        tasks = [asyncio.ensure_future(submitted(batcher, items, turns)) for turns, items in everything]
        if leaving:
            await asyncio.sleep(0.0005)
        for one in leaving.intersection(range(len(tasks))):
            tasks[one].cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)
        assert batcher.tokens == 0 and all(one.future.done() for one in batcher.queue)
        return found

    for place, ((_, items), found) in enumerate(zip(everything, run(work, compute), strict=True)):
        failed = wrong.intersection(number for number, _ in items)
        expected = isinstance(found, ValueError) if failed else found == [2 * number for number, _ in items]
        assert expected or (place in leaving and isinstance(found, asyncio.CancelledError))
    computed = [number for batch in compute.batches for number, _ in batch]
    if not wrong.intersection(computed) and not leaving:
        assert sorted(computed) == [number for _, items in everything for number, _ in items], "each is computed once"
    for batch in compute.batches:
        assert len(batch) == 1 or sum(tokens for _, tokens in batch) <= BUDGET


def test_requests_that_arrive_while_a_batch_is_computed_are_computed_together_but_for_the_cancelled():
    begun, go, compute = threading.Event(), threading.Event(), Computer()

    def held(items):
        begun.set()
        assert go.wait(20)
        return compute(items)

    async def work(batcher):
        first = batcher.submit([(0, 1)], [1])
        await asyncio.to_thread(begun.wait)
        others = [batcher.submit([(number, 2)], [2]) for number in range(1, 17)]
        others.pop().cancel()
        go.set()
        await asyncio.gather(first, *others)

    run(work, held)
    assert [[number for number, _ in batch] for batch in compute.batches] == [[0], list(range(1, 16))]


def test_as_many_as_last_time_are_awaited_but_not_forever():
    compute = Computer()

    async def work(batcher):
        batcher.together = 3
        await asyncio.gather(*(submitted(batcher, [(number, 2)], turns=3 * number) for number in range(3)))
        for number in (9, 10):  # two more never come
            await asyncio.wait_for(submitted(batcher, [(number, 2)]), 10)

    run(work, compute, wait=0.2)
    assert [len(batch) for batch in compute.batches] == [3, 1, 1]


def test_a_client_alone_never_waits_for_others():
    async def work(batcher):
        for number in range(5):
            await asyncio.wait_for(submitted(batcher, [(number, 2)]), 10)

    run(work, Computer(), wait=10_000)


@pytest.mark.parametrize("shorts", [1, 4])
def test_a_long_request_and_short_ones_take_turns(shorts):
    async def main():
        batcher = Batcher(Computer(), ThreadPoolExecutor(1), batch_tokens=BUDGET, queue_tokens=100_000)
        batcher.submit(range(1000), [8] * 1000)
        batches = []
        for turn in range(50):
            for _ in range(shorts):
                batcher.submit([1000 + turn], [8])
            batches.append([request.items[number] for request, number in batcher._take()])
        return batches

    batches = asyncio.run(main())
    assert sum(number < 1000 for batch in batches for number in batch) >= 10, "the long one is not starved"
    if shorts == 1:
        assert [max(batch) for batch in batches] == [1000 + turn for turn in range(50)], "nor are short ones held up"


def test_a_full_queue_refuses_until_it_has_space():
    async def main():
        batcher = Batcher(Computer(), ThreadPoolExecutor(1), batch_tokens=BUDGET, queue_tokens=100)
        batcher.submit([(1, 60)], [60])
        second = batcher.submit([(2, 40)], [40])
        with pytest.raises(asyncio.QueueFull):
            batcher.submit([(3, 1)], [1])
        second.cancel()
        await asyncio.sleep(0)
        batcher.submit([(4, 40)], [40])  # the queue has space again

    asyncio.run(main())
