"""A relative that minibert does not have, written in one file as a user would, runs on every path: EuroBERT.

Nothing else is changed for it (support/eurobert.py), and transformers has it, so that every tensor can be compared.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.engine import EXACT
from support.eurobert import EUROBERT
from support.models import MakePair, Pair, small_config, unequal
from support.training import Found, batch_of
from support.words import labelled, write_tsv, write_words_checkpoint
from torch import Tensor, nn

import minibert
from minibert.families import FAMILIES
from minibert.families.bert import BERT
from minibert.families.modernbert import GatedFeedForward, RotaryAttention
from minibert.heads import HEAD_CLASSES
from minibert.hooks import Place
from minibert.kernels.parts import with_parts
from minibert.model import FeedForward, Layer, SelfAttention
from minibert.parity.checkpoints import randomise
from minibert.quick import QUICK
from minibert.train import distill, finetune
from minibert.train.loop import packed_loss, readable_loss
from minibert.vectors import calibration
from minibert.vectors.engine import Engine
from minibert.vectors.readable import readable_vectors

ROWS = [[5, 9, 13, 8], [7], [*range(4, 40)], [5, 4, 60, 2, 31, 17, 9], [11, 12, 13, 14], [*range(40, 80)]]
TEXT_HEAD = "sequence-classification"
every_head = pytest.mark.parametrize("head", EUROBERT.heads)


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row of FAMILIES."""
    monkeypatch.setitem(FAMILIES, "eurobert", EUROBERT)


def model_of(head: str | None = None, **changes: Any) -> Any:
    """With every parameter random."""
    sizes: dict[str, Any] = {"num_hidden_layers": 4, "max_position_embeddings": 64}
    model = (HEAD_CLASSES[head] if head else minibert.Encoder)(small_config(EUROBERT, **sizes | changes))
    randomise(model, 3)
    return model.eval()


def pair_of(pair: MakePair, monkeypatch: pytest.MonkeyPatch, head: str = TEXT_HEAD, **mistake: Any) -> Pair:
    """Both sides, four layers deep; a mistake: another architecture than upstream's."""
    other = replace(EUROBERT, architecture=lambda config: replace(EUROBERT.architecture(config), **mistake))
    monkeypatch.setitem(FAMILIES, "eurobert", other)
    without = dict.fromkeys(("hidden_dropout_prob", "classifier_dropout"), 0.0)  # as upstream
    return pair(other, head, num_hidden_layers=4, classifier_pooling="bos", **without)


def write_folder(folder: Path, head: str | None, **changes: Any) -> Path:
    """A checkpoint with a vocabulary of its own."""
    write_words_checkpoint(folder)
    (folder / "model.safetensors").unlink()
    words = len((folder / "vocab.txt").read_text("utf-8").splitlines())
    minibert.save(model_of(head, vocab_size=words, pad_token_id=0, **changes), folder)
    return folder


# ---------------------------------------------------------------------------------------------------------------
# Its files, and what its upstream computes


