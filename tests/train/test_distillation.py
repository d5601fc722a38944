"""Distillation: the losses are those of the paper, the student begins as its teacher and becomes a checkpoint."""

import copy
import itertools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from support.models import assert_equal, edited, open_upstream
from support.training import CLOSE, Found, assert_parts_are_the_whole, batch_of, examples, shifted, write_home
from support.words import labelled, write_tsv, write_words_checkpoint

from minibert.families.albert import ALBERT
from minibert.families.bert import BERT, ERNIE
from minibert.families.electra import ELECTRA
from minibert.families.modernbert import MODERNBERT
from minibert.families.roberta import ROBERTA
from minibert.heads import Head
from minibert.inputs import IGNORED
from minibert.prediction.collate import ExampleBatch, collate
from minibert.prediction.packed import packed_output
from minibert.tasks.classification import Classification
from minibert.train import finetune, pretrain
from minibert.train.batches import Batches
from minibert.train.distillation import Distillation, DistillClassifierRun, DistillRun
from minibert.train.loop import one_step, readable_output
from minibert.train.settings import DistillClassifierSettings, DistillSettings, TrainSettings
from minibert.train.student import layers_taken, new_student

pytestmark = [
    pytest.mark.filterwarnings("ignore:all .* texts were predicted", "ignore:degenerate"),  # models that barely learned
]
HEAD = "masked-lm"
QUICK: dict[str, Any] = {"max_length": 16, "batch_size": 4, "learning_rate": 1e-3}
LENGTHS = [11, 3, 1, 7, 11, 2]
BATCH = batch_of(HEAD, LENGTHS)  # both segments, masked tokens in each row
EXACT = 1e-5  # relative: what float32 may differ by from float64
steps = pytest.mark.parametrize("step", ["readable", "packed"])
places = pytest.mark.parametrize("places", ["all", "masked"])


# ---------------------------------------------------------------------------------------------------------------
# Where a student begins


def test_layers_are_taken_in_order_each_once_from_the_first_to_the_last():
    assert layers_taken(12) == (0, 2, 4, 7, 9, 11)  # as the script of the paper
    assert layers_taken(6) == (0, 2, 5)
    assert layers_taken(12, take=(5, 3)) == layers_taken(12, 2, (5, 3)) == (5, 3)
    for deep, layers in itertools.combinations_with_replacement(range(40, 0, -1), 2):
        take = layers_taken(deep, layers)
        assert len(take) == layers and sorted(set(take)) == list(take)
        assert (take[0], take[-1]) == (0, deep - 1 if layers > 1 else 0)


@pytest.fixture(scope="module")
def teacher(made: Callable[..., Head]) -> Head:
    """A BERT of which every parameter counts, with dropout, segments and a pooler in the file."""
    return made(head=HEAD, num_hidden_layers=4).requires_grad_(False)


def test_a_student_begins_as_its_teachers_layers_without_segments_and_pooler(teacher):
    student = new_student(teacher, (0, 3))
    assert student.config.family.name == "distilbert" and len(student.encoder.layers) == 2
    assert student.encoder.pooler is None and not hasattr(student.encoder.embeddings, "segment")
    for part in ("encoder.layers.1", "encoder.embeddings.position", "transform_norm", "decoder"):
        theirs = teacher.get_submodule(part.replace("layers.1", "layers.3")).state_dict()
        assert_equal(student.get_submodule(part).state_dict(), theirs)


@pytest.mark.parametrize("family", [ROBERTA, ELECTRA, ERNIE], ids=lambda family: family.name)
def test_the_student_of_another_relative_is_a_smaller_one_of_itself(family, made):
    teacher = made(family, HEAD, num_hidden_layers=4)
    student = new_student(teacher, (0, 3))
    assert student.config == replace(teacher.config, num_hidden_layers=2)
    kept = {name: x for name, x in teacher.state_dict().items() if not re.search(r"layers\.[12]", name)}
    assert_equal(dict(student.state_dict()), {name.replace("layers.3", "layers.1"): x for name, x in kept.items()})


# ---------------------------------------------------------------------------------------------------------------
# The losses of a language


def losses_of(step: str, teacher: Head, **how: Any) -> Distillation:
    return Distillation(teacher, DistillSettings(step=step, **how))


