"""The command line: reports for people, one JSON object for programs, and one line for what is wrong."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from words import labelled, write_tsv, write_words_checkpoint

import minibert
from minibert.checkpoints import hub
from minibert.cli import main as cli
from minibert.cli import predict
from minibert.vectors import parts
from minibert.vectors.engine import Engine

Run = Any


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_words_checkpoint(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="module")
def classifier(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from minibert.tasks.frozen import train

    texts, labels = labelled()
    folder = tmp_path_factory.mktemp("classifier")
    train(texts, labels, model=str(checkpoint), folds=0).save(folder)
    return folder


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in this process, with bytes as standard input: status, standard output, standard error."""

    def call(*argv: object, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            status = cli.main([str(argument) for argument in argv])
        except SystemExit as end:
            status = int(end.code or 0)
        return status, *capsys.readouterr()

    return call


def complaint(result: tuple[int, str, str], status: int = 2) -> str:
    """The one line on standard error, after checking that there is only one."""
    assert result[0] == status, result
    assert result[2].startswith("minibert: error: ")
    assert result[2].count("\n") == 1
    return result[2]


def figures(out: str) -> Any:
    """The JSON object on the last line."""
    return json.loads(out.splitlines()[-1])


# -- the frame


def test_help_and_version_import_nothing_heavy() -> None:
    code = "import sys; from minibert.cli.main import parser; parser([]).format_help(); print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "minibert.cli.main" in modules
    assert not {"torch", "sklearn", "numpy", "huggingface_hub", "transformers"} & set(modules)


def test_every_command_has_help_and_json(run: Run) -> None:
    for name in cli.COMMANDS:
        status, out, _ = run(*name.split(), "--help")
        assert status == 0
        assert "--json" in out


def test_python_m_minibert_is_the_same_command() -> None:
    call = [sys.executable, "-m", "minibert", "--version"]
    assert (
        subprocess.run(call, capture_output=True, text=True, check=True).stdout == f"minibert {minibert.__version__}\n"
    )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "COMMAND"),
        (["dance"], "invalid choice: 'dance'"),
        (["classify"], "minibert classify --help"),
        (["demo", "--rows", "many"], "invalid int value"),
        (["demo", "--rows", "0"], "rows is 0"),
        (["demo", "--data", "no/such.tsv"], "no/such.tsv: No such file"),
        (["embed", "no/such.txt", "--out", "x.npy"], "no/such.txt: No such file or directory"),
        (["embed", "-", "--out", "x.txt"], "must be a file that ends in .npy"),
        (["embed", "-", "--out", "no/such/x.npy"], "there is no folder no/such"),
        (["embed", "-", "--out", "x.npy", "--model", "distilbert-base-uncasd"], "did you mean distilbert-base-uncased"),
        (["embed", "-", "--out", "x.npy", "--layers=a"], "invalid integers value: 'a'"),
        (["embed", "-", "--out", "x.npy", "--pooling", "best"], "pooling is 'best'; choose from cls"),
        (["embed", "-", "--out", "x.npy", "--dtype", "float64"], "dtype is 'float64'; choose from float32, float16"),
        (["embed", "-", "--out", "x.npy", "--format", "xml"], "'xml'"),
        (["embed", "-", "--out", "x.npy", "--column", "a"], "standard input is read as one text"),
        (["classify", "train", "no/such.tsv", "--out", "x"], "no/such.tsv: No such file"),
        (["classify", "train", "x.tsv", "--out", __file__], "is a file, and a folder is to be written"),
        (["classify", "train", "x.tsv", "--out", "x", "--features", "a", "--cache", "b"], "are both given"),
        (["embed", "data.xlsx", "--out", "x.npy"], "data.xlsx: its format is 'xlsx'; choose from txt, tsv"),
        (["demo", "--text", "review"], "--text and --label are columns of --data, which is not given"),
        (["classify", "predict", "no/such"], "no/such has no training.json"),
        (["classify", "predict", "x", "a text", "--file", "x.txt"], "give either texts or --file"),
        (["classify", "predict", "x", "--text", "review"], "--text, --pair and --format are about --file"),
        (["classify", "evaluate", "no/such", "no/such.tsv"], "no/such has no training.json"),
        (["inspect", "no/such"], "checkpoint no/such is no folder"),
        (["inspect", "bert-base-uncased"], "`minibert download bert-base-uncased` fetches it"),
    ],
)
def test_a_wrong_request_is_answered_in_one_line_with_status_2(
    run: Run, argv: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINIBERT_WEIGHTS", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert message in complaint(run(*argv, stdin=b"text\n"))
    assert list(tmp_path.iterdir()) == []


def test_what_fails_in_the_work_has_status_1(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIBERT_WEIGHTS", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert "HF_HUB_OFFLINE is set" in complaint(run("download", "bert-base-uncased"), status=1)


def test_a_name_that_is_not_utf8_is_shown_in_the_error(run: Run) -> None:
    assert complaint(run("embed", "caf\udce9.txt", "--out", "x.npy")) == (
        "minibert: error: caf\\udce9.txt: No such file or directory\n"
    )


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["embed", "x", "--layers", "-4,-1"], ["embed", "x", "--layers=-4,-1"]),
        (["trace", "--layers", "0,1", "--heads", "-2,1"], ["trace", "--layers", "0,1", "--heads=-2,1"]),
        (["embed", "--layers", "-1", "--layers=-4", "-4,-1"], ["embed", "--layers", "-1", "--layers=-4", "-4,-1"]),
        (["predict", "--", "-4,-1"], ["predict", "--", "-4,-1"]),
        (["-4,-1", "--json"], ["-4,-1", "--json"]),
    ],
)
def test_a_list_that_begins_with_a_minus_belongs_to_the_option_before_it(argv: list[str], expected: list[str]) -> None:
    assert cli.join_negatives(argv) == expected


