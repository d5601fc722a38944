"""Each key that transformers reads is known, and added tokens and the truncation side give the ids of transformers."""

import inspect
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import transformers
from support.models import edit_json
from support.tokenizers import CLASSES, TEXTS, WORDS, added, assert_as_transformers
from transformers import AutoTokenizer
from transformers.tokenization_utils_base import PreTrainedTokenizerBase
from transformers.tokenization_utils_tokenizers import TokenizersBackend

import minibert
from minibert.tasks.answering import Answering
from minibert.tasks.choice import Choice, ChoiceQuestion
from minibert.tasks.classification import Classification, Texts
from minibert.text.tokenizer import TruncationWarning, load_tokenizer
from minibert.text.tokenizer_settings import NAMED, UNSUPPORTED
from minibert.utils.files import read_json

every_family = pytest.mark.parametrize("family", ["words", *CLASSES])


# -- keys

# With UNSUPPORTED, every key of tokenizer_config.json that transformers 5.23 reads.
APPLIED = {
    *("tokenizer_class", "model_max_length", "max_len", "truncation_side", "model_input_names"),
    *(*NAMED, "added_tokens_decoder", "additional_special_tokens", "extra_special_tokens"),
    *("model_specific_special_tokens", "split_special_tokens"),
    *("do_lower_case", "strip_accents", "tokenize_chinese_chars", "keep_accents", "add_prefix_space", "trim_offsets"),
}
HARMLESS = {
    "rows are padded on the right, so that positions count from the first token": {
        *("padding_side", "pad_to_multiple_of", "pad_token_type_id", "tokenizer_padding", "_json_padding"),
    },
    "each call sets these": {"max_length", "stride", "truncation_strategy"},
    "upstream reads it only without a tokenizer.json and a class with rules": {"unk_id"},
    "the template of the class has these tokens": {"add_bos_token", "add_eos_token"},
    "these change how ids become text, not the ids": {
        *("clean_up_tokenization_spaces", "errors"),
        "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
    },
    "where files are, and what read them; upstream finds them itself": {
        *("name_or_path", "tokenizer_file", "vocab_file", "merges_file", "is_local", "local_files_only"),
        *("files_loaded", "backend", "verbose", "_commit_hash", "processor_class", "tokenizer"),
    },
    "code of a checkpoint is never run; a tokenizer_class of its own is refused": {"auto_map"},
    "of chats": {"chat_template", "response_template", "response_schema", "chat_control_tokens"},
    "of Mistral's models": {"fix_mistral_regex"},
}


def test_every_key_that_transformers_reads_is_applied_or_harmless_or_refused():
    read = (
        *(PreTrainedTokenizerBase.__init__, PreTrainedTokenizerBase._from_pretrained),
        *(TokenizersBackend.__init__, TokenizersBackend.convert_to_native_format),
    )
    source = "".join(map(inspect.getsource, read))
    source += "".join(re.findall(r".*tokenizer_config.*", inspect.getsource(PreTrainedTokenizerBase.from_pretrained)))
    source += "".join(re.findall(r".*tokenizer_config.*", inspect.getsource(AutoTokenizer.from_pretrained)))
    source = source.replace("tokenizer_config", "kwargs")
    found = set(re.findall(r'kwargs(?:\.(?:pop|get|setdefault)\(|\[)\s*"(\w+)"', source))
    found |= {*re.findall(r'"(\w+)" (?:not )?in \w*kwargs', source), *re.findall(r'key == "(\w+)"', source)}
    found |= set(PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES)
    for name in ("Bert", "DistilBert", "Roberta", "XLMRoberta", "Camembert", "Albert"):
        found |= set(inspect.signature(getattr(transformers, f"{name}Tokenizer").__init__).parameters)
    harmless = set().union(*HARMLESS.values())
    assert found - {"self", "args", "kwargs"} == APPLIED | UNSUPPORTED | harmless
    assert len(APPLIED) + len(UNSUPPORTED) + sum(map(len, HARMLESS.values())) == len(APPLIED | UNSUPPORTED | harmless)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, ["x"]) for key in sorted(UNSUPPORTED)),
        ("truncation_side", "up"),
        ("model_input_names", 7),
        ("model_input_names", "token_type_ids"),
        ("split_special_tokens", 7),
        ("extra_special_tokens", "x"),
    ],
)
def test_a_key_that_is_not_supported_and_a_value_of_another_kind_are_refused(key, value, copied):
    folder = copied("words")
    edit_json(folder / "tokenizer_config.json", **{key: value})
    with pytest.raises(ValueError, match=rf"tokenizer_config\.json.*{key}"):
        load_tokenizer(folder)
    edit_json(folder / "tokenizer_config.json", **{key: None})
    assert load_tokenizer(folder)("hello").tokens == [["[CLS]", "hello", "[SEP]"]]


