"""The tokenizer equals transformers' BertTokenizer, reads its files strictly, and says what it cut off."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import random
import shutil
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from helpers import HARD_TEXTS, minilm_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from minibert.text.tokenizer import Tokenizer, TruncationWarning, UnknownTokensWarning, load_tokenizer
from minibert.text.wordpiece import SPECIAL_TOKENS, WordPiece

FOLDER = minilm_folder()
TOKENIZER = load_tokenizer(FOLDER)
LITERAL = load_tokenizer(FOLDER, special_tokens_in_text="literal")
REFERENCE = AutoTokenizer.from_pretrained(FOLDER)
CLS, SEP, PAD, UNK, MASK = 101, 102, 0, 100, 103

ANY_TEXT = st.lists(
    st.one_of(st.text(st.characters(exclude_categories=["Cs"])), st.sampled_from([*SPECIAL_TOKENS, *HARD_TEXTS])),
    max_size=4,
).map("".join)


def quietly(call: Callable[[], object]) -> object:
    """Run a call that meets texts in unknown scripts on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownTokensWarning)
        return call()


def differences(tokenizer: Tokenizer, texts: list[str]) -> list[str]:
    """The texts of which tokenizer and transformers make different ids, masks or offsets."""
    ours = quietly(lambda: tokenizer(texts, max_length=512))
    theirs = REFERENCE(texts, padding="longest", truncation=True, max_length=512, return_offsets_mapping=True)
    return [
        text
        for row, text in enumerate(texts)
        if ours.input_ids[row].tolist() != theirs["input_ids"][row]
        or ours.attention_mask[row].tolist() != theirs["attention_mask"][row]
        or ours.token_type_ids[row].tolist() != theirs["token_type_ids"][row]
        or ours.offsets[row] != theirs["offset_mapping"][row]
        or ours.tokens[row] != theirs.tokens(row)
        or ours.word_ids[row] != theirs.word_ids(row)
    ]


def checkpoint(folder: Path, *, vocab: bytes | None = None, drop: tuple[str, ...] = (), **changes: dict) -> Path:
    """A folder with the tokenizer files of all-MiniLM-L6-v2, some changed: config={...}, tokenizer_config={...}."""
    folder.mkdir(exist_ok=True)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copy(FOLDER / name, folder / name)
    for name, change in changes.items():
        path = folder / f"{name}.json"
        content = json.loads(path.read_text(encoding="utf-8")) | change
        path.write_text(json.dumps({key: value for key, value in content.items() if value != "absent"}))
    for name in drop:
        (folder / name).unlink()
    if vocab is not None:
        (folder / "tokenizer.json").unlink(missing_ok=True)
        (folder / "vocab.txt").write_bytes(vocab)
    return folder


# -- equal to transformers


def test_hard_texts_equal_transformers_in_ids_offsets_and_words():
    assert differences(TOKENIZER, HARD_TEXTS) == []


def test_every_character_of_the_basic_plane_equals_transformers():
    words = [f"a{chr(code)}b {chr(code)}" for code in range(0x10000) if not 0xD800 <= code <= 0xDFFF]
    assert differences(TOKENIZER, [" ".join(words[i : i + 64]) for i in range(0, len(words), 64)]) == []


@settings(max_examples=200, deadline=None)
@given(ANY_TEXT)
def test_any_text_equals_transformers(text: str):
    assert differences(TOKENIZER, [text]) == []


@settings(max_examples=100, deadline=None)
@given(ANY_TEXT, ANY_TEXT, st.integers(5, 40))
def test_any_pair_equals_transformers_also_when_cut(first: str, second: str, max_length: int):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncationWarning)
        ours = quietly(lambda: TOKENIZER([first], [second], max_length=max_length))
    # Lists, because transformers takes a second text that is one empty str for no second text.
    theirs = REFERENCE([first], [second], truncation=True, max_length=max_length, return_offsets_mapping=True)
    assert ours.input_ids.tolist() == theirs["input_ids"]
    assert ours.token_type_ids.tolist() == theirs["token_type_ids"]
    assert ours.offsets == theirs["offset_mapping"]
    assert ours.word_ids[0] == theirs.word_ids()


