"""Sizes and behaviour of a checkpoint (a folder of trained weights): one frozen dataclass, read from config.json."""

from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Self

from minibert.families import family_of
from minibert.families.base import Family
from minibert.utils.files import read_json
from minibert.utils.settings import check, check_number, setting

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu")
PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")
# Variants of BERT that the encoder does not compute: key of config.json -> the value without it.
ABSENT = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False, "pruned_heads": {}}
# A file could claim any size, and that much memory would be allocated: the maximum is far above that of any BERT.
size = partial(setting, help="", minimum=1, maximum=2**24)
fraction = partial(setting, help="", minimum=0.0, maximum=1.0)


@dataclass(frozen=True)
class Config:
    """Sizes and behaviour of one checkpoint; sizes have the names of transformers 5.23 BertConfig.

    The defaults are BERT-base (Devlin et al. 2018, section 3). Raises ValueError or TypeError, naming the field, for a
    value that no BERT can have or that minibert does not implement.
    """

    model_type: str = "bert"  # which relative (families/); later modules read the fields below instead
    vocab_size: int = size(30522)  # V
    hidden_size: int = size(768)  # D
    num_hidden_layers: int = size(12, maximum=2**12)  # L
    num_attention_heads: int = size(12)  # H
    intermediate_size: int = size(3072)  # F
    max_position_embeddings: int = size(512)  # rows of the table of positions
    type_vocab_size: int = size(2, minimum=0)  # segments; 0: the model has none
    hidden_act: str = setting("gelu", "", choices=ACTIVATIONS)  # the activation of the feed-forward
    layer_norm_eps: float = fraction(1e-12)  # added to a variance before dividing by its root
    hidden_dropout_prob: float = fraction(0.1)  # the fraction of values that training sets to 0
    attention_probs_dropout_prob: float = fraction(0.1)
    initializer_range: float = fraction(0.02)  # standard deviation of fresh weights
    pad_token_id: int = size(0, minimum=0)  # [PAD], which fills short rows
    tie_word_embeddings: bool = True  # tokens are predicted with the matrix that embeds them
    # What the relatives of BERT changed.
    embedding_size: int = size(0, minimum=0)  # width of the tables; 0: hidden_size
    always_projected: bool = False  # a linear map to hidden_size, even where embedding_size equals it
    first_position: int = size(0, minimum=0)  # position of the first token
    padding_has_position: bool = True  # False: positions count real tokens; [PAD] has the row before the first
    task_vocab_size: int = size(0, minimum=0)  # task types; 0: the model has none
    layers_in_group: int = size(1)  # distinct layers in a group (ALBERT's files name layers by group)
    shared_layers: tuple[int, ...] = ()  # the distinct layer that computes each step; (): 0 1 2 ...
    dropout_after_attention: bool = True
    dropout_after_feed_forward: bool = True
    # Of the task heads (pretraining_heads.py, heads.py).
    prediction_act: str = ""  # the activation before tokens are predicted; "": hidden_act
    text_head: str = "pooler"  # first layer of a text head: the pooler, or its own linear layer with this activation
    dropout_before_text_head: bool = False  # dropout before that layer too, not only after it
    choice_head: str = ""  # text_head of multiple choice; "": as text_head
    choice_dropout: float | None = fraction(None)  # None: classifier_dropout
    id2label: dict[int, str] = field(default_factory=lambda: {0: "LABEL_0", 1: "LABEL_1"})
    problem_type: str | None = setting(None, "", choices=PROBLEM_TYPES)  # which loss; None: chosen by the labels
    classifier_dropout: float | None = fraction(None)  # None: hidden_dropout_prob
    classifier_dropout_on_tokens: bool = True  # False: token classification uses hidden_dropout_prob
    qa_dropout: float = fraction(0.0)  # before the start and end logits of an answer
    extra: dict[str, Any] = field(default_factory=dict, repr=False)  # every other key of config.json, written back

    def __post_init__(self) -> None:
        self.check()  # the functions below may trust each value
        for name, value in self.family.behaviour.items():
            object.__setattr__(self, name, value(self) if callable(value) else value)
        self.check()
        object.__setattr__(self, "embedding_size", self.embedding_size or self.hidden_size)
        object.__setattr__(self, "shared_layers", tuple(self.shared_layers) or tuple(range(self.num_hidden_layers)))

    def check(self) -> None:
        """Raise ValueError or TypeError for an impossible or unsupported value, or two that contradict each other."""
        check(self)
        for name, accepted in ABSENT.items():
            if self.extra.get(name) not in (None, accepted):
                raise ValueError(f"{name} {self.extra[name]!r} is not implemented; only {accepted!r} is")
        if self.hidden_size % (H := self.num_attention_heads):
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {H}")
        for value, limit in (("pad_token_id", "vocab_size"), ("first_position", "max_position_embeddings")):
            check_number(f"{value}, below {limit},", getattr(self, value), int, 0, getattr(self, limit) - 1)

    @property
    def family(self) -> Family:
        """The relative: how its files name everything, and which task heads it has."""
        return family_of(self.model_type)

    @property
    def max_tokens(self) -> int:
        """The largest S: every token has a position."""
        return self.max_position_embeddings - self.first_position

    @property
    def num_labels(self) -> int:
        """K, the labels of a classifier."""
        return len(self.id2label)

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Self:
        """The content of a config.json; the names of BERT are accepted for every relative."""
        return cls(**family_of(raw.get("model_type")).read(raw, [f.name for f in fields(cls)]))

    @classmethod
    def from_file(cls, path: Path, model_type: str | None = None) -> Self:
        """Read config.json; model_type: for older files that name none. Raises ValueError with the path."""
        raw = read_json(path)
        stated = raw.get("model_type") or model_type
        try:
            if stated is None or model_type not in (None, stated):
                found = "has no model_type" if stated is None else f"says model_type {stated!r}, not {model_type!r}"
                raise ValueError(
                    f'config.json {found}; name it: load(..., model_type="bert"), or minibert convert FOLDER '
                    "--out FOLDER2 --model-type bert"
                )
            return cls.from_dict(raw | {"model_type": stated})
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """The content of config.json, under the names that transformers uses for this relative."""
        return self.family.write({f.name: getattr(self, f.name) for f in fields(self)})
