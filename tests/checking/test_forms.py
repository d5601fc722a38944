"""Right and wrong forms of the functions, as people write them: forms/right.txt and forms/wrong.txt.

A form is "@ function | what it is", in wrong.txt "@ function | part of its cause | what it is", and below it the whole
function, or edits of the reference: lines that begin with "- " are replaced by those that begin with "+ ". A cause of
"?" may be any, and "" none.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from minibert.checking import child, solution
from minibert.checking.mistakes import SOURCE
from minibert.checking.process import Answer
from minibert.checking.solution import RIGHT, WRONG, Verdict, check_stage
from minibert.checking.source import SourceText
from minibert.checking.stages import STAGES, Case, Stage
from minibert.checking.world import World

pytestmark = pytest.mark.filterwarnings("ignore")  # as where a file is checked
OF = {stage.function: stage for stage in STAGES}


class Form(NamedTuple):
    """A way to write a function."""

    function: str
    cause: str  # part of the cause that is named; "?": any
    what: str
    text: str  # the function, or edits

    def source(self) -> str:
        """Return the reference with this form."""
        if self.text.startswith("def "):
            return SOURCE.replace('\n\nif __name__ == "__main__":', f'\n\n{self.text}\n\nif __name__ == "__main__":')
        source, old, new = SOURCE, [], []
        for line in [*self.text.splitlines(), "-"]:
            if line.startswith("-") and new:
                begin = source.index('"""\n', source.index(f"def {self.function}(") + len(self.function) + 6)
                assert "\n".join(old) in source[begin:], old
                source = source[:begin] + source[begin:].replace("\n".join(old), "\n".join(new), 1)
                old, new = [], []
            (old if line.startswith("-") else new).append(line[2:])
        return source


def forms(name: str) -> list[Form]:
    """Return the forms of a file."""
    text = (Path(__file__).parent / "forms" / name).read_text("utf-8")
    sections = [section.partition("\n") for section in text.removeprefix("@ ").split("\n@ ")]
    heads = [([part.strip() for part in head.split("|")], body.rstrip("\n")) for head, _, body in sections]
    return [Form(head[0], head[1] if len(head) > 2 else "", head[-1], body) for head, body in heads]


class Here:
    """A trial in this process, whose answers are not written to files."""

    def __init__(self, source: str, world: World) -> None:
        self.world, self.path = world, world.folder / "my_bert.py"
        self.path.write_text(source, "utf-8")
        self.given: list[Answer] = []

    def give(self, name: str, tensors: dict[str, object] | None = None, **answer: object) -> None:
        self.given.append(Answer(tensors=tensors or {}, **answer))  # type: ignore[arg-type]

    def answers(self, stage: Stage, count: int) -> list[Answer]:
        child.try_stage(stage, stage.cases(self.world), child.load_module(self.path), self.path, self)  # type: ignore[arg-type]
        return self.given


def verdict(form: Form, world: World) -> Verdict:
    """Return the verdict on one function, as if those before it were right."""
    here, tree = Here(form.source(), world), ast.parse(form.source())
    return check_stage(OF[form.function], world, here, SourceText(tree), {})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("forms"))


@pytest.fixture(scope="module", autouse=True)
def right_is_computed_once() -> Iterator[None]:
    """What is right in a case does not depend on the form."""
    known: dict[tuple[str, str], Any] = {}
    compute = solution.expected

    def expected(stage: Stage, case: Case) -> Any:
        key = stage.function, case.what
        if key not in known:
            known[key] = compute(stage, case)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solution, "expected", expected)
        yield


def name_of(form: Form) -> str:
    return f"{form.function}: {form.what}"


def test_there_are_many_forms_and_each_differs() -> None:
    right, wrong = forms("right.txt"), forms("wrong.txt")
    assert len({form.source() for form in right}) >= 60
    assert len({form.source() for form in wrong}) >= 200
    assert {form.function for form in right} == {form.function for form in wrong} == set(OF)


@pytest.mark.parametrize("form", forms("right.txt"), ids=name_of)
def test_a_right_form_is_right(form: Form, world: World) -> None:
    found = verdict(form, world)
    assert found.state == RIGHT, (found.what, found.causes, str(found.place))


@pytest.mark.parametrize("form", forms("wrong.txt"), ids=name_of)
def test_a_wrong_form_is_wrong(form: Form, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solution, "diagnose", lambda *given: [])  # which is slow
    assert verdict(form, world).state == WRONG


@pytest.mark.slow
@pytest.mark.parametrize("form", [form for form in forms("wrong.txt") if form.cause != "?"], ids=name_of)
def test_the_cause_of_a_wrong_form_is_named_if_it_is_known_and_no_other(form: Form, world: World) -> None:
    causes = verdict(form, world).causes
    assert form.cause in "".join(causes[:1])
    assert bool(form.cause) == bool(causes)