def test_pairs_of_all_short_lengths_are_cut_as_transformers_cuts_them():
    pairs = [("a " * n, "b " * m) for n in range(8) for m in range(8)]
    first, second = zip(*pairs, strict=True)
    for max_length in range(4, 14):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TruncationWarning)
            ours = TOKENIZER(first, second, max_length=max_length)
        theirs = REFERENCE(list(first), list(second), padding=True, truncation=True, max_length=max_length)
        assert ours.input_ids.tolist() == theirs["input_ids"]


@pytest.mark.parametrize("other", [{"lowercase": False}, {"special_tokens_in_text": "literal"}], ids=str)
def test_the_comparison_with_transformers_notices_another_setting(other: dict):
    assert differences(load_tokenizer(FOLDER, **other), HARD_TEXTS) != []


def test_the_documented_pair_gives_the_documented_ids_and_segments():
    batch = TOKENIZER("I was thirsty!", "I drank water :D")
    assert batch.input_ids.tolist() == [[101, 1045, 2001, 24907, 999, 102, 1045, 10749, 2300, 1024, 1040, 102]]
    assert batch.token_type_ids.tolist() == [[0] * 6 + [1] * 6]


@pytest.fixture(scope="module")
def sst2() -> list[str]:
    if "MINIBERT_DATA" not in os.environ:
        pytest.skip(
            "MINIBERT_DATA is not set; it names a folder with sst2/train.tsv, which is data/SST2/train.tsv of "
            "github.com/clairett/pytorch-sentiment-classification"
        )
    lines = (Path(os.environ["MINIBERT_DATA"]) / "sst2" / "train.tsv").read_text(encoding="utf-8").splitlines()
    return [line.split("\t")[0] for line in lines[:2000]]


def test_real_sentences_equal_transformers_and_the_hand_written_wordpiece(sst2: list[str]):
    assert differences(TOKENIZER, sst2) == []
    by_hand = WordPiece(TOKENIZER.vocab)
    assert [[CLS, *by_hand.ids(text), SEP] for text in sst2] == TOKENIZER.ids(sst2)


def test_the_first_2000_sentences_of_sst2_are_at_most_59_tokens_long(sst2: list[str]):
    assert TOKENIZER(sst2).input_ids.shape == (2000, 59)


def test_decode_equals_transformers():
    ids = TOKENIZER.ids(["Don't stop: naïve café [MASK], unbelievably!"])[0]
    assert TOKENIZER.decode(ids) == REFERENCE.decode(ids)
    assert TOKENIZER.decode(torch.tensor(ids), skip_special_tokens=True) == REFERENCE.decode(
        ids, skip_special_tokens=True
    )


# -- the batch


def test_a_batch_is_padded_on_the_right_to_its_longest_row():
    batch = TOKENIZER(["hello", "hello big world"])
    assert batch.input_ids.tolist() == [[CLS, 7592, SEP, PAD, PAD], [CLS, 7592, 2502, 2088, SEP]]
    assert batch.attention_mask.tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
    assert batch.special_tokens_mask.tolist() == [[1, 0, 1, 1, 1], [1, 0, 0, 0, 1]]
    assert batch.offsets[0] == [(0, 0), (0, 5), (0, 0), (0, 0), (0, 0)]
    assert batch.word_ids[0] == [None, 0, None, None, None]
    assert batch.tokens[0] == ["[CLS]", "hello", "[SEP]", "[PAD]", "[PAD]"]
    assert batch.input_ids.dtype == batch.attention_mask.dtype == batch.token_type_ids.dtype == torch.long


def test_a_batch_goes_to_another_device_with_all_of_its_tensors():
    moved = TOKENIZER(["hello"]).to("meta")
    tensors = [moved.input_ids, moved.attention_mask, moved.token_type_ids, moved.special_tokens_mask]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert moved.tokens == [["[CLS]", "hello", "[SEP]"]]


