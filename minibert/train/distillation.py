"""Distillation: a student learns the predictions of its teacher, besides the text itself.

    corpus -> rows, masked -> teacher, frozen             -> its predictions and hidden states
                           -> student, half as many layers -> three losses -> an ordinary checkpoint

A text has one original token at a mask; the teacher gives a probability of every token, which is more to learn from.
Divided by a temperature before softmax, its small probabilities count too (Hinton et al. 2015):

    distillation = τ² KL(softmax(teacher / τ) || softmax(student / τ))     at every token; weight 5
    masked LM    = -log softmax(student)[original token]                   at masked tokens; weight 2
    cosine       = 1 - cos(last state of the student, of the teacher)      at every token; weight 1

All are means over tokens without padding; τ², the temperature squared, keeps the size of the gradients. Sanh et al.
2019, sections 2 and 3, and the authors' script, which distills at every token where the paper names masked ones; it
masks rare tokens more often, and this is BERT's masking. A classifier is distilled in the same way, by its labels.

The student begins with some layers of its teacher (student.py). Besides the letters of model.py:

    T  tokens of all texts in the batch        N  tokens whose logits are needed
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from minibert.checkpoints.checkpoint import Checkpoint
from minibert.heads import Head
from minibert.inputs import IGNORED
from minibert.losses import cross_entropy
from minibert.prediction.collate import ExampleBatch
from minibert.prediction.logits import predict_logits
from minibert.prediction.packed import OutputFunction, encode_packed, pack_batch
from minibert.pretraining_heads import TokenPrediction
from minibert.tasks.base import Example
from minibert.tasks.classification import Classification
from minibert.text.tokenizer import load_tokenizer
from minibert.train.finetuning import FinetuneRun, as_data
from minibert.train.loop import Loss, Term
from minibert.train.objectives import MaskedLanguageModel
from minibert.train.pretraining import PretrainRun
from minibert.train.run import Goal
from minibert.train.settings import DistillClassifierSettings, DistillSettings
from minibert.train.start import fitting_labels, freeze
from minibert.train.student import check_teacher, load_teacher, new_student, with_layers
from minibert.utils.device import choose_device, move
from minibert.utils.files import AnyPath, user_path
from minibert.utils.outputs import check_folder
from minibert.utils.settings import with_settings

AT_ONCE = 256  # tokens whose logits (N,V) are in memory at a time; on a CPU fewer or more are slower


# ---------------------------------------------------------------------------------------------------------------
# A masked language model


def soft_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return the sum over rows of τ² KL(teacher || student), logits (N,V) and (N,V) -> ()."""
    dtype = torch.promote_types(student.dtype, torch.float32)  # lower precision is for matrix products
    log_p, log_q = (F.log_softmax(logits.to(dtype) / temperature, dim=-1) for logits in (teacher, student))
    return temperature**2 * F.kl_div(log_q, log_p, reduction="sum", log_target=True)


