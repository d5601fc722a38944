"""Settings are written once: the fields of a dataclass define limits and command-line flags."""

import argparse
import dataclasses
import json
from dataclasses import dataclass

import numpy as np
import pytest

import minibert
from minibert.cli.shared import add_options, read_options
from minibert.tasks.settings import AnsweringSettings, ClassificationSettings, TaggingSettings
from minibert.train.settings import DistillSettings, FinetuneSettings
from minibert.utils.settings import check, check_number, setting


@dataclass(frozen=True)
class Example:
    steps: int = setting(10, "steps of the run", minimum=1)
    learning_rate: float = setting(5e-5, "the highest", minimum=0.0, maximum=1.0)
    mask_rate: float = setting(0.15, "masked", above=0, below=1)
    step: str = setting("packed", "{choices}", choices=("packed", "readable"))
    dev: str | None = setting(None, "held-out data", metavar="FILE")
    whole_words: bool = setting(False, "mask whole words")
    hidden: int = 3

    def __post_init__(self) -> None:
        check(self)


def test_flags_give_back_the_settings():
    parser = argparse.ArgumentParser()
    add_options(parser, Example)
    assert read_options(parser.parse_args([]), Example) == Example()
    args = parser.parse_args(["--steps", "5", "--learning-rate", "0.1", "--step", "readable", "--whole-words"])
    assert read_options(args, Example, hidden=4) == Example(5, 0.1, 0.15, "readable", None, True, 4)


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"steps": 0}, ValueError, r"steps is 0\b.* 1$"),
        ({"steps": 2.5}, TypeError, r"steps is 2\.5;.*\bint\b"),
        ({"steps": True}, TypeError, "steps is True"),
        ({"learning_rate": float("nan")}, ValueError, r"learning_rate is nan\b"),
        ({"learning_rate": 5}, ValueError, r"learning_rate is 5\b.* 0 .* 1$"),
        ({"learning_rate": 10**400}, ValueError, r"learning_rate .* 80 digits"),
        (
            {"learning_rate": 10**5000},
            ValueError,
            r"learning_rate .* 80 digits",
        ),
        ({"steps": -(10**5000)}, ValueError, r"steps .* 80 digits.* 1$"),
        ({"step": "x" * 100_000}, ValueError, r"step is 'x{40}'\.\.\. \(100,000 characters\)"),
        ({"mask_rate": 0}, ValueError, r"mask_rate is 0;.* 0 .* 1$"),
        ({"mask_rate": 1.0}, ValueError, r"mask_rate is 1\.0;.* 0 .* 1$"),
        ({"step": "fast"}, ValueError, r"step is 'fast'.*packed, readable"),
    ],
)
def test_a_value_out_of_its_limits_is_refused(values, error, message):
    with pytest.raises(error, match=message):
        Example(**values)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (FinetuneSettings, {"epochs": np.int64(1), "learning_rate": np.float32(0.5)}),
        (FinetuneSettings, {"fused": np.bool_(False), "device": np.str_("cpu"), "freeze": np.int64(1)}),
        (DistillSettings, {"take": np.array([0, 1]), "weights": [5, np.int8(2), 1]}),
        (AnsweringSettings, {"stride": np.array(7), "repair": np.True_}),
        (ClassificationSettings, {"text": np.int32(2)}),
        (TaggingSettings, {"columns": [np.int64(1), 4]}),
        (minibert.Recipe, {"layers": np.array([-2, -1]), "normalize": np.True_}),
        (minibert.Config, {"hidden_size": np.int64(24), "hidden_dropout_prob": np.float16(0.5)}),
    ],
)
def test_a_setting_is_kept_in_pythons_own_type(kind, given):
    made = kind(**given)
    json.dumps(dataclasses.asdict(made))  # which takes no type of numpy
    assert made == kind(**{name: np.asarray(value).tolist() for name, value in given.items()})


def test_a_list_is_kept_as_a_tuple_and_a_number_as_a_text_where_the_setting_is_one():
    assert (DistillSettings(take=[0, 1]).take, minibert.Recipe(layers=[-2, -1]).layers) == ((0, 1), (-2, -1))
    assert (FinetuneSettings(freeze=1).freeze, ClassificationSettings(text=2).text) == ("1", 2)


@pytest.mark.parametrize("value", [np.float64(2), np.True_, np.array([1]), np.datetime64("2026-01-01"), np.str_("2")])
def test_what_is_no_int_of_numpy_either_is_refused(value):
    with pytest.raises(TypeError, match=r"steps is .*\bint\b"):
        Example(steps=value)


def test_a_number_is_returned_in_pythons_own_type():
    assert type(check_number("top", np.uint8(3), int)) is int
    assert type(check_number("C", np.float32(3), float)) is float
