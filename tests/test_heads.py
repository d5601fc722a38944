"""Every head against its class in transformers: logits, losses, gradients and training, bit for bit.

The checkpoints are tiny and written by transformers, every parameter random, dropout probabilities all different,
so that a layer or a dropout in the wrong place changes a number.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from helpers import SIZES, unequal, write_checkpoint
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import minibert
from minibert import heads
from minibert.checkpoints.fill import name_in_file, official_name
from minibert.heads import HEAD_CLASSES, Head
from minibert.model import Pooler

B, S, C = 3, 8, 2
V, D = SIZES["vocab_size"], SIZES["hidden_size"]
# Beside those of the encoder; every probability another one, so that a swapped one shows.
DROPOUT = {"bert": {"classifier_dropout": 0.3}, "distilbert": {"classifier_dropout": 0.3, "qa_dropout": 0.4}}
CASES = [(head, "bert") for head in HEAD_CLASSES]
CASES += [(head, "distilbert") for head in HEAD_CLASSES if HEAD_CLASSES[head].in_distilbert]
LABEL_COUNT = {"sequence-classification": 3, "token-classification": 5}


# ---------------------------------------------------------------------------------------------------------------
# Checkpoints, batches and the comparison


def upstream_class(head: str | None, model_type: str) -> Any:
    name = {"bert": "Bert", "distilbert": "DistilBert"}[model_type]
    return getattr(transformers, name + (HEAD_CLASSES[head].upstream if head else "Model"))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Matrices this small are not worth the wait of one thread for the other, which is long on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of a random checkpoint, written once."""
    written: dict[str, Path] = {}

    def folder(head: str | None, model_type: str, **changes: Any) -> Path:
        key = json.dumps([head, model_type, changes], sort_keys=True)
        if key not in written:
            sizes = {**DROPOUT[model_type], "num_labels": LABEL_COUNT.get(head or "", 2)} | changes
            written[key] = tmp_path_factory.mktemp("checkpoint")
            write_checkpoint(written[key], model_type, model_class=upstream_class(head, model_type), **sizes)
        return written[key]

    return folder


def upstream(folder: Path, head: str | None, model_type: str) -> Any:
    return aligned(upstream_class(head, model_type).from_pretrained(folder, attn_implementation="eager"))


def aligned(model: Any) -> Any:
    """The same model with its parameters in memory of their own.

    transformers leaves them where the file put them, at any multiple of 4 bytes, and there a product with a matrix
    of one row (the classifier of multiple choice) rounds differently than at a multiple of 64.
    """
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return model


def text_batch(seed: int = 0, shape: tuple[int, ...] = (B, S)) -> dict[str, Tensor]:
    """Rows of different lengths, one of them full, and both segments in each."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([S, 5, 2] * (torch.Size(shape).numel() // S))[: torch.Size(shape[:-1]).numel()]
    mask = (torch.arange(S) < lengths[:, None]).long().view(shape)
    return {
        "input_ids": torch.randint(1, V, shape, generator=generator) * mask,
        "attention_mask": mask,
        "token_type_ids": torch.randint(0, 2, shape, generator=generator),
    }


def with_labels(head: str, seed: int = 0) -> dict[str, Tensor]:
    """A batch for this head with its labels; token labels hold a 0 and several -100."""
    generator = torch.Generator().manual_seed(seed + 1)
    batch = text_batch(seed, (B, C, S) if head == "multiple-choice" else (B, S))
    classes = {"masked-lm": V, "pretraining": V, "token-classification": 5}.get(head)
    if classes is not None:
        batch["labels"] = torch.randint(0, classes, (B, S), generator=generator)
        batch["labels"][torch.rand((B, S), generator=generator) < 0.5] = -100
        batch["labels"][0, 1] = 0
    if head == "pretraining":
        batch["next_sentence_label"] = torch.tensor([0, 1, 1])
    if head in ("next-sentence", "multiple-choice"):
        batch["labels"] = torch.tensor([1, 0, 1])
    if head == "sequence-classification":
        batch["labels"] = torch.tensor([2, 0, 1])
    if head == "question-answering":
        batch |= {"start_positions": torch.tensor([0, 2, S + 3]), "end_positions": torch.tensor([S - 1, -4, 1])}
    return batch


def run(model: nn.Module, batch: dict[str, Tensor]) -> Any:
    if isinstance(model, transformers.DistilBertPreTrainedModel):  # it has no segments
        batch = {name: value for name, value in batch.items() if name != "token_type_ids"}
    torch.manual_seed(11)
    return model(**batch, output_hidden_states=True, output_attentions=True)


def parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every parameter under its official name, without prefix, whichever side the model is of."""
    if isinstance(model, Head):
        return {name_in_file(model.config.model_type, name): p for name, p in model.named_parameters()}
    names = {name: official_name(name) for name, _ in model.named_parameters()}
    return {
        names[name].replace("cls.predictions.bias", "cls.predictions.decoder.bias"): p
        for name, p in model.named_parameters()
    }


