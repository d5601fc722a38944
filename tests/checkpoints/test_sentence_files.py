"""The files of sentence-transformers beside a checkpoint: read in both layouts, refused where we cannot follow."""

import json
from pathlib import Path
from typing import Any

import pytest
from words import state_vectors

from minibert.checkpoints.sentence_files import Stated, read_stated


@pytest.mark.parametrize("newer", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_both_layouts_state_the_pooling_the_length_and_whether_it_is_normalized(
    folder: Path, pooling: str, normalize: bool, newer: bool
) -> None:
    assert read_stated(folder) is None
    state_vectors(folder, pooling, normalize, 9, newer)
    assert read_stated(folder) == Stated(pooling, normalize, 9)


def test_without_a_named_pooling_it_is_the_mean_and_without_a_length_all_positions(folder: Path) -> None:
    state_vectors(folder, None)
    (folder / "sentence_bert_config.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    assert read_stated(folder) == Stated("mean", True, 20)
    (folder / "sentence_roberta_config.json").write_text('{"max_seq_length": 4000}')  # an older name; more than it has
    assert read_stated(folder) == Stated("mean", True, 20)


DENSE = {"type": "sentence_transformers.models.Dense", "path": "2_Dense"}


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("modules.json", {}, "the vectors are made by nothing"),
        ("modules.json", [{"type": "x"}], "not a list of modules"),
        ("modules.json", 3, "not a list of modules"),
        ("modules.json", [DENSE], "the vectors are made by Dense, and minibert can only do Transformer, Pooling, Norm"),
        ("modules.json", [{"type": "own.Transformer", "path": ""}], "the vectors are made by own.Transformer"),
        ("1_Pooling/config.json", {"pooling_mode": "weightedmean"}, "its pooling is 'weightedmean', and minibert can"),
        ("1_Pooling/config.json", {"pooling_mode": ["cls", "mean"]}, r"its pooling is \['cls', 'mean'\]"),
        (
            "1_Pooling/config.json",
            {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
            r"its pooling is \['cls', 'mean'\]",
        ),
        (
            "config_sentence_transformers.json",
            {"prompts": {"q": "query: "}, "default_prompt_name": "q"},
            "it puts 'query: ' before every text",
        ),
    ],
)
def test_what_cannot_be_followed_is_refused_in_one_sentence_with_the_way_out(
    folder: Path, file: str, content: Any, message: str
) -> None:
    (state_vectors(folder) / file).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"cannot follow .*{message}.*; choose --pooling and --normalize") as refused:
        read_stated(folder)
    assert "\n" not in str(refused.value)


def test_lowercasing_that_the_tokenizer_does_not_do_is_refused(folder: Path) -> None:
    state_vectors(folder)
    (folder / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    assert read_stated(folder) is not None  # the tokenizer does it
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    with pytest.raises(ValueError, match="it lowercases texts"):
        read_stated(folder)
