"""Texts to matrix: vectors that are right, bad inputs, the scikit-learn transformer and its caches."""

from __future__ import annotations

import dataclasses
import pickle
import shutil
import sqlite3
import warnings
from pathlib import Path

import joblib
import numpy as np
import pytest
import torch
from helpers import minilm_folder
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags

import minibert
from minibert import TextFeatures, embed, features
from minibert.config import Config
from minibert.model import Encoder
from minibert.tokenizer import TruncationWarning

NAME = "all-MiniLM-L6-v2"
TEXTS = ["a stunning film", "dull, and far too long", "", "the best soup in town", "never again", "fine"]
LONG = "a long and winding road " * 97  # 487 tokens
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return minibert.load(NAME)


@pytest.fixture(scope="module")
def ids() -> list[list[int]]:
    return minibert.load_tokenizer(NAME).ids([*TEXTS, LONG])


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> features.MemoryRows:
    """The cache of the process, empty."""
    monkeypatch.setattr(features, "MEMORY", features.MemoryRows())
    return features.MEMORY


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch, memory: features.MemoryRows) -> list[int]:
    """How many rows each call of the model computed."""
    calls: list[int] = []
    load_shared = features.load_shared

    def counting(*given: str) -> features.Loaded:
        loaded = load_shared(*given)

        def compute(ids: list[list[int]], **settings: object) -> features.Matrix:
            calls.append(len(ids))
            return loaded.compute(ids, **settings)

        return dataclasses.replace(loaded, compute=compute)

    monkeypatch.setattr(features, "load_shared", counting)
    return calls


@pytest.fixture
def small() -> Encoder:
    """An encoder of one layer, for what does not depend on the size."""
    torch.manual_seed(0)
    config = Config(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    return Encoder(config).eval()


@pytest.fixture
def folder(tmp_path: Path, small: Encoder) -> Path:
    """A small checkpoint that a test may change."""
    minibert.save(small, tmp_path / "checkpoint")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(minilm_folder() / name, tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def change_weights(folder: Path) -> None:
    """Flip the sign of one bias, at the end of the file."""
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 0x80]))


def vectors(encoder: Encoder, ids: list[list[int]], **settings: object) -> features.Matrix:
    chosen = {"pooling": "cls", "layers": (-1,), "combine": "concat", "batch_tokens": 4096}
    return features.readable_vectors(encoder, ids, **(chosen | settings), progress=False)


def reviews() -> tuple[list[str], list[int]]:
    path = Path(minibert.__file__).parent / "data" / "reviews.tsv"
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    return [text for text, _ in rows], [int(label) for _, label in rows]


# -- the numbers


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "pooler"])
def test_a_text_has_the_same_vector_alone_and_in_a_batch_and_beside_a_long_text(
    encoder: Encoder, ids: list[list[int]], pooling: str
) -> None:
    alone = np.concatenate([vectors(encoder, [row], pooling=pooling) for row in ids])
    assert np.abs(alone[:-1] - vectors(encoder, ids[:-1], pooling=pooling)).max() <= TOLERANCE
    beside_the_long = vectors(encoder, ids[-3:], pooling=pooling, batch_tokens=10**6)
    assert np.abs(alone[-3:] - beside_the_long).max() <= TOLERANCE


