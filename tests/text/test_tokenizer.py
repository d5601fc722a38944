"""The tokenizers of BERT, RoBERTa, XLM-R, CamemBERT and ALBERT equal transformers', and report what they cut off."""

import multiprocessing
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
import textwrap
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models import HARD_TEXTS, edit_json, minilm_folder, write_checkpoint
from support.tokenizers import CLASSES, FRAGMENTS, SENTENCES, SPECIAL, differences, write_config, write_saved
from transformers import AutoTokenizer

from minibert.tasks.masked_text import fill_mask, fill_text
from minibert.tasks.tagging import Sentences, Tagging
from minibert.text.tokenized import TENSORS
from minibert.text.tokenizer import TruncationWarning, UnknownTokensWarning, load_tokenizer
from minibert.text.wordpiece import WordPiece

FOLDER = minilm_folder()
TOKENIZER = load_tokenizer(FOLDER)
CLS, SEP, PAD, UNK, MASK = 101, 102, 0, 100, 103
TEXTS = [
    *HARD_TEXTS,
    *SENTENCES,
    "a <mask> b",
    "I like [MASK] . <mask>!",
    "<s> a </s>",
    " two  spaces ",
    "a\x1cb \x1d c",
    # Nothing visible: [CLS] and [SEP]; a mark that is dropped, one [UNK], Chinese signs beside each other.
    *("\t\n", "\u200b", "\x00", "\ufffd", "\ue000\U000f0000", "a\u200bb\x00 \ufffdc\ue000d"),
    *("CAFÉ cafe\u0301 İstanbul", "at 👨‍👩‍👧‍👦 home", "中文和"),
]
SHORT = [*SENTENCES, "", " ", "a <mask> or [MASK]"]
ANY_TEXT = st.lists(
    st.one_of(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), st.sampled_from(FRAGMENTS + HARD_TEXTS)),
    max_size=8,
).map("".join)
every_family = pytest.mark.parametrize("family", ["bert", *CLASSES])


quiet = pytest.mark.filterwarnings("ignore")  # of truncated texts and of unknown tokens


# -- equal to transformers


@quiet
@every_family
def test_hard_texts_equal_transformers_in_ids_offsets_and_words(family, both):
    assert differences(*both(family), TEXTS) == []


@quiet
@every_family
@settings(max_examples=50)
@given(text=ANY_TEXT, partner=ANY_TEXT, max_length=st.integers(6, 40))
def test_any_text_and_any_pair_equal_transformers_also_when_cut(family, both, text, partner, max_length):
    assert differences(*both(family), [text]) == []
    assert differences(*both(family), [text], [partner], max_length) == []


@quiet
@every_family
def test_pairs_of_all_short_lengths_are_cut_as_transformers_cuts_them(family, both):
    first, second = zip(*[("a " * n, "b " * m) for n in range(7) for m in range(7)], strict=True)
    for max_length in range(4 + (family != "bert"), 13):
        assert differences(*both(family), list(first), list(second), max_length) == []


@quiet
@pytest.mark.parametrize("other", [{"lowercase": False}, {"special_tokens_in_text": "literal"}, "prefix"], ids=str)
def test_the_comparison_with_transformers_notices_another_setting(other, both, folders):
    ours, theirs = both("roberta" if other == "prefix" else "bert")
    if other == "prefix":
        theirs = AutoTokenizer.from_pretrained(folders("roberta"), add_prefix_space=True)
    else:
        ours = load_tokenizer(FOLDER, **other)
    assert differences(ours, theirs, TEXTS) != []


# -- the batch


def test_a_batch_is_padded_on_the_right_to_its_longest_row():
    batch = TOKENIZER(["hello", "hello big world"])
    assert batch.input_ids.tolist() == [[CLS, 7592, SEP, PAD, PAD], [CLS, 7592, 2502, 2088, SEP]]
    assert batch.special_tokens_mask.tolist() == [[1, 0, 1, 1, 1], [1, 0, 0, 0, 1]]
    assert batch.input_ids.dtype == batch.attention_mask.dtype == batch.token_type_ids.dtype == torch.long
    moved = batch.to("meta")
    assert all(moved[name].is_meta for name in TENSORS) and moved.tokens == batch.tokens
    empty = TOKENIZER([])
    assert (empty.input_ids.shape, len(empty), TOKENIZER.ids([])) == ((0, 0), 0, [])


