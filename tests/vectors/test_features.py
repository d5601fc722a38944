"""Texts to matrix: vectors that are right, and what goes in. As a step of scikit-learn: test_text_features.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import minilm_folder

import minibert
from minibert import TextFeatures, embed
from minibert.config import Config
from minibert.model import Encoder
from minibert.text.tokenizer import TruncationWarning
from minibert.vectors import cache as row_cache
from minibert.vectors import embedder as room
from minibert.vectors import pooling
from minibert.vectors.recipe import Recipe

NAME = "all-MiniLM-L6-v2"
TEXTS = ["a stunning film", "dull, and far too long", "", "the best soup in town", "never again", "fine"]
LONG = "a long and winding road " * 97  # 487 tokens
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return minibert.load(NAME, attention="sdpa")


@pytest.fixture(scope="module")
def ids() -> list[list[int]]:
    return minibert.load_tokenizer(NAME).ids([*TEXTS, LONG])


@pytest.fixture
def small() -> Encoder:
    """An encoder of one layer, for what does not depend on the size."""
    torch.manual_seed(0)
    config = Config(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    return Encoder(config).eval()


def vectors(encoder: Encoder, ids: list[list[int]], **settings: object) -> row_cache.Matrix:
    return pooling.readable_vectors(encoder, ids, Recipe(**settings), progress=False)


# -- the numbers


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "pooler"])
def test_a_text_has_the_same_vector_alone_and_in_a_batch_and_beside_a_long_text(
    encoder: Encoder, ids: list[list[int]], pooling: str
) -> None:
    *short, long = ids
    alone = np.concatenate([vectors(encoder, [row], pooling=pooling) for row in short])
    assert np.abs(alone - vectors(encoder, short, pooling=pooling)).max() <= TOLERANCE
    beside_the_long = vectors(encoder, [*short[:2], long], pooling=pooling)
    assert np.abs(alone[:2] - beside_the_long[:2]).max() <= TOLERANCE


def test_a_mean_that_counts_padding_would_be_caught(
    encoder: Encoder, ids: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = vectors(encoder, ids[:1], pooling="mean")
    monkeypatch.setattr(pooling, "pool_tokens", lambda states, keep, pooling: states.mean(dim=1))
    beside_a_longer = vectors(encoder, ids[:2], pooling="mean")
    assert np.abs(alone - beside_a_longer[:1]).max() > 1000 * TOLERANCE


def test_padding_has_no_part_in_mean_and_max_whatever_it_holds() -> None:
    keep = torch.tensor([[[True], [True], [False]]])
    states = torch.tensor([[[1.0, -4.0], [3.0, -2.0], [torch.nan, torch.inf]]])
    assert pooling.pool_tokens(states, keep, "mean").tolist() == [[2.0, -3.0]]
    assert pooling.pool_tokens(states, keep, "max").tolist() == [[3.0, -2.0]]


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
    expected = vectors(small, [[length] for length in lengths], layers=0)  # all of one length: nothing to reorder
    np.testing.assert_allclose(X, expected, atol=1e-6)
    assert np.abs(X[1:] - X[:-1]).max(axis=1).min() > 0.01  # two rows exchanged would be seen


@pytest.mark.parametrize("batch_tokens", [1, 7, 64, 10_000])
def test_a_batch_holds_at_most_its_tokens_and_every_row_stands_in_one(batch_tokens: int) -> None:
    lengths = [5, 1, 40, 5, 9, 9, 2, 33, 64, 1]
    cut = list(pooling.batches(lengths, batch_tokens))
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
        (np.array([["a"], ["c"]]), "2 dimensions.*pairs"),
    ],
)
def test_what_is_no_text_is_a_type_error_with_its_row(texts: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        embed(texts, NAME)
    with pytest.raises(TypeError, match=message):
        TextFeatures(NAME).fit(texts)


def test_embed_takes_no_table_and_a_data_frame_of_one_column_is_that_column() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": TEXTS, "other": TEXTS})
    for table in (frame, frame.to_numpy()):
        with pytest.raises(TypeError, match=r"2 dimensions.*embed\(first, pairs=second\)"):
            embed(table, NAME)
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
    ({"precision": "float64"}, "precision is 'float64'; choose from float32, bfloat16, float16, int8, auto"),
    ({"truncation": "cut"}, "truncation is 'cut'; choose from warn, error"),
    ({"missing": "drop"}, "missing is 'drop'; choose from error, empty"),
    ({"batch_tokens": 0}, "batch_tokens is 0; it must be at least 1"),
    ({"batch_tokens": -1}, "batch_tokens is -1; it must be at least 1"),
    ({"layers": (7,)}, "layers has 7; the encoder has 6 layers, so it must be -7 to 6"),
    ({"layers": [-1, -8]}, "layers has -8; .* -7 to 6"),
    ({"layers": ()}, "layers is empty"),
    ({"pooling": "pooler", "layers": (-2,)}, "last layer alone"),
    ({"pooling": "pooler", "layers": (-1, -1)}, "last layer alone"),
    ({"device": "gpu"}, "device 'gpu' is not known; choose from cpu, cuda, mps"),
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
    assert room.choose_device("auto") == "cpu"


def test_auto_is_cuda_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert room.choose_device("auto") == "cuda"


def test_pooler_without_a_pooler_is_refused(small: Encoder) -> None:
    with pytest.raises(ValueError, match="this checkpoint has no pooler"):
        vectors(Encoder(small.config, pooler=False), [[101, 102]], pooling="pooler")
