"""Every task head beside its class in transformers: losses, names, files, and heads that are not there.

`minibert parity` shows that outputs, gradients and training are equal bit for bit.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file
from support.models import (
    HEADS,
    RENAMED,
    TESTED,
    Pair,
    assert_begins_as_bert,
    assert_equal,
    edited,
    every_family,
    every_head,
    small_config,
    unequal,
)
from support.training import CLOSE, Found, batch_of, batches_of, to_the_end
from torch import Tensor, nn

import minibert
from minibert.checkpoints.checkpoint import Checkpoint
from minibert.families.bert import BERT
from minibert.families.distilbert import DISTILBERT
from minibert.families.modernbert import MODERNBERT
from minibert.families.roberta import ROBERTA
from minibert.heads import HEAD_CLASSES, Head, HeadInput, Reads
from minibert.hooks import forward
from minibert.losses import token_cross_entropy
from minibert.parity.checkpoints import open_upstream, randomise, task
from minibert.pretraining_heads import Output
from minibert.train.loop import packed_loss, readable_loss, train
from minibert.train.settings import TrainSettings

V, D = 101, 24  # vocabulary and hidden size of parity's tiny checkpoints


def opened(folder: Path, family: Any, head: str) -> Any:
    """transformers' model of a folder that must be complete for it."""
    model, complete = open_upstream(folder, family, head, pooler=True)
    assert complete
    return model


# ---------------------------------------------------------------------------------------------------------------
# Equal to transformers

# Labels of three texts: a class of each, several labels, a number.
CLASSES, SEVERAL = torch.tensor([2, 0, 1]), torch.tensor([[1, 0, 1], [0, 0, 0], [0, 1, 1]])
NUMBERS = torch.tensor([0.5, -2.0, 7.0])


@pytest.mark.parametrize(
    ("num_labels", "problem_type", "labels"),
    [
        (3, "single_label_classification", CLASSES),
        (3, None, CLASSES[:, None]),
        (3, None, 0.3 * SEVERAL),
        (3, "multi_label_classification", SEVERAL.float()),
        (3, "regression", torch.outer(NUMBERS, NUMBERS)),
        (1, None, NUMBERS),
        (1, None, NUMBERS[:, None]),
        (1, "regression", NUMBERS),
    ],
)
def test_the_loss_of_whole_texts_is_chosen_as_upstream(num_labels, problem_type, labels, pair):
    both = pair(BERT, "sequence-classification", num_labels=num_labels, problem_type=problem_type)
    both.task.labels["labels"] = torch.cat([labels, labels])  # 6 texts
    assert unequal(both.compare()) == []
    assert both.ours.config.problem_type == problem_type


def test_integers_are_accepted_for_several_labels_and_for_a_regression(pair):
    whole = SEVERAL.int().repeat(2, 1)
    for problem_type in ("multi_label_classification", "regression"):
        both = pair(BERT, "sequence-classification", problem_type=problem_type)
        losses = [forward(both.ours, both.task.batch, {"labels": labels}).loss for labels in (whole, whole.float())]
        assert torch.equal(*losses)


@pytest.mark.parametrize(
    ("problem_type", "labels"),
    [
        ("multi_label_classification", CLASSES.repeat(2)),
        ("regression", CLASSES.repeat(2)),
        ("single_label_classification", SEVERAL.float().repeat(2, 1)),
    ],
)
def test_a_head_for_another_type_of_label_is_named_as_the_cause_with_the_way_out(problem_type, labels, pair):
    both = pair(BERT, "sequence-classification", problem_type=problem_type)
    model, batch = both.ours, both.task.batch
    with pytest.raises(ValueError, match=rf"config.problem_type is {problem_type}\b.* shape .*problem_type=None"):
        forward(model, batch, {"labels": labels})
    model.config = replace(model.config, problem_type=None)
    assert forward(model, batch, {"labels": labels}).loss.isfinite()


@pytest.mark.parametrize("head", ["sequence-classification", "token-classification", "multiple-choice"])
def test_a_classifier_without_dropout_of_its_own_takes_the_encoders(head, pair):
    both = pair(BERT, head, classifier_dropout=None, hidden_dropout_prob=0.5)
    assert both.ours.dropout.p == 0.5
    assert unequal(both.train()) == []


@every_head
def test_hidden_states_and_attentions_come_with_any_head_as_upstream(family, head, pair):
    both = pair(family, head)
    wanted = {"output_hidden_states": True, "output_attentions": True}
    ours, theirs = (forward(model, both.task.batch, wanted) for model in (both.ours, both.theirs))
    for field in ("hidden_states", "attentions"):
        assert len(ours[field]) == len(theirs[field]) == 2 + (field == "hidden_states")
        assert all(torch.equal(x, y) for x, y in zip(ours[field], theirs[field], strict=True))


