"""A terminal shows what a file or a user calls something, and obeys none of it; errors stay short."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.models import edited
from support.words import write_words_checkpoint

HOSTILE = {  # what it would do -> the text, and what is printed
    "clears the screen": ("\x1b[2J", "\\x1b[2J"),
    "the same in 8 bits": ("\x9b2J", "\\x9b2J"),
    "hides what is before it": ("a\rb", "a\\rb"),
    "reverses the line": ("\u202eevil", "\\u202eevil"),
    "deletes a character": ("\x7fa", "\\x7fa"),
    "begins a line": ("a\nminibert:", "a\\nminibert:"),
}
every_hostile = pytest.mark.parametrize(("text", "shown"), HOSTILE.values(), ids=HOSTILE)
ignore_unknown = pytest.mark.filterwarnings("ignore::minibert.checkpoints.load.UnknownTensors")
KNOWN = "good film very lovely book the meal"  # words of the vocabulary, so that nothing warns of unknown ones
Run = Callable[..., str]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_words_checkpoint(tmp_path_factory.mktemp("classifier"), head="sequence-classification")


@ignore_unknown
@every_hostile
def test_the_name_of_a_tensor_is_escaped(text, shown, checkpoint, tmp_path, run):
    folder = edited(checkpoint, tmp_path / "model", lambda state: state | {text: torch.ones(2)})
    printed = run("inspect", folder, "--tensors")
    assert shown in printed and text not in printed


@every_hostile
def test_labels_and_texts_are_escaped_and_json_holds_them(text, shown, classifier, tmp_path, run):
    folder = edited(classifier, tmp_path / "model", lambda state: None, id2label={"0": text, "1": "other"})
    printed = run("predict", folder, f"{KNOWN} {text}", "--json")
    assert text not in printed
    assert json.loads(printed.splitlines()[-1])["predictions"][0]["probabilities"].keys() == {text, "other"}
    (tmp_path / "in.tsv").write_text("good\tother\n")
    printed = run("evaluate", folder, tmp_path / "in.tsv")
    assert shown in printed and text not in printed


@every_hostile
def test_a_table_that_is_written_has_the_texts_as_they_are(text, shown, classifier, tmp_path, run):
    folder = edited(classifier, tmp_path / "model", lambda state: None, id2label={"0": text, "1": text + "2"})
    run("predict", folder, f"{KNOWN} {text}", "--out", tmp_path / "out.jsonl")
    row = json.loads((tmp_path / "out.jsonl").read_text("utf-8"))
    assert row["text"] == f"{KNOWN} {text}" and row["label"].startswith(text)


@every_hostile
@pytest.mark.parametrize("command", [["inspect"], ["predict"], ["no-such-option", "--x"]], ids=lambda argv: argv[0])
def test_what_the_user_names_is_escaped_in_the_error(text, shown, command, capsys, run):
    try:
        printed = run(*command, text, status=2)
    except SystemExit:
        printed = capsys.readouterr().err
    assert text not in printed and len(printed.splitlines()) == 1


@every_hostile
def test_names_of_folders_and_files_are_escaped(text, shown, checkpoint, tmp_path, run):
    folder = shutil.copytree(checkpoint, tmp_path / f"model {text}")
    (folder / f"file {text}").touch()
    printed = run("inspect", folder)
    assert shown in printed and text not in printed
    (folder / "model.safetensors").unlink()
    assert text not in run("inspect", folder, status=2)


@pytest.mark.parametrize("key", ["model_type", "hidden_act", "position_embedding_type", "problem_type"])
def test_an_error_is_short_however_long_a_value_is(key, checkpoint, tmp_path, run):
    folder = edited(checkpoint, tmp_path / "model", lambda state: None, **{key: "\x1b" + "x" * 100_000})
    printed = run("inspect", folder, status=2)
    assert key in printed and "\x1b" not in printed
    assert len(printed.replace(str(folder), "")) < 600


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer_config.json", '{"tokenizer_class": "\\u001b%s"}', "tokenizer_class"),
        ("tokenizer_config.json", '{"cls_token": "\\u001b%s"}', "no rows for the added tokens"),
    ],
)
def test_an_error_about_a_tokenizer_is_short(name, content, words, classifier, tmp_path, run):
    folder = edited(classifier, tmp_path / "model", lambda state: None)
    (folder / name).write_text(content.replace("%s", "x" * 100_000))
    printed = run("predict", folder, "good", status=2)
    assert words in printed and "\x1b" not in printed
    assert len(printed.replace(str(folder), "")) < 600


def test_an_error_of_anything_else_is_cut(run, monkeypatch):
    def fails(*_):
        raise ValueError("x" * 100_000)

    monkeypatch.setattr("minibert.checkpoints.inspection.inspect", fails)
    assert "(100,007 characters)" in (printed := run("inspect", "model", status=2))
    assert len(printed) < 4100
