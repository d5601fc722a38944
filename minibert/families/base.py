"""What a family is: all that one relative of BERT changed, as data.

Every relative computes with the one encoder of model.py. What tells them apart is how config.json names the sizes,
how the files name the tensors, which task heads exist, and a few words of behaviour: the fields of Config that the
relative decides. Nothing else in minibert asks which relative it has before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Fields of Config that no config.json speaks of, unless the relative has a key for them.
BEHAVIOUR = frozenset(
    {
        "embedding_size",
        "always_widened",
        "first_position",
        "padding_has_position",
        "task_vocab_size",
        "shared_layers",
        "layers_in_group",
        "dropout_after_attention",
        "dropout_after_feed_forward",
        "prediction_act",
        "text_head",
        "dropout_before_text_head",
        "choice_head",
        "choice_dropout",
        "classifier_dropout_on_tokens",
        "qa_dropout",
    }
)
MOST_LABELS = 2**20


@dataclass(frozen=True)
class Family:
    """One relative. `{}` in the name of a module is the number of its layer; .weight and .bias keep their names.

    An official name with two `{}` has the number of a group of layers there, and that of the layer in its group.
    """

    name: str  # model_type in config.json
    title: str  # as papers write it
    upstream: str  # what its classes in transformers begin with: Bert for BertModel, BertForMaskedLM, ...
    prefix: str  # before the encoder's tensors where the file has a task head too
    modules: Mapping[str, str]  # the encoder in the order of the forward pass: our module -> the official one
    heads: Mapping[str, Mapping[str, str]]  # task head -> its modules, ours -> the official ones
    lacks: Mapping[str, str] = field(default_factory=dict)  # task head that does not exist -> why
    keys: Mapping[str, str] = field(default_factory=dict)  # field of Config -> key of config.json, where they differ
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of fields that its config.json may leave out
    # Fields of Config that the relative decides and config.json does not: a value, or a function of the Config.
    behaviour: Mapping[str, Any] = field(default_factory=dict)
    # Tensors that official files may hold a second time: the second name -> the name above.
    second_names: Mapping[str, str] = field(default_factory=dict)
    # Where transformers looks for the bias of the decoder: while it is tied to the token embedding, and when not.
    decoder_bias: tuple[str, str] = ("", "")
    # Whether the second text of a pair is in segment 1; else a pair is told by its special tokens alone.
    pairs_in_segments: bool = True
    # Modules of ours whose output upstream has elsewhere than around what they hold -> the official one, if there.
    outputs: Mapping[str, str] = field(default_factory=dict)
    # Task head -> keys of config.json that it reads, each with the one value that is implemented.
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def has_segments(self) -> bool:
        """Whether the two texts of a pair are told apart by an embedding of their own."""
        return "embeddings.segment" in self.modules

    @property
    def has_pooler(self) -> bool:
        """Whether the encoder ends with a pooler where the checkpoint carries one."""
        return "pooler.dense" in self.modules

    @property
    def layers_stand_in_groups(self) -> bool:
        """Whether files count groups of layers, which are used again, and in each of them its layers."""
        return any(name.count("{}") == 2 for name in self.modules.values())

    def official(self, module: str, head: str = "") -> str:
        """The official name of one of our modules, which may hold others; LookupError where the relative has none.

        A module that is not in the table is found by what it holds: layers.{} is where layers.{}.attention.query is.
        """
        table = {**self.modules, **self.heads.get(head, {})}
        if module in table:
            return table[module]
        inner = next((name for name in table if name.startswith(module + ".")), None)
        if inner is None:
            raise LookupError(f"{self.name} has no {module}")
        if module.endswith("{}"):
            return table[inner].rpartition("{}")[0] + "{}"
        return table[inner].rpartition(".")[0]

    @staticmethod
    def numbered(name: str, layer: int, in_group: int = 1) -> str:
        """An official name with the number of one of our layers in it, which stand in groups of `in_group`."""
        return name.format(*(divmod(layer, in_group) if name.count("{}") == 2 else [layer]))

    def read(self, raw: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
        """The values of Config's fields from a config.json, all that is no field under `extra`.

        A key that is null counts as left out. Raises ValueError for labels that are none.
        """
        values = {key: value for key, value in raw.items() if key not in ("num_labels", "label2id", "id2label")}
        values |= {name: values.pop(key) for name, key in self.keys.items() if key in values}
        values |= {name: value for name, value in self.defaults.items() if values.get(name) is None}
        names = set(fields) - (BEHAVIOUR - set(self.keys)) - {"extra"}
        extra = {name: value for name, value in values.items() if name not in names}
        known = {name: value for name, value in values.items() if name in names and value is not None}
        return known | {"id2label": read_labels(raw), "extra": extra}

    def write(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The config.json of these values of Config's fields."""
        unsaid = {"extra", *BEHAVIOUR, *self.behaviour} - set(self.keys)
        said = {self.keys.get(name, name): value for name, value in values.items() if name not in unsaid}
        return {**values["extra"], **said, "label2id": {label: i for i, label in values["id2label"].items()}}


def read_labels(raw: Mapping[str, Any]) -> dict[int, str]:
    """The labels of a config.json by their numbers: those of id2label, else as many as num_labels says, else two."""
    count = 2 if raw.get("num_labels") is None else raw["num_labels"]
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MOST_LABELS:
        raise ValueError(f"num_labels is {count!r}; it must be a whole number from 0 to {MOST_LABELS}")
    labels = raw.get("id2label") or {i: f"LABEL_{i}" for i in range(count or 2)}
    if not isinstance(labels, dict) or not all(
        str(i).isdecimal() and isinstance(label, str) for i, label in labels.items()
    ):
        raise ValueError(f"id2label is {repr(labels)[:60]}; it must give numbers, from 0 on, the names of labels")
    return {int(i): label for i, label in labels.items()}  # JSON has only strings as keys