def outcome(model: nn.Module, batch: dict[str, Tensor], training: bool = False) -> dict[str, Tensor]:
    """Logits, loss, hidden states, attentions and the gradient of every parameter of one batch, by name."""
    model.train(training).zero_grad()
    out = run(model, batch)
    out.loss.backward()
    fields = ("loss", "logits", "start_logits", "end_logits", "prediction_logits", "seq_relationship_logits")
    found = {name: getattr(out, name) for name in fields if hasattr(out, name)}
    for kind in ("hidden_states", "attentions"):
        found |= {f"{kind} {i}": tensor for i, tensor in enumerate(getattr(out, kind))}
    return found | {f"gradient {name}": p.grad for name, p in parameters(model).items() if p.grad is not None}


def differences(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> list[str]:
    """The names under which the two are not equal bit for bit."""
    one, other = ({name: tensor.detach() for name, tensor in side.items()} for side in (ours, theirs))
    return list(unequal(one, other))


# ---------------------------------------------------------------------------------------------------------------
# Equal to transformers


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize(("head", "model_type"), CASES)
def test_outputs_loss_and_every_gradient_equal_upstream(head: str, model_type: str, training: bool, checkpoint):
    folder, batch = checkpoint(head, model_type), with_labels(head)
    ours = outcome(minibert.load(folder, head=head), batch, training)
    assert differences(ours, outcome(upstream(folder, head, model_type), batch, training)) == []
    assert ours["loss"] is not None and torch.isfinite(ours["loss"])


@pytest.mark.parametrize("model_type", ["bert", "distilbert"])
@pytest.mark.parametrize(
    ("num_labels", "problem_type", "labels"),
    [
        (3, None, torch.tensor([[2], [0], [1]])),
        (3, None, torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.3]])),
        (3, "multi_label_classification", torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 1.0, 1.0]])),
        (3, "regression", torch.tensor([[0.5, -2.0, 1.0], [3.0, 0.0, 0.0], [0.0, 1.0, 9.0]])),
        (1, None, torch.tensor([0.5, -2.0, 7.0])),
        (1, None, torch.tensor([[0.5], [-2.0], [7.0]])),
        (1, "regression", torch.tensor([0.5, -2.0, 7.0])),
    ],
)
def test_the_loss_of_whole_texts_is_chosen_as_upstream(model_type, num_labels, problem_type, labels, checkpoint):
    folder = checkpoint("sequence-classification", model_type, num_labels=num_labels, problem_type=problem_type)
    batch = text_batch() | {"labels": labels}
    model = minibert.load(folder, head="sequence-classification")
    theirs = outcome(upstream(folder, "sequence-classification", model_type), batch, training=True)
    assert differences(outcome(model, batch, training=True), theirs) == []
    assert model.config.problem_type == problem_type


def test_whole_numbers_are_accepted_for_several_labels_and_for_a_regression(checkpoint):
    whole = torch.tensor([[1, 0, 1], [0, 0, 0], [0, 1, 1]], dtype=torch.int32)
    for problem_type in ("multi_label_classification", "regression"):
        folder = checkpoint("sequence-classification", "bert", num_labels=3, problem_type=problem_type)
        model = minibert.load(folder, head="sequence-classification")
        losses = [model(**text_batch(), labels=labels).loss for labels in (whole, whole.float())]
        assert torch.equal(*losses)


