"""The benchmark of training: both train the same, ratios and goals, and a whole run on a tiny checkpoint."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_bench_run import Here
from torch import Tensor, nn
from words import write_words_checkpoint

import minibert
from minibert.bench.backends import Backend, Setting
from minibert.bench.results import Middle, Result, Row, Sample
from minibert.bench.train import equality, report, run, ways
from minibert.bench.train.equality import CLOSE, Check, check
from minibert.bench.train.results import Training, goals_of
from minibert.bench.train.ways import BATCH, LENGTH, InOurOrder, Ours, Theirs, examples_of, ways_of
from minibert.cli import bench
from minibert.cli import main as cli
from minibert.config import Config
from minibert.families import FAMILIES
from minibert.families.bert import BERT
from minibert.families.distilbert import DISTILBERT
from minibert.losses import IGNORED
from minibert.tasks.base import Example
from minibert.text.tokenizer import load_tokenizer
from minibert.train.batches import Batches
from minibert.train.loop import Settings, new_optimizer, packed_loss

pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate, which the extra `test` brings")
pytestmark = pytest.mark.usefixtures("one_thread")
NAMED = {way.name: way for way in ways_of("classify")}
ROWS = [[2, *range(5, 6 + number % 9), 3] for number in range(2 * BATCH + 5)]
EXAMPLES = [Example(ids, [0] * len(ids), {"labels": number % 2}) for number, ids in enumerate(ROWS)]


@pytest.fixture(scope="module", params=[BERT.name, DISTILBERT.name])
def setting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Setting:
    """A tiny checkpoint with a classifier, as the benchmark writes it."""
    place = tmp_path_factory.mktemp("train")
    plain = write_words_checkpoint(place / "plain", request.param, max_position_embeddings=64)
    ways.write_checkpoint(str(plain), place / "checkpoint", "classify")
    return Setting(place / "checkpoint", place, 1, "cpu", 64)


# -- equality


def test_both_train_the_same(setting: Setting) -> None:
    found = check(setting, EXAMPLES)
    assert found.holds
    assert found.parameters == len(list(minibert.load(setting.folder, head=ways.HEADS["classify"]).parameters()))
    assert found.differing == 0
    assert found.packed <= CLOSE


@pytest.mark.parametrize(
    "change",
    [{"learning_rate": 5.1e-5}, {"warmup": 0.5}, {"weight_decay": 0.0}, {"clip": 0.1}],
    ids=lambda change: next(iter(change)),
)
def test_another_recipe_is_seen(change: dict[str, Any], setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Ours.__init__

    def changed(self: Ours, *given: Any, **more: Any) -> None:
        original(self, *given, **more)
        self.settings = dataclasses.replace(self.settings, **change)
        self.optimizer = new_optimizer(self.model, self.settings)

    monkeypatch.setattr(Ours, "__init__", changed)
    assert check(setting, EXAMPLES).differing


def test_other_dropout_is_seen(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = InOurOrder.__iter__

    def later(self: InOurOrder) -> Iterator[dict[str, Any]]:
        for batch in begin(self):
            torch.rand(1)
            yield batch

    monkeypatch.setattr(InOurOrder, "__iter__", later)
    assert check(setting, EXAMPLES).differing


def without_the_last_token(model: Any, batch: Any) -> Tensor:
    mask = batch.attention_mask.clone()
    mask[0, int(mask[0].sum()) - 1] = 0
    return packed_loss(model, dataclasses.replace(batch, attention_mask=mask))


def a_little_more(model: Any, batch: Any) -> Tensor:
    return packed_loss(model, batch) * 1.0001


def only_of_the_head(model: Any, batch: Any) -> Tensor:
    with torch.no_grad():
        loss = packed_loss(model, batch)
    return loss + 0 * model.classifier.bias.sum()


@pytest.mark.parametrize("wrong", [without_the_last_token, a_little_more, only_of_the_head])
def test_a_wrong_packed_step_is_seen(wrong: Any, setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = minibert.load(setting.folder, head=ways.HEADS["classify"])
    batch = Batches(EXAMPLES, BATCH, ways.SEED, 0).of_rows(range(8))
    assert equality.difference(model, batch) <= CLOSE
    monkeypatch.setattr(equality, "packed_loss", wrong)
    assert equality.difference(model, batch) > CLOSE


def test_a_check_of_nothing_does_not_hold() -> None:
    assert Check(10, 0, 1e-6).holds
    assert not Check(0, 0, 0.0).holds
    assert not Check(10, 1, 0.0).holds
    assert not Check(10, 0, 2e-5).holds


# -- who trains


def test_both_are_given_the_same_rows_and_the_same_padding() -> None:
    batches = Batches(EXAMPLES, BATCH, ways.SEED, 0)
    for segments in (True, False):
        given = InOurOrder(batches, segments)
        for theirs, ours in zip(given, batches.of_epoch(0), strict=True):
            assert torch.equal(theirs["input_ids"], ours.input_ids)
            assert torch.equal(theirs["attention_mask"], ours.attention_mask)
            assert torch.equal(theirs["labels"], ours.labels["labels"])
            assert ("token_type_ids" in theirs) == segments
        assert len(given) == 3


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_both_learn_and_go_on_with_their_weights_and_optimizer(precision: str, setting: Setting) -> None:
    ours, theirs = Ours(setting, precision, packed_loss, exact=False), Theirs(setting, precision, None)
    for way in (ours, theirs):
        before = weights(way.model)
        losses = way(EXAMPLES)
        assert np.isfinite(losses).all()
        between = weights(way.model)
        optimizer = ours.optimizer if way is ours else theirs.trainer.optimizer
        way(EXAMPLES)
        assert any(not torch.equal(x, y) for x, y in zip(before, between, strict=True))
        assert any(not torch.equal(x, y) for x, y in zip(between, weights(way.model), strict=True))
        assert optimizer is (ours.optimizer if way is ours else theirs.trainer.optimizer)
        steps = {float(state["step"]) for state in optimizer.state.values()}
        assert steps == {6.0}  # twice the three steps of an epoch


def test_the_trainer_has_its_own_defaults_and_bfloat16_is_its_own_too(setting: Setting) -> None:
    plain, lower = Theirs(setting, "float32", None), Theirs(setting, "bfloat16", None)
    assert plain.words == "attention sdpa, adamw_torch_fused"
    assert (plain.trainer.args.bf16, lower.trainer.args.bf16) == (False, True)
    assert next(lower.model.parameters()).dtype == torch.float32
    checked = Theirs(setting, "float32", "eager", optim="adamw_torch")
    assert checked.words == "attention eager, adamw_torch"


def test_the_recipe_is_that_of_the_paper_for_one_epoch() -> None:
    assert ways.recipe("float32", exact=False) == dataclasses.replace(Settings(), epochs=1, exact=False)
    assert ways.recipe("float32", False, "mlm") == ways.recipe("float32", exact=False)
    assert ways.recipe("float32", True, "mlm").clip == ways.NO_CLIP


# -- ratios and goals


def row(name: str, *took: float, peak: int = 0, **changes: Any) -> Row:
    return Row(NAMED[name], samples=[Sample(one, 2 * one, 0.0, peak) for one in took], **changes)


def training(*rows: Row, **changes: Any) -> Training:
    result = Result("a model", Config(), [8, 12], "drawn", rows=list(rows), stages={"equality": 2.0})
    return dataclasses.replace(Training(result, places=48, steps=2, check=Check(10, 0, 1e-6)), **changes)


def four(ours: float, theirs: float, lower: float, their_lower: float) -> list[Row]:
    taken = {"minibert-float32": ours, "trainer-float32": theirs}
    taken |= {"minibert-bfloat16": lower, "trainer-bfloat16": their_lower}
    return [row(name, took, peak=int(10 * took)) for name, took in taken.items()]


def test_the_goals_are_at_equal_precision_against_the_default_and_of_memory() -> None:
    found = goals_of(training(*four(2.0, 5.0, 1.0, 2.0)))
    assert [(goal.value, goal.bound, goal.reached) for goal in found] == [
        (2.5, 2.1, True),
        (2.0, 2.1, False),
        (5.0, 3.4, True),
        (2.5, 1.0, True),
        (2.0, 1.0, True),
    ]


def test_what_was_not_measured_is_neither_reached_nor_missed() -> None:
    found = goals_of(training(row("minibert-float32", 1.0), Row(NAMED["trainer-float32"], "not installed")))
    assert {goal.reached for goal in found} == {None}


def test_the_ratio_is_that_of_each_round() -> None:
    found = training(row("minibert-float32", 1.0, 2.0), row("trainer-float32", 3.0, 4.0))
    assert found.faster("minibert-float32", "trainer-float32") == Middle(2.5, 2.0, 3.0)


def test_tokens_a_second_leave_padding_out() -> None:
    found = training(row("minibert-float32", 2.0))
    assert found.tokens == 20
    assert report.speed(found.result.rows[0], found) == 10.0


def test_the_report_has_everyone_and_the_json_is_plain() -> None:
    rows = four(2.0, 5.0, 1.0, 2.0)
    rows[-1] = Row(NAMED["trainer-bfloat16"], "failed: no memory")
    found = training(*rows)
    text = report.result_text(found)
    assert "20 tokens in 48 places, 2.40 x" in " ".join(text.split())
    assert "10 of 10 parameters equal the Trainer's" in " ".join(text.split())
    assert "transformers' Trainer bfloat16: failed: no memory" in text
    assert "ours is 5.00 x as fast" in text
    figures = json.loads(json.dumps(report.figures(run.QUICK, [found], 1.0), allow_nan=False))
    assert figures["ok"]
    assert [one["name"] for one in figures["models"][0]["rows"]] == list(NAMED)
    assert figures["models"][0]["rows"][0]["tokens_per_second"] == 10.0
    assert figures["models"][0]["rows"][1]["ratio"]["median"] == 2.5
    assert "equality 2 s" in report.time_text(run.QUICK, [found], 3.0)


def test_where_both_do_not_train_the_same_the_run_fails_and_says_so() -> None:
    wrong = training(*four(2.0, 5.0, 1.0, 2.0), check=Check(10, 3, 1e-6))
    assert "DIFFERS: after" in report.result_text(wrong)
    assert "7 of 10 parameters" in " ".join(report.result_text(wrong).split())
    assert not report.figures(run.QUICK, [wrong], 1.0)["ok"]


# -- whole runs


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "Process", Here)
    monkeypatch.delenv("MINIBERT_DATA", raising=False)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("setting", [BERT.name], indirect=True)
def test_a_whole_run_with_its_figures_leaves_nothing_behind(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    argv = ["bench", "--train", "--quick", "--model", str(setting.folder), "--sentences", "40", "--rounds", "2"]
    status = cli.main([*argv, "--threads", "1", "--json"])
    out = capsys.readouterr().out
    assert status == 0, out
    figures = json.loads(out.splitlines()[-1])
    (model,) = figures["models"]
    ran = [one for one in model["rows"] if one["ranked"]]
    assert {"minibert-float32", "trainer-float32"} <= {one["name"] for one in ran}
    assert all(len(one["samples"]) == 2 and one["peak_bytes"] > 0 for one in ran)
    assert all(one["tokens_per_second"] > 0 for one in ran)
    assert (model["steps"], model["texts"], model["equality"]["differing"]) == (2, 40, 0)
    assert model["places"] > model["tokens"] > 0
    assert len(figures["goals"]) == 5
    assert "bit for bit" in " ".join(out.split())
    assert list(tmp_path.iterdir()) == []


class Lost:
    """A way whose loss is no number."""

    def __call__(self, examples: Sequence[Any]) -> Any:
        return np.array([np.nan], dtype=np.float32)


def broken(setting: Setting, precision: str) -> Any:
    raise ValueError("no such thing")


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("setting", [DISTILBERT.name], indirect=True)
def test_a_way_that_fails_or_loses_its_loss_has_a_reason_and_no_rank(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Backend("one", "One", "float32", lambda setting, _: (Lost(), "lost"), "accelerate")
    two = Backend("two", "Two", "float32", broken, "accelerate")
    three = Backend("three", "Three", "float32", broken, "no_such_package")
    monkeypatch.setattr(run, "ways_of", lambda objective: (one, two, three))
    plan = dataclasses.replace(run.QUICK, sentences=BATCH + 1, rounds=1)
    rows = run.measure(str(setting.folder), plan).result.rows
    assert [row.reason for row in rows] == [
        "its loss is not finite",
        "failed: ValueError: no such thing",
        "not installed",
    ]
    assert not any(row.ranked for row in rows)


# -- requests


def request(**changes: Any) -> argparse.Namespace:
    nothing = dict.fromkeys(("model", "sentences", "rounds", "threads", "plot", "objective"))
    return argparse.Namespace(
        **{"quick": False, "full": False, "device": "cpu", "train": True, "job": False} | nothing | changes
    )


def test_the_plans_are_those_of_training() -> None:
    assert bench.plan_of(request(quick=True, threads=1)) == dataclasses.replace(run.QUICK, threads=1)
    assert bench.plan_of(request(full=True, threads=1)) == dataclasses.replace(run.FULL, threads=1)
    assert bench.plan_of(request(rounds=5)).models == ("distilbert-shape", "all-MiniLM-L6-v2")


def test_what_cannot_be_measured_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="--plot draws vectors, not training"):
        bench.plan_of(request(plot=tmp_path / "a.png"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ValueError, match="training is measured on cpu"):
        bench.plan_of(request(device="cuda"))
    there: Callable[..., Any] = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "accelerate" else there(name))
    with pytest.raises(ImportError, match=r"Trainer needs accelerate: .*pip install"):
        bench.plan_of(request())


def test_every_family_that_trains_here_has_its_class_upstream() -> None:
    from minibert.parity.checkpoints import upstream_class

    assert all(
        upstream_class(family, head)
        for family in FAMILIES.values()
        for head in ways.HEADS.values()
        if head in family.heads
    )


@pytest.mark.parametrize("right", [True, False])
def test_it_is_said_which_products_ours_has(right: bool, setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "permitted", lambda: right)
    by = ", products by oneDNN" * right
    assert ways.load_ours(setting, "float32")[1] == f"packed step{by}, AdamW fused"
    assert ways.load_ours(setting, "bfloat16")[1] == "packed step, AdamW fused"


# -- hidden words


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    """A tiny checkpoint with a masked-LM head, as the benchmark writes it."""
    place = tmp_path_factory.mktemp("mlm")
    plain = write_words_checkpoint(place / "plain", BERT.name, max_position_embeddings=LENGTH)
    ways.write_checkpoint(str(plain), place / "checkpoint", "mlm")
    return Setting(place / "checkpoint", place, 1, "cpu", LENGTH)


SENTENCE, SENTENCES = "a film a fine film the mess", 600


def rows_of_words(setting: Setting) -> list[Example]:
    return examples_of("mlm", [SENTENCE] * SENTENCES, load_tokenizer(setting.folder))


def test_sentences_are_packed_into_rows(hidden: Setting) -> None:
    lengths = [len(row.ids) for row in rows_of_words(hidden)]
    assert max(lengths) == LENGTH
    (one,) = load_tokenizer(hidden.folder).encode_each([SENTENCE])
    assert sum(lengths) - 2 * len(lengths) == SENTENCES * len(one.ids) > LENGTH


def test_both_learn_hidden_words_alike(hidden: Setting) -> None:
    found = check(hidden, rows_of_words(hidden), "mlm")
    assert found.holds
    assert found.parameters > 40


def test_other_hidden_words_are_seen(hidden: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = InOurOrder.__iter__

    def with_a_label_more(self: InOurOrder) -> Iterator[dict[str, Any]]:
        for batch in begin(self):
            labels = batch["labels"].clone()
            labels[0, 1] = 7
            yield batch | {"labels": labels}

    monkeypatch.setattr(InOurOrder, "__iter__", with_a_label_more)
    assert check(hidden, rows_of_words(hidden), "mlm").differing


def test_the_trainer_hides_words_of_the_same_rows_by_its_own_collator(hidden: Setting) -> None:
    theirs, rows = Theirs(hidden, "float32", None, "mlm", collator=True), rows_of_words(hidden)
    assert theirs.words.endswith("DataCollatorForLanguageModeling")
    batches = ways.batches_of("mlm", rows, theirs.tokenizer)
    pairs = list(zip(InOurOrder(batches, True, theirs.collator), batches.of_epoch(0), strict=True))
    assert not all(torch.equal(their["labels"], our.labels["labels"]) for their, our in pairs)
    for their, our in pairs:
        for ids, labels in ((their["input_ids"], their["labels"]), (our.input_ids, our.labels["labels"])):
            text = torch.where(labels == IGNORED, ids, labels)
            assert [row[row != 0].tolist() for row in text] == [list(rows[number].ids) for number in our.rows]


@pytest.mark.usefixtures("here")
def test_a_whole_run_of_hidden_words(hidden: Setting, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["bench", "--train", "--objective", "mlm", "--quick", "--model", str(hidden.folder), "--rounds", "1"]
    status = cli.main([*argv, "--sentences", "300", "--threads", "1", "--json"])
    out = capsys.readouterr().out
    assert status == 0, out
    figures = json.loads(out.splitlines()[-1])
    assert figures["models"][0]["objective"] == "mlm"
    assert [goal["bound"] for goal in figures["goals"]] == [2.0, 2.0, 1.0, 1.0]
    assert "hidden words in sentences packed together" in " ".join(out.split())


@pytest.mark.usefixtures("here")
def test_one_step_which_changes_nothing_is_refused(setting: Setting) -> None:
    with pytest.raises(ValueError, match="32 sentences make 32 rows; more than 32 are needed"):
        run.measure(str(setting.folder), dataclasses.replace(run.QUICK, sentences=BATCH))


def test_an_objective_needs_training() -> None:
    with pytest.raises(ValueError, match="--objective is what --train learns; add --train"):
        bench.plan_of(request(train=False, objective="mlm"))