def test_one_string_is_a_batch_of_one_row():
    assert TOKENIZER("hello").input_ids.tolist() == [[CLS, 7592, SEP]]


def test_no_texts_are_an_empty_batch():
    batch = TOKENIZER([])
    assert (batch.input_ids.shape, batch.longest, batch.truncated, len(batch)) == ((0, 0), 0, 0, 0)
    assert TOKENIZER.ids([]) == []


@pytest.mark.parametrize("text", ["", "   ", "\t\n", "\u200b", "\x00", "\ufffd", "\ue000\U000f0000"], ids=ascii)
def test_a_text_of_nothing_visible_is_cls_and_sep(text: str):
    assert TOKENIZER.ids([text]) == [[CLS, SEP]]


def test_offsets_point_into_the_original_text_past_dropped_characters():
    text = "a\u200bb\x00 \ufffdc\ue000d"
    batch = TOKENIZER(text)
    assert [text[start:end] for start, end in batch.offsets[0][1:-1]] == ["a\u200bb", "c\ue000d"]


def test_an_emoji_of_several_characters_is_one_unknown_token_with_right_offsets():
    text = "a family 👨‍👩‍👧‍👦 at home"
    batch = TOKENIZER(text)
    row = batch.tokens[0].index("[UNK]")
    start, end = batch.offsets[0][row]
    assert text[start:end] == "👨‍👩‍👧‍👦"
    assert batch.tokens[0].count("[UNK]") == 1


def test_ids_are_the_rows_of_the_batch_without_padding():
    batch = quietly(lambda: TOKENIZER(HARD_TEXTS))
    rows = [ids[mask.bool()].tolist() for ids, mask in zip(batch.input_ids, batch.attention_mask, strict=True)]
    assert quietly(lambda: TOKENIZER.ids(HARD_TEXTS)) == rows


def test_ids_of_more_texts_than_one_chunk_keep_their_order():
    texts = [f"{n}" for n in range(10_000)]
    assert TOKENIZER.ids(texts) == [TOKENIZER.ids([text])[0] for text in texts]


# -- casing and accents


def test_an_uncased_checkpoint_drops_case_and_accents_and_keeps_offsets_of_the_original():
    text = "CAFÉ cafe\u0301 İstanbul"
    batch = TOKENIZER(text)
    assert batch.tokens[0][1:-1] == ["cafe", "cafe", "istanbul"]
    assert [text[start:end] for start, end in batch.offsets[0][1:-1]] == ["CAFÉ", "cafe", "İstanbul"]  # the mark left


def test_an_explicit_lowercase_wins_over_both_files(tmp_path: Path):
    folder = checkpoint(tmp_path, tokenizer_config={"do_lower_case": True})
    with pytest.warns(UnknownTokensWarning):
        assert load_tokenizer(folder, lowercase=False).ids(["Hello"]) == [[CLS, UNK, SEP]]


def test_tokenizer_config_wins_over_tokenizer_json_as_in_transformers(tmp_path: Path):
    folder = checkpoint(tmp_path, tokenizer_config={"do_lower_case": False, "strip_accents": False})
    ours = quietly(lambda: load_tokenizer(folder).ids(["Hello café hello"]))
    assert ours == [AutoTokenizer.from_pretrained(folder)("Hello café hello")["input_ids"]]
    assert ours[0][1] == UNK


def test_a_setting_that_is_null_says_nothing(tmp_path: Path):
    folder = checkpoint(tmp_path, tokenizer_config={"do_lower_case": None, "tokenize_chinese_chars": None})
    assert differences(load_tokenizer(folder), HARD_TEXTS) == []


def test_tokenizer_json_counts_where_tokenizer_config_says_nothing(tmp_path: Path):
    definition = json.loads((FOLDER / "tokenizer.json").read_text(encoding="utf-8"))
    normalizer = definition["normalizer"] | {"lowercase": False}
    changes = {"tokenizer": {"normalizer": normalizer}, "tokenizer_config": {"do_lower_case": "absent"}}
    with pytest.warns(UnknownTokensWarning):
        assert load_tokenizer(checkpoint(tmp_path, **changes)).ids(["Hello"]) == [[CLS, UNK, SEP]]


