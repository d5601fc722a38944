"""Forks: a process that has computed cannot share its threads with a copy of itself."""

from __future__ import annotations

import os

import torch

computed_in: int | None = None  # the process that has computed, and whose threads are not in its forks


def check_process() -> None:
    """Raise RuntimeError in a process forked from one that has computed: it would wait forever for threads of that.

    So does torch itself (OpenMP's threads are not copied). One thread needs no others, and processes that are spawned,
    as joblib's and scikit-learn's are, begin with threads of their own.
    """
    global computed_in
    if computed_in not in (None, os.getpid()) and torch.get_num_threads() > 1:
        raise RuntimeError(
            "this process was forked from one that had computed vectors, and would wait forever for threads that a "
            "fork does not copy; start it with multiprocessing's 'spawn', or call torch.set_num_threads(1) in it first"
        )
    computed_in = os.getpid()
