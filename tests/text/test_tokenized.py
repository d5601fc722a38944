"""The template of special tokens, windows and cut pairs, and very long texts, which are tokenized in pieces."""

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.models import minilm_folder
from support.tokenizers import CLASSES
from support.words import BAD, GOOD, write_words_checkpoint

from minibert.text.tokenized import TruncationWarning, in_windows
from minibert.text.tokenizer import Tokenizer, load_tokenizer

every_family = pytest.mark.parametrize("family", ["bert", "literal", *CLASSES])


@pytest.fixture(scope="module")
def tokenizer(both: Any) -> Callable[[str], Tokenizer]:
    """The tokenizer of a family; "literal" is BERT's that reads typed special tokens as text."""
    literal = load_tokenizer(minilm_folder(), special_tokens_in_text="literal")
    return cache(lambda family: literal if family == "literal" else both(family)[0])


# -- special tokens


def processor(pair: list[tuple[str, int]], single: str = "<s> A </s>") -> dict[str, Any]:
    """A TemplateProcessing: tokens of a pair with their segments, A and B for the texts."""

    def item(name, segment):
        return {"Sequence" if name in "AB" else "SpecialToken": {"id": name, "type_id": segment}}

    return {
        "type": "TemplateProcessing",
        "single": [item(name, 0) for name in single.split()],
        "pair": [item(name, segment) for name, segment in pair],
        "special_tokens": {name: {"id": name, "ids": [i], "tokens": [name]} for i, name in ((0, "<s>"), (2, "</s>"))},
    }


OFFSETS = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
BEGIN, A, END = ("<s>", 0), ("A", 0), ("</s>", 0)
WRONG = {
    "B first": processor([BEGIN, ("B", 0), END, A, END]),
    "no end": processor([BEGIN, A, END, ("B", 0)]),
    "nothing before": processor([A, END, ("B", 0), END]),
    "nothing before, nor before one": processor([A, END, ("B", 0), END], single="A </s>"),
    "segment 2": processor([BEGIN, A, END, ("B", 2), ("</s>", 2)]),
    "the last token in segment 0": processor([BEGIN, A, END, ("B", 1), END]),
    "another one for one text": processor([BEGIN, A, END, ("B", 0), END], single="A </s>"),
    "one text only": processor([BEGIN, A, END]),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_template_that_no_relative_has_is_refused(wrong, tokenizer):
    with pytest.raises(ValueError, match=r"post_processor|tokenizer.json"):
        Tokenizer(tokenizer("roberta")._definition | {"post_processor": wrong})


@pytest.mark.parametrize(
    ("right", "between"),
    [
        (processor([BEGIN, A, END, ("B", 1), ("</s>", 1)]), (2,)),
        (processor([BEGIN, A, END, END, ("B", 0), END]), (2, 2)),
        ({"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0]}, (2,)),
        (OFFSETS, (2, 2)),
        (None, (2, 2)),
    ],
    ids=["template", "template of RoBERTa", "BertProcessing", "offsets alone", "none"],
)
def test_the_template_is_that_of_the_post_processor(right, between, tokenizer):
    for one in (right, {"type": "Sequence", "processors": [OFFSETS, right or OFFSETS]}):
        template = Tokenizer(tokenizer("roberta")._definition | {"post_processor": one}).template
        assert (template.before, template.between, template.after) == ((0,), between, (2,))
        assert template.segment == int(between == (2,))


# -- texts that are too long


@given(st.integers(0, 60), st.integers(1, 12), st.data())
def test_windows_hold_every_token_and_end_with_the_text(count, room, data):
    stride = data.draw(st.integers(1, room))
    windows = in_windows(range(count), room, stride)
    assert {id for window in windows for id in window} == set(range(count))
    assert [window[0] for window in windows if window] == list(range(0, max(count, 0), stride))[: len(windows)]
    assert all(len(window) == room for window in windows[:-1])
    assert len(windows) == 1 or (count not in windows[-2] and windows[-2][-1] < count - 1)  # none is redundant


def test_windows_are_half_a_window_apart_unless_a_stride_is_given_and_are_taken_with_their_text(tmp_path):
    tokens = load_tokenizer(write_words_checkpoint(tmp_path))  # of 20 tokens, 18 of them of text
    long = " ".join(GOOD * 15)
    whole = [tokens.vocab[word] for word in long.split()]
    made = tokens.encode_texts(["a very good film", long, "", "the awful meal", " ".join(BAD * 7)], long="windows")
    assert made.ids[1:5] == [[tokens.cls_id, *whole[start : start + 18], tokens.sep_id] for start in (0, 9, 18, 27)]
    assert made.windows == [1, 4, 1, 1, 2]
    taken = made.take([4, 1])
    assert taken.windows == [2, 4] and taken.ids == [*made.ids[7:9], *made.ids[1:5]]
    pairs = tokens.encode_texts([("a", "good film"), ("the good", "film")])
    assert (pairs.take([1]).ids, pairs.take([1]).second) == (pairs.ids[1:], [4])
    for stride, count in ((18, 3), (1, 45 - 18 + 1)):
        assert len(tokens.encode_texts([long], long="windows", stride=stride).ids) == count
    for texts, message in (
        ([long], "stride is 19, and a window has 18 tokens"),
        ([(long, long)], "windows are of single texts; for pairs use long='cut' or 'error'"),
    ):
        with pytest.raises(ValueError, match=message):
            tokens.encode_texts(texts, long="windows", stride=19)


# -- very long texts


@every_family
@pytest.mark.parametrize("text", ["hello world, it is 中 ", "中", "a\n", "\0", "x"], ids=ascii)
def test_of_a_text_that_is_cut_only_the_beginning_is_tokenized(family, text, tokenizer):
    one, long = tokenizer(family), text * (70_000 // len(text)) + " the end"
    made = one.encode_texts(["short", long], max_length=50)
    ids = one.encode(long, add_special_tokens=False)
    assert made.ids[1] == one.template.row(ids[:48])
    assert made.stats.longest == len(ids) + 2 or (made.stats.uncounted, made.stats.truncated) == (1, 1)


def test_a_text_not_tokenized_to_its_end_has_at_least_so_many_tokens(tokenizer):
    texts = ["short", "hello " * 20_000]
    with pytest.warns(TruncationWarning, match=r"^1 of 2 texts .* 10 tokens"):
        tokenizer("bert").ids(texts, max_length=10)
    with pytest.raises(ValueError, match=r"row 1 .*max_length 10"):
        tokenizer("bert").ids(texts, max_length=10, truncation="error")


MEMORY = """
import resource, sys
import minibert
tokenizer = minibert.load_tokenizer(sys.argv[1])
tokenizer.ids(["warm"])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
tokenizer.encode_texts(["good film, " * 2_000_000])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in kilobytes on Linux alone")
def test_a_line_of_megabytes_that_is_cut_takes_little_more_memory_than_itself():
    command = [sys.executable, "-c", MEMORY, str(minilm_folder())]
    assert float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) < 120  # 2.5 GB as a whole