@pytest.mark.parametrize("key", sorted(set().union(*HARMLESS.values()) - {"chat_template", "backend", "auto_map"}))
def test_a_harmless_key_changes_no_ids(key, copied):
    folder = copied("words")
    with warnings.catch_warnings(action="ignore"):
        expected = load_tokenizer(folder).ids(TEXTS, max_length=9)
        edit_json(folder / "tokenizer_config.json", **{key: "left"})
        assert load_tokenizer(folder).ids(TEXTS, max_length=9) == expected


# -- added tokens


FILES: dict[str, Callable[[int], dict[str, dict[str, Any]]]] = {  # by the next free id
    "added_tokens.json": lambda free: {"added_tokens.json": {"[FONT_HIGH]": free, "new_tok": free + 1}},
    "ids with gaps": lambda free: {"added_tokens.json": {"new_tok": free + 9, "[FONT_HIGH]": free + 5, "sat": 9}},
    "special_tokens_map.json": lambda free: {
        "added_tokens.json": {"[FONT_HIGH]": free},
        "special_tokens_map.json": {"additional_special_tokens": ["[FONT_HIGH]", "<ent>"]},
    },
    "added_tokens_decoder": lambda free: {
        "tokenizer_config.json": {
            "added_tokens_decoder": {
                f"{free}": added("[FONT_HIGH]", lstrip=True, special=True),
                f"{free + 1}": added("new_tok", single_word=True, normalized=True),
                f"{free + 2}": added("<ent>", rstrip=True),
                "9": added("sat", special=True),
            },
        }
    },
    "additional_special_tokens": lambda free: {
        "tokenizer_config.json": {"additional_special_tokens": ["<ent>", "[FONT_HIGH]", "hello"]},
    },
    "extra_special_tokens": lambda free: {
        "tokenizer_config.json": {
            "extra_special_tokens": ["new_tok", {"__type": "AddedToken"} | added("<ent>", lstrip=True, special=True)]
        },
    },
    "names of their own": lambda free: {
        "tokenizer_config.json": {"extra_special_tokens": {"font_token": "[FONT_HIGH]"}, "image_token": "<ent>"},
    },
    "a list beside names of their own": lambda free: {
        "tokenizer_config.json": {
            "extra_special_tokens": {"font_token": "[FONT_HIGH]"},
            "additional_special_tokens": ["<ent>"],
        },
    },
    "a list that another list replaces": lambda free: {
        "tokenizer_config.json": {"extra_special_tokens": []},
        "special_tokens_map.json": {"additional_special_tokens": ["[FONT_HIGH]"]},
        "added_tokens.json": {"<ent>": free},
    },
    "a token with a role and in a list": lambda free: {
        "tokenizer_config.json": {
            "bos_token": "[FONT_HIGH]",
            "extra_special_tokens": [{"__type": "AddedToken"} | added("[FONT_HIGH]", lstrip=True, special=True)],
        },
    },
    "a listed token that is added as well": lambda free: {
        "tokenizer_config.json": {
            "extra_special_tokens": [{"__type": "AddedToken"} | added("new_tok", single_word=True, special=True)]
        },
        "added_tokens.json": {"new_tok": free},
    },
    "bos and eos": lambda free: {"tokenizer_config.json": {"bos_token": "[FONT_HIGH]", "eos_token": "<ent>"}},
    "split_special_tokens": lambda free: {
        "tokenizer_config.json": {"split_special_tokens": True, "additional_special_tokens": ["<ent>"]},
        "added_tokens.json": {"new_tok": free},
    },
}


@every_family
@pytest.mark.parametrize("files", FILES.values(), ids=FILES)
def test_added_tokens_are_those_of_transformers(family, files, copied):
    folder = copied(family)
    before = max(AutoTokenizer.from_pretrained(folder).get_vocab().values()) + 1
    for name, values in files(before).items():
        edit_json(folder / name, **values)
    ours = assert_as_transformers(folder)
    assert ours.vocab == AutoTokenizer.from_pretrained(folder).get_vocab()


@pytest.mark.parametrize("family", CLASSES)
@pytest.mark.parametrize("whole_class", [True, False])
def test_added_tokens_of_tokenizer_json_and_of_the_other_files_come_together(family, whole_class, copied):
    folder = copied(family)
    content = read_json(folder / "tokenizer.json")
    free = max(AutoTokenizer.from_pretrained(folder).get_vocab().values()) + 1
    content["added_tokens"].append({"id": free} | added("[FONT_HIGH]", rstrip=True))
    edit_json(folder / "tokenizer.json", **content)
    edit_json(folder / "added_tokens.json", new_tok=free + 1)
    if not whole_class:
        edit_json(
            folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast", extra_special_tokens=["<ent>"]
        )
    assert "[FONT_HIGH]" in assert_as_transformers(folder).vocab