def test_padding_is_accepted_as_transformers_has_it_and_no_padding_is_refused(both):
    ours, theirs = both("bert")
    texts = ["good film", "a very good film"]
    for padding in (True, "longest", "max_length"):
        settings = {"padding": padding, "max_length": 9}
        expected = theirs(texts, truncation=True, return_tensors="pt", **settings)
        found = ours(texts, **settings)
        assert all(torch.equal(found[name], expected[name]) for name in found)
        assert [len(row) for row in found.tokens] == [found.input_ids.shape[1]] * 2
    for wrong in (False, "do_not_pad", None, 3):
        with pytest.raises(ValueError, match=r"padding .*True, 'longest' or 'max_length'.*`ids`"):
            ours(texts, padding=wrong)


@quiet
@every_family
def test_rows_without_padding_are_those_of_the_batch(family, both):
    tokenizer, pairs = both(family)[0], list(zip(SHORT, SHORT[::-1], strict=True))
    made, batch = tokenizer.encode_texts(pairs), tokenizer(SHORT, SHORT[::-1])
    for padded, rows in ((tokenizer(TEXTS), tokenizer.ids(TEXTS)), (batch, made.ids)):
        found = zip(padded.input_ids, padded.attention_mask, strict=True)
        assert [ids[mask.bool()].tolist() for ids, mask in found] == rows
    in_segments = family in ("bert", "albert")
    assert made.second == ([row.index(1) for row in batch.token_type_ids.tolist()] if in_segments else None)
    assert batch.token_type_ids.any() == in_segments
    assert made.stats.special == len(pairs) * (3 if in_segments else 4)


def test_ids_of_more_texts_than_one_chunk_keep_their_order():
    texts = [f"{n}" for n in range(5000)]
    assert TOKENIZER.ids(texts) == [*TOKENIZER.ids(texts[:1000]), *TOKENIZER.ids(texts[1000:])]


# -- special tokens in the text


@quiet
@every_family
def test_typed_special_tokens_are_parsed_or_read_literally(family, both, folders):
    tokenizer, literal = both(family)[0], load_tokenizer(folders(family), special_tokens_in_text="literal")
    mask = tokenizer.id_to_token(tokenizer.mask_id)
    batch = tokenizer(f"the {mask} sat")
    place = batch.input_ids[0].tolist().index(tokenizer.mask_id)
    assert batch.special_tokens_mask[0].nonzero().flatten().tolist() == [0, place, batch.input_ids.shape[1] - 1]
    pick = random.Random(0)
    texts = [" ".join(pick.choices(FRAGMENTS, k=20)) for _ in range(100)] + [*SPECIAL, "".join(SPECIAL)]
    for copy in (literal, pickle.loads(pickle.dumps(literal))):
        assert not any(copy.control_ids & set(copy.encode(text, add_special_tokens=False)) for text in texts)
    if family == "bert":
        assert tokenizer("two 😀").special_tokens_mask.tolist() == [[1, 0, 0, 1]]  # [UNK] is a word
        by_hand = WordPiece(literal.vocab, special_tokens=())
        assert [literal.encode(text, add_special_tokens=False) for text in texts] == [*map(by_hand.ids, texts)]


# -- length


@pytest.mark.parametrize("call", [TOKENIZER, TOKENIZER.ids], ids=["batch", "ids"])
def test_long_texts_are_truncated_with_one_warning_or_refused_with_their_row(call):
    texts = ["hello " * 600, "short", "hello " * 1000]
    with pytest.warns(TruncationWarning, match=r"\b2 of 3 texts .* 512 .* 1002") as caught:
        made = call(texts)
    assert len(caught) == 1 and caught[0].filename == __file__
    rows = made if isinstance(made, list) else made.attention_mask
    assert [sum(mask) if call is TOKENIZER else len(mask) for mask in rows] == [512, 3, 512]
    assert isinstance(made, list) or (made.truncated, made.longest, made.input_ids[0, -1]) == (2, 1002, SEP)
    for truncation, message in (
        (False, "row 0 has 602 tokens, more than max_length 512"),
        ("error", "row 0 has 602 tokens, more than max_length 512"),
        ("only_first", "'only_first'; it must be 'warn' or 'error'"),
    ):
        with pytest.raises(ValueError, match=message):
            call(texts, truncation=truncation)