SAVED = [*HEADS, *((family, "sequence-classification") for family in RENAMED)]


@pytest.mark.parametrize(
    ("family", "head", "tied"),
    [*((*case, True) for case in SAVED), *((family, "masked-lm", False) for family in TESTED)],
)
def test_a_saved_head_is_loaded_by_transformers_and_by_minibert_bit_for_bit(
    family, head, tied, pair, written, tmp_path
):
    both = pair(family, head, tie_word_embeddings=tied)
    minibert.save(both.ours, tmp_path)
    theirs = opened(tmp_path, family, head)
    assert unequal(Pair(both.ours, theirs, both.task, head).compare()) == []
    assert_equal(dict(minibert.load(tmp_path, head=head).state_dict()), dict(both.ours.state_dict()))
    if tied:
        original = written(family, head, tie_word_embeddings=True)[0] / "model.safetensors"
        assert_equal(load_file(tmp_path / "model.safetensors"), load_file(original))
    else:
        assert not torch.equal(both.ours.decoder.weight, both.ours.encoder.embeddings.token.weight)


# ---------------------------------------------------------------------------------------------------------------
# The decoder and its names


# What is copied in a file, and from where.
BERT_WEIGHT = ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight")
BERT_BIAS = ("cls.predictions.decoder.bias", "cls.predictions.bias")
BERT_FILES = [  # copies, and what is removed
    ([], []),
    ([BERT_WEIGHT], []),
    ([BERT_BIAS], []),
    ([BERT_BIAS], [BERT_BIAS[1]]),
    ([BERT_WEIGHT, BERT_BIAS], []),
    ([BERT_WEIGHT, BERT_BIAS], [BERT_BIAS[1]]),
]
PROJECTOR = ("vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight")
ROBERTA_WEIGHT = ("lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight")
ROBERTA_BIAS = ("lm_head.decoder.bias", "lm_head.bias")
UNUSED = ("roberta.pooler.dense.weight", "lm_head.dense.weight")


@pytest.mark.parametrize(
    ("family", "head", "copied", "removed"),
    [
        *((BERT, head, *files) for head in ("masked-lm", "pretraining") for files in BERT_FILES),
        (DISTILBERT, "masked-lm", [PROJECTOR], []),
        (DISTILBERT, "masked-lm", [PROJECTOR], [PROJECTOR[1]]),
        (ROBERTA, "masked-lm", [ROBERTA_BIAS, UNUSED], [ROBERTA_BIAS[1]]),
        (ROBERTA, "masked-lm", [ROBERTA_BIAS, UNUSED], []),
        (ROBERTA, "masked-lm", [ROBERTA_WEIGHT, ROBERTA_BIAS, UNUSED], []),
    ],
)
def test_a_decoder_loads_under_any_of_its_names(family, head, copied, removed, pair, written, tmp_path):
    def change(tensors):
        found = tensors | {name: tensors[source].clone() for name, source in copied}
        return {name: tensor for name, tensor in found.items() if name not in removed}

    folder = edited(written(family, head)[0], tmp_path, change)
    model, report = minibert.load(folder, head=head, report=True)
    both = pair(family, head)
    assert_equal(dict(model.state_dict()), dict(both.ours.state_dict()))
    ours, expected = (forward(m, both.task.batch, both.task.labels) for m in (model, both.ours))
    assert_equal(ours[:], expected[:])
    assert not report.missing and len(report.ignored) == len(copied) - len(removed)


@every_family
def test_an_encoder_loads_where_its_matrix_has_only_the_name_of_the_tied_decoder(family, pair, written, tmp_path):
    embedding = family.official("embeddings.token") + ".weight"
    (second,) = [name for name, first in family.second_names.items() if first == embedding]

    def rename(tensors):
        tensors[second] = tensors.pop(family.prefix + embedding)

    folder = edited(written(family, "masked-lm")[0], tmp_path / "tied", rename)
    ours, batch = pair(family, "masked-lm").ours, pair(family, "masked-lm").task.batch
    encoder, report = minibert.load(folder, report=True)
    assert report.loaded[second] == "embeddings.token.weight" and second not in report.ignored
    assert_equal(forward(encoder, batch)[0], forward(ours.encoder, batch)[0])
    assert_equal(forward(minibert.load(folder, head="masked-lm"), batch)[:], forward(ours, batch)[:])
    untied = edited(folder, tmp_path / "untied", lambda tensors: None, tie_word_embeddings=False)
    with pytest.raises(ValueError, match=r"1 tensor.*embeddings\.token\.weight"):
        minibert.load(untied)


