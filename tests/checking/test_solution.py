"""A file of functions: what is right, not written, waiting, by a library, and what cannot be tried at all."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import build

import minibert
from minibert.checking.mistakes import GELU, SOURCE
from minibert.checking.solution import RIGHT, UNWRITTEN, WAITS, WRONG, check_file
from minibert.checking.stages import STAGES

Write = Callable[..., Path]


def states(path: Path, only: str | None = None) -> dict[str, Any]:
    return {one.stage.function: one for one in check_file(path, only)}


def test_the_solution_is_right_and_the_skeleton_has_nothing() -> None:
    assert {one.state for one in check_file(build.SOLUTION)} == {RIGHT}
    assert {one.state for one in check_file(build.SKELETON)} == {UNWRITTEN}


def test_the_skeleton_is_the_reference_without_content_and_has_the_functions_in_order() -> None:
    assert build.SKELETON.read_text("utf-8") == build.skeleton(SOURCE)
    stages = [stage.function for stage in STAGES]
    assert re.findall(r"(?m)^def (\w+)", SOURCE)[: len(stages)] == stages


MASKS = {
    "one number decides all": """\
    how = torch.rand(ids.shape, generator=generator)
    how = torch.where(special == 0, how, 1.0)
    chosen = how < 0.15
    random = torch.randint(vocabulary_size, ids.shape, generator=generator)
    inputs = torch.where(how < 0.12, mask_id, torch.where(how < 0.135, random, ids))
""",
    "the fate comes before the choice": """\
    fate = torch.randint(10, ids.shape, generator=generator)
    chosen = (torch.rand(ids.shape, generator=generator) < 0.15) & (special == 0)
    random = torch.randint(vocabulary_size, ids.shape, generator=generator)
    inputs = torch.where(chosen & (fate < 8), mask_id, torch.where(chosen & (fate == 8), random, ids))
""",
    "random tokens first, token by token": """\
    inputs = torch.randint(vocabulary_size, ids.shape, generator=generator)
    chosen = torch.bernoulli((special == 0) * 0.15, generator=generator).bool()
    fate = torch.multinomial(torch.tensor([0.8, 0.1, 0.1]), ids.numel(), True, generator=generator).view_as(ids)
    inputs = torch.where(chosen & (fate == 2), inputs, torch.where(chosen & (fate == 0), mask_id, ids))