CASED = "\n".join([*SPECIAL_TOKENS, "[unused1]", "Hello", "hello", "##s"]).encode()


def test_a_cased_vocabulary_that_says_nothing_is_cased_with_a_warning(tmp_path: Path):
    folder = checkpoint(tmp_path, vocab=CASED, tokenizer_config={"do_lower_case": "absent"})
    with pytest.warns(UserWarning, match="pass lowercase=True or False"):
        tokenizer = load_tokenizer(folder)
    assert tokenizer("Hello hello").tokens[0][1:-1] == ["Hello", "hello"]


@pytest.mark.parametrize(
    ("said", "argument", "expected"),
    [
        (True, None, "hello"),
        (True, False, "Hello"),
        (False, None, "Hello"),
        (False, True, "hello"),
        ("absent", True, "hello"),
    ],
)
def test_a_vocabulary_is_read_with_the_case_that_is_asked_for(
    tmp_path: Path, said: object, argument: bool | None, expected: str
):
    folder = checkpoint(tmp_path, vocab=CASED, tokenizer_config={"do_lower_case": said})
    assert load_tokenizer(folder, lowercase=argument)("Hello").tokens[0][1] == expected


def test_an_uncased_vocabulary_that_says_nothing_is_uncased_without_a_warning(tmp_path: Path):
    folder = checkpoint(tmp_path, drop=("tokenizer.json",), tokenizer_config={"do_lower_case": "absent"})
    assert load_tokenizer(folder)("Hello").tokens[0][1] == "hello"


# -- special tokens in the text


def test_parse_reads_a_typed_sep_as_the_token_and_marks_it_special():
    batch = TOKENIZER("one [SEP] two")
    assert batch.input_ids.tolist() == [[CLS, 2028, SEP, 2048, SEP]]
    assert batch.special_tokens_mask.tolist() == [[1, 0, 1, 0, 1]]


def test_an_unknown_word_is_not_special():
    assert TOKENIZER("one two 😀").special_tokens_mask.tolist() == [[1, 0, 0, 0, 1]]


def test_literal_reads_a_typed_sep_as_five_characters():
    batch = LITERAL("one [SEP] two")
    assert batch.tokens == [["[CLS]", "one", "[", "sep", "]", "two", "[SEP]"]]
    assert batch.special_tokens_mask.tolist() == [[1, 0, 0, 0, 0, 0, 1]]


@settings(max_examples=200, deadline=None)
@given(ANY_TEXT)
def test_literal_never_makes_a_special_id_from_text_and_equals_the_hand_written_wordpiece(text: str):
    ids = quietly(lambda: LITERAL.ids([text], max_length=512, truncation="error"))[0]
    assert not {CLS, SEP, PAD, MASK} & set(ids[1:-1])
    assert ids[1:-1] == WordPiece(LITERAL.vocab, special_tokens=()).ids(text)


def test_literal_is_refused_where_a_special_token_is_an_ordinary_word(tmp_path: Path):
    vocab = "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "mask", "hello"]).encode()
    folder = checkpoint(tmp_path, vocab=vocab, tokenizer_config={"mask_token": "mask"})
    assert load_tokenizer(folder)("hello mask").special_tokens_mask.tolist() == [[1, 0, 1, 1]]
    with pytest.raises(ValueError, match="'mask' itself is a special token"):
        load_tokenizer(folder, special_tokens_in_text="literal")


def test_another_value_of_special_tokens_in_text_is_refused():
    with pytest.raises(ValueError, match="'skip'; it must be 'parse' or 'literal'"):
        load_tokenizer(FOLDER, special_tokens_in_text="skip")


# -- length


def test_a_saved_truncation_and_padding_is_switched_off():
    saved = json.loads((FOLDER / "tokenizer.json").read_text(encoding="utf-8"))
    assert saved["truncation"]["max_length"] == 128, "the file does not test this any more"
    assert saved["padding"] is not None
    assert TOKENIZER("hello " * 300).input_ids.shape == (1, 302)
    assert (TOKENIZER.max_length, TOKENIZER.limit) == (512, 512)


