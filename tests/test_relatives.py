"""A relative that nobody published, written in one file as a user would, runs on every path with nothing else changed.

    lean      RMSNorm, SwiGLU, rotary positions, no biases (EuroBERT, Llama)
    parallel  attention and feed-forward read the same norm (GPT-J, PaLM)

Their upstreams are written by hand (support/relatives/upstream.py). What they share with a published relative, such as
shared layers, positions that begin later or fused tensors, is tested with that relative.
"""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.engine import EXACT
from support.models import Pair
from support.relatives import RELATIVES, upstream
from support.training import Found, batch_of, write_corpus
from support.words import labelled, write_tsv, write_words_checkpoint
from torch import Tensor, nn

import minibert
from minibert.checkpoints.load import full_name
from minibert.families import FAMILIES
from minibert.families.base import Family
from minibert.families.bert import BERT
from minibert.families.modernbert import MODERNBERT, GatedFeedForward, RotaryAttention
from minibert.heads import HEAD_CLASSES
from minibert.hooks import Place
from minibert.kernels.parts import with_parts
from minibert.model import FeedForward, Layer, SelfAttention
from minibert.parity.checkpoints import randomise, task
from minibert.parity.compare import first_divergent
from minibert.quick import QUICK
from minibert.train import distill, finetune
from minibert.train.loop import packed_loss, readable_loss
from minibert.vectors import calibration
from minibert.vectors.engine import Engine
from minibert.vectors.readable import readable_vectors

LEAN, PARALLEL = RELATIVES.values()
SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
    "layer_norm_eps": 1e-5,
    "num_labels": 3,
    "pad_token_id": 0,
}
ROWS = [[5, 9, 13, 8], [7], [*range(3, 40)], [3, 4, 60, 2, 31, 17, 9], [11, 12, 13, 14], [*range(40, 80)]]
every = pytest.mark.parametrize("family", RELATIVES.values(), ids=list(RELATIVES))
every_head = pytest.mark.parametrize(
    ("family", "head"),
    [pytest.param(family, head, id=f"{family.name}-{head}") for family in RELATIVES.values() for head in family.heads],
)


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row of FAMILIES each."""
    for name, family in RELATIVES.items():
        monkeypatch.setitem(FAMILIES, name, family)


def raw(family: Family) -> dict[str, Any]:
    """Its config.json."""
    return {"model_type": family.name} | {family.keys.get(name, name): value for name, value in SIZES.items()}


def model_of(family: Family, head: str | None = None, **changes: Any) -> Any:
    """With every parameter random."""
    model = (HEAD_CLASSES[head] if head else minibert.Encoder)(minibert.Config.from_dict(raw(family) | changes))
    randomise(model, 3)
    return model.eval()


def pair_of(family: Family, **mistake: Any) -> Pair:
    """Both sides with the same parameters; a mistake: another architecture than upstream's."""
    family = replace(
        family, architecture=lambda config: replace(RELATIVES[family.name].architecture(config), **mistake)
    )
    FAMILIES[family.name] = family
    head = next(iter(family.heads))
    kind = getattr(upstream, family.upstream + HEAD_CLASSES[head].upstream)
    theirs = kind(SimpleNamespace(**raw(family))).eval()
    randomise(theirs, 5)
    ours, state = model_of(family, head), dict(theirs.named_parameters())  # each shared one once
    names = {name: full_name(family, name, family.heads[head]) for name in ours.state_dict()}
    ours.load_state_dict({name: state.get(names[name], x) for name, x in ours.state_dict().items()})
    return Pair(ours, theirs, task(head, ours.config, 16), head)


def write_folder(folder: Path, family: Family, head: str | None, **changes: Any) -> Path:
    """A checkpoint with a vocabulary of its own."""
    write_words_checkpoint(folder)
    (folder / "model.safetensors").unlink()
    words = len((folder / "vocab.txt").read_text("utf-8").splitlines())
    minibert.save(model_of(family, head, vocab_size=words, **changes), folder)
    return folder


# ---------------------------------------------------------------------------------------------------------------
# Its config.json and its files


@every
def test_config_json_is_read_and_written_back_unchanged(family):
    config = minibert.Config.from_dict(raw(family))
    assert (config.hidden_size, config.num_hidden_layers, config.num_labels) == (24, 4, 3)
    written = config.to_dict()
    assert written.items() >= {key: value for key, value in raw(family).items() if key != "num_labels"}.items()
    assert not {"type_vocab_size", *family.keys} & set(written)
    assert minibert.Config.from_dict(written) == config


