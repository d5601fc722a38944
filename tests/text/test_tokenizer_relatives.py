"""The tokenizers of RoBERTa, XLM-R, CamemBERT and ALBERT equal transformers', in everything that BERT's does."""

from __future__ import annotations

import json
import pickle
import random
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import HARD_TEXTS, write_checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizers import CLASSES, SENTENCES, write_config, write_saved, write_vocabulary
from transformers import AutoTokenizer

import minibert
from minibert.tasks.answering import Answering
from minibert.tasks.choice import Choice, question_of
from minibert.tasks.masked_text import fill_mask
from minibert.tasks.squad import Gold, Question, Questions
from minibert.tasks.tagging import Sentences, Tagging
from minibert.text import piecewise
from minibert.text.tokenizer import Tokenizer, TruncationWarning, load_tokenizer
from minibert.tracing.data import choose, page_data

SPECIAL = ["<s>", "</s>", "<mask>", "[MASK]", "[SEP]", "<unk>", "<pad>"]
TEXTS = [
    *HARD_TEXTS,
    *SENTENCES,
    "a <mask> b",
    "I like [MASK] . <mask>!",
    "<s> a </s>",
    " two  spaces ",
    "a\x1cb \x1d c",
]
SHORT = [*SENTENCES, "", " ", "a <mask> or [MASK]"]
FRAGMENTS = [
    *[
        "a",
        "b",
        "word",
        "don't",
        "'l",
        "'",
        "re",
        "x" * 30,
        "é",
        "e\u0301",
        "\u0301",
        "İ",
        "ß",
        "한국",
        "ขไทย",
        "\u0e33",
    ],
    *[
        "\u0600",
        "ﬁ",
        "ª\u102b",
        "``",
        "''",
        "  ",
        "\n",
        "\t",
        "\0",
        "\u200b",
        "\x85",
        "\x1c",
        "\xa0",
        "\u3000",
        "中",
        "，",
    ],
    *[",", ".", "▁", "Ġ", "1", "1,", "<ma", "sk>", *SPECIAL, *[" "] * 12],
]
ANY_TEXT = st.lists(
    st.one_of(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), st.sampled_from(FRAGMENTS)), max_size=12
).map("".join)

