"""The command line: reports for people, one JSON object for programs, and one line for what is wrong."""

import io
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest
from support.words import labelled, write_tsv

import minibert
from minibert.cli import main, predict
from minibert.prediction.frozen import Classifier, train
from minibert.storage import hub
from minibert.vectors.engine import Engine


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, the folder of weights and the Hub's cache: one folder without a file."""
    monkeypatch.chdir(tmp_path)
    for name in ("MINIBERT_WEIGHTS", "HF_HUB_CACHE"):
        monkeypatch.setenv(name, str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def classifier(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    train(*labelled(), model=str(checkpoint), folds=0).save(folder)
    return folder


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a command in this process, with bytes as standard input: status, standard output, standard error."""

    def call(*argv, stdin=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            status = main.main([str(argument) for argument in argv])
        except SystemExit as end:
            status = int(end.code or 0)
        return status, *capsys.readouterr()

    return call


def complaint(result: Any, status: int = 2) -> str:
    """The one line on standard error of a command that failed."""
    assert result[0] == status, result
    assert re.fullmatch(r"minibert: error: [^\n]+\n", result[2])
    return result[2]


def printed(result: Any) -> str:
    """The report of a command that succeeded, on one line."""
    assert (result[0], result[2]) == (0, ""), result
    return " ".join(result[1].split())


def figures(result: Any) -> Any:
    """The JSON object on the last line of a command that succeeded."""
    return json.loads(result[1].splitlines()[-1]) if printed(result) else None


# -- the frame


HEAVY = ("torch", "sklearn", "scipy", "numpy", "pandas", "pyarrow", "tokenizers", "huggingface_hub", "transformers")
ALL_HELP = f"""
import sys
from minibert.cli.main import COMMANDS, parser
for name in COMMANDS:
    parser(name.split()).format_help()  # which adds the options of this command
    print(name, *(module for module in {HEAVY} if module in sys.modules), sep=",")
"""


def test_the_help_of_no_command_imports_anything_heavy():
    call = subprocess.run([sys.executable, "-c", ALL_HELP], capture_output=True, text=True, check=True)
    assert call.stdout.splitlines() == list(main.COMMANDS)


def test_python_m_minibert_is_the_same_command():
    call = subprocess.run([sys.executable, "-m", "minibert", "--version"], capture_output=True, text=True, check=True)
    assert call.stdout == f"minibert {minibert.__version__}\n"


WRONG = """
                                                               | COMMAND
dance                                                          | there is no command dance
classify                                                       | minibert classify --help
demo --rows many                                               | invalid int value
demo --rows 0                                                  | rows is 0
demo --data no/such.tsv                                        | no/such.tsv: No such file
demo --text review                                             | --text and --label are columns of --data, which is not
embed no/such.txt --out x.npy                                  | no/such.txt: No such file or directory
embed caf\udce9.txt --out x.npy                                | caf\\udce9.txt: No such file or directory
embed - --out x.txt                                            | must be a file that ends in .npy
embed - --out no/such/x.npy                                    | there is no folder no/such
embed - --out x.npy --model distilbert-base-uncasd             | did you mean distilbert-base-uncased
embed - --out x.npy --layers=a                                 | invalid integers value: 'a'
embed - --out x.npy --pooling best                             | pooling is 'best'; choose from cls
embed - --out x.npy --dtype float64                            | dtype is 'float64'; choose from float32, float16
embed - --out x.npy --format xml                               | --format is 'xml'; choose from txt, tsv
embed - --out x.npy --missing drop                             | missing is 'drop', and there is a vector for each row
embed data.xlsx --out x.npy                                    | data.xlsx ends in .xlsx,
classify train no/such.tsv --out x                             | no/such.tsv: No such file
classify train x.tsv --out THIS_FILE                           | is a file, not a folder; name another --out
classify predict no/such                                       | there is no folder no/such
classify predict x text --file x.txt                           | give either texts or --file
classify predict x --text review --delimiter ; --missing empty | --text, --delimiter, --missing is about --file
classify evaluate no/such no/such.tsv                          | there is no folder no/such
inspect no/such                                                | there is no folder no/such
inspect bert-base-uncased                                      | `minibert download bert-base-uncased` fetches it
"""


@pytest.mark.parametrize("request_and_message", WRONG.strip("\n").splitlines())
def test_a_wrong_request_is_answered_in_one_line_with_status_2(run, request_and_message, empty):
    request, message = request_and_message.split("|")
    argv = request.replace("THIS_FILE", __file__).split()
    assert message.strip() in complaint(run(*argv, stdin=b"text\n"))
    assert list(empty.iterdir()) == []


@pytest.mark.usefixtures("empty")
def test_a_download_without_a_network_has_status_1(run):
    assert "HF_HUB_OFFLINE" in complaint(run("download", "bert-base-uncased"), status=1)


@pytest.mark.parametrize(
    "command_and_package",
    """
predict no/such text --out out.parquet          | pyarrow
embed no/such/*.txt --out out --engine ray      | ray
export no/such --out model.onnx                 | onnxscript
trace text --png a.png --model all-MiniLM-L6-v2 | matplotlib
parity                                          | transformers
bench                                           | transformers
bench --train                                   | accelerate
serve                                           | uvicorn
""".strip().splitlines(),
)
def test_a_command_without_a_package_says_what_to_install_before_anything_is_opened(
    run, command_and_package, monkeypatch
):
    *argv, _, package = command_and_package.split()
    monkeypatch.delitem(sys.modules, "minibert.serving.app", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    assert re.search(f"needs {package}: .*pip install", complaint(run(*argv), 1))


def test_a_list_that_begins_with_a_minus_belongs_to_the_option_before_it(run):
    assert main.parse(["embed", "x", "--out", "y", "--layers", "-4,-1"]).layers == (-4, -1)
    assert main.parse(["embed", "x", "--out", "y", "--layers", "-1", "--layers=-4"]).layers == (-4,)
    traced = main.parse(["trace", "x", "--layers", "0,1", "--heads", "-2,1"])
    assert (traced.layers, traced.heads) == ((0, 1), (-2, 1))
    assert main.parse(["predict", "x", "--", "-4,-1"]).texts == ["-4,-1"]
    assert "rounds is -1" in run("bench", "--rounds", "-1")[2]


def test_what_goes_wrong_in_the_work_has_its_own_status(run, tmp_path, checkpoint, monkeypatch):
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(np, "savez", Mock(side_effect=full))
    result = run("embed", "-", "--out", tmp_path / "x.npy", "--model", checkpoint, stdin=b"good\n")
    assert complaint(result, 1) == f"minibert: error: {tmp_path}/x.npy.parts/part-0.npz: No space left on device\n"
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(hub, "locate_locally", Mock(side_effect=KeyError("a bug")))
    with pytest.raises(KeyError):  # a mistake in the program is not reported as a wrong request
        run("download", "bert-base-uncased")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_command_with_one_line_and_the_status_of_the_signal(number, run, monkeypatch):
    usual = signal.getsignal(number)
    monkeypatch.setattr(hub, "locate_locally", lambda name: signal.raise_signal(number))
    assert run("download", "bert-base-uncased") == (128 + number, "", "minibert: interrupted: nothing is kept\n")
    assert signal.getsignal(number) is usual


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_inside_of_exec_ends_the_process_with_the_same_status(number, tmp_path):
    code = f"main.parser = lambda argv: exec('import os; os.kill(os.getpid(), {number:d})'); sys.exit(main.main([]))"
    (tmp_path / "stopped.py").write_text(f"import sys\nfrom minibert.cli import main\n{code}\n")
    call = subprocess.run([sys.executable, "-m", "stopped"], cwd=tmp_path, capture_output=True, text=True)
    assert (call.returncode, call.stderr) == (128 + number, "minibert: interrupted: nothing is kept\n")


def test_an_interrupted_training_of_a_classifier_says_that_its_features_are_kept(
    run, tmp_path, checkpoint, monkeypatch
):
    train = ["classify", "train", write_tsv(tmp_path / "train.tsv"), "--model", checkpoint, "--out", tmp_path / "made"]
    monkeypatch.setattr("minibert.prediction.frozen.new_head", Mock(side_effect=KeyboardInterrupt))
    where = tmp_path / "made.features"
    line = f"minibert: interrupted: the features of some texts are kept in {where}; the same command continues\n"
    assert run(*train) == (130, "", line)
    monkeypatch.undo()
    monkeypatch.setattr(Engine, "vectors", None)  # computing would fail
    printed(run(*train))


@pytest.mark.filterwarnings("default")
def test_a_warning_is_one_plain_line(run, tmp_path, checkpoint):
    text = b"good film " * 40
    status, _, err = run("embed", "-", "--out", tmp_path / "x.npy", "--model", checkpoint, stdin=text)
    assert status == 0
    assert re.fullmatch(r"minibert: warning: 1 of 1 text .* 20 tokens[^\n]*\n", err)


# -- embed


def test_embed_writes_a_vector_for_each_line(run, tmp_path, checkpoint):
    (tmp_path / "in.txt").write_bytes(b"\xef\xbb\xbfgood film\r\n\nbad film")
    out = tmp_path / "x.npy"
    argv = ["embed", tmp_path / "in.txt", "--out", out, "--model", checkpoint]
    found = figures(run(*argv, "--pooling", "mean", "--layers", "-2,-1", "--json"))
    assert found.pop("seconds") > 0
    assert found.pop("kernels").startswith("float32 on cpu")
    assert found == {
        "out": str(out),
        "shape": [3, 48],
        "dtype": "float32",
        "rows": 3,
        "resumed_rows": 0,
        "columns": None,
        "tokens": 10,
        "truncated": 0,
        "windowed": 0,
        "windows": 0,
        "description": "pooling mean, at most 20 tokens, computed in float32 on cpu",
        "cosine": None,  # of int8 alone
    }
    expected = minibert.embed(["good film", "", "bad film"], str(checkpoint), pooling="mean", layers=(-2, -1))
    np.testing.assert_array_equal(np.load(out), expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "x.npy", "x.npy.json"]


def test_embed_says_which_column_it_read(run, tmp_path, checkpoint):
    (tmp_path / "kunden.csv").write_text("Kunde,Text,Note\nA,good film,1\nB,bad film,2\n")
    (tmp_path / "pairs.csv").write_text("question,answer\ngood film,bad film\n")
    for argv, said in (
        (["kunden.csv"], "x.npy: (2, 24) float32, column 'Text';"),
        (["pairs.csv", "--text", "question", "--pair", "answer"], "(1, 24) float32, columns 'question' and 'answer';"),
    ):
        argv = ["embed", tmp_path / argv[0], *argv[1:], "--out", tmp_path / "x.npy", "--model", checkpoint]
        assert said in printed(run(*argv, "--overwrite"))


# -- classify


def test_train_evaluate_and_predict_follow_each_other(run, tmp_path, checkpoint):
    data, folder = write_tsv(tmp_path / "train.tsv"), tmp_path / "classifier"
    train = ["classify", "train", data, "--out", folder, "--model", checkpoint]
    result = run(*train, "--grid", "0.1,1", "--folds", 3, "--json")
    assert [score["C"] for score in figures(result)["scores"]] == [0.1, 1.0]
    assert "24 rows (12 neg, 12 pos)" in printed(result)
    found = figures(run("classify", "evaluate", folder, data, "--json"))
    assert (found["rows"], np.sum(found["confusion"])) == (24, 24)
    found = figures(run("classify", "predict", folder, "the good film", "--json"))
    assert found["predictions"][0]["text"] == "the good film"


def test_every_command_has_help_and_json_and_those_that_read_tables_the_options_for_them(run):
    helps = {name: printed(run(*name.split(), "--help")) for name in main.COMMANDS}
    assert all("--json" in text for text in helps.values())
    having = {
        option: {name for name, text in helps.items() if option in text} for option in ("--delimiter", "--encoding")
    }
    classify = {name for name in helps if "classify" in name}
    assert having["--delimiter"] >= {"embed", "demo", "vocab", "distill", "finetune mask"} | classify
    assert having["--encoding"] == having["--delimiter"] | {"finetune tag", "finetune choose"}


def test_train_keeps_its_features_beside_the_classifier_for_another_grid(run, tmp_path, checkpoint, monkeypatch):
    train = ["classify", "train", write_tsv(tmp_path / "train.tsv"), "--model", checkpoint, "--folds", 0]
    text = printed(run(*train, "--out", tmp_path / "one"))
    assert f"in {tmp_path}/one.features, which makes another --grid quick and may be removed" in text
    monkeypatch.setattr(Engine, "vectors", None)  # computing would fail
    printed(run(*train, "--out", tmp_path / "one", "--overwrite"))
    printed(run(*train, "--out", tmp_path / "two", "--cache", tmp_path / "one.features"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "one.features", "train.tsv", "two"]


def test_train_takes_vectors_that_embed_has_written(run, tmp_path, checkpoint):
    data, vectors = write_tsv(tmp_path / "train.tsv"), tmp_path / "vectors.npy"
    settings = ["--model", checkpoint, "--pooling", "mean"]
    printed(run("embed", data, "--column", 1, "--out", vectors, *settings))
    train = ["classify", "train", data, "--out", tmp_path / "made", "--features", vectors, "--folds", 0]
    assert f"in {vectors}" in printed(run(*train, *settings))
    assert not (tmp_path / "made.features").exists()
    assert "are not made from these texts" in complaint(run(*train, "--overwrite", "--model", checkpoint))
    vectors.write_bytes(b"no matrix")
    message = f"--features is {vectors}, which is not a file of `minibert embed`"
    assert message in complaint(run(*train, "--overwrite", *settings))


def test_predict_as_a_filter_keeps_every_line_in_its_place(run, classifier):
    texts = [["good film", "", "  bad\tmeal ", "the", ""][row % 5] + " " * (row // 5) for row in range(150)]
    result = run("classify", "predict", classifier, stdin="\r\n".join(texts).encode())
    lines = [line.split("\t", 2) for line in result[1].removesuffix("\n").split("\n")]
    assert [text for _, _, text in lines] == [text.replace("\t", " ") for text in texts]
    assert [label for label, _, _ in lines] == Classifier.load(classifier).predict(texts).tolist()
    assert run("classify", "predict", classifier, "good\nfilm")[1].endswith("\tgood film\n")  # one line for a text


@pytest.mark.slow
def test_predict_answers_before_its_input_ends(classifier):
    command = [sys.executable, "-m", "minibert", "classify", "predict", str(classifier)]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE) as process:
        given, answered, errors = cast(Any, (process.stdin, process.stdout, process.stderr))
        given.write(b"good film\n" * predict.TEXTS_AT_ONCE)
        given.flush()
        assert answered.readline().endswith(b"\tgood film\n")  # would wait for ever if nothing was flushed
        answered.close()  # as `head` does
        given.write(b"bad film\n" * 3 * predict.TEXTS_AT_ONCE)
        given.close()
        assert (errors.read(), process.wait()) == (b"", 141)


# -- checkpoints


def test_download_and_inspect_report_what_is_here(run, checkpoint, minilm):
    result = run("download", checkpoint, "--json")
    assert "is here already" in printed(result)
    assert figures(result)["downloaded"] is False
    result = run("inspect", "all-MiniLM-L6-v2", "--json")
    found = figures(result)
    assert (found["equals_manifest"], found["parameters"], found["config"]["num_hidden_layers"]) == (True, 22713216, 6)
    assert found["report"]["ignored"] == {"embeddings.position_ids": "positions are counted, not stored"}
    assert set(found["report"]) == {"loaded", "ignored", "missing", "wrong_shape"}
    assert "Apache-2.0" in printed(result)


def test_inspect_without_a_model_lists_what_is_known_and_here(run, empty):
    (empty / "bert-base-uncased").mkdir()
    rows = {row["name"]: row for row in figures(run("inspect", "--json"))["checkpoints"]}
    assert list(rows) == list(hub.KNOWN)
    assert rows["all-MiniLM-L6-v2"]["available"]
    assert rows["distilbert-base-uncased"]["origin"] is None
    assert rows["bert-base-uncased"]["origin"].startswith("damaged: ")
