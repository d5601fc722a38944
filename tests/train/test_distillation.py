"""Distillation: the losses are those of the paper, the student begins as its teacher and ends as a checkpoint."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from helpers import edited
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from training import CLOSE, Found, batch_of
from words import OTHER, WORDS, labelled, write_tsv, write_words_checkpoint

import minibert
from minibert.checkpoints.tensor_files import weights_sha256
from minibert.cli import main as cli
from minibert.families.albert import ALBERT
from minibert.families.base import Family
from minibert.families.bert import BERT, ERNIE
from minibert.families.distilbert import DISTILBERT
from minibert.families.roberta import ROBERTA
from minibert.heads import HEAD_CLASSES, Head
from minibert.losses import IGNORED
from minibert.tasks.classification import Classification
from minibert.train import distill, finetune, pretrain
from minibert.train import distillation as room
from minibert.train.batches import Batch, collate
from minibert.train.distillation import LOSSES, OF_LABELS, Job, Request, TextJob, TextRequest
from minibert.train.loop import Losses, Settings, one_step
from minibert.train.packed import packed_output
from minibert.train.student import check_teacher, layers_taken, new_student

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:all .* texts were predicted"),  # models that have hardly begun
]
HEAD = "masked-lm"
DEEP = 4
QUICK: dict[str, Any] = {"max_length": 16, "batch_size": 4, "learning_rate": 1e-3}
EXACT = 1e-5  # relative: what float32 may differ by from float64
steps = pytest.mark.parametrize("step", ["readable", "packed"])
places = pytest.mark.parametrize("places", ["all", "masked"])


# ---------------------------------------------------------------------------------------------------------------
# Where a student begins


def test_the_script_of_the_paper_takes_these_six_of_twelve() -> None:
    assert layers_taken(12) == (0, 2, 4, 7, 9, 11)
    assert layers_taken(6) == (0, 2, 5)
    assert layers_taken(12, 12) == tuple(range(12))
    assert layers_taken(1) == layers_taken(9, 1) == (0,)
    assert layers_taken(12, take=(5, 3)) == layers_taken(12, 2, (5, 3)) == (5, 3)


@given(deep=st.integers(1, 60), share=st.floats(0, 1))
def test_layers_are_taken_in_order_each_once_from_the_first_to_the_last(deep: int, share: float) -> None:
    layers = max(1, round(share * deep))
    take = layers_taken(deep, layers)
    assert len(take) == layers
    assert sorted(set(take)) == list(take)
    assert take[0] == 0
    assert take[-1] == (deep - 1 if layers > 1 else 0)


@pytest.fixture(scope="module")
def teacher(written: Callable[..., tuple[Path, Any]]) -> Head:
    """A BERT of which every parameter counts, with dropout, segments and a pooler in the file."""
    return minibert.load(written(BERT, HEAD, num_hidden_layers=DEEP)[0], head=HEAD).requires_grad_(False)


def same(ours: torch.nn.Module, theirs: torch.nn.Module) -> bool:
    pairs = zip(ours.state_dict().items(), theirs.state_dict().items(), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


def test_a_student_begins_as_its_teachers_layers_without_segments_and_pooler(teacher: Any) -> None:
    student: Any = new_student(teacher, (0, 3))
    assert student.config.family.name == "distilbert"
    assert student.encoder.embeddings.segment is None
    assert student.encoder.pooler is None
    assert len(student.encoder.layers) == 2
    assert same(student.encoder.layers[1], teacher.encoder.layers[3])
    assert not same(student.encoder.layers[1], teacher.encoder.layers[2])
    assert same(student.encoder.embeddings.position, teacher.encoder.embeddings.position)
    assert same(student.transform_norm, teacher.transform_norm)
    assert same(student.decoder, teacher.decoder)


@pytest.mark.parametrize("family", [DISTILBERT, ERNIE], ids=["distilbert", "ernie without tasks"])
def test_a_student_of_all_layers_is_its_teacher_where_that_has_no_segments(
    family: Family, written: Callable[..., tuple[Path, Any]]
) -> None:
    sizes: dict[str, Any] = {"use_task_id": False} if family is ERNIE else {}
    teacher: Any = minibert.load(written(family, HEAD, **sizes)[0], head=HEAD)
    if teacher.encoder.embeddings.segment is not None:
        torch.nn.init.zeros_(teacher.encoder.embeddings.segment.weight)
    ids = torch.arange(5, 12)[None]
    with torch.no_grad():
        ours, theirs = (model(ids).logits for model in (new_student(teacher, (0, 1)), teacher))
    assert torch.equal(ours, theirs)


def test_what_pretrained_with_next_sentences_can_be_a_teacher(written: Callable[..., tuple[Path, Any]]) -> None:
    folder, theirs = written(BERT, "pretraining")
    teacher: Any = room.frozen(folder, HEAD, "cpu")
    assert check_teacher(folder, HEAD) == teacher.config
    ids = torch.arange(5, 12)[None]
    with torch.no_grad():
        assert torch.equal(teacher(ids).logits, theirs.eval()(ids).prediction_logits)


# ---------------------------------------------------------------------------------------------------------------
# The losses of a language


def request(**how: Any) -> Request:
    return Request("corpus.txt", init="teacher", **how)


def lengthy() -> Batch:
    """Rows of many lengths, both segments, hidden tokens in each."""
    return batch_of(HEAD, [11, 3, 1, 7, 11, 2])


def more_padding(batch: Batch) -> Batch:
    """The same rows with twice as many places."""
    S = batch.input_ids.shape[1]
    made = {name: F.pad(getattr(batch, name), (0, S)) for name in ("input_ids", "attention_mask", "token_type_ids")}
    return replace(batch, **made, labels={"labels": F.pad(batch.labels["labels"], (0, S), value=IGNORED)})


def by_hand(
    teacher: Head, student: Head, batch: Batch, places: str = "all", padding: bool = False, squared: bool = True
) -> list[float]:
    """The three losses in float64, token by token; padding and squared: mistakes that people make."""
    ours, theirs = copy.deepcopy(student).double(), copy.deepcopy(teacher).double()
    given = {"attention_mask": batch.attention_mask, "output_hidden_states": True}
    with torch.no_grad():
        a, b = ours(batch.input_ids, **given), theirs(batch.input_ids, token_type_ids=batch.token_type_ids, **given)
    real, labels = batch.attention_mask.bool(), batch.labels["labels"]
    told = torch.ones_like(real) if padding else real if places == "all" else labels != IGNORED
    q, p = (torch.softmax(x.logits[told] / 2, dim=-1) for x in (a, b))
    distilled = (p * (p / q).log()).sum(dim=-1).mean() * (4 if squared else 1)
    chosen = labels != IGNORED
    hidden = -torch.softmax(a.logits, dim=-1)[chosen].gather(1, labels[chosen][:, None]).log().mean()
    x, y = a.hidden_states[-1][real], b.hidden_states[-1][real]
    return [float(distilled), float(hidden), float((1 - (x * y).sum(-1) / x.norm(dim=-1) / y.norm(dim=-1)).mean())]


def found(step: str, teacher: Head, student: Head, batch: Batch, **how: Any) -> list[float]:
    """The three losses as training has them, with the student in the mode in which it is."""
    losses: Any = LOSSES[step](teacher, request(**how), student, batch)
    return [float(loss.detach()) for loss in losses.values()]


def apart(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(one, other, strict=True))


@places
@steps
def test_the_three_losses_are_those_of_the_paper(step: str, places: str, teacher: Head) -> None:
    student, batch = new_student(teacher, (0, 3)), lengthy()
    losses = LOSSES[step](teacher, request(places=places), student, batch)
    assert isinstance(losses, dict)
    name = "distillation" if places == "all" else "masked-distillation"
    assert list(losses) == [name, "masked-lm", "cosine"]
    values = [float(loss.detach()) for loss in losses.values()]
    assert apart(values, by_hand(teacher, student, batch, places)) < EXACT
    assert all(value > 0.01 for value in values)


@steps
@pytest.mark.parametrize("mistake", ["teacher with dropout", "padding counts", "no T squared", "another layer"])
def test_a_mistake_in_a_loss_is_seen(mistake: str, step: str, teacher: Head) -> None:
    """The control of the test above."""
    student, batch, wrong = new_student(teacher, (0, 3)), lengthy(), copy.deepcopy(teacher)
    wrong.train(mistake == "teacher with dropout")
    values = found(step, wrong, new_student(teacher, (0, 2)) if mistake == "another layer" else student, batch)
    how = {"padding": mistake == "padding counts", "squared": mistake != "no T squared"}
    assert apart(values, by_hand(teacher, student, batch, **how)) > 1e-3


@places
@steps
def test_the_losses_do_not_change_with_the_padding(step: str, places: str, teacher: Head) -> None:
    student, batch = new_student(teacher, (0, 3)), batch_of(HEAD, [5, 3, 1, 4])
    once, twice = (found(step, teacher, student, one, places=places) for one in (batch, more_padding(batch)))
    assert apart(once, twice) < EXACT
    wrong = [by_hand(teacher, student, one, padding=True) for one in (batch, more_padding(batch))]
    assert apart(*wrong) > 1e-2  # the control


def summed(step: str, teacher: Head, how: Request, model: Head, batch: Batch) -> Tensor:
    losses = LOSSES[step](teacher, how, model, batch)
    assert isinstance(losses, dict)
    return torch.stack([weight * loss for weight, loss in zip(how.weights, losses.values(), strict=True)]).sum()


@places
@pytest.mark.parametrize("at_once", [3, 512])
def test_the_packed_step_is_the_readable_one(
    at_once: int, places: str, teacher: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "AT_ONCE", at_once)
    student, batch, how = new_student(teacher, (0, 3)), lengthy(), request(places=places)
    right = Found.of(partial(summed, "readable", teacher, how), student, batch)
    packed = Found.of(partial(summed, "packed", teacher, how), student, batch)
    assert max(packed.apart(right).values()) < CLOSE
    shifted = replace(batch, labels={"labels": batch.labels["labels"].roll(1, dims=1)})
    assert max(Found.of(partial(summed, "packed", teacher, how), student, shifted).apart(right).values()) > 1e-2


def test_no_more_logits_are_held_than_said(teacher: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "AT_ONCE", 4)
    student: Any = new_student(teacher, (0, 3)).train()
    rows: list[int] = []
    for model in (student, teacher):
        monkeypatch.setattr(model.decoder, "forward", counting(rows, model.decoder.forward))
    batch = lengthy()
    summed("packed", teacher, request(), student, batch).backward()  # type: ignore[no-untyped-call]
    assert max(rows) == 4
    assert sum(rows) == 4 * batch.tokens  # of student and teacher, forward and once more for the gradient


def counting(rows: list[int], right: Any) -> Any:
    def counted(x: Tensor, embedding: Tensor) -> Tensor:
        rows.append(len(x))
        result: Tensor = right(x, embedding)
        return result

    return counted


@places
@steps
def test_uneven_parts_of_a_step_are_the_step_of_the_whole(step: str, places: str, teacher: Head) -> None:
    """Each loss is a mean over tokens of its own: sums, no means of means."""
    student, batch, how = new_student(teacher, (0, 3)), lengthy(), request(places=places)
    settings = Settings(clip=1e9, scales=dict(zip(how.objectives, how.weights, strict=True)))

    def gradients(sizes: list[int]) -> dict[str, Tensor]:
        cuts = [0, *itertools.accumulate(sizes)]
        parts = [part_of(batch, a, b) for a, b in itertools.pairwise(cuts)]
        losses = one_step(student, parts, torch.optim.SGD(student.parameters(), lr=0.0), loss_of, settings, 1)
        assert float(losses["loss"]) == pytest.approx(
            sum(weight * float(losses[name]) for name, weight in settings.scales.items()), rel=1e-6
        )
        return {name: p.grad.clone() for name, p in student.named_parameters() if p.grad is not None}

    loss_of = partial(LOSSES[step], teacher, how)
    whole, parted = gradients([6]), gradients([1, 3, 2])
    assert set(whole) == {name for name, _ in student.named_parameters()}
    for name, gradient in whole.items():
        assert (gradient - parted[name]).abs().max() < 1e-5 * max(1.0, float(gradient.abs().max())), name


def part_of(batch: Batch, first: int, after: int) -> Batch:
    names = ("input_ids", "attention_mask", "token_type_ids")
    made = {name: getattr(batch, name)[first:after] for name in names}
    labels = {"labels": batch.labels["labels"][first:after]}
    return replace(batch, **made, labels=labels, rows=batch.rows[first:after])


@places
@steps
def test_a_batch_in_which_nothing_is_hidden_is_learned_from_nevertheless(step: str, places: str, teacher: Head) -> None:
    student, batch, how = new_student(teacher, (0, 3)), lengthy(), request(places=places)
    bare = replace(batch, labels={"labels": torch.full_like(batch.labels["labels"], IGNORED)})
    settings = Settings(scales=dict(zip(how.objectives, how.weights, strict=True)))
    optimizer = torch.optim.SGD(student.parameters(), lr=0.0)
    losses = one_step(student, [bare], optimizer, partial(LOSSES[step], teacher, how), settings, 1)
    assert set(losses) == {"loss", "cosine"} | ({"distillation"} if places == "all" else set())
    assert losses["loss"] > 0
    assert all(p.grad is None or p.grad.isfinite().all() for p in student.parameters())


@steps
def test_the_teacher_gets_no_gradients_and_is_computed_in_the_precision_of_the_student(
    step: str, teacher: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[torch.dtype, bool]] = []
    right = room.soft_loss

    def looking(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
        seen.append((teacher.dtype, teacher.requires_grad))
        assert teacher.dtype == student.dtype
        return right(student, teacher, temperature)

    monkeypatch.setattr(room, "soft_loss", looking)
    student, trained = new_student(teacher, (0, 3)), copy.deepcopy(teacher).requires_grad_(True)
    for precision, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        seen.clear()
        settings = Settings(precision=precision)
        optimizer = torch.optim.SGD(student.parameters(), lr=0.0)
        one_step(student, [lengthy()], optimizer, partial(LOSSES[step], trained, request()), settings, 1)
        assert set(seen) == {(dtype, False)}
    assert all(parameter.grad is None for parameter in trained.parameters())


# ---------------------------------------------------------------------------------------------------------------
# Runs of a language


def write_corpus(path: Path, documents: int = 60) -> Path:
    """Documents of three sentences, each about one thing."""
    lines = [
        "\n".join(f"the {OTHER[row % 4]} very {WORDS[(row + step) % 6]} the {OTHER[row % 4]}" for step in range(3))
        for row in range(documents)
    ]
    path.write_text("\n\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, and a teacher that knows some of it."""
    folder = tmp_path_factory.mktemp("home")
    write_words_checkpoint(folder / "words")
    write_corpus(folder / "corpus.txt")
    config = {"hidden_size": 24, "num_hidden_layers": DEEP, "num_attention_heads": 3, "intermediate_size": 40}
    (folder / "small.json").write_text(json.dumps(config | {"max_position_embeddings": 20}))
    how = {"objective": "mlm", "steps": 80, "max_length": 16, "batch_size": 16, "learning_rate": 8e-3}
    corpus = folder / "corpus.txt"
    pretrain(corpus, out=folder / "teacher", config=folder / "small.json", tokenizer=folder / "words", **how)
    return folder


