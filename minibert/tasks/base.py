"""What a fine-tuning task defines: reading data, encoding it for the model, decoding logits, measuring predictions.

    file -> read -> data -> encode -> examples -> (model with a task head) -> logits -> decode -> predictions -> measure

Training is in train/, which brings the model and the loop.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from minibert.config import Config
from minibert.tasks.settings import ClassificationSettings
from minibert.text.tokenizer import Tokenizer, TruncationWarning
from minibert.utils.wording import named

# What `minibert.predict` returns for one row: see prediction.reader.
Prediction = dict[str, Any]
# The logits of one example: (K) for a text, (1) for one choice, (tokens, K) for tags, (2, tokens) for start and end.
Logits = NDArray[np.float32]
Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Example:
    """One row of input for the model: a text, a pair, or a window of one, [CLS] first, without padding."""

    ids: Sequence[int]
    segments: Sequence[int]  # 0 first text, 1 second
    # By the argument name of the task head: a number, a row of floats for several labels of a text, or one integer for
    # each token, -100 where there is nothing to predict.
    labels: Mapping[str, Any] = field(default_factory=dict)


class Row(NamedTuple):
    """A row of a file for `minibert predict`: a text, perhaps a second one, and all columns of the file."""

    text: str
    pair: str | None
    columns: dict[str, Any]
    words: Sequence[str] | None = None  # of the text, where the file has them


# Changes a training example, given the epoch and the row: masking draws new positions each time.
Augmentation = Callable[[Example, int, int], Example]


@dataclass(frozen=True)
class Encoded:
    """The examples of a data set."""

    examples: list[Example]
    choices: int = 0  # examples per question in multiple choice; 0 in other tasks
    notes: tuple[str, ...] = ()  # for the user: words without tokens, windows
    truncation: TruncationWarning | None = None  # how many texts lost tokens, if any did; the caller of `encode` warns
    back: Any = None  # what `decode` needs to map logits back to the data

    @property
    def rows(self) -> int:
        """The number of rows, each of which may have several texts or choices."""
        return len(self.examples) // (self.choices or 1)

    @cached_property
    def sha256(self) -> str:
        """The identity of the examples."""
        digest = hashlib.sha256()
        for example in self.examples:
            digest.update(
                json.dumps([list(example.ids), list(example.segments), dict(example.labels)], default=list).encode()
            )
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
    served_at: ClassVar[str] = "/classify"  # where `minibert serve` answers; "": nowhere

    # -----------------------------------------------------------------------------------------------------------
    # Data

    @abstractmethod
    def read(self, path: Any) -> Any:
        """Read the labelled data of a file, or of a table or rows in memory (tables.reading).

        Raises FileNotFoundError, and ValueError with file and line for invalid content.
        """

    def from_labels(self, texts: Any, labels: Any, pairs: Any = None) -> Any:
        """Return labelled data. Raises TypeError if a row of this task is not a text and a label."""
        raise TypeError(
            f"the task {self.name!r} reads rows of several fields; pass a file, a data frame or a list of dicts"
        )

    @abstractmethod
    def from_texts(self, texts: Any, pairs: Any = None) -> Any:
        """Return unlabelled data for prediction, one text per row."""

    def rows(self, path: str, how: ClassificationSettings) -> Iterator[Row] | None:
        """Return the rows of a file in the format of the training data, for `minibert predict`.

        None: the file has no format of its own; read it as a table. how: options from the command line.
        """
        return None

    def from_rows(self, rows: Sequence[Row]) -> Any:
        """Return these rows as unlabelled data."""
        texts, pairs, *_ = zip(*rows, strict=True)
        return self.from_texts(texts, None if pairs[0] is None else pairs)

    def labels_of(self, data: Any) -> list[str]:
        """Return the names of the labels in their order, for config.json; [] for a task without names.

        Raises ValueError if nothing can be learned: no rows, a single class, missing labels.
        """
        return []

    def names_in(self, data: Any) -> Collection[str]:
        """Return the names of the labels that occur in the data."""
        return ()

    def class_weights(self, data: Any, labels: Sequence[str], how: str | Mapping[Any, float]) -> list[float]:
        """Return the weight of each label in the loss. Raises ValueError unless each text has one class."""
        raise ValueError(f"class_weight needs a task with one class per text, and this is {self.name!r}")

    # -----------------------------------------------------------------------------------------------------------
    # Settings that depend on something else

    @classmethod
    def of_config(cls, config: Config) -> Self:
        """Return the task with the settings that a checkpoint's config.json implies."""
        return cls()

    def resolve(self, data: Any) -> Self:
        """Return the task with the settings that depend on the training data."""
        return self

    def with_given_words(self) -> Self:
        """Return the task for texts whose words are separated by spaces. Raises ValueError if it has no words."""
        raise ValueError(named("pretokenized") + f" is for taggers, and this model is for the task {self.name!r}")

    # -----------------------------------------------------------------------------------------------------------
    # To the model and back

    @abstractmethod
    def encode(self, data: Any, tokenizer: Tokenizer, labels: Sequence[str], max_length: int) -> Encoded:
        """Return examples for the model, with labels if the data has them.

        Raises ValueError, with the row, for a label that is not among `labels`.
        """

    def augment(self, tokenizer: Tokenizer, seed: int) -> Augmentation | None:
        """Return a function that changes a training example each time it is used; None if examples stay as they are."""
        return None

    def reduce(self, logits: Tensor, example: Example) -> Tensor:
        """Return the part of an example's logits that `decode` needs: all, unless they would not fit in memory."""
        return logits

    def answer(self, data: Any, reader: Any) -> list[Any]:
        """Return one prediction for each row of unlabelled data; reader: a prediction.reader.Reader."""
        answers: list[Any] = reader.decoded(reader.encoded(data), data)
        return answers

    @abstractmethod
    def decode(self, logits: Sequence[Logits], encoded: Encoded, data: Any, labels: Sequence[str]) -> list[Any]:
        """Return one prediction for each row of the data, from the logits of all examples in order."""

    @abstractmethod
    def measure(self, answers: Sequence[Any], data: Any, labels: Sequence[str]) -> Measure:
        """Compare predictions with the true labels."""

    # -----------------------------------------------------------------------------------------------------------
    # To the user

    def as_dicts(self, answers: Sequence[Any], data: Any) -> list[Prediction]:
        """Return the predictions as `minibert.predict` does."""
        return list(answers)

    @abstractmethod
    def format_predictions(self, answers: Sequence[Any], data: Any) -> list[str]:
        """Return the lines that `minibert predict` prints: one per row, separated by tabs, the text last."""
