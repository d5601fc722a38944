"""The files of tokenizers are read as untrusted input, and older vocabularies give the same tokenizer."""

import json
import pickle
import shutil
import unicodedata
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from support.models import HARD_TEXTS, edit_json, minilm_folder
from support.tokenizers import (
    SENTENCES,
    assert_as_transformers,
    byte_pairs,
    differences,
    write_config,
    write_saved,
    write_vocabulary,
)
from transformers import AutoTokenizer

from minibert.text.masking import Masking
from minibert.text.tokenizer import load_tokenizer
from minibert.text.wordpiece import SPECIAL_TOKENS
from minibert.utils.files import read_json

SHORT = [*SENTENCES, "", " ", "a <mask> or [MASK]"]
# The files of all-MiniLM-L6-v2 with a small vocabulary: its first pieces, some words, and the letters of hard texts.
FILES = {name: read_json(minilm_folder() / f"{name}.json") for name in ("config", "tokenizer", "tokenizer_config")}
LOWER = "".join(HARD_TEXTS).lower()
LETTERS = sorted(set(LOWER + unicodedata.normalize("NFD", LOWER)))
FIRST = sorted(FILES["tokenizer"]["model"]["vocab"], key=FILES["tokenizer"]["model"]["vocab"].get)[:104]
PIECES = [*FIRST, "hello", "world", "big", *(x for x in LETTERS if x.isprintable() and x == x.strip().lower())]
VOCAB = [*PIECES, *(f"##{piece}" for piece in PIECES[107:])]
FILES["tokenizer"]["model"]["vocab"] = {piece: id for id, piece in enumerate(VOCAB)}
FILES["config"]["vocab_size"] = len(VOCAB)


def checkpoint(folder: Path, *, vocab: bytes | None = None, drop: tuple[str, ...] = (), **changes: dict) -> Path:
    """A folder of FILES, some changed: config={...}, tokenizer_config={...}; `vocab` in place of tokenizer.json."""
    folder.mkdir(exist_ok=True)
    for name, content in FILES.items():
        given = {key: value for key, value in (content | changes.get(name, {})).items() if value != "absent"}
        (folder / f"{name}.json").write_text(json.dumps(given))
    (folder / "vocab.txt").write_bytes("\n".join(VOCAB).encode() if vocab is None else vocab)
    for name in drop if vocab is None else ("tokenizer.json",):
        (folder / name).unlink()
    return folder


def ids(folder: Path, texts: list[str], **options: Any) -> list[list[int]]:
    """The ids from our tokenizer of a folder."""
    with warnings.catch_warnings(action="ignore"):
        return load_tokenizer(folder, **options).ids(texts)


def refused(folder: Path, message: str, error: Any = (ValueError, TypeError)) -> None:
    """Assert that the folder is refused with its name and this message."""
    with pytest.raises(error, match=message) as caught:
        load_tokenizer(folder)
    assert str(folder) in str(caught.value)


# -- settings


@pytest.mark.parametrize(
    ("model_max_length", "positions", "default", "limit"),
    [
        *[(512, 512, 512, 512), (128, 512, 128, 512), (10**30, 512, 512, 512), (1e30, 512, 512, 512)],
        *[("absent", 300, 300, 300), (512, 64, 64, 64), (1024, 1024, 512, 1024)],
    ],
)
def test_the_default_max_length_is_the_smallest_of_512_and_what_the_files_set(
    tmp_path, model_max_length, positions, default, limit
):
    settings = {"model_max_length": model_max_length}
    folder = checkpoint(tmp_path, tokenizer_config=settings, config={"max_position_embeddings": positions})
    tokenizer = load_tokenizer(folder)
    assert (tokenizer.max_length, tokenizer.limit) == (default, limit)
    for wrong in (0, 2, limit + 1):
        with pytest.raises(ValueError, match=rf"max_length is {wrong}\b.* 3 .* {limit}$"):
            load_tokenizer(folder, max_length=wrong)


