"""The benchmark of training: both sides train the same, and whole runs on a tiny checkpoint."""

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from support.emulated_device import emulated_device
from support.words import write_words_checkpoint
from torch import Tensor

import minibert
from minibert.bench import harness, training
from minibert.bench.plan import BenchSettings
from minibert.bench.results import Contestant, Context
from minibert.bench.training import BATCH, LENGTH, TOLERANCE, MinibertTrainer, TransformersTrainer, compare_training
from minibert.families.bert import BERT
from minibert.families.distilbert import DISTILBERT
from minibert.tasks.base import Example
from minibert.train.loop import packed_loss

pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate, which the extra `test` brings")
ROWS = [[2, *range(5, 6 + number % 9), 3] for number in range(2 * BATCH + 5)]
EXAMPLES = [Example(ids, [0] * len(ids), {"labels": number % 2}) for number, ids in enumerate(ROWS)]


def context_of(place: Path, family: str, objective: str, positions: int) -> Context:
    """A tiny checkpoint with a task head, as the benchmark writes it."""
    plain = write_words_checkpoint(place / "plain", family, max_position_embeddings=positions)
    folder = training.prepare(plain, place, BenchSettings(train=True, objective=objective))
    return Context(folder, place, 1, "cpu", positions)


@pytest.fixture(scope="module", params=[BERT.name, DISTILBERT.name])
def context(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Context:
    return context_of(tmp_path_factory.mktemp("train"), request.param, "classify", 64)


@pytest.fixture(scope="module")
def mlm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Context, list[Example]]:
    """The same with a masked-LM head, and rows of packed sentences."""
    made = context_of(tmp_path_factory.mktemp("mlm"), BERT.name, "mlm", LENGTH)
    return made, training.make_examples(
        "mlm", ["a film a fine film the mess"] * 600, minibert.load_tokenizer(made.folder)
    )


def measure(checkpoint: Path, sentences: int = BATCH + 1, **changes: Any) -> Any:
    settings = BenchSettings(train=True, sentences=sentences, rounds=1, **changes)
    return harness.measure(checkpoint, settings, training.BENCHMARK)


# -- equality


def check_equal(where: Context, examples: list[Example], objective: str) -> None:
    parameters, different, packed = compare_training(where, examples, objective)
    head = minibert.load(where.folder, head=training.HEADS[objective])
    assert parameters == len(list(head.parameters()))
    assert different == 0
    assert packed <= TOLERANCE


def test_both_train_the_same_classifier(context):
    check_equal(context, EXAMPLES, "classify")


def test_both_train_the_same_masked_language_model(mlm):
    check_equal(*mlm, "mlm")


@pytest.mark.parametrize("context", [BERT.name], indirect=True)
@pytest.mark.parametrize(
    ("objective", "spoil"),
    [("classify", lambda batches: torch.rand(1)), ("mlm", lambda batches: batches[0]["labels"][0, 1].fill_(7))],
    ids=["other dropout", "another masked token"],
)
def test_a_difference_in_training_is_caught(objective, spoil, context, mlm, monkeypatch):
    original = TransformersTrainer.batches

    def spoiled(self, examples):
        batches = original(self, examples)
        spoil(batches)
        return batches

    monkeypatch.setattr(TransformersTrainer, "batches", spoiled)
    where, examples = (context, EXAMPLES) if objective == "classify" else mlm
    assert compare_training(where, examples, objective)[1]


def without_the_last_token(model: Any, batch: Any) -> Tensor:
    mask = batch.attention_mask.clone()
    mask[0, int(mask[0].sum()) - 1] = 0
    return packed_loss(model, dataclasses.replace(batch, attention_mask=mask))


def without_gradients(model: Any, batch: Any) -> Tensor:
    with torch.no_grad():
        loss = packed_loss(model, batch)
    return loss + 0 * model.classifier.bias.sum()


@pytest.mark.parametrize(
    "wrong",
    [without_the_last_token, without_gradients, lambda model, batch: packed_loss(model, batch) * 1.0001],
    ids=["without the last token", "without gradients", "slightly larger"],
)
def test_a_wrong_packed_step_is_caught(wrong, context, monkeypatch):
    model = minibert.load(context.folder, head="sequence-classification")
    batch = training.make_batches("classify", EXAMPLES, minibert.load_tokenizer(context.folder)).of_rows(range(8))
    assert training.packed_difference(model, batch) <= TOLERANCE
    monkeypatch.setattr("minibert.train.loop.packed_loss", wrong)
    assert training.packed_difference(model, batch) > TOLERANCE


# -- both sides