def by_hand(
    teacher: Head, student: Head, batch: ExampleBatch, places: str = "all", padding: bool = False, squared: bool = True
) -> dict[str, float]:
    """The three losses in float64, token by token; padding and squared: mistakes that people make."""
    ours, theirs = copy.deepcopy(student).double(), copy.deepcopy(teacher).double()
    given = {"attention_mask": batch.attention_mask, "output_hidden_states": True}
    with torch.no_grad():
        a, b = ours(batch.input_ids, **given), theirs(batch.input_ids, token_type_ids=batch.token_type_ids, **given)
    real, chosen = batch.attention_mask.bool(), batch.labels["labels"] != IGNORED
    at = real if places == "all" else chosen
    q, p = (torch.softmax(x.logits[torch.ones_like(real) if padding else at] / 2, dim=-1) for x in (a, b))
    distilled = (p * (p / q).log()).sum(dim=-1).mean() * (4 if squared else 1)
    hidden = F.cross_entropy(a.logits[chosen], batch.labels["labels"][chosen])
    x, y = a.hidden_states[-1][real], b.hidden_states[-1][real]
    cosine = (1 - (x * y).sum(-1) / x.norm(dim=-1) / y.norm(dim=-1)).mean()
    name = "distillation" if places == "all" else "masked-distillation"
    return {name: float(distilled), "masked-lm": float(hidden), "cosine": float(cosine)}


def found(step: str, teacher: Head, student: Head, batch: ExampleBatch, **how: Any) -> dict[str, float]:
    """The three losses as training has them, with the student in the mode in which it is."""
    return {name: loss.item() for name, loss in losses_of(step, teacher, **how).means(student, batch).items()}


@places
@steps
def test_the_three_losses_are_those_of_the_paper_whatever_the_padding(step, places, teacher):
    student = new_student(teacher, (0, 3))
    right = by_hand(teacher, student, BATCH, places)
    assert found(step, teacher, student, BATCH, places=places) == pytest.approx(right, rel=EXACT)
    assert min(right.values()) > 0.01
    short = batch_of(HEAD, [5, 3, 1, 4])
    padded = {name: F.pad(getattr(short, name), (0, 5)) for name in ("input_ids", "attention_mask", "token_type_ids")}
    wide = replace(short, **padded, labels={"labels": F.pad(short.labels["labels"], (0, 5), value=IGNORED)})
    once, twice = (found(step, teacher, student, one, places=places) for one in (short, wide))
    assert once == pytest.approx(twice, rel=EXACT)


@steps
@pytest.mark.parametrize("mistake", ["teacher with dropout", "padding counts", "no T squared", "another layer"])
def test_a_mistake_in_a_loss_is_seen(mistake, step, teacher):
    """The control of the test above."""
    student, wrong = new_student(teacher, (0, 3)), copy.deepcopy(teacher)
    wrong.train(mistake == "teacher with dropout")
    values = found(step, wrong, new_student(teacher, (0, 2)) if mistake == "another layer" else student, BATCH)
    how = {"padding": mistake == "padding counts", "squared": mistake != "no T squared"}
    assert values != pytest.approx(by_hand(teacher, student, BATCH, **how), rel=1e-3)


@places
@pytest.mark.parametrize("at_once", [3, 512])
def test_the_packed_step_is_the_readable_one_and_computes_few_logits_at_once(at_once, places, teacher, monkeypatch):
    monkeypatch.setattr("minibert.train.distillation.AT_ONCE", at_once)
    student, rows = new_student(teacher, (0, 3)), list[int]()
    readable, packed = (losses_of(step, teacher, places=places) for step in ("readable", "packed"))
    right = Found.of(readable, student, BATCH)
    student.transform.register_forward_pre_hook(lambda module, given: rows.append(len(given[0])))
    assert max(Found.of(packed, student, BATCH).apart(right).values()) < CLOSE
    assert max(rows) <= at_once
    assert max(Found.of(packed, student, shifted(BATCH)).apart(right).values()) > 1e-2  # the control


@places
@steps
def test_uneven_parts_of_a_step_are_the_step_of_the_whole(step, places, teacher):
    """Each loss is a mean over tokens of its own."""
    rows = Batches(examples(HEAD, LENGTHS), 6, 0, 0)
    assert_parts_are_the_whole(new_student(teacher, (0, 3)), rows, losses_of(step, teacher, places=places))


@places
@steps
def test_a_batch_without_masked_tokens_is_learned_from(step, places, teacher):
    student, objective = new_student(teacher, (0, 3)), losses_of(step, teacher, places=places)
    bare = replace(BATCH, labels={"labels": torch.full_like(BATCH.labels["labels"], IGNORED)})
    optimizer = torch.optim.SGD(student.parameters(), lr=0.0)
    result = one_step(student, [bare], optimizer, objective, TrainSettings(), 1)
    assert set(result.terms) == {"cosine"} | ({"distillation"} if places == "all" else set())
    assert result.loss > 0
    assert all(p.grad is None or p.grad.isfinite().all() for p in student.parameters())


