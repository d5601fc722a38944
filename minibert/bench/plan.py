"""The settings of `minibert bench`: what is measured, how much of it, and where."""

import os
from dataclasses import dataclass

from minibert.utils.settings import check, setting

MINILM = "all-MiniLM-L6-v2"
DISTILBERT = "distilbert-shape"  # its weights are random
# (sentences, rounds) of each benchmark, by default and in a quick run.
AMOUNTS = {
    "embedding": ((2000, 3), (256, 3)),
    "training": ((512, 3), (192, 3)),
    "serving": ((2000, 3), (2000, 1)),
}


def cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class BenchSettings:
    """What to measure. A setting that is None gets the default of the benchmark.

    Raises ValueError for a value out of range and for options that contradict each other.
    """

    models: tuple[str, ...] = ()
    quick: bool = setting(False, "only minibert and transformers: less than a minute (two with --train)")
    train: bool = setting(False, "measure training against transformers' Trainer instead of embedding")
    objective: str = setting(None, "training objective: {choices} (classify)", choices=("classify", "mlm"))
    serve: bool = setting(False, "measure `minibert serve` against infinity-emb instead of embedding")
    infinity: str = setting(
        "", "with --serve: the program infinity_emb, installed in its own environment", metavar="PROGRAM"
    )
    device: str = setting("cpu", "{choices}", choices=("cpu", "cuda"))
    sentences: int = setting(
        None, "number of texts (2000, quick 256; with --train 512, quick 192)", minimum=1, maximum=10**6
    )
    tokens: int | None = setting(
        None,
        "tokens of each text, random words; as many texts as make 48,000 tokens, quick 6,000",
        minimum=3,
        maximum=10**6,
    )
    rounds: int = setting(None, "rounds in which each contestant takes one turn (3)", minimum=1, maximum=1000)
    threads: int = setting(None, "threads per contestant (all cores)", minimum=1)
    plot: str = setting("", "draw the speeds", metavar="FILE.png")
    overwrite: bool = setting(False, "replace the file of --plot")

    def __post_init__(self) -> None:
        if self.objective and not self.train:
            raise ValueError("--objective needs --train")
        if self.infinity and not self.serve:
            raise ValueError("--infinity needs --serve")
        if self.serve and self.train:
            raise ValueError("--serve excludes --train")
        if self.tokens and (self.train or self.serve):
            raise ValueError("--tokens excludes --train and --serve")
        sentences, rounds = AMOUNTS[self.kind][self.quick]
        if self.tokens:
            sentences = max(1, (6_000 if self.quick else 48_000) // self.tokens)
        models = (MINILM,) if self.quick or self.serve else (DISTILBERT, MINILM)
        defaults = {"models": models, "objective": "classify", "sentences": sentences, "rounds": rounds}
        for name, value in (defaults | {"threads": cores()}).items():
            if getattr(self, name) in (None, ()):
                object.__setattr__(self, name, value)
        check(self)
        object.__setattr__(self, "threads", min(self.threads, cores()))

    @property
    def kind(self) -> str:
        """The main job, as reports name it."""
        return "training" if self.train else "serving" if self.serve else "embedding"
