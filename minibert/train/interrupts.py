"""Ctrl-C and SIGTERM wait for the end of a training step, where the state of the run can be saved."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from minibert.utils.printing import is_main_process

NOTICE = b"minibert: stopping after this step; a second signal stops at once\n"


@contextmanager
def delayed_signals() -> Iterator[list[int]]:
    """Delay the first SIGINT or SIGTERM to the end of the block; its number is appended to the list that is yielded.

    A second one of the same kind has its usual effect at once. Ignored signals stay ignored. In other threads than the
    main one, where Python handles no signals, nothing changes.
    """
    received: list[int] = []

    def receive(number: int, _: object) -> None:
        received.append(number)
        signal.signal(number, usual[number])
        if is_main_process():
            os.write(2, NOTICE)  # print could fail here: the signal may have interrupted another print

    numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    usual: dict[int, Any] = {
        number: handler for number in numbers if (handler := signal.getsignal(number)) not in (signal.SIG_IGN, None)
    }
    for number in usual:
        signal.signal(number, receive)
    try:
        yield received
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])
