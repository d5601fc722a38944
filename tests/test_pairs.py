"""Pairs of texts: one row each, in two segments, equal to transformers' wherever they come in."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import write_checkpoint
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from words import BAD, GOOD, OTHER, write_words_checkpoint

import minibert
from minibert import Embedder, TextFeatures, embed
from minibert.cli import main
from minibert.tasks.frozen import Classifier, evaluate, train
from minibert.tasks.saved import DETAILS, TENSORS_FILE
from minibert.text.tables import Column, Table
from minibert.text.texts import as_rows, columns_of, paired, table_of
from minibert.vectors.cache import as_bytes
from minibert.vectors.engine import Engine
from minibert.vectors.growing_file import GrowingFile
from minibert.vectors.pooling import readable_vectors
from minibert.vectors.recipe import Recipe
from minibert.vectors.stream import embed_file, embed_stream

NAME = "all-MiniLM-L6-v2"
FIRST = ["a very good film", "the awful meal", "", "book", "good good good good good good good"]
SECOND = ["the film", "a very good meal the book", "good", "", "awful awful awful awful awful awful awful awful awful"]
TOLERANCE = 1e-5
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_words_checkpoint(tmp_path_factory.mktemp("words"))


def close(got: Any, expected: Any, tolerance: float = TOLERANCE) -> None:
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)


def sentence_pairs(count: int = 64) -> tuple[list[str], list[str]]:
    """Pairs of MRPC where MINIBERT_DATA has them, else neighbours of the reviews that come with minibert."""
    mrpc = Path(os.environ.get("MINIBERT_DATA", "")) / "mrpc" / "train.tsv"
    if mrpc.is_file():
        with Table(mrpc, [Column("text", "#1 String"), Column("pair", "#2 String")]) as table:
            rows = [row for row, _ in zip(table.rows(), range(count), strict=False)]
        return [first for first, _ in rows], [second for _, second in rows]
    reviews = (Path(minibert.__file__).parent / "data" / "reviews.tsv").read_text("utf-8").splitlines()
    texts = [line.split("\t")[0] for line in reviews]
    return texts[:count], texts[1 : count + 1]


# -- equal to transformers


@pytest.mark.parametrize("max_length", [512, 40, 19, 18])
def test_ids_and_segments_are_those_of_transformers_and_the_longer_text_is_cut_first(
    minilm: Path, max_length: int
) -> None:
    transformers = pytest.importorskip("transformers")
    first, second = sentence_pairs()
    tokenizer = minibert.load_tokenizer(NAME, max_length=max_length)
    theirs = transformers.AutoTokenizer.from_pretrained(minilm)(first, second, truncation=True, max_length=max_length)
    ours = tokenizer.counted(as_rows(first, second))
    assert ours.ids == theirs["input_ids"]
    segments = [[int(at >= start) for at in range(len(row))] for row, start in zip(ours.ids, ours.second, strict=True)]
    assert segments == theirs["token_type_ids"]
    whole = [len(row) for row in minibert.load_tokenizer(NAME).counted(as_rows(first, second)).ids]
    assert (ours.account.texts, ours.account.longest) == (64, max(whole))
    assert ours.account.truncated == sum(length > max_length for length in whole)


def test_vectors_of_pairs_are_those_of_transformers(minilm: Path) -> None:
    transformers = pytest.importorskip("transformers")
    first, second = sentence_pairs()
    model = transformers.AutoModel.from_pretrained(minilm).eval()
    batch = transformers.AutoTokenizer.from_pretrained(minilm)(first, second, padding=True, return_tensors="pt")
    with torch.inference_mode():
        out = model(**batch)
        del batch["token_type_ids"]
        without_segments = model(**batch).last_hidden_state[:, 0]
    mask = batch["attention_mask"][:, :, None]
    mean = (out.last_hidden_state * mask).sum(1) / mask.sum(1)
    got = embed(first, NAME, pairs=second)
    close(got, out.last_hidden_state[:, 0])
    assert np.abs(got - without_segments.numpy()).max() > 1e-2  # a negative control
    for pooling, expected in (("mean", mean), ("pooler", out.pooler_output)):
        close(embed(first[:8], NAME, pairs=second[:8], pooling=pooling), expected[:8])


# -- the engine


@pytest.mark.parametrize("family", ["bert", "distilbert"])
@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_the_engine_equals_the_readable_path_in_small_batches_and_filled_ones(
    tmp_path: Path, family: str, pooling: str
) -> None:
    write_checkpoint(tmp_path, family)
    encoder = minibert.load(tmp_path)
    draw = np.random.default_rng(0)
    rows = [draw.integers(1, 90, size=length).tolist() for length in draw.integers(3, 20, size=60)]
    second = [int(draw.integers(2, len(row))) for row in rows]
    for batch_tokens in (1, 30, 4096):
        recipe = Recipe(pooling, (0, 1, -1), batch_tokens=batch_tokens)
        got = Engine(encoder).vectors(rows, recipe, second=second)
        close(got, readable_vectors(encoder, rows, recipe, second=second, progress=False))
    apart = np.abs(got - Engine(encoder).vectors(rows, recipe)).max()
    assert apart > 0.01 if family == "bert" else apart == 0  # DistilBERT knows no segments


def test_a_checkpoint_with_one_segment_refuses_pairs(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, type_vocab_size=1)
    engine = Engine(minibert.load(tmp_path))
    assert engine.vectors([[1, 2, 3]]).shape == (1, 24)
    with pytest.raises(ValueError, match="type_vocab_size 1, one segment; a pair needs two"):
        engine.vectors([[1, 2, 3]], second=[2])


# -- every way in


def test_every_way_to_ask_for_pairs_gives_the_same(checkpoint: Path, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    expected = embed(FIRST, checkpoint, pairs=SECOND)
    embed_stream(iter(FIRST), tmp_path / "x.npy", checkpoint, pairs=iter(SECOND), portion=2)
    frame = pandas.DataFrame({"a": FIRST, "b": SECOND}, index=[5, 5, 3, 2, 1])
    lines = [json.dumps({"b": second, "a": first}) for first, second in zip(FIRST, SECOND, strict=True)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    written = embed_file(tmp_path / "in.jsonl", tmp_path / "y.npy", checkpoint, column="a", column2="b")
    assert written.rows == 5 and written.truncated == 0
    for got in (
        [embed(first, checkpoint, pairs=second) for first, second in zip(FIRST, SECOND, strict=True)],
        Embedder(checkpoint)(tuple(FIRST), np.array(SECOND)),
        Embedder(checkpoint).prefetched(as_rows(FIRST, SECOND)),
        TextFeatures(checkpoint).fit_transform(frame),
        TextFeatures(checkpoint).fit_transform(frame.to_numpy()),
        TextFeatures(checkpoint, cache=tmp_path / "rows").fit_transform(np.array([FIRST, SECOND]).T),
        np.load(tmp_path / "x.npy"),
        np.load(tmp_path / "y.npy"),
    ):
        close(got, expected)


@pytest.mark.parametrize(
    ("texts", "pairs", "error", "message"),
    [
        (["a"], "a", TypeError, "pass two texts or two lists of texts"),
        (["a", "b"], ["a"], ValueError, "there are 2 texts and 1 pairs; each text needs one partner"),
        (["a", "b"], ["a", None], TypeError, "row 1 is None"),
        (["a"], [("a", "b")], TypeError, "row 0 is of type tuple"),
    ],
)
def test_what_is_no_column_of_pairs_is_refused(
    checkpoint: Path, texts: Any, pairs: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        embed(texts, checkpoint, pairs=pairs)


@pytest.mark.parametrize(("texts", "pairs"), [(["a"], ["a", "b"]), (["a", "b"], ["a"])])
def test_a_stream_that_ends_before_the_other_is_refused(texts: list[str], pairs: list[str]) -> None:
    with pytest.raises(ValueError, match=r"end after 1 rows, and .* go on; each text needs one partner"):
        list(paired(texts, pairs))


def test_two_columns_of_a_table_are_pairs_and_three_are_refused() -> None:
    table = table_of(as_rows(FIRST, SECOND))
    assert table.shape == (5, 2)
    assert [list(column) for column in columns_of(table)] == [FIRST, SECOND]
    assert columns_of(FIRST) == (FIRST, None)
    with pytest.raises(TypeError, match="ndarray of 3 columns; one of texts, or two of pairs are wanted"):
        TextFeatures(NAME).fit(np.array([["a", "b", "c"]]))


def test_a_pair_is_no_text_to_the_cache_and_to_the_file(checkpoint: Path, tmp_path: Path) -> None:
    rows = ["good film", ("good film", ""), ("good", "film"), ("good ", "film"), ("film", "good"), '["good", "film"]']
    assert len({as_bytes(row) for row in rows}) == len(rows)
    store = TextFeatures(checkpoint, cache=tmp_path / "rows")
    one = clone(store).fit_transform(["good film"])
    assert np.abs(clone(store).fit_transform(np.array([["good", "film"]])) - one).max() > 1e-3

    class StoppedError(Exception):
        pass

    def stopped(*given: Any) -> None:
        raise StoppedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GrowingFile, "finish", stopped)
        with pytest.raises(StoppedError):
            embed_stream(FIRST, tmp_path / "x.npy", checkpoint)
    with pytest.raises(ValueError, match="was begun with pairs False, and now it is True"):
        embed_stream(FIRST, tmp_path / "x.npy", checkpoint, pairs=SECOND)


# -- scikit-learn


def test_a_grid_search_takes_pairs_from_an_array(checkpoint: Path) -> None:
    table = table_of(as_rows([*GOOD, *BAD] * 4, OTHER * 4))
    model = make_pipeline(TextFeatures(checkpoint), LogisticRegression())
    search = GridSearchCV(model, {"logisticregression__C": [0.1, 1]}, cv=2, error_score="raise")
    assert search.fit(table, [1, 1, 1, 0, 0, 0] * 4).predict(table).shape == (24,)


@pytest.mark.parametrize(("fitted", "given"), [("pairs", "single texts"), ("single texts", "pairs")])
def test_features_that_were_fitted_on_one_refuse_the_other(checkpoint: Path, fitted: str, given: str) -> None:
    table = {"pairs": table_of(as_rows(FIRST, SECOND)), "single texts": FIRST}
    features = TextFeatures(checkpoint).fit(table[fitted])
    assert features.transform(table[fitted]).shape == (5, 24)
    assert features.transform([]).shape == (0, 24)
    with pytest.raises(ValueError, match=f"these are {given}, and it was fitted on {fitted}"):
        features.transform(table[given])


# -- the classifier


@pytest.fixture(scope="module")
def trained(checkpoint: Path) -> Classifier:
    """Whether the second text praises, whatever the first says."""
    first = [*GOOD, *BAD] * 4
    second = GOOD * 4 + BAD * 4
    return train(first, [1] * 12 + [0] * 12, pairs=second, model=str(checkpoint), pooling="mean")


def test_a_saved_classifier_remembers_that_it_reads_pairs(trained: Classifier, tmp_path: Path) -> None:
    trained.save(tmp_path)
    loaded = Classifier.load(tmp_path)
    assert loaded.pairs and trained.details()["pairs"] is True
    np.testing.assert_array_equal(loaded.predict_proba(FIRST, SECOND), trained.predict_proba(FIRST, SECOND))
    assert loaded.predict(FIRST, SECOND).tolist() == trained.predict(FIRST, SECOND).tolist()
    assert evaluate(loaded, GOOD + BAD, [1, 1, 1, 0, 0, 0], GOOD + BAD).accuracy > 0.6
    assert loaded.predict([], []).shape == (0,) and loaded.predict_proba([], []).shape == (0, 2)


def test_it_refuses_single_texts_and_one_of_single_texts_refuses_pairs(trained: Classifier, checkpoint: Path) -> None:
    for ask in (trained.predict, trained.predict_proba):
        with pytest.raises(
            ValueError, match=r"trained on pairs, and these are single texts; give second texts \(--pair, pairs=\)"
        ):
            ask(FIRST)
    single = train(GOOD + BAD, [1] * 3 + [0] * 3, model=str(checkpoint))
    assert not single.pairs
    with pytest.raises(ValueError, match="trained on single texts, and these are pairs"):
        single.predict(FIRST, SECOND)


def write_details(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what the file of a classifier says beside its numbers."""
    from safetensors import safe_open
    from safetensors.numpy import load_file, save

    with safe_open(folder / TENSORS_FILE, framework="np") as file:
        details = json.loads(file.metadata()[DETAILS])
    change(details)
    content = save(load_file(folder / TENSORS_FILE), {DETAILS: json.dumps(details)})
    (folder / TENSORS_FILE).write_bytes(content)


