"""The settings of a vector are written once: defaults, choices, checks and flags are those of Recipe everywhere."""

import argparse
import inspect
from dataclasses import fields

import numpy as np
import pytest

from minibert import TextFeatures, embed
from minibert.cli.shared import add_features, read_options
from minibert.config import Config
from minibert.vectors.recipe import DEFAULT, Recipe
from minibert.vectors.stream import embed_stream

NAMES = [one.name for one in fields(Recipe)]
CHOICES = {one.name: one.metadata["choices"] for one in fields(Recipe) if one.metadata["choices"]}
CONFIG = Config(hidden_size=8, num_hidden_layers=3, num_attention_heads=2, intermediate_size=8)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"long": "cut", "stride": 64}, ValueError, r"stride is 64\b.*'cut'.*long='windows'"),
        *[
            ({"long": "windows", name: 0}, ValueError, f"{name} is 0;")
            for name in ("stride", "batch_tokens", "max_length")
        ],
        ({"normalize": "yes"}, TypeError, "normalize is "),
        *[
            ({"layers": wrong}, TypeError, "layers is .*; it must be an integer or a list of them")
            for wrong in (None, 1.5, (1.5,), "1", ["-1"], {-1, -2}, np.array(1.0))
        ],
        *[
            ({name: wrong}, ValueError, f"{name} is .*; choose from {', '.join(choices)}$")
            for name, choices in CHOICES.items()
            for wrong in ("", "best", None, 3, ["cls"])
        ],
    ],
)
def test_a_wrong_setting_is_refused_by_name_and_value(settings, error, message):
    with pytest.raises(error, match=message):
        Recipe(**settings)


def test_truncation_of_transformers_is_answered_by_long():
    with pytest.raises(TypeError, match=r"truncation.*long="):
        Recipe(truncation="error")  # its name there


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
def test_layers_of_any_kind_are_kept_as_a_tuple_of_int(layers, kept):
    recipe = Recipe(layers=layers)
    assert recipe.layers == kept and {type(number) for number in recipe.layers} <= {int}
    assert recipe == Recipe(layers=kept) and hash(recipe) == hash(Recipe(layers=kept))


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
def test_fitted_to_a_model_layers_count_from_0_and_the_width_is_known(settings, fitted):
    assert Recipe(**{"pooling": "cls"} | settings).fit_to(CONFIG, has_pooler=True) == fitted


@pytest.mark.parametrize(
    ("settings", "has_pooler", "message"),
    [
        ({"pooling": "auto"}, True, "pooling is 'auto'"),
        ({"layers": ()}, False, r"layers .*none;.* 3 layers.* -4 to 3\b"),
        ({"layers": (-1, 4)}, False, r"layers .* 4;.* 3 layers.* -4 to 3\b"),
        ({"layers": -5}, False, r"layers .* -5;"),
        ({"pooling": "pooler"}, False, "pooler"),
        *[
            ({"pooling": "pooler", "layers": x}, True, "pooling is .pooler. with layers")
            for x in ((2,), (3, 3), (0, 3))
        ],
    ],
)
def test_a_recipe_that_a_model_cannot_follow_is_refused(settings, has_pooler, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**{"pooling": "cls"} | settings).fit_to(CONFIG, has_pooler=has_pooler)


@pytest.mark.parametrize("function", [embed, embed_stream, TextFeatures], ids=lambda function: function.__name__)
def test_a_signature_shows_every_setting_with_its_default(function):
    shown = inspect.signature(function).parameters
    assert {name: shown[name].default for name in NAMES} == {name: getattr(DEFAULT, name) for name in NAMES}
    assert all(shown[name].kind is inspect.Parameter.KEYWORD_ONLY for name in NAMES)
    with pytest.raises(TypeError, match="poling"):
        function("texts", poling="mean") if function is TextFeatures else function(["text"], "out.npy", poling="mean")


def test_the_command_line_has_the_defaults_and_the_choices():
    parser = argparse.ArgumentParser()
    add_features(parser)
    assert read_options(parser.parse_args([]), Recipe) == DEFAULT
    assert read_options(parser.parse_args(["--layers=-2,-1"]), Recipe).layers == (-2, -1)
    shown = " ".join(parser.format_help().split())
    for name in ("pooling", "combine", "precision"):
        assert f"{', '.join(CHOICES[name][:-1])} or {CHOICES[name][-1]}" in shown
        assert f"({getattr(DEFAULT, name)})" in shown
    with pytest.raises(ValueError, match=r"pooling is 'best'.*cls, mean, max, pooler"):
        read_options(parser.parse_args(["--pooling", "best"]), Recipe)