# ---------------------------------------------------------------------------------------------------------------
# Runs


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A masked language model that knows some of a corpus, and a classifier that tells good from bad."""
    folder = write_home(tmp_path_factory.mktemp("home"))
    how = QUICK | {"objective": "mlm", "steps": 30, "batch_size": 8, "learning_rate": 8e-3}
    pretrain(folder / "corpus.txt", out=folder / "taught", init=folder / "teacher", **how)
    how = QUICK | {"epochs": 5, "batch_size": 8, "learning_rate": 6e-3}
    finetune("classify", *labelled(48), model=folder / "teacher", out=folder / "tuned", **how)
    edited(folder / "tuned", folder / "several", dict, problem_type="multi_label_classification")
    return folder


def run_of(home: Path, **how: Any) -> DistillRun:
    return DistillRun.of(home / "corpus.txt", DistillSettings(**{"init": str(home / "taught")} | QUICK | how))


def test_the_result_is_an_ordinary_distilbert_that_has_learned(home, tmp_path):
    run = run_of(home, steps=27, save_every=15, batch_size=8, learning_rate=6e-3, layers=2)
    teacher = run.objective.teacher
    before = copy.deepcopy(teacher.state_dict())
    model = run.finish(tmp_path / "out").model
    assert_equal(teacher.state_dict(), before)
    assert not any(module.training for module in [*teacher.modules(), *model.modules()])
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    theirs = open_upstream(transformers.AutoModelForMaskedLM, tmp_path / "out")
    assert type(theirs).__name__ == "DistilBertForMaskedLM"
    ids = torch.arange(5, 12)[None]
    with torch.no_grad():
        assert torch.equal(model(ids).logits, theirs(ids).logits)
    report = json.loads((tmp_path / "out" / "training.json").read_text())
    assert (report["asked"]["take"], report["asked"]["beta2"]) == ([0, 3], 0.98)
    curves, dev = report["curves"], report["dev"]
    totals = [5 * a + 2 * b + c for a, b, c in zip(*curves.values(), strict=True)]
    assert report["curve"] == pytest.approx(totals, rel=1e-5)
    assert sum(curves["distillation"][-9:]) < 0.5 * sum(curves["distillation"][:9])
    assert dev["kept"] == dev["masked_accuracy"] / dev["teacher_masked_accuracy"]


def test_the_command_reports_the_layers_and_what_the_student_keeps(home, tmp_path, run):
    command = (
        f"distill {home}/corpus.txt --teacher {home}/taught --take 0,2,3 --steps 4 --save-every 2 --max-length 16 "
        f"--batch-size 4 --weights 5,2,0 --places masked --precision float32 --out {tmp_path}/out --json"
    )
    printed = run(*command.split())
    assert "a DistilBERT of 3 layers, initialised with layers 0, 2, 3 of the teacher" in printed
    figures = json.loads(printed.splitlines()[-1])
    assert (figures["asked"]["weights"], figures["asked"]["places"]) == ([5.0, 2.0, 0.0], "masked")


# ---------------------------------------------------------------------------------------------------------------
# Classification


NUMBERS, SINGLE = Classification(regression=True), Classification()


def classifier_run(teacher: Path, data: Any = None, task: Classification = SINGLE) -> DistillClassifierRun:
    settings = DistillClassifierSettings(model=str(teacher), batch_size=8, max_length=16, precision="float32")
    return DistillClassifierRun.of(task, data or task.from_labels(*labelled(24)), None, settings)


def test_both_losses_of_a_classifier_are_those_of_float64_text_by_text(home):
    torch.manual_seed(0)
    run = classifier_run(home / "tuned")
    student = run.new_model().eval()
    rows = [3, 0, 8, 21]
    batch = collate([run.encoded.examples[row] for row in rows], rows, 0)
    texts = [torch.tensor([run.encoded.examples[row].ids]) for row in rows]
    ours, theirs = (copy.deepcopy(model).double() for model in (student, run.teacher))
    with torch.no_grad():
        a, b = (torch.cat([model(text).logits for text in texts]) for model in (ours, theirs))
    q, p = torch.softmax(a / 2, dim=1), torch.softmax(b / 2, dim=1)
    kl, ce = 4 * (p * (p / q).log()).sum(dim=1).mean(), F.cross_entropy(a, batch.labels["labels"])
    right = {"soft-labels": float(kl), "labels": float(ce)}
    for output_of in (packed_output, readable_output):
        losses = run.loss_of(output_of).means(student, batch)
        assert {name: loss.item() for name, loss in losses.items()} == pytest.approx(
            right,
            rel=EXACT,
            abs=1e-6,  # the KL divergence is a small sum of larger terms
        )
    assert kl > 0.01


def test_a_student_has_as_many_labels_as_its_teacher_in_its_order(tmp_path):
    names = ["z", "a", "m"]
    head = {"head": "sequence-classification", "num_labels": 3, "id2label": dict(enumerate(names))}
    teacher = write_words_checkpoint(tmp_path / "three", num_hidden_layers=2, **head)
    run = classifier_run(teacher, SINGLE.from_labels(labelled(24)[0], names * 8))
    student = run.new_model()
    assert list(student.config.id2label.values()) == run.labels == names
    batch = next(iter(run.batches().epoch_batches(0)))
    assert [names[label] for label in batch.labels["labels"]] == [(names * 8)[row] for row in batch.rows]
    assert all(loss.isfinite() for loss in run.loss_of(packed_output).means(student, batch).values())


def test_the_command_distills_a_classifier_into_a_folder_that_predicts(home, tmp_path, run):
    train, dev, out = write_tsv(tmp_path / "train.tsv", 48), write_tsv(tmp_path / "dev.tsv", 24), tmp_path / "out"
    command = (
        f"distill --task classify {train} --teacher {home}/tuned --dev {dev} --epochs 5 --batch-size 8 "
        f"--learning-rate 6e-3 --max-length 16 --layers 2 --out {out} --json"
    )
    figures = json.loads(run(*command.split()).splitlines()[-1])
    assert figures["dev"]["accuracy"] == 1.0 and figures["asked"]["take"] == [0, 3]
    run("evaluate", out, dev)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(out)
    assert theirs.config.id2label == {0: "neg", 1: "pos"}


# ---------------------------------------------------------------------------------------------------------------
# Refused


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"layers": 5}, r"layers is 5\b.* 1 to 4 "),
        ({"take": (0, 4)}, r"take is \(0, 4\).* 0 to 3"),
        ({"take": (0, 3), "layers": 3}, r"layers is 3 .*\(0, 3\)"),
        ({"max_length": 21}, r"max_length is 21\b.* 20$"),
        ({"objective": "mlm+nsp"}, r"objective is 'mlm\+nsp'.* mlm$"),
    ],
    ids=str,
)
def test_a_request_that_cannot_be_learned_is_refused(how, message, home):
    with pytest.raises(ValueError, match=message):
        run_of(home, **how)


@pytest.mark.parametrize(
    ("family", "head", "take", "message"),
    [
        (ALBERT, HEAD, None, "ALBERT"),
        (BERT, None, None, r"'masked-lm'.*bert-base-uncased"),
        (MODERNBERT, HEAD, (1,), r"take is \(1,\); layer 1 of ModernBERT .* layer 0"),
    ],
    ids=["shared layers", "no task head", "another kind of layer"],
)
def test_a_teacher_that_cannot_be_distilled_is_refused(family, head, take, message, home, written):
    with pytest.raises(ValueError, match=message):
        run_of(home, init=str(written(family, head)[0]), take=take)


def test_a_tokenizer_of_another_vocabulary_is_refused(home, tmp_path):
    vocabulary = (home / "words" / "vocab.txt").read_text().splitlines()
    write_words_checkpoint(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join([*vocabulary[:-2], *vocabulary[:-3:-1]]) + "\n")
    with pytest.raises(ValueError, match="vocabulary"):
        run_of(home, tokenizer=str(tmp_path))
    assert run_of(home, tokenizer=str(home / "words")).settings.take == (0, 3)  # the same words


TEXTS = ["the film", "the book", "the play", "the meal"]


@pytest.mark.parametrize(
    ("teacher", "task", "labels", "message"),
    [
        ("tuned", SINGLE, ["a", "b", "c", "c"], r"'neg', 'pos'.*'a', 'b', 'c'"),
        (
            "taught",
            SINGLE,
            ["neg", "pos", "pos", "neg"],
            "'sequence-classification'",
        ),
        (
            "several",
            SINGLE,
            ["neg", "pos", "pos", "neg"],
            "multi_label_classification",
        ),
        ("tuned", NUMBERS, [1.0, 2.0, 3.0, 4.0], "class_weight"),
    ],
    ids=["other labels", "no classifier", "several labels", "numbers"],
)
def test_a_classifier_that_cannot_be_distilled_is_refused(teacher, task, labels, message, home):
    with pytest.raises(ValueError, match=message):
        classifier_run(home / teacher, task.from_labels(TEXTS, labels), task)


def test_an_option_of_the_other_task_is_refused(home, tmp_path, run):
    command = f"distill {home}/corpus.txt --teacher {home}/taught --out {tmp_path}/out"
    for more, task in (("--epochs 3", "language"), ("--task classify --mask-rate 0.2", "classify")):
        assert f"--task {task}" in run(*command.split(), *more.split(), status=2)
