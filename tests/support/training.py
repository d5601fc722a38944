"""What the tests of training share: examples for every task head, the loop of transformers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from minibert.families.base import Family
from minibert.families.bert import BERT
from minibert.heads import Head
from minibert.hooks import Inputs, forward
from minibert.inputs import IGNORED
from minibert.prediction.collate import ExampleBatch, collate
from minibert.tasks.base import Example
from minibert.train import distill, finetune, pretrain
from minibert.train.batches import Batches
from minibert.train.loop import Loss, Progress, Term, one_step
from minibert.train.settings import TrainSettings
from support.words import OTHER, WORDS, write_tsv, write_words_checkpoint

WIDTH = 11  # positions of parity's tiny checkpoints
VOCABULARY = 101
CHOICES = 3
CLOSE = 1e-5  # relative: what the packed step may differ by
LEAST = 0.1  # a gradient that is zero but for rounding has no size of its own: then this share of the largest counts

# ---------------------------------------------------------------------------------------------------------------
# Files for runs

CONFIG = {"hidden_size": 24, "num_attention_heads": 4, "intermediate_size": 40, "max_position_embeddings": 20}


def write_corpus(path: Path, documents: int = 60) -> Path:
    """Documents of three sentences, each about one thing."""
    sentence = "the {0} very {1} the {0}"
    texts = [[sentence.format(OTHER[row % 4], WORDS[(row + n) % 6]) for n in range(3)] for row in range(documents)]
    path.write_text("\n\n".join("\n".join(lines) for lines in texts) + "\n")
    return path


def write_pairs(path: Path, rows: int = 24) -> Path:
    """Two texts about one thing in each row, without a header."""
    lines = [
        f"the {OTHER[row % 4]} very {WORDS[row % 6]}\tvery {WORDS[row % 6]} {OTHER[row % 4]}" for row in range(rows)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def write_home(folder: Path) -> Path:
    """Checkpoints with a tokenizer: an encoder, a teacher of four layers and a classifier; texts, labels, configs."""
    write_words_checkpoint(folder / "words")
    write_words_checkpoint(folder / "teacher", head="masked-lm", num_hidden_layers=4)
    names = {"id2label": {0: "neg", 1: "pos"}, "label2id": {"neg": 0, "pos": 1}}
    write_words_checkpoint(folder / "classifier", head="sequence-classification", num_hidden_layers=4, **names)
    write_corpus(folder / "corpus.txt")
    write_corpus(folder / "few.txt", documents=8)
    write_tsv(folder / "train.tsv")
    write_pairs(folder / "pairs.tsv")
    (folder / "small.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": 2}))
    electra = CONFIG | {"model_type": "electra", "embedding_size": 8, "num_hidden_layers": 2}
    (folder / "electra.json").write_text(json.dumps(electra))
    return folder


# ---------------------------------------------------------------------------------------------------------------
# Runs of every kind, with the files of write_home

QUICK: dict[str, Any] = {"max_length": 16, "batch_size": 4, "learning_rate": 1e-3}
STEPS = QUICK | {"steps": 12, "save_every": 4}
EPOCHS = QUICK | {"epochs": 2, "save_every": 2}
KINDS: dict[str, Callable[..., Any]] = {
    "classify": lambda h, **how: finetune("classify", h / "train.tsv", dev=h / "train.tsv", model=h / "words", **how),
    "mask": lambda h, **how: finetune("mask", h / "few.txt", dev=h / "few.txt", model=h / "teacher", **how),
    "embed": lambda h, **how: finetune("embed", h / "pairs.tsv", dev=h / "pairs.tsv", model=h / "words", **how),
    "frozen": lambda h, **how: finetune("classify", h / "train.tsv", model=h / "words", freeze="encoder", **how),
    "mlm+nsp": lambda h, **how: pretrain(h / "corpus.txt", config=h / "small.json", tokenizer=h / "words", **how),
    "electra": lambda h, **how: pretrain(
        h / "corpus.txt", config=h / "electra.json", tokenizer=h / "words", objective="electra", **how
    ),
    "distill": lambda h, **how: distill(h / "corpus.txt", teacher=h / "teacher", layers=2, **how),
    "distill classify": lambda h, **how: distill(
        h / "train.tsv", task="classify", teacher=h / "classifier", dev=h / "train.tsv", **how
    ),
}
OF_STEPS = ("mlm+nsp", "electra", "distill")


# ---------------------------------------------------------------------------------------------------------------
# Examples and batches


def lengths_of(count: int, seed: int = 0) -> list[int]:
    """Lengths from 1 to the positions that there are, both met."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, WIDTH + 1, (count,), generator=random).tolist()
    return [*lengths[:-2], WIDTH, 1] if count > 2 else lengths


