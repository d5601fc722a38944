"""Pretraining and distillation, measured against what is possible: `make pretrain`.

    python -m minibert.experiments.possible [--out build/possible] [--steps 3000] [--plot possible.png] [--json]

A corpus is drawn from a small artificial language (toy_language.py), of which it is known exactly how well its
hidden words and next sentences can be guessed. A vocabulary is learned from it, a BERT is pretrained with both
objectives, and a student of half its depth is distilled. No real corpus can tell a training that is right from one that
is nearly right: the loss just falls. Here a mistake in masks, labels, positions or attention is a gap that never
closes. It begins where an interrupted run has stopped.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from minibert.checkpoints.load import load
from minibert.experiments.toy_language import Bounds, Language, Procedure, bounds
from minibert.files import atomic_write, check_output, write_text_atomically
from minibert.heads import Head
from minibert.losses import IGNORED
from minibert.plotting import pyplot
from minibert.printing import block, table
from minibert.tasks.base import Example
from minibert.train import distillation, pretraining
from minibert.train.batches import collate
from minibert.train.folder import check_out
from minibert.train.loop import Progress
from minibert.train.packed import packed_states
from minibert.train.vocabulary import learn_vocabulary
from minibert.vectors.pooling import inference

DOCUMENTS, HELD_OUT = 20_000, 800
LENGTH = 64  # tokens of a row
CONFIG = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "max_position_embeddings": LENGTH,
    "hidden_dropout_prob": 0.0,  # the corpus has more text than is read: there is nothing to overfit
    "attention_probs_dropout_prob": 0.0,
}
HOW: dict[str, Any] = {"batch_size": 64, "max_length": LENGTH, "warmup": 0.1, "precision": "float32"}
TEACHER = HOW | {"learning_rate": 2e-3, "objective": "mlm+nsp"}
STUDENT = HOW | {"learning_rate": 2e-3}
SHOWN = 10  # masks that are filled in before the reader's eyes
WITHIN, OF_NEXT, KEPT, FASTER = 1.05, 0.95, 0.97, 1.6  # goals


@dataclass(frozen=True)
class Goal:
    """Something that should come out."""

    what: str
    found: float
    wanted: float
    at_most: bool = False

    @property
    def reached(self) -> bool:
        """Whether it did."""
        return self.found <= self.wanted if self.at_most else self.found >= self.wanted


def prepare(folder: Path) -> Language:
    """Corpus, held-out text, vocabulary and config in a folder; what is there stays."""
    language = Language(0)
    folder.mkdir(parents=True, exist_ok=True)
    for name, count, seed in (("train.txt", DOCUMENTS, 0), ("dev.txt", HELD_OUT, 1)):
        if not (folder / name).exists():
            language.write(folder / name, count, seed)
    if not (folder / "vocabulary").exists():
        learn_vocabulary(folder / "train.txt", 600).save(folder / "vocabulary")
    if not (folder / "config.json").exists():
        write_text_atomically(folder / "config.json", json.dumps(CONFIG))
    return language


def best_possible(language: Language, job: pretraining.Job) -> Bounds:
    """What the best of all models would say of the held-out rows."""
    rows = job.held_out
    random = statistics.mean(row.labels["next_sentence_label"] for row in rows)
    return bounds(
        language,
        [row.ids for row in rows],
        [row.labels["labels"] for row in rows],
        [row.labels["next_sentence_label"] for row in rows],
        vocab=job.tokenizer.vocab,
        procedure=Procedure(is_next=1 - random, full=LENGTH),
    )


def pretrained(
    folder: Path, steps: int, say: Callable[[Progress], None], overwrite: bool = False
) -> tuple[pretraining.Job, dict[str, Any]]:
    """The teacher, in folder/bert."""
    given = {name: str(folder / file) for name, file in (("dev", "dev.txt"), ("config", "config.json"))}
    given |= {"tokenizer": str(folder / "vocabulary")}
    how = TEACHER | {"steps": steps, "save_every": max(1, steps // 10)}
    job = pretraining.Job.of(pretraining.request_of(str(folder / "train.txt"), given | how))
    return job, pretraining.finish(job, folder / "bert", say=say, overwrite=overwrite).figures


def distilled(
    folder: Path, steps: int, say: Callable[[Progress], None], overwrite: bool = False
) -> tuple[distillation.Job, dict[str, Any]]:
    """The student, in folder/distilbert."""
    how = STUDENT | {"steps": steps, "save_every": max(1, steps // 5), "dev": str(folder / "dev.txt")}
    request = distillation.request_of(
        distillation.Request, corpus=str(folder / "train.txt"), init=str(folder / "bert"), **how
    )
    job = distillation.new_job(request)
    return job, pretraining.finish(job, folder / "distilbert", say=say, overwrite=overwrite).figures


def speed_ratio(teacher: Head, student: Head, rows: Sequence[Example], rounds: int = 5) -> float:
    """How much sooner the student has read the rows: the median over rounds in which both take a turn."""

    def seconds(model: Head) -> float:
        begin = time.perf_counter()
        with inference(model):
            for start in range(0, len(rows), 64):
                part = rows[start : start + 64]
                packed_states(model, collate(part, range(len(part)), model.config.pad_token_id))
        return time.perf_counter() - begin

    for model in (teacher, student):
        seconds(model)  # once, to warm up
    return statistics.median(seconds(teacher) / seconds(student) for _ in range(rounds))


def shown(model: Head, job: pretraining.Job, best: Bounds) -> str:
    """Some hidden words: what stood there, what the model guesses, and what the best of all models would."""
    words = {id: word for word, id in job.tokenizer.vocab.items()}
    language = Language(0).words
    rows, place = [["hidden", "guessed", "p", "best possible", "p", "among"]], 0
    for row in job.held_out:
        labels = row.labels["labels"]
        chosen = [at for at, label in enumerate(labels) if label != IGNORED]
        first = next((at for at in chosen if row.ids[at] == job.tokenizer.mask_id), None)
        if first is not None and len(rows) <= SHOWN:
            with inference(model):
                logits = model.read(model.encoder(torch.tensor([row.ids]), token_type_ids=segments(model, row))).logits
            p = logits[0, first].softmax(dim=-1)
            theirs = best.words[place + chosen.index(first)]
            around = " ".join(words[id] for id in row.ids[max(1, first - 4) : first + 4])
            guess = int(p.argmax())
            rows.append(
                [
                    words[labels[first]],
                    words[guess],
                    f"{p[guess]:.2f}",
                    language[int(theirs.argmax())],
                    f"{theirs.max():.2f}",
                    around,
                ]
            )
        place += len(chosen)
    return table(rows, left=1)


def segments(model: Head, row: Example) -> torch.Tensor | None:
    """The segments of a row, for a model that has any."""
    return torch.tensor([row.segments]) if model.config.type_vocab_size else None


def draw(figures: dict[str, Any], best: Bounds, path: Path) -> None:
    """Both losses of pretraining step by step, and what they can reach at best."""
    plt = pyplot()
    with atomic_write(path) as temporary:
        figure, (words, texts) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
        words.plot(figures["curves"]["masked-lm"], color="#0072B2", linewidth=0.5, alpha=0.4, label="each step")
        at = [entry["step"] for entry in figures["epochs"]]
        words.plot(
            at, [entry["masked_lm_loss"] for entry in figures["epochs"]], "o-", color="#0072B2", label="held out"
        )
        words.axhline(best.loss, color="#D55E00", label=f"the best possible, {best.loss:.3f}")
        words.set(title="masked words: loss in nats", xlabel="step", ylim=(0, None))
        texts.plot(at, [entry["next_sentence_accuracy"] for entry in figures["epochs"]], "o-", color="#0072B2")
        texts.axhline(best.next_accuracy, color="#D55E00", label=f"the best possible, {best.next_accuracy:.3f}")
        texts.set(title="next sentence: share that is right, held out", xlabel="step", ylim=(0.4, 1.0))
        for axes in (words, texts):
            axes.legend(frameon=False)
            axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(temporary, dpi=140, format=path.suffix[1:], facecolor="white")
        plt.close(figure)


def goals_of(teacher: dict[str, Any], student: dict[str, Any], best: Bounds, faster: float) -> list[Goal]:
    """What should come out, and what did."""
    return [
        Goal("masked-LM loss, times the best possible", teacher["masked_lm_loss"] / best.loss, WITHIN, at_most=True),
        Goal("next sentence, share of the best", teacher["next_sentence_accuracy"] / best.next_accuracy, OF_NEXT),
        Goal("the student's masked accuracy, share of the teacher's", student["kept"], KEPT),
        Goal("the student's speed, times the teacher's", faster, FASTER),
    ]


def say(progress: Progress) -> None:
    """How far it is, each time that it was scored."""
    scores = progress.scores[-1]
    told = f"held-out loss {scores['masked_lm_loss']:.3f}, {scores['masked_accuracy']:.1%} of the words right"
    if "next_sentence_accuracy" in scores:
        told += f", {scores['next_sentence_accuracy']:.1%} of the next sentences"
    print(block(f"step {progress.step:,}", told), flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw, learn, pretrain, distill, and print what came of it beside what was possible; 1 if a goal was missed."""
    parser = argparse.ArgumentParser(description="Pretrain and distill on a language whose entropy is known.")
    parser.add_argument("--out", type=Path, default=Path("build/possible"), metavar="FOLDER", help="(%(default)s)")
    parser.add_argument("--steps", type=int, default=3000, metavar="N", help="of pretraining (%(default)s)")
    parser.add_argument("--student-steps", type=int, default=300, metavar="N", help="(%(default)s)")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the losses")
    parser.add_argument("--overwrite", action="store_true", help="replace what an earlier run wrote")
    parser.add_argument("--json", action="store_true", help="the figures once more, as JSON")
    args = parser.parse_args(arguments)
    begin = time.perf_counter()
    check_out(args.out / "bert", args.overwrite)
    check_out(args.out / "distilbert", args.overwrite)
    if args.plot:
        check_output(args.plot, args.overwrite)
    language = prepare(args.out)
    job, figures = pretrained(args.out, args.steps, say, args.overwrite)
    best = best_possible(language, job)
    print(
        block(
            "possible", f"loss {best.loss:.3f}, {best.accuracy:.1%} of the words, {best.next_accuracy:.1%} of the pairs"
        )
    )
    learner, told = distilled(args.out, args.student_steps, say, args.overwrite)
    teacher = load(args.out / "bert", head="masked-lm")
    student = load(args.out / "distilbert", head="masked-lm")
    goals = goals_of(figures["dev"], told["dev"], best, speed_ratio(teacher, student, learner.held_out))
    print("\n" + shown(teacher, job, best) + "\n")
    rows = [
        [goal.what, f"{goal.found:.3f}", f"{goal.wanted:.2f}", "reached" if goal.reached else "missed"]
        for goal in goals
    ]
    print(table([["goal", "found", "wanted", ""], *rows]))
    print(block("seconds", f"{time.perf_counter() - begin:.0f}"))
    if args.plot:
        draw(figures, best, args.plot)
    if args.json:
        print(
            json.dumps(
                {
                    "bounds": {"loss": best.loss, "accuracy": best.accuracy, "next": best.next_accuracy},
                    **{goal.what: goal.found for goal in goals},
                }
            )
        )
    return int(not all(goal.reached for goal in goals))


if __name__ == "__main__":
    sys.exit(main())
