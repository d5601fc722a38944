"""Distillation: a student learns what its teacher makes of a text, besides what the text itself says.

    corpus -> rows, masked -> teacher, whose weights stay -> what it guesses, what it holds of each token
                           -> student, half as deep       -> three losses -> an ordinary DistilBERT

A text says which word was hidden; the teacher says how likely each word of the vocabulary is, which is more to learn
from. Divided by a temperature before softmax, its small probabilities count too (Hinton et al. 2015):

    distillation = τ² KL(softmax(teacher / τ) || softmax(student / τ))     at every token; times 5
    masked LM    = -log softmax(student)[the hidden word]                  at hidden ones; times 2
    cosine       = 1 - cos(last state of the student, of the teacher)      at every token; times 1

All are means over tokens, never over padding; τ², the temperature squared, keeps gradients as large as without it.
Sanh et al. 2019, sections 2 and 3, and the script of the authors, which distils every token where the paper speaks of
hidden ones; it hides rare tokens more often, and here BERT's masking does it. A classifier is a teacher in the same
way, by its labels (`task="classify"`). Beside the letters of model.py:

    T  tokens of all texts in the batch        N  tokens of which logits are needed
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from minibert.checkpoints import hub
from minibert.checkpoints.load import load
from minibert.config import Config
from minibert.device import choose_device
from minibert.heads import Head
from minibert.kernels.quick import twice
from minibert.losses import IGNORED, cross_entropy, token_cross_entropy
from minibert.model import EncoderOutput
from minibert.pretraining_heads import TokenPrediction
from minibert.tasks.classification import Classification
from minibert.text.tokenizer import load_tokenizer
from minibert.train import finetuning, pretraining
from minibert.train.batches import Batch
from minibert.train.finetuning import as_data, run
from minibert.train.folder import Trained, check_out, write_folder
from minibert.train.keeper import forget
from minibert.train.loop import Loss, Losses, Progress, Settings
from minibert.train.outputs import outputs
from minibert.train.packed import Output, Tokens, encode
from minibert.train.student import check_teacher, layers_taken, new_student

TEMPERATURE = 2.0
OF_LABELS = ("soft-labels", "labels")  # the losses of a classification
AT_ONCE = 256  # tokens whose logits (N,V) are held at a time; on a CPU fewer or more are slower
# DistilBERT's optimizer.
RECIPE = Settings(epochs=1, learning_rate=5e-4, warmup=0.05, weight_decay=0.0, clip=5.0, beta2=0.98, epsilon=1e-6)


def check_how(temperature: float, weights: Sequence[float], names: Sequence[str]) -> None:
    """Raise ValueError for a temperature or weights of losses that cannot be."""
    if not 0 < temperature < float("inf"):
        raise ValueError(f"temperature is {temperature}; it must be more than 0, and 2 is DistilBERT's")
    if len(weights) != len(names) or not all(0 <= one < float("inf") for one in weights) or not any(weights):
        told = ",".join(map(str, weights))
        raise ValueError(
            f"weights are {told}; one is needed for each of {', '.join(names)}: 0 or more, and one of them above 0"
        )


def frozen(folder: Path, head: str, device: str) -> Head:
    """A teacher: in eval mode, so that it has no dropout, and none of its weights is trained."""
    teacher = load(folder, head=head, device=choose_device(device))
    return teacher.requires_grad_(False)


# ---------------------------------------------------------------------------------------------------------------
# Losses


def soft_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """The sum over rows of τ² KL(teacher || student), logits (N,V) and (N,V) -> ()."""
    at_least = torch.promote_types(student.dtype, torch.float32)  # lower precision is for matrix products
    log_p, log_q = (F.log_softmax(logits.to(at_least) / temperature, dim=-1) for logits in (teacher, student))
    return temperature**2 * F.kl_div(log_q, log_p, reduction="sum", log_target=True)


def cosine_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """The mean of 1 - cos, states (T,D) and (T,D) -> ()."""
    at_least = torch.promote_types(student.dtype, torch.float32)
    return 1 - F.cosine_similarity(student.to(at_least), teacher.to(at_least), dim=-1).mean()


def readable_losses(teacher: Head, request: Request, student: Head, batch: Batch) -> Losses:
    """The three losses by the models as they are, padding and all."""
    ids, mask, labels = batch.input_ids, batch.attention_mask, batch.labels["labels"]
    ours = student(ids, attention_mask=mask, output_hidden_states=True)
    with torch.no_grad():  # and no inference mode, whose tensors a backward pass may not keep
        theirs = teacher(ids, attention_mask=mask, token_type_ids=batch.token_type_ids, output_hidden_states=True)
    real = mask.bool()  # (B,S)
    told = real if request.places == "all" else labels != IGNORED
    distilled = soft_loss(ours.logits[told], theirs.logits[told], request.temperature) / told.sum()  # (N,V)
    hidden = token_cross_entropy(ours.logits, labels)
    alike = cosine_loss(ours.hidden_states[-1][real], theirs.hidden_states[-1][real])  # (T,D)
    return dict(zip(request.objectives, (distilled, hidden, alike), strict=True))


def packed_losses(teacher: Head, request: Request, student: Head, batch: Batch) -> Losses:
    """The same without padding, within 1e-5.

    Logits of all tokens, (T,V), would take more memory than both models: AT_ONCE rows of them are held at a time, and
    computed again for the gradient.
    """
    tokens = Tokens.of(batch, every_place=False)
    labels = tokens.places.gather(batch.labels["labels"])  # (B,S) -> (T)
    ours = encode(student.encoder, tokens, None)  # (T,D)
    with torch.no_grad():
        theirs = encode(teacher.encoder, tokens, None)  # (T,D)
    alike = cosine_loss(ours, theirs)
    if request.places == "masked":
        told = (labels != IGNORED).nonzero().squeeze(1)  # (N)
        ours, theirs, labels = (x.index_select(0, told) for x in (ours, theirs, labels))
    again: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False, "context_fn": twice}
    parts = [
        checkpoint(sums, student, teacher, request.temperature, *rows, **again)
        for rows in zip(*(torch.split(x, AT_ONCE) for x in (ours, theirs, labels)), strict=True)
    ]
    distilled, hidden = (torch.stack(part).sum() for part in zip(*parts, strict=True))
    means = (distilled / len(labels), hidden / (labels != IGNORED).sum(), alike)
    return dict(zip(request.objectives, means, strict=True))


def sums(
    student: TokenPrediction, teacher: TokenPrediction, temperature: float, ours: Tensor, theirs: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Distillation and masked LM of tokens by their last states (N,D), (N,D) and labels (N), summed: (), ()."""
    logits = student.predict_tokens(EncoderOutput(ours))  # (N,D) -> (N,V)
    with torch.no_grad():
        wanted = teacher.predict_tokens(EncoderOutput(theirs))  # (N,D) -> (N,V)
    hidden = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    return soft_loss(logits, wanted, temperature), hidden