@every_family
@pytest.mark.parametrize("wrong", [-1, 0, 1, 2, 513, 128.0, "128", True])
def test_a_max_length_without_room_or_beyond_the_model_is_refused(family, wrong, both):
    tokenizer, least = both(family)[0], 4 if family in ("bert", "albert") else 5
    expected = "at least {} and at most 512" if type(wrong) is int else "an int"
    for call, texts, bound in ((tokenizer, ["a"], 3), (tokenizer.ids, ["a"], 3), (partial(tokenizer, "a"), "b", least)):
        with pytest.raises((ValueError, TypeError), match=rf"{wrong!r}.*{expected.format(bound)}"):
            call(texts, max_length=wrong)
    with pytest.raises(ValueError, match=rf"max_length .*{least - 1}.* {least}\b"):
        tokenizer("a", "b", max_length=least - 1)


# -- unknown words


def test_a_word_of_101_characters_is_unknown_and_mostly_unknown_tokens_are_warned_of_once():
    with pytest.warns(UnknownTokensWarning, match=r"\b2 of 3 .*\[UNK\]") as caught:
        assert TOKENIZER("hello " + "b" * 101 + " " + "a" * 101).tokens[0][1:-1] == ["hello", "[UNK]", "[UNK]"]
    with pytest.warns(UnknownTokensWarning, match=r"\b3 of 4 .*\[UNK\]"):
        TOKENIZER.ids(["😀 😀", "hello 😀"])
    assert len(caught) == 1 and UNK not in TOKENIZER.ids(["a" * 100])[0]
    TOKENIZER(["hello 😀", "big 😀"])  # half of them: no warning
    for texts, language in ((["😀"], False), (["สวัสดี "] * 20, True)):  # one emoji is no language
        with pytest.warns(UnknownTokensWarning) as caught:
            TOKENIZER(texts)
        assert ("language" in str(caught[0].message)) == language


# -- vocabulary and identity


def test_tokens_and_ids_translate_both_ways():
    assert (TOKENIZER.vocab_size, len(TOKENIZER.vocab)) == (30522, 30522)
    assert (TOKENIZER.token_to_id("hello"), TOKENIZER.id_to_token(7592)) == (7592, "hello")
    assert TOKENIZER.token_to_id("no such token") is TOKENIZER.id_to_token(-1) is TOKENIZER.id_to_token(30522) is None


@every_family
def test_tokens_that_continue_a_word_are_known_from_the_vocabulary(family, both):
    tokenizer, _ = both(family)
    made = next(tokenizer.encode_each([" The unbelievable rumination about cats"]))
    begins = [i == 0 or made.word_ids[i] != made.word_ids[i - 1] for i in range(len(made))]
    assert (~tokenizer.continues[made.ids]).tolist() == begins
    assert not tokenizer.continues[[*tokenizer.control_ids, tokenizer.unk_id]].any()
    marked = sorted(id for token, id in tokenizer.vocab.items() if token.startswith("##"))
    assert family != "bert" or np.flatnonzero(tokenizer.continues).tolist() == marked


def test_a_token_is_displayed_as_text(both):
    roberta, camembert = both("roberta")[0], both("camembert")[0]
    assert roberta.token_text(roberta.vocab["Ġ"]) == "Ġ"  # nothing but the mark
    assert roberta.token_text(roberta.vocab["Ã"]) == "Ã"  # half of a letter
    assert "".join(map(roberta.token_text, roberta.encode(" the", add_special_tokens=False))) == "the"
    assert roberta.token_text(roberta.mask_id) == "<mask>" and roberta.token_text(10**6) == "[id 1000000]"
    assert camembert.token_text(camembert.vocab["▁T"] if "▁T" in camembert.vocab else camembert.vocab["T"]) == "T"


def test_the_fingerprint_is_stable_and_changes_with_everything_that_changes_ids():
    options = [{"lowercase": False}, {"max_length": 64}, {"special_tokens_in_text": "literal"}]
    assert len({TOKENIZER.fingerprint, *(load_tokenizer(FOLDER, **how).fingerprint for how in options)}) == 4
    # Caches and saved classifiers of users have it.
    assert TOKENIZER.fingerprint == "d1ca422ac6a799d0882dec07ccb6acbf702330d42803098d757d810e1038223c"


