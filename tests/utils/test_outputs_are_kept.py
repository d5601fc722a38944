"""What is where a command is to write is kept: refused, or with --overwrite replaced if minibert wrote it."""

import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.training import write_home
from support.words import write_words_checkpoint

from minibert.cli import main as cli
from minibert.utils import outputs
from minibert.utils.files import read_json
from minibert.utils.outputs import LIST_FILE, atomic_folder, check_file, check_folder

pytestmark = [
    pytest.mark.filterwarnings("ignore:degenerate", "ignore:.* words of the corpus", "ignore:.*has one value"),
]
QUICK = "--batch-size 4 --max-length 16 --device cpu"
FOLDERS = {  # what to write into --out, a folder; HOME is that of the fixture
    "finetune": f"finetune classify HOME/train.tsv --model HOME/words --epochs 1 {QUICK}",
    "pretrain": "pretrain HOME/corpus.txt --config HOME/small.json --tokenizer HOME/words --objective mlm --steps 2 "
    + QUICK,
    "distill": f"distill HOME/corpus.txt --teacher HOME/teacher --steps 2 {QUICK}",
    "distill classify": "distill HOME/train.tsv --task classify --teacher HOME/classifier --epochs 1 " + QUICK,
    "classify train": "classify train HOME/train.tsv --model HOME/words --folds 0",
    "vocab": "vocab HOME/corpus.txt --size 60",
    "convert": "convert HOME/pickle",
}


FILES = {  # the option, the command, the ending
    "embed": ("--out", "embed HOME/corpus.txt --model HOME/words", ".npy"),
    "predict": ("--out", "predict HOME/classifier film", ".csv"),
    "trace": ("--out", "trace film --model HOME/words", ".html"),
    "trace picture": ("--png", "trace film --model HOME/words", ".png"),
    "export": ("--out", "export HOME/words", ".onnx"),
    "finetune": ("--plot", f"{FOLDERS['finetune']} --out NEW", ".svg"),
    "parity": ("--report", "parity HOME/words --attention sdpa", ".md"),
}
NEEDED = {"export": "onnxscript", "trace picture": "matplotlib", "finetune": "matplotlib"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_home(tmp_path_factory.mktemp("home"))
    write_words_checkpoint(folder / "pickle", head="masked-lm")
    torch.save(load_file(folder / "pickle" / "model.safetensors"), folder / "pickle" / "pytorch_model.bin")
    (folder / "pickle" / "model.safetensors").unlink()
    return folder


Run = Callable[..., int]


@pytest.fixture
def run(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A command and more words of it, in a folder of its own: its exit status."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def call(command, *more):
        argv = [*command.replace("HOME", str(home)).replace("NEW", str(tmp_path / "new")).split(), *map(str, more)]
        return cli.main(argv)

    return call


def contents(folder: Path, pattern: str = "*") -> dict[str, bytes]:
    """All files of a folder, or those of the pattern, each with its content."""
    paths = sorted(path for path in folder.rglob(pattern) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def add_foreign(folder: Path) -> dict[str, bytes]:
    """A thesis, drafts, and files with the names of ours; returns their contents."""
    for name in ("thesis.txt", "config.json", "model.safetensors", "drafts/config.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("my life")
    return contents(folder)


# -- folders


@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]], ids=["plain", "overwrite"])
@pytest.mark.parametrize("command", FOLDERS)
def test_a_folder_of_other_files_is_refused_and_stays_as_it_is(run, tmp_path, command, overwrite, capsys):
    out = tmp_path / "out"
    before = add_foreign(out)
    assert run(FOLDERS[command], "--out", out, *overwrite) == 2
    assert re.fullmatch(rf"[^\n]*{out}[^\n]*thesis\.txt[^\n]*another --out[^\n]*\n", capsys.readouterr().err)
    assert contents(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "out"]


@pytest.mark.parametrize("command", FOLDERS)
def test_overwrite_replaces_only_a_folder_that_holds_nothing_else_and_is_unchanged(run, tmp_path, command, capsys):
    out, argv = tmp_path / "out", (FOLDERS[command], "--out", tmp_path / "out")
    assert run(*argv) == 0
    written = contents(out)
    assert set(read_json(out / LIST_FILE)["files"]) == written.keys() - {LIST_FILE}
    assert run(*argv) == 2
    assert contents(out) == written
    assert run(*argv, "--overwrite") == 0
    assert contents(out).keys() == written.keys()
    name = next(name for name in ("model.safetensors", "classifier.safetensors", "vocab.txt") if name in written)
    for added in (name, "thesis.txt"):  # one of ours that was changed, and one of the user's
        (out / added).write_bytes(b"mine now")
        before = contents(out)
        assert run(*argv, "--overwrite") == 2
        assert re.search(rf"{out}, .*: {re.escape(added)};", capsys.readouterr().err)
        assert contents(out) == before
        (out / added).write_bytes(written.get(added, b"")) if added in written else (out / added).unlink()
    beside = ["out.features"] if command == "classify train" else []  # its vectors, for another grid
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "out", *beside]