every_relative = pytest.mark.parametrize("family", CLASSES)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a relative, as transformers saves it, for reading only."""

    @cache
    def folder(family: str) -> Path:
        path = tmp_path_factory.mktemp("tokenizers") / family
        write_saved(path, family)
        return path

    return folder


@pytest.fixture(scope="session")
def both(folders: Callable[[str], Path]) -> Callable[[str], tuple[Tokenizer, Any]]:
    """Ours and theirs, of the same folder."""

    @cache
    def both(family: str) -> tuple[Tokenizer, Any]:
        return load_tokenizer(folders(family)), AutoTokenizer.from_pretrained(folders(family))

    return both


def differences(
    ours: Tokenizer, theirs: Any, texts: list[str], pairs: list[str] | None = None, **options: Any
) -> list[str]:
    """The texts that the two do not read alike."""
    columns = [texts] if pairs is None else [texts, pairs]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = ours(*columns, **options)
        asked = {"padding": True, "truncation": True, "max_length": 512, "return_offsets_mapping": True} | options
        expected = theirs(*columns, return_token_type_ids=True, **asked)
    return [
        text
        for row, text in enumerate(texts)
        if made.input_ids[row].tolist() != expected["input_ids"][row]
        or made.attention_mask[row].tolist() != expected["attention_mask"][row]
        or made.token_type_ids[row].tolist() != expected["token_type_ids"][row]
        or made.offsets[row] != expected["offset_mapping"][row]
        or made.tokens[row] != expected.tokens(row)
        or made.word_ids[row] != expected.word_ids(row)
    ]


# -- equal to transformers


@every_relative
def test_hard_texts_equal_transformers_in_ids_offsets_and_words(family: str, both: Any) -> None:
    assert differences(*both(family), TEXTS) == []


@every_relative
@settings(max_examples=60)
@given(text=ANY_TEXT, partner=ANY_TEXT, max_length=st.integers(6, 30))
def test_any_text_and_any_pair_equal_transformers_also_when_cut(
    family: str, both: Any, text: str, partner: str, max_length: int
) -> None:
    assert differences(*both(family), [text]) == []
    assert differences(*both(family), [text], [partner], max_length=max_length) == []


@every_relative
def test_pairs_of_all_short_lengths_are_cut_as_transformers_cuts_them(family: str, both: Any) -> None:
    first, second = zip(*[("a " * n, "b " * m) for n in range(6) for m in range(6)], strict=True)
    for max_length in range(5, 12):
        assert differences(*both(family), list(first), list(second), max_length=max_length) == []


@pytest.mark.parametrize("other", [{"special_tokens_in_text": "literal"}, {"prefix": True}], ids=str)
def test_the_comparison_with_transformers_notices_another_setting(other: dict, both: Any, folders: Any) -> None:
    ours, theirs = both("roberta")
    if "prefix" in other:
        theirs = AutoTokenizer.from_pretrained(folders("roberta"), add_prefix_space=True)
    else:
        ours = load_tokenizer(folders("roberta"), **other)
    assert differences(ours, theirs, TEXTS) != []


@every_relative
def test_the_vocabulary_that_it_was_released_with_gives_the_same(family: str, tmp_path: Path, both: Any) -> None:
    folder = write_vocabulary(tmp_path, family)
    if family == "albert":  # of which transformers saves that the mask leaves the space before it
        (folder / "special_tokens_map.json").write_text('{"mask_token": {"content": "[MASK]", "lstrip": false}}')
    released = load_tokenizer(folder)
    assert differences(released, both(family)[1], TEXTS) == []


@every_relative
@pytest.mark.parametrize("released", [False, True], ids=["saved", "released"])
def test_a_saved_tokenizer_is_the_same_for_transformers_and_minibert(
    family: str, released: bool, tmp_path: Path, folders: Any
) -> None:
    source = write_vocabulary(tmp_path / "source", family) if released else folders(family)
    saved = load_tokenizer(source, max_length=100)
    saved.save(tmp_path / "saved")
    write_config(tmp_path / "saved", family, 1000)
    theirs, again = AutoTokenizer.from_pretrained(tmp_path / "saved"), load_tokenizer(tmp_path / "saved")
    assert type(theirs).__name__ == CLASSES[family]
    assert again.fingerprint == saved.fingerprint
    assert theirs(SHORT)["input_ids"] == saved.ids(SHORT) == again.ids(SHORT)


def test_an_electra_has_the_tokenizer_of_bert(tmp_path: Path) -> None:
    write_config(tmp_path, "electra", 10)
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nfilm\n##s\n")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer("The films").tokens == [["[CLS]", "the", "film", "##s", "[SEP]"]]
    tokenizer.save(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)("The films")["input_ids"] == [2, 5, 6, 7, 3]


# -- special tokens and framing


@pytest.mark.parametrize(
    ("family", "text", "pair", "segments"),
    [
        ("roberta", "<s> a </s>", "<s> a </s> </s> b </s>", [0] * 6),
        ("xlm-roberta", "<s> a </s>", "<s> a </s> </s> b </s>", [0] * 6),
        ("camembert", "<s> a </s>", "<s> a </s> </s> b </s>", [0] * 6),
        ("albert", "[CLS] a [SEP]", "[CLS] a [SEP] b [SEP]", [0, 0, 0, 1, 1]),
    ],
)
def test_texts_are_framed_as_the_relative_has_it(family: str, text: str, pair: str, segments: list, both: Any) -> None:
    tokenizer, _ = both(family)
    alone, together = tokenizer(""), tokenizer("", "")
    assert [*alone.tokens[0][:1], "a", *alone.tokens[0][1:]] == text.split()
    half = len(together.tokens[0]) - 1
    assert [*together.tokens[0][:1], "a", *together.tokens[0][1:half], "b", *together.tokens[0][half:]] == pair.split()
    assert tokenizer.framing.segments(1, 1) == segments
    assert tokenizer.framing.row([7], [8])[tokenizer.framing.second(1)] == 8


@every_relative
def test_ids_windows_and_pairs_without_padding_are_those_of_the_call(family: str, both: Any) -> None:
    tokenizer, _ = both(family)
    batch = tokenizer(SHORT, SHORT[::-1])
    made = tokenizer.counted(list(zip(SHORT, SHORT[::-1], strict=True)))
    lengths = batch.attention_mask.sum(dim=1).tolist()
    assert made.ids == [ids[:n] for ids, n in zip(batch.input_ids.tolist(), lengths, strict=True)]
    if family == "albert":
        assert made.second == [row.index(1) for row in batch.token_type_ids.tolist()]
    else:
        assert made.second is None and not batch.token_type_ids.any()
    specials = tokenizer.framing.specials(pairs=True)
    assert made.account.special == specials * len(SHORT) and specials == (3 if family == "albert" else 4)
    windows = tokenizer.counted([SENTENCES[0]], long="windows", max_length=10, stride=8)
    joined = [id for row in windows.ids for id in row[1:-1]]
    assert joined == tokenizer.encode(SENTENCES[0], add_special_tokens=False)


def test_a_pair_that_leaves_no_room_for_a_token_is_refused_with_four_special_tokens_counted(both: Any) -> None:
    tokenizer, _ = both("roberta")
    with pytest.raises(ValueError, match="for pairs it must be at least 5 and at most 512"):
        tokenizer("a", "b", max_length=4)
    with pytest.raises(ValueError, match="at most 512, the number of positions of the model"):
        tokenizer("a", max_length=513)
    with pytest.warns(TruncationWarning, match="longer than 512 tokens"):
        assert tokenizer("word " * 600).input_ids.shape == (1, 512)


@every_relative
def test_literal_never_makes_a_special_id_from_text(family: str, folders: Any) -> None:
    literal = load_tokenizer(folders(family), special_tokens_in_text="literal")
    random.seed(0)
    texts = [" ".join(random.choices(FRAGMENTS, k=20)) for _ in range(100)] + [*SPECIAL, "".join(SPECIAL)]
    control = literal.control_ids
    for copy in (literal, pickle.loads(pickle.dumps(literal))):
        assert not any(control & set(copy.encode(text, add_special_tokens=False)) for text in texts)
    batch = literal("a <s> [SEP] b")
    assert batch.special_tokens_mask[0].tolist() == [1, *[0] * (batch.input_ids.shape[1] - 2), 1]


@every_relative
def test_typed_special_tokens_are_marked_and_have_their_ids(family: str, both: Any) -> None:
    tokenizer, _ = both(family)
    name = tokenizer.id_to_token(tokenizer.mask_id)
    batch = tokenizer(f"the {name} sat")
    place = batch.input_ids[0].tolist().index(tokenizer.mask_id)
    assert batch.special_tokens_mask[0, place] == 1
    assert tokenizer.encode(f"the {name}", add_special_tokens=False)[-1] == tokenizer.mask_id


@every_relative
def test_a_pickled_tokenizer_is_the_same(family: str, both: Any) -> None:
    tokenizer, _ = both(family)
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.fingerprint == tokenizer.fingerprint and copy.ids(SHORT) == tokenizer.ids(SHORT)
    words = [["The", "cat"]]
    assert next(copy.pieces(words, words=True)).ids == next(tokenizer.pieces(words, words=True)).ids


# -- the vocabulary


@every_relative
def test_tokens_that_go_on_with_a_word_are_told_by_the_vocabulary(family: str, both: Any) -> None:
    tokenizer, _ = both(family)
    assert tokenizer.continues.shape == (max(tokenizer.vocab.values()) + 1,)
    made = next(tokenizer.pieces([" The unbelievable rumination about cats"]))
    begins = [i == 0 or made.word_ids[i] != made.word_ids[i - 1] for i in range(len(made))]
    assert (~tokenizer.continues[made.ids]).tolist() == begins
    assert not tokenizer.continues[[*tokenizer.control_ids, tokenizer.unk_id]].any()


def test_tokens_of_wordpiece_that_go_on_with_a_word_have_their_mark(minilm: Path) -> None:
    tokenizer = load_tokenizer(minilm)
    continues = tokenizer.continues
    assert np.flatnonzero(continues).tolist() == sorted(id for t, id in tokenizer.vocab.items() if t.startswith("##"))


def test_a_token_is_written_as_one_reads_it(both: Any) -> None:
    roberta, camembert = both("roberta")[0], both("camembert")[0]
    assert roberta.token_text(roberta.vocab["Ġ"]) == "Ġ"  # nothing but the mark
    assert roberta.token_text(roberta.vocab["Ã"]) == "Ã"  # half of a letter
    [[*word]] = [roberta.encode(" the", add_special_tokens=False)]
    assert "".join(roberta.token_text(id) for id in word) == "the"
    assert roberta.token_text(roberta.mask_id) == "<mask>" and roberta.token_text(10**6) == "[id 1000000]"
    assert camembert.token_text(camembert.vocab["▁T"] if "▁T" in camembert.vocab else camembert.vocab["T"]) == "T"


# -- long texts


@every_relative
@settings(max_examples=100)
@given(
    text=st.lists(st.sampled_from(FRAGMENTS), max_size=30).map("".join),
    piece=st.sampled_from([3, 7, 12, 17, 40]),
    enough=st.integers(1, 12),
)
def test_pieces_give_the_ids_of_the_whole_text(family: str, both: Any, text: str, piece: int, enough: int) -> None:
    tokenizer, _ = both(family)
    assert tokenizer._piecewise.possible
    expected = tokenizer._backend.encode(text, add_special_tokens=False).ids
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(piecewise, "PIECE", piece)
        assert tokenizer._piecewise.ids(text) == (expected, True)
        ids, complete = tokenizer._piecewise.ids(text, enough)
    assert ids == expected[: len(ids)] and (complete or len(ids) >= enough)
    assert not complete or ids == expected


@every_relative
@pytest.mark.parametrize("text", ["hello world, it is " * 60, "中" * 500, "a\n" * 300])
def test_long_texts_are_the_same_batch_and_the_same_rows(
    family: str, text: str, both: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, _ = both(family)

    def all_of_it() -> list[Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            batch, pair = tokenizer(["short", text], max_length=50), tokenizer([text, "b"], ["b", text], max_length=51)
            rows = tokenizer.ids(["short", text], max_length=50)
        windows = tokenizer.counted(["short", text], max_length=50, long="windows").ids
        fields = [(made.tokens, made.offsets, made.word_ids, made.truncated) for made in (batch, pair)]
        return [rows, windows, pair.longest, *fields]

    expected = all_of_it()
    monkeypatch.setattr(piecewise, "PIECE", 64)
    monkeypatch.setattr("minibert.text.tokenizer.PIECE", 64)
    assert all_of_it() == expected


def test_pieces_that_end_behind_a_space_would_be_seen(both: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, _ = both("roberta")
    text = "and the cat sat on the mat " * 20
    expected = tokenizer.encode(text, add_special_tokens=False)
    monkeypatch.setattr(piecewise, "PIECE", 30)
    assert tokenizer._piecewise.ids(text)[0] == expected
    right = piecewise.AtSpaces.end
    monkeypatch.setattr(piecewise.AtSpaces, "end", lambda self, held: (at := right(self, held)) and at + 1)
    assert tokenizer._piecewise.ids(text)[0] != expected


@pytest.mark.parametrize(
    ("family", "change"),
    [
        ("roberta", {"normalizer": {"type": "Prepend", "prepend": "x"}}),
        ("albert", {"pre_tokenizer": {"type": "Whitespace"}}),
        ("camembert", {"normalizer": {"type": "Replace", "pattern": {"String": "a b"}, "content": "ab"}}),
    ],
)
def test_a_tokenizer_that_splits_in_another_way_reads_a_long_text_whole(family: str, change: dict, both: Any) -> None:
    other = Tokenizer(both(family)[0]._definition | change)
    assert not other._piecewise.possible


# -- tasks


def test_words_have_their_tags_at_their_first_tokens_as_in_transformers(folders: Any, both: Any) -> None:
    words = [["Redondo", "Beach", "ﬁne", "中文", "café"], ["me"]]
    for family in CLASSES:
        tokenizer, _ = both(family)
        theirs = AutoTokenizer.from_pretrained(folders(family), add_prefix_space=True)
        expected = theirs(words, is_split_into_words=True)
        encoded = Tagging().encode(Sentences(words), tokenizer, ["O", "X"], 128)
        assert [one.ids for one in encoded.examples] == expected["input_ids"]
        firsts = [[expected.word_ids(row).index(word) for word in range(len(words[row]))] for row in (0, 1)]
        assert [list(row.places) for row in encoded.back] == firsts


@every_relative
def test_answers_are_cut_from_the_original_text(family: str, both: Any) -> None:
    tokenizer, _ = both(family)
    passage = "She was born in  Genève, près du lac, 1879.  Later she left."
    for wanted in ("Genève", "1879", "près du lac"):
        gold = Gold(wanted, passage.index(wanted))
        data = Questions([Question("Where?", passage, answers=(gold,))])
        task = Answering(max_question=16, stride=10)
        encoded = task.encode(data, tokenizer, [], 48)
        logits = []
        for one in encoded.examples:
            sure = np.full((2, len(one.ids)), -9.0, dtype=np.float32)
            sure[0, one.labels["start_positions"]] = sure[1, one.labels["end_positions"]] = 9.0
            logits.append(sure)
        [answer] = task.decode(logits, encoded, data, [])
        assert wanted in answer.text and answer.text.strip() == answer.text
        assert passage[answer.start : answer.end] == answer.text
        ids = tokenizer("Where?", passage, max_length=512).input_ids[0].tolist()
        assert len(encoded.examples) > 1 or encoded.examples[0].ids == ids


def test_choices_are_framed_as_pairs(both: Any) -> None:
    row = {"question": "The sky is", "choices": ["blue.", "a fish."], "label": 0}
    for family in CLASSES:
        tokenizer, _ = both(family)
        encoded = Choice().encode([question_of(row, "row 0")], tokenizer, [], 64)
        expected = [tokenizer(row["question"], choice) for choice in row["choices"]]
        assert [one.ids for one in encoded.examples] == [batch.input_ids[0].tolist() for batch in expected]
        assert [one.segments for one in encoded.examples] == [batch.token_type_ids[0].tolist() for batch in expected]


# -- settings


def test_a_setting_decides_over_the_space_before_the_first_word(tmp_path: Path) -> None:
    theirs = write_saved(tmp_path / "a", "roberta", add_prefix_space=True)
    tokenizer = load_tokenizer(tmp_path / "a")
    assert differences(tokenizer, theirs, SHORT) == []
    assert tokenizer.encode("cat", add_special_tokens=False) == tokenizer.encode(" cat", add_special_tokens=False)
    config = tmp_path / "a" / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"add_prefix_space": False}))
    assert load_tokenizer(tmp_path / "a").ids(["cat"]) != tokenizer.ids(["cat"])
    assert differences(load_tokenizer(tmp_path / "a"), AutoTokenizer.from_pretrained(tmp_path / "a"), SHORT) == []


def test_albert_may_keep_case(tmp_path: Path, folders: Any) -> None:
    theirs = write_saved(tmp_path / "a", "albert", do_lower_case=False)
    assert differences(load_tokenizer(tmp_path / "a"), theirs, TEXTS) == []
    assert load_tokenizer(folders("albert"), lowercase=False).ids(["The Cat"]) == load_tokenizer(tmp_path / "a").ids(
        ["The Cat"]
    )
    with pytest.raises(ValueError, match="lowercase=True is not possible"):
        load_tokenizer(folders("roberta"), lowercase=True)


def test_albert_reads_a_digit_and_its_comma_apart(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_vocabulary(tmp_path, "albert"))
    scores = {piece: score for piece, score in tokenizer._definition["model"]["vocab"]}
    assert all(score < -50 for piece, score in scores.items() if piece[-1] == "," and piece[-2:-1].isdigit())


@every_relative
def test_a_tokenizer_json_of_the_first_years_does_not_name_its_model(family: str, tmp_path: Path, both: Any) -> None:
    expected, _ = both(family)
    write_saved(tmp_path / "a", family)
    content = json.loads((tmp_path / "a" / "tokenizer.json").read_text())
    del content["model"]["type"]
    if family == "roberta":  # whose merges were written as one text each
        content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
    (tmp_path / "a" / "tokenizer.json").write_text(json.dumps(content))
    assert load_tokenizer(tmp_path / "a").ids(SHORT) == expected.ids(SHORT)


# -- models


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A small random masked language model of a relative, with its tokenizer, for reading only."""

    @cache
    def checkpoint(family: str) -> Path:
        folder = tmp_path_factory.mktemp("checkpoints") / family
        size = len(write_saved(folder, family))
        write_checkpoint(folder, family, "masked-lm", vocab_size=size, max_position_embeddings=40)
        return folder

    return checkpoint