def cosine_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean of 1 - cos, states (T,D) and (T,D) -> ()."""
    dtype = torch.promote_types(student.dtype, torch.float32)
    return 1 - F.cosine_similarity(student.to(dtype), teacher.to(dtype), dim=-1).mean()


class Distillation(MaskedLanguageModel):
    """The three losses of a student; by `places` its teacher's predictions are learned at all tokens or masked ones."""

    def __init__(self, teacher: Head, settings: DistillSettings) -> None:
        super().__init__(settings.step)
        self.teacher = teacher
        self.settings = settings
        self.best: float | None = None  # the accuracy of the teacher on the rows of `score`
        self.names = ("distillation" if settings.places == "all" else "masked-distillation", "masked-lm", "cosine")

    def terms(self, model: Any, batch: ExampleBatch) -> dict[str, Term]:
        """Return all tokens, or the masked ones, with the weight of each loss."""
        distilled = batch.tokens if self.settings.places == "all" else batch.labelled_tokens
        counts = (distilled, batch.labelled_tokens, batch.tokens)
        return dict(zip(self.names, map(Term, counts, self.settings.weights), strict=True))

    def means(self, student: Any, batch: ExampleBatch) -> dict[str, Tensor]:
        """Return the losses by name.

        Logits of all tokens, (T,V), would take more memory than both models: AT_ONCE rows of them are computed at a
        time, and again in the backward pass.
        """
        labels = batch.labels["labels"][batch.attention_mask != 0]  # (B,S) -> (T)
        at = (labels != IGNORED).nonzero().squeeze(1)  # (N)
        count = max(1, len(at))
        labels, at = move((labels, at), student.device)
        ours = self.states(student, batch)  # (T,D)
        with torch.no_grad():  # not inference mode, whose tensors a backward pass may not keep
            theirs = self.states(self.teacher, batch)  # (T,D)
        cosine = cosine_loss(ours, theirs)
        if self.settings.places == "masked":
            ours, theirs, labels = (x.index_select(0, at) for x in (ours, theirs, labels))
        parts = [
            checkpoint(self.sums, student, *rows, use_reentrant=False, preserve_rng_state=False)
            for rows in zip(*(torch.split(x, AT_ONCE) for x in (ours, theirs, labels)), strict=True)
        ]
        soft, hard = (torch.stack(part).sum() for part in zip(*parts, strict=True))
        return dict(zip(self.names, (soft / len(labels), hard / count, cosine), strict=True))

    def states(self, model: Head, batch: ExampleBatch) -> Tensor:
        """Return the last states of all tokens, (T,D): without padding, or by the model's own forward pass."""
        if self.step == "packed":
            return encode_packed(model.encoder, move(pack_batch(model.encoder.embeddings, batch), model.device))
        batch = move(batch, model.device)
        mask, segments = batch.attention_mask, batch.token_type_ids
        out = model.encoder(batch.input_ids, attention_mask=mask, token_type_ids=segments)
        return cast(Tensor, out.last_hidden_state[mask != 0])  # (B,S,D) -> (T,D)

    def score(self, model: Any, rows: Sequence[Example], precision: str = "float32") -> dict[str, Any]:
        """Return the scores with the teacher's accuracy, and the fraction of it that the student has."""
        scores = super().score(model, rows, precision)
        if self.best is None:  # it is computed once
            self.best = super().score(self.teacher, rows, precision)["masked_accuracy"]
        kept = scores["masked_accuracy"] / self.best if self.best else None
        return scores | {"teacher_masked_accuracy": self.best, "kept": kept}

    def sums(self, student: TokenPrediction, ours: Tensor, theirs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return both losses of tokens, summed, by last states (N,D), (N,D) and labels (N): distillation, masked LM."""
        logits = student.predict_tokens(ours)  # (N,D) -> (N,V)
        with torch.no_grad():
            target = cast(TokenPrediction, self.teacher).predict_tokens(theirs)  # (N,D) -> (N,V)
        hard = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
        return soft_loss(logits, target, self.settings.temperature), hard


@dataclass(frozen=True)
class DistillRun(PretrainRun):
    """Pretraining with a teacher, `settings.init`."""

    settings: DistillSettings
    checkpoint: Checkpoint  # the teacher

    @classmethod
    def of(cls, corpus: AnyPath, settings: Any, checkpoint: Checkpoint | None = None) -> Self:
        """Check corpus, teacher and settings, and build the run. Raises what PretrainRun.of raises."""
        teacher = check_teacher(checkpoint or settings.init, "masked-lm")
        if settings.tokenizer and load_tokenizer(settings.tokenizer).vocab != load_tokenizer(teacher).vocab:
            raise ValueError(f"the tokenizer {settings.tokenizer} does not have the teacher's vocabulary; leave it out")
        return super().of(corpus, with_layers(settings, teacher), teacher)

    @classmethod
    def objective_of(cls, settings: Any, checkpoint: Any) -> Distillation:
        """Return the losses, with the teacher."""
        return Distillation(load_teacher(checkpoint, "masked-lm"), settings)

    def new_model(self) -> Head:
        """Return the student before training."""
        return new_student(self.objective.teacher, self.settings.take or ())

    def goal(self, model: Any) -> Goal:
        """Return the losses and the score; the teacher moves to the student's device."""
        self.objective.teacher.to(model.device)
        return super().goal(model)


# ---------------------------------------------------------------------------------------------------------------
# A classifier


@dataclass(frozen=True)
class DistillClassifierRun(FinetuneRun):
    """Fine-tuning with a teacher, `settings.model`, whose labels are softer than those of the data."""

    settings: DistillClassifierSettings

    @classmethod
    def of(cls, task: Any, data: Any, dev: Any, settings: Any, checkpoint: Checkpoint | None = None) -> Self:
        """Check and encode. Raises ValueError, FileNotFoundError for what cannot be learned."""
        task = task.resolve(data)
        if settings.class_weight is not None or task.problem_type != "single_label_classification":
            raise ValueError("a student of a classifier learns one label per text, and has no class_weight")
        teacher = check_teacher(checkpoint or settings.model, task.head)
        known, reason = fitting_labels(teacher, task, task.labels_of(data))
        if known is None:
            raise ValueError(f"the teacher does not fit the data: {reason or 'its head is for another task'}")
        return super().of(task, data, dev, with_layers(settings, teacher), teacher)

    @cached_property
    def teacher(self) -> Head:
        """The teacher, on the device of training."""
        return load_teacher(self.checkpoint, self.task.head).to(choose_device(self.settings.device))

    def new_model(self) -> Head:
        """Return the student before training, with a fresh classifier."""
        student = new_student(self.teacher, self.settings.take or ())
        labels = dict(enumerate(self.labels))
        student.config = replace(student.config, id2label=labels, problem_type=self.task.problem_type)
        return freeze(student, self.settings.freeze)

    def loss_of(self, output_of: OutputFunction) -> Loss:
        """Return the two losses; the teacher reads each text here, once, and `labels` are in its order."""
        logits = torch.from_numpy(np.stack(predict_logits(self.teacher, self.encoded, self.settings.precision)))
        return SoftLabels(logits, self.settings.temperature, self.settings.weights, output_of)  # (N,K)


@dataclass(frozen=True)
class SoftLabels(Loss):
    """τ² KL to the teacher's labels, (N,K), and cross entropy of the true ones."""

    logits: Tensor
    temperature: float
    weights: Sequence[float]
    output_of: OutputFunction

    def terms(self, model: Head, batch: ExampleBatch) -> dict[str, Term]:
        """Return the texts, with the weight of each loss."""
        soft, labels = self.weights
        return {"soft-labels": Term(batch.texts, soft), "labels": Term(batch.texts, labels)}

    def means(self, student: Head, batch: ExampleBatch) -> dict[str, Tensor]:
        """Return means over the texts, by name."""
        logits = self.output_of(student, replace(batch, labels={})).logits  # (B,K)
        target, labels = move((self.logits[list(batch.rows)], batch.labels["labels"]), logits.device)  # (N,K) -> (B,K)
        soft = soft_loss(logits, target, self.temperature) / len(logits)
        return {"soft-labels": soft, "labels": cross_entropy(logits, labels)}


# ---------------------------------------------------------------------------------------------------------------
# From Python


@with_settings(DistillSettings, DistillClassifierSettings)
def distill(
    data: object,
    *,
    teacher: AnyPath,
    out: AnyPath,
    task: str | Classification = "language",
    dev: Any = None,
    restart: bool = False,
    overwrite: bool = False,
    **settings: Any,
) -> Head:
    """Train a student of a teacher and return it, in eval mode; `out` is an ordinary checkpoint.

    task: "language", with a text file (one sentence per line, an empty line between documents) and a masked LM as the
    teacher; or "classify", or a Classification with settings of its own, with a table of texts and labels, or the
    result of Classification.from_labels, and a teacher that was fine-tuned on these labels. dev: the same, for
    evaluation. settings: layers, take, temperature, weights, steps, batch_size, ... (settings.DistillSettings,
    DistillClassifierSettings). The student has its tokenizer, one that classifies also `.predict(texts, pairs=None)`.
    The same call resumes a killed run. overwrite: replace an earlier result of minibert in `out`.
    Raises ValueError for an `out` that is taken and for what cannot be learned, before anything is trained, and what
    Run.train raises.
    """
    check_folder(user_path(out), overwrite, apart=[teacher])
    run = distill_run(data, teacher, task, dev, **{"precision": "float32"} | settings)
    student: Head = run.finish(user_path(out), restart=restart, overwrite=overwrite).model
    return student


def distill_run(
    data: Any, teacher: AnyPath, task: str | Classification, dev: Any, **settings: Any
) -> DistillRun | DistillClassifierRun:
    """Return the run of `distill`, checked. Raises ValueError for what cannot be learned."""
    name = os.fspath(teacher)
    if task == "language":
        return DistillRun.of(data, DistillSettings(init=name, dev=None if dev is None else os.fspath(dev), **settings))
    task = Classification() if task == "classify" else task
    if not isinstance(task, Classification):
        raise ValueError(f"task is {task!r}; choose language or classify")
    learned = as_data(task, data)
    held_out = None if dev is None else as_data(task, dev)
    return DistillClassifierRun.of(task, learned, held_out, DistillClassifierSettings(model=name, **settings))