def test_a_text_longer_than_512_tokens_is_truncated_with_one_warning():
    texts = ["hello " * 600, "short", "hello " * 1000]
    message = r"2 of 3 texts are longer than 512 tokens \(the longest has 1002\)"
    with pytest.warns(TruncationWarning, match=message) as w:
        batch = TOKENIZER(texts)
    assert len(w) == 1
    assert w[0].filename == __file__
    assert batch.input_ids.shape == (3, 512)
    assert (batch.truncated, batch.longest) == (2, 1002)
    assert batch.input_ids[0, -1] == SEP
    with pytest.warns(TruncationWarning, match="2 of 3") as w:
        assert list(map(len, TOKENIZER.ids(texts))) == [512, 3, 512]
    assert w[0].filename == __file__


@pytest.mark.parametrize("call", [TOKENIZER, TOKENIZER.ids])
def test_truncation_error_names_the_row_its_length_and_the_limit(call: Callable):
    with pytest.raises(ValueError, match="row 1 has 602 tokens, more than max_length 512"):
        call(["short", "hello " * 600], truncation="error")


def test_a_text_of_exactly_512_tokens_is_left_alone():
    batch = TOKENIZER("hello " * 510)
    assert (batch.truncated, batch.longest) == (0, 512)


def test_another_value_of_truncation_is_refused():
    with pytest.raises(ValueError, match="'only_first'; it must be 'warn' or 'error'"):
        TOKENIZER("hello", truncation="only_first")


@pytest.mark.parametrize("max_length", [-1, 0, 1, 2, 513])
def test_a_max_length_without_room_or_beyond_the_model_is_refused(max_length: int):
    message = f"max_length is {max_length}; it must be at least 3 and at most 512"
    for call in (TOKENIZER, TOKENIZER.ids):
        with pytest.raises(ValueError, match=message):
            call(["hello"], max_length=max_length)
    with pytest.raises(ValueError, match=message):
        load_tokenizer(FOLDER, max_length=max_length)
    with pytest.raises(ValueError, match="for pairs it must be at least 4"):
        TOKENIZER("a", "b", max_length=max_length)


def test_pairs_need_room_for_three_special_tokens_and_one_of_text():
    with pytest.raises(ValueError, match="max_length is 3; for pairs it must be at least 4"):
        TOKENIZER("a", "b", max_length=3)


@pytest.mark.parametrize("max_length", [128.0, "128", True])
def test_a_max_length_that_is_no_int_is_refused(max_length: object):
    with pytest.raises(TypeError, match="max_length is of type"):
        TOKENIZER("hello", max_length=max_length)


@pytest.mark.parametrize(
    ("model_max_length", "positions", "default", "limit"),
    [
        (512, 512, 512, 512),
        (128, 512, 128, 512),
        (10**30, 512, 512, 512),
        (1e30, 512, 512, 512),
        ("absent", 300, 300, 300),
        (512, 64, 64, 64),
        (1024, 1024, 512, 1024),
    ],
)
def test_the_default_max_length_is_the_smallest_of_what_the_files_say_and_512(
    tmp_path: Path, model_max_length: object, positions: int, default: int, limit: int
):
    folder = checkpoint(
        tmp_path,
        tokenizer_config={"model_max_length": model_max_length},
        config={"max_position_embeddings": positions},
    )
    tokenizer = load_tokenizer(folder)
    assert (tokenizer.max_length, tokenizer.limit) == (default, limit)


# -- words that the vocabulary does not have


def test_a_word_of_100_characters_is_cut_into_pieces_and_one_of_101_is_unknown():
    with pytest.warns(UnknownTokensWarning, match=r"2 of 3 tokens are \[UNK\]"):
        assert TOKENIZER("hello " + "b" * 101 + " " + "a" * 101).tokens[0][1:-1] == ["hello", "[UNK]", "[UNK]"]
    assert UNK not in TOKENIZER.ids(["a" * 100])[0]


