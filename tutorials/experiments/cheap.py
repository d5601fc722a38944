"""Cheap tuning: the head only, biases, LoRA and all layers, each at its own learning rates, from the same sentences.

    python tutorials/experiments/cheap.py [--out tutorials/tables/cheap_tuning.tsv]

all-MiniLM-L6-v2 learns from 320 short sentences of SST-2, three epochs in batches of 16, with three seeds; each seed
draws its own sentences. dev: the accuracy on 300 others, by which a rate is chosen; test: on 600 more. "frozen mean" is
the classifier of `minibert classify train`. The data are in $MINIBERT_DATA. A quarter of an hour of one core.
"""

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils.parametrize import register_parametrization

import minibert
from minibert.heads import Head
from minibert.prediction.demo import find_reviews
from minibert.prediction.frozen import fit_head
from minibert.prediction.logits import predict_logits
from minibert.tasks.classification import Classification
from minibert.train.batches import Batches
from minibert.train.loop import train
from minibert.train.settings import TrainSettings
from minibert.utils.printing import progress_bar, table

MODEL = "all-MiniLM-L6-v2"
RANKS = {"LoRA 1": 1, "LoRA 4": 4, "LoRA 16": 16}
RATES = {
    "head only": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
    "biases": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
    "LoRA 1": (3e-3, 1e-2, 3e-2),
    "LoRA 4": (3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
    "LoRA 16": (3e-3, 1e-2, 3e-2),
    "all layers": (3e-5, 1e-4, 3e-4, 1e-3),
}
SEEDS = (0, 1, 2)
ALPHA = 8.0
Rows = dict[str, np.ndarray[Any, Any]]


class LowRank(nn.Module):
    """W + (α / r) B A instead of W, (out, in)."""

    def __init__(self, weight: torch.Tensor, rank: int) -> None:
        super().__init__()
        out, width = weight.shape
        self.a = nn.Parameter(torch.randn(rank, width) / math.sqrt(width))
        self.b = nn.Parameter(torch.zeros(out, rank))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the sum."""
        return weight + ALPHA / self.b.shape[1] * self.b @ self.a


def new_model(way: str, seed: int) -> Head:
    """Return the pretrained model with a new head; what a way trains requires a gradient."""
    torch.manual_seed(seed)
    model = minibert.load(MODEL, head="sequence-classification", new_head=True, num_labels=2)
    for name, parameter in model.encoder.named_parameters():
        inside = (way == "all layers" and "layers" in name) or (way == "biases" and name.endswith("bias"))
        parameter.requires_grad_(inside or name.startswith("pooler"))
    for name, linear in list(model.encoder.named_modules()):
        if way in RANKS and isinstance(linear, nn.Linear) and name.endswith(("attention.query", "attention.value")):
            register_parametrization(linear, "weight", LowRank(linear.weight, RANKS[way]))
    return model


class Sentences:
    """Sentences of one sample: short ones, so that a run takes seconds."""

    def __init__(self) -> None:
        reviews = find_reviews()
        self.tokenizer = minibert.load_tokenizer(MODEL)
        lengths = np.array([len(ids) for ids in self.tokenizer.ids(reviews.texts)])
        short = np.argsort(lengths, kind="stable")[: len(lengths) // 3]
        self.order = np.random.default_rng(0).permutation(short)
        self.texts, self.labels = reviews.texts, np.array([int(label) for label in reviews.labels])

    def rows(self, seed: int) -> Rows:
        """Return the rows of dev and test, and the ones that a seed draws from the rest to learn from."""
        drawn = np.random.default_rng(seed).permutation(self.order[900:])[:320]
        return {"train": drawn, "dev": self.order[:300], "test": self.order[300:900]}

    def encode(self, rows: np.ndarray[Any, Any]) -> Any:
        """Return the examples of these rows."""
        task = Classification()
        data = task.from_labels([self.texts[row] for row in rows], self.labels[rows])
        return task.encode(data, self.tokenizer, ["0", "1"], max_length=128)


def tuned(data: Sentences, way: str, rate: float, seed: int) -> list[str]:
    """Train once; return how many weights learn, and the accuracies on dev and test."""
    model, rows = new_model(way, seed), data.rows(seed)
    settings = TrainSettings(epochs=3, batch_size=16, learning_rate=rate, seed=seed, exact=False)
    examples = data.encode(rows["train"]).examples
    for _ in train(model, Batches(examples, 16, seed, data.tokenizer.pad_id), settings):
        pass
    scores = []
    for part in ("dev", "test"):
        answers = np.stack(predict_logits(model, data.encode(rows[part]))).argmax(axis=1)
        scores.append(f"{(answers == data.labels[rows[part]]).mean():.4f}")
    learn = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return [way, str(learn), f"{rate:g}", str(seed), *scores]


def frozen(data: Sentences, seed: int) -> list[str]:
    """Fit the classifier of frozen mean vectors; return the same columns as `tuned`."""
    rows = data.rows(seed)
    vectors = {part: minibert.embed([data.texts[row] for row in rows[part]], MODEL, pooling="mean") for part in rows}
    head, _ = fit_head(vectors["train"], data.labels[rows["train"]])
    scores = [f"{head.score(vectors[part], data.labels[rows[part]]):.4f}" for part in ("dev", "test")]
    return ["frozen mean", str(vectors["train"].shape[1] + 1), "0", str(seed), *scores]


def main() -> None:
    """Train all, print the table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="a .tsv for the table")
    out, data = parser.parse_args().out, Sentences()
    lines = [["way", "learn", "rate", "seed", "dev", "test"], *(frozen(data, seed) for seed in SEEDS)]
    runs = [(way, rate, seed) for way in RATES for rate in RATES[way] for seed in SEEDS]
    for way, rate, seed in progress_bar(runs, "training", unit="run"):
        lines.append(tuned(data, way, rate, seed))
        if out is not None:
            out.write_text("\n".join("\t".join(line) for line in lines) + "\n", encoding="utf-8")
    print(table(lines))


if __name__ == "__main__":
    main()
