"""The numbers of a checkpoint, which is a folder of trained weights: one frozen dataclass, from its config.json."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from minibert.families import family_of
from minibert.families.base import Family
from minibert.families.limits import HOW_TO_SAY, check_values, share, size
from minibert.files import read_json

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu")


@dataclass(frozen=True)
class Config:
    """Sizes and behaviour of one checkpoint; sizes under the names of transformers 5.23 BertConfig.

    The defaults are BERT-base (Devlin et al. 2018, section 3). Raises ValueError, naming the field, for a value
    that no BERT can have or that minibert does not implement.
    """

    model_type: str = "bert"  # which relative (families/); nothing after this file asks for it
    vocab_size: int = size(30522)  # V
    hidden_size: int = size(768)  # D
    num_hidden_layers: int = size(12, most=2**12)  # L
    num_attention_heads: int = size(12)  # H
    intermediate_size: int = size(3072)  # F
    max_position_embeddings: int = size(512)  # rows of the table of positions
    type_vocab_size: int = size(2, least=0)  # segments; 0: the model has none
    hidden_act: str = "gelu"  # the activation of the feed-forward
    layer_norm_eps: float = share(1e-12)  # added to a variance before dividing by its root
    hidden_dropout_prob: float = share(0.1)  # the share of values that training sets to zero
    attention_probs_dropout_prob: float = share(0.1)
    initializer_range: float = share(0.02)  # standard deviation of fresh weights
    pad_token_id: int = size(0, least=0)  # [PAD], which fills up short rows
    tie_word_embeddings: bool = True  # tokens are predicted by the matrix that embeds them
    # What the relatives changed.
    embedding_size: int = size(0, least=0)  # width of the tables; 0: hidden_size
    always_widened: bool = False  # a map to hidden_size, even from tables that are as wide
    first_position: int = size(0, least=0)  # the row of the table of positions that the first token takes
    padding_has_position: bool = True  # False: positions count the other tokens; [PAD] has the row before the first
    task_vocab_size: int = size(0, least=0)  # tasks that are told apart; 0: the model has none
    layers_in_group: int = size(1)  # of distinct layers, as names in files count them
    shared_layers: tuple[int, ...] = ()  # whose weights each of the L layers uses; (): its own, 0 1 2 ...
    dropout_after_attention: bool = True
    dropout_after_feed_forward: bool = True
    # What the task heads (objectives.py, heads.py) read.
    prediction_act: str = ""  # the activation before tokens are predicted; "": hidden_act
    text_head: str = "pooler"  # what they begin with: the pooler, or a layer of their own with this activation
    dropout_before_text_head: bool = False  # before that layer, besides after it
    choice_head: str = ""  # what multiple choice begins with; "": text_head
    choice_dropout: float | None = share(None)  # None: classifier_dropout
    id2label: dict[int, str] = field(default_factory=lambda: {0: "LABEL_0", 1: "LABEL_1"})
    problem_type: str | None = None  # which loss; None: by the labels
    classifier_dropout: float | None = share(None)  # None: hidden_dropout_prob
    classifier_dropout_on_tokens: bool = True  # whether it counts for labels of tokens too
    qa_dropout: float = share(0.0)  # before start and end of an answer
    # Every other key of config.json, kept as it was and written back.
    extra: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.check()  # functions of the config, below, may trust each value
        for name, value in self.family.behaviour.items():
            object.__setattr__(self, name, value(self) if callable(value) else value)
        self.check()
        object.__setattr__(self, "embedding_size", self.embedding_size or self.hidden_size)
        object.__setattr__(self, "shared_layers", tuple(self.shared_layers) or tuple(range(self.num_hidden_layers)))

    def check(self) -> None:
        """Raise ValueError for a value that cannot be, or for two that contradict each other."""
        check_values(self)
        if self.hidden_act not in ACTIVATIONS:
            raise ValueError(f"hidden_act {self.hidden_act!r} is not supported; supported: {', '.join(ACTIVATIONS)}")
        if self.pad_token_id >= self.vocab_size:
            raise ValueError(f"pad_token_id {self.pad_token_id} is outside the vocabulary of {self.vocab_size}")
        D, H, positions = self.hidden_size, self.num_attention_heads, self.max_position_embeddings
        if D % H:
            raise ValueError(f"hidden_size {D} is not a multiple of num_attention_heads {H}")
        if positions <= self.first_position:
            raise ValueError(f"max_position_embeddings is {positions}; positions begin at {self.first_position}")

    @property
    def family(self) -> Family:
        """Which relative this is: how its files name everything, and which task heads it has."""
        return family_of(self.model_type)

    @property
    def max_tokens(self) -> int:
        """The longest S: every token takes a position."""
        return self.max_position_embeddings - self.first_position

    @property
    def num_labels(self) -> int:
        """How many labels a classifier tells apart."""
        return len(self.id2label)

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Config:
        """The content of a config.json; the names of BERT are accepted for every relative."""
        family = family_of(raw.get("model_type"))  # the one key that has no default
        return cls(**family.read(raw, [f.name for f in fields(cls)]))

    @classmethod
    def from_file(cls, path: Path, model_type: str | None = None) -> Config:
        """Read config.json; model_type: for older ones that state none. Raises ValueError with the path."""
        raw = read_json(path)
        stated = raw.get("model_type") or model_type
        if stated is None:
            raise ValueError(f"{path} has no model_type; {HOW_TO_SAY}")
        if model_type not in (None, stated):
            raise ValueError(f"{path} says that it is of model_type {stated!r}, not {model_type!r}")
        try:
            return cls.from_dict(raw | {"model_type": stated})
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """The content of config.json, under the names that transformers uses for this relative."""
        return self.family.write({f.name: getattr(self, f.name) for f in fields(self)})