@pytest.mark.parametrize(
    ("family", "name"),
    [
        (BERT, "cls.predictions.decoder.weight"),
        (BERT, "cls.predictions.decoder.bias"),
        (DISTILBERT, "vocab_projector.weight"),
    ],
)
def test_a_decoder_that_differs_from_what_it_is_tied_to_is_refused(family, name, written, tmp_path):
    def change(tensors):
        tensors[name] = torch.randn((V, D) if name.endswith("weight") else (V,))

    folder = edited(written(family, "masked-lm")[0], tmp_path, change)
    with pytest.raises(ValueError, match=rf"{name}.*tie_word_embeddings"):
        minibert.load(folder, head="masked-lm")
    minibert.load(folder)  # the encoder does not need it


# ---------------------------------------------------------------------------------------------------------------
# Loading a head that is not there, or another one


@every_head
def test_a_checkpoint_without_the_head_is_refused_by_name(family, head, written):
    with pytest.raises(ValueError, match=rf"'{head}'.*new_head=True"):
        minibert.load(written(family, num_labels=2)[0], head=head)


@pytest.mark.parametrize(("family", "head"), [case for case in HEADS if case[0].name != "modernbert"])
def test_a_new_head_is_fresh_on_the_pretrained_encoder_and_marked_untrained(family, head, written):
    folder, _ = written(family)
    torch.manual_seed(0)
    model, report = minibert.load(folder, head=head, new_head=True, report=True)
    assert not model.head_is_trained and model.device == torch.device("cpu")
    encoder, kept = minibert.load(folder).state_dict(), dict(model.encoder.state_dict())
    assert_equal(kept, {name: tensor for name, tensor in encoder.items() if name in kept})
    new = {name: x for name, x in model.state_dict().items() if not name.startswith("encoder.")}
    assert set(report.missing) == set(new) and new
    assert_begins_as_bert(new)


def test_a_new_head_has_the_requested_labels_and_is_saved_with_them(pair, written, tmp_path):
    head = "sequence-classification"
    model = minibert.load(written(BERT)[0], head=head, num_labels=4, new_head=True)
    assert model.config.id2label == {i: f"LABEL_{i}" for i in range(4)}
    other = minibert.load(written(BERT, "token-classification")[0], head="question-answering", new_head=True)
    assert other.config.num_labels == 2  # whatever the number of labels in the checkpoint
    minibert.save(model, tmp_path)
    theirs = opened(tmp_path, BERT, head)
    assert theirs.config.num_labels == 4
    assert unequal(Pair(model, theirs, task(head, model.config, 11), head).compare()) == []


def test_a_pooler_that_the_checkpoint_lacks_comes_with_the_new_head(written):
    folder, _ = written(BERT, "masked-lm")
    _, report = minibert.load(folder, head="sequence-classification", new_head=True, report=True)
    pooler = ["encoder.pooler.dense.weight", "encoder.pooler.dense.bias"]
    assert report.missing == [*pooler, "classifier.weight", "classifier.bias"]


def test_a_lost_encoder_tensor_is_an_error_with_a_new_head_too(written, tmp_path):
    lost = "bert.embeddings.LayerNorm.bias"
    folder = edited(written(BERT, "masked-lm")[0], tmp_path, lambda tensors: tensors.pop(lost))
    with pytest.raises(ValueError, match=r"1 tensor.*encoder\.embeddings\.norm\.bias$"):
        minibert.load(folder, head="masked-lm", new_head=True)


def test_another_number_of_labels_is_refused_with_both_numbers_and_the_names(written, tmp_path):
    labels = {0: "NEGATIVE", 1: "POSITIVE"}
    folder, _ = written(DISTILBERT, "sequence-classification", id2label=labels, num_labels=2)
    with pytest.raises(ValueError, match=r"num_labels is 3\b.* 2: NEGATIVE, POSITIVE.*new_head=True"):
        minibert.load(folder, head="sequence-classification", num_labels=3)
    assert minibert.load(folder, head="sequence-classification", num_labels=2).config.id2label == labels
    changed = minibert.load(folder, head="sequence-classification", num_labels=3, new_head=True)
    assert changed(torch.ones(2, 5, dtype=torch.long)).logits.shape == (2, 3)
    two = {"id2label": {"0": "A", "1": "B"}, "label2id": {"A": 0, "B": 1}}
    folder = edited(written(BERT, "token-classification")[0], tmp_path, lambda tensors: None, **two)
    with pytest.raises(ValueError, match=r"classifier.*\(3, 24\).*\(2, 24\).*new_head=True"):
        minibert.load(folder, head="token-classification")


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"new_head": True}, "task head"),
        ({"head": "mlm"}, r"'mlm'.*masked-lm, next-sentence, pretraining"),
        ({"head": "replaced-token-detection", "new_head": True}, r"bert .*'replaced-token-detection'"),
        ({"head": "masked-lm", "num_labels": 3, "new_head": True}, "'masked-lm'"),
        ({"head": "multiple-choice", "num_labels": 2}, "'multiple-choice'"),
        ({"head": "token-classification", "num_labels": 0, "new_head": True}, "num_labels is 0"),
        (
            {"head": "question-answering", "num_labels": 3, "new_head": True},
            "'question-answering'",
        ),
    ],
)
def test_a_request_that_cannot_be_is_refused(arguments, match, written):
    with pytest.raises(ValueError, match=match):
        minibert.load(written(BERT)[0], **arguments)