def test_mostly_unknown_tokens_warn_once_with_their_share():
    with pytest.warns(UnknownTokensWarning, match=r"3 of 4 tokens are \[UNK\]") as w:
        TOKENIZER.ids(["😀 😀", "hello 😀"])
    assert len(w) == 1


def test_half_unknown_tokens_do_not_warn():
    TOKENIZER(["hello 😀", "big 😀"])


def test_chinese_is_tokenized_by_character():
    assert TOKENIZER("中文和").tokens[0][1:-1] == ["中", "文", "和"]


# -- files


BROKEN_VOCABULARIES = {
    "duplicate": (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\na\n", "line 7 repeats 'a' of line 6"),
    "blank line": (b"[PAD]\n[UNK]\n\n[CLS]\n[SEP]\n[MASK]\na\n", "line 3 is empty"),
    "no [MASK]": (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n", r"has no \[MASK\]"),
    "cp1252": ("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\né\n".encode("cp1252"), "is not UTF-8"),
    "empty": (b"", "line 1 is empty"),
}


def test_special_tokens_have_the_names_that_the_files_give_them(tmp_path: Path):
    vocab = b"<pad>\n<unk>\n<s>\n</s>\n<mask>\nhello\n"
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": {"content": "<s>"}, "sep_token": "</s>"}
    absent = dict.fromkeys([*names, "mask_token"], "absent")
    folder = checkpoint(tmp_path, vocab=vocab, tokenizer_config=absent | {"mask_token": "<mask>"})
    (folder / "special_tokens_map.json").write_text(json.dumps(names | {"mask_token": "<other>"}))
    assert load_tokenizer(folder)("hello <mask> x").tokens == [["<s>", "hello", "<mask>", "<unk>", "</s>"]]


def test_a_tokenizer_json_made_from_a_vocabulary_frames_pairs_on_its_own(tmp_path: Path):
    folder = checkpoint(tmp_path, drop=("tokenizer.json",))
    load_tokenizer(folder).save(folder)
    alone = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode("hello", "big world")
    batch = TOKENIZER("hello", "big world")
    assert (alone.ids, alone.type_ids) == (batch.input_ids[0].tolist(), batch.token_type_ids[0].tolist())


@pytest.mark.parametrize(("content", "message"), BROKEN_VOCABULARIES.values(), ids=BROKEN_VOCABULARIES)
def test_a_broken_vocabulary_is_refused_with_its_line_or_token(tmp_path: Path, content: bytes, message: str):
    with pytest.raises(ValueError, match=message):
        load_tokenizer(checkpoint(tmp_path, vocab=content))


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v.replace(b"\n", b"\r\n"),
        lambda v: b"\xef\xbb\xbf" + v,
        lambda v: v + b"\n\n",
        lambda v: v.rstrip(b"\n"),
    ],
    ids=["CRLF", "BOM", "blank lines at the end", "no newline at the end"],
)
def test_a_vocabulary_from_another_system_gives_the_same_tokenizer(tmp_path: Path, change: Callable[[bytes], bytes]):
    tokenizer = load_tokenizer(checkpoint(tmp_path, vocab=change((FOLDER / "vocab.txt").read_bytes())))
    assert differences(tokenizer, HARD_TEXTS) == []
    assert tokenizer.vocab == TOKENIZER.vocab


def test_a_vocabulary_larger_than_the_model_is_refused_with_both_numbers(tmp_path: Path):
    with pytest.raises(ValueError, match="has 30522 tokens, the model only 30000"):
        load_tokenizer(checkpoint(tmp_path, config={"vocab_size": 30000}))


def test_a_folder_without_tokenizer_files_is_refused_with_what_it_holds(tmp_path: Path):
    folder = checkpoint(tmp_path, drop=("tokenizer.json", "vocab.txt"))
    with pytest.raises(FileNotFoundError, match=r"neither tokenizer\.json nor vocab\.txt; it holds: config\.json"):
        load_tokenizer(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not valid JSON"),
        ("[]", "holds a list"),
        ('{"model": {"type": "BPE"}}', "holds a BPE model"),
        ('{"model": {"vocab": {"a": 0}}, "normalizer": {"type": "new"}}', "cannot read this tokenizer.json"),
    ],
)
def test_a_broken_tokenizer_json_is_refused(tmp_path: Path, content: str, message: str):
    folder = checkpoint(tmp_path)
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        load_tokenizer(folder)


