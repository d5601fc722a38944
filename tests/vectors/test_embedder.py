"""A checkpoint and a recipe, called with texts: equal to what embed gives, recognised by hashes, loaded when needed."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from words import write_words_checkpoint

import minibert
from minibert import TextFeatures, embed
from minibert.vectors import embedder as room
from minibert.vectors.embedder import Embedder
from minibert.vectors.engine import Engine
from minibert.vectors.recipe import Recipe
from minibert.vectors.stream import embed_stream

TEXTS = ["a very good film", "the awful meal", "", "book"]
D = 24
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint that a test may change."""
    return write_words_checkpoint(tmp_path / "words")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done that takes time: loading, hashing weights, computing."""
    done: list[str] = []

    def watch(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def watched(*given: Any, **more: Any) -> Any:
            done.append(name)
            return function(*given, **more)

        monkeypatch.setattr(owner, name, watched)

    watch(room, "load")
    watch(room, "weights_sha256")
    watch(Engine, "vectors")
    return done


def change_weights(folder: Path) -> None:
    """Flip the sign of one bias, at the end of the file."""
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 0x80
    path.write_bytes(content)


# -- the vectors


def test_it_gives_what_embed_gives(folder: Path) -> None:
    embedder = Embedder(folder, Recipe("mean", (0, -1)))
    vectors = embedder(TEXTS)
    assert vectors.shape == (4, embedder.width) == (4, 2 * D) and vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, embed(TEXTS, folder, pooling="mean", layers=(0, -1)))
    np.testing.assert_array_equal(vectors, embedder.vectors(embedder.tokenizer.encode_texts(TEXTS)))


def test_every_way_to_ask_for_vectors_gives_the_same(folder: Path, tmp_path: Path) -> None:
    embedder = Embedder(folder, Recipe("max", (-2, -1), "sum"))
    settings: dict[str, Any] = {"pooling": "max", "layers": (-2, -1), "combine": "sum"}
    embed_stream(TEXTS, tmp_path / "x.npy", folder, **settings)
    for vectors in (
        np.load(tmp_path / "x.npy"),
        TextFeatures(folder, cache=tmp_path / "rows", **settings).fit_transform(TEXTS),
        TextFeatures.of(embedder).transform(TEXTS),
    ):
        np.testing.assert_allclose(vectors, embedder(TEXTS), rtol=0, atol=1e-5)


def test_an_encoder_in_hand_needs_its_tokenizer_and_has_no_hashes(folder: Path) -> None:
    encoder, tokenizer = minibert.load(folder), minibert.load_tokenizer(folder)
    embedder = Embedder(encoder, tokenizer=tokenizer)
    np.testing.assert_array_equal(embedder(TEXTS), embed(TEXTS, folder))
    assert embedder.width == D
    with pytest.raises(TypeError, match="tokenizer=load_tokenizer"):
        Embedder(encoder)
    for ask in (lambda: embedder.identity, lambda: pickle.dumps(embedder), lambda: TextFeatures.of(embedder)):
        with pytest.raises(TypeError, match=r"model is an Encoder, .*; give a Hub name or a folder"):
            ask()


def test_one_str_is_no_list_of_texts(folder: Path) -> None:
    with pytest.raises(TypeError, match="texts is one str"):
        Embedder(folder)("a good film")


@pytest.mark.parametrize("use", [lambda embedder: embedder.width, lambda embedder: embedder(TEXTS)])
def test_a_recipe_that_the_checkpoint_cannot_give_is_refused_before_anything_is_computed(
    folder: Path, calls: list[str], use: Any
) -> None:
    with pytest.raises(ValueError, match="layers has 9"):
        use(Embedder(folder, Recipe(layers=9)))
    assert calls == ["load"]


# -- what it costs


def test_nothing_is_loaded_before_it_is_needed_and_weights_are_hashed_when_asked_for(
    folder: Path, calls: list[str]
) -> None:
    embedder = Embedder(folder)
    assert calls == []
    assert embedder.width == D
    assert calls == ["load"]
    embedder(TEXTS)
    assert calls == ["load", "vectors"]
    assert embedder.identity == Embedder(folder).identity
    assert calls == ["load", "vectors", "weights_sha256"]
    with pytest.raises(FileNotFoundError):
        Embedder("no-such-checkpoint")([])


def test_embed_hashes_nothing_and_no_call_is_made_for_a_width(folder: Path, calls: list[str]) -> None:
    embed(TEXTS, folder)
    assert calls == ["load", "vectors"]
    Embedder(folder).prefetched(TEXTS)
    TextFeatures(folder).fit(TEXTS)
    assert calls == ["load", "vectors", "vectors", "weights_sha256"]


def test_embed_does_not_import_scikit_learn(folder: Path) -> None:
    code = "import sys, minibert; minibert.embed(['good'], sys.argv[1]); print('sklearn' in sys.modules)"
    command = [sys.executable, "-c", code, str(folder)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


# -- identity


def test_the_identity_holds_what_determines_a_vector_and_nothing_else(folder: Path) -> None:
    identity = Embedder(folder, Recipe("mean", (0, -1))).identity
    assert json.loads(json.dumps(identity)) == identity
    assert list(identity.items())[2:] == [
        ("max_length", 20),
        ("pooling", "mean"),
        ("layers", [0, 2]),
        ("combine", "concat"),
        ("precision", "torch.float32"),
        ("long", "cut"),
        ("stride", None),
    ]
    same = [Recipe("mean", (-3, 2)), Recipe("mean", (0, -1), batch_tokens=7), Recipe("mean", (0, -1), missing="empty")]
    assert all(Embedder(folder, recipe).identity == identity for recipe in same)
    other = [Recipe("max", (0, -1)), Recipe("mean"), Recipe("mean", (0, -1), truncation="error")]
    assert all(Embedder(folder, recipe).identity != identity for recipe in other)


def test_other_weights_and_another_tokenizer_are_another_identity(folder: Path) -> None:
    before = Embedder(folder).identity
    change_weights(folder)
    after = Embedder(folder).identity
    assert [name for name in before if before[name] != after[name]] == ["weights"]
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    last = Embedder(folder).identity
    assert [name for name in after if after[name] != last[name]] == ["tokenizer"]


def test_weights_that_change_between_loading_and_hashing_are_not_taken_for_those_that_were_loaded(
    folder: Path,
) -> None:
    embedder = Embedder(folder)
    embedder(TEXTS)
    (folder / "notes.txt").write_text("another file may come")
    change_weights(folder)
    with pytest.raises(ValueError, match="were changed while they were in use"):
        embedder.hashes  # noqa: B018


# -- pickles


def test_a_pickle_is_small_loads_nothing_and_gives_the_same_vectors(folder: Path, calls: list[str]) -> None:
    embedder = Embedder(folder, Recipe("mean"))
    vectors = embedder(TEXTS)
    stored = pickle.dumps(embedder)
    assert len(stored) < 2000
    calls.clear()
    again = pickle.loads(stored)
    assert calls == []
    np.testing.assert_array_equal(again(TEXTS), vectors)
    assert again.identity == embedder.identity
    assert pickle.loads(pickle.dumps(again)).wanted == embedder.hashes


def test_a_pickle_refuses_other_weights_and_another_tokenizer_when_it_is_used(folder: Path) -> None:
    embedder = Embedder(folder)
    stored = pickle.dumps(embedder)
    whole = (folder / "model.safetensors").read_bytes()
    change_weights(folder)
    found = Embedder(folder).hashes.weights
    for use in (lambda one: one(TEXTS), lambda one: one.width, lambda one: one.identity):
        with pytest.raises(ValueError, match="weights with sha256") as refused:
            use(pickle.loads(stored))
        assert found in str(refused.value) and embedder.hashes.weights in str(refused.value)
    (folder / "model.safetensors").write_bytes(whole)
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    with pytest.raises(ValueError, match="a tokenizer with fingerprint"):
        pickle.loads(stored)(TEXTS)


def test_a_pickle_whose_checkpoint_is_gone_says_so_when_it_is_used(folder: Path) -> None:
    stored = pickle.dumps(Embedder(folder))
    shutil.rmtree(folder)
    embedder = pickle.loads(stored)
    assert embedder.recipe == Recipe()
    with pytest.raises(FileNotFoundError, match=folder.name):
        embedder(TEXTS)


def test_a_tokenizer_that_was_given_goes_with_the_pickle(folder: Path) -> None:
    short = minibert.load_tokenizer(folder, max_length=5)
    embedder = Embedder(folder, Recipe(truncation="error"), tokenizer=short)
    assert embedder.identity["max_length"] == 5
    with pytest.raises(ValueError, match="row 0 has 6 tokens"):
        pickle.loads(pickle.dumps(embedder))(["good good good good"])
