"""The settings of `minibert bench`: what is measured, how much of it, and where."""

import os
from dataclasses import dataclass

from minibert.utils.settings import check, setting

MINILM, DISTILBERT = "all-MiniLM-L6-v2", "distilbert-shape"  # the latter gets random weights
# Sentences and rounds of each benchmark, by size.
AMOUNTS = {
    "embedding": {"quick": (256, 3), "default": (2000, 3), "full": (2000, 7)},
    "training": {"quick": (192, 3), "default": (512, 3), "full": (1024, 7)},
    "serving": {"quick": (2000, 1), "default": (2000, 3)},
}
TURNS = {"quick": (6, 1), "default": (20, 3), "full": (50, 5)}  # turns with one sentence, cold starts
# Options that need another one (True) or exclude it (False).
RULES = (
    *(("objective", "train", True), ("infinity", "serve", True), ("soak", "serve", True)),
    *(("quick", "full", False), ("serve", "train", False), ("serve", "full", False), ("serve", "job", False)),
)


def cores() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Settings:
    """What to measure. A setting that is None gets the default of the size (quick, default or full).

    Raises ValueError for a value out of range and for options that contradict each other.
    """

    models: tuple[str, ...] = ()
    quick: bool = setting(False, "minibert and transformers only: less than a minute (--train: two)")
    full: bool = setting(False, "more rounds, and up to 100,000 sentences: hours")
    job: bool = setting(False, "skip single sentences, cold starts and the growth of the cost")
    train: bool = setting(False, "measure training against transformers' Trainer instead of embedding")
    objective: str = setting(None, "training objective: {choices} (classify)", choices=("classify", "mlm"))
    serve: bool = setting(False, "measure `minibert serve` against infinity-emb instead of embedding")
    infinity: str = setting("", "with --serve: infinity_emb in its own environment", metavar="PROGRAM")
    soak: float = setting(
        0.0, "with --serve: seconds of full load in which memory must stay flat", minimum=0, maximum=10**6
    )
    device: str = setting("cpu", "{choices}", choices=("cpu", "cuda"))
    sentences: int = setting(
        None, "number of texts (2000; quick: 256; --train: 512, quick: 192)", minimum=1, maximum=10**6
    )
    rounds: int = setting(None, "rounds in which every contestant takes a turn (3; full: 7)", minimum=1, maximum=1000)
    threads: int = setting(None, "threads of each contestant (all cores)", minimum=1)
    plot: str = setting("", "draw the figures", metavar="FILE.png")
    overwrite: bool = setting(False, "replace the file of --plot")

    def __post_init__(self) -> None:
        for option, other, needed in RULES:
            if getattr(self, option) and bool(getattr(self, other)) != needed:
                raise ValueError(f"--{option} {'needs' if needed else 'excludes'} --{other}")
        sentences, rounds = AMOUNTS[self.kind][self.size]
        models = (MINILM,) if self.quick or self.serve else (DISTILBERT, MINILM)
        defaults = {"models": models, "sentences": sentences, "rounds": rounds, "objective": "classify"}
        for name, value in (defaults | {"threads": cores()}).items():
            if getattr(self, name) in (None, ()):
                object.__setattr__(self, name, value)
        check(self)
        object.__setattr__(self, "threads", min(self.threads, cores()))

    @property
    def kind(self) -> str:
        """The module of the benchmark."""
        return "training" if self.train else "serving" if self.serve else "embedding"

    @property
    def size(self) -> str:
        """How much is measured."""
        return "quick" if self.quick else "full" if self.full else "default"