LOSSES: dict[str, Callable[[Head, Request, Head, Batch], Losses]] = {
    "packed": packed_losses,
    "readable": readable_losses,
}


# ---------------------------------------------------------------------------------------------------------------
# A language


@dataclass(frozen=True)
class Request(pretraining.Request):
    """What to learn from which teacher, and how: `init` names the teacher. The defaults are DistilBERT's."""

    objective: str = "mlm"
    settings: Settings = RECIPE
    layers: int | None = None  # of the student; None: half of the teacher's
    take: tuple[int, ...] | None = None  # the teacher's layers that they begin as; None: from first to last
    temperature: float = TEMPERATURE
    weights: tuple[float, ...] = (5.0, 2.0, 1.0)  # of the losses, in the order of `objectives`
    places: str = "all"  # at which the teacher's guesses are learned; or "masked"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objective != "mlm":
            raise ValueError(f"objective is {self.objective!r}; a DistilBERT learns mlm alone, for it has no pooler")
        if self.places not in ("all", "masked"):
            raise ValueError(f"places is {self.places!r}; choose all or masked")
        check_how(self.temperature, self.weights, self.objectives)

    @property
    def objectives(self) -> tuple[str, str, str]:
        """The names of the losses; by its name the loop knows over which tokens a loss is a mean."""
        return ("distillation" if self.places == "all" else "masked-distillation", "masked-lm", "cosine")


