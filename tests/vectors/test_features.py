"""TextFeatures as a scikit-learn transformer: pipelines, grid searches, pickles, and the cache of rows."""

import pickle
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from support.words import labelled, write_words_checkpoint

import minibert
from minibert.vectors import features
from minibert.vectors.engine import Engine

NAME = "all-MiniLM-L6-v2"
TEXTS = ["a stunning film", "dull, and far too long", "", "the best soup in town", "never again", "fine"]
WORDS = ["a very good film", "the awful meal", ""]
TOLERANCE = 1e-5
connect = sqlite3.connect


# -- as an estimator


def test_the_constructor_does_nothing_and_clone_and_set_params_keep_every_setting():
    settings = {name: f"no {name}" for name in minibert.TextFeatures().get_params()}
    estimator = minibert.TextFeatures(**settings)
    assert estimator.get_params() == settings
    assert clone(estimator).get_params() == settings
    assert clone(estimator).set_params(pooling="mean").pooling == "mean"
    with pytest.raises(ValueError, match="choose from"):  # nothing is checked before fit
        estimator.set_params(pooling="mean").fit(TEXTS)


def test_transform_equals_embed_and_the_names_fit_the_width():
    estimator = minibert.TextFeatures(NAME, pooling="mean", layers=(0, -1)).fit(TEXTS)
    X = estimator.transform(TEXTS)
    assert np.abs(X - minibert.embed(TEXTS, NAME, pooling="mean", layers=(0, -1))).max() <= TOLERANCE
    assert X.dtype == np.float32 and X.shape == (len(TEXTS), estimator.n_features_out_) == (len(TEXTS), 768)
    assert list(estimator.get_feature_names_out()) == [f"textfeatures{number}" for number in range(768)]
    assert np.array_equal(estimator.fit_transform(text for text in TEXTS), X)  # a generator is read once


@pytest.mark.parametrize("column", ["text", ["text"]])
def test_it_takes_the_text_column_of_a_data_frame_in_a_column_transformer(column):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"stars": np.arange(len(TEXTS)), "text": TEXTS}, index=[5, 9, 1, 2, 3, 4])
    both = ColumnTransformer([("text", minibert.TextFeatures(NAME), column), ("stars", "passthrough", ["stars"])])
    X = both.fit_transform(frame)
    assert X.shape == (len(TEXTS), 385)
    assert np.abs(X[:, :384] - minibert.embed(TEXTS, NAME)).max() <= TOLERANCE
    assert list(both.get_feature_names_out()[[0, -1]]) == ["text__textfeatures0", "stars__stars"]
    with pytest.raises(NotFittedError):
        minibert.TextFeatures(NAME).transform(frame["text"])
    named = minibert.TextFeatures(NAME).set_output(transform="pandas").fit_transform(frame["text"])
    assert list(named.index) == list(frame.index) and named.columns[1] == "textfeatures1"


@pytest.mark.parametrize(("labels", "message"), [([1, 0], "inconsistent"), ([1, 0, 1, 0, 1, np.nan], "y contains NaN")])
def test_labels_that_do_not_fit_are_refused_before_anything_is_encoded(computed, labels, message):
    with pytest.raises(ValueError, match=message):
        make_pipeline(minibert.TextFeatures(NAME), LogisticRegression()).fit(TEXTS, labels)
    assert computed == []


# -- caches


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_grid_of_four_values_over_five_shuffled_folds_encodes_each_text_once(computed, tmp_path, on_disk):
    texts, labels = labelled(20)
    texts[19] = texts[1]  # one text stands twice
    model = make_pipeline(
        minibert.TextFeatures(NAME, cache=tmp_path if on_disk else None), LogisticRegression(max_iter=1000)
    )
    folds = KFold(5, shuffle=True, random_state=1)
    GridSearchCV(model, {"logisticregression__C": [0.01, 0.1, 1, 10]}, cv=folds, error_score="raise").fit(texts, labels)
    assert sum(computed) == 19
    X = model[0].fit_transform(texts)
    assert sum(computed) == 19
    assert np.abs(X - minibert.embed(texts, NAME)).max() <= TOLERANCE


@pytest.mark.parametrize(
    ("settings", "times"),
    [
        ({"pooling": "mean"}, 2),
        ({"layers": (-2, -1), "combine": "sum"}, 2),
        ({"layers": (6,)}, 1),
        ({"batch_tokens": 100}, 1),
    ],
)
def test_another_setting_misses_the_cache_and_another_name_of_the_same_layer_does_not(computed, settings, times):
    minibert.TextFeatures(NAME).fit_transform(TEXTS)
    minibert.TextFeatures(NAME, **settings).fit_transform(TEXTS)
    assert computed == [len(TEXTS)] * times


def test_a_changed_model_misses_the_cache_and_is_refused_by_a_pickle(computed, folder, tmp_path):
    stored = pickle.dumps(minibert.TextFeatures(folder).fit(WORDS))
    for times in (1, 2):
        for _ in range(2):
            minibert.TextFeatures(folder, cache=tmp_path / "rows").fit_transform(WORDS)
        assert computed == [len(WORDS)] * times
        write_words_checkpoint(folder, seed=times)
    with pytest.raises(ValueError, match=r"hash.*fit again"):
        pickle.loads(stored).transform(WORDS)