def test_one_that_an_earlier_minibert_saved_reads_single_texts(checkpoint: Path, tmp_path: Path) -> None:
    train(GOOD + BAD, [1] * 3 + [0] * 3, model=str(checkpoint)).save(tmp_path)

    def as_before(details: dict[str, Any]) -> None:
        for name in ("pairs", "long", "stride"):
            del details[name]
        details["truncation"] = "error"

    write_details(tmp_path, as_before)
    loaded = Classifier.load(tmp_path)
    assert not loaded.pairs and loaded.features.recipe.long == "error"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda details: details.update(pairs="yes"), 'pairs is "yes"'),
        (lambda details: details.update(pairs=1), "pairs is 1"),
        (lambda details: details.pop("long"), "it lacks long"),
        (lambda details: details.update(long="shrink"), "long is 'shrink'"),
    ],
)
def test_a_classifier_with_a_damaged_entry_is_refused(
    trained: Classifier, tmp_path: Path, change: Any, message: str
) -> None:
    trained.save(tmp_path)
    write_details(tmp_path, change)
    with pytest.raises(ValueError, match=rf"is damaged \({message}"):
        Classifier.load(tmp_path)


def test_trace_takes_apart_no_decision_on_pairs(trained: Classifier, checkpoint: Path) -> None:
    encoder, tokenizer = minibert.load(checkpoint), minibert.load_tokenizer(checkpoint)
    with pytest.raises(ValueError, match="was trained on pairs, and trace takes apart decisions on one text"):
        minibert.trace(encoder, tokenizer, "good", classifier=trained)


