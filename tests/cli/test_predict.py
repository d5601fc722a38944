"""`minibert predict` and `minibert evaluate`: each option is honoured or refused for each kind of folder."""

import csv
import gzip
import importlib.util
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.kinds import KINDS, write_kinds
from support.words import labelled

import minibert
from minibert.cli import predict
from minibert.cli.main import main
from minibert.prediction.frozen import Classifier
from minibert.prediction.reader import open_reader
from minibert.tables.reading import Table
from minibert.vectors.features import MEMORY

pytestmark = [
    pytest.mark.filterwarnings("ignore:all .* texts were predicted"),
]
ENDINGS = [
    ".tsv",
    ".csv",
    ".jsonl",
    pytest.param(".parquet", marks=pytest.mark.skipif(not importlib.util.find_spec("pyarrow"), reason="needs pyarrow")),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_kinds(tmp_path_factory.mktemp("folders"))


TEXTS: list[dict[str, Any]] = [{"q": "the [MASK] film, very good"}, {"q": "a dull [MASK]"}]
ROWS: dict[str, list[dict[str, Any]]] = {
    "choose": [{"question": "the film", "choices": ["good", "bad"]}, {"question": "a play", "choices": ["dull", "x"]}],
    "answer": [{"q": "the film", "p": "a very good film"}, {"q": "the book", "p": "the dull book, the play"}],
}


def rows_for(kind: str) -> list[dict[str, Any]]:
    """The rows of a table for this kind of model; `Größe (cm)` is one more column."""
    return [{"Größe (cm)": number, **row} for number, row in enumerate(ROWS.get(kind, TEXTS), 7)]


def columns_for(kind: str) -> list[str]:
    """The options that name the columns."""
    return {"choose": [], "answer": ["--text", "q", "--pair", "p"]}.get(kind, ["--text", "q"])


def expected_for(kind: str, folder: Path) -> list[dict[str, Any]]:
    """What minibert.predict says of the rows."""
    rows = rows_for(kind)
    if kind == "choose":
        return minibert.predict(folder, [json.dumps(row) for row in rows])
    return minibert.predict(
        folder, [row["q"] for row in rows], [row["p"] for row in rows] if kind == "answer" else None
    )


def write_table(path: Path, rows: list[dict[str, Any]], delimiter: str = ",", encoding: str = "utf-8") -> Path:
    """Rows as a .jsonl, or with a delimiter."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path
    pd.DataFrame(rows).to_csv(path, sep=delimiter, encoding=encoding, index=False)
    return path


@pytest.mark.filterwarnings("default::minibert.text.tokenized.TruncationWarning")
@pytest.mark.parametrize("kind", ["frozen", "tuned"])
def test_predict_and_evaluate_warn_once_of_all_texts_that_were_cut(kind, home, tmp_path, capsys):
    long = [f"the film {'very ' * (200 + number)}good" for number in (0, 1)]
    texts = [long[0], *["a dull play"] * 70, long[1]]  # in two portions
    (tmp_path / "texts.tsv").write_text("".join(f"{text}\tpos\n" for text in texts))
    limit = 20 if kind == "tuned" else 120
    for command in (
        ["predict", str(home / kind), "--file", str(tmp_path / "texts.tsv"), "--text", "1"],
        ["evaluate", str(home / kind), str(tmp_path / "texts.tsv")],
    ):
        MEMORY.rows.clear()  # texts whose vectors are kept are not tokenized again
        assert main(command) == 0
        found = [line for line in capsys.readouterr().err.splitlines() if "tokens" in line]
        start = f"minibert: warning: 2 of 72 texts are longer than {limit} tokens (the longest has 206)"
        assert len(found) == 1 and found[0].startswith(start)


def test_an_empty_file_is_refused_and_nothing_is_written(home, run, tmp_path):
    for name, content in (("a.txt", ""), ("b.csv", "text\n")):
        (tmp_path / name).write_text(content)
        error = run("predict", home / "tag", "--file", tmp_path / name, "--out", tmp_path / "out.tsv", status=2)
        assert name in error and error.count("\n") == 1
    assert "standard input" in run("predict", home / "tag", status=2)
    assert {path.name for path in tmp_path.iterdir()} == {"a.txt", "b.csv"}


def test_a_table_that_another_process_writes_meanwhile_is_kept(home, run, tmp_path, monkeypatch):
    out, answers_of = tmp_path / "out.tsv", predict.answers_of

    def meanwhile(*given):
        out.write_text("theirs")
        return answers_of(*given)

    monkeypatch.setattr(predict, "answers_of", meanwhile)
    assert "out.tsv" in run("predict", home / "frozen", "a text", "--out", out, status=2)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"out.tsv": "theirs"}


# -- predict: each option for each kind


@pytest.mark.parametrize("kind", KINDS)
def test_file_and_out_and_json_keep_all_columns_beside_what_predict_says(kind, home, run, tmp_path):
    data = write_table(tmp_path / "in.jsonl", rows_for(kind))
    argv = ["predict", home / kind, "--file", data, *columns_for(kind)]
    rows = zip(expected_for(kind, home / kind), rows_for(kind), strict=True)
    expected = json.loads(json.dumps([prediction | prefixed(prediction, row) for prediction, row in rows]))
    assert json.loads(run(*argv, "--json").splitlines()[-1])["predictions"] == expected
    run(*argv, "--out", tmp_path / "out.jsonl")
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == expected


def prefixed(prediction: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    return {f"{name}_input" if name in prediction else name: value for name, value in row.items()}


@pytest.mark.filterwarnings("ignore:.* 1 of 3 rows have no .* and are left out")
@pytest.mark.parametrize("kind", ["frozen", "tuned", "classify", "tag", "answer"])
def test_format_delimiter_encoding_and_missing_are_about_the_file_of_every_kind(kind, home, run, tmp_path):
    data = write_table(tmp_path / "in.dat", rows_for(kind), ";", "cp1252")
    argv = ["predict", home / kind, "--file", data, *columns_for(kind)]
    assert "ends in .dat," in run(*argv, status=2)
    assert "UTF-8" in run(*argv, "--format", "csv", status=2)
    options = ["--format", "csv", "--delimiter", ";", "--encoding", "cp1252"]
    run(*argv, *options, "--out", tmp_path / "out.jsonl")
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["Größe (cm)"] for row in found] == ["7", "8"]
    whole = run(*argv, *options)
    column = "p" if kind == "answer" else "q"
    write_table(data, [*rows_for(kind), rows_for(kind)[0] | {column: ""}], ";", "cp1252")
    assert "--missing empty" in run(*argv, *options, status=2)
    assert len(run(*argv, *options, "--missing", "empty")) > len(whole)
    assert run(*argv, *options, "--missing", "drop") == whole


def test_model_and_pretokenized_are_honoured_or_refused(home, run):
    frozen, tag = (["predict", home / kind, "the film, very good"] for kind in ("frozen", "tag"))
    assert run(*frozen, "--model", home / "encoder") == run(*frozen)
    assert "expected" in run(*frozen, "--model", home / "classify", status=2)  # other weights
    assert "holds its own model; leave it out" in run(*tag, "--model", home / "encoder", status=2)
    assert "film\t" in run(*tag) and "film,\t" in run(*tag, "--pretokenized")
    for kind in set(KINDS) - {"tag"}:
        assert "--pretokenized" in run("predict", home / kind, "a\tb", "--pretokenized", status=2)


@pytest.mark.parametrize("kind", KINDS)
def test_device_and_batch_tokens_reach_the_model(kind, home, run):
    reader = open_reader(home / kind, device="cpu", batch_tokens=7)
    tokens = reader.features.batch_tokens if isinstance(reader, Classifier) else reader.batch_tokens
    assert tokens == 7
    for option, message in (
        ("--device=moon", "moon"),
        ("--batch-tokens=0", "--batch-tokens is 0; it must be at least 1"),
    ):
        assert message in run("predict", home / kind, "a text", option, status=2)


@pytest.mark.parametrize("texts", [["a film"], [*["a [MASK]"] * 63, "a film"], [*["a [MASK]"] * 70, "a film"]])
def test_the_row_in_an_error_counts_all_rows_of_a_file(texts, home, run, tmp_path):
    (tmp_path / "in.txt").write_text("\n".join(texts))
    message = run("predict", home / "mask", "--file", tmp_path / "in.txt", status=2)
    assert f"row {len(texts) - 1} has 0 [MASK]" in message


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_are_asked_for_or_refused(kind, home, run, tmp_path):
    rows = [{"question": "the film", "text": "the [MASK]", "second": "a film", "choices": ["a", "b"]}]
    argv = ["predict", home / kind, "--file", write_table(tmp_path / "in.jsonl", rows)]
    if kind == "answer":
        assert "--pair" in run(*argv, status=2)
        assert "row 0" in run("predict", home / kind, "one text", status=2)
        assert run("predict", home / kind, "the film\ta good film").endswith("\tthe film\n")
    elif kind in ("tuned", "classify"):  # it may have been trained on either
        assert run(*argv, "--pair", "second").endswith("\tthe [MASK]\ta film\n")
        assert run("predict", home / kind, "the film\ta good film").endswith("\tthe film\ta good film\n")
    else:
        assert "without --pair" in run(*argv, "--pair", "second", status=2)


def test_predict_reads_the_files_of_its_task(home, run, tmp_path):
    questions = [{"id": "a", "question": "the film", "context": "a very good film"}, {"question": "x", "context": "a"}]
    first, second = (
        one["answer"] for one in minibert.predict(home / "answer", ["the film", "x"], ["a very good film", "a"])
    )
    qas = [{**questions[0], "answers": []}, {**questions[1], "is_impossible": True, "answers": []}]
    squad = {"data": [{"paragraphs": [{"context": one["context"], "qas": [one]} for one in qas]}]}
    (tmp_path / "squad.json").write_text(json.dumps(squad))
    for data in (tmp_path / "squad.json", write_table(tmp_path / "a.csv", questions)):
        argv = ["predict", home / "answer", "--file", data]
        assert [line.split("\t")[0] for line in run(*argv).splitlines()] == [first, second]
    run("predict", home / "answer", "--file", tmp_path / "squad.json", "--out", tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        assert [(row["id"], row["question"], row["answer"]) for row in csv.DictReader(file)] == [
            ("a", "the film", first),
            ("", "x", second),
        ]
    question = json.dumps({"question": "the film", "choices": ["good", "bad"]})
    assert run("predict", home / "choose", stdin=f"{question}\n".encode())
    (tmp_path / "swag.dat").write_text("sent1,sent2,ending0,ending1\nthe film,it,is good,is bad\n")
    argv = ["predict", home / "choose", "--file", tmp_path / "swag.dat", "--format", "csv"]
    assert "it is" in run(*argv)
    assert "--pair" in run(*argv, "--text", "sent1", status=2)


def test_predict_reads_the_words_of_a_conll_file_tagged_or_not(home, run, tmp_path):
    (tmp_path / "a.conll").write_text("film\tB-thing\n,\tO\nvery-good\tO\n\nplay\tO\n")
    (tmp_path / "b.iob2.gz").write_bytes(gzip.compress(b"# x\nfilm\n,\nvery-good\n\nplay\n"))
    argv = ["predict", home / "tag", "--file", tmp_path / "a.conll"]
    lines = run(*argv).splitlines()
    assert [line.split("\t")[0] for line in lines] == ["film", ",", "very-good", "", "play", ""]
    assert run("predict", home / "tag", "--file", tmp_path / "b.iob2.gz").splitlines() == lines
    found = json.loads(run(*argv, "--json").splitlines()[-1])["predictions"]
    assert [one["words"] for one in found] == [["film", ",", "very-good"], ["play"]]
    text = "film , very-good"
    assert all(text[one["start"] : one["end"]] == one["text"] for one in found[0]["entities"])


@pytest.mark.parametrize("kind", ["frozen", "classify", "tag"])
@pytest.mark.parametrize(
    ("stdin", "format"), [(b"good film\tLABEL_0\nbad\tfilm\n", "tsv"), (b'{"text": "a"}\n', "jsonl")]
)
def test_a_table_on_standard_input_is_refused_with_its_format(kind, stdin, format, home, run):
    for argv in ([], ["--file", "-"]):
        assert f"--format {format}, " in run("predict", home / kind, *argv, status=2, stdin=stdin)
    argv = ["predict", home / kind, "--file", "-", "--format"]
    assert run(*argv, "txt", stdin=b"good\tfilm\n")
    assert run(*argv, format, "--text", "1" if format == "tsv" else "text", stdin=stdin)


def test_texts_may_stand_behind_an_option_and_between_two(home, run):
    expected = run("predict", home / "frozen", "a film", "a book", "--device", "cpu")
    assert expected == run("predict", home / "frozen", "--device", "cpu", "a film", "a book")
    assert expected == run("predict", home / "frozen", "a film", "--device", "cpu", "a book")
    with pytest.raises(SystemExit):
        run("predict", home / "frozen", "a film", "--device", "cpu", "--colour", "red")
    with pytest.raises(SystemExit):
        run("evaluate", home / "frozen", "a.tsv", "--device", "cpu", "b.tsv")


# -- predict --out


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_ending_decides_the_format_and_all_columns_are_there(ending, home, run, tmp_path, monkeypatch):
    monkeypatch.setattr(predict, "TEXTS_AT_ONCE", 2)
    rows = [{"label_input": n, "label": "x", "text": f"the {n} film", "note ü": None} for n in range(5)]
    data, out = write_table(tmp_path / "in.jsonl", rows), tmp_path / f"out{ending}"
    run("predict", home / "frozen", "--file", data, "--out", out)
    with Table(out, [], whole=True) as table:
        found = [record for _, record in table.records()]
    expected = minibert.predict(home / "frozen", [row["text"] for row in rows])
    names = [*expected[0], "label_input", "label_input_input", "text", "note ü"]
    assert [list(row) for row in found] == [names] * 5
    for row, given, one in zip(found, rows, expected, strict=True):
        assert float(row["probability"]) == pytest.approx(one["probability"], abs=1e-6)  # other rows in the batch
        kept = row["label"], int(row["label_input"]), row["label_input_input"], row["text"], row["note ü"] or None
        assert kept == (one["label"], *given.values())
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl", out.name}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *((name, "must be a file that ends in .tsv, .csv, .jsonl, .parquet") for name in ("out.xlsx", "a", "a.csv.gz")),
        ("no/such/a.csv", "no/such"),
    ],
)
def test_a_table_that_cannot_be_written_is_refused_before_the_model_is_opened(name, message, run):
    assert message in run("predict", "no/such", "a text", "--out", name, status=2)


def test_columns_that_cannot_be_kept_apart_are_refused(home, run, tmp_path):
    argv = ["predict", home / "frozen", "--out", tmp_path / "out.csv", "--file"]
    (tmp_path / "twice.csv").write_text("id,text,id\n1,good,2\n")
    message = "has more than one column 'id', and all are kept; rename one"
    assert message in run(*argv, tmp_path / "twice.csv", status=2)
    assert not (tmp_path / "out.csv").exists()


# -- evaluate


def test_evaluate_and_predict_remember_the_columns_of_the_training_data(home, run, tmp_path):
    texts, labels = labelled()
    rows = [{"id": 1, "Größe": a, "b": b, "kind": c} for a, b, c in zip(texts, texts[::-1], labels, strict=True)]
    columns = ["--text", "Größe", "--pair", "b", "--label", "kind", "--delimiter", ";", "--encoding", "cp1252"]
    data = write_table(tmp_path / "train.csv", rows, ";", "cp1252")
    model = ["--model", home / "encoder"]
    out = run("classify", "train", data, *columns, "--out", tmp_path / "frozen", *model, "--folds", 0)
    assert "0.5000, the accuracy of always saying 'pos', the majority class" in " ".join(out.split())
    run("finetune", "classify", data, *columns, "--out", tmp_path / "tuned", *model, "--epochs", 2)
    others = write_table(tmp_path / "dev.jsonl", rows)  # no delimiter, UTF-8
    for name in ("frozen", "tuned"):
        assert "24 rows" in run("evaluate", tmp_path / name, data)
        assert "24 rows" in run("evaluate", tmp_path / name, others)
        assert "'x'" in run("evaluate", tmp_path / name, data, "--text", "x", status=2)
        lines = run("predict", tmp_path / name, "--file", data).splitlines()
        assert [line.split("\t")[2:] for line in lines] == [[row["Größe"], row["b"]] for row in rows]
        assert run("predict", tmp_path / name, stdin=b"the film\ta book\n").endswith("\tthe film\ta book\n")
        assert "row 1" in run("predict", tmp_path / name, "a\tb", "c", status=2)


def test_a_file_without_columns_is_read_by_a_model_that_remembers_some(home, run, tmp_path):
    (tmp_path / "plain.txt").write_text("good film\n")
    assert run("predict", home / "tuned", "--file", tmp_path / "plain.txt").endswith("\tgood film\n")


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        ("tag", "text"),
        ("answer", "pair"),
        ("choose", "delimiter"),
        ("mask", "label"),
        ("classify", "columns"),
        ("answer", "tag_names"),
    ],
)
def test_evaluate_refuses_options_that_files_of_the_task_do_not_have(kind, option, home, run):
    message = f"files of the task '{kind}' have no {option} to choose"
    assert message in run("evaluate", home / kind, "a.txt", f"--{option.replace('_', '-')}", ";", status=2)


def test_evaluate_measures_each_task_of_transformers(home, run, tmp_path):
    files = {
        "classify": ("a.tsv", "the good film\tLABEL_0\na dull play\tLABEL_1\n"),
        "tag": ("a.conll", "the\tO\nfilm\tB-thing\n"),
        "choose": ("a.jsonl", '{"question": "the", "choices": ["good", "bad"], "label": 0}\n'),
        "mask": ("a.txt", "the good film\na dull play\n" * 20),
        "answer": (
            "a.json",
            '{"data": [{"paragraphs": [{"context": "a good film", "qas": [{"question": "the", "answers": '
            '[{"text": "film", "answer_start": 7}]}]}]}]}',
        ),
    }
    for kind, (name, content) in files.items():
        (tmp_path / name).write_text(content)
        figures = json.loads(run("evaluate", home / kind, tmp_path / name, "--json").splitlines()[-1])
        assert {"f1", "accuracy", "perplexity"} & figures.keys()
    table = write_table(tmp_path / "mask.csv", [{"id": 1, "body": "the good film very dull"}] * 20)
    assert "sentence or text" in run("evaluate", home / "mask", table, status=2)
    run("evaluate", home / "mask", table, "--text", "body")


def test_evaluate_reads_other_columns_and_numbers_for_tags_and_says_so(home, run, tmp_path):
    (tmp_path / "a.conll").write_text("1 the x O y\n2 film x B-thing y\n")
    found = run("evaluate", home / "tag", tmp_path / "a.conll", "--columns", "2,-2")
    assert "1 " in found and "2 words have the right tag" in " ".join(found.split())
    rows = [{"tokens": ["the", "film"], "ner_tags": [0, 1]}]
    argv = ["evaluate", home / "tag", write_table(tmp_path / "a.jsonl", rows)]
    assert "'O'" in run(*argv, status=2)
    assert "2 words" in " ".join(run(*argv, "--tag-names", "O,B-thing").split())
    (tmp_path / "b.conll").write_text("# x\nthe O\nfilm B-thing\n")
    assert "note" in run("evaluate", home / "tag", tmp_path / "b.conll")
