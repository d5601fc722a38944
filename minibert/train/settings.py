"""The settings of every training. Each is written once; the flags of `minibert finetune`, `pretrain`, `distill` follow.

Nothing here imports torch, so that `--help` is fast. All numbers are checked when a settings object is made, which is
before anything is read or written.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from minibert.tables.formats import FileSettings
from minibert.utils.settings import Settings, check, integers, setting

ROWS = ("full", "sentence")  # how rows are made of a corpus
OBJECTIVES = ("mlm", "mlm+nsp", "mlm+sop", "electra")  # the keys of train.objectives.OBJECTIVES
MILLION = 1_000_000  # more epochs, rows or weight of a loss must be a mistake


def floats(text: str) -> tuple[float, ...]:
    """Parse "5,2.5" as (5.0, 2.5)."""
    return tuple(float(number) for number in text.split(","))


def redefault(settings: Any, name: str, default: Any) -> Any:
    """Return a setting of a base class with another default."""
    return field(default=default, metadata=settings.__dataclass_fields__[name].metadata)


@dataclass(frozen=True)
class TrainSettings(Settings):
    """Settings of the training loop; the defaults are those of BERT's paper. Raises ValueError or TypeError."""

    epochs: int = setting(3, "passes over the training data", minimum=1, maximum=MILLION)
    batch_size: int = setting(32, "rows in a batch, over all processes", minimum=1, maximum=MILLION)
    learning_rate: float = setting(5e-5, "peak learning rate", above=0, maximum=1)
    warmup: float = setting(0.1, "warmup ratio: fraction of the steps in which the rate rises", minimum=0, below=1)
    weight_decay: float = setting(0.01, "weight decay of matrices, not of biases and LayerNorm", minimum=0, maximum=1)
    clip: float = setting(1.0, "maximum gradient norm", above=0)
    beta2: float = setting(0.999, "Adam's second-moment decay", minimum=0, below=1)
    accumulate: int = setting(1, "batches whose gradients are accumulated in one step", minimum=1, maximum=MILLION)
    seed: int = setting(0, "random seed of fresh weights, row order and dropout", minimum=0, maximum=2**32 - 1)
    precision: str = setting(
        "auto",
        "{choices}: of matrix products; auto is bfloat16 if the hardware has it, which halves the time of a step, and "
        "in Python the default is float32",
        choices=("float32", "bfloat16", "auto"),
    )
    step: str = setting(
        "packed", "{choices}: without padding, or operation by operation as upstream", choices=("packed", "readable")
    )
    device: str = setting("auto", "auto, cpu, cuda or mps")
    save_every: int | None = setting(
        None, "steps between two checkpoints of the run (default: every 5 minutes)", minimum=1
    )
    epsilon: float = 1e-8  # Adam's, added to the root of the second moment
    fused: bool = True  # torch's fused AdamW, which differs from the plain one in rounding
    exact: bool = True  # False: some operations run in a faster way that differs in rounding (quick.py)

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class FinetuneSettings(TrainSettings):
    """Settings of fine-tuning."""

    model: str = setting("distilbert-base-uncased", "checkpoint: a Hub name or a folder")
    max_length: int | None = setting(None, "tokens of a row (default: 128; question answering: 384)", minimum=1)
    freeze: str = setting("none", "none, embeddings, encoder, or a number of layers from the bottom", metavar="PART")
    class_weight: str | Mapping[str, float] | None = setting(None, "balanced: rare labels get a larger weight")


