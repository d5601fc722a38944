"""Which known mistake gives these numbers? Each is made on the reference, and its outputs are compared.

A mistake is named if the reference with it gives the numbers that were found, within the bound of rounding, and if
nothing nearer does. If none does, pairs are tried.
"""

from __future__ import annotations

import ast
import itertools
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from minibert.checking.mistakes import MISTAKES, SOURCE, Functions, Mistake, functions_with
from minibert.checking.numbers import Outputs, distance

NEAR = 0.01  # of the distance to the right numbers: a mistake may enlarge rounding
EQUAL = 1.5  # mistakes at most this many times as far as the nearest are named too
SECONDS = 6.0  # to look for pairs

# The outputs of functions by name, of the reference or of it with mistakes; raises if they cannot be computed.
Run = Callable[[Functions], list[Outputs]]


@dataclass(frozen=True)
class Numbers:
    """What was found in some cases, what is right, how much they may differ, and how to compute them."""

    found: list[Outputs]
    right: list[Outputs]
    bounds: list[dict[str, float]]
    run: Run

    def far(self, others: list[Outputs]) -> float:
        """Return how far the found numbers are from others, in bounds."""
        return apart(self.found, others, self.bounds)

    def outputs(self, mistakes: tuple[Mistake, ...]) -> list[Outputs] | None:
        """Return the outputs of the reference with these mistakes; None if they cannot be made or computed."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # as of a variance of one token
                return self.run(functions_with(mistakes))
        except Exception:  # a mistake may make anything impossible, as shapes that do not fit
            return None


def apart(found: list[Outputs], others: list[Outputs], bounds: list[dict[str, float]]) -> float:
    """Return the largest distance of all cases."""
    return max(distance(one, other, bound) for one, other, bound in zip(found, others, bounds, strict=True))


@cache
def reached(function: str) -> tuple[str, ...]:
    """Return a function of the reference and those that it calls, directly or not, in their order."""
    return tuple(one for one in calls_in(SOURCE) if one in called(calls_in(SOURCE), function))


@cache
def calls_in(source: str) -> dict[str, set[str]]:
    """Return the functions of a module, each with the names that occur in it. Raises SyntaxError."""
    return {
        one.name: {name.id for name in ast.walk(one) if isinstance(name, ast.Name)}
        for one in ast.walk(ast.parse(source))
        if isinstance(one, ast.FunctionDef)
    }


def called(calls: dict[str, set[str]], function: str) -> set[str]:
    """Return the function and all that it reaches."""
    found: set[str] = set()
    left = [function]
    while left:
        if (one := left.pop()) not in found and one in calls:
            found.add(one)
            left += calls[one]
    return found


def diagnose(numbers: Numbers, functions: Sequence[str], known: tuple[Mistake, ...]) -> list[tuple[Mistake, ...]]:
    """Return the mistakes that give these numbers, the likeliest first; [] if none does.

    functions: in which they may be, the likeliest last. known: mistakes that were found before and are part of it.
    """
    candidates = [one for name in reversed(functions) for one in MISTAKES if one.function == name and one not in known]
    if found := fitting(numbers, ((one,) for one in candidates), known):
        return found
    own = [one for one in candidates if one.function == functions[-1]]
    rest = [one for one in candidates if one.function != functions[-1]]
    pairs = itertools.chain(
        itertools.combinations(own, 2), itertools.product(own, rest), itertools.combinations(rest, 2)
    )
    return fitting(numbers, pairs, known, time.monotonic() + SECONDS)


def fitting(
    numbers: Numbers,
    choices: Iterable[tuple[Mistake, ...]],
    known: tuple[Mistake, ...],
    until: float = float("inf"),
) -> list[tuple[Mistake, ...]]:
    """Return the choices that give the found numbers, the nearest first."""
    right = numbers.far(numbers.right)
    found: list[tuple[float, tuple[Mistake, ...]]] = []
    for chosen in choices:
        if time.monotonic() > until:
            break
        outputs = numbers.outputs(known + chosen)
        if outputs is None:
            continue
        far = numbers.far(outputs)
        if far <= max(1.0, NEAR * min(right, 1e6)) and apart(outputs, numbers.right, numbers.bounds) > 1.0:
            found.append((far, chosen))
            if len(chosen) > 1 and far <= 1.0:
                break  # there are many pairs
    nearest = min((far for far, _ in found), default=0.0)
    return [chosen for far, chosen in sorted(found, key=lambda one: one[0]) if far <= max(1.0, EQUAL * nearest)]