def examples(
    head: str, lengths: Sequence[int], seed: int = 0, kind: str | None = None, family: Family = BERT
) -> list[Example]:
    """Random examples of a task head; of multiple choice CHOICES for each length. kind: of texts, a problem_type."""
    of_pairs = "sentence_order_label" if "sentence_order" in family.heads[head] else "next_sentence_label"
    random = torch.Generator().manual_seed(seed)

    def draw(most: int, count: int) -> list[int]:
        return torch.randint(0, most, (count,), generator=random).tolist()

    def labels(length: int) -> dict[str, Any]:
        if head in ("masked-lm", "token-classification", "pretraining"):
            most = 3 if head == "token-classification" else VOCABULARY
            kept = draw(2, length)
            kept[draw(length, 1)[0]] = 1  # at least one
            values = [value if keep else IGNORED for value, keep in zip(draw(most, length), kept, strict=True)]
            return {"labels": values} | ({of_pairs: draw(2, 1)[0]} if head == "pretraining" else {})
        if head == "replaced-token-detection":
            return {"labels": draw(2, length)}
        if head == "question-answering":
            start, end = sorted(draw(length, 2))
            return {"start_positions": start, "end_positions": end}
        if kind == "multi_label_classification":
            return {"labels": [float(value) for value in draw(2, 3)]}
        if kind == "regression":
            return {"labels": float(torch.randn((), generator=random))}
        most = {"next-sentence": 2, "multiple-choice": CHOICES}.get(head, 3)
        return {"labels": draw(most, 1)[0]}

    found = []
    for length in lengths:
        for _ in range(CHOICES if head == "multiple-choice" else 1):
            segments = [int(place > length // 2) for place in range(length)]
            found.append(Example(draw(VOCABULARY, length), segments, labels(length)))
    return found


def pairs_of_texts(rows: int, texts: int = 2, seed: int = 1) -> list[Example]:
    """Rows of random texts, as tasks.embedding encodes them; the third row has the texts of the first."""
    found = examples("next-sentence", lengths_of(rows * texts, seed), seed)
    found[2 * texts : 3 * texts] = found[:texts]
    numbers = [[row * texts + text for text in range(texts)] for row in range(rows)]
    numbers[2] = numbers[0]
    return [
        Example(one.ids, [0] * len(one.ids), {"numbers": numbers[at // texts], "similarity": (at // texts % 5) / 4})
        for at, one in enumerate(found)
    ]


def batches_of(
    head: str, count: int, batch_size: int, seed: int = 0, kind: str | None = None, family: Family = BERT
) -> Batches:
    rows = examples(head, lengths_of(count, seed), seed, kind, family)
    return Batches(rows, batch_size, seed, pad_id=0, choices=CHOICES if head == "multiple-choice" else 0)


def batch_of(
    head: str, lengths: Sequence[int], seed: int = 0, kind: str | None = None, family: Family = BERT
) -> ExampleBatch:
    """One batch of random examples, one of these lengths each."""
    choices = CHOICES if head == "multiple-choice" else 0
    return collate(examples(head, lengths, seed, kind, family), range(len(lengths)), 0, choices)


# ---------------------------------------------------------------------------------------------------------------
# The loop as anyone would write it with transformers


def upstream_loss(model: nn.Module, batch: ExampleBatch) -> Tensor:
    return forward(model, inputs(batch), batch.labels).loss


def inputs(batch: ExampleBatch) -> Inputs:
    """A batch as either side is called with it; (B, C, S) for multiple choice."""
    parts = (batch.input_ids, batch.attention_mask, batch.token_type_ids)
    return Inputs(*(x.unflatten(0, (-1, batch.choices)) if batch.choices else x for x in parts))


def upstream_training(
    model: nn.Module,
    batches: Batches,
    settings: TrainSettings,
    parameters: Sequence[nn.Parameter] | None = None,
) -> list[float]:
    """Train transformers' model, with weight decay by name as its examples have it; returns the loss of each step.

    parameters: in the order in which clipping sums the squares of their gradients.
    """
    from transformers import get_linear_schedule_with_warmup

    clipped = list(model.parameters()) if parameters is None else parameters
    decayed, other = list[nn.Parameter](), list[nn.Parameter]()
    for name, parameter in model.named_parameters():
        (other if any(part in name for part in ("bias", "LayerNorm", "norm")) else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": other, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, fused=settings.fused)
    steps = settings.epochs * -(-batches.batches_per_epoch // settings.accumulate)
    schedule = get_linear_schedule_with_warmup(optimizer, math.ceil(settings.warmup * steps), steps)
    losses = []
    model.train()
    for epoch in range(settings.epochs):
        left = list(batches.epoch_batches(epoch))
        while left:
            parts, left = left[: settings.accumulate], left[settings.accumulate :]
            weights = [counted(part) for part in parts]
            scaled = [  # times 1: the same bits
                upstream_loss(model, part) * (weight / sum(weights))
                for part, weight in zip(parts, weights, strict=True)
            ]
            for loss in scaled:
                loss.backward()
            losses.append(float(sum(loss.detach() for loss in scaled)))
            nn.utils.clip_grad_norm_(clipped, settings.clip)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return losses


def counted(batch: ExampleBatch) -> int:
    """The labelled tokens of a batch, or its texts."""
    labels = batch.labels.get("labels")
    of_tokens = labels is not None and labels.dim() == 2 and not labels.is_floating_point()
    return int((labels != IGNORED).sum()) if of_tokens else len(batch.rows)


# ---------------------------------------------------------------------------------------------------------------
# Two ways to compute one loss


@dataclass(frozen=True)
class Found:
    """A loss and the gradient of every parameter that it reaches."""

    loss: Tensor
    gradients: dict[str, Tensor]

    @classmethod
    def of(cls, loss_of: Callable[[Any, ExampleBatch], Tensor], model: Head, batch: ExampleBatch) -> Found:
        """By one forward and backward pass, in the mode in which the model is."""
        model.zero_grad(set_to_none=True)
        loss = loss_of(model, batch)
        loss.backward()
        return cls.at(loss.detach(), model)

    @classmethod
    def of_step(cls, loss_of: Loss, model: nn.Module, parts: Sequence[ExampleBatch]) -> Found:
        """By one step on several batches, before its gradient is clipped."""
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        return cls.at(one_step(model, parts, optimizer, loss_of, TrainSettings(clip=1e9), 1).loss, model)

    @classmethod
    def at(cls, loss: Tensor, model: nn.Module) -> Found:
        """Take the gradients out of the model."""
        kept = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        model.zero_grad(set_to_none=True)
        return cls(loss, kept)

    def apart(self, other: Found) -> dict[str, float]:
        """How far each number is from that of the other, as a share of its size; infinite where one has none.

        The size of a gradient is its largest value, or LEAST of the largest of all.
        """
        most = max(float(gradient.abs().max()) for gradient in other.gradients.values())
        found = dict.fromkeys(self.gradients.keys() ^ other.gradients.keys(), float("inf"))
        found["loss"] = float((self.loss - other.loss).abs() / other.loss.abs())
        for name in self.gradients.keys() & other.gradients.keys():
            difference = float((self.gradients[name] - other.gradients[name]).abs().max())
            found[name] = difference / max(float(other.gradients[name].abs().max()), LEAST * most)
        return found


def to_the_end(training: Iterator[Progress]) -> Progress:
    """The progress after the last step of loop.train."""
    *_, progress = training
    return progress


def shifted(batch: ExampleBatch) -> ExampleBatch:
    """A mistake: labels of tokens off by one place."""
    rolled = batch.labels["labels"].roll(1, dims=1).where(batch.attention_mask.bool(), IGNORED)
    return replace(batch, labels={**batch.labels, "labels": rolled})


@dataclass(frozen=True)
class Changed(Loss):
    """Another loss whose means are changed."""

    loss_of: Loss
    change: Callable[[Tensor], Tensor]

    def terms(self, model: Any, batch: ExampleBatch) -> dict[str, Term]:
        return self.loss_of.terms(model, batch)

    def means(self, model: Any, batch: ExampleBatch) -> dict[str, Tensor]:
        return {name: self.change(mean) for name, mean in self.loss_of.means(model, batch).items()}


def assert_parts_are_the_whole(model: nn.Module, rows: Batches, objective: Loss) -> None:
    """Six rows as one batch, and as three uneven ones, give the same gradients: sums, no means of means."""
    whole, parted = (
        Found.of_step(objective, model, [rows.of_rows(range(*ends)) for ends in pairwise(cuts)])
        for cuts in ([0, 6], [0, 1, 4, 6])
    )
    assert max(parted.apart(whole).values()) < CLOSE
