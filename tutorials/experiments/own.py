"""Change one thing in your own BERT, and measure what it does: files of functions, trained alike on novels.

    python tutorials/experiments/own.py my_bert.py changed.py [--steps 400] [--seeds 3]

Each file has the functions of tutorials/build: its own `mask_tokens`, `encode`, `predict_tokens`, `cross_entropy` and
`adamw_step` do the work. A model of two layers, 64 wide, learns from random weights, the same for all files, and from
the same texts; each seed has others. The loss is of masked tokens in held-out text, in nats; its difference from the
first file's is paired by seed. The text is $MINIBERT_DATA/novels, as in novels.py, the vocabulary minibert-novels'.
"""

import argparse
import gzip
import math
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from types import ModuleType

import torch
from own_functions import load_functions
from torch import Tensor

from minibert.utils.files import user_path
from minibert.utils.printing import progress_bar, table

D, H, F, L, S = 64, 4, 256, 2, 128
ROWS = 32  # of a batch
HELD_OUT = 512  # sentences
WORDS = 16  # of a sentence; longer ones are left out
EPS = 1e-12
PREDICTS = ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm")

Batch = tuple[Tensor, Tensor, Tensor]  # inputs, labels and mask, (B,S) each


def first_weights(vocabulary_size: int, seed: int) -> dict[str, Tensor]:
    """Return random weights with the names of BERT's files."""
    tables = {"word": vocabulary_size, "position": S, "token_type": 2}
    shapes = {f"embeddings.{name}_embeddings.weight": (rows, D) for name, rows in tables.items()}
    linear = {PREDICTS[0]: (D, D)}
    norms = ["embeddings.LayerNorm", PREDICTS[1]]
    for layer in range(L):
        before = f"encoder.layer.{layer}."
        linear |= {f"{before}attention.self.{name}": (D, D) for name in ("query", "key", "value")}
        linear |= {f"{before}attention.output.dense": (D, D)}
        linear |= {f"{before}intermediate.dense": (F, D), f"{before}output.dense": (D, F)}
        norms += [f"{before}attention.output.LayerNorm", f"{before}output.LayerNorm"]
    generator = torch.Generator().manual_seed(seed)
    shapes |= {f"{name}.weight": shape for name, shape in linear.items()}
    weights = {name: 0.05 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    weights |= {f"{name}.bias": torch.zeros(shape[0]) for name, shape in linear.items()}
    weights |= {f"{name}.weight": torch.ones(D) for name in norms} | {f"{name}.bias": torch.zeros(D) for name in norms}
    return weights | {"cls.predictions.bias": torch.zeros(vocabulary_size)}


def masked(functions: ModuleType, texts: list[str], vocabulary: dict[str, int], seed: int) -> Batch:
    """Return texts with masked tokens; all random numbers are of this seed."""
    ids, mask = functions.batch_of(texts, vocabulary)
    special = (mask == 0) | (ids == vocabulary["[CLS]"]) | (ids == vocabulary["[SEP]"])
    generator = torch.Generator().manual_seed(seed)
    inputs, labels = functions.mask_tokens(ids, special.long(), vocabulary["[MASK]"], len(vocabulary), generator)
    return inputs, labels, mask


def loss_of(functions: ModuleType, weights: dict[str, Tensor], batch: Batch) -> Tensor:
    """Return the loss of the masked tokens, ()."""
    inputs, labels, mask = batch
    states, _ = functions.encode(inputs, torch.zeros_like(inputs), mask, weights, H, EPS)
    return functions.cross_entropy(functions.predict_tokens(states[-1], weights, EPS), labels)  # type: ignore[no-any-return]  # of the learner's file


def trained(
    functions: ModuleType, texts: list[str], vocabulary: dict[str, int], steps: int, seed: int
) -> dict[str, Tensor]:
    """Return the weights after these steps; the learning rate rises to 3e-3 for a tenth of them, then falls to 0."""
    draw = Random(seed)
    state = {
        name: (x, torch.zeros_like(x), torch.zeros_like(x)) for name, x in first_weights(len(vocabulary), seed).items()
    }
    for step in progress_bar(range(1, steps + 1), f"seed {seed}"):
        rate = 3e-3 * min(step / (0.1 * steps), (1 - step / (steps + 1)) / 0.9)
        batch = masked(functions, draw.sample(texts, ROWS), vocabulary, draw.getrandbits(32))
        weights = {name: x.detach().requires_grad_() for name, (x, _, _) in state.items()}
        gradients = torch.autograd.grad(loss_of(functions, weights, batch), list(weights.values()))
        for (name, (x, mean, square)), gradient in zip(list(state.items()), gradients, strict=True):
            state[name] = functions.adamw_step(x, gradient, mean, square, step, rate, 0.01 if x.dim() > 1 else 0.0)
    return {name: x for name, (x, _, _) in state.items()}


def held_out_loss(functions: ModuleType, weights: dict[str, Tensor], batches: Sequence[Batch]) -> float:
    """Return the mean loss of all masked tokens."""
    counts = [int((labels != -100).sum()) for _, labels, _ in batches]
    with torch.no_grad():
        losses = [float(loss_of(functions, weights, batch)) for batch in batches]
    return sum(loss * count for loss, count in zip(losses, counts, strict=True)) / sum(counts)


def unigram_loss(
    functions: ModuleType, texts: list[str], vocabulary: dict[str, int], batches: Sequence[Batch]
) -> float:
    """Return the loss of a guess by the frequency of each token alone, plus one."""
    ids, mask = functions.batch_of(texts, vocabulary)
    counts = torch.bincount(ids[mask == 1], minlength=len(vocabulary)).double() + 1
    labels = torch.cat([labels[labels != -100] for _, labels, _ in batches])
    return float(-(counts / counts.sum()).log()[labels].mean())


def main(arguments: Sequence[str] | None = None) -> int:
    """Train each file with each seed, and print the losses; exit status 2 if the text is missing."""
    parser = argparse.ArgumentParser(description="Train files of functions alike, and compare them.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="the first is what the others are beside")
    parser.add_argument("--steps", type=int, default=400, metavar="N", help="training steps (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="runs of each file (%(default)s)")
    args = parser.parse_args(arguments)
    data = user_path(os.environ.get("MINIBERT_DATA") or ".") / "novels"
    if not (data / "train.txt.gz").exists():
        parser.error("$MINIBERT_DATA names no folder with novels/train.txt.gz; the docstring of novels.py says more")
    with gzip.open(data / "train.txt.gz", "rt", encoding="utf-8") as file:
        texts = [line.strip() for line in file if 0 < len(line.split()) <= WORDS]
    lines = (data / "heldout.txt").read_text("utf-8").splitlines()
    held_out = [line for line in lines if 0 < len(line.split()) <= WORDS][:HELD_OUT]
    right = load_functions(args.files[0].resolve())
    vocabulary = right.load_model()[1]
    batches = [masked(right, held_out[at : at + ROWS], vocabulary, at) for at in range(0, len(held_out), ROWS)]
    losses = []
    for path in args.files:
        functions = load_functions(path.resolve())
        runs = (trained(functions, texts, vocabulary, args.steps, seed) for seed in range(1, args.seeds + 1))
        losses.append([held_out_loss(functions, weights, batches) for weights in runs])
    rows = [["", *(f"seed {seed}" for seed in range(1, args.seeds + 1)), "less the first file's"]]
    for path, own in zip(args.files, losses, strict=True):
        less = [x - first for x, first in zip(own, losses[0], strict=True)]
        error = statistics.stdev(less) / math.sqrt(len(less)) if len(less) > 1 else math.nan
        rows.append([path.name, *(f"{x:.3f}" for x in own), f"{statistics.fmean(less):+.3f} ± {error:.3f}"])
    print(table(rows))
    print(f"a guess by frequency alone: {unigram_loss(right, texts[:5000], vocabulary, batches):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
