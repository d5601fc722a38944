"""Settings are written once: the fields of a dataclass define limits and command-line flags."""

import argparse
from dataclasses import dataclass
from typing import Any

import pytest

from minibert.cli.shared import add_options, read_options
from minibert.utils.settings import check, setting


@dataclass(frozen=True)
class Example:
    steps: int = setting(10, "steps of the run", minimum=1)
    learning_rate: float = setting(5e-5, "the highest", minimum=0.0, maximum=1.0)
    mask_rate: float = setting(0.15, "masked", above=0, below=1)
    step: str = setting("packed", "{choices}", choices=("packed", "readable"))
    dev: str | None = setting(None, "held-out data", metavar="FILE")
    whole_words: bool = setting(False, "mask whole words")
    hidden: int = 3

    def __post_init__(self) -> None:
        check(self)


def test_flags_give_back_the_settings() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser, Example)
    assert read_options(parser.parse_args([]), Example) == Example()
    args = parser.parse_args(["--steps", "5", "--learning-rate", "0.1", "--step", "readable", "--whole-words"])
    assert read_options(args, Example, hidden=4) == Example(5, 0.1, 0.15, "readable", None, True, 4)


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"steps": 0}, ValueError, r"steps is 0\b.* 1$"),
        ({"steps": 2.5}, TypeError, r"steps is 2\.5;.*\bint\b"),
        ({"steps": True}, TypeError, "steps is True"),
        ({"learning_rate": float("nan")}, ValueError, r"learning_rate is nan\b"),
        ({"learning_rate": 5}, ValueError, r"learning_rate is 5\b.* 0 .* 1$"),
        ({"learning_rate": 10**400}, ValueError, r"learning_rate .* 80 digits"),
        (
            {"learning_rate": 10**5000},
            ValueError,
            r"learning_rate .* 80 digits",
        ),
        ({"steps": -(10**5000)}, ValueError, r"steps .* 80 digits.* 1$"),
        ({"step": "x" * 100_000}, ValueError, r"step is 'x{40}'\.\.\. \(100,000 characters\)"),
        ({"mask_rate": 0}, ValueError, r"mask_rate is 0;.* 0 .* 1$"),
        ({"mask_rate": 1.0}, ValueError, r"mask_rate is 1\.0;.* 0 .* 1$"),
        ({"step": "fast"}, ValueError, r"step is 'fast'.*packed, readable"),
    ],
)
def test_a_value_out_of_its_limits_is_refused(values: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Example(**values)