@quiet
@every_family
def test_a_saved_or_pickled_tokenizer_is_the_same_for_transformers_and_minibert(family, tmp_path, folders):
    saved = load_tokenizer(folders(family), max_length=100, lowercase=False if family == "bert" else None)
    saved.save(tmp_path)
    write_config(tmp_path, family, 40_000)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert (type(theirs).__name__, theirs.model_max_length) == (CLASSES.get(family, "BertTokenizer"), saved.max_length)
    assert theirs(SHORT)["input_ids"] == saved.ids(SHORT)
    for again in (load_tokenizer(tmp_path), pickle.loads(pickle.dumps(saved))):
        assert (again.fingerprint, again.ids(SHORT)) == (saved.fingerprint, saved.ids(SHORT))


@pytest.mark.slow
@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system has no fork")
def test_workers_get_the_same_ids_and_neither_hang_nor_print_nor_change_the_environment():
    code = textwrap.dedent(f"""
        import multiprocessing, os, joblib
        from minibert.text.tokenizer import load_tokenizer
        environment = dict(os.environ)
        tokenizer = load_tokenizer({str(FOLDER)!r})
        assert tokenizer.fingerprint == {TOKENIZER.fingerprint!r}
        texts = ["hello world"] * 100
        expected = tokenizer.ids(texts)  # starts the library's threads, which a fork does not take along
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(tokenizer.ids, [texts] * 4) == [expected] * 4
        assert joblib.Parallel(n_jobs=2)([joblib.delayed(tokenizer.ids)(texts)] * 4) == [expected] * 4
        assert dict(os.environ) == environment
        print("done")
    """)
    environment = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=600)
    assert (done.stdout, done.stderr) == ("done\n", "")


# -- tasks and models of the relatives


def test_words_have_their_tags_at_their_first_tokens_as_in_transformers(folders, both):
    words = [["Redondo", "Beach", "ﬁne", "中文", "café"], ["me"]]
    for family in CLASSES:
        theirs = AutoTokenizer.from_pretrained(folders(family), add_prefix_space=True)
        expected = theirs(words, is_split_into_words=True)
        encoded = Tagging().encode(Sentences(words), both(family)[0], ["O", "X"], 128)
        assert [one.ids for one in encoded.examples] == expected["input_ids"]
        firsts = [[expected.word_ids(row).index(word) for word in range(len(words[row]))] for row in (0, 1)]
        assert encoded.back == firsts


@pytest.mark.parametrize("family", CLASSES)
@pytest.mark.parametrize("clean", [True, False])
def test_a_filled_text_has_the_spaces_that_transformers_decodes(family, clean, folders, tmp_path):
    shutil.copytree(folders(family), tmp_path, dirs_exist_ok=True)
    edit_json(tmp_path / "tokenizer_config.json", clean_up_tokenization_spaces=clean)
    ours, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    mask = theirs.mask_token
    texts = [
        "the cat {} on",
        "the cat {}.",
        "{} cat sat",
        "the cat{} on",
        "the {}, cat {} on {}",
        "the  {} on {}!",
        "a {}s",
    ]
    fillings = [
        id for id in range(5, len(theirs), 3) if id not in ours.control_ids and "\ufffd" not in theirs.decode([id])
    ]
    for text in (text.replace("{}", mask) for text in texts):
        ids = theirs(text)["input_ids"]
        for filling in (id for id in fillings if theirs.decode([id]).replace("\ufffd", "\n").isprintable()):
            row = [filling if id == ours.mask_id else id for id in ids]
            filled = fill_text(text, [filling] * text.count(mask), ours)
            assert filled == theirs.decode(row, skip_special_tokens=True)  # FillMaskPipeline's sequence


@pytest.mark.parametrize(("family", "mask", "other"), [("roberta", "<mask>", "[MASK]"), ("albert", "[MASK]", "<mask>")])
def test_masks_of_relatives_are_filled(family, mask, other, tmp_path):
    size = len(write_saved(tmp_path, family))
    write_checkpoint(tmp_path, family, "masked-lm", vocab_size=size, max_position_embeddings=40)
    guesses = fill_mask(f"The {mask} sat on the {mask}.", tmp_path, 4)
    assert [len(one) for one in guesses] == [4, 4] and all(guess.token for one in guesses for guess in one)
    with pytest.raises(ValueError, match=rf"\b0 {re.escape(mask)}"):
        fill_mask(f"The {other} sat on the mat.", tmp_path)