def test_a_mean_that_counts_padding_would_be_caught(
    encoder: Encoder, ids: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = vectors(encoder, ids[:1], pooling="mean")
    monkeypatch.setattr(features, "pool_tokens", lambda states, keep, pooling: states.mean(dim=1))
    beside_a_longer = vectors(encoder, ids[:2], pooling="mean")
    assert np.abs(alone - beside_a_longer[:1]).max() > 1000 * TOLERANCE


def test_padding_has_no_part_in_mean_and_max_whatever_it_holds() -> None:
    keep = torch.tensor([[[True], [True], [False]]])
    states = torch.tensor([[[1.0, -4.0], [3.0, -2.0], [torch.nan, torch.inf]]])
    assert features.pool_tokens(states, keep, "mean").tolist() == [[2.0, -3.0]]
    assert features.pool_tokens(states, keep, "max").tolist() == [[3.0, -2.0]]


def test_vectors_equal_the_output_of_transformers_pooled_by_hand() -> None:
    from transformers import AutoModel, AutoTokenizer

    texts = [*TEXTS, "a long and winding road " * 9]
    reference = AutoModel.from_pretrained(minilm_folder(), attn_implementation="eager").eval()
    batch = AutoTokenizer.from_pretrained(minilm_folder())(texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        out = reference(**batch, output_hidden_states=True)
    counts = batch.attention_mask.sum(1).tolist()

    def by_hand(layer: int, how: str) -> np.ndarray:
        rows = [states[:count] for states, count in zip(out.hidden_states[layer], counts, strict=True)]
        return torch.stack([row[0] if how == "cls" else getattr(row, how)(0) for row in rows]).numpy()

    last_two = [by_hand(-2, "mean"), by_hand(-1, "mean")]
    for expected, settings in [
        (by_hand(-1, "cls"), {}),
        (by_hand(0, "cls"), {"layers": 0}),
        (by_hand(-1, "mean"), {"pooling": "mean"}),
        (by_hand(3, "amax"), {"pooling": "max", "layers": [3]}),
        (out.pooler_output.numpy(), {"pooling": "pooler"}),
        (np.concatenate(last_two, axis=1), {"pooling": "mean", "layers": (-2, -1)}),
        (last_two[0] + last_two[1], {"pooling": "mean", "layers": (5, 6), "combine": "sum"}),
        ((last_two[0] + last_two[1]) / 2, {"pooling": "mean", "layers": (-2, 6), "combine": "mean"}),
    ]:
        X = embed(texts, NAME, **settings)
        assert X.dtype == np.float32 and X.shape == expected.shape
        assert np.abs(X - expected).max() <= TOLERANCE, settings


def test_rows_come_back_in_the_order_of_the_texts(small: Encoder) -> None:
    lengths = [int(length) for length in torch.randperm(60) + 1]
    rows = [[length] * length for length in lengths]  # the first token, and so its embedding, is the length
    X = vectors(small, rows, layers=0, batch_tokens=100)
    expected = np.concatenate([vectors(small, [row], layers=0) for row in rows])
    np.testing.assert_allclose(X, expected, atol=1e-6)
    assert np.abs(X[1:] - X[:-1]).max(axis=1).min() > 0.01  # two rows exchanged would be seen


@pytest.mark.parametrize("batch_tokens", [1, 7, 64, 10_000])
def test_a_batch_holds_at_most_its_tokens_and_every_row_stands_in_one(batch_tokens: int) -> None:
    lengths = [5, 1, 40, 5, 9, 9, 2, 33, 64, 1]
    cut = list(features.batches(lengths, batch_tokens))
    assert sorted(row for rows in cut for row in rows) == list(range(len(lengths)))
    assert all(len(rows) == 1 or len(rows) * max(lengths[row] for row in rows) <= batch_tokens for rows in cut)


def test_no_more_than_one_batch_is_computed_at_once(small: Encoder, ids: list[list[int]]) -> None:
    shapes: list[tuple[int, ...]] = []
    hook = small.embeddings.register_forward_pre_hook(lambda module, given: shapes.append(tuple(given[0].shape)))
    vectors(small, ids, batch_tokens=16)
    hook.remove()
    assert sum(rows for rows, _ in shapes) == len(ids)
    assert all(rows == 1 or rows * tokens <= 16 for rows, tokens in shapes)


def test_dropout_is_off_while_vectors_are_computed_and_every_module_keeps_its_mode(
    small: Encoder, ids: list[list[int]]
) -> None:
    expected = vectors(small, ids[:3])
    small.train()
    small.layers[0].eval()
    before = [module.training for module in small.modules()]
    assert np.array_equal(vectors(small, ids[:3]), expected)
    assert [module.training for module in small.modules()] == before
    with pytest.raises(ValueError, match="vocab_size"):
        vectors(small, [[10**6]])
    assert [module.training for module in small.modules()] == before


def test_a_row_of_ids_without_tokens_is_refused_with_its_number(encoder: Encoder) -> None:
    with pytest.raises(ValueError, match="row 1 has no tokens"):
        vectors(encoder, [[101, 102], []])


def test_out_of_memory_advises_a_smaller_batch_and_leaves_the_encoder_as_it_was(
    small: Encoder, ids: list[list[int]]
) -> None:
    small.train()

    def full(*given: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    hook = small.embeddings.register_forward_pre_hook(full)
    with pytest.raises(torch.OutOfMemoryError, match="smaller batch_tokens than 4096"):
        vectors(small, ids)
    hook.remove()
    assert small.training
    assert np.isfinite(vectors(small, ids[:2])).all()


# -- embed: what goes in


@pytest.mark.parametrize("text", ["", "   \t\n"])
def test_an_empty_text_has_the_finite_vector_of_cls_and_sep(encoder: Encoder, text: str) -> None:
    X = embed([text], NAME)
    assert np.isfinite(X).all()
    assert np.abs(X - vectors(encoder, [[101, 102]])).max() <= TOLERANCE


def test_a_bare_string_gives_one_vector() -> None:
    vector = embed("a stunning film", NAME)
    assert vector.shape == (384,)
    assert np.array_equal(vector, embed(["a stunning film"], NAME)[0])


def test_no_texts_give_no_rows_of_the_right_width_without_a_call_of_the_model(encoder: Encoder) -> None:
    hook = encoder.register_forward_pre_hook(lambda *given: pytest.fail("the model was called"))
    tokenizer = minibert.load_tokenizer(NAME)
    assert embed([], encoder, tokenizer=tokenizer).shape == (0, 384)
    assert embed([], encoder, tokenizer=tokenizer, layers=(-4, -3, -2, -1)).shape == (0, 4 * 384)
    hook.remove()
    assert TextFeatures(NAME).fit(TEXTS).transform([]).shape == (0, 384)


def test_every_container_of_texts_gives_the_same_rows_in_its_order() -> None:
    pandas = pytest.importorskip("pandas")
    texts = ["one two three", "four"]
    expected = embed(texts, NAME)
    for column in (
        tuple(texts),
        np.array(texts),
        np.array(texts, dtype=object),
        pandas.Series(texts, index=[5, 9]),
        pandas.Series(texts, index=[1, 0], dtype="string"),
        (text for text in texts),
    ):
        assert np.array_equal(embed(column, NAME), expected)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a", "b", None], "row 2 is None.*missing='empty'"),
        (["a", float("nan")], "row 1 is NaN.*missing='empty'"),
        (["a", 3], "row 1 is of type int"),
        ([b"a"], "row 0 is of type bytes"),
        (b"a", "bytes"),
        ({"a": 1}, "dict"),
        (7, "int"),
        ([("a", "b")], "row 0 is of type tuple.*pairs"),
        (np.array([["a", "b"], ["c", "d"]]), "2 dimensions.*pairs"),
    ],
)  # fmt: skip
def test_what_is_no_text_is_a_type_error_with_its_row(texts: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        embed(texts, NAME)
    with pytest.raises(TypeError, match=message):
        TextFeatures(NAME).fit(texts)


def test_a_data_frame_of_two_columns_is_refused_and_one_of_one_column_is_that_column() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": TEXTS, "other": TEXTS})
    with pytest.raises(TypeError, match="2 dimensions"):
        TextFeatures(NAME).fit(frame)
    assert np.array_equal(TextFeatures(NAME).fit_transform(frame[["text"]]), TextFeatures(NAME).fit_transform(TEXTS))


def test_missing_texts_are_empty_texts_when_asked() -> None:
    expected = embed(["", "a", ""], NAME)
    assert np.array_equal(embed([None, "a", float("nan")], NAME, missing="empty"), expected)
    given = TextFeatures(NAME, missing="empty").fit_transform([None, "a", np.nan])
    assert np.abs(given - expected).max() <= TOLERANCE


def test_a_lone_surrogate_is_refused_with_its_row() -> None:
    with pytest.raises(ValueError, match="row 1 has a lone surrogate"):
        embed(["a", "\ud800"], NAME)


def test_a_text_of_600_tokens_is_cut_with_one_warning_or_refused() -> None:
    texts = ["short", "word " * 600]
    with pytest.warns(TruncationWarning, match="1 of 2 texts .* 602") as caught:
        X = embed(texts, NAME)
    assert len(caught) == 1
    assert np.abs(X - embed(["short", "word " * 510], NAME)).max() <= TOLERANCE
    with pytest.raises(ValueError, match="row 1 has 602 tokens"):
        embed(texts, NAME, truncation="error")


def test_an_encoder_in_hand_is_used_as_it_is_and_needs_its_tokenizer(encoder: Encoder) -> None:
    X = embed(TEXTS, encoder, tokenizer=minibert.load_tokenizer(NAME))
    assert np.abs(X - embed(TEXTS, minilm_folder())).max() <= TOLERANCE
    with pytest.raises(TypeError, match="tokenizer=load_tokenizer"):
        embed(TEXTS, encoder)
    with pytest.raises(ValueError, match=r"model\.to\('cpu'\)"):
        embed(TEXTS, encoder, tokenizer=minibert.load_tokenizer(NAME), device="cpu")


# -- settings

WRONG = [
    ({"pooling": "avg"}, "pooling is 'avg'; choose from cls, mean, max, pooler"),
    ({"combine": "stack"}, "combine is 'stack'; choose from concat, sum, mean"),
    ({"precision": "float64"}, "precision is 'float64'; choose from float32, bfloat16, float16, auto"),
    ({"truncation": "cut"}, "truncation is 'cut'; choose from warn, error"),
    ({"missing": "drop"}, "missing is 'drop'; choose from error, empty"),
    ({"batch_tokens": 0}, "batch_tokens is 0; it must be at least 1"),
    ({"batch_tokens": -1}, "batch_tokens is -1; it must be at least 1"),
    ({"layers": (7,)}, "layers has 7; the encoder has 6 layers, so it must be -7 to 6"),
    ({"layers": [-1, -8]}, "layers has -8; .* -7 to 6"),
    ({"layers": ()}, "layers is empty"),
    ({"pooling": "pooler", "layers": (-2,)}, "last layer alone"),
    ({"pooling": "pooler", "layers": (-1, -1)}, "last layer alone"),
    ({"device": "gpu"}, "device is 'gpu'; choose from auto, cpu, cuda, mps"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG)
def test_a_setting_that_is_not_possible_is_a_value_error(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        embed(TEXTS, NAME, **settings)
    estimator = TextFeatures(NAME, **settings)  # nothing is checked before fit
    with pytest.raises(ValueError, match=message):
        estimator.fit(TEXTS)


@pytest.mark.parametrize("settings", [{"batch_tokens": 4096.0}, {"layers": (1.5,)}, {"batch_tokens": True}])
def test_a_setting_of_the_wrong_type_is_a_type_error(settings: dict[str, object]) -> None:
    with pytest.raises(TypeError):
        embed(TEXTS, NAME, **settings)


def test_settings_are_checked_before_the_checkpoint_is_looked_for() -> None:
    with pytest.raises(ValueError, match="pooling is 'avg'"):
        embed(TEXTS, "no-such-checkpoint", pooling="avg")
    with pytest.raises(TypeError, match="row 0 is None"):
        TextFeatures("no-such-checkpoint").fit([None])


def test_cuda_without_cuda_is_a_value_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="torch sees no CUDA device"):
        embed(TEXTS, NAME, device="cuda")
    assert features.choose_device("auto") == "cpu"


def test_auto_is_cuda_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert features.choose_device("auto") == "cuda"


def test_pooler_without_a_pooler_is_refused(small: Encoder) -> None:
    with pytest.raises(ValueError, match="this checkpoint has no pooler"):
        vectors(Encoder(small.config, pooler=False), [[101, 102]], pooling="pooler")


# -- TextFeatures as an estimator


def test_the_default_recipe_fits_the_reviews_without_a_warning() -> None:
    texts, labels = reviews()
    model = make_pipeline(TextFeatures(NAME), StandardScaler(), LogisticRegression(max_iter=1000))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.fit(texts, labels).score(texts, labels) > 0.95


def test_the_constructor_does_nothing_and_clone_and_set_params_keep_every_setting() -> None:
    settings = {"model": "no-such-checkpoint", "pooling": "?", "layers": [99], "combine": "?", "precision": "?",
                "device": "?", "batch_tokens": -5, "truncation": "?", "cache": 3, "missing": "?"}  # fmt: skip
    estimator = TextFeatures(**settings)
    assert estimator.get_params() == settings
    assert clone(estimator).get_params() == settings
    assert clone(estimator).set_params(pooling="mean").pooling == "mean"


def test_before_fit_it_is_not_fitted() -> None:
    with pytest.raises(NotFittedError):
        TextFeatures(NAME).transform(TEXTS)
    with pytest.raises(NotFittedError):
        TextFeatures(NAME).get_feature_names_out()


def test_transform_equals_embed_and_the_names_fit_the_width() -> None:
    estimator = TextFeatures(NAME, pooling="mean", layers=(0, -1)).fit(TEXTS)
    X = estimator.transform(TEXTS)
    assert np.abs(X - embed(TEXTS, NAME, pooling="mean", layers=(0, -1))).max() <= TOLERANCE
    assert X.dtype == np.float32 and X.shape == (len(TEXTS), estimator.n_features_out_) == (len(TEXTS), 768)
    names = estimator.get_feature_names_out()
    assert len(names) == 768 and names[0] == "textfeatures0"


def test_a_generator_is_read_once_by_fit_transform() -> None:
    X = TextFeatures(NAME).fit_transform(text for text in TEXTS)
    assert np.array_equal(X, TextFeatures(NAME).fit_transform(TEXTS))


def test_set_output_gives_a_data_frame_with_the_index_of_the_series() -> None:
    pandas = pytest.importorskip("pandas")
    column = pandas.Series(TEXTS[:2], index=[5, 9])
    frame = TextFeatures(NAME).set_output(transform="pandas").fit_transform(column)
    assert list(frame.index) == [5, 9] and list(frame.columns[:2]) == ["textfeatures0", "textfeatures1"]


@pytest.mark.parametrize("column", ["text", ["text"]])
def test_it_takes_the_text_column_of_a_data_frame_in_a_column_transformer(column: object) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"stars": np.arange(len(TEXTS)), "text": TEXTS})
    both = ColumnTransformer([("text", TextFeatures(NAME), column), ("stars", "passthrough", ["stars"])])
    X = both.fit_transform(frame)
    assert X.shape == (len(TEXTS), 385)
    assert np.abs(X[:, :384] - embed(TEXTS, NAME)).max() <= TOLERANCE
    assert list(both.get_feature_names_out()[[0, -1]]) == ["text__textfeatures0", "stars__stars"]


def test_a_grid_search_runs_in_two_processes() -> None:
    texts, labels = reviews()
    model = make_pipeline(TextFeatures(NAME), LogisticRegression(max_iter=1000))
    search = GridSearchCV(model, {"logisticregression__C": [0.1, 1]}, cv=2, n_jobs=2, error_score="raise")
    search.fit(texts[:40], labels[:40])
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_its_tags_say_that_it_reads_strings() -> None:
    tags = get_tags(TextFeatures(missing="empty"))
    assert tags.input_tags.string and tags.input_tags.one_d_array and not tags.input_tags.two_d_array
    assert tags.input_tags.allow_nan and not get_tags(TextFeatures()).input_tags.allow_nan
    assert tags.requires_fit and not tags.target_tags.required and tags.transformer_tags.preserves_dtype == []


@pytest.mark.parametrize(("labels", "message"), [([1, 0], "inconsistent"), ([1, 0, 1, 0, 1, np.nan], "y contains NaN")])
def test_labels_that_do_not_fit_are_refused_before_anything_is_encoded(
    computed: list[int], labels: list[float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_pipeline(TextFeatures(NAME), LogisticRegression()).fit(TEXTS, labels)
    assert computed == []


def test_one_model_is_shared_by_all_estimators_of_the_process() -> None:
    first, second = (features.load_shared(NAME, "cpu", "float32") for _ in range(2))
    assert first.encoder is second.encoder


def test_a_model_in_hand_is_refused_because_a_pickle_could_not_refer_to_it(encoder: Encoder) -> None:
    with pytest.raises(TypeError, match="Hub name or a folder"):
        TextFeatures(encoder).fit(TEXTS)


# -- pickles


def test_a_pickle_is_small_and_predicts_the_same(tmp_path: Path) -> None:
    model = make_pipeline(TextFeatures(NAME), LogisticRegression()).fit(TEXTS, [1, 0, 0, 1, 0, 1])
    stored = pickle.dumps(model)
    assert len(stored) < 100_000
    assert np.array_equal(pickle.loads(stored).predict_proba(TEXTS), model.predict_proba(TEXTS))
    joblib.dump(model, tmp_path / "model.joblib")
    assert np.array_equal(joblib.load(tmp_path / "model.joblib").predict_proba(TEXTS), model.predict_proba(TEXTS))


def test_a_pickle_refuses_other_weights_and_names_both_hashes(folder: Path) -> None:
    stored = pickle.dumps(TextFeatures(folder).fit(TEXTS))
    before = pickle.loads(stored).weights_sha256_
    change_weights(folder)
    with pytest.raises(ValueError, match="weights") as refused:
        pickle.loads(stored).transform(TEXTS)
    after = TextFeatures(folder).fit(TEXTS).weights_sha256_
    assert before != after and before in str(refused.value) and after in str(refused.value)


def test_a_pickle_refuses_another_tokenizer(folder: Path) -> None:
    stored = pickle.dumps(TextFeatures(folder).fit(TEXTS))
    settings = folder / "tokenizer_config.json"
    settings.write_text(settings.read_text(encoding="utf-8").replace('"do_lower_case": true', '"do_lower_case": false'))
    with pytest.raises(ValueError, match="tokenizer with fingerprint"):
        pickle.loads(stored).transform(TEXTS)


# -- caches


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_grid_of_four_values_over_five_shuffled_folds_encodes_each_text_once(
    computed: list[int], tmp_path: Path, on_disk: bool
) -> None:
    texts, labels = reviews()
    texts, labels = [*texts[:39], texts[0]], labels[:40]  # one text stands twice
    model = make_pipeline(TextFeatures(NAME, cache=tmp_path if on_disk else None), LogisticRegression(max_iter=1000))
    folds = KFold(5, shuffle=True, random_state=1)
    GridSearchCV(model, {"logisticregression__C": [0.01, 0.1, 1, 10]}, cv=folds, error_score="raise").fit(texts, labels)
    assert sum(computed) == 39
    X = model[0].fit_transform(texts)
    assert sum(computed) == 39
    assert np.abs(X - embed(texts, NAME)).max() <= TOLERANCE


def test_another_setting_misses_the_cache_and_another_name_of_the_same_layer_does_not(computed: list[int]) -> None:
    TextFeatures(NAME).fit_transform(TEXTS)
    for settings in ({"pooling": "mean"}, {"layers": (-2,)}, {"layers": (-2, -1)}, {"truncation": "error"},
                     {"layers": (-2, -1), "combine": "sum"}):  # fmt: skip
        before = len(computed)
        TextFeatures(NAME, **settings).fit_transform(TEXTS)
        assert computed[before:] == [len(TEXTS)], settings
    for settings in ({"layers": (6,)}, {"layers": -1}, {"batch_tokens": 100}, {"precision": "auto"}):
        before = len(computed)
        TextFeatures(NAME, **settings).fit_transform(TEXTS)
        assert computed[before:] == [], settings


def test_a_changed_model_misses_the_cache(computed: list[int], folder: Path, tmp_path: Path) -> None:
    for times in (1, 2):
        TextFeatures(folder, cache=tmp_path / "rows").fit_transform(TEXTS)
        TextFeatures(folder, cache=tmp_path / "rows").fit_transform(TEXTS)
        assert computed == [len(TEXTS)] * times
        change_weights(folder)


def test_a_refused_text_is_named_by_its_row_although_rows_before_it_are_known(memory: features.MemoryRows) -> None:
    estimator = TextFeatures(NAME, truncation="error").fit(TEXTS)
    estimator.transform(TEXTS)
    with pytest.raises(ValueError, match="row 6 has 602 tokens"):
        estimator.transform([*TEXTS, "word " * 600])


def test_the_cache_of_the_process_is_bounded_and_drops_the_least_recently_used() -> None:
    rows = features.MemoryRows(limit=30)
    rows.write({b"a": bytes(10), b"b": bytes(10), b"c": bytes(10)})
    rows.read({b"a"})
    rows.write({b"a": bytes(10), b"d": bytes(10)})
    assert set(rows.read({b"a", b"b", b"c", b"d"})) == {b"a", b"c", b"d"}
    assert rows.size == 30


def test_a_damaged_row_on_disk_is_computed_again_and_healed(computed: list[int], tmp_path: Path) -> None:
    estimator = TextFeatures(NAME, cache=tmp_path).fit(TEXTS)
    expected = estimator.transform(TEXTS)
    with sqlite3.connect(tmp_path / features.ROWS_FILE) as database:
        database.execute("UPDATE rows SET vector = zeroblob(length(vector)) WHERE rowid = 2")
        database.execute("UPDATE rows SET vector = substr(vector, 1, 100) WHERE rowid = 3")
        database.execute("UPDATE rows SET vector = x'' WHERE rowid = 4")
    database.close()
    assert np.abs(estimator.transform(TEXTS) - expected).max() <= TOLERANCE
    assert computed == [len(TEXTS), 3]
    estimator.transform(TEXTS)
    assert computed == [len(TEXTS), 3]


@pytest.mark.parametrize("damage", ["no database", "its middle overwritten"])
def test_a_damaged_cache_file_costs_one_warning_and_no_result(tmp_path: Path, damage: str) -> None:
    estimator = TextFeatures(NAME, cache=tmp_path).fit(TEXTS)
    path = tmp_path / features.ROWS_FILE
    expected = estimator.transform(TEXTS)
    content = path.read_bytes()
    path.write_bytes(b"no database" * 500 if damage == "no database" else content[:100] + b"\xff" * len(content[100:]))
    with pytest.warns(UserWarning, match="cache .* cannot be used") as caught:
        X = estimator.transform(TEXTS)
    assert len(caught) == 1
    assert np.abs(X - expected).max() <= TOLERANCE


def test_a_folder_that_cannot_be_made_costs_one_warning_and_no_result(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    estimator = TextFeatures(NAME, cache=tmp_path / "file" / "rows").fit(TEXTS)
    with pytest.warns(UserWarning, match="make the folder writable") as caught:
        X = estimator.transform(TEXTS)
    assert len(caught) == 1 and np.isfinite(X).all()


def test_a_disk_that_is_full_costs_one_warning_and_keeps_what_was_there(
    computed: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimator = TextFeatures(NAME, cache=tmp_path).fit(TEXTS)
    estimator.transform(TEXTS[:1])
    connect = sqlite3.connect

    def full(*given: object, **settings: object) -> sqlite3.Connection:
        database = connect(*given, **settings)
        database.execute("PRAGMA max_page_count = 1")  # as many pages as there are, and not one more
        return database

    monkeypatch.setattr(sqlite3, "connect", full)
    with pytest.warns(UserWarning, match="full") as caught:
        X = estimator.transform(TEXTS)
    assert len(caught) == 1 and np.isfinite(X).all()
    assert computed == [1, len(TEXTS) - 1]
    estimator.transform(TEXTS[:1])
    assert computed == [1, len(TEXTS) - 1]


def test_a_cache_that_can_only_be_read_is_read_without_a_warning(
    computed: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimator = TextFeatures(NAME, cache=tmp_path).fit(TEXTS)
    estimator.transform(TEXTS)
    connect = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda path, **settings: connect(f"file:{path}?mode=ro", uri=True, **settings)
    )
    estimator.transform(TEXTS)
    assert computed == [len(TEXTS)]
    with pytest.warns(UserWarning, match="readonly") as caught:
        estimator.transform(["a new text"])
    assert len(caught) == 1


@pytest.mark.parametrize(("cache", "error"), [(3, TypeError), (Path(__file__), ValueError)])
def test_a_cache_that_is_no_folder_is_refused_at_fit(cache: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="path of a folder"):
        TextFeatures(NAME, cache=cache).fit(TEXTS)


def fill(folder: Path, worker: int) -> int:
    """Write and read rows from a process of its own; returns how many of its rows it found again."""
    store = features.DiskRows(folder)
    for turn in range(20):
        store.write({f"{worker} {turn} {n}".encode(): bytes(100) for n in range(10)})
    return len(store.read({f"{worker} {turn} {n}".encode() for turn in range(20) for n in range(10)}))


def test_several_processes_write_to_one_folder_and_nothing_is_lost(tmp_path: Path) -> None:
    found = joblib.Parallel(n_jobs=2)(joblib.delayed(fill)(tmp_path, worker) for worker in range(4))
    assert found == [200] * 4
