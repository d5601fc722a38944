"""A BERT of our own: a vocabulary and a masked language model, learned from 95 English novels on two cores.

    python tutorials/experiments/novels.py [FOLDER] [--steps N] [--family NAME]     `make bert`

    novels -> sentences, shuffled -> `minibert vocab` -> `minibert pretrain` -> FOLDER/minibert-novels, in bfloat16

Both are ordinary commands with ordinary options, printed before they run. A finished step is not repeated, and a killed
pretraining is resumed. The text is $MINIBERT_DATA/novels: train.txt.gz and heldout.txt, one sentence per line, an empty
line between novels (from the repository computationalstylistics/100_english_novels; those of 1839 to 1930, which are in
the public domain).
"""

import argparse
import gzip
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import torch

from minibert.checkpoints.load import load, save
from minibert.storage.hub import SHIPPED
from minibert.text.tokenizer import load_tokenizer
from minibert.utils.files import read_json, user_path, write_text_atomically
from minibert.utils.outputs import atomic_folder

VOCABULARY = 8192
CONFIG = {
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "hidden_dropout_prob": 0.0,  # a sentence is seen two or three times, each time with other masks
    "attention_probs_dropout_prob": 0.0,
}
# The same number of weights and of layers with the parts of ModernBERT: a gate makes three matrices of two.
MODERN = {
    "model_type": "modernbert",
    "hidden_size": 256,
    "intermediate_size": 682,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 1024,
}
CONFIGS = {"bert": CONFIG, "modernbert": MODERN}
# weights/minibert-novels/README.md has the runs by which these were chosen.
RECIPE = (
    "--objective mlm --rows sentence --mask-rate 0.4 --batch-size 128 "
    "--learning-rate 2e-3 --warmup 0.1 --beta2 0.98 --weight-decay 0.1 --precision auto"
)
STEPS = 14_500  # 48 million tokens, 2.5 epochs: an hour of two cores with bfloat16


def pretrain_novels(data: Path, folder: Path, steps: int, family: str = "bert") -> None:
    """Do each step that is not done yet; family: see CONFIGS. Raises CalledProcessError if a command fails."""
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "novels.txt"
    vocabulary = folder / "vocabulary"
    config = folder / "sizes.json"
    trained = folder / "trained"
    out = folder / SHIPPED
    write_shuffled(data, text)
    write_text_atomically(config, json.dumps(CONFIGS[family], indent=1) + "\n")
    if not vocabulary.exists():
        command("vocab", text, "--size", VOCABULARY, "--out", vocabulary)
    if not trained.exists():
        files = ("--tokenizer", vocabulary, "--config", config, "--dev", data / "heldout.txt", "--out", trained)
        command("pretrain", text, *files, "--steps", steps, *RECIPE.split())
    if not out.exists():
        with atomic_folder(out) as new:
            model = load(trained, head="masked-lm", dtype=torch.bfloat16)
            save(model, new, load_tokenizer(trained))
            # transformers loads in the dtype that config.json names.
            stored = read_json(new / "config.json") | {"dtype": "float32"}
            write_text_atomically(new / "config.json", json.dumps(stored, indent=2) + "\n")
    print(f"written        {out}")


def write_shuffled(data: Path, text: Path) -> None:
    """Write all sentences in random order, unless the file exists. A batch then has sentences from all novels."""
    if not text.exists():
        with gzip.open(data / "train.txt.gz", "rt", encoding="utf-8") as file:
            sentences = [line for line in file if line.strip()]
        Random(0).shuffle(sentences)
        write_text_atomically(text, "".join(sentences))


def command(*arguments: object) -> None:
    """Print and run a command of minibert. Raises CalledProcessError if it fails."""
    words = ["minibert", *map(str, arguments)]
    print(f"$ {shlex.join(words)}", flush=True)
    subprocess.run([sys.executable, "-m", *words], check=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train; exit status 2 if the text is missing."""
    parser = argparse.ArgumentParser(description="Learn a vocabulary and a masked language model from novels.")
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path("build/novels"),
        help="of the text and the checkpoints (%(default)s)",
    )
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help="training steps (%(default)s)")
    parser.add_argument("--family", choices=CONFIGS, default="bert", help="of the model (%(default)s)")
    args = parser.parse_args(arguments)
    data = user_path(os.environ.get("MINIBERT_DATA") or ".") / "novels"
    if not (data / "train.txt.gz").exists():
        parser.error("$MINIBERT_DATA names no folder with novels/train.txt.gz; the docstring of this module says more")
    pretrain_novels(data, args.folder, args.steps, args.family)
    return 0


if __name__ == "__main__":
    sys.exit(main())
