"""Sizes and behaviour of a checkpoint (a folder of trained weights): one frozen dataclass, read from config.json."""

from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Self

from minibert.families import family_of
from minibert.families.base import Family, Unstated
from minibert.utils.files import read_json, user_path
from minibert.utils.printing import brief
from minibert.utils.settings import Settings, check, check_number, setting

ACTIVATIONS = (  # the activations of model.py, whose import would need torch
    *("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"),
    *("gelu_10", "gelu_accurate", "gelu_fast", "gelu_python", "gelu_python_tanh", "hardswish", "laplace", "leaky_relu"),
    *("linear", "mish", "quick_gelu", "relu2", "relu6", "sigmoid", "sqrtsoftplus", "swish", "tanh"),
)
PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")
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


@dataclass(frozen=True)
class Config(Settings):
    """Sizes and behaviour of one checkpoint; sizes have the names of transformers 5.23 BertConfig.

    The defaults are BERT-base (Devlin et al. 2018, section 3). dataclasses.replace changes a field and everything that
    follows from it. Raises ValueError or TypeError, naming the field, for a value that no BERT can have, that this
    relative cannot have or that minibert does not implement.
    """

    model_type: str = "bert"  # which relative (families/); later modules read the fields below instead
    vocab_size: int = size(30522)  # V
    hidden_size: int = size(768)  # D
    num_hidden_layers: int = size(12, maximum=2**12)  # L
    num_attention_heads: int = size(12)  # H
    intermediate_size: int = size(3072)  # F
    max_position_embeddings: int = size(512)  # rows of the table of positions
    type_vocab_size: int = size(Unstated(2), minimum=0)  # segments; 0: the model has none
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
    # Settings of some relatives; the others cannot change them.
    embedding_size: int = size(Unstated(768))  # width of the tables; hidden_size unless stated
    num_hidden_groups: int = size(1)  # groups of layers that share their weights
    inner_group_num: int = size(1, maximum=64)  # distinct layers in a group
    use_task_id: bool = setting(False, "")  # whether an embedding of the task is added to each token
    task_type_vocab_size: int = size(3, minimum=0)  # tasks
    choice_dropout: float | None = fraction(None)  # before the score of a choice; None: as the relative has it
    qa_dropout: float = fraction(0.0)  # before the start and end logits of an answer
    attention_bias: bool = setting(True, "")  # whether these linear layers and LayerNorm have a bias
    feed_forward_bias: bool = setting(True, "")
    norm_bias: bool = setting(True, "")
    head_bias: bool = setting(True, "")  # of the first layer of a task head
    decoder_bias: bool = setting(True, "")  # of the layer that predicts tokens
    classifier_pooling: str = setting("cls", "", choices=("cls", "mean"))  # what a head reads of a text
    initializer_cutoff_factor: float | None = setting(None, "", above=0)  # of fresh weights; None: no cut
    feed_forward_dropout: float = fraction(0.0)  # before the second matrix of the feed-forward
    sparse_prediction: bool = setting(False, "")  # with labels, a masked LM computes only the logits of labelled tokens
    extra: dict[str, Any] = field(default_factory=dict, repr=False)  # every other key of config.json, written back
    # What follows from the relative and the fields above (Family.decided).
    always_projected: bool = field(init=False)  # a linear map to hidden_size, even where embedding_size equals it
    first_position: int = field(init=False)  # position of the first token
    padding_has_position: bool = field(init=False)  # False: only real tokens count; [PAD] has the row before the first
    task_vocab_size: int = field(init=False)  # task types; 0: the model has none
    layers_in_group: int = field(init=False)  # distinct layers in a group (ALBERT's files name layers by group)
    shared_layers: tuple[int, ...] = field(init=False)  # the distinct layer that computes each step
    attention_residual_dropout: float = field(init=False)  # after attention, before its residual
    feed_forward_residual_dropout: float = field(init=False)
    norm_first: bool = field(init=False)  # x + f(LN(x)) and a final norm, instead of LN(x + f(x))
    gated: bool = field(init=False)  # the feed-forward multiplies its activations by a second linear map
    windows: tuple[int | None, ...] = field(init=False)  # of each layer: tokens at most half of it apart; (): no limit
    rotary_thetas: tuple[float, ...] = field(init=False)  # of each layer; (): a table of positions instead
    prediction_act: str = field(init=False)  # the activation before tokens are predicted; "": hidden_act
    text_head: str = field(init=False)  # first layer of a text head: the pooler, or a linear layer with this activation
    dropout_before_text_head: bool = field(init=False)  # dropout before that layer too, not only after it
    choice_head: str = field(init=False)  # text_head of multiple choice; "": as text_head
    token_head: str = field(init=False)  # first layer of a head that reads each token; "": it has none
    norm_in_heads: bool = field(init=False)  # LayerNorm after the first layer of a text or token head
    classifier_dropout_on_choices: bool = field(init=False)  # False: multiple choice uses hidden_dropout_prob
    classifier_dropout_on_answers: bool = field(init=False)  # False: question answering uses qa_dropout
    classifier_dropout_on_tokens: bool = field(init=False)  # False: token classification uses hidden_dropout_prob

    def __post_init__(self) -> None:
        check(self)  # the functions of the family may trust each value
        if isinstance(self.embedding_size, Unstated):
            object.__setattr__(self, "embedding_size", Unstated(self.hidden_size))
        for name, value in self.family.decided(self).items():
            given = vars(self).get(name, value)
            if given != value and not isinstance(given, Unstated):
                raise ValueError(f"{name} is {brief(given)}; {self.family.title} cannot change it from {brief(value)}")
            object.__setattr__(self, name, value)
        self.check()

    def check(self) -> None:
        """Raise ValueError or TypeError for an unsupported value, or two that contradict each other."""
        for name, accepted in ABSENT.items():
            if name not in self.family.ignored and self.extra.get(name) not in (None, accepted):
                raise ValueError(f"{name} {brief(self.extra[name])} is not implemented; only {accepted!r} is")
        if self.hidden_size % (H := self.num_attention_heads):
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {H}")
        if self.rotary_thetas and self.hidden_size // H % 2:
            raise ValueError(f"a head is {self.hidden_size // H} wide; rotary positions need an even width")
        for name in ("prediction_act", "text_head", "token_head"):
            if getattr(self, name) not in ("", "pooler", *ACTIVATIONS):
                raise ValueError(f"{name} is {brief(getattr(self, name))}; choose from {', '.join(ACTIVATIONS)}")
        layers = len(set(self.shared_layers))
        for name in ("windows", "rotary_thetas"):
            if len(values := getattr(self, name)) not in (0, layers):
                raise ValueError(f"{name} has {len(values)} values and the model {layers} layers; one per layer")
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
        """Return the content of a config.json; the names of BERT are accepted for every relative."""
        return cls(**family_of(raw.get("model_type")).read(raw, [f.name for f in fields(cls)]))

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
        return self.family.write({f.name: getattr(self, f.name) for f in fields(self)})