def job_of(home: Path, **how: Any) -> Job:
    given = {"corpus": str(home / "corpus.txt"), "init": str(home / "teacher")} | QUICK | how
    return room.new_job(room.request_of(Request, **given))


def test_what_was_learned_is_an_ordinary_distilbert(home: Path, tmp_path: Path) -> None:
    how = QUICK | {"steps": 45, "save_every": 15, "batch_size": 16, "learning_rate": 3e-3}
    model: Any = distill(home / "corpus.txt", teacher=home / "teacher", out=tmp_path / "out", layers=2, **how)
    assert not model.training
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out", attn_implementation="eager")
    assert type(theirs).__name__ == "DistilBertForMaskedLM"
    ids = torch.arange(5, 12)[None]
    with torch.no_grad():
        assert torch.equal(model(ids).logits, theirs.eval()(ids).logits)
    report = json.loads((tmp_path / "out" / "training.json").read_text())
    assert report["asked"]["take"] == [0, 3]
    assert report["asked"]["teacher_sha256"] == weights_sha256(home / "teacher")
    assert report["asked"]["beta2"] == 0.98
    assert [entry["step"] for entry in report["epochs"]] == [15, 30, 45]
    curves = report["curves"]
    totals = [5 * a + 2 * b + c for a, b, c in zip(*(curves[n] for n in request().objectives), strict=True)]
    assert report["curve"] == pytest.approx(totals, rel=1e-5)
    assert sum(curves["distillation"][-9:]) < 0.5 * sum(curves["distillation"][:9])
    last = report["dev"]
    assert last["kept"] == last["masked_accuracy"] / last["teacher_masked_accuracy"]
    assert minibert.embed(["the film"], model=tmp_path / "out").shape == (1, 24)
    assert not (tmp_path / "out.training").exists()