# -- the command line


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*given: object) -> tuple[int, str, str]:
        status = main([str(word) for word in given])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def write_table(path: Path) -> Path:
    """The pairs that `trained` learned from, in columns of other names."""
    rows = [
        f"{first},{second},{label}" for label, words in ((1, GOOD), (0, BAD)) for first in "ab" for second in words[:4]
    ]
    path.write_text("\n".join(["first,then,class", *(row.replace("a,", "book,", 1) for row in rows)]) + "\n")
    return path


def test_embed_takes_two_columns(run: Callable[..., tuple[int, str, str]], tmp_path: Path, checkpoint: Path) -> None:
    (tmp_path / "in.tsv").write_text("".join(f"7\t{a}\t{b}\n" for a, b in zip(FIRST, SECOND, strict=True)))
    out = tmp_path / "x.npy"
    columns = ("--column", 2, "--column2", 3)
    assert run("embed", tmp_path / "in.tsv", "--out", out, "--model", checkpoint, *columns)[0] == 0
    close(np.load(out), embed(FIRST, checkpoint, pairs=SECOND))
    status, _, error = run(
        "embed", tmp_path / "in.tsv", "--out", out, "--model", checkpoint, "--column", 2, "--column2", 2
    )
    assert status == 2 and "column and column2 are both the column 2" in error


