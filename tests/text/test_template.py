"""The template of special tokens is read off the post_processor of tokenizer.json, or refused."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from small_tokenizers import CLASSES, write_saved

from minibert.text.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="module")
def definition(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The content of a small tokenizer.json of each family, for reading only."""

    @cache
    def read(family: str) -> dict[str, Any]:
        path: Path = tmp_path_factory.mktemp("tokenizers") / family
        write_saved(path, family)
        return load_tokenizer(path)._definition

    return read


@pytest.mark.parametrize("family", CLASSES)
def test_each_relative_has_its_template(family: str, definition: Any) -> None:
    template = Tokenizer(definition(family)).template
    one = family == "albert"
    assert (len(template.before), len(template.between), len(template.after)) == (1, 1 if one else 2, 1)
    assert template.segments(1, 1) == ([0, 0, 0, 1, 1] if one else [0] * 6) and template.segments(2) == [0] * 4
    row = template.row([7], [8])
    assert row == [*template.before, 7, *template.between, 8, *template.after] and row[template.second(1)] == 8
    assert template.specials(pairs=True) == len(row) - 2 and template.specials(pairs=False) == 2


def processor(pair: list[tuple[str, int]], single: str = "<s> A </s>") -> dict[str, Any]:
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
WRONG = {
    "B first": processor([BEGIN, ("B", 0), END, A, END]),
    "no end": processor([BEGIN, A, END, ("B", 0)]),
    "nothing before": processor([A, END, ("B", 0), END]),
    "segment 2": processor([BEGIN, A, END, ("B", 2), ("</s>", 2)]),
    "the last token in segment 0": processor([BEGIN, A, END, ("B", 1), END]),
    "another one for one text": processor([BEGIN, A, END, ("B", 0), END], single="A </s>"),
    "one text only": processor([BEGIN, A, END]),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_template_that_no_relative_has_is_refused(wrong: dict[str, Any], definition: Any) -> None:
    with pytest.raises(ValueError, match=r"the definition: (post_processor turns|.*cannot read this tokenizer.json)"):
        Tokenizer(definition("roberta") | {"post_processor": wrong})


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
def test_the_template_is_that_of_the_post_processor(right: Any, between: tuple[int, ...], definition: Any) -> None:
    template = Tokenizer(definition("roberta") | {"post_processor": right}).template
    assert (template.before, template.between, template.after) == ((0,), between, (2,))
    assert template.segment == int(between == (2,))
    in_two = {"type": "Sequence", "processors": [OFFSETS, right]}
    assert right is None or Tokenizer(definition("roberta") | {"post_processor": in_two}).template == template