@pytest.mark.parametrize(
    ("settings", "lowercase"),
    [
        ({}, None),
        ({"do_lower_case": True}, False),  # the argument overrides the files
        ({"do_lower_case": False, "strip_accents": False}, None),  # which override tokenizer.json, as in transformers
        ({"do_lower_case": "absent"}, None),
    ],
)
def test_casing_is_that_of_transformers(tmp_path, settings, lowercase):
    folder = checkpoint(tmp_path, tokenizer_config=settings)
    theirs = AutoTokenizer.from_pretrained(folder, **({} if lowercase is None else {"do_lower_case": lowercase}))
    texts = ["Hello café hello 中文", *HARD_TEXTS]
    assert ids(folder, texts, lowercase=lowercase) == theirs(texts)["input_ids"]
    nulls = checkpoint(tmp_path / "b", tokenizer_config={"do_lower_case": None, "tokenize_chinese_chars": None})
    assert ids(nulls, texts) == ids(checkpoint(tmp_path / "c"), texts)


CASED = "\n".join([*SPECIAL_TOKENS, "[unused1]", "Hello", "hello", "##s"]).encode()


@pytest.mark.parametrize(
    ("stated", "argument", "expected"),
    [
        *[(True, None, "hello"), (True, False, "Hello"), (False, None, "Hello"), (False, True, "hello")],
        *[("absent", True, "hello"), ("absent", None, "Hello")],
    ],
)
def test_a_vocabulary_without_a_casing_is_cased_if_it_has_upper_case_and_that_is_warned_of(
    tmp_path, stated, argument, expected
):
    folder = checkpoint(tmp_path, vocab=CASED, tokenizer_config={"do_lower_case": stated})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert load_tokenizer(folder, lowercase=argument)("Hello").tokens[0][1] == expected
    assert [one.filename for one in caught if "lowercase=True or False" in str(one.message)] == [__file__] * (
        stated == "absent" and argument is None
    )
    uncased = checkpoint(tmp_path / "b", drop=("tokenizer.json",), tokenizer_config={"do_lower_case": "absent"})
    assert load_tokenizer(uncased)("Hello").tokens[0][1] == "hello"


def test_special_tokens_have_the_names_of_the_files_or_of_the_vocabulary(tmp_path):
    cls = {"content": "<s>", "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": cls, "sep_token": "</s>"}
    absent = dict.fromkeys([*names, "mask_token"], "absent")
    vocab = b"<pad>\n<unk>\n<s>\n</s>\n<mask>\nhello\n"
    folder = checkpoint(tmp_path, vocab=vocab, tokenizer_config=absent | {"mask_token": "<mask>"})
    (folder / "special_tokens_map.json").write_text(json.dumps(names | {"mask_token": "hello"}))
    for settings in (
        {"mask_token": "<mask>"},
        {"mask_token": "<mask>", "added_tokens_decoder": {}} | names | {"cls_token": "<s>"},
    ):
        (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True} | settings))
        theirs = AutoTokenizer.from_pretrained(folder)
        assert load_tokenizer(folder).mask_id == theirs.mask_token_id  # the older file counts, or is not read
        assert ids(folder, ["hello <mask> x"]) == theirs(["hello <mask> x"])["input_ids"]
    expected = [["<s>", "hello", "<mask>", "<unk>", "</s>"]]
    (folder / "special_tokens_map.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    assert load_tokenizer(folder)("hello <mask> x").tokens == expected


def test_the_prefix_space_of_the_settings_overrides_tokenizer_json(tmp_path):
    theirs = write_saved(tmp_path, "roberta", add_prefix_space=True)
    assert ids(tmp_path, SHORT) == theirs(SHORT)["input_ids"]
    edit_json(tmp_path / "tokenizer_config.json", add_prefix_space=False)
    expected = AutoTokenizer.from_pretrained(tmp_path)(SHORT)["input_ids"]
    assert ids(tmp_path, SHORT) == expected != theirs(SHORT)["input_ids"]


def test_only_the_casing_of_bert_can_be_changed(folders):
    with pytest.raises(ValueError, match="lowercase=True"):
        load_tokenizer(folders("albert"), lowercase=True)


# -- older vocabularies


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "CRLF": lambda v: v.replace(b"\n", b"\r\n"),
    "BOM": lambda v: b"\xef\xbb\xbf" + v,
    "blank lines at the end": lambda v: v + b"\n\n",
    "no newline at the end": lambda v: v.rstrip(b"\n"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_vocabulary_from_another_system_gives_the_same_tokenizer(tmp_path, change):
    folder = checkpoint(tmp_path, vocab=change("\n".join(VOCAB).encode() + b"\n"))
    assert ids(folder, HARD_TEXTS) == ids(checkpoint(tmp_path / "b"), HARD_TEXTS)
    load_tokenizer(folder).save(folder)
    alone = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode("hello", "big world")
    batch = load_tokenizer(folder)("hello", "big world")
    assert (alone.ids, alone.type_ids) == (batch.input_ids[0].tolist(), batch.token_type_ids[0].tolist())


WORDS = ["the", "film", "##s", "[", "mask", "]"]
WHOLE = [*SPECIAL_TOKENS, *WORDS]  # of an ELECTRA, which has the tokenizer of BERT
LACKING: dict[str, list[str]] = {
    "nothing": WHOLE,
    "mask": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS],
    "padding and mask": ["[UNK]", "[CLS]", "[SEP]", *WORDS],
    "beginning and end": ["[PAD]", "[UNK]", "[MASK]", *WORDS],
    "nothing but a word": [*SPECIAL_TOKENS, "", *WORDS],
    "two words": [*SPECIAL_TOKENS, "the", "", "film", "", "##s"],
    "the first word": ["", *SPECIAL_TOKENS, *WORDS],
    "the last words": [*SPECIAL_TOKENS, *WORDS, "", "", ""],
    "a word twice": [*SPECIAL_TOKENS, "the", "film", "x", "##s", "film"],
    "a special token twice": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "[MASK]", "[PAD]", "##s"],
    "the last word, and the mask": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS, ""],
}


