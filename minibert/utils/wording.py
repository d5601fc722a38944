"""How a message names a setting: as an argument in Python, as an option on the command line.

    error = ValueError("use the earlier settings" + advice(", or start again: {}", restart=True))
    str(error)                           use the earlier settings, or start again: restart=True
    render(str(error), ["--restart"])    use the earlier settings, or start again: --restart

The text of such an error is a Message: a str in Python's words that keeps its settings as data, also when more is added
with +. (An f-string keeps only the words.) A command advises nothing for which it has no option.
"""

import shlex
from collections.abc import Collection
from typing import Any, Self

ONLY_NAMED = "(only named)"  # in place of a value; a text, so that it can be pickled


class Message(str):
    """A text in Python's words that can be rendered in those of a command."""

    parts: tuple[str | tuple[str, dict[str, Any]], ...]  # a text, or one with a setting for each {}

    def __new__(cls, *parts: str | tuple[str, dict[str, Any]]) -> Self:
        """Join the parts."""
        made = super().__new__(cls, "".join(worded(part) for part in parts))
        made.parts = parts
        return made

    def __str__(self) -> str:
        return self  # so that str() of an exception keeps the parts

    def __add__(self, text: str) -> "Message":
        return Message(*self.parts, *getattr(text, "parts", [text]))

    def __radd__(self, text: str) -> "Message":
        return Message(text, *self.parts)


def advice(text: str, /, **settings: Any) -> Message:
    """Return a text with settings in place of its {}. A value of ... is any value: pooling= and --pooling."""
    return Message((text, settings))


def named(setting: str) -> Message:
    """Return the name of a setting."""
    return advice("{}", **{setting: ONLY_NAMED})


def render(text: str, options: Collection[str]) -> str:
    """Return a text in the words of a command with these options; only a Message changes."""
    return "".join(worded(part, options) for part in getattr(text, "parts", [text]))


def worded(part: str | tuple[str, dict[str, Any]], options: Collection[str] = ()) -> str:
    """Return a part of a message; "" if there are options, but none for one of its settings."""
    if isinstance(part, str):
        return part
    text, settings = part
    ways = [way(*setting, options) for setting in settings.items()]
    return "" if "" in ways else text.format(*ways)


def way(setting: str, value: Any, options: Collection[str]) -> str:
    """Return how a setting is given a value; "" if there are options, but none for it."""
    option = f"--{setting.replace('_', '-')}"
    if value == ONLY_NAMED:
        return option if option in options else setting
    if not options:
        return f"{setting}={'' if value is ... else repr(value)}"
    if option not in options:
        return ""
    if value is True or value is ...:
        return option
    return f"{option} {shlex.quote(','.join(map(str, value)) if isinstance(value, tuple) else str(value))}"
