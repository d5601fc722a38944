"""A message names a setting as an argument in Python, and as an option for a command that has it."""

import pickle

import pytest

from minibert.utils.wording import advice, named, render

OPTIONS = ["--restart", "--long", "--delimiter", "--columns", "--batch-tokens"]


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
def test_advice_is_for_who_reads_it_and_a_command_without_the_option_has_none(settings, python, options):
    error = FileNotFoundError("x; " + ("y; " + advice("use {}", **settings)) + "!")
    for copy in (error, pickle.loads(pickle.dumps(error)), ValueError(str(error)), UserWarning("" + str(error))):
        assert f"{copy}" == f"x; y; {python}!"
        assert render(str(copy), OPTIONS) == f"x; y; {options}!"


def test_a_setting_is_named_as_an_option_of_the_command_that_has_it():
    both = named("batch_tokens") + " and " + named("top_k")
    assert str(both) == "batch_tokens and top_k"
    assert render(pickle.loads(pickle.dumps(both)), OPTIONS) == "--batch-tokens and top_k"
    assert render("batch_tokens", OPTIONS) == "batch_tokens"
