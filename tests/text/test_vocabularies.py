"""The vocabularies of the relatives are read without trust: what is damaged, or of another family, is named."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import sentencepiece_model_pb2
from small_tokenizers import byte_pairs, pieces, write_config, write_saved, write_vocabulary

from minibert.text.tokenizer import Tokenizer, load_tokenizer

# -- vocab.json, merges.txt


def changed_json(change: Callable[[dict[str, int]], Any]) -> Callable[[Path], None]:
    """A change of vocab.json."""

    def changed(folder: Path) -> None:
        vocab = dict(byte_pairs()[0])
        change(vocab)
        (folder / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")

    return changed


def written(name: str, content: str | bytes) -> Callable[[Path], None]:
    """A file with another content."""
    return lambda folder: (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


BROKEN = {
    "a hole": (changed_json(lambda v: v.update(a=5000)), r"vocab\.json has 601 pieces and none with id \d+"),
    "no id 0": (changed_json(lambda v: v.update({"<s>": 9000})), r"vocab\.json has no piece with id 0"),
    "an id twice": (changed_json(lambda v: v.update(a=v["b"])), "gives 'a' and 'b' the same id"),
    "a piece twice": (written("vocab.json", '{"a": 0, "b": 1, "a": 2}'), "'a' stands in it twice"),
    "an id that is none": (changed_json(lambda v: v.update(a="0")), "must give each piece its id"),
    "a truth for an id": (changed_json(lambda v: v.update(a=True)), "must give each piece its id"),
    "no pieces": (written("vocab.json", "{}"), r"vocab\.json is \{\}; it must give each piece its id"),
    "a list": (written("vocab.json", "[1]"), "must give each piece its id"),
    "no JSON": (written("vocab.json", '{"a": '), "is not a vocabulary in JSON"),
    "no mask": (changed_json(lambda v: v.pop("<mask>")), r"vocab\.json has no \[MASK\]"),
    "an unknown piece": (
        written("merges.txt", "#version: 0.2\na zzz\n"),
        r"merges\.txt, line 2 has 'zzz', which is not",
    ),
    "an unknown result": (written("merges.txt", "Z Q\n"), r"merges\.txt, line 1 has 'ZQ', which is not"),
    "three pieces": (written("merges.txt", "a b c\n"), r"merges\.txt, line 1 is \"a b c\"; it must be two pieces"),
    "no merges": (written("merges.txt", "#version: 0.2\n"), r"merges\.txt has no merges"),
    "nothing": (written("merges.txt", ""), r"merges\.txt has no merges"),
    "another encoding": (written("merges.txt", b"\xff\xfe"), r"merges\.txt is not UTF-8"),
}


@pytest.mark.parametrize(("change", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_files_of_roberta_are_refused_with_their_place(
    tmp_path: Path, change: Callable[[Path], None], message: str
) -> None:
    write_config(tmp_path, "roberta", 10_000)
    change(write_vocabulary(tmp_path, "roberta"))
    with pytest.raises(ValueError, match=message) as error:
        load_tokenizer(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_a_vocabulary_without_its_merges_is_no_tokenizer(tmp_path: Path) -> None:
    (write_vocabulary(tmp_path, "roberta") / "merges.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"it holds: config\.json, vocab\.json; read are also vocab\.json with"):
        load_tokenizer(tmp_path)


def test_files_from_another_system_give_the_same_tokenizer(tmp_path: Path) -> None:
    expected = load_tokenizer(write_vocabulary(tmp_path, "roberta")).ids(["The cat sat."])
    for name in ("vocab.json", "merges.txt"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n") + b"\r\n\r\n")
    assert load_tokenizer(tmp_path).ids(["The cat sat."]) == expected


# -- spiece.model


def changed_model(change: Callable[[Any], None]) -> bytes:
    """XLM-R's file with something else in it."""
    model = sentencepiece_model_pb2.ModelProto.FromString(pieces("xlm-roberta"))
    change(model)
    return bytes(model.SerializeToString())


