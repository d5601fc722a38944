"""A family: everything that one relative of BERT changed, as data.

All relatives compute with the one encoder of model.py. They differ in how config.json names the sizes, how the files
name the tensors, which task heads exist, and in behaviour: the fields of Config that the relative decides. No other
module of minibert depends on which relative it computes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from minibert.utils.printing import brief
from minibert.utils.settings import check_number

MOST_LABELS = 2**20
NO_HEAD: Mapping[str, str] = MappingProxyType({})  # the modules of an encoder without a task head


class Unstated(int):
    """A size that nobody has stated: the relative decides it, and decides again after dataclasses.replace."""


# Fields of Config that the relative decides, unless its config.json has a key for them: BERT's value, or a function of
# the Config.
BEHAVIOUR: Mapping[str, Any] = {
    "embedding_size": lambda config: Unstated(config.hidden_size),
    "num_hidden_groups": 1,
    "inner_group_num": 1,
    "use_task_id": False,
    "task_type_vocab_size": 3,
    "choice_dropout": None,
    "qa_dropout": 0.0,
    "always_projected": False,
    "first_position": 0,
    "padding_has_position": True,
    "task_vocab_size": 0,
    "layers_in_group": 1,
    "shared_layers": lambda config: tuple(range(config.num_hidden_layers)),
    "attention_bias": True,
    "feed_forward_bias": True,
    "norm_bias": True,
    "head_bias": True,
    "decoder_bias": True,
    "classifier_pooling": "cls",
    "initializer_cutoff_factor": None,
    "feed_forward_dropout": 0.0,
    "attention_residual_dropout": lambda config: config.hidden_dropout_prob,
    "feed_forward_residual_dropout": lambda config: config.hidden_dropout_prob,
    "norm_first": False,
    "gated": False,
    "sparse_prediction": False,
    "windows": (),
    "rotary_thetas": (),
    "prediction_act": "",
    "text_head": "pooler",
    "dropout_before_text_head": False,
    "choice_head": "",
    "token_head": "",
    "norm_in_heads": False,
    "classifier_dropout_on_choices": True,
    "classifier_dropout_on_tokens": True,
    "classifier_dropout_on_answers": False,
}


@dataclass(frozen=True)
class Family:
    """One relative. `{}` in the name of a module is the number of its layer; .weight and .bias keep their names.

    An official name with two `{}` has two numbers: the group of layers, and the layer in its group.
    """

    name: str  # model_type in config.json
    title: str  # as in papers
    upstream: str  # prefix of its classes in transformers: Bert for BertModel, BertForMaskedLM, ...
    prefix: str  # of the encoder's tensors in a file that has a task head too
    modules: Mapping[str, str]  # the encoder in the order of the forward pass: our module -> the official one
    # Several modules in a row may have one official name (`fused`): they are the rows of its tensors, in this order.
    heads: Mapping[str, Mapping[str, str]]  # task head -> its modules, ours -> the official ones
    lacks: Mapping[str, str] = field(default_factory=dict)  # task head that does not exist -> why
    keys: Mapping[str, str] = field(default_factory=dict)  # field of Config -> key of config.json, where they differ
    aliases: tuple[str, ...] = ()  # of these fields the name that BERT has, too; it counts before the key
    ignored: tuple[str, ...] = ()  # keys of config.ABSENT that have no effect here
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of fields that its config.json may leave out
    # Fields of Config that the relative decides differently from BERT (BEHAVIOUR).
    behaviour: Mapping[str, Any] = field(default_factory=dict)
    # Tensors that official files may hold a second time: the second name -> the name above.
    second_names: Mapping[str, str] = field(default_factory=dict)
    fused: tuple[str, ...] = ()  # official modules that hold several of ours
    # The decoder bias that transformers reads: while the decoder is tied to the token embedding, and when it is not.
    decoder_bias: tuple[str, str] = ("", "")
    # Whether the second text of a pair is in segment 1; else only special tokens separate the two.
    pairs_in_segments: bool = True
    # Our modules whose output upstream computes elsewhere than in the module with their tensors -> that other module.
    outputs: Mapping[str, str] = field(default_factory=dict)
    # Task head -> keys of config.json that it reads, each with the only implemented value.
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = list(self.modules.values())
        for ours, official in self.modules.items():
            if ((count := names.count(official)) > 1) != (official in self.fused):
                raise ValueError(
                    f"{self.name}: {ours} is {official} in a file, the name of {count} modules; `fused` must list the "
                    "names that several have, and no others"
                )

    @property
    def decides(self) -> Mapping[str, Any]:
        """Return the fields of Config that no config.json of the relative can set, as BEHAVIOUR has them."""
        return {name: value for name, value in {**BEHAVIOUR, **self.behaviour}.items() if name not in self.keys}

    def decided(self, config: Any) -> dict[str, Any]:
        """Return the values of these fields."""
        return {name: value(config) if callable(value) else value for name, value in self.decides.items()}

    @property
    def has_segments(self) -> bool:
        """Whether a segment embedding distinguishes the two texts of a pair."""
        return "embeddings.segment" in self.modules

    @property
    def has_pooler(self) -> bool:
        """Whether the encoder has a pooler, provided that the checkpoint has its weights."""
        return "pooler.dense" in self.modules

    def official(self, module: str, of_head: Mapping[str, str] = NO_HEAD) -> str:
        """Return the official name of one of our modules, which may contain others; LookupError if there is none.

        of_head: the modules of a task head, see Head.names_in.
        A module outside the table is found by its contents: layers.{} is the parent of layers.{}.attention.query.
        """
        table = {**self.modules, **of_head}
        inner = module if module in table else next((name for name in table if name.startswith(module + ".")), None)
        if inner is None:
            raise LookupError(f"{self.name} has no official name for {module} in its tables")
        if inner == module:
            return table[module]
        before, mark, _ = table[inner].rpartition("{}" if module.endswith("{}") else ".")
        return before + mark.removesuffix(".")

    @staticmethod
    def numbered(name: str, layer: int, in_group: int = 1) -> str:
        """Return an official name with the number of our layer filled in; files count groups of `in_group` layers."""
        return name.format(*(divmod(layer, in_group) if name.count("{}") == 2 else [layer]))

    def read(self, raw: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
        """Return the values of Config's fields from a config.json; every other key goes into `extra`.

        A null counts as missing. Raises ValueError or TypeError for invalid labels.
        """
        values = {key: value for key, value in raw.items() if key not in ("num_labels", "label2id", "id2label")}
        first = {name: values[name] for name in self.aliases if values.get(name) is not None}
        values |= {name: values.pop(key) for name, key in self.keys.items() if key in values} | first
        values |= {name: value for name, value in self.defaults.items() if values.get(name) is None}
        names = set(fields) - self.decides.keys() - {"extra"}
        extra = {name: value for name, value in values.items() if name not in names}
        known = {name: value for name, value in values.items() if name in names and value is not None}
        return known | {"id2label": read_labels(raw), "extra": extra}

    def write(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the config.json of these values of Config's fields."""
        left_out = {"extra", *self.decides}
        written = {self.keys.get(name, name): value for name, value in values.items() if name not in left_out}
        label2id = {label: i for i, label in values["id2label"].items() if isinstance(label, str)}
        return {**values["extra"], **written, "label2id": label2id}


def read_labels(raw: Mapping[str, Any]) -> dict[int, Any]:
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
