"""A message names a setting as an argument in Python, and as an option within a command that has it."""

from typing import Any

import pytest

from minibert.utils.wording import advice, named, naming_options


@pytest.mark.parametrize(
    ("settings", "python", "options"),
    [
        ({"restart": True}, "use restart=True", "use --restart"),
        ({"long": "cut"}, "use long='cut'", "use --long cut"),
        ({"delimiter": ";"}, "use delimiter=';'", "use --delimiter ';'"),
        ({"columns": (2, -1)}, "use columns=(2, -1)", "use --columns 2,-1"),
        ({"batch_tokens": ...}, "use batch_tokens=", "use --batch-tokens"),
        ({"new_head": True}, "use new_head=True", ""),
    ],
)
def test_advice_is_for_who_reads_it_and_a_command_without_the_option_has_none(
    settings: dict[str, Any], python: str, options: str
) -> None:
    assert advice("use {}", **settings) == python
    with naming_options(["--restart", "--long", "--delimiter", "--columns", "--batch-tokens"]):
        assert advice("use {}", **settings) == options
    assert advice("use {}", **settings) == python


def test_a_setting_is_named_as_an_option_of_the_command_that_has_it() -> None:
    with naming_options(["--batch-tokens"]):
        assert [named(name) for name in ("batch_tokens", "top_k")] == ["--batch-tokens", "top_k"]
    assert named("batch_tokens") == "batch_tokens"