def test_the_teacher_stays_as_it_is(home: Path, tmp_path: Path) -> None:
    job = job_of(home, steps=3)
    before = copy.deepcopy(job.teacher.state_dict())
    room.pretraining.run(job, tmp_path)
    assert all(torch.equal(before[name], value) for name, value in job.teacher.state_dict().items())
    assert not any(module.training for module in job.teacher.modules())
    assert not any(parameter.requires_grad for parameter in job.teacher.parameters())


def test_a_student_that_begins_at_random_begins_worse(home: Path, tmp_path: Path) -> None:
    job = job_of(home, batch_size=16)
    batch, begun = next(job.stream(tmp_path).of_epoch(0)), job.new_model()
    torch.manual_seed(0)
    fresh = HEAD_CLASSES[HEAD](begun.config).eval()
    first, other = (found("packed", job.teacher, model, batch) for model in (begun, fresh))
    assert sum(w * x for w, x in zip((5, 2, 1), first, strict=True)) < 0.8 * sum(
        w * x for w, x in zip((5, 2, 1), other, strict=True)
    )
    assert first[2] < other[2]


def test_a_run_that_was_broken_off_is_resumed_to_the_same_bits(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = QUICK | {"steps": 12, "save_every": 4, "teacher": home / "teacher", "layers": 2, "batch_size": 4}
    whole = distill(home / "corpus.txt", out=tmp_path / "whole", **how)
    left, right = {"steps": 7}, room.packed_losses

    def broken_off(*given: Any) -> Losses:
        left["steps"] -= 1
        if left["steps"] < 0:
            raise KeyboardInterrupt
        return right(*given)

    monkeypatch.setitem(LOSSES, "packed", broken_off)
    with pytest.raises(KeyboardInterrupt):
        distill(home / "corpus.txt", out=tmp_path / "out", **how)
    monkeypatch.setitem(LOSSES, "packed", right)
    with pytest.raises(ValueError, match=r"temperature was 2\.0 and is 3\.0"):
        distill(home / "corpus.txt", out=tmp_path / "out", temperature=3.0, **how)
    resumed = distill(home / "corpus.txt", out=tmp_path / "out", **how)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))
    first, second = (json.loads((tmp_path / name / "training.json").read_text()) for name in ("whole", "out"))
    assert first["curves"] == second["curves"]
    assert first["epochs"] == second["epochs"]


