"""A very long text gives the ids of the whole text, piece by piece, in little memory."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from helpers import minilm_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizers import CLASSES, FRAGMENTS, write_saved

from minibert.text import tokenized as long_texts
from minibert.text.texts import as_texts_or_pairs
from minibert.text.tokenizer import Tokenizer, TruncationWarning, load_tokenizer

every_family = pytest.mark.parametrize("family", ["bert", "literal", *CLASSES])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tokenizer]:
    """The small tokenizer of a family."""

    @cache
    def load(family: str) -> Tokenizer:
        if family in ("bert", "literal"):
            return load_tokenizer(minilm_folder(), special_tokens_in_text="parse" if family == "bert" else "literal")
        folder = tmp_path_factory.mktemp("tokenizers") / family
        write_saved(folder, family)
        return load_tokenizer(folder)

    return load


@pytest.fixture
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes texts of this many characters very long."""

    def shorten(size: int) -> None:
        monkeypatch.setattr(long_texts, "PIECE", size)
        monkeypatch.setattr("minibert.text.tokenizer.PIECE", size)

    return shorten


@every_family
@settings(max_examples=100)
@given(
    text=st.lists(st.sampled_from(FRAGMENTS), max_size=30).map("".join),
    piece=st.sampled_from([3, 7, 12, 17, 40]),
    enough=st.integers(1, 12),
)
def test_pieces_give_the_ids_of_the_whole_text(family: str, tokenizer: Any, text: str, piece: int, enough: int) -> None:
    expected = tokenizer(family)._backend.encode(text, add_special_tokens=False).ids
    assert tokenizer(family)._in_pieces
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_texts, "PIECE", piece)
        assert "".join(long_texts.pieces_of(text)) == text
        assert tokenizer(family)._long_ids(text, None) == (expected, True)
        ids, complete = tokenizer(family)._long_ids(text, enough)
    assert ids == expected[: len(ids)] and (complete or len(ids) >= enough)
    assert not complete or ids == expected


@pytest.mark.parametrize("mistake", ["", "(?<= )"], ids=["anywhere", "after a space"])
def test_pieces_that_end_elsewhere_would_be_noticed(
    mistake: str, tokenizer: Any, short_pieces: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "and the unbelievable cat sat on the mat " * 20
    expected = tokenizer("roberta").encode(text, add_special_tokens=False)
    short_pieces(30)
    assert tokenizer("roberta")._long_ids(text, None)[0] == expected
    monkeypatch.setattr(long_texts, "BOUNDARY", mistake)
    assert tokenizer("roberta")._long_ids(text, None)[0] != expected


@pytest.mark.parametrize(
    ("family", "change"),
    [
        ("bert", {"normalizer": {"type": "Replace", "pattern": {"String": "a b"}, "content": "ab"}}),
        ("bert", {"pre_tokenizer": {"type": "Whitespace"}}),
        ("roberta", {"normalizer": {"type": "Prepend", "prepend": "x"}}),
        ("albert", {"pre_tokenizer": {"type": "Whitespace"}}),
        ("camembert", {"pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"}}),
    ],
)
def test_a_tokenizer_that_splits_in_another_way_reads_a_long_text_whole(
    family: str, change: dict[str, Any], tokenizer: Any, short_pieces: Any
) -> None:
    other = Tokenizer(tokenizer(family)._definition | change)
    text = "Unbelievable rumination, " * 10
    expected = other.ids([text])
    short_pieces(30)
    assert not other._in_pieces and other.ids([text]) == expected == other([text]).input_ids.tolist()


@every_family
@pytest.mark.parametrize("text", ["hello world, it is " * 60, "中" * 500, "a\n" * 300, "\0" * 300 + "ok"], ids=ascii)
def test_long_texts_are_the_same_batch_and_the_same_rows(
    family: str, text: str, tokenizer: Any, short_pieces: Any
) -> None:
    texts, partners = ["short", text], [text + " end", "short"]

    def results() -> list[Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = tokenizer(family)(texts, max_length=50), tokenizer(family)(texts, partners, max_length=51)
            rows = tokenizer(family).ids(texts, max_length=50)
        pairs = tokenizer(family).encode_texts(as_texts_or_pairs(texts, partners), max_length=51)
        windows = tokenizer(family).encode_texts(texts, max_length=50, long="windows")
        return [
            rows,
            pairs,
            windows,
            *((one.tokens, one.offsets, one.word_ids, one.truncated, one.longest) for one in made),
        ]

    expected = results()
    short_pieces(64)
    assert results() == expected


def test_a_text_not_tokenized_to_its_end_has_at_least_so_many_tokens(tokenizer: Any, short_pieces: Any) -> None:
    short_pieces(100)
    with pytest.warns(TruncationWarning, match=r"^1 of 2 texts are longer than 10 tokens \(the longest has at least"):
        tokenizer("bert").ids(["short", "hello " * 600], max_length=10)
    with pytest.raises(ValueError, match=r"row 1 has at least .* tokens, more than max_length 10"):
        tokenizer("bert").ids(["short", "hello " * 600], max_length=10, truncation="error")


MEMORY = """
import resource, sys
import minibert
tokenizer = minibert.load_tokenizer(sys.argv[1])
tokenizer.ids(["warm"])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
text = "good film, " * int(sys.argv[2])
tokenizer.encode_texts([text], long=sys.argv[3])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in kilobytes on Linux alone")
@pytest.mark.parametrize(("repeats", "long", "most"), [(2_000_000, "cut", 120), (200_000, "windows", 150)])
def test_a_line_of_megabytes_takes_little_more_memory_than_itself(repeats: int, long: str, most: int) -> None:
    command = [sys.executable, "-c", MEMORY, str(minilm_folder()), str(repeats), long]
    assert float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) < most  # 2.5 GB as a whole
