"""Each known mistake, made in the finished solution, is found at its function and named; pairs of them too."""

import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from minibert import reference
from minibert.checking.mistakes import MISTAKES, SOURCE, Mistake, functions_with, text_of
from minibert.checking.solution import RIGHT, WRONG, Verdict, check_file

# Of the checkpoint's own values, or in one place only: in these cases they are within rounding.
UNSEEN = re.compile(r"positions begin at 0|\[PAD\] were id 0|where the id is 0|eps is .* alone|eps is 1e-12")
FIRST = {
    mistake.function: mistake for mistake in reversed(MISTAKES) if not UNSEEN.search(mistake.cause)
}  # one for each function
# What nobody thought of: no known mistake, but wrong.
OTHERS = {
    "word_pieces": ("begin = end\n    return pieces", "begin = end\n    return pieces[:2]"),
    "tokenize": ('words = [""]', 'words = [""]\n    text = text.replace("o", "0")'),
    "layer_norm": (" + bias", " + bias * 1.001"),
    "embed": ("[position]", "[position // 2]"),
    "attention": ("math.sqrt(query.shape[-1])", "math.sqrt(query.shape[-1] + 1)"),
    "layer": ("x + attended", "x + 0.9 * attended"),
    "encode": ("number += 1", "number += 2"),
    "cross_entropy": (".mean()", ".median()"),
    "adamw_step": ("0.9 * mean + 0.1", "0.8 * mean + 0.2"),
}


def slow_if_encode(functions: Iterable[str]) -> list[Any]:
    """A mistake of the whole encoder takes seconds."""
    return [pytest.param(name, marks=[pytest.mark.slow] * (name == "encode")) for name in functions]


def verdicts(source: str, folder: Path, only: str | None = None) -> dict[str, Verdict]:
    path = folder / "my_bert.py"
    path.write_text(source, "utf-8")
    return {one.stage.function: one for one in check_file(path, only)}


def test_the_list_is_long_and_says_each_mistake_once():
    assert len(MISTAKES) >= 60
    assert len({(one.function, one.cause) for one in MISTAKES}) == len(MISTAKES)
    for mistake in MISTAKES:
        assert functions_with((mistake,))[mistake.function] is not getattr(reference, mistake.function)


def assert_named(mistake: Mistake, folder: Path) -> None:
    found = verdicts(mistake.apply(SOURCE), folder, mistake.function)
    assert found.pop(mistake.function).causes[:1] == (text_of(mistake),)
    assert all(one.state == RIGHT for one in found.values())


@pytest.mark.parametrize("function", slow_if_encode(FIRST))
def test_a_mistake_is_found_at_its_function_and_named(function, tmp_path):
    assert_named(FIRST[function], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mistake",
    [one for one in MISTAKES if one not in FIRST.values() and not UNSEEN.search(one.cause)],
    ids=lambda one: one.cause,
)
def test_every_other_mistake_is_named(mistake, tmp_path):
    assert_named(mistake, tmp_path)


@pytest.mark.parametrize("function", slow_if_encode(OTHERS))
def test_a_mistake_that_is_not_known_is_located_and_no_cause_is_named(function, tmp_path):
    old, new = OTHERS[function]
    source = Mistake(function, "", (old, new)).apply(SOURCE)
    found = verdicts(source, tmp_path, function)
    assert found[function].state == WRONG
    assert found.pop(function).causes == ()
    assert all(one.state == RIGHT for one in found.values())


def drawn_pairs(count: int) -> Iterator[tuple[Mistake, Mistake, str]]:
    random_numbers = random.Random(0)
    while count:
        one, other = random_numbers.sample([one for one in MISTAKES if not UNSEEN.search(one.cause)], 2)
        try:
            source = other.apply(one.apply(SOURCE))
            compile(source, "my_bert.py", "exec")
        except (ValueError, SyntaxError):  # both edit the same line
            continue
        count -= 1
        yield one, other, source


@pytest.mark.slow
def test_of_two_mistakes_the_first_is_always_located_and_most_pairs_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr("minibert.checking.diagnosis.PAIRS", 6.0)
    named = 0
    for one, other, source in drawn_pairs(40):
        wrong = [verdict for verdict in verdicts(source, tmp_path).values() if verdict.state == WRONG]
        assert wrong[0].stage.function in (one.function, other.function)
        named += {one, other} <= {mistake for verdict in wrong for mistake in verdict.mistakes}
    assert named >= 36  # of 100 pairs 98 were