@pytest.mark.parametrize(("family", "mask", "other"), [("roberta", "<mask>", "[MASK]"), ("albert", "[MASK]", "<mask>")])
def test_a_word_is_guessed_at_the_mask_that_the_relative_has(
    family: str, mask: str, other: str, checkpoints: Any
) -> None:
    folder = checkpoints(family)
    [first, second] = fill_mask(f"The {mask} sat on the {mask}.", folder, 4)
    assert len(first) == len(second) == 4 and all(guess.token for guess in first)
    with pytest.raises(ValueError) as error:
        fill_mask(f"The {other} sat on the mat.", folder)
    assert str(error.value) == f"the text has no {mask}; write {mask} where a word is to be guessed"


@pytest.mark.parametrize("family", ["roberta", "camembert", "albert"])
def test_a_trace_names_words_as_they_stand_in_the_text(family: str, checkpoints: Any, both: Any) -> None:
    encoder = minibert.load(checkpoints(family))
    traced = minibert.trace(encoder, load_tokenizer(checkpoints(family)), "unbelievable café 中文,", "A film")
    begin, end = traced.tokens[0], traced.tokens[-1]
    between = [end] * (1 if family == "albert" else 2)
    words = [*["unbelievable", "café"], *(["中文", ","] if family == "roberta" else ["中文,"])]
    assert traced.word_names == [begin, *words, *between, "A", "film", end]
    assert traced.attention(0, 0, merge=True).shape == (len(traced.word_names),) * 2
    assert page_data(traced, choose(traced))["names"] == traced.word_names


@pytest.mark.parametrize("family", ["roberta", "albert"])
def test_pairs_are_embedded_in_the_segments_of_the_relative(family: str, checkpoints: Any) -> None:
    folder = checkpoints(family)
    encoder, tokenizer = minibert.load(folder), load_tokenizer(folder)
    first, second = ["The cat", "a dog sat on the mat"], ["the dog didn't care", "a"]
    with torch.no_grad():
        expected = encoder(**tokenizer(first, second)).last_hidden_state[:, 0]
    found = minibert.embed(first, folder, pairs=second)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
