"""Texts beyond max_length: cut, refused or read in windows; and texts of any length in little memory."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import minilm_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from words import BAD, GOOD, write_words_checkpoint

import minibert
from minibert import Embedder, Recipe, TextFeatures, Tokenizer, embed
from minibert.cli.main import main
from minibert.tasks.frozen import Classifier, train
from minibert.text import piecewise
from minibert.text.texts import as_rows
from minibert.text.tokenized import TruncationWarning, in_windows
from minibert.vectors.engine import Engine
from minibert.vectors.stream import embed_stream

# The checkpoint takes 20 tokens, 18 of them of text.
LONG = " ".join(GOOD * 15)  # 45 tokens of text
TEXTS = ["a very good film", LONG, "", "the awful meal", " ".join(BAD * 7)]
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_words_checkpoint(tmp_path_factory.mktemp("words"))


@functools.cache
def tokenizer(special_tokens_in_text: str = "parse") -> Tokenizer:
    return minibert.load_tokenizer(minilm_folder(), special_tokens_in_text=special_tokens_in_text)


# -- where windows begin and end


@given(st.integers(0, 60), st.integers(1, 12), st.data())
def test_windows_hold_every_token_and_end_with_the_text(count: int, room: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, room))
    windows = in_windows(range(count), room, stride)
    assert {id for window in windows for id in window} == set(range(count))
    assert [window[0] for window in windows if window] == list(range(0, max(count, 0), stride))[: len(windows)]
    assert all(len(window) == room for window in windows[:-1])
    assert len(windows) == 1 or (count not in windows[-2] and windows[-2][-1] < count - 1)  # none is there for nothing


def test_windows_are_half_a_window_apart_unless_a_stride_is_given(checkpoint: Path) -> None:
    tokens = minibert.load_tokenizer(checkpoint)
    whole = [tokens.vocab[word] for word in LONG.split()]
    made = tokens.counted([LONG], long="windows")
    assert made.ids == [[tokens.cls_id, *whole[start : start + 18], tokens.sep_id] for start in (0, 9, 18, 27)]
    assert len(tokens.counted([LONG], long="windows", stride=18).ids) == 3
    assert len(tokens.counted([LONG], long="windows", stride=1).ids) == 45 - 18 + 1
    with pytest.raises(ValueError, match="stride is 19, and a window of max_length 20 has 18 tokens of text"):
        tokens.counted([LONG], long="windows", stride=19)


# -- the vectors


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_the_vector_of_a_long_text_is_the_mean_of_its_windows_by_tokens_of_text(checkpoint: Path, pooling: str) -> None:
    words = LONG.split()
    windows = [" ".join(words[start : start + 18]) for start in (0, 9, 18, 27)]
    vectors = embed(windows, checkpoint, pooling=pooling)
    expected = np.average(vectors, axis=0, weights=[18, 18, 18, 18])
    got = embed(LONG, checkpoint, pooling=pooling, long="windows")
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
    words = words[:25]  # whose last window is shorter: it counts for less
    vectors = embed([" ".join(words[:18]), " ".join(words[9:])], checkpoint, pooling=pooling)
    got = embed(" ".join(words), checkpoint, pooling=pooling, long="windows")
    np.testing.assert_allclose(got, np.average(vectors, axis=0, weights=[18, 16]), rtol=0, atol=1e-5)
    assert np.abs(got - vectors.mean(axis=0)).max() > 1e-4  # a negative control: not weighted


def test_texts_that_fit_have_the_very_vectors_of_those_that_would_be_cut(checkpoint: Path) -> None:
    short = [*TEXTS[:1], *TEXTS[2:4], " ".join(GOOD * 6)]  # the last has 20 tokens, as many as there is room for
    np.testing.assert_array_equal(embed(short, checkpoint, long="windows"), embed(short, checkpoint, long="cut"))


def test_every_way_to_ask_for_windows_gives_the_same(checkpoint: Path, tmp_path: Path) -> None:
    expected = embed(TEXTS, checkpoint, long="windows", stride=7)
    written = embed_stream(TEXTS, tmp_path / "x.npy", checkpoint, long="windows", stride=7, part_rows=2)
    embedder = Embedder(checkpoint, Recipe(long="windows", stride=7))
    features = TextFeatures(checkpoint, long="windows", stride=7, cache=tmp_path / "rows").fit(TEXTS)
    some = features.transform(TEXTS[:2])
    for got in (embedder(TEXTS), embedder.prefetched(TEXTS), np.load(tmp_path / "x.npy"), features.transform(TEXTS)):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(some, expected[:2], rtol=0, atol=1e-5)
    assert (written.windowed, written.windows, written.truncated) == (2, 5 + 2, 0)
    for account in (embedder.account, features.account_):
        assert (account.texts, account.windowed, account.windows, account.truncated) == (5, 2, 7, 0)


def test_a_text_cut_is_warned_of_and_one_refused_is_named(checkpoint: Path) -> None:
    with pytest.warns(TruncationWarning, match="^2 of 5 texts are longer than 20 tokens"):
        embed(TEXTS, checkpoint, long="cut")
    with pytest.raises(ValueError, match=r"row 1 has 47 tokens, more than max_length 20.*long='cut'"):
        embed(TEXTS, checkpoint, long="error")


def test_pairs_have_no_windows(checkpoint: Path) -> None:
    with pytest.raises(ValueError, match="windows are of single texts; for pairs use long='cut' or 'error'"):
        embed(TEXTS, checkpoint, pairs=TEXTS, long="windows")


def test_some_texts_are_taken_with_their_windows(checkpoint: Path) -> None:
    tokens = minibert.load_tokenizer(checkpoint)
    made = tokens.counted(TEXTS, long="windows")
    taken = made.take([4, 1])
    assert taken.windows == [2, 4] and taken.ids == [*made.ids[7:9], *made.ids[1:5]]
    assert [made.text_of(row) for row in range(len(made.ids))] == [0, 1, 1, 1, 1, 2, 3, 4, 4]


# -- the command line and the classifier


def test_the_commands_say_how_many_texts_had_windows(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.txt").write_text("\n".join(TEXTS))
    (tmp_path / "in.tsv").write_text("".join(f"{text}\t{row % 2}\n" for row, text in enumerate(TEXTS * 2) if text))
    common = ["--model", str(checkpoint), "--long", "windows"]
    assert main(["embed", str(tmp_path / "in.txt"), "--out", str(tmp_path / "x.npy"), *common]) == 0
    assert "2 of 5 texts in 6 windows" in capsys.readouterr().out
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), embed(TEXTS, checkpoint, long="windows"), rtol=0, atol=1e-5)
    out = str(tmp_path / "classifier")
    assert main(["classify", "train", str(tmp_path / "in.tsv"), "--out", out, "--stride", "18", *common]) == 0
    assert "4 of 8 texts in 10 windows" in capsys.readouterr().out
    assert main(["classify", "train", str(tmp_path / "in.tsv"), "--out", out, "--overwrite", "--stride", "4"]) == 2
    assert "stride is 4 and long is 'cut'" in capsys.readouterr().err


def test_a_saved_classifier_keeps_its_windows(checkpoint: Path, tmp_path: Path) -> None:
    trained = train(GOOD + BAD, [1, 1, 1, 0, 0, 0], model=str(checkpoint), long="windows", stride=5)
    trained.save(tmp_path)
    loaded = Classifier.load(tmp_path)
    assert (loaded.features.long, loaded.features.stride) == ("windows", 5)
    np.testing.assert_array_equal(loaded.predict_proba(TEXTS), trained.predict_proba(TEXTS))


# -- texts of any length, piece by piece

FRAGMENTS = [
    *["a", "b", "word", "##ing", "x" * 99, "x" * 101, "q" * 30, "é", "e\u0301", "\u0301", "İ", "ß", "한국", "ขไทย"],
    *[" ", "  ", "\n", "\t", "\0", "\0" * 14, "\u200b", "\x85", "\x1c", "\ufffd", "中", "，", ",", ".", "[", "]"],
    *["[SEP]", "[MASK]", "[UNK]", "[SE", "P]", "[sep]"],
]


@pytest.mark.parametrize("special_tokens_in_text", ["parse", "literal"])
@settings(max_examples=300)
@given(
    text=st.lists(st.sampled_from(FRAGMENTS), max_size=30).map("".join),
    piece=st.sampled_from([3, 7, 12, 17, 40, 150]),
    enough=st.integers(1, 12),
)
def test_pieces_give_the_ids_of_the_whole_text(special_tokens_in_text: str, text: str, piece: int, enough: int) -> None:
    whole = tokenizer(special_tokens_in_text)
    expected = whole._backend.encode(text, add_special_tokens=False).ids
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(piecewise, "PIECE", piece)
        assert whole._piecewise.ids(text) == (expected, True)
        ids, complete = whole._piecewise.ids(text, enough)
    assert ids == expected[: len(ids)] and (complete or len(ids) >= enough)
    assert not complete or ids == expected


def test_pieces_that_are_cut_anywhere_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "unbelievable rumination " * 20
    expected = tokenizer().ids([text], max_length=512)[0][1:-1]
    monkeypatch.setattr(piecewise, "PIECE", 30)
    assert tokenizer()._piecewise.ids(text)[0] == expected
    monkeypatch.setattr(piecewise.Piecewise, "certain", lambda self, made, length: len(made) - 1)
    assert tokenizer()._piecewise.ids(text)[0] != expected


@pytest.mark.parametrize("change", [{"normalizer": {"type": "Lowercase"}}, {"pre_tokenizer": {"type": "Whitespace"}}])
def test_a_tokenizer_of_another_kind_reads_a_long_text_whole(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Tokenizer(tokenizer()._definition | change)
    text = "Unbelievable rumination, " * 20
    expected = other.ids([text])
    monkeypatch.setattr(piecewise, "PIECE", 30)
    monkeypatch.setattr("minibert.text.tokenizer.PIECE", 30)
    assert not other._piecewise.possible and other.ids([text]) == expected
    assert other([text]).input_ids.tolist() == expected


@pytest.mark.parametrize("text", ["hello world, it is " * 60, "中" * 500, "a" * 500, "\0" * 300 + "ok"])
def test_long_texts_are_the_same_batch_and_the_same_rows(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, partners = ["short", text], [text + " end", "short"]

    def all_of_it() -> list[Any]:
        batch = tokenizer()(texts, max_length=50)
        both = tokenizer()(texts, partners, max_length=51)
        fields = ("tokens", "offsets", "word_ids", "truncated")
        return [
            tokenizer().ids(texts, max_length=50),
            *[getattr(made, name) for made in (batch, both) for name in fields],
            both.longest,
            tokenizer().counted(as_rows(texts, partners), max_length=51),
            tokenizer().counted(texts, max_length=50, long="windows"),
        ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *given, **more: None)
        expected = all_of_it()
        monkeypatch.setattr(piecewise, "PIECE", 200)
        monkeypatch.setattr("minibert.text.tokenizer.PIECE", 200)
        assert all_of_it() == expected


def test_what_was_not_counted_to_the_end_is_said_to_be_a_least_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(piecewise, "PIECE", 100)
    monkeypatch.setattr("minibert.text.tokenizer.PIECE", 100)
    for call in (tokenizer().ids, tokenizer()):
        with pytest.warns(
            TruncationWarning, match=r"^1 of 2 texts are longer than 10 tokens \(the longest has at least"
        ):
            call(["short", "hello " * 600], max_length=10)
        with pytest.raises(ValueError, match=r"row 1 has at least .* tokens, more than max_length 10"):
            call(["short", "hello " * 600], max_length=10, truncation="error")


MEMORY = """
import resource, sys
import minibert
tokenizer = minibert.load_tokenizer(sys.argv[1])
tokenizer.ids(["warm"])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
text = eval(sys.argv[2])
tokenizer.counted([text], long=sys.argv[3])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in kilobytes on Linux alone")
@pytest.mark.parametrize(
    ("text", "long", "most"),
    [
        ("'good film, ' * 2_000_000", "cut", 120),  # 24 MB; 2.5 GB when it was tokenized as a whole
        ("'\\0' * 20_000_000", "cut", 120),
        ("'a' * 3_000_000", "cut", 120),
        ("'good film, ' * 200_000", "windows", 150),
    ],
)
def test_a_line_of_megabytes_takes_little_more_memory_than_itself(text: str, long: str, most: int) -> None:
    command = [sys.executable, "-c", MEMORY, str(minilm_folder()), text, long]
    assert float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) < most


