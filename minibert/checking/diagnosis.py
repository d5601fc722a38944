"""Which known mistake gives these numbers? Each is made on the reference, and its outputs are compared.

A mistake is named if the reference with it gives the numbers that were found, within rounding, and if nothing nearer
does. Its rounding is measured as for the right numbers, since a mistake may enlarge it. If none fits, pairs are tried.
"""

from __future__ import annotations

import ast
import itertools
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from minibert.checking.mistakes import MISTAKES, SOURCE, Mistake
from minibert.checking.numbers import Bounds, Outputs, bounds, distance, mean_distance, problem
from minibert.checking.source import SourceText

NEAR = 0.1  # of the distance to the right numbers: only nearer mistakes are looked at closely
EQUAL = 0.05  # of a bound: mistakes whose numbers differ by less are named together
WITHOUT, WITH = 0.2, 0.25  # shares of the way to a mistake: see hidden_causes
SINGLES, PAIRS = 5.0, 1.0  # seconds of this thread for looking through the mistakes, and through pairs of them

# The outputs with these mistakes, of the reference or of a model, computed in a dtype; raises if they cannot be.
Run = Callable[[tuple[Any, ...], torch.dtype], Outputs]


@dataclass(frozen=True)
class Numbers:
    """What was found, what is right, how much they may differ, and how to compute them."""

    found: Outputs
    right: Outputs
    bounds: Bounds
    run: Run
    dtype: torch.dtype = torch.float32  # in which they were computed

    def far(self, others: Outputs) -> float:
        """Return how far the found numbers are from others, in bounds."""
        return distance(self.found, others, self.bounds)

    def outputs(self, mistakes: tuple[Any, ...], dtype: torch.dtype = torch.float32) -> Outputs | None:
        """Return the outputs with these mistakes; None if they cannot be made or computed."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # as of a variance of one token
                return self.run(mistakes, dtype)
        except Exception:  # a mistake may make anything impossible, as shapes that do not fit
            return None

    def rounding(self, mistakes: tuple[Any, ...], outputs: Outputs) -> Bounds | None:
        """Return how much these outputs, of these mistakes, may differ by rounding, which a mistake may enlarge."""
        # The difference from float32 of a type of less precision is its rounding, and that of float64 is float32's.
        rounded = self.outputs(mistakes, torch.float64 if self.dtype == torch.float32 else self.dtype)
        return None if rounded is None else bounds(outputs, [rounded], self.dtype)


@cache
def reached(function: str) -> tuple[str, ...]:
    """Return a function of the reference and those that it calls, directly or not, in their order."""
    return SourceText(ast.parse(SOURCE)).reached(function)


def diagnose(numbers: Numbers, functions: Sequence[str], known: tuple[Mistake, ...]) -> list[tuple[Mistake, ...]]:
    """Return the mistakes that give these numbers, the nearest first; [] if none does.

    functions: in which they may be, the likeliest last. known: mistakes that were found before and are part of it.
    """
    candidates = [mistake for mistake in mistakes_in(functions) if mistake not in known]
    if found := fitting(numbers, ((one,) for one in candidates), known):
        return found
    own = [one for one in candidates if one.function == functions[-1]]
    rest = [one for one in candidates if one.function != functions[-1]]
    pairs = itertools.chain(
        itertools.combinations(own, 2), itertools.product(own, rest), itertools.combinations(rest, 2)
    )
    return fitting(numbers, pairs, known, PAIRS)


def fitting(
    numbers: Numbers, choices: Iterable[tuple[Any, ...]], known: tuple[Any, ...] = (), seconds: float | None = None
) -> list[tuple[Any, ...]]:
    """Return the choice that gives the found numbers most nearly, and those whose numbers are the same."""
    until = time.thread_time() + (SINGLES if seconds is None else seconds)
    right = numbers.far(numbers.right)
    near: list[tuple[float, int, tuple[Any, ...], Outputs]] = []
    for number, chosen in enumerate(choices):
        if time.thread_time() > until:
            break
        outputs = numbers.outputs(known + chosen)
        if outputs is None or (far := numbers.far(outputs)) > max(1.0, NEAR * min(right, 1e6)):
            continue
        near.append((mean_distance(numbers.found, outputs, numbers.bounds), number, chosen, outputs))
        if len(chosen) > 1 and far <= 1.0:
            break  # there are many pairs
    near.sort(key=lambda one: one[:2])
    for place, (_, _, chosen, outputs) in enumerate(near):
        own = numbers.bounds if numbers.far(outputs) <= 1.0 else numbers.rounding(known + chosen, outputs)
        if own is not None and distance(numbers.found, outputs, own) <= 1.0:
            return [chosen] + [
                other for _, _, other, same in near[place + 1 :] if distance(same, outputs, numbers.bounds) <= EQUAL
            ]
    return []


def mistakes_in(functions: Sequence[str]) -> list[Mistake]:
    """Return the known mistakes in these functions, those in the last first."""
    return [mistake for name in reversed(functions) for mistake in MISTAKES if mistake.function == name]


def hidden_causes(numbers: Numbers, others: list[Outputs], candidates: Iterable[Any]) -> list[Any]:
    """Return the mistakes of which one explains differences that are within rounding, the nearest first.

    Several: rounding hides which of them it is.

    Computing in few digits differs at random from the right numbers, a mistake in one direction: how far the found
    numbers have gone from the right ones to those of the mistake is a share, near 1 if it was made, and near 0 for
    right numbers that were computed in several ways (others). It must be so in each text.
    """
    until = time.thread_time() + SINGLES
    found, right, limit = numbers.found, numbers.right, numbers.bounds
    right_mean = mean_distance(found, right, limit)
    explaining: list[tuple[float, Any]] = []
    for mistake in candidates:
        if time.thread_time() > until:
            break
        wrong = numbers.outputs((mistake,))
        if wrong is None or problem(wrong, right) or not all(bool(x.isfinite().all()) for x in wrong.values()):
            continue
        if any(abs(float(shares_of(other, right, wrong, limit).sum())) > WITHOUT for other in others):
            continue
        shares = shares_of(found, right, wrong, limit)  # (B)
        whole = shares_of(wrong, right, wrong, limit)
        total = float(shares.sum())
        in_each = shares[whole > 0.05] / whole[whole > 0.05]
        if abs(total - 1) < WITH and bool(((in_each > 0.4) & (in_each < 1.6)).all()):
            explaining.append((mean_distance(found, wrong, limit), mistake))
    explaining = sorted(((mean, one) for mean, one in explaining if mean < right_mean), key=lambda pair: pair[0])
    # As near as the nearest, for rounding, is what brings the numbers at least half as much nearer than no mistake.
    return [mistake for mean, mistake in explaining if right_mean - mean > (right_mean - explaining[0][0]) / 2]


def shares_of(found: Outputs, right: Outputs, wrong: Outputs, limit: Bounds) -> Tensor:
    """Return how far found is on the way from right to wrong, as parts of 1 that the texts have, (B)."""
    along = torch.zeros(())
    length = torch.zeros(())
    for name, x in right.items():
        way = ((wrong[name] - x) / limit[name].mean).double().flatten(1)
        along = along + (way * ((found[name] - x) / limit[name].mean).double().flatten(1)).sum(dim=1)
        length = length + (way * way).sum()
    return along / length.clamp(min=1e-30)
