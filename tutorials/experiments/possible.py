"""Pretraining and distillation, measured against what is possible: `make pretrain`.

    python tutorials/experiments/possible.py [--out build/possible] [--steps 3000]

A corpus is drawn from a small artificial language (toy_language.py), for which it is known exactly how well masked
tokens and next sentences can be predicted. A vocabulary is learned from it, a BERT is pretrained with both objectives,
and a student of half its depth is distilled. On a real corpus, the loss of a nearly correct training falls as that of a
correct one does; here a mistake in masks, labels, positions or attention leaves a gap that never closes. The same
command resumes an interrupted run.
"""

import argparse
import json
import statistics
import sys
import time
import timeit
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # toy_language.py is beside the notebooks
from toy_language import BestPredictions, Language, Procedure, bounds

from minibert.checkpoints.load import load
from minibert.heads import Head
from minibert.prediction.collate import collate
from minibert.prediction.packed import packed_states
from minibert.tasks.base import Example
from minibert.train.distillation import DistillRun
from minibert.train.pretraining import PretrainRun
from minibert.train.settings import DistillSettings, PretrainSettings
from minibert.train.vocabulary import learn_vocabulary
from minibert.utils.inference import inference
from minibert.utils.outputs import atomic_folder, check_folder
from minibert.utils.printing import block, table

DOCUMENTS = 20_000
HELD_OUT = 800  # more documents
LENGTH = 64  # tokens of a row
CONFIG = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "max_position_embeddings": LENGTH,
    "hidden_dropout_prob": 0.0,  # the corpus has more text than training reads, so there is nothing to overfit
    "attention_probs_dropout_prob": 0.0,
}
# Warmup: BERT's 1 % would be 30 steps. At this rate the model may then learn only the frequencies of single tokens;
# whether it does depends on the processor's rounding.
RECIPE: dict[str, Any] = {
    "batch_size": 64,
    "max_length": LENGTH,
    "precision": "float32",
    "learning_rate": 2e-3,
    "warmup": 0.1,
}
FILES: dict[str, Any] = {"dev": "dev.txt", "config": "config.json", "tokenizer": "vocabulary"}  # setting -> its file


def write_language(folder: Path) -> Language:
    """Write corpus, held-out text, vocabulary and config to a folder, unless an earlier run did."""
    language = Language(0)
    config = folder / "config.json"
    if not config.exists():
        with atomic_folder(folder) as temporary:
            language.write(temporary / "train.txt", DOCUMENTS, seed=0)
            language.write(temporary / "dev.txt", HELD_OUT, seed=1)
            learn_vocabulary(temporary / "train.txt", 600).save(temporary / "vocabulary")
            (temporary / config.name).write_text(json.dumps(CONFIG))
    return language


def best_possible(language: Language, run: PretrainRun) -> BestPredictions:
    """Return the predictions of the best possible model for the held-out rows."""
    ids, labels = zip(*((row.ids, row.labels["labels"]) for row in run.held_out), strict=True)
    next_labels = [row.labels["next_sentence_label"] for row in run.held_out]
    procedure = Procedure(is_next=1 - statistics.mean(next_labels), full=LENGTH)
    return bounds(language, ids, labels, next_labels, vocab=run.tokenizer.vocab, procedure=procedure)


def speed_ratio(teacher: Head, student: Head, rows: Sequence[Example], rounds: int = 5) -> float:
    """Return the student's speed-up over the teacher in reading the rows, each at its best of several rounds."""

    def read(model: Head) -> None:
        with inference(model):
            for start in range(0, len(rows), 64):
                part = rows[start : start + 64]
                packed_states(model, collate(part, range(len(part)), model.config.pad_token_id))

    slow, fast = (min(timeit.repeat(partial(read, model), number=1, repeat=rounds)) for model in (teacher, student))
    return slow / fast


def pretrain(out: Path, steps: int, overwrite: bool) -> tuple[PretrainRun, dict[str, Any]]:
    """Train the teacher, in out/bert. Returns its run and its figures."""
    files: dict[str, Any] = {name: str(out / file) for name, file in FILES.items()}
    teaching = PretrainSettings(**files, **RECIPE, steps=steps, save_every=max(1, steps // 10), objective="mlm+nsp")
    run = PretrainRun.of(out / "train.txt", teaching)
    return run, run.finish(out / "bert", verbose=True, overwrite=overwrite).figures


def distill(out: Path, steps: int, overwrite: bool) -> tuple[DistillRun, dict[str, Any]]:
    """Train the student, in out/distilbert. Returns its run and its figures."""
    files: dict[str, Any] = {"init": str(out / "bert"), "dev": str(out / "dev.txt")}
    learning = DistillSettings(**files, **RECIPE, steps=steps, save_every=max(1, steps // 5))
    run = DistillRun.of(out / "train.txt", learning)
    return run, run.finish(out / "distilbert", verbose=True, overwrite=overwrite).figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Pretrain, distill, and print the results beside the best possible ones; exit status 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description="Pretrain and distill on a language whose entropy is known.")
    add = parser.add_argument
    add("--out", default="build/possible", metavar="FOLDER", help="of the corpus and the checkpoints (%(default)s)")
    add("--steps", type=int, default=3000, metavar="N", help="training steps of pretraining (%(default)s)")
    add("--student-steps", type=int, default=300, metavar="N", help="training steps of distillation (%(default)s)")
    add("--overwrite", action="store_true", help="replace what an earlier run wrote")
    settings = parser.parse_args(arguments)
    began = time.perf_counter()
    out = Path(settings.out)
    for name in ("bert", "distilbert"):
        check_folder(out / name, settings.overwrite)
    language = write_language(out)
    pretraining, figures = pretrain(out, settings.steps, settings.overwrite)
    best = best_possible(language, pretraining)
    accuracy = f"masked-token accuracy {best.accuracy:.1%}, next-sentence accuracy {best.next_accuracy:.1%}"
    print(block("best possible", f"loss {best.loss:.3f}, {accuracy}"))
    distillation, learned = distill(out, settings.student_steps, settings.overwrite)
    teacher, student = (load(out / name, head="masked-lm") for name in ("bert", "distilbert"))
    values = {  # goal: its value and the lower bound
        "the best possible masked-LM loss, share of ours": (best.loss / figures["dev"]["masked_lm_loss"], 1 / 1.05),
        "next sentence, share of the best": (figures["dev"]["next_sentence_accuracy"] / best.next_accuracy, 0.95),
        "the student's masked accuracy, share of the teacher's": (learned["dev"]["kept"], 0.97),
        "the student's speed, times the teacher's": (speed_ratio(teacher, student, distillation.held_out), 1.6),
    }
    rows = [["goal", "value", "bound", ""]]
    for goal, (value, bound) in values.items():
        rows.append([goal, f"{value:.3f}", f"{bound:.2f}", "reached" if value >= bound else "missed"])
    print(table(rows))
    print(block("seconds", f"{time.perf_counter() - began:.0f}"))
    return int(any(row[-1] == "missed" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