DAMAGED = {
    "empty": (lambda: b"", "is damaged|is cut off"),
    "noise": (lambda: b"\x0b\xad" * 100, "is damaged, or not SentencePiece's"),
    "text": (lambda: b"{}", "is damaged, or not SentencePiece's"),
    "the first half": (lambda: pieces("xlm-roberta")[: len(pieces("xlm-roberta")) // 2], "is damaged|is cut off"),
    "no settings": (lambda: changed_model(lambda m: m.ClearField("normalizer_spec")), "is cut off|is damaged"),
    "its table": (
        lambda: changed_model(lambda m: setattr(m.normalizer_spec, "precompiled_charsmap", b"\x01\x02\x03")),
        "is damaged",
    ),
    "another kind": (lambda: changed_model(lambda m: setattr(m.trainer_spec, "model_type", 2)), "a model of kind 2"),
}


@pytest.mark.parametrize("family", ["xlm-roberta", "camembert", "albert"])
@pytest.mark.parametrize(("content", "message"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_model_of_sentencepiece_is_refused(
    tmp_path: Path, family: str, content: Callable[[], bytes], message: str
) -> None:
    write_config(tmp_path, family, 1000)
    name = "spiece.model" if family == "albert" else "sentencepiece.bpe.model"
    (tmp_path / name).write_bytes(content())
    with pytest.raises(ValueError, match=message) as error:
        load_tokenizer(tmp_path)
    assert str(tmp_path / name) in str(error.value)


@pytest.mark.parametrize("part", range(1, 10))
def test_a_file_that_is_cut_off_anywhere_before_its_settings_is_refused(tmp_path: Path, part: int) -> None:
    write_config(tmp_path, "xlm-roberta", 1000)
    model = sentencepiece_model_pb2.ModelProto.FromString(pieces("xlm-roberta"))
    vocabulary = len(sentencepiece_model_pb2.ModelProto(pieces=model.pieces).SerializeToString())
    (tmp_path / "sentencepiece.bpe.model").write_bytes(pieces("xlm-roberta")[: vocabulary * part // 9])
    with pytest.raises(ValueError, match=r"is damaged|is cut off"):
        load_tokenizer(tmp_path)


def test_without_the_package_the_way_to_install_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_vocabulary(tmp_path, "albert")
    monkeypatch.delitem(sys.modules, "sentencepiece.sentencepiece_model_pb2", raising=False)
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(ImportError, match=r"read with the packages sentencepiece and protobuf.*pip install"):
        load_tokenizer(tmp_path)


def test_the_model_of_a_relative_whose_ids_are_not_known_is_refused(tmp_path: Path) -> None:
    write_config(tmp_path, "bert", 1000)
    (tmp_path / "spiece.model").write_bytes(pieces("albert"))
    with pytest.raises(ValueError, match="is known for Albert, Camembert, XLMRoberta, not for Bert"):
        load_tokenizer(tmp_path)


def test_the_class_that_a_folder_names_decides_over_the_ids(tmp_path: Path) -> None:
    expected = load_tokenizer(write_vocabulary(tmp_path, "camembert")).ids(["The cat"])
    write_config(tmp_path, "roberta", 1000)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "CamembertTokenizerFast"}')
    assert load_tokenizer(tmp_path).ids(["The cat"]) == expected


def test_ids_of_xlm_r_that_are_not_shifted_would_be_seen(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_vocabulary(tmp_path, "xlm-roberta"))
    model = sentencepiece_model_pb2.ModelProto.FromString(pieces("xlm-roberta"))
    names = [piece.piece for piece in model.pieces]
    assert all(tokenizer.vocab[piece] == names.index(piece) + 1 for piece in names[3:])
    assert [tokenizer.id_to_token(id) for id in range(4)] == ["<s>", "<pad>", "</s>", "<unk>"]


# -- tokenizer.json


@pytest.mark.parametrize(
    ("family", "change", "words"),
    [
        ("roberta", {"pre_tokenizer": {"type": "Whitespace"}}, "holds a BPE model that is not byte-level"),
        ("roberta", {"model": {"type": "BPE", "merges": [], "vocab": []}}, "model.vocab is []"),
        ("albert", {"model": {"type": "Unigram", "vocab": [], "unk_id": 0}}, "model.unk_id is 0"),
        ("albert", {"model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": None}}, "model.unk_id is null"),
        ("albert", {"model": {"type": "Unigram", "vocab": [["a"]], "unk_id": 0}}, 'model.vocab is [["a"]]'),
        ("albert", {"model": {"type": "Unigram", "vocab": [["a", "b"]], "unk_id": 0}}, "each with its score"),
        ("albert", {"model": {"type": "WordLevel", "vocab": {"a": 0}}}, "holds a WordLevel model"),
        ("albert", {"normalizer": {"type": "Sequence", "normalizers": 7}}, "cannot read this tokenizer.json"),
        ("roberta", {"pre_tokenizer": {"type": "Sequence", "pretokenizers": {}}}, "not byte-level"),
    ],
)
def test_an_entry_of_another_kind_is_refused_by_name(family: str, change: dict, words: str, tmp_path: Path) -> None:
    write_saved(tmp_path / "a", family)
    path = tmp_path / "a" / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError) as error:
        load_tokenizer(tmp_path / "a")
    assert words in str(error.value) and str(tmp_path / "a") in str(error.value)


def test_merges_that_name_unknown_pieces_are_refused(tmp_path: Path) -> None:
    write_saved(tmp_path / "a", "roberta")
    path = tmp_path / "a" / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["merges"].append(["qq", "zz"])
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="cannot read this tokenizer"):
        load_tokenizer(tmp_path / "a")


def template(pair: list[tuple[str, int]], single: str = "<s> A </s>") -> dict[str, Any]:
    """A TemplateProcessing: tokens of a pair with their segments, A and B for the texts."""

    def item(name: str, segment: int) -> dict[str, Any]:
        return {"Sequence" if name in "AB" else "SpecialToken": {"id": name, "type_id": segment}}

    special = {name: {"id": name, "ids": [i], "tokens": [name]} for i, name in ((0, "<s>"), (2, "</s>"))}
    return {
        "type": "TemplateProcessing",
        "single": [item(name, 0) for name in single.split()],
        "pair": [item(name, segment) for name, segment in pair],
        "special_tokens": special,
    }


OFFSETS = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
BEGIN, A, END = ("<s>", 0), ("A", 0), ("</s>", 0)
FRAMINGS = {
    "B first": template([BEGIN, ("B", 0), END, A, END]),
    "no end": template([BEGIN, A, END, ("B", 0)]),
    "nothing before": template([A, END, ("B", 0), END]),
    "segment 2": template([BEGIN, A, END, ("B", 2), ("</s>", 2)]),
    "the last mark in segment 0": template([BEGIN, A, END, ("B", 1), END]),
    "another one for one text": template([BEGIN, A, END, ("B", 0), END], single="A </s>"),
    "one text only": template([BEGIN, A, END]),
}


@pytest.mark.parametrize("processor", FRAMINGS.values(), ids=FRAMINGS)
def test_a_framing_that_no_relative_has_is_refused(processor: dict[str, Any], tmp_path: Path) -> None:
    write_saved(tmp_path / "a", "roberta")
    path = tmp_path / "a" / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"post_processor": processor}))
    with pytest.raises(ValueError, match=r"post_processor makes|cannot read this tokenizer.json"):
        load_tokenizer(tmp_path / "a")