def test_a_refused_text_is_named_by_its_row_although_rows_before_it_are_known(computed):
    estimator = minibert.TextFeatures(NAME, long="error").fit(TEXTS)
    estimator.transform(TEXTS)
    with pytest.raises(ValueError, match=r"row 6 .*602 tokens"):
        estimator.transform([*TEXTS, "word " * 600])


@pytest.mark.parametrize(
    "damaged",
    [
        *("substr(vector, 1, 100)", "7", "NULL", "'text'"),
        "CAST(x'0000c07f' || substr(vector, 5) AS BLOB)",
        "(SELECT vector FROM rows WHERE rowid = 2)",
    ],
)
def test_a_damaged_row_on_disk_is_computed_again_and_healed(computed, tmp_path, damaged):
    """One that is too short, no bytes, another number, or another row's."""
    estimator = minibert.TextFeatures(NAME, cache=tmp_path).fit(TEXTS)
    expected = estimator.transform(TEXTS)
    with sqlite3.connect(tmp_path / "rows.sqlite") as database:
        database.execute(f"UPDATE rows SET vector = {damaged} WHERE rowid = 3")
    database.close()
    for _ in range(2):
        assert np.abs(estimator.transform(TEXTS) - expected).max() <= TOLERANCE
        assert computed == [len(TEXTS), 1]


def full(path: Path, **settings: Any) -> sqlite3.Connection:
    """A connection whose database may have as many pages as there are, and not one more."""
    database = connect(path, **settings)
    database.execute("PRAGMA max_page_count = 1")
    return database


def readonly(path: Path, **settings: Any) -> sqlite3.Connection:
    return connect(f"file:{path}?mode=ro", uri=True, **settings)


@pytest.mark.parametrize("limited", [full, readonly])
def test_a_cache_that_cannot_be_written_is_read_and_costs_one_warning(computed, tmp_path, monkeypatch, limited):
    estimator = minibert.TextFeatures(NAME, cache=tmp_path).fit(TEXTS)
    estimator.transform(TEXTS[:1])
    monkeypatch.setattr(sqlite3, "connect", limited)
    estimator.transform(TEXTS[:1])
    with pytest.warns(UserWarning, match=limited.__name__) as caught:
        X = estimator.transform(TEXTS)
    assert len(caught) == 1 and np.isfinite(X).all()
    estimator.transform(TEXTS[:1])
    assert computed == [1, len(TEXTS) - 1]


DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {  # the folder of the cache, what rows.sqlite becomes
    "no database": ("", lambda content: b"no database" * 500),
    "middle overwritten": ("", lambda content: content[:100] + b"\xff" * len(content[100:])),
    "no UTF-8 in the names": ("", lambda content: content.replace(b"TABLE rows (key", b"TABLE rows \xffkey")),
    "no folder": ("rows.sqlite/below a file", bytes),
}


@pytest.mark.parametrize(("below", "damaged"), DAMAGES.values(), ids=DAMAGES)
def test_a_cache_that_cannot_be_used_costs_one_warning_and_no_result(tmp_path, below, damaged):
    expected = minibert.TextFeatures(NAME, cache=tmp_path).fit_transform(TEXTS)
    path = tmp_path / "rows.sqlite"
    path.write_bytes(damaged(path.read_bytes()))
    with pytest.warns(UserWarning, match="cache") as caught:
        X = minibert.TextFeatures(NAME, cache=tmp_path / below).fit_transform(TEXTS)
    assert len(caught) == 1
    assert np.abs(X - expected).max() <= TOLERANCE


def test_the_cache_of_the_process_is_bounded_and_drops_the_oldest():
    rows = features.MemoryRows(limit=30)
    for keys in (b"abc", b"d"):
        rows.write({bytes([key]): bytes(10) for key in keys})
    assert set(rows.read({b"a", b"b", b"c", b"d"})) == {b"b", b"c", b"d"}


def test_an_interrupted_call_keeps_the_batches_that_were_computed(computed, tmp_path, monkeypatch):
    monkeypatch.setattr(features, "TEXTS", 2)
    estimator = minibert.TextFeatures(NAME, cache=tmp_path, missing="empty").fit(TEXTS)
    vectors = Engine.vectors

    def interrupted(self, *given, **more):
        if len(computed) == 2:
            raise KeyboardInterrupt
        return vectors(self, *given, **more)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Engine, "vectors", interrupted)
        estimator.transform(TEXTS)
    assert np.abs(estimator.transform(TEXTS) - minibert.embed(TEXTS, NAME)).max() <= TOLERANCE
    assert computed[:3] == [2, 2, 2]


@pytest.mark.slow
def test_several_processes_write_to_one_folder_and_nothing_is_lost(tmp_path):
    def rows_found_again(worker):
        store = features.DiskRows(tmp_path)
        for turn in range(20):
            store.write({f"{worker} {turn} {n}".encode(): bytes(100) for n in range(10)})
        return len(store.read({f"{worker} {turn} {n}".encode() for turn in range(20) for n in range(10)}))

    found = joblib.Parallel(n_jobs=2)(joblib.delayed(rows_found_again)(worker) for worker in range(4))
    assert found == [200] * 4