""",
}


@pytest.mark.parametrize("form", MASKS)
def test_masking_is_right_whatever_random_numbers_it_draws_in_which_order(form: str, write: Write) -> None:
    begin = SOURCE.index("    chosen = (torch.rand(ids.shape")
    body = SOURCE[begin : SOURCE.index("\n\n\n", begin)] + "\n"
    right = MASKS[form] + "    return inputs, torch.where(chosen, ids, IGNORED)\n"
    names = re.findall(r"\w+", SOURCE[SOURCE.index("def mask_tokens(") : begin].partition(")")[0])
    assert {"ids", "special", "mask_id", "vocabulary_size", "generator"} <= set(names)
    assert states(write(body, right), "mask_tokens")["mask_tokens"].state == RIGHT
    wrong = right.replace("0.8", "0.7").replace("0.12", "0.105").replace("< 8", "< 7")  # the control
    found = states(write(body, wrong), "mask_tokens")
    assert found["mask_tokens"].state == WRONG


@pytest.mark.slow
def test_a_mask_that_is_not_needed_is_not_said_to_be_wrong_for_padding(write: Write) -> None:
    found = states(write("number += 1", "number += 2"), "encode")
    assert found["encode"].what.startswith("all cases")
    assert found.pop("encode").causes == ()  # no known mistake
    assert {one.state for one in found.values()} == {RIGHT}


ODD = {
    "a byte-order mark": (b"\xef\xbb\xbf", ""),
    "a coding line": (b"# -*- coding: latin-1 -*-\n# \xe9\n", ""),
    "another default dtype": (b"", "torch.set_default_dtype(torch.float64)\n"),
}


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_but_right_file_is_right(odd: str, tmp_path: Path) -> None:
    before, after = ODD[odd]
    source = SOURCE.replace("import torch\n", "import torch\n" + after, 1)
    encoded = source.encode("latin-1", "namereplace") if "coding" in odd else source.encode()
    (tmp_path / "my_bert.py").write_bytes(before + encoded)
    assert {one.state for one in check_file(tmp_path / "my_bert.py", "gelu")} == {RIGHT}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
@pytest.mark.parametrize(
    "value", ["x.to_sparse()", "x.to('meta')", "torch.nested.as_nested_tensor([x])", "x.to(torch.complex64)"]
)
def test_a_tensor_of_another_kind_is_named(value: str, write: Write) -> None:
    found = states(write(GELU, f"return {value}"), "gelu")["gelu"]
    assert found.state == WRONG
    assert re.search(r"sparse|meta|nested|complex", found.what)
    assert "torch.float32" in found.what or "torch tensor" in found.what


def test_a_function_that_uses_a_wrong_one_waits_for_it(write: Write) -> None:
    found = states(write("return x * (1 + torch.erf", "raise NotImplementedError\n    return x * (1 + torch.erf"))
    assert {name for name, one in found.items() if one.state == UNWRITTEN} == {"gelu"}
    assert {name for name, one in found.items() if one.state == WAITS} == {
        "feed_forward",
        "layer",
        "encode",
        "predict_tokens",
    }


def test_what_a_library_computes_is_named(write: Write) -> None:
    path = write(GELU, "return torch.nn.functional.gelu(x)")
    assert states(path, "gelu")["gelu"].library == ("torch.nn.functional.gelu",)
    path = write("return x @ weight.T + bias", "return torch.nn.functional.linear(x, weight, bias)")
    found = states(path, "feed_forward")
    assert found["linear"].library and not found["feed_forward"].library
    path = write("import json\n", "import json\nfrom minibert import reference\n", GELU, "return reference.gelu(x)")
    assert "reference.gelu" in states(path, "gelu")["gelu"].library


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (GELU, "return x.mul_(2)", "argument 1 in place"),
        (GELU, "return x[:-1]", r"\(96,\); expected \(97,\)"),
        (GELU, "return x.double()", "float64; expected torch.float32"),
        (
            GELU,
            "return x.numpy()",
            "numpy.ndarray; expected a torch tensor",
        ),
        (GELU, "return None", "NoneType"),
        (GELU, "return x, x", "2 values"),
        (GELU, "return x @ x.T @ x.T", "line [0-9]+: "),
        (GELU, "sys.exit(3)", "NameError|SystemExit"),
        ("def gelu(", "def gelu_of_mine(", "no function gelu"),
    ],
)
def test_what_is_no_answer_is_said(old: str, new: str, said: str, write: Write) -> None:
    found = states(write(old, new), "gelu")["gelu"]
    assert found.state in (WRONG, UNWRITTEN)
    assert re.search(said, found.what)


def test_nan_is_named(write: Write) -> None:
    path = write(GELU, "return x / 0 * 0")
    found = states(path, "gelu")["gelu"]
    assert found.state == WRONG
    assert "NaN" in str(found.place)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def f(:\n", "line 1"),
        ("x = 1\ny = x.z\n", "line 2: AttributeError"),
        ("import nothing_of_it\n", "nothing_of_it"),
    ],
)
def test_a_file_with_an_error_is_refused_with_its_line(source: str, said: str, write: Write, run: Any) -> None:
    assert said in run("check", write(source=source), status=2)


@pytest.mark.slow
def test_the_command_says_what_is_next_and_ends_with_the_figures(write: Write, run: Any) -> None:
    out = run("check", build.SOLUTION, "--json")
    assert json.loads(out.splitlines()[-1])["ok"] is True
    path = write("/ math.sqrt(query.shape[-1])\n    scores = scores.masked", "\n    scores = scores.masked")
    out = run("check", path, "--json", status=1)
    figures = json.loads(out.splitlines()[-1])
    assert (figures["ok"], figures["stage"], figures["layer"]) == (False, "attention", None)
    assert figures["causes"] == ["the scores are not divided by √W"]
    assert figures["largest"] > 0.01
    assert "cause: the scores are not divided by √W" in out and "2_through_the_encoder" in out
    out = run("check", build.SKELETON, "--stage", "embed", status=1)
    assert out.splitlines()[0].split() == ["embed", "embeddings", "not", "written"]


def test_what_cannot_be_asked_is_refused(run: Any, tmp_path: Path) -> None:
    for name in ("none.py", "none.py:MyBert"):
        assert "none.py is not a file; " in run("check", tmp_path / name, status=2)
    assert "word_pieces" in run("check", build.SKELETON, "--stage", "words", status=2)
    assert "--export" in run("check", status=2)
    with pytest.raises(ValueError, match=r"'words'.*word_pieces"):
        minibert.check(build.SKELETON, stage="words")


def test_a_file_that_changes_is_checked_again(write: Write, monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    path = write("def gelu(", "def gelu_of_mine(")
    waits, reports = [], []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 1:
            write()  # saved
        if len(reports) == 2:
            raise KeyboardInterrupt

    def checked(*given: Any, **more: Any) -> Any:
        reports.append(check(*given, **more))
        return reports[-1]

    check = minibert.check
    monkeypatch.setattr("minibert.cli.check.time.sleep", sleep)
    monkeypatch.setattr("minibert.checking.check.check", checked)
    run("check", path, "--stage", "gelu", "--watch", status=130)
    assert [report.ok for report in reports] == [False, True]


def test_a_class_or_a_function_of_a_file_makes_the_model(tmp_path: Path, run: Any) -> None:
    (tmp_path / "mine.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "import transformers\n"
        "@dataclass\n"
        "class Sizes:\n"
        "    width: int = 3\n"
        "class Mine:\n"
        "    def __init__(self, folder):\n"
        "        self.model = transformers.BertModel.from_pretrained(folder).eval()\n"
        "    def __call__(self, input_ids, attention_mask, token_type_ids):\n"
        "        return self.model(input_ids, attention_mask, token_type_ids)\n"
        "def make(folder):\n"
        "    return Mine(folder)\n"
    )
    for name in ("Mine", "make"):
        out = run("check", f"{tmp_path / 'mine.py'}:{name}", "--model", "minibert-novels", "--json")
        assert json.loads(out.splitlines()[-1])["ok"]
    assert "Mine, make" in run("check", f"{tmp_path / 'mine.py'}:Other", "--model", "minibert-novels", status=2)
