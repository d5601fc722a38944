"""Settings: each is written once, as a field of a dataclass with its default, its limits and its help text.

The command line (cli/options.py) makes its flags from these fields, and `check` holds every value to its limits.
"""

from __future__ import annotations

import math
import typing
from dataclasses import field, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any

from minibert.printing import brief


def setting(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    metavar: str | None = None,
    parse: Any = None,
) -> Any:
    """A field of a settings dataclass.

    help: for the command line; "{choices}" stands for the choices. minimum, maximum: limits of a number, inclusive.
    metavar: the name of the value in the help. parse: text to value, where the type of the field does not determine it.
    """
    return field(
        default=default,
        metadata={
            "help": help,
            "choices": choices,
            "minimum": minimum,
            "maximum": maximum,
            "metavar": metavar,
            "parse": parse,
        },
    )


@cache
def type_of(settings: type, name: str) -> tuple[type, bool]:
    """The type of a field and whether it may be None: (int, True) of `int | None`; the type of a list is `tuple`."""
    hint = typing.get_type_hints(settings)[name]
    members = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, UnionType) else (hint,)
    plain = [typing.get_origin(one) or one for one in members if one is not NoneType]
    return (plain[0] if len(plain) == 1 else tuple), NoneType in members


def check(settings: Any) -> None:
    """Raise ValueError or TypeError, naming the setting, its value and its limits, for a value outside them."""
    for one in fields(settings):
        kind, optional = type_of(settings.__class__, one.name)
        value, limits = getattr(settings, one.name), one.metadata
        if optional and value is None:
            continue
        if kind is bool and limits and not isinstance(value, bool):
            raise TypeError(f"{one.name} is {brief(value)}; it must be True or False")
        if limits.get("choices") and value not in limits["choices"]:
            raise ValueError(f"{one.name} is {brief(value)}; choose from {', '.join(limits['choices'])}")
        if kind in (int, float):
            check_number(one.name, value, kind, limits.get("minimum"), limits.get("maximum"))


def check_number(name: str, value: Any, kind: type, minimum: float | None, maximum: float | None) -> None:
    """Raise TypeError for anything but a number of this kind, ValueError for one that is not finite or out of range."""
    if isinstance(value, bool) or not isinstance(value, int if kind is int else (int, float)):
        raise TypeError(f"{name} is {brief(value)}; it must be {'an int' if kind is int else 'a number'}")
    finite = not isinstance(value, float) or math.isfinite(value)
    if not finite or (minimum is not None and value < minimum) or (maximum is not None and value > maximum):
        bounds = ["finite"] if not finite else []
        bounds += [f"at least {minimum:.10g}"] if minimum is not None else []
        bounds += [f"at most {maximum:.10g}"] if maximum is not None else []
        raise ValueError(f"{name} is {brief(value)}; it must be {' and '.join(bounds)}")


def integers(text: str) -> tuple[int, ...]:
    """ "-2,-1" as (-2, -1), for a setting that is a list of integers."""
    return tuple(int(number) for number in text.split(","))