@every_head
def test_it_is_saved_under_its_own_names_and_loaded_back(head: str, tmp_path: Path) -> None:
    model = model_of(head)
    minibert.save(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    official = [module.format(1) for module in EUROBERT.modules.values()]
    assert {f"model.{module}.weight" for module in official} <= set(tensors)
    again, report = minibert.load(tmp_path, head=head, report=True)
    assert replace(again.config, extra={}) == model.config
    assert len(report.loaded) == len(tensors) and not report.missing and not report.ignored
    assert all(torch.equal(x, again.state_dict()[name]) for name, x in model.state_dict().items())
    encoder, report = minibert.load(tmp_path, report=True)
    assert {name.rpartition(".")[0] for name in report.ignored} == {*EUROBERT.heads[head].values()}
    assert all(torch.equal(x, encoder.state_dict()[name]) for name, x in model.encoder.state_dict().items())


@every_head
def test_every_tensor_is_upstreams_bit_for_bit(head: str, pair: MakePair, monkeypatch: pytest.MonkeyPatch) -> None:
    both = pair_of(pair, monkeypatch, head)
    rows = [*both.compare(), *both.train()]
    assert unequal(rows) == []
    recorded = {(row.stage, row.layer) for row in rows}
    once = {("embeddings", None), ("final norm", None), ("loss", None)}
    assert {(stage, step) for stage in ("scores", "gate") for step in range(4)} | once <= recorded
    assert {row.rung for row in rows} >= {"tensors", "losses", "gradients", "tensors, dropout on", "trained weights"}


class WithoutRotation(RotaryAttention):
    forward = SelfAttention.forward


@pytest.mark.parametrize(
    ("mistake", "stage"),
    [
        ({"attention": WithoutRotation}, Place("scores", 0)),
        ({"rotary_thetas": (1e4, 1e4, 1e5, 1e4)}, Place("scores", 2)),
        ({"norm": lambda config, width: nn.RMSNorm(width, 1e-2)}, Place("attention norm", 0)),
    ],
)
def test_parity_finds_a_mistake_at_its_stage(
    mistake: dict[str, Any], stage: Place, pair: MakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = pair_of(pair, monkeypatch, **mistake).climb(train=False).first
    assert first is not None and Place(first.stage, first.layer) == stage


def test_an_encoder_that_is_not_where_its_family_says_is_named(pair: MakePair, monkeypatch: pytest.MonkeyPatch) -> None:
    both = pair_of(pair, monkeypatch)
    both.theirs.backbone = both.theirs.model
    del both.theirs.model
    with pytest.raises(ValueError, match=r"EuroBertForSequenceClassification has no module 'model'.*EuroBERT"):
        both.compare()


# ---------------------------------------------------------------------------------------------------------------
# It computes the same on every path


@torch.no_grad()
def test_the_fused_attention_of_torch_computes_the_same() -> None:
    encoder = model_of()
    fused = minibert.Encoder(encoder.config, "sdpa").eval()
    fused.load_state_dict(encoder.state_dict())
    pad = encoder.config.pad_token_id
    ids = torch.tensor([row + [pad] * (40 - len(row)) for row in ROWS])
    found, expected = fused(ids).last_hidden_state, encoder(ids).last_hidden_state
    torch.testing.assert_close(found[ids != pad], expected[ids != pad], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
@pytest.mark.parametrize(
    ("precision", "bound"), [("float32", 1e-5), ("bfloat16", 0.3), pytest.param("int8", 0.3, marks=EXACT)]
)
def test_fast_vectors_are_those_of_the_readable_path(
    pooling: str, precision: str, bound: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    encoder = model_of()
    engine = Engine(encoder, precision, samples=ROWS)
    for recipe in (minibert.Recipe(pooling), minibert.Recipe(pooling, layers=(0, 2, -1))):
        assert np.abs(engine.vectors(ROWS, recipe) - readable_vectors(encoder, ROWS, recipe)).max() < bound


@EXACT
def test_calibration_computes_in_the_order_of_the_layer() -> None:
    encoder = model_of()
    engine = Engine(encoder)
    rows = sorted(ROWS, key=len, reverse=True)
    packed = engine.pack(rows)
    with torch.inference_mode():
        _, exact = calibration.calibrate(encoder, engine.embed(packed), packed)
    means = torch.cat([group.mean(dim=1) for group in packed.by_group(exact)])
    assert np.abs(means.numpy() - readable_vectors(encoder, rows, minibert.Recipe("mean"))).max() < 1e-5


@every_head
@pytest.mark.parametrize("fast_parts", [False, True])
def test_the_packed_training_step_is_the_readable_one(head: str, fast_parts: bool) -> None:
    model = model_of(head)
    batch = batch_of(head, [3, 40, 12, 5], family=EUROBERT)
    found = Found.of(packed_loss, with_parts(model, QUICK) if fast_parts else model, batch)
    assert max(found.apart(Found.of(readable_loss, model, batch)).values()) < 1e-5


# ---------------------------------------------------------------------------------------------------------------
# What a user does


@pytest.mark.filterwarnings("ignore:all .* texts were predicted", "ignore:degenerate")  # models that barely learned
def test_it_is_fine_tuned_predicts_and_is_distilled_into_fewer_layers_of_itself(tmp_path: Path) -> None:
    folder, data = write_folder(tmp_path / "words", None), write_tsv(tmp_path / "train.tsv")
    finetune("classify", data, model=folder, out=tmp_path / "out", epochs=2)
    student = distill(data, task="classify", teacher=tmp_path / "out", out=tmp_path / "less", take=(0, 1), epochs=2)
    assert (student.config.family, student.config.num_hidden_layers) == (EUROBERT, 2)
    for model in ("out", "less"):
        assert minibert.predict(tmp_path / model, labelled(2)[0])[0]["label"] in ("neg", "pos")
    assert minibert.embed(["a good film", "bad"], model=folder).shape == (2, 24)


def test_the_trace_page_shows_its_own_steps(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, None)
    traced = minibert.trace(minibert.load(folder), minibert.load_tokenizer(folder), "a film")
    assert [layer["probs"].shape[0] for layer in traced.layers] == [3] * 4
    page = traced.to_html()
    text = page.partition('id="source"')[0]
    assert "EuroBERT" in page and "LayerNorm" not in text
    assert "x = x + Attention(RMSNorm(x)); x = x + FFN(RMSNorm(x))" in text
    anchors = set(re.findall(r'id="([\w.]+-L\d+)"', page))
    assert set(re.findall(r'href="#([\w.]+-L\d+)"', text)) <= anchors


# ---------------------------------------------------------------------------------------------------------------
# A class that the fast paths do not know


class WithExtra(Layer):
    """One more linear layer, which no `leaves` lists."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.extra = nn.Linear(24, 24)

    def forward(self, *given: Any) -> Any:
        x, probs = super().forward(*given)
        return self.extra(x), probs


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class WithDoubled(FeedForward):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.contract = Doubled(37, 24)


class OtherProject(SelfAttention):
    def project(self, x: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super().project(x, wanted)
        return query + 1, key, value


class OtherInner(GatedFeedForward):
    def inner(self, x: Tensor) -> Tensor:
        return -super().inner(x)


UNKNOWN: dict[str, dict[str, Any]] = {
    "WithExtra.extra has the matrix weight": {"layer": WithExtra},
    "Doubled has its own forward": {"feed_forward": WithDoubled},
    "OtherProject has its own project": {"attention": OtherProject},
    "OtherInner has its own inner": {"feed_forward": OtherInner},
}


def unknown(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    other = replace(BERT, architecture=lambda config: replace(BERT.architecture(config), **changes))
    monkeypatch.setitem(FAMILIES, "bert", other)
    return HEAD_CLASSES[TEXT_HEAD](small_config()).eval()


@pytest.mark.parametrize("message", UNKNOWN)
def test_the_engine_names_a_class_that_it_does_not_know(message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match=message):
        Engine(unknown(UNKNOWN[message], monkeypatch).encoder)


@pytest.mark.parametrize("message", list(UNKNOWN)[1:])
def test_the_training_step_names_a_class_that_it_does_not_know(message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match=message):
        with_parts(unknown(UNKNOWN[message], monkeypatch), QUICK)


def test_the_training_step_computes_linear_layers_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    model = unknown({"layer": WithExtra}, monkeypatch)
    batch = batch_of(TEXT_HEAD, [3, 11, 5])
    found = Found.of(packed_loss, with_parts(model, QUICK), batch)
    assert max(found.apart(Found.of(readable_loss, model, batch)).values()) < 1e-5