def test_two_fields_that_read_one_key_have_one_value():
    config = minibert.Config.from_dict(raw(PARALLEL) | {"dropout": 0.3})
    assert config.hidden_dropout_prob == config.attention_probs_dropout_prob == config.to_dict()["dropout"] == 0.3
    with pytest.raises(
        ValueError, match=r"hidden_dropout_prob is 0\.2 and attention_probs_dropout_prob is 0\.3.* drop"
    ):
        replace(config, hidden_dropout_prob=0.2)


@every_head
def test_it_is_saved_under_its_own_names_and_loaded_back(family, head, tmp_path):
    model = model_of(family, head)
    minibert.save(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    official = [module.format(1) for module in family.modules.values()]
    assert {f"{family.prefix}{module}.weight" for module in official} <= set(tensors)
    again, report = minibert.load(tmp_path, head=head, report=True)
    assert len(report.loaded) == len(tensors) and not report.missing and not report.ignored
    assert all(torch.equal(x, again.state_dict()[name]) for name, x in model.state_dict().items())
    encoder, report = minibert.load(tmp_path, report=True)
    assert {name.removesuffix(".weight").removesuffix(".bias") for name in report.ignored} == {
        *family.heads[head].values()
    } - ({"lm_head"} if family is LEAN else set())
    assert all(torch.equal(x, encoder.state_dict()[name]) for name, x in model.encoder.state_dict().items())


# ---------------------------------------------------------------------------------------------------------------
# It computes what its upstream computes


@every
def test_every_tensor_is_upstreams_bit_for_bit(family):
    pair = pair_of(family)
    rows = [*pair.compare(), *pair.train()]
    assert not [row.place for row in rows if not row.equal]
    recorded = {(row.stage, row.layer) for row in rows}
    assert {("scores", step) for step in range(4)} | {
        ("embeddings", None),
        ("final norm", None),
        ("loss", None),
    } <= recorded
    assert {row.rung for row in rows} >= {"tensors", "losses", "gradients", "tensors, dropout on", "trained weights"}


class WithoutRotation(RotaryAttention):
    forward = SelfAttention.forward


@pytest.mark.parametrize(
    ("family", "mistake", "stage"),
    [
        (LEAN, {"attention": WithoutRotation}, Place("scores", 0)),
        (LEAN, {"rotary_thetas": (250_000.0, 250_000.0, 1e4, 250_000.0)}, Place("scores", 2)),
        (PARALLEL, {"norm": lambda config, width: nn.LayerNorm(width, 1e-2)}, Place("attention norm", 0)),
    ],
)
def test_parity_finds_a_mistake_at_its_stage(family, mistake, stage):
    pair = pair_of(family, **mistake)
    first = first_divergent(pair.compare())
    assert first is not None and Place(first.stage, first.layer) == stage
    same = first_divergent(pair.climb(train=False).rows)  # the ladder, which looks for the cause too
    assert same is not None and same.place == first.place


def test_an_encoder_that_is_not_where_its_family_says_is_named():
    pair = pair_of(LEAN)
    pair.theirs.backbone = pair.theirs.model
    del pair.theirs.model
    with pytest.raises(ValueError, match=r"LeanForMaskedLM has no module 'model'.*Lean"):
        pair.compare()


# ---------------------------------------------------------------------------------------------------------------
# It computes the same on every path


@every
@torch.no_grad()
def test_the_fused_attention_of_torch_computes_the_same(family):
    encoder = model_of(family)
    fused = minibert.Encoder(encoder.config, "sdpa").eval()
    fused.load_state_dict(encoder.state_dict())
    ids = torch.tensor([row + [0] * (40 - len(row)) for row in ROWS])
    found, expected = fused(ids).last_hidden_state, encoder(ids).last_hidden_state
    torch.testing.assert_close(found[ids != 0], expected[ids != 0], rtol=1e-4, atol=1e-4)


@every
@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
@pytest.mark.parametrize(
    ("precision", "bound"), [("float32", 1e-5), ("bfloat16", 0.3), pytest.param("int8", 0.3, marks=EXACT)]
)
def test_fast_vectors_are_those_of_the_readable_path(family, pooling, precision, bound, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    encoder = model_of(family)
    engine = Engine(encoder, precision, samples=ROWS)
    for recipe in (minibert.Recipe(pooling), minibert.Recipe(pooling, layers=(0, 2, -1))):
        assert np.abs(engine.vectors(ROWS, recipe) - readable_vectors(encoder, ROWS, recipe)).max() < bound


@EXACT
@every
def test_calibration_computes_in_the_order_of_the_layer(family):
    encoder = model_of(family)
    engine = Engine(encoder)
    rows = sorted(ROWS, key=len, reverse=True)
    packed = engine.pack(rows)
    with torch.inference_mode():
        _, exact = calibration.calibrate(encoder, engine.embed(packed), packed)
    means = torch.cat([group.mean(dim=1) for group in packed.by_group(exact)])
    assert np.abs(means.numpy() - readable_vectors(encoder, rows, minibert.Recipe("mean"))).max() < 1e-5


@every_head
@pytest.mark.parametrize("fast_parts", [False, True])
def test_the_packed_training_step_is_the_readable_one(family, head, fast_parts):
    model = model_of(family, head)
    batch = batch_of(head, [3, 40, 12, 5], family=family)
    found = Found.of(packed_loss, with_parts(model, QUICK) if fast_parts else model, batch)
    assert max(found.apart(Found.of(readable_loss, model, batch)).values()) < 1e-5


# ---------------------------------------------------------------------------------------------------------------
# What a user does, with ModernBERT too

each = pytest.mark.parametrize("family", [*RELATIVES.values(), MODERNBERT], ids=[*RELATIVES, "modernbert"])


@each
def test_it_is_fine_tuned_and_predicts(family, tmp_path):
    write_folder(tmp_path / "words", family, None)
    write_tsv(tmp_path / "train.tsv")
    finetune("classify", tmp_path / "train.tsv", model=tmp_path / "words", out=tmp_path / "out", epochs=2)
    assert {"label", "probability"} <= minibert.predict(tmp_path / "out", ["one text"])[0].keys()
    assert minibert.embed(["a good film", "bad"], model=tmp_path / "words").shape == (2, 24)


@pytest.mark.filterwarnings("ignore:all .* texts were predicted", "ignore:degenerate")  # models that barely learned
@each
def test_it_is_distilled_into_fewer_layers_of_itself(family, tmp_path):
    folder, how = write_folder(tmp_path / "teacher", family, "masked-lm"), {"max_length": 16, "batch_size": 8}
    corpus = write_corpus(tmp_path / "corpus.txt", documents=8)
    language = distill(corpus, teacher=folder, out=tmp_path / "language", take=(0, 1), steps=2, **how)
    names = {"num_labels": 2, "id2label": {0: "neg", 1: "pos"}}
    folder = write_folder(tmp_path / "tuned", family, "sequence-classification", **names)
    data = write_tsv(tmp_path / "train.tsv")
    labels = distill(data, task="classify", teacher=folder, out=tmp_path / "labels", take=(0, 1), epochs=1, **how)
    for student in (language, labels):
        assert (student.config.family, student.config.num_hidden_layers) == (family, 2)
    assert minibert.predict(tmp_path / "labels", labelled(2)[0])[0]["label"] in ("neg", "pos")


@every
def test_the_trace_page_shows_its_own_steps(family, tmp_path):
    folder = write_folder(tmp_path, family, "masked-lm")
    traced = minibert.trace(minibert.load(folder, head="masked-lm"), minibert.load_tokenizer(folder), "a [MASK] film")
    assert [layer["probs"].shape[0] for layer in traced.layers] == [3] * 4
    page = traced.to_html()
    text = page.partition('id="source"')[0]
    assert family.title in page
    assert {norm for norm in ("LayerNorm", "RMSNorm") if norm in text} == {"RMSNorm" if family is LEAN else "LayerNorm"}
    equations = {
        "parallel": "x = x + Attention(LayerNorm(x)) + FFN(LayerNorm(x))",
        "lean": "x = x + Attention(RMSNorm(x)); x = x + FFN(RMSNorm(x))",
    }
    assert [name for name, equation in equations.items() if equation in text] == [family.name]
    assert ("parallel.py" in text) == (family is PARALLEL)  # the order of its layer is in its own file
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
        self.contract = Doubled(40, 24)


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
    return model_of(other, "sequence-classification")


@pytest.mark.parametrize("message", UNKNOWN)
def test_the_engine_names_a_class_that_it_does_not_know(message, monkeypatch):
    with pytest.raises(TypeError, match=message):
        Engine(unknown(UNKNOWN[message], monkeypatch).encoder)


@pytest.mark.parametrize("message", list(UNKNOWN)[1:])
def test_the_training_step_names_a_class_that_it_does_not_know(message, monkeypatch):
    with pytest.raises(TypeError, match=message):
        with_parts(unknown(UNKNOWN[message], monkeypatch), QUICK)


def test_the_training_step_computes_linear_layers_anywhere(monkeypatch):
    model = unknown({"layer": WithExtra}, monkeypatch)
    batch = batch_of("sequence-classification", [3, 12, 5])
    found = Found.of(packed_loss, with_parts(model, QUICK), batch)
    assert max(found.apart(Found.of(readable_loss, model, batch)).values()) < 1e-5
