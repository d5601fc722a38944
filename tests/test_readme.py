"""README's examples run as they are printed, on a machine like CI's: offline, with the checkpoint of the wheel."""

from __future__ import annotations

import ast
import gzip
import io
import json
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from words import labelled

from minibert.cli import main as cli

README = Path(__file__).parent.parent / "README.md"
NOT_RUN = re.compile(r"<!-- not run: .+ -->")
# What takes minutes, or fetches something: their lines need only be right.
LONG = ("demo", "parity", "bench", "download", "finetune", "vocab", "pretrain", "distill", "serve")


@dataclass(frozen=True)
class Example:
    """A fenced block."""

    line: int
    language: str
    code: str
    runs: bool

    def __str__(self) -> str:
        return f"line {self.line}"


def examples(page: str) -> list[Example]:
    """The blocks of a page that are fenced as sh or python; not run are those below a line that says so, and why."""
    found, opened, before = [], None, ""
    lines = page.splitlines()
    for number, line in enumerate(lines, 1):
        if not line.startswith("```"):
            before = line if line.strip() and opened is None else before
        elif opened is None:
            opened, runs = number, not NOT_RUN.fullmatch(before.strip())
        else:
            language = lines[opened - 1].removeprefix("```").strip()
            if language in ("sh", "python"):
                found.append(Example(opened, language, "\n".join(lines[opened : number - 1]) + "\n", runs))
            opened, before = None, ""
    return found


def commands(example: Example) -> Iterator[tuple[list[str], str | None]]:
    """The arguments of each line that begins with `minibert`, and the file that it reads as standard input."""
    for line in example.code.splitlines():
        if line.startswith("minibert "):
            _, *argv = shlex.split(line, comments=True)
            source = argv.index("<") if "<" in argv else len(argv)
            yield argv[:source], next(iter(argv[source + 1 :]), None)


ALL = examples(README.read_text("utf-8"))
SHELL = [example for example in ALL if example.language == "sh"]
PYTHON = [example for example in ALL if example.language == "python"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that examples read, in the folder where they run; no weights but the wheel's."""
    texts, labels = labelled()
    rows = "".join(f"{text}\t{label}\n" for text, label in zip(texts, labels, strict=True))
    (tmp_path / "sentences.txt").write_text("".join(f"{text}\n" for text in texts[:5]))
    (tmp_path / "train.tsv").write_text(rows)
    (tmp_path / "dev.tsv").write_text(rows)
    with gzip.open(tmp_path / "reviews.jsonl.gz", "wt") as file:
        file.write("".join(json.dumps({"body": text}) + "\n" for text in texts[:5]))
    for name in ("MINIBERT_WEIGHTS", "HF_HUB_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.delenv("MINIBERT_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(argv: list[str], source: str | None, monkeypatch: pytest.MonkeyPatch) -> int:
    """A command as in a shell: its exit status."""
    given = Path(source).read_bytes() if source else b""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
    return cli.main(argv)


def test_every_line_for_the_shell_is_one_that_minibert_understands() -> None:
    lines = [argv for example in SHELL for argv, _ in commands(example)]
    assert len(lines) > 8
    for argv in lines:
        cli.parser(argv).parse_args(cli.join_negatives(argv))


@pytest.mark.parametrize("example", [example for example in SHELL if example.runs], ids=str)
def test_the_lines_for_the_shell_run_as_printed(
    example: Example, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for argv, source in commands(example):
        if argv[0] not in LONG:
            status = run(argv, source, monkeypatch)
            said = capsys.readouterr()
            assert (status, said.err) == (0, ""), (argv, said.err)
            for out in (Path(value) for option, value in pairwise(argv) if option == "--out"):
                assert out.exists(), argv


@pytest.mark.usefixtures("folder")
def test_the_lines_for_python_run_as_printed_one_after_the_other() -> None:
    names: dict[str, Any] = {}
    for example in PYTHON:
        if example.runs:
            run_python(example.code, names)
    assert "minibert" in names


def run_python(code: str, names: dict[str, Any]) -> None:
    """Run a block; a value with a comment that begins with ( is a shape, and must be that one."""
    lines = code.splitlines()
    for step in ast.parse(code).body:
        if not isinstance(step, ast.Expr):
            exec(compile(ast.Module([step], []), "README.md", "exec"), names)
            continue
        value = eval(compile(ast.Expression(step.value), "README.md", "eval"), names)
        if shape := re.search(r"#\s*(\([\d, ]+\))", lines[step.lineno - 1]):
            assert str(tuple(value)) == shape[1], lines[step.lineno - 1]


def test_a_wrong_example_would_be_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = """
```sh
minibert embed no.txt --out x.npy  # a comment
minibert classify predict x < "two words.txt"
```

<!-- not run: it needs a moment -->

```sh
minibert embde sentences.txt
```
An end.
```python
import math
(1, 2)  # (1, 3)
```
```
minibert not at all
```
"""
    first, second, third = examples(page)
    assert [(example.line, example.language, example.runs) for example in (first, second, third)] == [
        (2, "sh", True),
        (9, "sh", False),
        (13, "python", True),
    ]
    assert list(commands(first)) == [
        (["embed", "no.txt", "--out", "x.npy"], None),
        (["classify", "predict", "x"], "two words.txt"),
    ]
    assert run(*next(commands(first)), monkeypatch) == 2
    with pytest.raises(SystemExit):
        cli.parser(argv := next(commands(second))[0]).parse_args(argv)
    with pytest.raises(AssertionError, match="1, 2"):
        run_python(third.code, {})
