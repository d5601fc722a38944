"""`minibert parity` as a command: stored references, reports, and requests that cannot be met."""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mistakes import Model, mask_ignored, norms_swapped, segments_ignored, wrong_activation, wrong_eps

import minibert
from minibert import model
from minibert.checkpoints import hub
from minibert.cli import main as cli
from minibert.parity import command, golden, ladder
from minibert.parity.checkpoints import (
    TINY,
    make,
)
from minibert.parity.compare import (
    Row,
)
from minibert.parity.page import page
from minibert.parity.report import Report, figures, markdown

pytestmark = pytest.mark.usefixtures("one_thread")


# Stored references


def test_the_real_checkpoint_meets_its_stored_references(minilm: Path) -> None:
    findings = golden.check_golden(golden.stored(), minibert.load(minilm))
    assert len(findings) == 6 + 6 * 15 + 2
    assert [f.what for f in findings if not f.ok] == []


def test_a_stored_value_decides_where_the_checksum_differs(minilm: Path) -> None:
    content = golden.stored()
    for stage in content["stages"]:
        stage["sha256"] = "of another CPU"
    findings = golden.check_golden(content, minibert.load(minilm))
    assert {f.how for f in findings} == {"values"}
    assert all(f.ok for f in findings)


@pytest.mark.parametrize("mistake", [wrong_activation, wrong_eps, norms_swapped, mask_ignored, segments_ignored])
def test_a_mistake_misses_the_stored_references(mistake: Callable[[Model], None], minilm: Path) -> None:
    encoder = minibert.load(minilm)
    mistake(SimpleNamespace(encoder=encoder, modules=encoder.modules))  # it looks for the encoder below a head
    findings = golden.check_golden(golden.stored(), encoder)
    assert not all(f.ok for f in findings)


def test_the_stored_references_are_small() -> None:
    path = Path(minibert.__file__).parent / "data" / "golden.json"
    assert path.stat().st_size < 100_000


def test_official_checkpoints_that_are_not_here_are_listed_as_not_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINIBERT_WEIGHTS", str(tmp_path))
    monkeypatch.setattr(hub, "cache_folder", lambda: tmp_path)
    findings = golden.check_published()
    assert [(f.checkpoint, f.how) for f in findings] == [(name, "not checked") for name in golden.PUBLISHED]
    assert "minibert download distilbert-base-uncased" in findings[0].note


# The command


def test_the_command_reports_one_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(TINY[1], "masked-lm", tmp_path / "model")
    pages = [tmp_path / "report.html", tmp_path / "report.md"]
    reports = [part for file in pages for part in ("--report", str(file))]
    assert cli.main(["parity", str(tmp_path / "model"), *reports, "--json"]) == 0
    *_, verdict, line = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert found["ok"] and found["tensors"] == found["equal"] > 300
    assert verdict == f"{found['tensors']:,} of {found['tensors']:,} tensors bit-identical"
    assert all(verdict in file.read_text("utf-8") for file in pages)


def test_the_command_fails_and_names_the_first_divergent_tensor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*given: Any, **more: Any) -> Model:
        loaded = minibert.load(*given, **more)
        getattr(loaded, "encoder", loaded).layers[0].feed_forward.activation = model.ACTIVATION["gelu_new"]
        return loaded

    monkeypatch.setattr(ladder, "load", load)
    make(TINY[1], None, tmp_path)
    assert cli.main(["parity", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "first difference: layer 0 activation (encoder) at [0, 0, " in out
    assert "likely cause: activation: upstream computes gelu;" in out
    assert "DIFFERS" in out


@pytest.mark.parametrize("installed", [None, "4.0.0", "99.1.0"])
def test_without_a_known_transformers_the_stored_references_are_used(
    installed: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    version = importlib.metadata.version

    def pretend(name: str) -> str:
        if name == "transformers" and installed is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return str(installed) if name == "transformers" else version(name)

    monkeypatch.setattr(importlib.metadata, "version", pretend)
    assert cli.main(["parity"]) == 0
    out = capsys.readouterr().out
    assert ("transformers is not installed" if installed is None else f"transformers {installed} is installed") in out
    assert "98 of 98 stored references met" in out


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (["--report", "page.pdf"], "neither .html nor .md"),
        (["--report", os.path.join("nowhere", "page.md")], "there is no folder"),
        (["some-model", "--golden"], "leave out 'some-model'"),
        (["--golden", "--dtype", "float64"], "leave out --device"),
        (["no/such/folder"], "no/such/folder"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(
    request_: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["parity", *request_]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("version", "usable"), [("5.23.0", True), ("5.23.0.dev0", True), ("5.24.0", False), ("4.57.1", False)]
)
def test_versions_are_compared_as_numbers(version: str, usable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    assert (command.unusable() == "") is usable


def test_pages_escape_what_they_quote_and_need_no_network() -> None:
    name = '<script>alert(1)</script> | `x` & "y"'
    different = Row("tensors", name, 0, (2,), 1.0, 3, False, index=(1,), ours=1.0, theirs=2.0)
    report = Report("with <b>", {"torch": "<i>"}, [ladder.Result(name, name, rows=[different], cause=name)])
    html, text = page(report), markdown(report)
    for written in (html, text):
        assert "<script" not in written
        assert "http" not in written
    assert "src=" not in html
    assert "<b>with" not in html
    assert html.count("DIFFERS") == 1
    assert json.loads(json.dumps(figures(report)))["ok"] is False
