"""The sizes and settings of a checkpoint (a folder of trained weights): one frozen dataclass, read from config.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from minibert.utils.files import read_json, user_path
from minibert.utils.printing import brief
from minibert.utils.settings import Settings, check, check_number, setting

if TYPE_CHECKING:
    from minibert.families.base import Architecture, Family

ACTIVATIONS = (  # the activations of activations.py, whose import would need torch
    *("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"),
    *("gelu_10", "gelu_accurate", "gelu_fast", "gelu_python", "gelu_python_tanh", "hardswish", "laplace", "leaky_relu"),
    *("linear", "mish", "quick_gelu", "relu2", "relu6", "sigmoid", "sqrtsoftplus", "swish", "tanh"),
)
PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")
MOST_LABELS = 2**20
# Keys of config.json that change what transformers computes and that minibert does not implement: key -> the value
# without effect. tests/test_config_keys.py lists every key of transformers, and why the others need no row here.
ABSENT = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "pruned_heads": {},
    "chunk_size_feed_forward": 0,  # products of fewer rows round differently
    "per_layer_config": {},
    "quantization_config": {},
}
# A file could claim any size, and that much memory would be allocated: the maximum is far above any BERT.
size = partial(setting, help="", minimum=1, maximum=2**24)
fraction = partial(setting, help="", minimum=0.0, maximum=1.0)
fixed = partial(field, init=False)  # the same in every checkpoint of the relative: no key of its config.json


@dataclass(frozen=True)
class Config(Settings):
    """The content of config.json. The fields have the names of transformers 5.23 BertConfig, the defaults are BERT-base
    (Devlin et al. 2018, section 3).

    A relative with keys of its own has a subclass with them in its file (families/). Config(model_type="albert")
    makes an AlbertConfig, as pathlib.Path makes a path of this system; dataclasses.replace changes any field.
    Raises ValueError or TypeError, naming the field, for a value that no BERT can have, that this relative cannot have
    or that minibert does not implement.
    """

    model_type: str = "bert"  # which relative (families/)
    vocab_size: int = size(30522)  # V
    hidden_size: int = size(768)  # D
    num_hidden_layers: int = size(12, maximum=2**12)  # L
    num_attention_heads: int = size(12)  # H
    intermediate_size: int = size(3072)  # F
    max_position_embeddings: int = size(512)  # rows of the table of positions
    type_vocab_size: int = size(2)  # segments
    hidden_act: str = setting("gelu", "", choices=ACTIVATIONS)  # the activation of the feed-forward
    layer_norm_eps: float = fraction(1e-12)  # added to a variance before dividing by its root
    hidden_dropout_prob: float = fraction(0.1)  # the fraction of values that training sets to 0
    attention_probs_dropout_prob: float = fraction(0.1)
    initializer_range: float = fraction(0.02)  # standard deviation of fresh weights
    pad_token_id: int = size(0, minimum=0)  # [PAD], which fills short rows
    tie_word_embeddings: bool = True  # tokens are predicted with the matrix that embeds them
    # Of the task heads (pretraining_heads.py, heads.py).
    id2label: dict[int, Any] = field(default_factory=lambda: {0: "LABEL_0", 1: "LABEL_1"})  # names, or null
    problem_type: str | None = setting(None, "", choices=PROBLEM_TYPES)  # which loss; None: chosen by the labels
    classifier_dropout: float | None = fraction(None)  # None: hidden_dropout_prob
    extra: dict[str, Any] = field(default_factory=dict, repr=False)  # every other key of config.json, written back

    def __new__(cls, model_type: str = "bert", **settings: Any) -> Self:
        """Choose the class of this relative."""
        if cls is not Config:
            return super().__new__(cls, **settings)
        family = family_of(model_type)
        for own in fields(family.config):
            if not own.init and settings.get(own.name, own.default) != own.default:
                value = brief(settings[own.name])
                raise ValueError(f"{own.name} is {value}; {family.title} cannot change it from {own.default}")
        return super().__new__(family.config, **settings)  # type: ignore[return-value]  # a subclass

    def __post_init__(self) -> None:
        check(self)  # what follows may trust each value
        if type(self) is not self.family.config:
            kind = type(self).__name__
            raise ValueError(f"model_type is {self.model_type!r}, in a {kind}; make it by Config(model_type=...)")
        for name, accepted in ABSENT.items():
            if name not in self.family.ignored and self.extra.get(name) not in (None, accepted):
                raise ValueError(f"{name} {brief(self.extra[name])} is not implemented; only {accepted!r} is")
        if self.hidden_size % (H := self.num_attention_heads):
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {H}")
        self.architecture.check(self)
        for name, value, limit in (
            ("pad_token_id", self.pad_token_id, "vocab_size"),
            ("first_position", self.architecture.first_position, "max_position_embeddings"),
        ):
            check_number(f"{name}, below {limit},", value, int, 0, getattr(self, limit) - 1)
        firsts = dict[str, str]()  # key of config.json -> the first field that reads it
        for name in (own.name for own in fields(self) if own.init):
            key = self.family.keys.get(name, name)
            value, first = getattr(self, name), firsts.setdefault(key, name)
            if value != (other := getattr(self, first)):
                raise ValueError(
                    f"{first} is {brief(other)} and {name} is {brief(value)}; config.json of {self.family.title} has "
                    f"one key for both, {key}; give both the same value"
                )

    @property
    def family(self) -> Family:
        """The relative: how its files name everything, and which task heads it has."""
        return family_of(self.model_type)

    @cached_property
    def architecture(self) -> Architecture:
        """What follows from the config for the computation."""
        return self.family.architecture(self)

    @property
    def max_tokens(self) -> int:
        """The largest S: every token has a position."""
        return self.max_position_embeddings - self.architecture.first_position

    @property
    def num_labels(self) -> int:
        """K, the labels of a classifier."""
        return len(self.id2label)

    def with_layers(self, take: Sequence[int]) -> Self:
        """Return the config of a smaller model, which has these layers; see train/student.py."""
        return replace(self, num_hidden_layers=len(take))

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Self:
        """Return the content of a config.json; the names of BERT are accepted for every relative.

        A null counts as missing. Keys without a field are kept in `extra`.
        """
        family = family_of(raw.get("model_type"))
        if cls is Config and family.config is not Config:
            return family.config.from_dict(raw)  # type: ignore[return-value]  # a subclass
        values: dict[str, Any] = {"id2label": read_labels(raw)}
        read = {"num_labels", "label2id", "id2label"}
        for name in (own.name for own in fields(family.config) if own.init and own.name not in ("id2label", "extra")):
            key = family.keys.get(name, name)
            both = (name, key) if name in family.aliases else (key, name)  # the first that is stated counts
            read.update(both)
            values |= next(({name: raw[key]} for key in both if raw.get(key) is not None), {})
        return cls(**values, extra={key: value for key, value in raw.items() if key not in read})

    @classmethod
    def from_file(cls, path: str | Path, model_type: str | None = None) -> Self:
        """Read config.json as transformers does; model_type: if it names none. Raises ValueError with the path."""
        raw = read_json(user_path(path))
        stated = raw.get("model_type") or model_type
        try:
            if stated is None or model_type not in (None, stated):
                found = (
                    "has no model_type" if stated is None else f"says model_type {brief(stated)}, not {model_type!r}"
                )
                raise ValueError(
                    f'config.json {found}; name it: load(..., model_type="bert"), or minibert convert FOLDER '
                    "--out FOLDER2 --model-type bert"
                )
            family = family_of(stated)
            known = {key: raw[key] for key in raw if key in family.aliases or family.keys.get(key, key) == key}
            return cls.from_dict(known | {"model_type": stated})
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """Return the content of config.json, under the names that transformers uses for this relative."""
        names = [own.name for own in fields(self) if own.init and own.name != "extra"]
        written = {self.family.keys.get(name, name): getattr(self, name) for name in names}
        label2id = {label: i for i, label in self.id2label.items() if isinstance(label, str)}
        return {**self.extra, **written, "label2id": label2id}


def family_of(model_type: object) -> Family:
    """Return the family of this model_type. Raises ValueError, listing the implemented ones, for any other."""
    from minibert.families import FAMILIES  # here, because a relative subclasses Config

    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(f"model_type {brief(model_type)} is not supported; supported: {', '.join(FAMILIES)}")
    return FAMILIES[model_type]


def read_labels(raw: dict[str, Any]) -> dict[int, Any]:
    """Return the labels of a config.json by number: those of id2label, unless num_labels counts others, else two.

    Names may be null or no text, as in transformers: only predictions need them (tasks.names.label_names).
    """
    count = 2 if raw.get("num_labels") is None else raw["num_labels"]
    check_number("num_labels", count, int, 0, MOST_LABELS)
    labels = raw.get("id2label") or {}
    if not isinstance(labels, dict) or not all(str(i).isdecimal() for i in labels):
        raise ValueError(f"id2label is {brief(labels)}; it must map label numbers, from 0 on, to names")
    if len(labels) != (raw.get("num_labels") or len(labels) or 2):
        labels = {i: f"LABEL_{i}" for i in range(count or 2)}
    return {int(i): label for i, label in labels.items()}  # JSON has only strings as keys
