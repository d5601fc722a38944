"""How a message names a setting: as an argument in Python, as an option on the command line.

    named("batch_size")                       batch_size                     --batch-size
    advice("; use {} to cut it", long="cut")  ; use long='cut' to cut it     ; use --long cut to cut it

A command advises nothing for which it has no option.
"""

import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

OPTIONS: list[str] = []  # of the command that runs; none in Python


@contextmanager
def naming_options(options: Iterable[str]) -> Iterator[None]:
    """Within the block, name settings as the options of a command."""
    before = [*OPTIONS]
    OPTIONS[:] = options
    try:
        yield
    finally:
        OPTIONS[:] = before


def named(setting: str) -> str:
    """Return the name of a setting."""
    option = f"--{setting.replace('_', '-')}"
    return option if option in OPTIONS else setting


def advice(text: str, /, **settings: Any) -> str:
    """Return a text with settings in place of its {}; "" if the command that runs has no option for one of them.

    A value of ... is any value: pooling= and --pooling.
    """
    if OPTIONS and any(named(name) == name for name in settings):
        return ""
    return text.format(*(given(name, value) for name, value in settings.items()))


def given(setting: str, value: Any) -> str:
    """Return how a setting is given a value."""
    if not OPTIONS:
        return f"{setting}={'' if value is ... else repr(value)}"
    if value is True or value is ...:
        return named(setting)
    return f"{named(setting)} {shlex.quote(','.join(map(str, value)) if isinstance(value, tuple) else str(value))}"
