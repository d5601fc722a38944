"""For the tests of minibert check."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from minibert.checking import child
from minibert.checking.mistakes import SOURCE
from minibert.checking.process import Process


class Here(Process):
    """A checked file in this process: starting another takes seconds, and few tests are about it."""

    def start(self) -> subprocess.Popen[bytes]:
        child.main(self.folder)
        return subprocess.Popen(["true"], stdout=subprocess.DEVNULL, start_new_session=True)


@pytest.fixture(autouse=True)
def quick_checks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no mistake fits, pairs are tried for a tenth of a second; mark own_process: files run as they should."""
    monkeypatch.setattr("minibert.checking.diagnosis.PAIRS", 0.1)
    monkeypatch.setattr("minibert.checking.diagnosis.SINGLES", 60.0)
    if "own_process" not in request.fixturenames:
        monkeypatch.setattr(child, "limit", lambda task: None)
        monkeypatch.setattr("minibert.checking.solution.Process", Here)
        monkeypatch.setattr(sys, "path", sys.path[:])
        monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)


@pytest.fixture
def own_process() -> None:
    """Files run in a process of their own."""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a file of functions: the right ones with edits (old, new, old, new, ...), or another source."""

    def write(*edits: str, source: str = SOURCE) -> Path:
        for old, new in zip(edits[::2], edits[1::2], strict=True):
            assert old in source
            source = source.replace(old, new)
        (tmp_path / "my_bert.py").write_text(source, "utf-8")
        return tmp_path / "my_bert.py"

    return write
