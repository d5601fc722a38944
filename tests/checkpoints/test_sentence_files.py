"""The files of sentence-transformers beside a checkpoint: read in both layouts, refused where we cannot follow."""

import json

import pytest
from support.models import edit_json, every_wrong_number
from support.words import state_vectors

from minibert.checkpoints.sentence_files import Stated, read_stated


@pytest.mark.parametrize("newer", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_both_layouts_state_the_pooling_the_length_and_whether_it_is_normalized(folder, pooling, normalize, newer):
    assert read_stated(folder) is None
    state_vectors(folder, pooling, normalize, 9, newer)
    assert read_stated(folder) == Stated(pooling, normalize, 9)


def test_without_a_named_pooling_it_is_the_mean_and_without_a_length_all_positions(folder):
    state_vectors(folder, None)
    (folder / "sentence_bert_config.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    assert read_stated(folder) == Stated("mean", True, 20)
    (folder / "sentence_roberta_config.json").write_text('{"max_seq_length": 4000}')  # an older name; more than it has
    assert read_stated(folder) == Stated("mean", True, 20)


def three(transformer: str, pooling: str) -> list[dict[str, str]]:
    """The usual modules, with the folders of the first two."""
    paths = {"Transformer": transformer, "Pooling": pooling, "Normalize": "2_Normalize"}
    return [{"type": f"sentence_transformers.models.{name}", "path": path} for name, path in paths.items()]


@pytest.mark.parametrize("path", ["../secret", "1_Pooling/../../secret", "/secret", "C:\\secret", "link"])
def test_modules_outside_the_folder_are_refused_and_nothing_of_them_is_shown(folder, path):
    state_vectors(folder)
    secret = folder.parent / "secret"
    secret.mkdir()
    (secret / "config.json").write_text('{"pooling_mode": "password"}')
    (folder / "link").symlink_to(secret)
    for modules in (three("", path), three(path, "1_Pooling")):
        (folder / "modules.json").write_text(json.dumps(modules))
        with pytest.raises(ValueError, match=r"modules\.json") as refused:
            read_stated(folder)
        assert "password" not in str(refused.value)


def test_files_of_the_hugging_face_cache_are_links_and_are_followed(folder):
    state_vectors(folder)
    (folder.parent / "blobs").mkdir()
    for number, path in enumerate(path for path in [*folder.rglob("*")] if path.is_file()):
        path.rename(folder.parent / "blobs" / str(number))
        path.symlink_to(folder.parent / "blobs" / str(number))
    assert read_stated(folder) == Stated("mean", True, 12)


@every_wrong_number
@pytest.mark.parametrize(
    ("file", "key"), [("sentence_bert_config.json", "max_seq_length"), ("tokenizer_config.json", "model_max_length")]
)
def test_a_length_that_cannot_be_is_refused_with_file_and_key(folder, file, key, value):
    state_vectors(folder, newer=True)
    edit_json(folder / file, **{key: value, "do_lower_case": True})
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "mean"}')
    with pytest.raises(ValueError, match=rf"{file}.*{key} is .{{1,60}};"):
        read_stated(folder)


def test_transformers_number_for_no_limit_is_no_limit(folder):
    state_vectors(folder, newer=True)
    assert read_stated(edit_json(folder / "tokenizer_config.json", model_max_length=int(1e30))) == Stated(
        "mean", True, 20
    )


DENSE = {"type": "sentence_transformers.models.Dense", "path": "2_Dense"}


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("modules.json", {}, "nothing"),
        ("modules.json", [{"type": "x"}], "modules"),
        ("modules.json", 3, "modules"),
        ("modules.json", [DENSE], r"Dense.*Transformer, Pooling, Norm"),
        ("modules.json", [{"type": "own.Transformer", "path": ""}], r"own.Transformer"),
        ("modules.json", [{"type": [1], "path": ""}], "modules"),
        ("modules.json", [{"type": "x", "path": {"a": 1}}], "modules"),
        ("modules.json", [{"type": "x" * 100_000, "path": ""}], r"x{40}\.\.\. \(100,000 characters\)"),
        ("modules.json", three("0_Transformer", "1_Pooling"), "'0_Transformer'"),
        ("modules.json", three("", "elsewhere"), r"'elsewhere'.*config.json"),
        ("modules.json", three("", "x" * 5000), r"'x{40}'\.\.\. \(5,000 characters\)"),
        ("1_Pooling/config.json", {"pooling_mode": "weightedmean"}, "'weightedmean'"),
        ("1_Pooling/config.json", {"pooling_mode": ["cls", "mean"]}, r"\['cls', 'mean'\]"),
        (
            "1_Pooling/config.json",
            {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
            r"\['cls', 'mean'\]",
        ),
        (
            "config_sentence_transformers.json",
            {"prompts": {"q": "query: "}, "default_prompt_name": "q"},
            "'query: '",
        ),
        ("config_sentence_transformers.json", {"prompts": {"q": "a"}, "default_prompt_name": ["q"]}, "prompts"),
        ("config_sentence_transformers.json", {"prompts": [1], "default_prompt_name": "q"}, "prompts"),
    ],
)
def test_what_cannot_be_followed_is_refused_in_one_sentence_with_the_way_out(folder, file, content, message):
    (state_vectors(folder) / file).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=rf"{message}.*pooling=.*normalize=") as refused:
        read_stated(folder)
    assert "\n" not in str(refused.value)


def test_lowercasing_that_the_tokenizer_does_not_do_is_refused(folder):
    state_vectors(folder)
    (folder / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    assert read_stated(folder) is not None  # the tokenizer does it
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    with pytest.raises(ValueError, match="lowercases"):
        read_stated(folder)