def test_the_readable_run_is_the_packed_one_where_there_is_no_dropout(home: Path, tmp_path: Path) -> None:
    no_dropout: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    calm = edited(home / "teacher", tmp_path / "calm", lambda tensors: tensors, **no_dropout)
    how = QUICK | {"steps": 5, "teacher": calm, "tokenizer": str(home / "teacher")}
    reports = []
    for step in LOSSES:
        distill(home / "corpus.txt", out=tmp_path / step, step=step, **how)
        reports.append(json.loads((tmp_path / step / "training.json").read_text()))
    assert reports[0]["curve"] == pytest.approx(reports[1]["curve"], rel=1e-4)


def test_the_command_says_what_the_student_begins_as_and_what_it_keeps(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["distill", str(home / "corpus.txt"), "--teacher", str(home / "teacher"), "--take", "0,2,3", "--steps", "4"]
    args += ["--save-every", "2", "--max-length", "16", "--batch-size", "4", "--weights", "5,2,0", "--places", "masked"]
    assert cli.main([*args, "--out", str(tmp_path / "out"), "--json"]) == 0
    printed = capsys.readouterr().out
    assert "a DistilBERT of 3 layers, which begin as 0, 2, 3 of the teacher's 0 to 3" in printed
    lines = printed.splitlines()
    assert [line.split()[:2] for line in lines if line.startswith("step ")] == [["step", "2"], ["step", "4"]]
    assert "of what the teacher has right" in " ".join(printed.split())
    figures = json.loads(lines[-1])
    assert figures["asked"]["scales"] == {"masked-distillation": 5.0, "masked-lm": 2.0, "cosine": 0.0}
    assert {"masked_lm_loss", "masked_accuracy", "teacher_masked_accuracy", "kept"} <= set(figures["dev"])


# ---------------------------------------------------------------------------------------------------------------
# Classification


@pytest.fixture(scope="module")
def classifier(home: Path) -> Path:
    """A teacher that tells good from bad."""
    how: dict[str, Any] = {"epochs": 8, "batch_size": 8, "learning_rate": 3e-3, "max_length": 16}
    finetune("classify", *labelled(48), model=home / "teacher", out=home / "classifier", **how)
    return home / "classifier"


def text_job(classifier: Path, **how: Any) -> TextJob:
    task = Classification()
    asked = room.request_of(TextRequest, model=str(classifier), **{"max_length": 16, "batch_size": 8} | how)
    return room.new_text_job(task, task.from_labels(*labelled(24)), None, asked)


def test_the_labels_of_a_teacher_are_softer_than_those_of_the_data(classifier: Path) -> None:
    """Both losses against float64, text by text."""
    job = text_job(classifier)
    student: Any = job.new_model().eval()
    rows = [3, 0, 8, 21]
    batch = collate([job.encoded.examples[row] for row in rows], rows, 0)
    kl = ce = 0.0
    teacher = copy.deepcopy(job.teacher).double()
    with torch.no_grad():
        for row in rows:
            ids, label = torch.tensor([job.encoded.examples[row].ids]), job.encoded.examples[row].labels["labels"]
            ours, theirs = (model(ids).logits[0] for model in (copy.deepcopy(student).double(), teacher))
            p, q = torch.softmax(theirs / 2, dim=0), torch.softmax(ours / 2, dim=0)
            kl += float(4 * (p * (p / q).log()).sum()) / len(rows)
            ce -= float(torch.log_softmax(ours, dim=0)[label]) / len(rows)
    for step in LOSSES:
        losses: Any = job.loss_of(replace(job.request, step=step), packed_output)(student, batch)
        assert list(losses) == list(OF_LABELS)
        assert apart([float(loss.detach()) for loss in losses.values()], [kl, ce]) < EXACT
    assert kl > 0.01


def test_a_teacher_whose_labels_stand_in_another_order_says_the_same(classifier: Path, tmp_path: Path) -> None:
    def exchanged(tensors: dict[str, Tensor]) -> None:
        for name in ("classifier.weight", "classifier.bias"):
            tensors[name] = tensors[name].flip(0).contiguous()

    names = {"id2label": {"0": "pos", "1": "neg"}, "label2id": {"pos": 0, "neg": 1}}
    other = edited(classifier, tmp_path / "other", exchanged, **names)
    minibert.load_tokenizer(classifier).save(other)
    assert torch.equal(text_job(other).soft_labels, text_job(classifier).soft_labels)


def test_a_classifier_is_distilled_into_a_folder_that_answers(classifier: Path, tmp_path: Path) -> None:
    train, dev = write_tsv(tmp_path / "train.tsv", 48), write_tsv(tmp_path / "dev.tsv", 24)
    how: dict[str, Any] = {"epochs": 8, "batch_size": 8, "learning_rate": 3e-3, "max_length": 16, "layers": 2}
    model: Any = distill(train, task="classify", teacher=classifier, out=tmp_path / "out", dev=dev, **how)
    report = json.loads((tmp_path / "out" / "training.json").read_text())
    assert report["dev"]["accuracy"] == 1.0
    assert list(report["curves"]) == list(OF_LABELS)
    assert report["asked"]["take"] == [0, 3]
    assert cli.main(["evaluate", str(tmp_path / "out"), str(dev)]) == 0
    assert cli.main(["predict", str(tmp_path / "out"), "the film very good play"]) == 0
    theirs: Any = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    ids = torch.arange(5, 12)[None]
    with torch.no_grad():
        assert (model(ids).logits - theirs.eval()(ids).logits).abs().max() < 1e-6
    assert theirs.config.id2label == {0: "neg", 1: "pos"}


def test_a_broken_off_run_of_a_classifier_is_resumed_to_the_same_bits(
    classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = write_tsv(tmp_path / "train.tsv", 24)
    how: dict[str, Any] = {"task": "classify", "teacher": classifier, "epochs": 2, "batch_size": 4, "max_length": 16}
    whole = distill(train, out=tmp_path / "whole", save_every=2, **how)
    left, right = {"steps": 7}, room.label_losses

    def broken_off(*given: Any) -> Losses:
        left["steps"] -= 1
        if left["steps"] < 0:
            raise KeyboardInterrupt
        return right(*given)

    monkeypatch.setattr(room, "label_losses", broken_off)
    with pytest.raises(KeyboardInterrupt):
        distill(train, out=tmp_path / "out", save_every=2, **how)
    monkeypatch.setattr(room, "label_losses", right)
    resumed = distill(train, out=tmp_path / "out", save_every=2, **how)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))


