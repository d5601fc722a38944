"""Batches of examples and of a corpus: a function of their number, with every row once and labels that are true.

Of a corpus every line is read once, whatever the windows, and what is no corpus is refused.
"""

from dataclasses import replace
from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.training import CHOICES, batches_of, examples, write_corpus
from support.words import write_words_checkpoint

from minibert.inputs import IGNORED
from minibert.prediction.collate import ExampleBatch, collate
from minibert.tasks.base import Example
from minibert.text.masking import Masking
from minibert.text.tokenized import SpecialTokenTemplate
from minibert.text.tokenizer import load_tokenizer
from minibert.train.batches import (
    Batches,
    NextSentencePairs,
    Packing,
    Pairing,
    SentenceOrder,
    Stream,
    cut_pair,
    epoch_order,
)
from minibert.train.corpus import CorpusFile

# ---------------------------------------------------------------------------------------------------------------
# Examples


def numbered(count: int) -> list[Example]:
    return [Example([row], [0], {"labels": row}) for row in range(count)]


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 2**31), st.integers(0, 3), st.data())
def test_an_epoch_has_each_row_once_and_can_begin_at_any_batch(count, batch_size, seed, epoch, data):
    batches = Batches(numbered(count), batch_size, seed, pad_id=0)
    rows = [batch.rows for batch in batches.epoch_batches(epoch)]
    assert len(rows) == batches.batches_per_epoch
    assert sorted(row for batch in rows for row in batch) == list(range(count))
    assert all(len(batch) == batch_size for batch in rows[:-1])
    first = data.draw(st.integers(0, batches.batches_per_epoch))
    assert [batch.rows for batch in batches.epoch_batches(epoch, first)] == rows[first:]


def test_seed_and_epoch_alone_determine_the_order_and_no_row_is_preferred():
    found = [tuple(epoch_order(50, seed, epoch)) for seed in range(4) for epoch in range(4)]
    assert len(set(found)) == len(found)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    assert tuple(epoch_order(50, 3, 2)) == found[14]
    assert torch.equal(torch.get_rng_state(), before)
    seen = torch.bincount(torch.tensor([epoch_order(8, seed, 0)[0] for seed in range(1600)]), minlength=8)
    assert seen.min() > 140 and seen.max() < 260  # 200 each; four standard errors are 53


@given(st.lists(st.integers(1, 11), min_size=1, max_size=12))
def test_padding_is_on_the_right_and_masked(lengths):
    made = examples("token-classification", lengths)
    batch = collate(made, range(len(made)), pad_id=7)
    assert batch.input_ids.shape == (len(lengths), max(lengths))
    assert batch.tokens == sum(lengths)
    for row, (example, length) in enumerate(zip(made, lengths, strict=True)):
        padding = max(lengths) - length
        assert batch.input_ids[row].tolist() == [*example.ids, *[7] * padding]
        assert batch.attention_mask[row].tolist() == [1] * length + [0] * padding
        assert batch.token_type_ids[row].tolist() == [*example.segments, *[0] * padding]
        assert batch.labels["labels"][row].tolist() == [*example.labels["labels"], *[IGNORED] * padding]


@pytest.mark.parametrize(
    ("values", "dtype", "shape"),
    [
        ([1, 0], torch.int64, (2,)),
        ([0.5, 1.0], torch.float32, (2,)),
        ([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]], torch.float32, (2, 3)),
        ([[1, 2], [3, IGNORED]], torch.int64, (2, 2)),
    ],
)
def test_labels_have_the_dtype_and_shape_of_their_kind(values, dtype, shape):
    made = [Example([1, 2], [0, 0], {"labels": value}) for value in values]
    labels = collate(made, (0, 1), pad_id=0).labels["labels"]
    assert labels.dtype == dtype and tuple(labels.shape) == shape


def test_the_choices_of_a_question_stay_together_with_the_label_of_the_first():
    batches = batches_of("multiple-choice", 7, 3)
    assert batches.rows == 7
    for batch in batches.epoch_batches(1):
        assert len(batch.input_ids) == CHOICES * len(batch.rows)
        numbers = [row * CHOICES + choice for row in batch.rows for choice in range(CHOICES)]
        for ids, mask, number in zip(batch.input_ids, batch.attention_mask, numbers, strict=True):
            assert ids[mask.bool()].tolist() == batches.examples[number].ids
        assert batch.labels["labels"].tolist() == [batches.examples[n].labels["labels"] for n in numbers[::CHOICES]]


