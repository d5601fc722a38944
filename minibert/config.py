"""The numbers of a checkpoint, which is a folder of trained weights: one frozen dataclass, from its config.json."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

MODEL_TYPES = ("bert", "distilbert")
ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu")

# What DistilBERT's config.json calls the fields that have another name there.
DISTILBERT_NAMES = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "classifier_dropout": "seq_classif_dropout",
}
# What DistilBERT, a BERT of half the depth, fixes or leaves unsaid: no segments, this epsilon, six layers.
DISTILBERT_FIXED = {"type_vocab_size": 0, "layer_norm_eps": 1e-12}
DISTILBERT_DEFAULTS = {"num_hidden_layers": 6, "classifier_dropout": 0.2}

# The smallest whole number that each size may be.
LEAST = {
    "vocab_size": 1,
    "hidden_size": 1,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "intermediate_size": 1,
    "max_position_embeddings": 1,
    "type_vocab_size": 0,
    "pad_token_id": 0,
}
# Variants of BERT that config.json can ask for and this encoder does not compute: name -> the value that asks for none.
NOT_IMPLEMENTED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "pruned_heads": {},
}


@dataclass(frozen=True)
class Config:
    """Sizes and switches of one checkpoint, under the names of transformers 5.23 BertConfig.

    The defaults are BERT-base (Devlin et al. 2018, section 3). Raises ValueError, naming the field, for a value
    that no BERT can have or that minibert does not implement.
    """

    model_type: str = "bert"
    vocab_size: int = 30522  # V
    hidden_size: int = 768  # D
    num_hidden_layers: int = 12  # L
    num_attention_heads: int = 12  # H
    intermediate_size: int = 3072  # F
    max_position_embeddings: int = 512  # the longest S
    type_vocab_size: int = 2  # segments; 0: the model has none
    hidden_act: str = "gelu"  # the activation of the feed-forward
    layer_norm_eps: float = 1e-12  # added to a variance before dividing by its root
    hidden_dropout_prob: float = 0.1  # the share of values that training sets to zero
    attention_probs_dropout_prob: float = 0.1
    initializer_range: float = 0.02  # standard deviation of fresh weights
    pad_token_id: int = 0  # [PAD], which fills up short rows
    # What the heads (heads.py) read.
    id2label: dict[int, str] = field(default_factory=lambda: {0: "LABEL_0", 1: "LABEL_1"})
    problem_type: str | None = None  # which loss; None: by the labels
    classifier_dropout: float | None = None  # None: hidden_dropout_prob
    qa_dropout: float = 0.1  # DistilBERT only
    tie_word_embeddings: bool = True  # tokens are predicted by the matrix that embeds them
    # Every other key of config.json, kept as it was and written back.
    extra: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for name, known in (("model_type", MODEL_TYPES), ("hidden_act", ACTIVATIONS)):
            if (value := getattr(self, name)) not in known:
                raise ValueError(f"{name} {value!r} is not supported; supported: {', '.join(known)}")
        for name, least in LEAST.items():
            if not isinstance(value := getattr(self, name), int) or value < least:
                raise ValueError(f"{name} is {value!r}; it must be a whole number of at least {least}")
        if self.pad_token_id >= self.vocab_size:
            raise ValueError(f"pad_token_id {self.pad_token_id} is outside the vocabulary of {self.vocab_size}")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}"
            )
        for name, accepted in NOT_IMPLEMENTED.items():
            if self.extra.get(name) not in (None, accepted):
                raise ValueError(f"{name} {self.extra[name]!r} is not implemented; only {accepted!r} is")

    @property
    def num_labels(self) -> int:
        """How many labels a classification head tells apart."""
        return len(self.id2label)

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Config:
        """Read the keys of a config.json; a key under BERT's name is accepted for DistilBERT too."""
        values = {name: value for name, value in raw.items() if name not in ("num_labels", "label2id")}
        if raw.get("model_type") == "distilbert":
            renamed = {ours: values.pop(theirs) for ours, theirs in DISTILBERT_NAMES.items() if theirs in values}
            values = DISTILBERT_DEFAULTS | values | renamed | DISTILBERT_FIXED
        labels = raw.get("id2label") or {i: f"LABEL_{i}" for i in range(raw.get("num_labels") or 2)}
        values["id2label"] = {int(i): label for i, label in labels.items()}  # JSON has only strings as keys
        names = {f.name for f in fields(cls)} - {"extra"}
        known = {name: value for name, value in values.items() if name in names and value is not None}
        known["model_type"] = raw.get("model_type")  # the one that has no default: a file without it is refused
        return cls(**known, extra={name: value for name, value in values.items() if name not in names})

    @classmethod
    def from_file(cls, path: Path) -> Config:
        """Read config.json. Raises ValueError, with the line, where it is not JSON."""
        try:
            raw = json.loads(path.read_text(encoding="utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is not valid JSON: {error}") from None
        if not isinstance(raw, dict):
            raise ValueError(f"{path} holds a {type(raw).__name__}, not an object of names and values")
        return cls.from_dict(raw)

    def to_dict(self) -> dict[str, Any]:
        """The content of config.json, under the names that transformers uses for this model type."""
        values = asdict(self)
        del values["extra"]
        values["label2id"] = {label: i for i, label in self.id2label.items()}
        if self.model_type == "distilbert":
            unfixed = {name: value for name, value in values.items() if name not in DISTILBERT_FIXED}
            values = {DISTILBERT_NAMES.get(name, name): value for name, value in unfixed.items()}
        else:
            del values["qa_dropout"]
        return self.extra | values
