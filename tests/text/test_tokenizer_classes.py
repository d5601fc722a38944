"""The rules of a tokenizer are those of its class in transformers, whatever rules tokenizer.json has."""

import re
import shutil
import warnings
from typing import Any

import pytest
from support.models import edit_json
from support.tokenizers import CLASSES, assert_as_transformers
from transformers import AutoTokenizer
from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

from minibert.text.tokenizer import load_tokenizer
from minibert.text.tokenizer_classes import ALIASES
from minibert.utils.files import read_json

UNIGRAMS = [family for family in CLASSES if family != "roberta"]
METASPACE = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}  # as transformers 4 wrote it
OTHER_RULES: dict[str, dict[str, Any]] = {
    "normalizer": {"normalizer": {"type": "Lowercase"}},
    "pre_tokenizer": {"pre_tokenizer": {"type": "WhitespaceSplit"}},
    "post_processor": {"post_processor": None},
    "decoder": {"decoder": None},
}


SPACES = {"tokenizer.json": {"pre_tokenizer": METASPACE}}
WHOLE = {"tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"}}  # all of tokenizer.json counts
SETTINGS: list[dict[str, Any]] = [
    *({"add_prefix_space": value} for value in (True, False)),
    *({"trim_offsets": False}, {"do_lower_case": False}, {"keep_accents": True}, {"tokenizer_class": None}),
]


@pytest.mark.parametrize(
    ("family", "files"),
    [
        *((family, files) for family in UNIGRAMS for files in (SPACES, SPACES | WHOLE)),
        ("xlm-roberta", SPACES | {"config.json": {"model_type": "bert", "pad_token_id": 0}}),
        *((family, {"tokenizer_config.json": settings}) for family in CLASSES for settings in SETTINGS),
    ],
    ids=str,
)
def test_rules_and_settings_count_as_in_transformers(family, files, copied):
    folder = copied(family)
    for name, values in files.items():
        edit_json(folder / name, **values)
    assert_as_transformers(folder)


@pytest.mark.parametrize("family", CLASSES)
@pytest.mark.parametrize("rules", OTHER_RULES.values(), ids=OTHER_RULES)
def test_other_rules_of_tokenizer_json_count_for_the_class_without_rules_only(family, rules, copied):
    folder = copied(family)
    original = load_tokenizer(folder)
    edit_json(folder / "tokenizer.json", **rules)
    texts = ["The Cat sat, naïve", "a 中文"]
    assert assert_as_transformers(folder).ids(texts) == original.ids(texts)
    edit_json(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    if "normalizer" in rules or ("pre_tokenizer" in rules and family != "roberta"):  # else it is refused
        assert load_tokenizer(folder).ids(texts) == AutoTokenizer.from_pretrained(folder)(texts)["input_ids"]


def test_a_template_with_an_id_that_is_no_token_is_refused(copied):
    folder = copied("xlm-roberta")
    content = read_json(folder / "tokenizer.json")
    for one in content["post_processor"]["special_tokens"].values():
        one["ids"] = [10**9]
    edit_json(folder / "tokenizer.json", **content)
    edit_json(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    with pytest.raises(ValueError, match=rf"{folder}.*post_processor"):
        load_tokenizer(folder)


def test_settings_of_the_model_count_as_in_transformers(folders, tmp_path):
    shutil.copytree(folders("bert"), tmp_path, dirs_exist_ok=True)
    content = read_json(tmp_path / "tokenizer.json")
    content["model"] |= {"max_input_chars_per_word": 4, "unk_token": "[PAD]"}
    edit_json(tmp_path / "tokenizer.json", **content)
    texts = ["rumination 😀 and more", "a " + "x" * 101]
    assert load_tokenizer(tmp_path).ids(texts) == AutoTokenizer.from_pretrained(tmp_path)(texts)["input_ids"]


def test_the_other_names_of_a_class_are_those_of_transformers():
    for name, own in ALIASES.items():
        found, expected = tokenizer_class_from_name(name), tokenizer_class_from_name(own)
        assert found is not None and expected is not None
        assert issubclass(found, expected) or found.__name__ == "PythonBackend"  # which AutoTokenizer replaces


@pytest.mark.parametrize("place", ["tokenizer_config.json", "config.json"])
@pytest.mark.parametrize("name", ["BertJapaneseTokenizer", "PhobertTokenizer", "T5TokenizerFast", "MyTokenizer", 7])
def test_a_class_with_rules_that_minibert_does_not_have_is_refused(name, place, copied):
    folder = copied("words")
    settings = {"word_tokenizer_type": "mecab", "subword_tokenizer_type": "character"}
    edit_json(folder / place, tokenizer_class=name, **settings)
    with pytest.raises(ValueError, match=rf"{folder} .*{name!r}.*BertTokenizer, RobertaTokenizer"):
        load_tokenizer(folder)


def test_a_casing_that_only_tokenizer_json_states_counts_and_is_warned_of(folders, tmp_path):
    shutil.copytree(folders("bert"), tmp_path, dirs_exist_ok=True)
    content = read_json(tmp_path / "tokenizer.json")
    content["normalizer"] |= {"lowercase": False, "strip_accents": False}
    edit_json(tmp_path / "tokenizer.json", **content)
    edit_json(tmp_path / "tokenizer_config.json", do_lower_case=None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert load_tokenizer(tmp_path).tokenize("Cafe") == ["[UNK]"]
    first, second = (str(one.message) for one in caught[:2])
    assert re.search("does not set do_lower_case.*lowercase=False.*pass lowercase=True", first)
    assert "strip_accents=False" in second and {one.filename for one in caught} == {__file__}