@dataclass(frozen=True)
class PretrainSettings(TrainSettings):
    """Settings of pretraining; the defaults are BERT's, at a size for one core."""

    learning_rate: float = redefault(TrainSettings, "learning_rate", 1e-4)
    warmup: float = redefault(TrainSettings, "warmup", 0.01)
    save_every: int = setting(500, "steps between two evaluations, each with a checkpoint of the run", minimum=1)
    tokenizer: str | None = setting(None, "a folder written by `minibert vocab`, or a checkpoint (default: of --init)")
    config: str | None = setting(None, "a config.json with the sizes of a new model", metavar="FILE")
    init: str | None = setting(None, "a checkpoint to continue from, instead of a new model")
    objective: str = setting("mlm+nsp", "{choices}", choices=OBJECTIVES)
    dev: str | None = setting(None, "held-out text for evaluation (default: the end of the corpus)", metavar="FILE")
    steps: int = setting(1000, "training steps", minimum=1, maximum=1000 * MILLION)
    max_length: int = setting(128, "tokens of a row", minimum=8)  # a pair of texts with a token to predict in each
    mask_rate: float = setting(0.15, "fraction of the tokens to predict", above=0, below=1)
    whole_words: bool = setting(False, "mask all tokens of a word together")
    always_mask: bool = setting(False, "each chosen token becomes [MASK]; none is replaced or left as it is")
    rows: str = setting("full", "{choices}: rows of as many sentences as fit, or of one each", choices=ROWS)
    phrases: str | None = setting(None, "file of phrases, one per line, each masked as a whole (ERNIE)", metavar="FILE")
    paragraphs: bool = setting(False, "each line is a paragraph, which is split into sentences")


@dataclass(frozen=True)
class StudentSettings:
    """Settings of a student, beside those of its training."""

    layers: int | None = setting(
        None, "layers of the student (default: half of the teacher's)", minimum=1, maximum=2**12
    )
    take: tuple[int, ...] | None = setting(
        None, "teacher layers that initialise the student (default: evenly spaced)", metavar="N,N", parse=integers
    )
    temperature: float = setting(2.0, "softens the teacher's predictions", minimum=0.01, maximum=1000)
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check(self)
        default = type(self).weights
        if len(self.weights) != len(default) or min(self.weights) < 0 or not 0 < sum(self.weights) <= MILLION:
            given = ",".join(map(str, self.weights))
            raise ValueError(
                f"weights are {given}; give {len(default)} of at least 0, whose sum is above 0 and at most {MILLION}"
            )


@dataclass(frozen=True)
class DistillSettings(StudentSettings, PretrainSettings):
    """Settings of distilling a masked language model, `init`; the defaults are DistilBERT's."""

    objective: str = setting("mlm", "{choices}: a DistilBERT has no pooler", choices=("mlm",))
    learning_rate: float = redefault(TrainSettings, "learning_rate", 5e-4)
    warmup: float = redefault(TrainSettings, "warmup", 0.05)
    weight_decay: float = redefault(TrainSettings, "weight_decay", 0.0)
    clip: float = redefault(TrainSettings, "clip", 5.0)
    beta2: float = redefault(TrainSettings, "beta2", 0.98)
    epsilon: float = 1e-6
    weights: tuple[float, ...] = setting(
        (5.0, 2.0, 1.0), "weights of the losses: distillation, masked LM, cosine", metavar="X,X", parse=floats
    )
    places: str = setting(
        "all", "{choices} tokens: where the teacher's predictions are learned", choices=("all", "masked")
    )


@dataclass(frozen=True)
class DistillClassifierSettings(StudentSettings, FinetuneSettings):
    """Settings of distilling a classifier, `model`; the defaults are those of fine-tuning."""

    weights: tuple[float, ...] = setting(
        (5.0, 2.0), "weights of the losses: soft labels, labels", metavar="X,X", parse=floats
    )


@dataclass(frozen=True)
class VocabularySettings(FileSettings):
    """Settings of learning a vocabulary."""

    size: int = setting(8000, "tokens, special tokens included", minimum=6, maximum=2**24)
    strip_accents: bool | None = setting(
        None,
        "remove accents and vowel signs, or keep them, as Hindi, Thai, Vietnamese and Japanese need (default: remove "
        "them unless --cased)",
    )
    min_frequency: int = setting(2, "count that a pair of pieces needs to be joined", minimum=1, maximum=1000 * MILLION)