@pytest.mark.parametrize("context", [BERT.name], indirect=True)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_both_continue_with_their_weights_and_their_optimizer(precision, context):
    for side in (MinibertTrainer(context, precision, "classify"), TransformersTrainer(context, precision, "classify")):
        states = []
        for _ in range(2):
            assert np.isfinite(side(EXAMPLES)).all()
            states.append([parameter.detach().clone() for parameter in side.model.parameters()])
        assert any(not torch.equal(x, y) for x, y in zip(*states, strict=True))
        optimizer = side.optimizer if isinstance(side, MinibertTrainer) else side.trainer.optimizer
        assert {float(state["step"]) for state in optimizer.state.values()} == {6.0}  # twice the steps of an epoch


@pytest.mark.parametrize("context", [BERT.name], indirect=True)
def test_both_have_their_own_defaults(context, monkeypatch):
    plain, lower = (TransformersTrainer(context, precision, "classify") for precision in ("float32", "bfloat16"))
    assert plain.route == "attention sdpa, adamw_torch_fused"
    assert (plain.trainer.args.bf16, lower.trainer.args.bf16) == (False, True)
    assert next(lower.model.parameters()).dtype == torch.float32
    assert TransformersTrainer(context, "float32", "classify", exact=True).route == "attention eager, adamw_torch"
    monkeypatch.setattr(training, "onednn_is_float32", lambda: True)
    ours = [MinibertTrainer(context, precision, "classify").route for precision in ("float32", "bfloat16")]
    assert ours == ["packed step, matmul by oneDNN, AdamW fused", "packed step, AdamW fused"]


# -- on a GPU


@pytest.mark.parametrize("context", [BERT.name], indirect=True)
def test_we_train_on_the_device_and_its_losses_are_those_of_the_cpu(context):
    expected = MinibertTrainer(context, "float32", "classify")(EXAMPLES)
    with emulated_device() as gpu:
        ours = MinibertTrainer(dataclasses.replace(context, device="gpu"), "float32", "classify")
        losses = ours(EXAMPLES)
    assert ours.route == "packed step, AdamW fused"
    assert gpu.launches
    assert np.isfinite(losses).all() and losses.shape == expected.shape
    assert losses[0] == pytest.approx(expected[0], abs=0.2), "dropout draws other numbers"


@pytest.mark.usefixtures("here")
def test_training_is_on_the_device_and_its_equality_is_found_on_the_cpu(cuda, checkpoint, monkeypatch):
    devices = []

    def load(context, precision):
        devices.append(context.device)
        return (lambda examples: np.zeros(1)), ""

    def compare(context, *_):
        devices.append(context.device)
        return 10, 0, 0.0

    one = Contestant("one", "One", "float32", load, "accelerate")
    monkeypatch.setattr(training, "contestants_for", lambda objective: [one])
    monkeypatch.setattr(training, "compare_training", compare)
    (row,) = measure(checkpoint, device="cuda").rows
    assert devices == ["cpu", "cuda"]
    assert (row.reason, row.peak) == ("", 123)


# -- whole runs


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("objective", "sentences"), [("classify", 40), pytest.param("mlm", 300, marks=pytest.mark.slow)]
)
def test_a_whole_run_leaves_nothing_behind(objective, sentences, tmp_path, monkeypatch, run):
    plain = write_words_checkpoint(tmp_path / "plain", max_position_embeddings=LENGTH)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    argv = ["bench", "--train", "--quick", "--objective", objective, "--sentences", str(sentences), "--rounds", "2"]
    out = run(*argv, "--model", plain, "--threads", "1", "--json")
    figures = json.loads(out.splitlines()[-1])
    ran = [row for row in figures["models"][0]["rows"] if row["ranked"]]
    assert {"minibert-float32", "trainer-float32"} <= {row["name"] for row in ran}
    assert all(len(row["samples"]) == 2 and row["peak"] > 0 and row["speed"]["tokens"] > 0 for row in ran)
    assert "bit for bit" in " ".join(out.split())
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.usefixtures("here")
def test_a_side_that_fails_or_loses_its_loss_is_not_ranked_and_one_that_trains_otherwise_fails_the_run(
    checkpoint, monkeypatch
):
    fail = Mock(side_effect=ValueError("no such thing"))
    lost = Contestant("one", "One", "float32", lambda *_: (lambda examples: np.array([np.nan]), ""), "accelerate")
    broken = Contestant("two", "Two", "float32", fail, "accelerate")
    monkeypatch.setattr(training, "contestants_for", lambda objective: [lost, broken])
    monkeypatch.setattr(training, "compare_training", lambda *_: (10, 3, 1e-6))
    found = measure(checkpoint)
    assert [row.reason for row in found.rows] == ["its loss is not finite", "failed: ValueError: no such thing"]
    assert "7 of 10 parameters" in found.wrong[0]
    for outcome, holds in (((0, 0, 0.0), False), ((10, 0, 2e-5), False), ((10, 0, 1e-6), True)):
        monkeypatch.setattr(training, "compare_training", lambda *_, outcome=outcome: outcome)
        assert (not measure(checkpoint).wrong) == holds
    with pytest.raises(ValueError, match=r"32 .*32 rows.* 32"):
        measure(checkpoint, sentences=BATCH)