# ---------------------------------------------------------------------------------------------------------------
# A head that transformers does not have


class Scorer(Head):
    """Two layers that score the text, and each token if tokens are read."""

    name, upstream = "scorer", "ForScores"
    names: ClassVar[dict[str, str]] = {"inner": "scorer.dense", "outer": "scorer.out"}

    def build(self, config: minibert.Config) -> None:
        self.inner = nn.Linear(config.hidden_size, 8)
        self.outer = nn.Linear(8, 3)

    def read(self, encoded: HeadInput, labels: Tensor | None = None) -> Output:
        text, tokens = (self.outer(torch.tanh(self.inner(x))) for x in (encoded.text, encoded.tokens))
        loss = None if labels is None else text.square().mean()
        if loss is not None and self.reads & (Reads.LABELLED | Reads.REAL | Reads.ALL):
            loss = loss + token_cross_entropy(tokens, labels)
        return self.output(encoded, text, loss)


TEXT, TOKENS = (Reads.MEAN, Reads.FIRST), (Reads.LABELLED, Reads.REAL, Reads.ALL)
READS = [*TEXT, *(text | tokens for text in TEXT for tokens in TOKENS)]


@pytest.mark.parametrize("reads", READS, ids=str)
@pytest.mark.parametrize("family", [BERT, MODERNBERT], ids=["bert", "modernbert"])
def test_a_head_of_ones_own_is_trained_on_both_paths_saved_and_loaded(family, reads, tmp_path, monkeypatch):
    monkeypatch.setitem(HEAD_CLASSES, "scorer", type("Scorer", (Scorer,), {"reads": reads}))
    model = HEAD_CLASSES["scorer"](small_config(family)).eval()
    randomise(model, 1)
    batch = batch_of("token-classification", [3, 11, 1, 7])
    packed, readable = (Found.of(loss, model, batch) for loss in (packed_loss, readable_loss))
    assert max(packed.apart(readable).values()) < CLOSE
    assert packed.gradients.keys() == dict(model.named_parameters()).keys()
    before = model.inner.weight.clone()
    to_the_end(train(model, batches_of("token-classification", 4, 4), TrainSettings(epochs=1, warmup=0.0)))
    assert not torch.equal(model.inner.weight, before)
    minibert.save(model, tmp_path)
    loaded = minibert.load(tmp_path, head="scorer")
    assert Checkpoint.open(tmp_path).head == "scorer" and loaded.head_is_trained
    assert_equal(dict(loaded.state_dict()), dict(model.state_dict()))
    assert_equal(dict(minibert.load(tmp_path).state_dict()), dict(model.eval().encoder.state_dict()))  # without warning
    with pytest.raises(ValueError, match=r"'masked-lm'.*new_head=True"):
        minibert.load(tmp_path, head="masked-lm")


def test_a_new_head_of_ones_own_is_fresh_on_any_checkpoint(written, monkeypatch):
    monkeypatch.setitem(HEAD_CLASSES, "scorer", type("Scorer", (Scorer,), {"reads": Reads.FIRST}))
    for family in (BERT, DISTILBERT):
        folder, _ = written(family)
        with pytest.raises(ValueError, match=r"'scorer'.*new_head=True"):
            minibert.load(folder, head="scorer")
        model, report = minibert.load(folder, head="scorer", new_head=True, report=True)
        assert report.missing == [f"{layer}.{kind}" for layer in ("inner", "outer") for kind in ("weight", "bias")]
        assert_begins_as_bert({name: model.get_parameter(name).detach() for name in report.missing})


def test_a_head_lacks_no_method():
    with pytest.raises(TypeError, match="reads"):
        Scorer(small_config())
