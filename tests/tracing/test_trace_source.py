"""The links of the trace page lead to the lines that compute; its files import each other in one direction."""

from __future__ import annotations

import ast
import graphlib
import html
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from minibert.tracing import source


def imports(path: Path) -> set[str]:
    """The files of trace that one of them imports, wherever in it the import stands."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
    return {str(node.module).rpartition(".")[2] for node in nodes if str(node.module).startswith("minibert.trace.")}


def test_no_file_imports_one_that_imports_it():
    files = Path(source.__file__).parent.glob("*.py")
    order = graphlib.TopologicalSorter({path.stem: imports(path) for path in files})
    assert list(order.static_order())[-2:] == ["run", "command"]  # raises CycleError for a circle


def written_out(x: Tensor, scores: Tensor) -> Tensor:
    """Steps laid out over several lines: softmax."""
    scores = (
        scores.float()
        .double()
        .softmax(dim=-1)
        .unsqueeze(0)
        .unsqueeze(0)
        .unsqueeze(0)
        .to(dtype=torch.float64, memory_format=torch.contiguous_format)
    )
    return output(
        x,
        last=scores,
    )


def output(x: Tensor, last: Tensor) -> Tensor:
    return x + last


@pytest.mark.parametrize(
    ("name", "code"), [("scores", "scores = ("), ("softmax", ".softmax("), ("last", "last=scores")]
)
def test_a_step_is_found_however_its_line_is_laid_out(name, code, monkeypatch):
    monkeypatch.setitem(source.STEPS, "step", (written_out, name))
    line = Path(__file__).read_text(encoding="utf-8").splitlines()[source.line_of("step").number - 1]
    assert line.strip().startswith(code)


def test_every_step_is_found_by_its_name():
    for function, name in source.STEPS.values():
        assert source.lines_that_mention(name, function), f"{function.__qualname__} no longer mentions {name}"


def test_where_a_name_is_gone_the_link_leads_to_the_function(monkeypatch):
    monkeypatch.setitem(source.STEPS, "step", (written_out, "gone"))
    assert source.line_of("step").number == written_out.__code__.co_firstlineno


def text_of(line: str) -> str:
    """What a browser shows of a line of HTML."""
    return html.unescape(re.sub("<.*?>", "", line))


@pytest.mark.parametrize("with_pygments", [True, False])
def test_colouring_leaves_the_source_as_it_is(with_pygments, monkeypatch):
    if not with_pygments:
        monkeypatch.setitem(sys.modules, "pygments", None)
    code = Path(source.__file__).read_text(encoding="utf-8")
    lines = source.coloured(code)
    assert [text_of(line) for line in lines] == code.splitlines()
    assert any("<span" in line for line in lines) == with_pygments
