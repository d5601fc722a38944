"""What is kept of a training: what was asked for, how it went, and the checkpoint that came of it."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from minibert import __version__
from minibert.checkpoints.load import save
from minibert.checkpoints.tensor_files import WEIGHTS_FILE
from minibert.files import atomic_folder, check_output, write_text_atomically
from minibert.heads import Head
from minibert.tasks.base import Encoded, Measure, Task
from minibert.text.tokenizer import Tokenizer
from minibert.train import distributed
from minibert.train.loop import Progress

REPORT = "training.json"
FILES = (WEIGHTS_FILE, "config.json", "tokenizer.json", "tokenizer_config.json", REPORT)  # of the folder


@dataclass
class Trained:
    """A model that was trained, and how that went."""

    model: Head
    tokenizer: Tokenizer
    task: Task
    labels: list[str]
    progress: Progress
    measure: Measure | None  # of the best epoch, on dev
    figures: dict[str, Any] = field(default_factory=dict)  # what training.json has


def sha256_of(encoded: Encoded | None) -> str | None:
    """The identity of examples; None of none."""
    if encoded is None:
        return None
    digest = hashlib.sha256()
    for one in encoded.examples:
        digest.update(json.dumps([list(one.ids), list(one.segments), dict(one.labels)], default=list).encode())
    return digest.hexdigest()


def figures(
    asked: Mapping[str, Any], progress: Progress, sizes: Mapping[str, int], measure: Measure | None, **more: Any
) -> dict[str, Any]:
    """What training.json holds."""
    return {
        "minibert": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "asked": dict(asked),
        "parameters": dict(sizes),
        "steps": progress.step,
        "tokens": progress.tokens,
        **more,
        "dev": None if measure is None else measure.figures,
        "best_epoch": progress.best + 1,
        "epochs": progress.scores,
        "curve": progress.curve,
        **({"curves": progress.parts} if progress.parts else {}),
    }


def write_folder(trained: Trained, out: Path, overwrite: bool = False) -> None:
    """The folder of a task: checkpoint, tokenizer, and training.json with what it takes to answer."""
    settings = {name: value for name, value in vars(trained.task).items() if not name.startswith("_")}
    report = {"task": trained.task.name, "settings": settings, "labels": trained.labels} | trained.figures
    write_checkpoint({"": trained.model}, trained.tokenizer, report, out, overwrite)


def check_out(out: Path, overwrite: bool, *apart: str | os.PathLike[str] | None) -> None:
    """Raise ValueError, before any work, for a folder that holds something, or meets one of those that are read."""
    check_output(out, overwrite, files=FILES, apart=apart)


def write_checkpoint(
    models: Mapping[str, Head], tokenizer: Tokenizer, report: Mapping[str, Any], out: Path, overwrite: bool = False
) -> None:
    """Each model in its folder of `out`, "" for `out` itself, with its tokenizer and training.json: all at once.

    Of several ranks (distributed.py) the first writes, and the others wait for it.
    """
    distributed.here().same(lambda: write_models(models, tokenizer, report, out, overwrite))


def write_models(
    models: Mapping[str, Head], tokenizer: Tokenizer, report: Mapping[str, Any], out: Path, overwrite: bool
) -> None:
    """Write beside `out`, then move there. Raises what check_output raises."""
    with atomic_folder(out, overwrite) as new:
        for name, model in models.items():
            save(model, new / name)
            tokenizer.save(new / name)
            write_text_atomically(new / name / REPORT, json.dumps(report, indent=1) + "\n")