@pytest.mark.filterwarnings("ignore:degenerate")  # it has hardly begun
def test_the_command_distils_a_classifier(classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = write_tsv(tmp_path / "train.tsv", 24)
    args = ["distill", "--task", "classify", str(train), "--teacher", str(classifier), "--dev", str(train)]
    args += ["--epochs", "1", "--max-length", "16", "--layers", "1", "--temperature", "3", "--out", str(tmp_path / "o")]
    assert cli.main([*args, "--json"]) == 0
    printed = capsys.readouterr().out
    assert "a DistilBERT of 1 layer, which begins as 0 of the teacher's 0 to 3" in printed
    figures = json.loads(printed.splitlines()[-1])
    assert figures["asked"]["temperature"] == 3.0
    assert "accuracy" in figures["dev"]


# ---------------------------------------------------------------------------------------------------------------
# What cannot be learned


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"steps": 0}, "steps is 0; it must be at least 1"),
        ({"layers": 5}, "layers is 5; it must be at least 1 and at most 4, which the teacher has"),
        ({"layers": 0}, "layers is 0; it must be at least 1"),
        ({"take": (0, 4)}, "take names layer 4; the teacher has 0 to 3"),
        ({"take": (0, 3), "layers": 3}, "layers is 3, and take names 2 layers"),
        ({"max_length": 21}, "max_length is 21; it must be at least 8, and the model has positions for 20 tokens"),
        ({"temperature": 0.0}, "temperature is 0.0; it must be more than 0"),
        ({"weights": (5.0, 2.0)}, r"weights are 5.0,2.0; one is needed for each of distillation, masked-lm, cosine"),
        ({"weights": (0.0, 0.0, 0.0)}, "one of them above 0"),
        ({"places": "some"}, "places is 'some'; choose all or masked"),
        ({"objective": "mlm.nsp"}, "objective is 'mlm.nsp'"),
        ({"objective": "mlm+nsp"}, "a DistilBERT learns mlm alone"),
        ({"step": "fast"}, "step is 'fast'; choose packed or readable"),
    ],
    ids=str,
)
def test_a_request_that_cannot_be_is_refused_before_anything_is_computed(
    how: dict[str, Any], told: str, home: Path
) -> None:
    with pytest.raises(ValueError, match=told):
        job_of(home, **how)


