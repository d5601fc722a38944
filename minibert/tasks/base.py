"""What a task is: its data, how that becomes rows for the model, how logits become answers, how answers are measured.

    file -> read -> Data -> encode -> examples -> (a model with a task head) -> logits -> decode -> answers -> measure

A task knows nothing of training: train/ brings the model and the loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from minibert.text.tokenizer import Tokenizer

# The logits of one example: (K) of a text, (1) of one choice, (tokens, K) of its tokens, (2, tokens) start and end.
Logits = NDArray[np.float32]


@dataclass(frozen=True)
class Example:
    """One row for the model: a text, a pair, or a window of one, [CLS] first, without padding."""

    ids: Sequence[int]
    segments: Sequence[int]  # 0 first text, 1 second
    # By the name that the task head gives them: a number, a row of floats for several labels of a text, or a list of
    # whole numbers as long as ids for labels of tokens, -100 where there is nothing to predict.
    labels: Mapping[str, Any] = field(default_factory=dict)


# Changes a training example, given the epoch and the row: masking draws new positions each time.
Augmentation = Callable[[Example, int, int], Example]


@dataclass(frozen=True)
class Encoded:
    """The examples of some data."""

    examples: list[Example]
    choices: int = 0  # examples that make one question; 0: each stands for itself
    notes: tuple[str, ...] = ()  # what a user should know: texts cut, words that vanished, windows made
    back: Any = None  # whatever `decode` needs to find its way back


@dataclass(frozen=True)
class Measure:
    """How good answers are."""

    figures: dict[str, Any]  # for --json and training.json
    main: str  # the figure by which epochs and seeds are compared; more is better
    text: str  # for people, in several lines

    @property
    def score(self) -> float:
        """The main figure."""
        return float(self.figures[self.main])


class Task(ABC):
    """One task; an instance holds its settings. Data is a type of its own for each task and has a length."""

    name: ClassVar[str]  # in `minibert finetune NAME`
    head: ClassVar[str]  # in minibert.load(..., head=HEAD)
    data_help: ClassVar[str]  # the help of DATA in `minibert finetune NAME`
    row_length: ClassVar[int] = 128  # tokens of a row where nobody says how many
    fresh_head: ClassVar[str] = ""  # what a user should know where the checkpoint has no such task head

    @property
    @abstractmethod
    def main(self) -> str:
        """The figure of Measure by which epochs are compared."""

    @abstractmethod
    def read(self, path: str | Path) -> Any:
        """Data from a file. Raises FileNotFoundError, and ValueError naming file and line for what is no data."""

    @abstractmethod
    def labels_of(self, data: Any) -> list[str]:
        """The names of the labels in sorted order, which config.json keeps; [] for a task without. ValueError where
        nothing can be learned: none, all of one class, missing or NaN."""

    @abstractmethod
    def encode(self, data: Any, tokenizer: Tokenizer, labels: Sequence[str], max_length: int) -> Encoded:
        """Rows for the model, with their labels where the data has them. ValueError, naming the row, for a label that
        is not among `labels`."""

    def augment(self, tokenizer: Tokenizer, seed: int) -> Augmentation | None:
        """A function that changes each training example each time it is used; None: examples stay as they are."""
        return None

    def reduce(self, logits: Tensor, example: Example) -> Tensor:
        """The part of an example's logits that `decode` needs: all of them, unless they would not fit in memory."""
        return logits

    @abstractmethod
    def decode(self, logits: Sequence[Logits], encoded: Encoded, data: Any, labels: Sequence[str]) -> list[Any]:
        """One answer for each row of the data, from the logits of each example in their order."""

    @abstractmethod
    def measure(self, answers: Sequence[Any], data: Any, labels: Sequence[str]) -> Measure:
        """The answers against the truth."""

    def resolve(self, data: Any) -> Task:
        """The task with the settings filled in that depend on the training data."""
        return self

    def problem_type(self) -> str | None:
        """What config.json says of the loss; None: by the labels."""
        return None

    @abstractmethod
    def from_texts(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Any:
        """Data without labels, to be answered: a text a row."""

    @abstractmethod
    def format_predictions(self, answers: Sequence[Any], data: Any) -> list[str]:
        """The output of `minibert predict`: one line for each row of the data, tab-separated, the text last."""
