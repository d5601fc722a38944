"""While the caller works on one item the next is made, by a thread that never outlives its caller."""

import threading

import pytest

from minibert.kernels.packing import map_ahead


def running() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("minibert-ahead")]


def test_map_ahead_keeps_the_order_and_makes_the_next_item_while_the_caller_works():
    made = {number: threading.Event() for number in range(5)}
    taken = []

    def items():
        for number in range(5):
            taken.append(number)
            yield number

    results = map_ahead(lambda number: made[number].set() or number * number, items())
    assert taken == []
    assert next(results) == 0
    assert made[1].wait(60)  # would time out if it were made only when it is requested
    assert taken == [0, 1]
    assert list(results) == [1, 4, 9, 16]
    assert running() == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_in_the_worker_or_in_the_items_reaches_the_caller_and_ends_the_worker(error):
    def fail(number):
        if number == 2:
            raise error("two")
        return number

    results = map_ahead(fail, range(9))
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(error, match="two"):
        next(results)
    with pytest.raises(error, match="two"):
        list(map_ahead(int, map(fail, range(9))))
    assert running() == []