@dataclass(frozen=True)
class Job(pretraining.Job):
    """Pretraining with a teacher: all that can be known before anything is trained."""

    request: Request
    source: hub.Source  # the teacher

    @cached_property
    def take(self) -> tuple[int, ...]:
        """Which of the teacher's layers the student's begin as."""
        return layers_taken(self.config.num_hidden_layers, self.request.layers, self.request.take)

    @cached_property
    def settings(self) -> Settings:
        """With how much each loss counts."""
        scales = dict(zip(self.request.objectives, self.request.weights, strict=True))
        return replace(super().settings, scales=scales)

    @property
    def asked(self) -> dict[str, Any]:
        """With the teacher, of which the config is, and its layers that are taken."""
        asked = super().asked
        names = {"config": "teacher_config", "weights_sha256": "teacher_sha256"}
        more = {"take": list(self.take), "temperature": self.request.temperature, "places": self.request.places}
        return {names.get(name, name): value for name, value in asked.items()} | more

    @cached_property
    def teacher(self) -> Head:
        """Where the student is trained."""
        return frozen(self.source.folder, "masked-lm", self.request.device)

    def new_model(self) -> Head:
        """The student as it begins."""
        return new_student(self.teacher, self.take)

    @property
    def loss_of(self) -> Loss:
        """The three losses of a batch."""
        return partial(LOSSES[self.request.step], self.teacher, self.request)

    @cached_property
    def best(self) -> float:
        """The share of held-out hidden words that the teacher guesses."""
        return float(super().score(self.teacher)["masked_accuracy"])

    def score(self, model: Any) -> dict[str, Any]:
        """How well the student guesses hidden words, and which share that is of what the teacher does."""
        found = super().score(model)
        kept = found["masked_accuracy"] / self.best if self.best else None
        return found | {"teacher_masked_accuracy": self.best, "kept": kept}


def new_job(request: Request) -> Job:
    """Look at everything beforehand. Raises ValueError, FileNotFoundError for what cannot be learned."""
    source = hub.locate(cast(str, request.init))  # Request has seen to it
    config = check_teacher(source.folder, "masked-lm")
    layers_taken(config.num_hidden_layers, request.layers, request.take)
    if request.tokenizer is not None:
        given, own = load_tokenizer(request.tokenizer).vocab, load_tokenizer(source.folder).vocab
        if given != own:
            raise ValueError(
                f"the tokenizer {request.tokenizer} has {len(given):,} tokens, and the teacher {request.init} "
                f"{'other ones' if len(given) == len(own) else f'{len(own):,}'}; student and teacher must read the "
                "same ids: leave the tokenizer out"
            )
    return Job.of(request)


# ---------------------------------------------------------------------------------------------------------------
# A classification


@dataclass(frozen=True)
class TextRequest(finetuning.Request):
    """What to learn from which classifier, and how: `model` names the teacher. Settings are those of fine-tuning."""

    layers: int | None = None  # of the student; None: half of the teacher's
    take: tuple[int, ...] | None = None  # the teacher's layers that they begin as; None: from first to last
    temperature: float = TEMPERATURE
    weights: tuple[float, ...] = (5.0, 2.0)  # of the losses, in the order of OF_LABELS: as for a language

    def __post_init__(self) -> None:
        check_how(self.temperature, self.weights, OF_LABELS)
        if self.class_weights is not None:
            raise ValueError("class_weights are for finetune; the losses of a student count every text alike")


@dataclass(frozen=True)
class TextJob(finetuning.Job):
    """Fine-tuning with a teacher, whose labels are softer than those of the data."""

    request: TextRequest

    @cached_property
    def deep(self) -> int:
        """How many layers the teacher has."""
        return Config.from_file(self.source.folder / "config.json").num_hidden_layers

    @cached_property
    def take(self) -> tuple[int, ...]:
        """Which of the teacher's layers the student's begin as."""
        return layers_taken(self.deep, self.request.layers, self.request.take)

    @cached_property
    def settings(self) -> Settings:
        """With how much each loss counts."""
        return replace(super().settings, scales=dict(zip(OF_LABELS, self.request.weights, strict=True)))

    @property
    def asked(self) -> dict[str, Any]:
        """With the teacher and its layers that are taken."""
        asked = super().asked
        more = {"take": list(self.take), "temperature": self.request.temperature}
        return {"teacher_sha256" if name == "weights_sha256" else name: value for name, value in asked.items()} | more

    @cached_property
    def teacher(self) -> Head:
        """Where the student is trained."""
        return frozen(self.source.folder, "sequence-classification", self.request.device)

    @cached_property
    def soft_labels(self) -> Tensor:
        """What the teacher says of each text, (N,K): asked once, for it does not change. Columns as in `labels`."""
        theirs = list(self.teacher.config.id2label.values())
        found = outputs(self.teacher, self.encoded, self.settings.precision)
        logits = torch.stack([torch.from_numpy(row) for row in found])
        return logits[:, [theirs.index(label) for label in self.labels]]

    def new_model(self) -> Head:
        """The student as it begins: its classifier is fresh."""
        student = new_student(self.teacher, self.take)
        names, kind = dict(enumerate(self.labels)), self.task.problem_type()
        student.config = replace(student.config, id2label=names, problem_type=kind)
        return student

    def loss_of(self, request: finetuning.Request, output_of: Output) -> Loss:
        """The two losses of a batch."""
        output_of = output_of if request.step == "packed" else readable_output
        return partial(label_losses, self.soft_labels, self.request.temperature, output_of)