def test_an_added_token_without_a_row_of_the_model_is_refused_by_its_name(copied):
    folder = copied("words")
    edit_json(folder / "added_tokens.json", new_tok=len(WORDS))
    edit_json(folder / "config.json", vocab_size=len(WORDS))
    with pytest.raises(ValueError, match=r"\b16 tokens .* 15 .*\['new_tok'\]"):
        load_tokenizer(folder)


@pytest.mark.parametrize("wrong", [7, {"x": 7}, {"5": {"lstrip": True}}])
def test_added_tokens_of_another_kind_are_refused(wrong, copied):
    folder = copied("words")
    edit_json(folder / "tokenizer_config.json", added_tokens_decoder=wrong)
    with pytest.raises(ValueError, match=re.escape(str(folder))):
        load_tokenizer(folder)


# -- truncation


@pytest.mark.parametrize(
    ("family", "place"),
    [
        *((family, "tokenizer_config.json") for family in ("words", *CLASSES)),
        *((one, "tokenizer.json") for one in CLASSES),
    ],
)
def test_texts_are_cut_on_the_side_that_the_files_state(family, place, copied):
    folder = copied(family)
    right = load_tokenizer(folder)
    cut = {"direction": "Left", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
    edit_json(folder / place, **({"truncation": cut} if place == "tokenizer.json" else {"truncation_side": "left"}))
    left = assert_as_transformers(folder)
    assert left.fingerprint != right.fingerprint
    text = "the cat sat hello world " * 20
    whole, (short,) = left.encode(text, add_special_tokens=False), left.encode_texts([text], max_length=9).ids
    assert short[1:-1] == whole[-7:]
    windows = {"long": "windows", "max_length": 20}
    assert left.encode_texts([text], **windows).ids == right.encode_texts([text], **windows).ids


def test_a_long_text_keeps_its_end_however_long_it_is(copied):
    folder = copied("words")
    edit_json(folder / "tokenizer_config.json", truncation_side="left")
    tokenizer = load_tokenizer(folder)
    with pytest.warns(TruncationWarning, match=r"\b40004\b"):
        (row,) = tokenizer.ids(["the " * 40_000 + "cat sat"], max_length=5)
    assert tokenizer.convert_ids_to_tokens(row) == ["[CLS]", "the", "cat", "sat", "[SEP]"]


def test_a_question_is_cut_on_the_side_that_the_files_state_and_its_passage_is_split_from_the_left(copied):
    folder, task = copied("words"), Answering(max_question=2)
    data = task.from_texts(["the cat sat"], ["hello world " * 9])
    for side, question in (("right", ["the", "cat"]), ("left", ["cat", "sat"])):
        edit_json(folder / "tokenizer_config.json", truncation_side=side)
        tokenizer = load_tokenizer(folder)
        rows = [tokenizer.convert_ids_to_tokens(one.ids) for one in task.encode(data, tokenizer, [], 12).examples]
        assert all(row[1:3] == question for row in rows) and rows[0][4:6] == ["hello", "world"] and len(rows) > 1


@pytest.mark.parametrize(
    ("task", "data"),
    [
        (Classification(), Texts(["cat sat " * 9])),
        (Answering(max_question=2), Answering(max_question=2).from_texts(["the cat sat"], ["hello world"])),
        (Choice(), [ChoiceQuestion("the", ("cat sat " * 9, "sat"))]),
    ],
    ids=["classify", "answer", "choose"],
)
def test_each_task_says_which_end_of_a_long_text_was_cut(task, data, copied):
    folder = copied("words")
    for side, lost in (("right", "after"), ("left", "before")):
        edit_json(folder / "tokenizer_config.json", truncation_side=side)
        assert f"what comes {lost} was cut off" in str(task.encode(data, load_tokenizer(folder), [], 12).truncation)


def test_segments_are_left_out_where_the_files_leave_them_out(copied):
    folder = copied("words")
    assert load_tokenizer(folder)("the cat", "sat").token_type_ids.tolist() == [[0, 0, 0, 0, 1, 1]]
    edit_json(folder / "tokenizer_config.json", model_input_names=["input_ids", "attention_mask"])
    assert "token_type_ids" not in AutoTokenizer.from_pretrained(folder)("the cat", "sat")
    assert not load_tokenizer(folder)("the cat", "sat").token_type_ids.any()
    assert minibert.load_tokenizer(folder).encode_texts([("the cat", "sat")]).second is None