def definition(**changes: Any) -> str:
    """A small tokenizer.json of the right kind, with changes; None takes an entry out."""
    vocab = {token: id for id, token in enumerate([*SPECIAL_TOKENS, "hello", "##s"])}
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "vocab": vocab}
    model |= {"max_input_chars_per_word": 100}
    changed = model | changes.pop("model", {})
    content = {"model": {name: value for name, value in changed.items() if value is not None}, "added_tokens": []}
    return json.dumps(content | changes)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (definition(model={"type": None, "merges": []}), "holds a BPE model"),
        (definition(model={"type": None, "merges": ["a b"], "dropout": None}), "holds a BPE model"),
        (definition(model={"type": None, "vocab": [["a", 0.5]]}), "model.vocab"),
        (definition(model={"type": None, "max_input_chars_per_word": None}), "holds a WordLevel model"),
        (definition(model={"vocab": {}}), "model.vocab is {}; it must give each token its id"),
        (definition(model={"vocab": {"a": "0"}}), 'model.vocab is {"a": "0"}'),
        (definition(model={"vocab": {"a": True}}), 'model.vocab is {"a": true}'),
        (definition(model={"unk_token": "<unk>"}), "model.unk_token is '<unk>', which is not in the vocabulary"),
        (definition(model={"unk_token": {}}), "cannot read this tokenizer.json"),
        (json.dumps({"model": 7}), "model is 7; it must be an object"),
        (definition(normalizer=7), "normalizer is 7; it must be an object or null"),
        (definition(added_tokens=7), "added_tokens is 7; it must be a list"),
        (definition(added_tokens=[{"content": "[X]"}]), "each with its id"),
        (definition(added_tokens=["[X]"]), "each with its id"),
        (definition(added_tokens=[{"id": 5}]), "cannot read this tokenizer.json"),
        (definition(pre_tokenizer=7), "cannot read this tokenizer.json"),
    ],
)
def test_an_entry_of_tokenizer_json_that_is_of_another_kind_is_refused_by_name(
    content: str, words: str, tmp_path: Path
):
    folder = checkpoint(tmp_path)
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError) as error:
        load_tokenizer(folder)
    assert words in str(error.value)
    assert str(folder) in str(error.value)


def test_a_wordpiece_model_that_does_not_say_its_type_is_read_as_one(tmp_path: Path):
    (checkpoint(tmp_path) / "tokenizer.json").write_text(definition(model={"type": None}))
    assert load_tokenizer(tmp_path)("hellos").tokens == [["[CLS]", "hello", "##s", "[SEP]"]]