@pytest.mark.parametrize("command", FOLDERS)
def test_the_folder_of_the_shell_and_a_link_are_refused(run, tmp_path, command):
    (tmp_path / "link").symlink_to(tmp_path / "here")
    assert [run(FOLDERS[command], "--out", out, "--overwrite") for out in (".", "..", tmp_path / "link")] == [2] * 3
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("command", [*FOLDERS, *FILES])
@pytest.mark.parametrize("nothing", ["no right", "no folder"])
def test_a_place_that_cannot_be_written_to_is_refused_and_named(run, tmp_path, command, nothing, capsys, monkeypatch):
    option, words, ending = FILES.get(command) or ("--out", FOLDERS[command], "")
    place = tmp_path / "place"
    if nothing == "no right":
        place.mkdir()
        monkeypatch.setattr(os, "access", lambda path, mode: path != place)  # root has every right
    else:
        place.write_text("a file")
    assert run(words, option, place / f"new{ending}") in (1, 2)
    assert re.search(r"Permission denied|Not a directory|no folder|existing folder", capsys.readouterr().err)
    assert {path.name for path in tmp_path.iterdir()} == {"here", "place"}


def test_of_two_runs_with_one_output_the_second_to_end_is_refused(tmp_path):
    with (
        pytest.raises(ValueError, match=r"out is there already and holds a\.txt"),
        atomic_folder(tmp_path / "out") as second,
    ):
        (second / "a.txt").write_text("second")
        write_two(tmp_path / "out", "first", ("a.txt",))
    assert contents(tmp_path, "*.txt") == {"out/a.txt": b"first"}


@pytest.mark.parametrize(
    ("command", "read"),
    [
        ("finetune", "words"),
        ("pretrain", "words"),
        ("distill", "teacher"),
        ("distill classify", "classifier"),
        ("classify train", "words"),
        ("convert", "pickle"),
    ],
)
def test_a_folder_that_is_read_is_never_written_to(run, home, command, read):
    before = contents(home)
    for out in (home / read, home / read / "new", home):
        assert run(FOLDERS[command], "--out", out, "--overwrite") == 2
    assert contents(home) == before


# -- files


@pytest.mark.parametrize(
    "command", [pytest.param(one, marks=pytest.mark.slow if one == "export" else ()) for one in FILES]
)
def test_a_file_is_replaced_only_with_overwrite_and_only_by_a_file_of_that_kind(run, tmp_path, command):
    pytest.importorskip(NEEDED.get(command, "minibert"))
    option, words, ending = FILES[command]
    out, thesis = tmp_path / f"out{ending}", tmp_path / "thesis.txt"
    for path in (out, thesis):
        path.write_bytes(b"my life")
    assert run(words, option, out) == 2
    assert run(words, option, thesis, "--overwrite") == 2
    assert out.read_bytes() == thesis.read_bytes() == b"my life"
    assert run(words, option, out, "--overwrite") == 0
    assert out.read_bytes() != b"my life"


def test_a_command_never_replaces_the_file_that_it_reads(run, home, tmp_path):
    (tmp_path / "linked.tsv").symlink_to(home / "train.tsv")
    before = contents(home)
    for data, out in (("train.tsv", home / "train.tsv"), ("sub/../train.tsv", tmp_path / "linked.tsv")):
        assert run(f"predict HOME/classifier --file HOME/{data} --overwrite --out", out) in (1, 2)
    assert run(f"predict HOME/classifier --out HOME/train.tsv --file {tmp_path}/linked.tsv") == 2
    assert run(FOLDERS["vocab"], "--out", home, "--overwrite") == 2
    assert contents(home) == before