@pytest.mark.parametrize("lines", LACKING.values(), ids=LACKING)
def test_a_vocabulary_that_lacks_special_tokens_or_words_gives_the_ids_of_transformers(tmp_path, lines):
    folder = tmp_path / "words"
    write_config(folder, "electra" if lines is WHOLE else "bert", 20)
    (folder / "vocab.txt").write_text("\n".join(lines) + "\n")
    ours, theirs = assert_as_transformers(folder), AutoTokenizer.from_pretrained(folder)
    assert (ours.mask_id, ours.pad_id) == (theirs.mask_token_id, theirs.pad_token_id)


def test_a_mask_for_which_the_model_has_no_row_is_refused_with_the_way_out(tmp_path):
    lines = LACKING["mask"]
    write_config(tmp_path, "bert", len(lines))
    (tmp_path / "vocab.txt").write_text("\n".join(lines) + "\n\n")  # a blank line needs no row
    refused(tmp_path, r"no rows for the added tokens \['\[MASK\]'\]; .*\"mask_token\": \"\[UNK\]\"")
    (tmp_path / "tokenizer_config.json").write_text('{"mask_token": "[UNK]"}')
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.ids(["The films"]) == [[2, 4, 5, 6, 3]]
    assert Masking.of(tokenizer).ordinary.max() < len(lines)


@pytest.mark.parametrize("second", ["<unk>", "▁"])
@pytest.mark.parametrize("extra", [[], ["<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"]])
def test_a_camembert_with_a_piece_twice_has_the_ids_of_transformers(second, extra, copied):
    """Files of transformers 5.0 have <unk> twice, and then <unk>NOTUSED as an added token without a row."""
    folder = copied("camembert")
    vocab = read_json(folder / "tokenizer.json")["model"]["vocab"]
    vocab[4][0] = second
    model = {"type": "Unigram", "unk_id": 3, "vocab": vocab}
    edit_json(folder / "tokenizer.json", model=model)
    edit_json(folder / "tokenizer_config.json", extra_special_tokens=extra)
    edit_json(folder / "config.json", vocab_size=len(vocab))
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    texts = [*SENTENCES, "le \U0001f71a, <unk> <mask> </s>"]
    assert ours.ids(texts) == theirs(texts)["input_ids"]
    assert (ours.unk_id, ours.mask_id) == (theirs.unk_token_id, theirs.mask_token_id)
    if extra:
        assert max(theirs("<unk>NOTUSED")["input_ids"]) == len(vocab)  # which no model can compute
    assert max(ours.encode("<unk>NOTUSED")) < len(vocab)