def readable_output(model: Head, batch: Batch) -> Any:
    """The output of the model as it is, padding and all."""
    return model(batch.input_ids, attention_mask=batch.attention_mask, token_type_ids=batch.token_type_ids)


def label_losses(soft_labels: Tensor, temperature: float, output_of: Output, student: Head, batch: Batch) -> Losses:
    """τ² KL to the teacher's labels and cross entropy of the true ones, means over texts."""
    logits = output_of(student, replace(batch, labels={})).logits  # (B,K)
    wanted = soft_labels[list(batch.rows)].to(logits.device)  # (N,K) -> (B,K)
    soft = soft_loss(logits, wanted, temperature) / len(logits)
    return dict(zip(OF_LABELS, (soft, cross_entropy(logits, batch.labels["labels"])), strict=True))


def new_text_job(task: Classification, data: Any, dev: Any, request: TextRequest) -> TextJob:
    """Look at everything beforehand. Raises ValueError, FileNotFoundError for what cannot be learned."""
    if task.problem_type() != "single_label_classification":
        raise ValueError("a student of a classifier learns one label a text; no numbers, and no several labels")
    folder = hub.locate(request.model).folder
    config = check_teacher(folder, task.head)
    layers_taken(config.num_hidden_layers, request.layers, request.take)
    known, given = sorted(config.id2label.values()), task.resolve(data).labels_of(data)
    if known != sorted(given):
        raise ValueError(
            f"the data has the labels {', '.join(given[:9])}, and the teacher tells {', '.join(known[:9])} apart; "
            "they must be the same"
        )
    return TextJob.of(task, data, dev, request)


# ---------------------------------------------------------------------------------------------------------------
# From Python

AnyRequest = TypeVar("AnyRequest", Request, TextRequest)


def distill(
    data: object,
    *,
    teacher: str | os.PathLike[str],
    out: str | os.PathLike[str],
    task: str = "language",
    dev: Any = None,
    restart: bool = False,
    overwrite: bool = False,
    **how: Any,
) -> Head:
    """Train a student of a teacher and return it, in eval mode; `out` is an ordinary checkpoint of a DistilBERT.

    task: "language", data a text file (one sentence a line, an empty line between documents), the teacher a masked LM;
    or "classify", data a table of texts and labels or what Classification.from_labels returns, the teacher what
    finetune made of them or of others with these labels. dev: the same, to be scored on. how: fields of Request or
    TextRequest (layers, take, temperature, weights, steps, max_length, ...) and of train.loop.Settings (batch_size,
    learning_rate, seed, ...). A killed run is resumed by the same call. overwrite: what minibert wrote in `out` is
    replaced, and nothing else.
    Raises ValueError for an `out` that holds something and for what cannot be learned, before anything is trained, and
    what Keeper and train raise.
    """
    check_out(Path(out), overwrite, teacher, how.get("tokenizer"))
    place, name = Path(out), os.fspath(teacher)
    if task == "language":
        held_out = None if dev is None else os.fspath(dev)
        learned = new_job(request_of(Request, corpus=os.fspath(cast(str, data)), init=name, dev=held_out, **how))
        return cast(Head, pretraining.finish(learned, place, restart, overwrite=overwrite).model)
    if task != "classify":
        raise ValueError(f"task is {task!r}; choose language or classify")
    request, learner = request_of(TextRequest, model=name, **how), Classification()
    held_out = None if dev is None else as_data(learner, dev)
    job = new_text_job(learner, as_data(learner, data), held_out, request)
    return finish(job, place, restart, overwrite=overwrite).model


def request_of(kind: type[AnyRequest], **given: Any) -> AnyRequest:
    """A request with Settings from the fields of both. Raises TypeError for a name that is of neither."""
    own = {name: value for name, value in given.items() if name in kind.__dataclass_fields__}
    rest = {name: value for name, value in given.items() if name not in own}
    request = kind(**own)
    return replace(request, settings=replace(request.settings, **rest))


def finish(
    job: TextJob,
    out: Path,
    restart: bool = False,
    say: Callable[[Progress], None] = lambda progress: None,
    overwrite: bool = False,
) -> Trained:
    """Run, write the folder, and forget the state of the run. Raises ValueError for a folder that holds something."""
    check_out(out, overwrite, job.source.folder)
    state = out.with_name(out.name + ".training")
    trained = run(job, state, restart=restart, loss_of=job.loss_of, say=say)
    write_folder(trained, out, overwrite)
    forget(state)
    return trained
