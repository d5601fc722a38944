"""Embedder and embed: which texts they take, what they load and hash, how they are pickled."""

import copy
import gc
import json
import pickle
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import minibert
from minibert.checkpoints import checkpoint as opened
from minibert.tables.texts import chunked
from minibert.text.tokenizer import TruncationWarning
from minibert.vectors import embedder as module
from minibert.vectors import loading
from minibert.vectors.engine import Engine
from minibert.vectors.stream import embed_stream

TEXTS = ["a very good film", "the awful meal", "", "book"]
D = 24


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done that takes time: loading, hashing weights, computing."""
    done = []

    def watched(name, function):
        return lambda *given, **more: (done.append(name), function(*given, **more))[1]

    for owner, name in ((loading, "load"), (opened, "sha256_of"), (Engine, "vectors")):
        monkeypatch.setattr(owner, name, watched(name, getattr(owner, name)))
    return done


def change_weights(folder: Path) -> None:
    """Flip the sign of one bias, at the end of the file."""
    path = folder / "model.safetensors"
    *others, last = path.read_bytes()
    path.write_bytes(bytes([*others, last ^ 0x80]))


# -- the vectors


def test_every_way_to_compute_vectors_gives_the_same_also_in_windows(folder, tmp_path):
    windows = {"long": "windows", "stride": 7}
    settings = {"pooling": "max", "layers": (-2, -1), "combine": "sum"} | windows
    embedder, texts = minibert.Embedder(folder, minibert.Recipe(**settings)), [*TEXTS, "good " * 45]
    vectors = embedder(texts)
    assert vectors.shape == (5, embedder.width) == (5, D) and vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, minibert.embed(texts, folder, **settings))
    np.testing.assert_array_equal(vectors[0], minibert.embed(texts[0], folder, **settings))
    np.testing.assert_array_equal(vectors, embedder.vectors(embedder.tokenizer.encode_texts(texts, **windows)))
    written = embed_stream(texts, tmp_path / "x.npy", folder, part_rows=2, **settings)
    features = minibert.TextFeatures(folder, cache=tmp_path / "rows", **settings).fit(texts)
    of_embedder = minibert.TextFeatures.of(embedder)
    for others in (np.load(tmp_path / "x.npy"), features.transform(texts), of_embedder.transform(texts)):
        np.testing.assert_allclose(others, vectors, rtol=0, atol=1e-5)
    for stats in (written, embedder.stats, features.stats_):
        assert (stats.windowed, stats.windows, stats.truncated) == (1, 5, 0)


def test_an_encoder_in_hand_needs_its_tokenizer_and_has_no_hashes(folder):
    encoder, tokenizer = minibert.load(folder), minibert.load_tokenizer(folder)
    embedder = minibert.Embedder(encoder, tokenizer=tokenizer)
    np.testing.assert_array_equal(embedder(TEXTS), minibert.embed(TEXTS, folder))
    assert embedder.width == D
    with pytest.raises(TypeError, match="tokenizer=load_tokenizer"):
        minibert.Embedder(encoder)
    with pytest.raises(ValueError, match=r"model\.to\(device\)"):
        minibert.Embedder(encoder, device="cpu", tokenizer=tokenizer)
    for ask in (lambda: embedder.identity, lambda: pickle.dumps(embedder), lambda: minibert.TextFeatures.of(embedder)):
        with pytest.raises(TypeError, match="Encoder"):
            ask()


# -- what it costs


def test_nothing_is_loaded_before_it_is_needed_and_weights_are_hashed_when_asked_for(folder, calls):
    embedder = minibert.Embedder(folder)
    assert calls == []
    assert embedder.width == D
    assert calls == ["load"]
    embedder(TEXTS)
    minibert.embed(TEXTS, folder)
    assert calls == ["load", "vectors", "vectors"]
    assert embedder.identity == minibert.Embedder(folder).identity
    assert calls[3:] == ["sha256_of"]
    minibert.TextFeatures(folder).fit(TEXTS)
    assert calls[4:] == []
    with pytest.raises(FileNotFoundError):
        minibert.Embedder("no-such-checkpoint")([])


# -- identity


def test_the_identity_holds_what_determines_a_vector_and_nothing_else(folder):
    def identity(**changes):
        return minibert.Embedder(folder, **{"pooling": "mean", "layers": (0, -1)} | changes).identity

    found = identity()
    assert json.loads(json.dumps(found)) == found
    assert list(found.items())[2:] == [
        ("max_length", 20),
        ("pooling", "mean"),
        ("layers", [0, 2]),
        ("combine", "concat"),
        ("precision", "torch.float32"),
        ("long", "cut"),
        ("stride", None),
    ]
    assert identity(layers=(-3, 2)) == identity(batch_tokens=7) == identity(missing="empty") == found
    for other in ({"pooling": "max"}, {"layers": -1}, {"long": "error"}):
        assert identity(**other) != found


def test_other_weights_and_another_tokenizer_are_another_identity_which_a_pickle_refuses(folder):
    before = minibert.Embedder(folder)
    stored, identity = pickle.dumps(before), before.identity
    settings = folder / "tokenizer_config.json"
    for name, change in (
        ("weights", partial(change_weights, folder)),
        ("tokenizer", partial(settings.write_text, '{"do_lower_case": false}')),
    ):
        change()
        after = minibert.Embedder(folder)
        assert name in [name for name, value in after.identity.items() if value != identity[name]]
        for use in (lambda one: one(TEXTS), lambda one: one.width, lambda one: one.identity):
            with pytest.raises(ValueError, match="fit again") as refused:
                use(pickle.loads(stored))
            assert str(after.hashes) in str(refused.value) and str(before.hashes) in str(refused.value)
        stored, identity, before = pickle.dumps(after), after.identity, after


def test_weights_that_change_between_loading_and_hashing_are_not_taken_for_those_that_were_loaded(folder):
    embedder = minibert.Embedder(folder)
    embedder(TEXTS)
    (folder / "notes.txt").write_text("another file may come")
    change_weights(folder)
    with pytest.raises(ValueError, match="changed"):
        embedder.hashes  # noqa: B018


# -- pickles


def test_a_pickle_is_small_loads_nothing_and_gives_the_same_vectors(folder, calls):
    embedder = minibert.Embedder(folder, minibert.Recipe("mean"))
    vectors = embedder(TEXTS)
    stored = pickle.dumps(embedder)
    assert len(stored) < 2000
    calls.clear()
    again = pickle.loads(stored)
    assert calls == []
    np.testing.assert_array_equal(again(TEXTS), vectors)
    assert again.identity == embedder.identity
    assert pickle.loads(pickle.dumps(again)).expected == embedder.hashes


def test_a_tokenizer_that_was_given_goes_with_the_pickle(checkpoint):
    tokenizer = minibert.load_tokenizer(checkpoint, max_length=5)
    embedder = minibert.Embedder(checkpoint, minibert.Recipe(long="error"), tokenizer=tokenizer)
    assert embedder.identity["max_length"] == 5
    with pytest.raises(ValueError, match=r"row 0 .* 6 tokens"):
        pickle.loads(pickle.dumps(embedder))(["good good good good"])


# -- the texts


@pytest.mark.parametrize(
    ("texts", "error", "message"),
    [
        (["a", "b", None], TypeError, r"row 2 .*None.*missing='empty'"),
        ([("a", "b")], TypeError, r"row 0 .*\btuple\b.*pairs"),
        (np.array([["a", "b", "c"]]), TypeError, r"2 dimensions.*embed\(first, pairs=second\)|\b3 columns"),
        (["a", "\ud800"], ValueError, r"row 1 .*surrogate"),
    ],
)
def test_a_row_that_is_not_a_text_is_refused_by_its_number(checkpoint, texts, error, message):
    for use in (lambda: minibert.embed(texts, checkpoint), lambda: minibert.TextFeatures(checkpoint).fit(texts)):
        with pytest.raises(error, match=message):
            use()


def test_empty_and_missing_texts_have_the_vector_of_cls_and_sep_and_no_texts_no_vector(checkpoint):
    empty = minibert.embed([""], checkpoint)
    assert np.isfinite(empty).all()
    np.testing.assert_array_equal(minibert.embed(["  \t\n"], checkpoint), empty)
    np.testing.assert_array_equal(
        minibert.embed([None, float("nan")], checkpoint, missing="empty"), np.repeat(empty, 2, axis=0)
    )
    assert minibert.embed([], checkpoint, layers=(-2, -1)).shape == (0, 2 * D)
    assert minibert.TextFeatures(checkpoint).fit(TEXTS).transform([]).shape == (0, D)


def test_auto_is_cuda_if_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert module.choose_device("auto") == "cuda"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert module.choose_device("auto") == "cpu"


def test_texts_in_chunks_have_the_vectors_and_the_one_warning_of_a_single_call(checkpoint, monkeypatch):
    embedder, texts = minibert.Embedder(checkpoint, minibert.Recipe(layers=(0, 1)), "cpu"), [*TEXTS * 5, "good " * 40]
    with pytest.warns(TruncationWarning):
        expected = embedder(texts)
    monkeypatch.setattr(module, "chunked", lambda rows, size: chunked(rows, 8))  # chunks of 8 texts
    with pytest.warns(TruncationWarning, match="^1 of 21 texts") as caught:
        vectors = embedder(texts)
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)
    assert len(caught) == 1


CHANGES: dict[str, Callable[[torch.Tensor], object]] = {
    "all": lambda weight: weight.detach().div_(2),
    "a row, which torch does not count as a write": lambda weight: weight.data[7].div_(2),
    "a column": lambda weight: weight.data[:, 7].div_(2),
    "other memory": lambda weight: setattr(weight, "data", weight.data / 2),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("name", ["attention.query", "feed_forward.expand", "feed_forward.contract"])
def test_an_encoder_is_prepared_once_until_its_weights_change(name, change, checkpoint):
    encoder, tokenizer = minibert.load(checkpoint), minibert.load_tokenizer(checkpoint)
    before = minibert.Embedder(encoder, tokenizer=tokenizer).engine
    assert minibert.Embedder(encoder, tokenizer=tokenizer).engine is before
    change(encoder.get_submodule(f"layers.0.{name}").weight)
    found = minibert.embed(["the good film"], encoder, tokenizer=tokenizer)
    assert minibert.Embedder(encoder, tokenizer=tokenizer).engine is not before
    assert np.array_equal(found, minibert.embed(["the good film"], copy.deepcopy(encoder), tokenizer=tokenizer))


def test_an_encoder_of_another_dtype_is_prepared_anew_and_no_encoder_is_kept_in_memory(checkpoint):
    encoder, tokenizer = minibert.load(checkpoint), minibert.load_tokenizer(checkpoint)
    before = minibert.Embedder(encoder, tokenizer=tokenizer).engine
    assert minibert.Embedder(encoder.to(torch.bfloat16), tokenizer=tokenizer).engine is not before
    kept = weakref.ref(encoder)
    del encoder
    gc.collect()
    assert kept() is None
