"""Training on the emulated device: the same losses as on the CPU, without waiting, few launches, resumed with its own
random numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from support.emulated_device import emulated_device
from support.training import EPOCHS, KINDS, OF_STEPS, STEPS, WIDTH, batch_of, examples, to_the_end
from torch import Tensor, nn

from minibert.families.albert import ALBERT
from minibert.families.bert import BERT
from minibert.families.electra import ELECTRA
from minibert.families.roberta import ROBERTA
from minibert.inputs import unchecked
from minibert.kernels.parts import with_parts
from minibert.prediction import packed
from minibert.prediction.collate import ExampleBatch
from minibert.prediction.logits import States, predict_logits
from minibert.quick import QUICK
from minibert.tasks.base import Encoded
from minibert.train import loop, run
from minibert.train.batches import Batches, NextSentencePairs
from minibert.train.loop import new_optimizer, one_step, packed_loss, readable_loss, train
from minibert.train.objectives import MaskedLanguageModel
from minibert.train.settings import TrainSettings
from minibert.train.start import freeze
from minibert.utils.device import autocast

pytestmark = [
    pytest.mark.filterwarnings("ignore:all .* texts were predicted", "ignore:degenerate"),
]
HEADS = [*((BERT, head) for head in BERT.heads), (ROBERTA, "masked-lm"), (ELECTRA, "replaced-token-detection")]


@pytest.mark.parametrize(("family", "head"), HEADS, ids=lambda value: getattr(value, "name", value))
def test_a_step_has_the_loss_of_the_cpu_and_never_waits(family, head, made):
    batch = batch_of(head, [3, 7, WIDTH, 5], family=family)

    def losses(device):
        model = made(family, head).to(device)
        optimizer = new_optimizer(model, TrainSettings())
        return [one_step(model, [batch], optimizer, packed_loss, TrainSettings(), 1).loss for _ in range(2)]

    expected = [float(loss) for loss in losses("cpu")]
    with emulated_device() as gpu, unchecked():
        found = losses("gpu")
        waits = [wait for wait in gpu.waits if " at " in wait]  # the others are those of moving the model
        assert [float(loss) for loss in found] == pytest.approx(expected, abs=1e-5)
    assert not waits


def test_twenty_steps_wait_once_for_their_losses(made):
    model, rows = made(BERT, "pretraining"), examples("pretraining", [5, 3] * 20)
    settings = TrainSettings(epochs=1, batch_size=2)
    with emulated_device() as gpu:
        model.to("gpu")
        gpu.reset()
        objective = MaskedLanguageModel(pairing=NextSentencePairs())
        found = to_the_end(train(model, Batches(rows, 2, 0, 0), settings, loss_of=objective))
        assert len(gpu.waits) == 1
    assert len(found.curve) == len(found.terms["next-sentence"]) == 20


@pytest.mark.parametrize(("precision", "most"), [("float32", 365), ("bfloat16", 450)])  # of which up to 78 are casts
@pytest.mark.parametrize("head", ["sequence-classification", "pretraining"])
def test_a_step_of_six_layers_has_few_launches_and_no_waits(head, precision, most, made, monkeypatch):
    """Negative control: where autocast casts each weight there are more."""
    model, batch = made(BERT, head, num_hidden_layers=6), batch_of(head, [3, 7, WIDTH, 5])
    expected, settings = packed_loss(model, batch).item(), TrainSettings(precision=precision)
    with emulated_device() as gpu, unchecked():
        model = with_parts(model.to("gpu"), QUICK)
        optimizer, found = new_optimizer(model, settings), []
        for _ in range(2):  # the first also makes the moments
            gpu.reset()
            found.append(one_step(model, [batch], optimizer, packed_loss, settings, 1).loss)
            model.train()
        assert 250 < sum(gpu.launches.values()) <= most
        assert not gpu.waits
        assert (gpu.launches["_to_copy"] > 40) == (precision == "bfloat16")
        assert found[0].item() == pytest.approx(expected, rel=1e-6 if precision == "float32" else 1e-2)
        monkeypatch.setattr(packed, "CAST_ONE_BY_ONE", ("gpu",))
        gpu.reset()
        one_step(model, [batch], optimizer, packed_loss, settings, 1)
        assert (sum(gpu.launches.values()) > most) == (precision == "bfloat16")


def bfloat16_step(model: Any, batch: ExampleBatch) -> tuple[float, dict[str, Tensor]]:
    """The loss and the gradients of a packed step under autocast on the device."""
    with autocast(torch.device("gpu"), "bfloat16"):
        loss = packed_loss(model.to("gpu"), batch)
    loss.backward()  # torch leaves it untyped
    return loss.item(), {name: p.grad.cpu() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    ("family", "frozen", "casts"), [(BERT, "none", 2), (BERT, "1", 2), (ALBERT, "none", 2), (ALBERT, "1", 1)]
)
def test_weights_cast_together_have_the_gradients_of_those_cast_one_by_one(family, frozen, casts, made, monkeypatch):
    """One kernel for all layers, and one for their gradients unless all are frozen. Bit for bit; ALBERT's layer, which
    computes each step, sums its gradients in bfloat16."""
    batch = batch_of("masked-lm", [3, 7, WIDTH, 5])
    with emulated_device() as gpu, unchecked():
        loss, found = bfloat16_step(freeze(made(family, "masked-lm"), frozen), batch)
        assert gpu.launches["_foreach_copy_"] == casts
        monkeypatch.setattr(packed, "CAST_ONE_BY_ONE", ("gpu",))
        gpu.reset()
        expected_loss, expected = bfloat16_step(freeze(made(family, "masked-lm"), frozen), batch)
        assert gpu.launches["_foreach_copy_"] == 0
    assert loss == expected_loss and found.keys() == expected.keys()
    for name, gradient in found.items():
        bound = 0.01 if "layers" in name and family is ALBERT else 0.0
        assert (gradient - expected[name]).abs().max() <= bound * expected[name].abs().max(), name


@pytest.mark.slow
def test_a_run_that_stopped_resumes_with_the_random_numbers_of_the_device(home, tmp_path, monkeypatch):
    """The emulated device, unlike a real one, adds up in one order, so that the bits are the same."""
    steps, how = iter(range(9)), EPOCHS | {"batch_size": 8, "device": "gpu"}  # two epochs of three steps

    def stops(*given):
        if next(steps) == 5:
            raise RuntimeError("the machine stops")
        return one_step(*given)

    with emulated_device():
        KINDS["classify"](home, out=tmp_path / "whole", **how)
        with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="stops"):
            patch.setattr(loop, "one_step", stops)
            KINDS["classify"](home, out=tmp_path / "resumed", **how)
    with emulated_device():
        KINDS["classify"](home, out=tmp_path / "resumed", **how)
    whole, resumed = (json.loads((tmp_path / name / "training.json").read_text()) for name in ("whole", "resumed"))
    assert whole["curve"] == resumed["curve"]


def test_the_readable_step_runs_there_too(made):
    batch, model = batch_of("masked-lm", [3, 7, WIDTH]), made(BERT, "masked-lm")
    expected = readable_loss(model, batch).item()
    with emulated_device(), unchecked():
        assert readable_loss(model.to("gpu"), batch).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("frozen", [False, True])
def test_evaluation_waits_once_a_batch_and_that_of_a_frozen_encoder_once(frozen, made):
    rows = Encoded(examples("sequence-classification", [3, 7, WIDTH, 5]))
    model = made()
    expected = predict_logits(model, rows)
    with emulated_device() as gpu:
        model.to("gpu")
        states = States.of(model, rows) if frozen else None
        gpu.reset()
        logits = states.logits(model) if states else predict_logits(model, rows, batch_tokens=2 * WIDTH)
        assert len(gpu.waits) == (1 if frozen else 2)
    for ours, theirs in zip(logits, expected, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_a_run_of_each_kind_has_the_losses_of_the_cpu(kind, home, tmp_path, monkeypatch):
    """Without dropout, whose random numbers are the device's own; sampling of ELECTRA likewise."""
    how = STEPS | {"steps": 3, "save_every": 2} if kind in OF_STEPS else EPOCHS | {"epochs": 1, "batch_size": 8}
    monkeypatch.setattr(nn.Dropout, "forward", lambda self, x: x)
    monkeypatch.setattr(loop, "set_train_mode", nn.Module.eval)
    monkeypatch.setattr(torch, "multinomial", lambda probabilities, count: probabilities.topk(count).indices)
    KINDS[kind](home, out=tmp_path / "cpu", device="cpu", **how)
    with emulated_device():
        KINDS[kind](home, out=tmp_path / "gpu", device="gpu", **how)
    found, expected = (json.loads((tmp_path / name / "training.json").read_text()) for name in ("gpu", "cpu"))
    assert found["curve"] == pytest.approx(expected["curve"], abs=1e-4)


def test_a_gpu_with_float16_and_no_bfloat16_trains_in_float32_and_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(run, "choose_device", str)
    with pytest.warns(UserWarning, match=r"float16 .*bfloat16.*float32"):
        assert run.resolve_precision(TrainSettings(device="cuda")).precision == "float32"
