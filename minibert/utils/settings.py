"""Settings: each is written once, as a field of a dataclass with its default, its limits and its help text.

The command line (cli/shared.py) makes its flags from these fields, and `check` holds every value to its limits.
"""

import inspect
import operator
import re
import sys
import typing
from collections.abc import Callable
from dataclasses import field, fields
from functools import cache, wraps
from types import NoneType, UnionType
from typing import Any, Self, TypeVar

from minibert.utils.habits import refuse_unknown
from minibert.utils.printing import brief
from minibert.utils.wording import named

Function = TypeVar("Function", bound=Callable[..., Any])
WITHIN = {"at least": operator.ge, "at most": operator.le, "above": operator.gt, "below": operator.lt}


def setting(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    metavar: str | None = None,
    parse: Any = None,
    **limits: float,
) -> Any:
    """Return a field of a settings dataclass.

    help: for the command line; "{choices}" is replaced by the choices. metavar: the name of the value in the help.
    parse: text to value, where the type of the field does not determine it. limits: of a number, see check_number.
    """
    return field(
        default=default,
        metadata={
            "help": help,
            "choices": choices,
            "metavar": metavar,
            "parse": parse,
            "limits": limits,
        },
    )


class Settings:
    """A base class of settings: the TypeError for an unknown name says what minibert calls it, or the nearest name."""

    def __new__(cls, *_: Any, **settings: Any) -> Self:
        """Refuse unknown names; __init__ then sets the fields."""
        refuse_unknown(cls.__name__, settings, [one.name for one in fields(cls)], "setting")  # type: ignore[arg-type]  # a dataclass
        return super().__new__(cls)


def with_settings(*settings: type) -> Callable[[Function], Function]:
    """Make a function answer an unknown keyword with what minibert calls it, or the nearest name.

    settings: dataclasses whose fields it takes as **settings; its signature, which help(), notebooks and scikit-learn
    read, then names each with its default.
    """

    def decorated(function: Function) -> Function:
        signature = inspect.signature(function)
        shown = {name: one for name, one in signature.parameters.items() if one.kind is not one.VAR_KEYWORD}
        for one in [one for kind in settings for one in fields(kind)]:
            parameter = inspect.Parameter(
                one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=one.type
            )
            shown.setdefault(one.name, parameter)
        owner = re.sub(r"\.__\w+__$", "", function.__qualname__)
        known = [name for name in shown if name != "self"]

        @wraps(function)
        def answering(*given: Any, **keywords: Any) -> Any:
            refuse_unknown(owner, keywords, known)
            return function(*given, **keywords)

        answering.__signature__ = signature.replace(parameters=[*shown.values()])  # type: ignore[attr-defined]
        return typing.cast(Function, answering)

    return decorated


@cache
def type_of(settings: type, name: str) -> tuple[type, bool]:
    """Return the type of a field and whether it may be None: (int, True) for `int | None`; a union is `tuple`."""
    hint = typing.get_type_hints(settings)[name]
    members = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, UnionType) else (hint,)
    kinds = [typing.get_origin(one) or one for one in members if one is not NoneType]
    return (kinds[0] if len(kinds) == 1 else tuple), NoneType in members


def plain(value: Any) -> Any:
    """Return a value in Python's own types: numpy's numbers and arrays, also those in a list or a tuple."""
    if type(value) in (list, tuple):
        return type(value)(item.tolist() if hasattr(item, "tolist") else item for item in value)
    return value.tolist() if hasattr(value, "tolist") else value


def check(settings: Any) -> None:
    """Turn numpy's values into Python's, a list into a tuple and a number into a text where the field has such a type.

    Raises ValueError or TypeError, naming the setting, its value and its limits, for a value outside them.
    """
    for one in [one for one in fields(settings) if one.init]:
        kind, optional = type_of(settings.__class__, one.name)
        value = plain(getattr(settings, one.name))
        if (type(value), kind) in ((list, tuple), (int, str)):
            value = kind(value)
        object.__setattr__(settings, one.name, value)
        choices = one.metadata.get("choices")
        if optional and value is None:
            continue
        if kind is bool and one.metadata and not isinstance(value, bool):
            raise TypeError(named(one.name) + f" is {brief(value)}; it must be True or False")
        if choices and value not in choices:
            raise ValueError(named(one.name) + f" is {brief(value)}; choose from {', '.join(choices)}")
        if kind in (int, float):
            check_number(one.name, value, kind, **one.metadata.get("limits", {}))


def check_number(
    name: str,
    value: Any,
    kind: type,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> Any:
    """Return a number in Python's own type.

    Raises TypeError for anything but a number of this kind, ValueError for one that is not finite or out of range.
    """
    value = plain(value)
    name = named(name)
    if isinstance(value, bool) or not isinstance(value, int if kind is int else (int, float)):
        raise TypeError(name + f" is {brief(value)}; it must be {'an int' if kind is int else 'a number'}")
    finite = kind is int or abs(value) <= sys.float_info.max  # JSON has integers that no float can hold
    limits = {"at least": minimum, "above": above, "at most": maximum, "below": below}
    given = {words: bound for words, bound in limits.items() if bound is not None}
    if not finite or not all(WITHIN[words](value, bound) for words, bound in given.items()):
        bounds = ["finite"] * (not finite) + [f"{words} {bound:.10g}" for words, bound in given.items()]
        raise ValueError(name + f" is {brief(value)}; it must be {' and '.join(bounds)}")
    return value


def integers(text: str) -> tuple[int, ...]:
    """Parse "-2,-1" as (-2, -1), for a setting that is a list of integers."""
    return tuple(int(number) for number in text.split(","))
