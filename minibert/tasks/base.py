"""What a fine-tuning task defines: reading data, encoding it for the model, decoding logits, measuring predictions.

    file -> read -> data -> encode -> examples -> (model with a task head) -> logits -> decode -> predictions -> measure

Training is in train/, which brings the model and the loop.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from minibert.text.tokenizer import Tokenizer, TruncationWarning

# What `minibert.predict` returns for one row: see train.reader.
Prediction = dict[str, Any]
# The logits of one example: (K) for a text, (1) for one choice, (tokens, K) for tags, (2, tokens) for start and end.
Logits = NDArray[np.float32]


@dataclass(frozen=True)
class Example:
    """One row of input for the model: a text, a pair, or a window of one, [CLS] first, without padding."""

    ids: Sequence[int]
    segments: Sequence[int]  # 0 first text, 1 second
    # By the argument name of the task head: a number, a row of floats for several labels of a text, or one integer for
    # each token, -100 where there is nothing to predict.
    labels: Mapping[str, Any] = field(default_factory=dict)


# Changes a training example, given the epoch and the row: masking draws new positions each time.
Augmentation = Callable[[Example, int, int], Example]


@dataclass(frozen=True)
class Encoded:
    """The examples of a data set."""

    examples: list[Example]
    choices: int = 0  # examples per question in multiple choice; 0 in other tasks
    notes: tuple[str, ...] = ()  # for the user: words without tokens, windows
    cut: TruncationWarning | None = None  # how many texts lost tokens, if any did; the caller of `encode` warns
    back: Any = None  # what `decode` needs to map logits back to the data

    @cached_property
    def sha256(self) -> str:
        """The identity of the examples."""
        digest = hashlib.sha256()
        for one in self.examples:
            digest.update(json.dumps([list(one.ids), list(one.segments), dict(one.labels)], default=list).encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class Measure:
    """The quality of predictions."""

    figures: dict[str, Any]  # for --json and training.json
    main: str  # the figure by which epochs and seeds are compared; higher is better
    text: str  # for people, several lines

    @property
    def score(self) -> float:
        """The main figure."""
        return float(self.figures[self.main])


class Task(ABC):
    """A fine-tuning task; an instance holds its settings. Each task has its own type of data, which has a length."""

    name: ClassVar[str]  # in `minibert finetune NAME`
    head: ClassVar[str]  # in minibert.load(..., head=HEAD)
    main: str  # the figure of Measure by which epochs are compared
    problem_type: str | None = None  # of config.json, which selects the loss; None: by the labels
    row_length: ClassVar[int] = 128  # default max_length, in tokens
    fresh_head: ClassVar[str] = ""  # a note for checkpoints without this task head
    pairs: bool | None = False  # whether a row is two texts; None: it may be either
    # (texts, pairs=None) -> unlabelled data for prediction, one text a row
    from_texts: Callable[..., Any]
    # (predictions, data) -> the output of `minibert predict`: a line for each row, tab-separated, the text last
    format_predictions: Callable[..., list[str]]

    @abstractmethod
    def read(self, path: str | Path) -> Any:
        """Data from a file. Raises FileNotFoundError, and ValueError with file and line for invalid content."""

    @abstractmethod
    def labels_of(self, data: Any) -> list[str]:
        """The label names, sorted, for config.json; [] for a task without names. ValueError where nothing can be
        learned: no rows, a single class, missing labels."""

    @abstractmethod
    def encode(self, data: Any, tokenizer: Tokenizer, labels: Sequence[str], max_length: int) -> Encoded:
        """Examples for the model, with labels where the data has them. ValueError, with the row, for a label that is
        not among `labels`."""

    def augment(self, tokenizer: Tokenizer, seed: int) -> Augmentation | None:
        """A function that changes each training example each time it is used; None: examples stay as they are."""
        return None

    def reduce(self, logits: Tensor, example: Example) -> Tensor:
        """The part of an example's logits that `decode` needs: all of them, unless they would not fit in memory."""
        return logits

    @abstractmethod
    def decode(self, logits: Sequence[Logits], encoded: Encoded, data: Any, labels: Sequence[str]) -> list[Any]:
        """One prediction for each row of the data, from the logits of all examples in order."""

    def as_dicts(self, answers: Sequence[Any], data: Any) -> list[Prediction]:
        """The predictions as `minibert.predict` returns them."""
        return list(answers)

    @abstractmethod
    def measure(self, answers: Sequence[Any], data: Any, labels: Sequence[str]) -> Measure:
        """The predictions compared with the true labels."""

    def resolve(self, data: Any) -> Self:
        """The task with the settings filled in that depend on the training data."""
        return self