@pytest.mark.parametrize(
    ("processor", "between"),
    [
        (template([BEGIN, A, END, ("B", 1), ("</s>", 1)]), (2,)),
        (template([BEGIN, A, END, END, ("B", 0), END]), (2, 2)),
        ({"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0]}, (2,)),
        (OFFSETS, (2, 2)),
        (None, (2, 2)),
    ],
    ids=["template", "template of RoBERTa", "BertProcessing", "offsets alone", "none"],
)
def test_the_framing_is_what_the_post_processor_says(processor: Any, between: tuple, tmp_path: Path) -> None:
    write_saved(tmp_path / "a", "roberta")
    definition = load_tokenizer(tmp_path / "a")._definition
    framing = Tokenizer(definition | {"post_processor": processor}).framing
    assert (framing.before, framing.between, framing.after) == ((0,), between, (2,))
    assert framing.segment == int(between == (2,))
    in_two = {"type": "Sequence", "processors": [OFFSETS, processor]}
    if processor is not None:
        assert Tokenizer(definition | {"post_processor": in_two}).framing == framing


# -- files of two checkpoints


@pytest.mark.parametrize("family", ["roberta", "camembert", "albert"])
def test_a_vocabulary_larger_than_the_model_is_refused_with_both_numbers(tmp_path: Path, family: str) -> None:
    count = len(write_saved(tmp_path / "a", family))
    write_config(tmp_path / "a", family, count - 1)
    with pytest.raises(ValueError, match=f"has {count} tokens, the model only {count - 1}"):
        load_tokenizer(tmp_path / "a")


def test_a_tokenizer_that_pads_with_another_id_than_the_model_counts_by_is_refused(tmp_path: Path) -> None:
    write_saved(tmp_path / "a", "roberta")
    write_config(tmp_path / "a", "roberta", 1000, pad_token_id=0)
    with pytest.raises(ValueError, match=r"fills rows up with id 1, and the model gives all but id 0 .* a position"):
        load_tokenizer(tmp_path / "a")


def test_a_setting_of_another_kind_is_refused_with_its_name(tmp_path: Path) -> None:
    write_saved(tmp_path / "a", "roberta")
    (tmp_path / "a" / "tokenizer_config.json").write_text('{"add_prefix_space": "yes"}')
    with pytest.raises(ValueError, match=r"add_prefix_space is \"yes\"; it must be true, false or null"):
        load_tokenizer(tmp_path / "a")


def test_special_tokens_that_no_file_names_are_found_in_the_vocabulary(tmp_path: Path) -> None:
    theirs = write_saved(tmp_path / "a", "roberta")
    (tmp_path / "a" / "tokenizer_config.json").unlink()
    tokenizer = load_tokenizer(tmp_path / "a")
    found = [tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id, tokenizer.mask_id, tokenizer.unk_id]
    names = [theirs.cls_token_id, theirs.sep_token_id, theirs.pad_token_id, theirs.mask_token_id, theirs.unk_token_id]
    assert found == names
