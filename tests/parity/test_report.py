"""`minibert parity`: reports, exit status, and requests that cannot be met."""

import importlib.metadata
import json
import os
import re

import pytest
import torch

import minibert
from minibert.activations import ACTIVATION
from minibert.hooks import Place
from minibert.parity import ladder, report
from minibert.parity.checkpoints import TINY, make
from minibert.parity.compare import Comparison, compare_tensor
from minibert.utils.printing import install_hint


def test_the_command_reports_one_checkpoint(tmp_path, run):
    make(TINY[1], "masked-lm", tmp_path / "model")
    pages = [tmp_path / "report.html", tmp_path / "report.md"]
    reports = [part for file in pages for part in ("--report", file)]
    *_, verdict, line = run("parity", tmp_path / "model", *reports, "--json").splitlines()
    found = json.loads(line)
    assert found["ok"] and found["tensors"] == found["equal"] > 300
    assert verdict == f"{found['tensors']:,} of {found['tensors']:,} tensors bit-identical"
    assert all(verdict in file.read_text("utf-8") for file in pages)


def test_the_command_fails_and_names_the_first_divergent_tensor(tmp_path, run, monkeypatch):
    def load(*given, **more):
        loaded = minibert.load(*given, **more)
        getattr(loaded, "encoder", loaded).layers[0].feed_forward.activation = ACTIVATION["gelu_new"]
        return loaded

    monkeypatch.setattr(ladder, "load", load)
    make(TINY[1], None, tmp_path)
    out = run("parity", tmp_path, status=1)
    assert "first difference: layer 0 activation (encoder) at [0, 0, " in out
    assert "likely cause: activation: upstream computes gelu;" in out


@pytest.mark.parametrize(
    ("installed", "usable"),
    [("4.57.1", False), ("5.23.0", True), ("5.23.0.dev0", True), ("5.24.0", False)],
)
def test_without_a_transformers_for_which_parity_holds_the_command_says_what_to_install(
    installed, usable, run, monkeypatch
):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: installed)
    if usable:
        assert report.transformers_version() == installed
        return
    error = run("parity", status=1)
    assert install_hint("test") in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (["--report", "page.pdf"], r"page.pdf.*\.html, .md"),
        (["--report", os.path.join("nowhere", "page.md")], "nowhere"),
        (["no/such/folder"], "no/such/folder"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(request_, words, run):
    assert re.search(words, run("parity", *request_, status=2))


HOSTILE = '<script>alert(1)</script> | `x` & "y"'
DIFFERENT = Comparison("tensors", HOSTILE, 0, (2,), 1.0, 3, False, index=(1,), ours=1.0, theirs=2.0)


def test_pages_escape_what_they_quote_and_need_no_network_and_json_has_a_tensor_of_another_shape():
    result = ladder.Result(HOSTILE, HOSTILE, rows=[DIFFERENT], cause=HOSTILE)
    told = ("with <b>", {"torch": "<i>"}, [result])
    html, text = report.page(".html", *told), report.page(".md", *told)
    assert "<script" not in html and "<b>with" not in html and "src=" not in html and "http" not in html
    assert html.count("DIFFERS") == text.count("DIFFERS") == 1
    assert all(line.startswith("    ") for line in text.splitlines() if "<script" in line)
    assert json.loads(json.dumps(report.figures(*told), allow_nan=False))["ok"] is False
    result = ladder.Result("one", "a test", rows=[compare_tensor("tensors", Place("x"), torch.ones(2), torch.ones(3))])
    assert json.loads(json.dumps(report.figures("", {}, [result]), allow_nan=False))["equal"] == 0
    assert "shape (2,), upstream (3,)" in str(result.first)