def test_classify_trains_measures_and_predicts_pairs(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, folder = write_table(tmp_path / "data.csv"), tmp_path / "classifier"
    columns = ("--text", "first", "--pair", "then")
    labelled = (*columns, "--label", "class")
    status, text, error = run("classify", "train", data, "--out", folder, "--model", checkpoint, *labelled)
    assert (status, error) == (0, "") and "12 pairs (6 0, 6 1)" in " ".join(text.split())
    assert run("classify", "evaluate", folder, data, *labelled)[0] == 0
    status, _, error = run("classify", "evaluate", folder, data, "--text", "first", "--label", "class")
    assert status == 2 and "trained on pairs, and these are single texts; give second texts (--pair, pairs=)" in error

    out = tmp_path / "labels.tsv"
    assert run("classify", "predict", folder, "--file", data, *columns, "--out", out)[0] == 0
    rows = [line.split("\t") for line in out.read_text().splitlines()]
    assert rows[0] == ["label", "probability", "text", "pair"] and len(rows) == 13
    lines = "\n".join("\t".join(row[2:]) for row in rows[1:]) + "\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    status, text, _ = run("classify", "predict", folder)
    assert [line.split("\t") for line in text.splitlines()] == rows[1:]
    status, text, _ = run("classify", "predict", folder, "good\tbook", "--json")
    found = json.loads(text.splitlines()[-1])["predictions"]
    assert [(one["text"], one["pair"]) for one in found] == [("good", "book")]


@pytest.mark.parametrize(("line", "tabs"), [("good film", 0), ("good\tfilm\tbook", 2)])
def test_a_line_that_is_no_pair_is_named(
    run: Callable[..., tuple[int, str, str]], trained: Classifier, tmp_path: Path, line: str, tabs: int
) -> None:
    trained.save(tmp_path)
    status, _, error = run("classify", "predict", tmp_path, "good\tfilm", line)
    assert status == 2 and f"line 2 has {tabs} tabs, and the classifier was trained on pairs" in error
