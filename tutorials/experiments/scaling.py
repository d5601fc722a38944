"""Larger, or longer? Four widths of the novels recipe times four amounts of text, and ModernBERT beside BERT.

    python tutorials/experiments/scaling.py [FOLDER]     writes FOLDER/scaling.tsv

    grid      widths 32 to 256, 150 to 1,200 steps of 128 sentences, each schedule run to its end
    rates     the two smallest with twice the learning rate, the largest with half of it: is another one better?
    families  BERT and ModernBERT of width 256, 600 steps, three seeds each

The text, the vocabulary and the rest of the recipe are those of novels.py; the vocabulary is the one that ships. Each
run is a folder, and a finished run is not repeated. A row has the loss of the masked tokens of held-out novels (40 %
masked, the same tokens for every run). All runs take two hours of one core.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from novels import CONFIG, MODERN, RECIPE, command, write_shuffled

from minibert.storage.hub import SHIPPED
from minibert.utils.files import read_json, user_path, write_text_atomically

WIDTHS = (32, 64, 128, 256)
STEPS = (150, 300, 600, 1200)
RATE = 2e-3
HEAD_WIDTH = 64  # as in the recipe, where the model is wide enough for it


class Training(NamedTuple):
    """One run: a row of the table."""

    family: str
    width: int
    steps: int
    rate: float
    seed: int

    @property
    def config(self) -> Mapping[str, object]:
        """The sizes of the model."""
        if self.family == "modernbert":
            return MODERN
        heads = max(1, self.width // HEAD_WIDTH)
        return CONFIG | {
            "hidden_size": self.width,
            "intermediate_size": 4 * self.width,
            "num_attention_heads": heads,
        }


def trainings() -> Iterator[Training]:
    """Yield every run of the table once."""
    for width in WIDTHS:
        for steps in STEPS:
            yield Training("bert", width, steps, RATE, 0)
    for width in WIDTHS[:2]:
        yield Training("bert", width, 300, 2 * RATE, 0)
    yield Training("bert", 256, 600, RATE / 2, 0)
    for seed in range(3):
        if seed > 0:
            yield Training("bert", 256, 600, RATE, seed)
        yield Training("modernbert", 256, 600, RATE, seed)


def train(training: Training, text: Path, dev: Path, folder: Path) -> dict[str, object]:
    """Train one model if it is not there yet, and return its row. Raises CalledProcessError if the command fails."""
    out = folder / "-".join(map(str, training))
    if not out.exists():
        config = out.with_suffix(".sizes.json")
        write_text_atomically(config, json.dumps(training.config, indent=1) + "\n")
        files = ("--tokenizer", SHIPPED, "--config", config, "--dev", dev, "--out", out)
        options = RECIPE.replace("--learning-rate 2e-3", f"--learning-rate {training.rate}").split()
        command("pretrain", text, *files, *options, "--steps", training.steps, "--seed", training.seed)
    report = read_json(out / "training.json")
    return training._asdict() | {
        "weights": report["parameters"]["trained"],
        "tokens": report["tokens"],
        "loss": round(report["dev"]["masked_lm_loss"], 4),
        "accuracy": round(report["dev"]["masked_accuracy"], 4),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Train all; exit status 2 if the text is missing."""
    parser = argparse.ArgumentParser(description="Train small models of several sizes on several amounts of text.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("build/scaling"), help="of the runs (%(default)s)")
    folder = parser.parse_args(arguments).folder
    data = user_path(os.environ.get("MINIBERT_DATA") or ".") / "novels"
    if not (data / "train.txt.gz").exists():
        parser.error("$MINIBERT_DATA names no folder with novels/train.txt.gz; see novels.py")
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "novels.txt"
    write_shuffled(data, text)
    rows = [train(training, text, data / "heldout.txt", folder) for training in trainings()]
    lines = ["\t".join(rows[0]), *("\t".join(map(str, row.values())) for row in rows)]
    write_text_atomically(folder / "scaling.tsv", "\n".join(lines) + "\n")
    print(f"written        {folder / 'scaling.tsv'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