def test_a_classifier_without_dropout_of_its_own_takes_the_encoders(checkpoint):
    for head in ("sequence-classification", "token-classification", "multiple-choice"):
        folder = checkpoint(head, "bert", classifier_dropout=None, hidden_dropout_prob=0.5)
        ours = outcome(minibert.load(folder, head=head), with_labels(head), training=True)
        assert differences(ours, outcome(upstream(folder, head, "bert"), with_labels(head), training=True)) == []


def test_p_is_next_is_the_probability_of_class_0(checkpoint):
    folder = checkpoint("next-sentence", "bert")
    out = run(minibert.load(folder, head="next-sentence"), text_batch())
    theirs = run(upstream(folder, "next-sentence", "bert").eval(), text_batch()).logits
    assert torch.equal(out.p_is_next, theirs.softmax(-1)[:, 0])
    assert out.p_is_next.shape == (B,)


@pytest.mark.parametrize(("head", "model_type"), CASES)
def test_a_saved_head_is_loaded_by_transformers_and_by_minibert_bit_for_bit(head, model_type, checkpoint, tmp_path):
    model = minibert.load(checkpoint(head, model_type), head=head)
    minibert.save(model, tmp_path / "saved")
    kind = upstream_class(head, model_type)
    theirs, info = kind.from_pretrained(tmp_path / "saved", attn_implementation="eager", output_loading_info=True)
    assert not any(info.values()), info
    assert differences(outcome(aligned(theirs), with_labels(head)), outcome(model, with_labels(head))) == []
    again = minibert.load(tmp_path / "saved", head=head)
    assert differences(dict(again.state_dict()), dict(model.state_dict())) == []
    original = load_file(checkpoint(head, model_type) / "model.safetensors")
    assert differences(load_file(tmp_path / "saved" / "model.safetensors"), original) == []


@pytest.mark.parametrize("model_type", ["bert", "distilbert"])
@pytest.mark.parametrize("head", ["masked-lm", "sequence-classification"])
def test_20_steps_of_adamw_with_dropout_end_at_the_same_weights(head, model_type, checkpoint):
    def train(model: nn.Module) -> dict[str, Tensor]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        model.train()
        torch.manual_seed(3)
        for step in range(20):
            batch = with_labels(head, seed=step)
            if model_type == "distilbert":
                del batch["token_type_ids"]
            optimizer.zero_grad()
            model(**batch).loss.backward()
            optimizer.step()
        return {name: p.detach() for name, p in parameters(model).items()}

    folder = checkpoint(head, model_type)
    ours = train(minibert.load(folder, head=head))
    assert differences(ours, train(upstream(folder, head, model_type))) == []
    start = {name: p.detach() for name, p in parameters(minibert.load(folder, head=head)).items()}
    assert len(differences(ours, start)) == len(start)  # every parameter was trained


# ---------------------------------------------------------------------------------------------------------------
# The same comparison catches mistakes