@pytest.mark.parametrize(
    ("family", "head", "told"),
    [
        (ROBERTA, HEAD, "is of type RoBERTa, and its positions begin at 2"),
        (ALBERT, HEAD, "is of type ALBERT, and its layers share their weights"),
        (BERT, None, "guesses no masked words, .* a checkpoint of pretraining does .bert-base-uncased"),
        (BERT, "sequence-classification", "guesses no masked words"),
    ],
    ids=["roberta", "albert", "no task head", "a classifier"],
)
def test_a_teacher_from_which_nothing_can_be_learned_is_refused(
    family: Family, head: str | None, told: str, home: Path, written: Callable[..., tuple[Path, Any]]
) -> None:
    with pytest.raises(ValueError, match=told):
        job_of(home, init=str(written(family, head)[0]))


def test_a_tokenizer_of_another_vocabulary_is_refused(home: Path, tmp_path: Path) -> None:
    vocabulary = (home / "words" / "vocab.txt").read_text().splitlines()
    vocabulary[-1], vocabulary[-2] = vocabulary[-2], vocabulary[-1]
    write_words_checkpoint(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    with pytest.raises(ValueError, match=r"has 69 tokens, and the teacher .* other ones; .* leave the tokenizer out"):
        job_of(home, tokenizer=str(tmp_path))
    assert job_of(home, tokenizer=str(home / "words")).take == (0, 3)  # the same words


@pytest.mark.parametrize(("content", "told"), [("", "is empty"), ("\u200b\n", "no row to learn from")])
def test_a_corpus_without_words_is_refused(content: str, told: str, home: Path, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text(content)
    with pytest.raises(ValueError, match=told):
        job_of(home, corpus=str(tmp_path / "corpus.txt"), dev=str(home / "corpus.txt"))


def test_a_classifier_of_other_labels_or_of_no_labels_is_refused(classifier: Path, home: Path) -> None:
    task, texts = Classification(), ["the film", "the book", "the play", "the meal"]
    others = task.from_labels(texts, ["a", "b", "c", "c"])
    asked = TextRequest(model=str(classifier))
    with pytest.raises(ValueError, match="has the labels a, b, c, and the teacher tells neg, pos apart"):
        room.new_text_job(task, others, None, asked)
    with pytest.raises(ValueError, match="has no classifier; a teacher of a task is what `minibert finetune classify`"):
        room.new_text_job(task, others, None, replace(asked, model=str(home / "teacher")))
    numbers = Classification(regression=True)
    with pytest.raises(ValueError, match="one label a text; no numbers"):
        room.new_text_job(numbers, numbers.from_labels(texts, [1.0, 2.0, 3.0, 4.0]), None, asked)
    with pytest.raises(ValueError, match=r"one is needed for each of soft-labels, labels"):
        TextRequest(weights=(5.0, 2.0, 1.0))
    with pytest.raises(ValueError, match="class_weights are for finetune"):
        TextRequest(class_weights=(1.0, 2.0))


def test_an_option_of_the_other_task_is_refused(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["distill", str(home / "corpus.txt"), "--teacher", str(home / "teacher"), "--out", str(tmp_path / "out")]
    assert cli.main([*args, "--epochs", "3"]) == 2
    assert "--epochs has no meaning for --task language" in capsys.readouterr().err
    assert cli.main([*args, "--task", "classify", "--mask-rate", "0.2"]) == 2
    assert "--mask-rate has no meaning for --task classify" in capsys.readouterr().err
    with pytest.raises(ValueError, match="task is 'tag'; choose language or classify"):
        distill(home / "corpus.txt", teacher=home / "teacher", out=tmp_path / "out", task="tag")


def test_request_and_settings_have_no_name_in_common() -> None:
    names = {*Request.__dataclass_fields__, *TextRequest.__dataclass_fields__}
    assert not names & set(Settings.__dataclass_fields__)