# -- numbers that are none


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A checkpoint whose word "awful" became infinite after it was loaded: a file with such a weight is refused."""
    folder = write_words_checkpoint(tmp_path / "words")
    Embedder(folder).engine.embeddings.token[minibert.load_tokenizer(folder).vocab["awful"], 0] = float("inf")
    return folder


ASKING: dict[str, Callable[[list[str], Path, Path], object]] = {
    "embed": lambda texts, folder, _: embed(texts, folder),
    "pairs": lambda texts, folder, _: embed(GOOD * 7, folder, pairs=texts),
    "windows": lambda texts, folder, _: embed([LONG, *texts[1:]], folder, long="windows"),
    "prefetched": lambda texts, folder, _: Embedder(folder).prefetched(texts),
    "stream": lambda texts, folder, out: embed_stream(texts, out / "x.npy", folder, part_rows=4),
    "features": lambda texts, folder, _: TextFeatures(folder).fit_transform(texts),
}


@pytest.mark.parametrize("ask", ASKING.values(), ids=ASKING)
def test_a_vector_that_is_not_finite_is_an_error_that_names_the_row(ask: Any, damaged: Path, tmp_path: Path) -> None:
    texts = GOOD * 7
    assert len(texts) == 21
    ask(texts, damaged, tmp_path)  # of other words, all is well; and features know these rows from now on
    texts[17] = "an awful film"
    (tmp_path / "x.npy").unlink(missing_ok=True)
    with pytest.raises(
        ValueError, match="row 17 has a vector with NaN or infinity in it, computed in float32: the wei"
    ):
        ask(texts, damaged, tmp_path)


def test_the_error_of_float16_says_what_to_do_and_survives_a_pickle() -> None:
    import pickle

    import torch

    from minibert.vectors.engine import NotFiniteError

    error = pickle.loads(pickle.dumps(NotFiniteError(3, torch.float16)))
    assert str(error).startswith("row 3 has a vector") and "use precision='bfloat16' or 'float32'" in str(error)


def test_numbers_of_a_classifier_that_overflow_are_an_error_that_names_the_row(checkpoint: Path) -> None:
    classifier = train(GOOD + BAD, [1, 1, 1, 0, 0, 0], model=str(checkpoint))
    sound = classifier.predict_proba(GOOD)
    classifier.head[-1].coef_ = np.full_like(classifier.head[-1].coef_, 3e38)
    for ask in (classifier.predict, classifier.predict_proba):
        with pytest.raises(ValueError, match=r"row 0 has a (score|probability) that is NaN or infinite"):
            ask(GOOD)
    classifier.head[0].scale_ = np.full_like(classifier.head[0].scale_, 1e-320)
    with pytest.raises(ValueError, match="row 0 has a feature that is NaN or infinite"):
        classifier.predict(GOOD)
    assert np.isfinite(sound).all()


def test_finite_vectors_are_not_refused(checkpoint: Path) -> None:
    assert np.isfinite(Engine(minibert.load(checkpoint)).vectors([[2, 5, 3]])).all()
