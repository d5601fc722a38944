"""Texts beyond max_length, cut, refused or split into windows: their vectors and files."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.words import BAD, GOOD, write_words_checkpoint

import minibert
from minibert.vectors.stream import embed_stream

# The checkpoint takes 20 tokens, 18 of them of text.
LONG = " ".join(GOOD * 15)  # 45 tokens of text
TEXTS = ["a very good film", LONG, "", "the awful meal", " ".join(BAD * 7)]


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_the_vector_of_a_long_text_is_the_mean_of_its_windows_by_tokens_of_text(checkpoint, pooling):
    words = LONG.split()
    for count, weights in ((45, [18, 18, 18, 18]), (25, [18, 16])):  # the last window may be shorter
        windows = [" ".join(words[start : min(start + 18, count)]) for start in range(0, 9 * len(weights), 9)]
        vectors = minibert.embed(windows, checkpoint, pooling=pooling)
        got = minibert.embed(" ".join(words[:count]), checkpoint, pooling=pooling, long="windows")
        np.testing.assert_allclose(got, np.average(vectors, axis=0, weights=weights), rtol=0, atol=1e-5)
    assert np.abs(got - vectors.mean(axis=0)).max() > 1e-4  # a negative control: not weighted


def test_texts_that_fit_have_the_same_vectors_as_those_that_would_be_cut(checkpoint):
    short = [*TEXTS[:1], *TEXTS[2:4], " ".join(GOOD * 6)]  # the last has exactly 20 tokens
    np.testing.assert_array_equal(
        minibert.embed(short, checkpoint, long="windows"), minibert.embed(short, checkpoint, long="cut")
    )


def test_the_command_reports_windows(checkpoint, tmp_path, run):
    (tmp_path / "in.txt").write_text("\n".join(TEXTS))
    command = f"embed {tmp_path}/in.txt --out {tmp_path}/x.npy --model {checkpoint} --long windows"
    assert "2 of 5 texts in 6 windows" in run(*command.split())


# -- vectors that are not finite

CALLS: dict[str, Callable[[list[str], Path, Path], object]] = {
    "embed": lambda texts, folder, _: minibert.embed(texts, folder),
    "pairs": lambda texts, folder, _: minibert.embed(GOOD * 7, folder, pairs=texts),
    "windows": lambda texts, folder, _: minibert.embed([LONG, *texts[1:]], folder, long="windows"),
    "stream": lambda texts, folder, out: embed_stream(texts, out / "x.npy", folder, part_rows=4),
    "features": lambda texts, folder, _: minibert.TextFeatures(folder).fit_transform(texts),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_vector_that_is_not_finite_is_an_error_that_names_the_row(call, tmp_path):
    folder, texts = write_words_checkpoint(tmp_path / "words"), GOOD * 7
    # The weight becomes infinite after loading: a file with such a weight is refused.
    table = minibert.Embedder(folder).engine.encoder.embeddings.token.weight
    table[minibert.load_tokenizer(folder).vocab["awful"], 0] = float("inf")
    call(texts, folder, tmp_path)  # other words are fine
    texts[17] = "an awful film"
    (tmp_path / "x.npy").unlink(missing_ok=True)
    with pytest.raises(ValueError, match=r"row 17 .*float32"):
        call(texts, folder, tmp_path)