@pytest.mark.parametrize("name", ["model.safetensors", "sub/config.json", ".git/HEAD", "link"])
def test_a_folder_with_any_file_of_the_user_is_not_replaced(tmp_path, name):
    out, thesis = tmp_path / "out", tmp_path / "thesis.txt"
    thesis.write_text("my life")
    write_two(out, "old", ("a.txt", "sub/b.txt"))
    (out / name).parent.mkdir(parents=True, exist_ok=True)
    if name == "link":
        (out / name).symlink_to(thesis)
    else:
        (out / name).write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=rf"{out}, .*: {re.escape(name)};"):
        write_two(out, "new")
    assert contents(tmp_path) == before


# -- what goes wrong on the way


def write_two(out: Path, text: str, names: tuple[str, ...] = ("a.txt", "sub/b.txt")) -> None:
    with atomic_folder(out, overwrite=True) as folder:
        for name in names:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)


@pytest.mark.parametrize("failing", [1, 2])
def test_a_folder_that_cannot_be_renamed_stays_as_it_was(tmp_path, monkeypatch, failing):
    out, renamed, rename = tmp_path / "out", list[Path](), os.rename
    out.mkdir()
    check_folder(out)  # an empty folder is as good as none
    write_two(out, "old")

    def fail(source, target):
        renamed.append(source)
        if len(renamed) == failing:
            raise KeyboardInterrupt
        rename(source, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "rename", fail)
        write_two(out, "new")
    assert contents(tmp_path, "*.txt") == {"out/a.txt": b"old", "out/sub/b.txt": b"old"}
    write_two(out, "newest", ("a.txt",))  # what is no longer written goes
    assert contents(tmp_path, "*.txt") == {"out/a.txt": b"newest"}


def test_a_mount_point_is_refused(tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda path: path.name == "out")
    with pytest.raises(ValueError, match="mount"):
        check_folder(tmp_path / "out")


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_is_not_replaced_by_one(tmp_path, kind):
    out = tmp_path / "out.npy"
    out.mkdir() if kind == "folder" else os.mkfifo(out)
    with pytest.raises(ValueError, match=f"is a {kind}, not a file"):
        check_file(out, overwrite=True, endings=[".npy"])


def test_all_files_are_on_the_disk_before_their_folder_gets_its_name(tmp_path, monkeypatch):
    done, rename = list[str](), os.rename
    monkeypatch.setattr(outputs, "sync", lambda path: done.append(path.name.removeprefix(".").partition(".")[0]))
    monkeypatch.setattr(os, "rename", lambda old, new: (done.append("renamed"), rename(old, new)))
    write_two(tmp_path / "out", "new")
    assert sorted(done[:-2]) == ["a", "b", "minibert", "out", "sub"]
    assert done[-2:] == ["renamed", tmp_path.name]


def test_a_list_that_names_files_elsewhere_permits_nothing(tmp_path):
    out, thesis = tmp_path / "out", tmp_path / "thesis.txt"
    write_two(out, "old")
    thesis.write_text("my life")
    digests = read_json(out / LIST_FILE)["files"]
    elsewhere = dict.fromkeys(("../thesis.txt", str(thesis)), hashlib.sha256(b"my life").hexdigest())
    (out / LIST_FILE).write_text(json.dumps({"files": digests | elsewhere}))
    write_two(out, "new", ("a.txt",))
    (out / "a.txt").unlink()
    (out / "a.txt").symlink_to(thesis)
    with pytest.raises(ValueError, match=r"out, .*: a\.txt"):
        write_two(out, "newer", ("a.txt",))
    assert thesis.read_text() == "my life"


LONG, NULL = '{"files": {"%s": ""}}' % ("x" * 5000), r'{"files": {"a\u0000.txt": ""}}'


@pytest.mark.parametrize("content", ["[]", "{", '{"files": 3}', '{"files": {"a.txt": 3}}', LONG, NULL])
def test_a_damaged_list_permits_nothing(tmp_path, content):
    write_two(tmp_path / "out", "old")
    (tmp_path / "out" / LIST_FILE).write_text(content)
    with pytest.raises(ValueError, match=r"minibert\.json|wrote them: a\.txt"):
        write_two(tmp_path / "out", "new")
    assert contents(tmp_path / "out", "*.txt") == {"a.txt": b"old", "sub/b.txt": b"old"}