def twice_biased(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    once = model.decoder.forward
    monkeypatch.setattr(model.decoder, "forward", lambda *given: once(*given) + model.decoder.bias)


def untied(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model.decoder.weight = nn.Parameter(model.encoder.embeddings.token.weight.detach().clone())


def swapped_classes(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model.next_sentence.weight.data = model.next_sentence.weight.data.flip(0)
    model.next_sentence.bias.data = model.next_sentence.bias.data.flip(0)


def wrong_ignore_index(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), labels.clamp(min=0).flatten(), ignore_index=0)

    monkeypatch.setattr(heads, "token_cross_entropy", loss)


def pooler_on_the_second_token(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pooler, "forward", lambda self, x: torch.tanh(self.dense(x[:, 1])))


def dropout_of_the_encoder(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model.dropout.p = model.config.hidden_dropout_prob


def no_clamp(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(logits: Tensor, positions: Tensor, name: str) -> Tensor:
        return F.cross_entropy(logits, positions.clamp(0, logits.shape[1] - 1))

    monkeypatch.setattr(heads, "position_cross_entropy", loss)


@pytest.mark.parametrize(
    ("mistake", "head", "model_type", "caught_in"),
    [
        (twice_biased, "masked-lm", "bert", "logits"),
        (twice_biased, "masked-lm", "distilbert", "logits"),
        (untied, "masked-lm", "bert", "gradient embeddings.word_embeddings.weight"),
        (untied, "pretraining", "bert", "gradient embeddings.word_embeddings.weight"),
        (swapped_classes, "next-sentence", "bert", "loss"),
        (swapped_classes, "pretraining", "bert", "loss"),
        (wrong_ignore_index, "masked-lm", "bert", "loss"),
        (wrong_ignore_index, "token-classification", "distilbert", "loss"),
        (pooler_on_the_second_token, "sequence-classification", "bert", "logits"),
        (pooler_on_the_second_token, "multiple-choice", "bert", "logits"),
        (dropout_of_the_encoder, "sequence-classification", "distilbert", "logits"),
        (dropout_of_the_encoder, "token-classification", "bert", "logits"),
        (dropout_of_the_encoder, "question-answering", "bert", "start_logits"),
        (no_clamp, "question-answering", "bert", "loss"),
    ],
)
def test_the_comparison_catches_a_mistake(mistake, head, model_type, caught_in, checkpoint, monkeypatch):
    folder, batch = checkpoint(head, model_type), with_labels(head)
    theirs = outcome(upstream(folder, head, model_type), batch, training=True)
    model = minibert.load(folder, head=head)
    mistake(model, monkeypatch)
    assert caught_in in differences(outcome(model, batch, training=True), theirs)


# ---------------------------------------------------------------------------------------------------------------
# The decoder and its names


def rewritten(folder: Path, target: Path, change: Callable[[dict[str, Tensor]], None], **config: Any) -> Path:
    """A copy of a checkpoint with other tensors and other fields in config.json."""
    shutil.copytree(folder, target)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, target / "model.safetensors")
    stored = json.loads((folder / "config.json").read_text()) | config
    (target / "config.json").write_text(json.dumps(stored))
    return target


def test_the_decoder_is_the_token_embedding_and_not_saved_twice(checkpoint, tmp_path):
    for model_type in ("bert", "distilbert"):
        model = minibert.load(checkpoint("masked-lm", model_type), head="masked-lm")
        shapes = [tuple(p.shape) for p in model.parameters()]
        assert shapes.count((V, D)) == 1
        assert shapes.count((V,)) == 1
        minibert.save(model, tmp_path / model_type)
        stored = load_file(tmp_path / model_type / "model.safetensors")
        assert [tuple(t.shape) for t in stored.values()].count((V, D)) == 1
        assert [tuple(t.shape) for t in stored.values()].count((V,)) == 1


@pytest.mark.parametrize("which", list(itertools.product([False, True], ["bias", "decoder.bias", "both"])))
@pytest.mark.parametrize("head", ["masked-lm", "pretraining"])
def test_berts_decoder_loads_under_any_of_its_names(head, which, checkpoint, tmp_path):
    weight, bias = which

    def rename(tensors: dict[str, Tensor]) -> None:
        if weight:
            tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
        if bias != "bias":
            tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()
        if bias == "decoder.bias":
            del tensors["cls.predictions.bias"]

    folder = checkpoint(head, "bert")
    model, report = minibert.load(rewritten(folder, tmp_path / "renamed", rename), head=head, report=True)
    expected = outcome(minibert.load(folder, head=head), with_labels(head))
    assert differences(outcome(model, with_labels(head)), expected) == []
    assert len(report.ignored) == weight + (bias == "both")
    assert not report.missing


@pytest.mark.parametrize("keep", ["both", "projector"])
def test_distilberts_decoder_loads_with_and_without_a_weight_of_its_own(keep, checkpoint, tmp_path):
    def change(tensors: dict[str, Tensor]) -> None:
        tensors["vocab_projector.weight"] = tensors["distilbert.embeddings.word_embeddings.weight"].clone()
        if keep == "projector":
            del tensors["distilbert.embeddings.word_embeddings.weight"]

    folder = checkpoint("masked-lm", "distilbert")
    model = minibert.load(rewritten(folder, tmp_path / "changed", change), head="masked-lm")
    expected = outcome(minibert.load(folder, head="masked-lm"), with_labels("masked-lm"))
    assert differences(outcome(model, with_labels("masked-lm")), expected) == []


@pytest.mark.parametrize(
    ("model_type", "name", "other"),
    [
        ("bert", "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        ("bert", "cls.predictions.decoder.bias", "cls.predictions.bias"),
        ("distilbert", "vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight"),
    ],
)
def test_a_decoder_that_differs_from_what_it_is_tied_to_is_refused(model_type, name, other, checkpoint, tmp_path):
    def change(tensors: dict[str, Tensor]) -> None:
        tensors[name] = torch.randn((V, D) if name.endswith("weight") else (V,))

    folder = rewritten(checkpoint("masked-lm", model_type), tmp_path / "changed", change)
    with pytest.raises(ValueError, match=f"({name} differs from {other}|{other} differs from {name}), .* tie_word_emb"):
        minibert.load(folder, head="masked-lm")
    minibert.load(folder)  # the encoder does not need it


@pytest.mark.parametrize("model_type", ["bert", "distilbert"])
def test_an_untied_decoder_is_honoured_and_saved(model_type, checkpoint, tmp_path):
    folder, batch = checkpoint("masked-lm", model_type, tie_word_embeddings=False), with_labels("masked-lm")
    model = minibert.load(folder, head="masked-lm")
    assert not torch.equal(model.decoder.weight, model.encoder.embeddings.token.weight)
    expected = run(upstream(folder, "masked-lm", model_type).eval(), batch).logits
    assert torch.equal(run(model, batch).logits, expected)
    minibert.save(model, tmp_path / "saved")
    kind = upstream_class("masked-lm", model_type)
    theirs, info = kind.from_pretrained(tmp_path / "saved", attn_implementation="eager", output_loading_info=True)
    assert not any(info.values()), info
    assert torch.equal(run(theirs.eval(), batch).logits, expected)
    assert torch.equal(run(minibert.load(tmp_path / "saved", head="masked-lm"), batch).logits, expected)


# ---------------------------------------------------------------------------------------------------------------
# Loading a head that is not there, or another one


@pytest.mark.parametrize(("head", "model_type"), CASES)
def test_a_checkpoint_without_the_head_is_refused_by_name(head, model_type, checkpoint):
    with pytest.raises(ValueError, match=f"head '{head}'.*new_head=True"):
        minibert.load(checkpoint(None, model_type), head=head)


@pytest.mark.parametrize(("head", "model_type"), CASES)
def test_a_new_head_is_fresh_on_the_pretrained_encoder_and_marked_untrained(head, model_type, checkpoint):
    folder = checkpoint(None, model_type)
    torch.manual_seed(0)
    model, report = minibert.load(folder, head=head, new_head=True, report=True)
    assert not model.head_is_trained
    encoder = {f"encoder.{name}": tensor for name, tensor in minibert.load(folder).state_dict().items()}
    new = {name: tensor for name, tensor in model.state_dict().items() if name not in encoder}
    assert set(report.missing) == set(new) and new
    assert (
        differences(
            {name: t for name, t in model.state_dict().items() if name in encoder},
            {name: t for name, t in encoder.items() if name in model.state_dict()},
        )
        == []
    )
    for name, tensor in new.items():
        if name.endswith("bias"):
            assert not tensor.any()
        elif "norm" in name:
            assert (tensor == 1).all()
        else:
            assert 0.01 < tensor.std() < 0.03  # normal, initializer_range 0.02
    assert torch.isfinite(outcome(model, with_labels(head) | fitting(head))["loss"])


def fitting(head: str) -> dict[str, Tensor]:
    """Labels for the 2 classes that a checkpoint has when nothing else is said."""
    if head == "sequence-classification":
        return {"labels": torch.tensor([1, 0, 1])}
    return {"labels": torch.ones((B, S), dtype=torch.long)} if head == "token-classification" else {}


def test_a_loaded_head_is_marked_trained(checkpoint):
    assert minibert.load(checkpoint("masked-lm", "bert"), head="masked-lm").head_is_trained


def test_a_new_head_has_the_labels_asked_for_and_is_saved_with_them(checkpoint, tmp_path):
    model = minibert.load(checkpoint(None, "bert"), head="sequence-classification", num_labels=3, new_head=True)
    assert model.config.id2label == {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}
    minibert.save(model, tmp_path / "saved")
    theirs = upstream(tmp_path / "saved", "sequence-classification", "bert").eval()
    assert torch.equal(run(theirs, text_batch()).logits, run(model, text_batch()).logits)
    assert theirs.config.num_labels == 3


def test_a_pooler_that_the_checkpoint_lacks_comes_with_the_new_head(checkpoint):
    folder = checkpoint("masked-lm", "bert")
    with pytest.raises(ValueError, match=r"head 'sequence-classification'.*new_head=True"):
        minibert.load(folder, head="sequence-classification")
    _, report = minibert.load(folder, head="sequence-classification", new_head=True, report=True)
    pooler = ["encoder.pooler.dense.weight", "encoder.pooler.dense.bias"]
    assert report.missing == [*pooler, "classifier.weight", "classifier.bias"]
    assert all("head" in why for why in report.ignored.values())


def test_a_lost_encoder_tensor_is_no_matter_of_the_head(checkpoint, tmp_path):
    folder = rewritten(
        checkpoint("masked-lm", "bert"),
        tmp_path / "damaged",
        lambda tensors: tensors.pop("bert.embeddings.LayerNorm.bias"),
    )
    for new_head in (False, True):
        with pytest.raises(ValueError, match=r"lacks 1 tensors, encoder\.embeddings\.norm\.bias the first$"):
            minibert.load(folder, head="masked-lm", new_head=new_head)


def test_another_number_of_labels_is_refused_with_both_numbers_and_the_names(checkpoint):
    labels = {0: "NEGATIVE", 1: "POSITIVE"}
    folder = checkpoint("sequence-classification", "distilbert", id2label=labels, num_labels=2)
    with pytest.raises(ValueError, match=r"num_labels is 3, .* has 2: NEGATIVE, POSITIVE; new_head=True"):
        minibert.load(folder, head="sequence-classification", num_labels=3)
    assert minibert.load(folder, head="sequence-classification", num_labels=2).config.id2label == labels
    changed = minibert.load(folder, head="sequence-classification", num_labels=3, new_head=True)
    assert run(changed, text_batch()).logits.shape == (B, 3)


def test_a_classifier_of_another_shape_is_refused_with_both_shapes(checkpoint, tmp_path):
    folder = rewritten(
        checkpoint("token-classification", "bert"),
        tmp_path / "changed",
        lambda tensors: None,
        id2label={"0": "A", "1": "B"},
        label2id={"A": 0, "B": 1},
    )
    with pytest.raises(ValueError, match=r"classifier.*\(5, 24\) in the file, \(2, 24\) by config.json; new_head=True"):
        minibert.load(folder, head="token-classification")


def test_an_unknown_head_is_refused_with_the_known_ones(checkpoint):
    with pytest.raises(ValueError, match="'mlm' is not known; choose from masked-lm, next-sentence, pretraining"):
        minibert.load(checkpoint(None, "bert"), head="mlm")


@pytest.mark.parametrize("head", ["next-sentence", "pretraining"])
def test_distilbert_has_no_next_sentence_head(head, checkpoint):
    with pytest.raises(ValueError, match=f"distilbert has no head '{head}'"):
        minibert.load(checkpoint(None, "distilbert"), head=head, new_head=True)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"new_head": True}, "none was named"),
        ({"num_labels": 2}, "none was named"),
        ({"head": "masked-lm", "num_labels": 3, "new_head": True}, "'masked-lm' has no labels to count"),
        ({"head": "multiple-choice", "num_labels": 2}, "'multiple-choice' has no labels to count"),
        ({"head": "token-classification", "num_labels": 0, "new_head": True}, "num_labels is 0"),
        ({"head": "question-answering", "num_labels": 3, "new_head": True}, r"num_labels is 3; .* has 2 outputs"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(arguments, match, checkpoint):
    with pytest.raises(ValueError, match=match):
        minibert.load(checkpoint(None, "bert"), **arguments)


def test_a_new_question_answering_head_has_2_outputs_whatever_the_checkpoint_told_apart(checkpoint):
    model = minibert.load(checkpoint("token-classification", "bert"), head="question-answering", new_head=True)
    assert model.config.num_labels == 2


def test_an_unknown_problem_type_is_refused(checkpoint, tmp_path):
    folder = rewritten(
        checkpoint("sequence-classification", "bert"),
        tmp_path / "changed",
        lambda tensors: None,
        problem_type="ranking",
    )
    with pytest.raises(ValueError, match="problem_type 'ranking' is not known: regression"):
        minibert.load(folder, head="sequence-classification")