def write_byte_pairs(folder: Path, **settings: Any) -> Path:
    """The folder that a RoBERTa was released with: vocab.json and merges.txt."""
    vocab, merges = byte_pairs()
    write_config(folder, "roberta", len(vocab))
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(map(" ".join, merges)) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"add_prefix_space": True},
        {"tokenizer_class": "RobertaTokenizerFast", "trim_offsets": False},
        {"mask_token": {"content": "<mask>", "lstrip": True, "__type": "AddedToken"}},
        {"additional_special_tokens": ["<ent>"], "split_special_tokens": True},
    ],
)
def test_a_vocabulary_with_merges_gives_the_ids_of_transformers(settings, tmp_path):
    folder = write_byte_pairs(tmp_path / "released", **settings)
    edit_json(folder / "config.json", vocab_size=1000)
    ours = assert_as_transformers(folder)
    texts = [*HARD_TEXTS, "a <mask>, é \U0001f600\U0001f3fd  </s> <s>x", " ", "\n"]
    assert differences(ours, AutoTokenizer.from_pretrained(folder), texts) == []


# -- damaged files


def definition(**changes: Any) -> str:
    """A small tokenizer.json of the right kind, with changes; None takes an entry out."""
    vocab = {token: id for id, token in enumerate([*SPECIAL_TOKENS, "hello", "##s"])}
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "vocab": vocab}
    changed = model | {"max_input_chars_per_word": 100} | changes.pop("model", {})
    content = {"model": {name: value for name, value in changed.items() if value is not None}, "added_tokens": []}
    return json.dumps(content | changes)


# The library would panic at the first text.
CANNOT = r"cannot read this tokenizer\.json"
TOKENIZER_JSON = {
    "cut off": ("{", "is not valid JSON"),
    "a list": ("[]", "holds a list"),
    "an unknown normalizer": (definition(normalizer={"type": "new"}), CANNOT),
    "no model": (json.dumps({"model": 7}), CANNOT),
    "a unigram vocabulary": (definition(model={"type": None, "vocab": [["a", 0.5]]}), CANNOT),
    "no pieces": (definition(model={"vocab": {}}), "unk_token is"),
    "an id of another kind": (definition(model={"vocab": {"a": "0"}}), "unk_token is"),
    "words": (definition(model={"type": "WordLevel", "max_input_chars_per_word": None}), "a WordLevel model"),
    "merges of characters": (definition(model={"type": "BPE", "merges": []}), "a BPE model that is not byte-level"),
    "added tokens of another kind": (definition(added_tokens=7), "cannot add the tokens"),
    "an added token without id": (definition(added_tokens=[{"content": "[X]"}]), "cannot add the tokens"),
    "unigram without unknown": (definition(model={"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": None}), CANNOT),
    "unigram without scores": (definition(model={"type": "Unigram", "vocab": [["a"]], "unk_id": 0}), CANNOT),
    "merges of unknown pieces": (definition(model={"type": "BPE", "merges": [["q", "z"]]}), CANNOT),
}


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize(
    ("key", "value"),
    [("cls_token", {}), ("cls_token", {"content": 7}), ("unk_token", 7), ("unk_token", "[X]"), ("do_lower_case", "yes")]
    + [("model_max_length", value) for value in ("512", -1, True, float("nan"))],
)
def test_a_setting_of_another_kind_is_refused(key, value, name, tmp_path):
    folder = checkpoint(tmp_path, drop=("tokenizer_config.json",))
    (folder / name).write_text(json.dumps({key: value}))
    refused(folder, CANNOT if key == "do_lower_case" else key)