@pytest.mark.parametrize(
    "settings",
    [
        {"cls_token": {}},
        {"cls_token": {"content": 7}},
        {"unk_token": 7},
        {"do_lower_case": "yes"},
        {"strip_accents": 0},
        {"model_max_length": "512"},
        {"model_max_length": -1},
        {"model_max_length": True},
        {"model_max_length": float("nan")},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
def test_a_setting_of_another_kind_is_refused_with_its_file_and_name(settings: dict, name: str, tmp_path: Path):
    folder = checkpoint(tmp_path, drop=("tokenizer_config.json",))
    (folder / name).write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=next(iter(settings))) as error:
        load_tokenizer(folder)
    assert str(folder / name) in str(error.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes in the file system of Windows")
@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt", "tokenizer_config.json", "special_tokens_map.json"])
def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(name: str, tmp_path: Path):
    folder = checkpoint(tmp_path, drop=("tokenizer.json",))
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(ValueError, match=f"{name} is a pipe, not a file"):
        load_tokenizer(folder)


@pytest.mark.parametrize("options", [{}, {"lowercase": False}, {"max_length": 64}], ids=str)
def test_a_saved_tokenizer_is_the_same_for_transformers_and_minibert(tmp_path: Path, options: dict):
    saved = load_tokenizer(FOLDER, **options)
    saved.save(checkpoint(tmp_path, drop=("tokenizer.json", "vocab.txt", "tokenizer_config.json")))
    files = ["config.json", "tokenizer.json", "tokenizer_config.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    loaded, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.fingerprint == saved.fingerprint
    assert theirs.model_max_length == saved.max_length
    texts = [text for text in HARD_TEXTS if len(text) < 50]
    assert theirs(texts)["input_ids"] == quietly(lambda: saved.ids(texts)) == quietly(lambda: loaded.ids(texts))


def test_a_failed_save_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    TOKENIZER.save(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def full(self: Path, text: str, **options: object) -> int:
        self.write_bytes(text.encode()[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        load_tokenizer(FOLDER, max_length=64).save(tmp_path)
    assert {path: path.read_bytes() for path in before} == before


# -- vocabulary and identity


def test_the_ids_of_the_special_tokens_are_named():
    ids = (TOKENIZER.cls_id, TOKENIZER.sep_id, TOKENIZER.pad_id, TOKENIZER.mask_id, TOKENIZER.unk_id)
    assert ids == (CLS, SEP, PAD, MASK, UNK)
    assert TOKENIZER.vocab_size == len(TOKENIZER.vocab) == 30522


def test_tokens_and_ids_translate_both_ways():
    assert (TOKENIZER.token_to_id("hello"), TOKENIZER.id_to_token(7592)) == (7592, "hello")
    assert TOKENIZER.token_to_id("no such token") is None
    assert TOKENIZER.id_to_token(-1) is TOKENIZER.id_to_token(30522) is None


def test_the_fingerprint_is_stable_and_changes_with_everything_that_changes_ids():
    assert TOKENIZER.fingerprint == load_tokenizer(FOLDER).fingerprint
    options = [{"lowercase": False}, {"max_length": 64}, {"special_tokens_in_text": "literal"}]
    prints = {load_tokenizer(FOLDER, **option).fingerprint for option in options} | {TOKENIZER.fingerprint}
    assert len(prints) == 4
    code = f"from minibert.text.tokenizer import load_tokenizer; print(load_tokenizer({str(FOLDER)!r}).fingerprint)"
    environment = os.environ | {"PYTHONHASHSEED": str(random.randrange(1, 1000))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == TOKENIZER.fingerprint


@pytest.mark.parametrize("tokenizer", [TOKENIZER, LITERAL], ids=["parse", "literal"])
def test_a_pickled_tokenizer_is_the_same(tokenizer: Tokenizer):
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.fingerprint == tokenizer.fingerprint
    assert quietly(lambda: copy.ids(HARD_TEXTS)) == quietly(lambda: tokenizer.ids(HARD_TEXTS))


# -- workers


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system has no fork")
def test_workers_get_the_same_ids_and_neither_hang_nor_print_nor_change_the_environment():
    code = textwrap.dedent(f"""
        import multiprocessing, os, joblib
        from minibert.text.tokenizer import load_tokenizer
        environment = dict(os.environ)
        tokenizer = load_tokenizer({str(FOLDER)!r})
        texts = ["hello world"] * 100
        expected = tokenizer.ids(texts)  # starts the library's threads, which a fork does not take along
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(tokenizer.ids, [texts] * 4) == [expected] * 4
        assert joblib.Parallel(n_jobs=2)([joblib.delayed(tokenizer.ids)(texts)] * 4) == [expected] * 4
        assert dict(os.environ) == environment
        print("done")
    """)
    environment = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False, timeout=120
    )
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_a_template_that_names_a_token_it_does_not_define_is_refused(minilm: Path) -> None:
    """The library would end the process' thread with a panic at the first text."""
    definition = json.loads((minilm / "tokenizer.json").read_text("utf-8"))
    del definition["post_processor"]["special_tokens"]["[SEP]"]
    with pytest.raises(ValueError, match=r"post_processor puts '\[SEP\]' beside the texts and does not define it"):
        Tokenizer(definition)