def test_a_full_disk_has_status_1_and_leaves_no_file(
    run: Run, tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parts.np, "save", full)
    result = run("embed", "-", "--out", tmp_path / "x.npy", "--model", checkpoint, stdin=b"good\n")
    assert (
        complaint(result, status=1) == f"minibert: error: {tmp_path}/x.npy.parts/part-0.npy: No space left on device\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_is_quiet_and_has_status_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(hub, "locate_locally", interrupt)
    assert run("download", "bert-base-uncased") == (130, "", "")


def test_a_mistake_in_the_program_is_not_taken_for_a_wrong_request(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def mistake(*args: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(hub, "locate_locally", mistake)
    with pytest.raises(KeyError):
        run("download", "bert-base-uncased")


@pytest.mark.filterwarnings("default")
def test_a_warning_is_one_plain_line(run: Run, tmp_path: Path, checkpoint: Path) -> None:
    text = b"good film " * 40
    status, _, err = run("embed", "-", "--out", tmp_path / "x.npy", "--model", checkpoint, stdin=text)
    assert status == 0
    assert err.startswith("minibert: warning: 1 of 1 texts are longer than 20 tokens")
    assert err.count("\n") == 1


# -- embed


def test_embed_writes_a_vector_for_each_line(run: Run, tmp_path: Path, checkpoint: Path) -> None:
    (tmp_path / "in.txt").write_bytes(b"\xef\xbb\xbfgood film\r\n\nbad film")
    out = tmp_path / "x.npy"
    status, text, err = run(
        "embed",
        tmp_path / "in.txt",
        "--out",
        out,
        "--model",
        checkpoint,
        "--pooling",
        "mean",
        "--layers",
        "-2,-1",
        "--json",
    )
    assert (status, err) == (0, "")
    found = figures(text)
    assert found.pop("seconds") > 0
    assert found.pop("kernels").startswith("float32 on cpu")
    assert found == {
        "out": str(out),
        "shape": [3, 48],
        "dtype": "float32",
        "rows": 3,
        "resumed_rows": 0,
        "tokens": 10,
        "truncated": 0,
        "windowed": 0,
        "windows": 0,
        "cosine": None,  # of int8 alone
    }
    expected = minibert.embed(["good film", "", "bad film"], str(checkpoint), pooling="mean", layers=(-2, -1))
    np.testing.assert_array_equal(np.load(out), expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "x.npy"]


def test_embed_reads_a_column_of_a_compressed_table_into_float16(run: Run, tmp_path: Path, checkpoint: Path) -> None:
    source, out = tmp_path / "in.csv.gz", tmp_path / "x.npy"
    source.write_bytes(gzip.compress(b'id,body\n1,"good, film"\n2,bad film\n'))
    assert "one of: 'id', 'body'" in complaint(run("embed", source, "--out", out, "--model", checkpoint))
    argv = ["embed", source, "--out", out, "--model", checkpoint, "--column", "body", "--dtype", "float16"]
    assert run(*argv)[0] == 0
    expected = minibert.embed(["good, film", "bad film"], str(checkpoint)).astype(np.float16)
    np.testing.assert_array_equal(np.load(out), expected)


# -- classify


def test_train_evaluate_and_predict_follow_each_other(run: Run, tmp_path: Path, checkpoint: Path) -> None:
    data, folder = write_tsv(tmp_path / "train.tsv"), tmp_path / "classifier"
    status, out, err = run(
        "classify", "train", data, "--out", folder, "--model", checkpoint, "--grid", "0.1,1", "--folds", 3, "--json"
    )
    assert (status, err) == (0, "")
    assert [score["C"] for score in figures(out)["scores"]] == [0.1, 1.0]
    assert "24 rows (12 neg, 12 pos)" in " ".join(out.split())
    status, out, err = run("classify", "evaluate", folder, data, "--json")
    assert (status, err) == (0, "")
    assert figures(out)["rows"] == 24
    assert np.sum(figures(out)["confusion"]) == 24
    status, out, err = run("classify", "predict", folder, "the good film", "--json")
    assert (status, err) == (0, "")
    assert figures(out)["predictions"][0]["text"] == "the good film"


def test_train_keeps_its_features_beside_the_classifier_for_another_grid(
    run: Run, tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = ["classify", "train", write_tsv(tmp_path / "train.tsv"), "--model", checkpoint, "--folds", 0]
    status, out, _ = run(*train, "--out", tmp_path / "one")
    assert status == 0
    assert f"in {tmp_path}/one.features, which makes another --grid quick and may be removed" in " ".join(out.split())
    monkeypatch.setattr(Engine, "vectors", None)  # whoever computes, fails
    assert run(*train, "--out", tmp_path / "one", "--overwrite")[0] == 0
    assert run(*train, "--out", tmp_path / "two", "--cache", tmp_path / "one.features")[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "one.features", "train.tsv", "two"]


def test_train_takes_vectors_that_embed_has_written(run: Run, tmp_path: Path, checkpoint: Path) -> None:
    data, vectors = write_tsv(tmp_path / "train.tsv"), tmp_path / "vectors.npy"
    settings = ["--model", checkpoint, "--pooling", "mean"]
    assert run("embed", data, "--column", 1, "--out", vectors, *settings)[0] == 0
    train = ["classify", "train", data, "--out", tmp_path / "made", "--features", vectors, "--folds", 0]
    assert f"in {vectors}" in " ".join(run(*train, *settings)[1].split())
    assert not (tmp_path / "made.features").exists()
    again = [*train, "--overwrite"]
    assert "the vector of row" in complaint(run(*again, "--model", checkpoint))
    assert "--features and --cache are both given" in complaint(run(*again, "--cache", tmp_path, *settings))
    vectors.write_bytes(b"no matrix")
    assert f"--features is {vectors}, which is no file of `minibert embed`" in complaint(run(*again, *settings))
    vectors.unlink()
    assert f"{vectors}: No such file" in complaint(run(*again, *settings))


def test_train_never_writes_over_what_is_no_classifier_and_over_one_when_asked(
    run: Run, tmp_path: Path, checkpoint: Path
) -> None:
    data, folder = write_tsv(tmp_path / "train.tsv"), tmp_path / "classifier"
    train = ["classify", "train", data, "--out", folder, "--model", checkpoint, "--folds", 0]
    folder.mkdir()
    assert run(*train)[0] == 0
    assert "is there already and holds classifier.safetensors, minibert.json; name another" in complaint(run(*train))
    assert run(*train, "--overwrite")[0] == 0
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("my life")
    train[4] = other
    for overwrite in ([], ["--overwrite"]):
        assert "holds thesis.tex" in complaint(run(*train, *overwrite))
    assert [path.name for path in other.iterdir()] == ["thesis.tex"]


def test_predict_as_a_filter_keeps_every_line_in_its_place(run: Run, classifier: Path) -> None:
    texts = [["good film", "", "  bad\tmeal ", "the", ""][row % 5] + " " * (row // 5) for row in range(150)]
    status, out, err = run("classify", "predict", classifier, stdin="\r\n".join(texts).encode())
    assert (status, err) == (0, "")
    lines = [line.split("\t", 2) for line in out.removesuffix("\n").split("\n")]
    assert [text for _, _, text in lines] == [text.replace("\t", " ") for text in texts]
    assert {label for label, _, _ in lines} <= {"pos", "neg"}
    from minibert.tasks.frozen import Classifier

    assert [label for label, _, _ in lines] == Classifier.load(classifier).predict(texts).tolist()


def test_predict_answers_before_its_input_ends(run: Run, classifier: Path) -> None:
    command = [sys.executable, "-m", "minibert", "classify", "predict", str(classifier)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdin.write(b"good film\n" * predict.TEXTS_AT_ONCE)
        process.stdin.flush()
        assert process.stdout.readline().endswith(b"\tgood film\n")  # would wait for ever if nothing was flushed
        process.stdout.close()  # as `head` does
        process.stdin.write(b"bad film\n" * 3 * predict.TEXTS_AT_ONCE)
        process.stdin.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


def test_a_text_of_two_lines_is_answered_on_one(run: Run, classifier: Path) -> None:
    assert run("classify", "predict", classifier, "good\nfilm")[1].endswith("\tgood film\n")


def test_predict_labels_a_file_into_a_table_that_can_be_read_back(run: Run, tmp_path: Path, classifier: Path) -> None:
    texts = ["good film", "", "  bad\tmeal\r\n", "the \\"] * 40
    data, out = tmp_path / "in.jsonl.gz", tmp_path / "labels.tsv"
    data.write_bytes(gzip.compress("".join(json.dumps({"n": 1, "review": text}) + "\n" for text in texts).encode()))
    argv = ["classify", "predict", classifier, "--file", data, "--text", "review", "--out", out]
    status, text, err = run(*argv, "--json")
    assert (status, err) == (0, "")
    counts = figures(text)["labels"]
    assert "160 rows (" in " ".join(text.split())
    from minibert.tasks.classification import Classification
    from minibert.tasks.frozen import Classifier

    rows = Classification().read(out)
    assert rows.texts == ["good film", "", "  bad meal ", "the \\"] * 40
    assert rows.labels == Classifier.load(classifier).predict(texts).tolist()
    assert counts == {label: rows.labels.count(label) for label in set(rows.labels)}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl.gz", "labels.tsv"]


def test_a_table_of_labels_appears_whole_or_not_at_all(run: Run, tmp_path: Path, classifier: Path) -> None:
    data, out = tmp_path / "in.txt", tmp_path / "labels.tsv"
    data.write_bytes(b"good film\n" * 200 + b"caf\xe9\n")
    result = run("classify", "predict", classifier, "--file", data, "--out", out)
    assert "in.txt, line 201, is not UTF-8" in complaint(result)
    assert list(tmp_path.iterdir()) == [data]


# -- checkpoints


def test_download_of_what_is_here_says_so(run: Run, checkpoint: Path) -> None:
    status, out, _ = run("download", checkpoint, "--json")
    assert status == 0
    assert "is here already" in out
    assert figures(out)["downloaded"] is False


def test_inspect_tells_sizes_identity_and_the_account_of_the_tensors(run: Run, minilm: Path) -> None:
    status, out, _ = run("inspect", "all-MiniLM-L6-v2", "--json")
    found = figures(out)
    assert status == 0
    assert found["equals_manifest"] is True
    assert found["parameters"] == 22_713_216
    assert found["config"]["num_hidden_layers"] == 6
    assert found["report"]["ignored"] == {"embeddings.position_ids": "positions are counted, not stored"}
    assert set(found["report"]) == {"loaded", "ignored", "missing", "wrong_shape"}
    assert "Apache-2.0" in out


def test_inspect_without_a_model_lists_what_is_known_and_here(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINIBERT_WEIGHTS", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "bert-base-uncased").mkdir()
    rows = {row["name"]: row for row in figures(run("inspect", "--json")[1])["checkpoints"]}
    assert list(rows) == list(hub.KNOWN)
    assert rows["all-MiniLM-L6-v2"]["available"]
    assert rows["distilbert-base-uncased"]["origin"] is None
    assert rows["bert-base-uncased"]["origin"].startswith("damaged: ")
