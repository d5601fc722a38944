"""A checked file runs in a process of its own: what it does there neither ends the check nor changes the verdict."""

import re

import pytest

import minibert
from minibert.checking import process, solution
from minibert.checking.mistakes import GELU
from minibert.checking.solution import RIGHT, WRONG, check_file
from minibert.checking.source import SolutionError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_process")]
MAIN = 'if __name__ == "__main__":'
PATCHES = """
import minibert.checking.child, minibert.checking.numbers, minibert.reference
minibert.checking.numbers.problem = lambda *a: ""
minibert.checking.child.given_after = lambda given: {}
minibert.reference.gelu = lambda x: x
torch.equal = torch.allclose = lambda *a, **k: True
torch.set_default_dtype(torch.float64)
"""


def test_functions_that_end_python_never_end_or_use_too_much_are_wrong_and_the_next_is_tried(
    write, monkeypatch, capsys
):
    monkeypatch.setattr(solution, "LIMIT", 2.0)
    path = write(
        *("return x @ weight.T + bias", "import os; os._exit(0)"),
        *(GELU, "while True:\n        pass"),
        *("B, S, D = x.shape", "print('x' * 10**5); raise ValueError('x' * 10**6)"),
        *("B, H, S, W = x.shape", "return torch.zeros(10**12)"),
    )
    found = {one.stage.function: one for one in check_file(path)}
    assert found["layer_norm"].state == found["cross_entropy"].state == RIGHT
    said = {"linear": "exit status 0", "gelu": "2.0 s", "split_heads": "ValueError: xxx", "join_heads": "memory"}
    for function, text in said.items():
        assert found[function].state == WRONG
        assert re.search(text, found[function].what)
        assert len(found[function].what) < 500
    assert len(capsys.readouterr().out) < 2 * process.PRINTED


def test_patches_of_torch_and_of_minibert_change_no_verdict(write):
    path = write(
        *(GELU, "return x.clamp(min=0)"),
        *("\n    mean = x.mean(", "\n    x -= 1\n    mean = x.mean("),
        *(MAIN, PATCHES + MAIN),
    )
    found = {one.stage.function: one for one in check_file(path, "feed_forward")}
    assert found["gelu"].causes == ("the activation is ReLU",)
    found = {one.stage.function: one for one in check_file(path, "layer_norm")}
    assert "argument 1 in place" in found["layer_norm"].what


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("while True:\n    pass\n", "stopped after 2.0 s"),
        ("import os\nos._exit(0)\n", "exit status 0"),
        ("import sys\nsys.exit(0)\n", "line 2: SystemExit"),
        ("import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()\n", "SIGSEGV|Error|stopped after"),
    ],
)
def test_a_file_whose_import_does_not_end_well_is_refused(source, said, write, monkeypatch):
    monkeypatch.setattr(solution, "LOADING", 2.0)
    with pytest.raises(SolutionError, match=said):
        check_file(write(source=source), "gelu")


@pytest.mark.parametrize(
    "before",
    [
        "import os; os.mkfifo('{folder}/gelu.0.json')",
        "import os; os.remove('{folder}/printed'); os.mkfifo('{folder}/printed')",
        "import os; os.path.isdir('{folder}/printed') or os.remove('{folder}/printed') or os.mkdir('{folder}/printed')",
        "open('{folder}/gelu.0.json', 'w').write('{{\"state\": \"raised\", \"message\": \"' + 'x' * 10**6 + '\"}}')",
        "short = type('S', (str,), {{'__len__': lambda self: 1}})('x' * 10**6)\n"
        "    raise type('E', (ValueError,), {{'__str__': lambda self: short}})",
    ],
    ids=["a pipe as an answer", "a pipe to print", "a folder to print", "a long answer", "a text that lies"],
)
def test_what_a_file_does_to_its_answers_neither_hangs_nor_fills_the_check(before, write, monkeypatch, capsys):
    monkeypatch.setattr(solution, "LIMIT", 4.0)
    given = before.format(folder="' + __import__('sys').argv[1] + '")
    (found,) = check_file(write(GELU, f"{given}\n    {GELU}"), "gelu")
    assert found.state in (RIGHT, WRONG)
    assert (found.state == RIGHT) == ("printed" in before)
    assert len(found.what) < 700
    assert len(capsys.readouterr().out) < 2 * process.PRINTED


def test_a_model_of_a_file_may_import_its_neighbour_late_and_cannot_end_the_check(tmp_path):
    (tmp_path / "beside.py").write_text("from minibert.reference import encode, load_model\n")
    (tmp_path / "mine.py").write_text(
        "import os\n"
        "def right(input_ids, attention_mask, token_type_ids):\n"
        "    from beside import encode, load_model\n"
        "    weights, _, heads, eps = load_model()\n"
        "    return encode(input_ids, token_type_ids, attention_mask, weights, heads, eps)[0][-1]\n"
        "def ends(input_ids, attention_mask, token_type_ids):\n"
        "    os._exit(0)\n"
    )
    assert minibert.check(f"{tmp_path / 'mine.py'}:right", "minibert-novels").ok
    report = minibert.check(f"{tmp_path / 'mine.py'}:ends", "minibert-novels")
    assert not report.ok and "exit status 0" in str(report)