def test_examples_are_augmented_by_epoch_and_row():
    def augment(example, epoch, row):
        return replace(example, ids=[100 * epoch + row])

    batches = Batches(numbered(10), 4, 0, pad_id=0, augment=augment)
    for epoch in range(2):
        for batch in batches.epoch_batches(epoch):
            assert batch.input_ids[:, 0].tolist() == [100 * epoch + row for row in batch.rows]


# ---------------------------------------------------------------------------------------------------------------
# Documents to rows

CLS, SEP, LONG = 1, 2, 40
PAIRINGS = [None, NextSentencePairs(), SentenceOrder()]


def documents(count: int, sentences: int, length: int = 5) -> list[list[list[int]]]:
    """Every token is unique: document · 10,000 + its position."""
    starts = [[10_000 * (n + 1) + s * length for s in range(sentences)] for n in range(count)]
    return [[list(range(start, start + length)) for start in document] for document in starts]


def texts(row: Example) -> list[list[int]]:
    """The texts of a row without special tokens."""
    ids = list(row.ids)
    assert ids[0] == CLS and ids[-1] == SEP
    cut = ids.index(SEP)
    return [ids[1:cut]] if cut == len(ids) - 1 else [ids[1:cut], ids[cut + 1 : -1]]


def packing(pairing: Pairing | None, max_length: int = LONG) -> Packing:
    return Packing(pairing, max_length, SpecialTokenTemplate((CLS,), (SEP,), (SEP,)))


@settings(deadline=None, max_examples=80)
@given(
    st.sampled_from(PAIRINGS),
    st.lists(st.lists(st.lists(st.integers(10, 99), min_size=1, max_size=30), min_size=1, max_size=8), max_size=5),
    st.integers(8, 40),
    st.integers(0, 9),
)
def test_rows_fit_and_have_special_tokens(pairing, given, most, seed):
    for row in packing(pairing, most).rows(given, Random(seed)):
        parts = texts(row)
        assert len(row.ids) <= most and len(parts) == (1 if pairing is None else 2) and all(parts)
        expected = [0] * (len(parts[0]) + 2) + ([1] * (len(parts[1]) + 1) if len(parts) > 1 else [])
        assert list(row.segments) == expected


def test_one_text_a_row_loses_no_token_and_one_row_in_ten_is_short():
    given = documents(40, 400)
    rows = packing(None).rows(given, Random(0))
    all_ids = [id for document in given for sentence in document for id in sentence]
    assert sorted(id for row in rows for id in texts(row)[0]) == sorted(all_ids)
    short = sum(len(row.ids) < LONG for row in rows) / len(rows)
    assert 0.05 < short < 0.12  # a tenth, less those drawn at full length, more the ends of documents


def test_a_row_has_one_sentence_and_a_long_one_is_cut_into_several():
    given = [[[11, 12, 13], [14]], [list(range(20, 50))]]
    rows = replace(packing(None, 22), by_sentence=True).rows(given, Random(3))
    assert sorted(texts(row)[0] for row in rows) == [[11, 12, 13], [14], list(range(20, 40)), list(range(40, 50))]