def test_literal_is_refused_if_a_special_token_is_an_ordinary_word(tmp_path):
    vocab = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\nmask\nhello"
    folder = checkpoint(tmp_path, vocab=vocab, tokenizer_config={"mask_token": "mask"})
    assert load_tokenizer(folder)("hello mask").special_tokens_mask.tolist() == [[1, 0, 1, 1]]
    with pytest.raises(ValueError, match="'mask'"):
        load_tokenizer(folder, special_tokens_in_text="literal")
    with pytest.raises(ValueError, match=r"'skip'.*'parse' or 'literal'"):
        load_tokenizer(folder, special_tokens_in_text="skip")


DAMAGED: list[tuple[str, bytes, str]] = [
    ("merges.txt", b"#version: 0.2\na\n", r"Merges text file invalid at line 1"),
    ("merges.txt", "Ġ é".encode("cp1252", "replace"), "merges.txt is not UTF-8"),
    ("vocab.json", b"[]", "holds a list"),
    ("vocab.txt", b"[PAD]\n[MASK]\n[CLS]\n[SEP]\na\n", r"unk_token is '\[UNK\]'"),
    ("vocab.txt", "[PAD]\n[UNK]\né\n".encode("cp1252"), "is not UTF-8"),
    ("vocab.txt", b"", r"unk_token is '\[UNK\]'"),
    *(("tokenizer.json", text.encode(), message) for text, message in TOKENIZER_JSON.values()),
]


@pytest.mark.parametrize(("name", "content", "message"), DAMAGED)
def test_a_damaged_vocabulary_or_tokenizer_json_is_refused_with_its_file(tmp_path, name, content, message):
    checkpoint(tmp_path, vocab=b"")
    if name in ("merges.txt", "vocab.json"):
        write_byte_pairs(tmp_path)
    (tmp_path / name).write_bytes(content)
    refused(tmp_path, message)


def test_a_folder_without_its_files_is_refused_with_what_it_holds_and_the_way_out(tmp_path):
    folder = checkpoint(tmp_path / "a", drop=("tokenizer.json", "vocab.txt"))
    refused(folder, r"neither tokenizer\.json nor vocab\.txt; it holds: config\.json", FileNotFoundError)
    way_out = r"it holds: config\.json, spiece\.model; transformers writes a tokenizer\.json"
    refused(write_vocabulary(tmp_path / "b", "albert"), way_out, FileNotFoundError)


SLOW = {"Regex": "(a|aa)+$"}  # tries all ways to split a run of a
PANICS: dict[str, dict[str, Any]] = {
    "a splitter": {"pre_tokenizer": {"type": "Split", "pattern": SLOW, "behavior": "Isolated", "invert": False}},
    "a normalizer": {"normalizer": {"type": "Replace", "pattern": SLOW, "content": "b"}},
}


@pytest.mark.parametrize("rule", PANICS.values(), ids=PANICS)
def test_a_rule_that_makes_the_library_panic_is_named_in_one_line(rule, tmp_path):
    folder = checkpoint(tmp_path, tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast"})
    (folder / "tokenizer.json").write_text(json.dumps(FILES["tokenizer"] | rule))
    tokenizer = load_tokenizer(folder)
    calls = [tokenizer, tokenizer.tokenize, tokenizer.encode, lambda text: tokenizer.ids([text, text])]
    for call in (*calls, pickle.loads(pickle.dumps(tokenizer))):
        with pytest.raises(ValueError, match="library fail") as caught:
            call("a" * 40 + "!")
        assert str(folder) in str(caught.value) and "\n" not in str(caught.value) and "aaa" not in str(caught.value)
    assert ids(folder, ["hello"]) != []  # other texts are read


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("bert", {"vocab_size": 30_521}, "has 30522 tokens and pads with id 0, .* has 30521"),
        ("roberta", {"vocab_size": 600}, "has 601 tokens .* has 600"),
        ("roberta", {"vocab_size": 1000, "pad_token_id": 0}, r"pads with id 1, .* pads with id 0 \(pad_token_id"),
    ],
)
def test_files_of_different_checkpoints_are_refused(tmp_path, family, changes, message, folders):
    shutil.copytree(folders(family), tmp_path, dirs_exist_ok=True)
    write_config(tmp_path, family, **changes)
    refused(tmp_path, f"{message}.*; the files belong to different checkpoints")
