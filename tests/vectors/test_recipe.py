"""What is asked for is said in one place: settings, defaults, choices and checks are those of Recipe everywhere."""

from __future__ import annotations

import argparse
import ast
import inspect
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minibert
from minibert import TextFeatures, embed
from minibert.cli.shared import add_features, features_settings
from minibert.config import Config
from minibert.device import PRECISIONS
from minibert.vectors.recipe import DEFAULT, Recipe, Settings
from minibert.vectors.stream import embed_stream

NAMES = [setting.name for setting in fields(Recipe)]
CHOICES = {one.name: one.metadata["choices"] for one in fields(Recipe) if one.metadata}
CONFIG = Config(hidden_size=8, num_hidden_layers=3, num_attention_heads=2, intermediate_size=8)
ROOT = Path(minibert.__file__).parent


# -- what it accepts and refuses


@given(st.fixed_dictionaries({name: st.sampled_from(choices) for name, choices in CHOICES.items()}))
def test_every_combination_of_choices_is_a_recipe(settings: dict[str, str]) -> None:
    if settings["truncation"] == "error":  # the older name of long="error"
        settings = settings | {"long": "error"}
    recipe = Recipe(**settings)
    assert {name: getattr(recipe, name) for name in settings} == settings


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"long": "windows", "truncation": "error"}, ValueError, "long is 'windows' and truncation is 'error'"),
        ({"long": "cut", "stride": 64}, ValueError, "stride is 64 and long is 'cut'; it is about long='windows'"),
        ({"long": "windows", "stride": 0}, ValueError, "stride is 0; it must be at least 1"),
        ({"long": "windows", "stride": 2.0}, TypeError, "stride is of type float; it must be an int"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Recipe(**settings)


def test_truncation_is_the_older_name_of_long() -> None:
    assert Recipe(truncation="error").long == "error" and Recipe(truncation="warn") == Recipe(long="cut")
    assert Recipe(truncation="warn", long="windows").long == "windows"  # "warn", the default, leaves it to long


@pytest.mark.parametrize("name", CHOICES)
@given(value=st.text(max_size=8) | st.none() | st.integers() | st.just(["cls"]))
def test_what_is_no_choice_is_refused_with_the_choices(name: str, value: object) -> None:
    if value not in CHOICES[name]:
        with pytest.raises(ValueError, match=rf"^{name} is .*; choose from {', '.join(CHOICES[name])}$"):
            Recipe(**{name: value})


@pytest.mark.parametrize(
    ("layers", "kept"),
    [
        (-1, (-1,)),
        ([-2, -1], (-2, -1)),
        (range(3), (0, 1, 2)),
        (np.array([0, 2]), (0, 2)),
        (np.int64(2), (2,)),
        ((), ()),
    ],
)
def test_layers_of_any_kind_are_kept_as_a_tuple_of_int(layers: Any, kept: tuple[int, ...]) -> None:
    recipe = Recipe(layers=layers)
    assert recipe.layers == kept and all(type(layer) is int for layer in recipe.layers)
    assert recipe == Recipe(layers=kept) and hash(recipe) == hash(Recipe(layers=kept))


@pytest.mark.parametrize("layers", [None, 1.5, (1.5,), "1", ["-1"], {-1, -2}, np.array(1.0)])
def test_layers_that_are_no_whole_numbers_in_an_order_are_a_type_error(layers: Any) -> None:
    with pytest.raises(TypeError, match=r"layers is .*; it must be a whole number or a list of them"):
        Recipe(layers=layers)


@pytest.mark.parametrize("batch_tokens", [4096.0, True, None, "64"])
def test_batch_tokens_that_are_no_whole_number_are_a_type_error(batch_tokens: Any) -> None:
    with pytest.raises(TypeError, match=r"batch_tokens is of type \w+; it must be an int"):
        Recipe(batch_tokens=batch_tokens)
    assert Recipe(batch_tokens=np.int32(64)).batch_tokens == 64


def test_it_cannot_be_changed_after_its_checks() -> None:
    with pytest.raises(FrozenInstanceError):
        DEFAULT.pooling = "best"  # type: ignore[misc]


# -- fitted to a model


@pytest.mark.parametrize(
    ("settings", "fitted"),
    [
        ({}, ((3,), 8)),
        ({"layers": (0, -1)}, ((0, 3), 16)),
        ({"layers": (-4, 3), "combine": "sum"}, ((0, 3), 8)),
        ({"layers": (1, 1), "combine": "mean"}, ((1, 1), 8)),
        ({"pooling": "pooler", "layers": 3}, ((3,), 8)),
    ],
)
def test_fitted_to_a_model_layers_count_from_0_and_the_width_is_known(
    settings: dict[str, Any], fitted: tuple[tuple[int, ...], int]
) -> None:
    assert Recipe(**settings).fit_to(CONFIG, has_pooler=True) == fitted


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": ()}, "layers is empty; name at least one of -4 to 3"),
        ({"layers": (-1, 4)}, "layers has 4; the encoder has 3 layers, so it must be -4 to 3"),
        ({"layers": -5}, "layers has -5; "),
        ({"pooling": "pooler"}, "this checkpoint has no pooler"),
    ],
)
def test_what_a_model_cannot_give_is_a_value_error(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Recipe(**settings).fit_to(CONFIG, has_pooler=False)


@pytest.mark.parametrize("layers", [(2,), (3, 3), (0, 3)])
def test_the_pooler_reads_the_last_layer_alone(layers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="it reads the last layer alone"):
        Recipe("pooler", layers).fit_to(CONFIG, has_pooler=True)


# -- said once


def test_the_types_of_the_keyword_arguments_are_those_of_the_fields() -> None:
    assert get_type_hints(Settings) == get_type_hints(Recipe)


@pytest.mark.parametrize("function", [embed, embed_stream, TextFeatures], ids=lambda function: function.__name__)
def test_a_signature_shows_every_setting_with_its_default(function: Any) -> None:
    shown = inspect.signature(function).parameters
    assert {name: shown[name].default for name in NAMES} == {name: getattr(DEFAULT, name) for name in NAMES}
    assert all(shown[name].kind is inspect.Parameter.KEYWORD_ONLY for name in NAMES)


def test_the_command_line_has_the_defaults_and_the_choices() -> None:
    parser = argparse.ArgumentParser()
    add_features(parser)
    settings = features_settings(parser.parse_args(["--model", "m"]))
    assert Recipe(**{name: settings[name] for name in NAMES}) == DEFAULT
    shown = parser.format_help()
    for name in ("pooling", "combine", "precision"):
        assert f"{', '.join(CHOICES[name][:-1])} or {CHOICES[name][-1]} ({CHOICES[name][0]})" in " ".join(shown.split())
    wrong = parser.parse_args(["--model", "m", "--pooling", "best"])
    with pytest.raises(ValueError, match="pooling is 'best'; choose from cls, mean, max, pooler"):
        features_settings(wrong)


def test_every_precision_has_its_dtype() -> None:
    assert tuple(PRECISIONS) == CHOICES["precision"]


def choices_spelled(source: str) -> list[str]:
    """Settings whose choices stand in the source once more, as a tuple, a list, a set or the keys of a dict."""
    several = (ast.Tuple, ast.List, ast.Set)
    found = []
    for node in ast.walk(ast.parse(source)):
        parts = node.elts if isinstance(node, several) else node.keys if isinstance(node, ast.Dict) else []
        values = {part.value for part in parts if isinstance(part, ast.Constant)}
        found += [name for name, choices in CHOICES.items() if values == set(choices)]
    return found


def test_no_other_file_repeats_the_choices() -> None:
    # Functions that have the one setting and no recipe check it themselves; device.py has a dtype for each precision.
    free = {"device.py": ["precision"], "texts.py": ["missing"], "tokenized.py": ["truncation"]}
    free["pooling.py"] = ["pooling", "combine"]  # where they are defined
    for path in sorted(ROOT.rglob("*.py")):
        assert choices_spelled(path.read_text("utf-8")) in ([], free.get(path.name)), path


def test_choices_that_are_repeated_would_be_seen() -> None:
    assert choices_spelled('POOLINGS = ("cls", "mean", "max", "pooler")') == ["pooling"]


def test_the_settings_are_read_without_torch_numpy_or_scikit_learn() -> None:
    code = "import sys, minibert.vectors.recipe; print(*{'torch', 'numpy', 'sklearn'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"