def test_half_of_the_second_texts_follow_and_half_are_from_another_document():
    rows = packing(NextSentencePairs()).rows(documents(50, 60), Random(0))
    labels = [row.labels["next_sentence_label"] for row in rows]
    assert 0.45 < sum(labels) / len(labels) < 0.55
    for row, label in zip(rows, labels, strict=True):
        a, b = texts(row)
        assert (a[0] // 10_000 != b[0] // 10_000) == bool(label)
        assert label or 0 < b[0] - a[-1] <= LONG  # after it, less what was cut
    copied = packing(NextSentencePairs()).rows(documents(1, 60) * 50, Random(0))  # the control: fifty times the same
    random = [texts(row) for row in copied if row.labels["next_sentence_label"]]
    assert not all(a[0] // 10_000 != b[0] // 10_000 for a, b in random)
    alone = packing(NextSentencePairs()).rows(documents(1, 30), Random(0))  # no other document
    assert {row.labels["next_sentence_label"] for row in alone} == {0}
    assert packing(NextSentencePairs()).rows(documents(1, 1), Random(0)) == []


def test_sentences_of_the_same_document_are_in_order_or_swapped():
    rows = packing(SentenceOrder()).rows(documents(50, 60), Random(0))
    labels = [row.labels["sentence_order_label"] for row in rows]
    assert 0.45 < sum(labels) / len(labels) < 0.55
    for row, label in zip(rows, labels, strict=True):
        a, b = texts(row)
        assert a[0] // 10_000 == b[0] // 10_000
        assert (a[0] > b[0]) == bool(label)


@pytest.mark.parametrize(
    ("given", "pairs"),
    [
        ([[[11]], [[21], [22]]], [[[21], [22]]]),  # a document of one token has no second text
        ([[[11] * 37, [12]]], [[[11] * 36, [12]]]),  # the last token goes with the text before it, which is cut
        ([[[11, 12]]], [[[11], [12]]]),  # a single sentence is cut in two
        ([[[11]]], []),
    ],
)
def test_both_texts_of_a_pair_in_order_or_swapped_have_a_token(given, pairs):
    rows = packing(SentenceOrder()).rows(given, Random(0))
    assert [texts(row)[:: -1 if row.labels["sentence_order_label"] else 1] for row in rows] == pairs


@pytest.mark.parametrize(("a", "b"), [(30, 3), (3, 30), (20, 20), (5, 5)])
def test_a_pair_is_cut_from_its_longer_text_at_either_end(a, b):
    first, second = list(range(100, 100 + a)), list(range(200, 200 + b))
    cuts = [cut_pair(first, second, 12, Random(seed)) for seed in range(40)]
    for one, two in cuts:
        assert len(one) + len(two) == min(12, a + b)
        assert one == list(range(one[0], one[0] + len(one)))
        assert min(a, b) > 6 or min(len(one), len(two)) == min(a, b)  # the shorter one is whole
    assert a + b <= 12 or len({(one[0], two[0]) for one, two in cuts}) > 3


# ---------------------------------------------------------------------------------------------------------------
# Batches of a corpus


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stream")
    write_words_checkpoint(folder)
    write_corpus(folder / "corpus.txt", 40)
    return folder


def stream(
    folder: Path, pairing: Pairing | None = PAIRINGS[1], journal: Path | None = None, window: int = 200
) -> Stream:
    """24 batches of four rows, of many small windows."""
    tokenizer = load_tokenizer(folder)
    corpus = replace(CorpusFile.of(folder / "corpus.txt"), window=window)
    packing = Packing(pairing, 16, tokenizer.template)
    return Stream(corpus, tokenizer, packing, Masking.of(tokenizer), 4, 24, 0, tokenizer.pad_id, journal)


def assert_same(batches: list[ExampleBatch], again: list[ExampleBatch]) -> None:
    for one, other in zip(batches, again, strict=True):
        assert torch.equal(one.input_ids, other.input_ids)
        assert torch.equal(one.labels["labels"], other.labels["labels"])


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_each_batch_is_a_function_of_its_number(pairing, folder):
    whole = list(stream(folder, pairing).epoch_batches(0))
    for first in (1, 7, 23):
        assert_same(whole[first:], list(stream(folder, pairing).epoch_batches(0, first)))


@pytest.mark.parametrize("damage", ["a digit", "cut", "junk", "empty"])
def test_a_damaged_journal_is_named_and_its_windows_are_counted_again(damage, folder, tmp_path):
    journal = tmp_path / "windows.txt"
    whole = list(stream(folder, journal=journal).epoch_batches(0))
    text = journal.read_bytes()
    damaged = {"a digit": bytes([text[0] ^ 1]) + text[1:], "cut": text[:-20], "junk": b"\xff\x00", "empty": b""}
    journal.write_bytes(damaged[damage])
    with pytest.warns(UserWarning, match=rf"{journal}.*damaged"):
        assert_same(whole[20:], list(stream(folder, journal=journal).epoch_batches(0, 20)))
    assert journal.read_bytes() == text


def test_windows_of_earlier_batches_are_not_read_again(folder, tmp_path):
    journal = tmp_path / "windows.txt"
    whole = list(stream(folder, journal=journal).epoch_batches(0))
    assert_same(whole, list(stream(folder).epoch_batches(0)))
    with patch.object(Stream, "window_rows", autospec=True, side_effect=Stream.window_rows) as read:
        assert_same(whole[20:], list(stream(folder, journal=journal).epoch_batches(0, 20)))
    assert stream(folder).corpus.windows > 5 and min(call.args[1] for call in read.mock_calls) > 5


def test_other_tokens_are_masked_each_time_a_sentence_is_used(folder):
    seen = {}
    for batch in stream(folder, None, window=10**6).epoch_batches(0):
        for ids, labels in zip(batch.input_ids, batch.labels["labels"], strict=True):
            original = torch.where(labels == IGNORED, ids, labels)
            seen.setdefault(tuple(original.tolist()), set()).add(tuple(labels.tolist()))
    assert max(map(len, seen.values())) > 2


# ---------------------------------------------------------------------------------------------------------------
# A corpus in windows

TEXT = "the film .\nit is good .\n\na book\n\n\nthe meal\nvery bad\n"


def write_text(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def test_documents_are_separated_by_empty_lines_and_paragraphs_are_split_into_sentences(tmp_path):
    corpus = CorpusFile.of(write_text(tmp_path / "c.txt", "\ufeff" + TEXT))
    assert corpus.windows == 1
    assert corpus.documents(0) == [["the film .", "it is good ."], ["a book"], ["the meal", "very bad"]]
    path = write_text(tmp_path / "p.txt", "One . Two ? Three ! 3.5 and so on\n\nfour\n")
    assert CorpusFile.of(path, paragraphs=True).documents(0) == [
        ["One .", "Two ?", "Three !", "3.5 and so on"],
        ["four"],
    ]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.text("ab é\r\t", max_size=12), max_size=20),
    st.integers(1, 40),
    st.booleans(),
)
def test_windows_of_any_size_hold_each_line_once(tmp_path_factory, lines, window, ends):
    text = "\n".join([*lines, "x"]) + ("\n" if ends else "")
    path = write_text(tmp_path_factory.mktemp("corpus") / "c.txt", text)
    corpus = CorpusFile(path, path.stat().st_size, window=window)
    found = [list(corpus.lines(number)) for number in range(corpus.windows)]
    assert "".join(line for lines in found for line in lines) == text
    assert all(len("".join(lines[:-1]).encode()) < window for lines in found)  # no more than a line beyond it is read


def test_the_end_of_the_file_is_held_out_and_not_learned_from(tmp_path):
    path = write_text(tmp_path / "c.txt", "".join(f"line {number}\n" for number in range(5000)))
    learned, held_out = CorpusFile.of(path).split()
    before, after = ([*part.lines(0)] for part in (learned, held_out))
    assert [*before, *after] == path.read_text().splitlines(keepends=True)
    assert 0 < len(after) <= 600


def test_sentences_come_as_ids_and_what_vanishes_is_dropped(tmp_path):
    tokenizer = load_tokenizer(write_words_checkpoint(tmp_path / "checkpoint"))
    path = write_text(tmp_path / "c.txt", "the film\n\u200b\ngood\n\n\u200b\n\nbad\n")
    ids = tokenizer.vocab
    assert CorpusFile.of(path).tokenized(0, tokenizer) == [[[ids["the"], ids["film"]], [ids["good"]]], [[ids["bad"]]]]


def test_the_fingerprint_tells_another_corpus_and_another_way_to_read_it(tmp_path):
    one = CorpusFile.of(write_text(tmp_path / "one.txt", TEXT))
    other = CorpusFile.of(write_text(tmp_path / "other.txt", TEXT.replace("bad", "sad")))
    same = CorpusFile.of(write_text(tmp_path / "same.txt", TEXT))
    assert one.fingerprint == same.fingerprint
    assert len({one.fingerprint, other.fingerprint, CorpusFile.of(one.path, paragraphs=True).fingerprint}) == 3


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x1f\x8b\x08", r"UTF-8.*byte 0\b"),
        (b"fine\n\x00\x01\n", r"byte 5\b"),
        (b"fine\n\xff\xfe\n", r"byte 5\b"),
        (b"fine\n" + b"a" * 2**20 + b"b\n", r"byte 5 .*1,048,576"),
    ],
    ids=["compressed", "zeros", "not UTF-8", "one line"],
)
def test_what_is_no_corpus_is_refused(content, words, tmp_path):
    (tmp_path / "c.txt").write_bytes(content)
    with pytest.raises(ValueError, match=words):
        CorpusFile.of(tmp_path / "c.txt").documents(0)
    with pytest.raises(FileNotFoundError, match=r"none\.txt"):
        CorpusFile.of(tmp_path / "none.txt")
