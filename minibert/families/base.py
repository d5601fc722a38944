"""A family: everything that one relative of BERT changed.

As data: how config.json names the sizes, how the files name the tensors, which task heads exist. In code: the classes
of model.py that it subclasses, in its own file. `architecture` gives both to the rest of minibert, of which no module
depends on which relative it computes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from minibert.config import ACTIVATIONS, Config
from minibert.inputs import KINDS
from minibert.model import Embeddings, Encoder, FeedForward, Layer, SelfAttention, layer_norm
from minibert.utils.printing import brief

NO_HEAD: Mapping[str, str] = MappingProxyType({})  # the modules of an encoder without a task head


def draw(values: Tensor, name: str, config: Config) -> None:
    """Draw the numbers of a matrix; name: of its module."""
    nn.init.normal_(values, std=config.initializer_range)


def initialise(model: nn.Module, config: Config, path: str = "", draw: Callable[..., None] = draw) -> None:
    """Initialise as BERT does: matrices from N(0, initializer_range²), biases 0, the scales of norms 1, [PAD] 0.

    Numbers are drawn in the order of transformers 5.23, so that one seed gives the same encoder (BertPreTrainedModel).
    path: the name of `model` within a larger one. draw: as above, in a relative otherwise.
    """
    for name, module in model.named_modules(prefix=path):
        for kind, values in module.named_parameters(recurse=False):
            if kind == "bias":
                nn.init.zeros_(values)
            elif values.dim() == 1:
                nn.init.ones_(values)
            else:
                draw(values, name, config)
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            nn.init.zeros_(module.weight[module.padding_idx])


@dataclass(frozen=True)
class Architecture:
    """What follows from a Config for the computation; the defaults are BERT's, see `bert`."""

    embedding_size: int  # width of the tables of tokens, positions and segments
    order: tuple[int, ...]  # the layer that computes each step: 0, 1, 2, ... unless layers share their weights
    text_dropout: float  # before the scores of a text
    choice_dropout: float  # before the score of a choice
    token_dropout: float  # before the scores of a token
    # The classes that compute.
    encoder: type[Encoder] = Encoder
    embeddings: type[Embeddings] = Embeddings
    attention: type[SelfAttention] = SelfAttention
    feed_forward: type[FeedForward] = FeedForward
    layer: type[Layer] = Layer
    norm: Callable[[Config, int], nn.Module] = layer_norm  # of this width
    initialise: Callable[..., None] = initialise
    # Ids besides those of tokens, by their argument -> the field of Config with the rows of their table.
    tables: Mapping[str, str] = field(default_factory=lambda: {"token_type_ids": "type_vocab_size"})
    first_position: int = 0  # position of the first token
    padding_has_position: bool = True  # False: only real tokens count; [PAD] has the row before the first
    layers_in_group: int = 1  # distinct layers in a group (ALBERT's files name layers by group)
    # What some classes read, and what describes them.
    norm_first: bool = False  # x + f(LN(x)) and a final norm, instead of LN(x + f(x))
    attention_bias: bool = True  # whether its linear layers have a bias
    feed_forward_bias: bool = True
    feed_forward_dropout: float = 0.0
    windows: tuple[int | None, ...] = ()  # of each layer: tokens at most half of it apart; (): no limit
    rotary_thetas: tuple[float, ...] = ()  # of each layer; (): a table of positions instead
    # Of the task heads. A first layer is "pooler", or the activation of a linear layer of the head's own, or "": none.
    prediction_act: str = ""  # the activation before tokens are predicted; "": hidden_act
    text_head: str = "pooler"  # first layer of a text head
    choice_head: str = ""  # the same of multiple choice; "": as text_head
    token_head: str = ""  # first layer of a head that reads each token
    dropout_before_text_head: bool = False  # dropout before that layer too, not only after it
    norm_in_heads: bool = False  # a norm after the first layer of a text or token head
    reads_mean: bool = False  # a text head reads the mean of all tokens in place of [CLS]
    head_bias: bool = True  # of the first layer
    decoder_bias: bool = True  # of the layer that predicts tokens
    sparse_prediction: bool = False  # with labels, a masked LM computes only the logits of labelled tokens
    answer_dropout: float = 0.0  # before the start and end logits of an answer

    def check(self, config: Config) -> None:
        """Raise ValueError for values that contradict each other or the config, or that minibert does not implement."""
        layers = len(set(self.order))
        for name, values in (("windows", self.windows), ("rotary_thetas", self.rotary_thetas)):
            if len(values) not in (0, layers):
                raise ValueError(f"{name} has {len(values)} values and the model {layers} layers; one per layer")
        if self.rotary_thetas and (W := config.hidden_size // config.num_attention_heads) % 2:
            raise ValueError(f"a head is {W} wide; rotary positions need an even width")
        for name in ("prediction_act", "text_head", "choice_head", "token_head"):
            if getattr(self, name) not in ("", "pooler", *ACTIVATIONS):
                raise ValueError(f"{name} is {brief(getattr(self, name))}; choose from {', '.join(ACTIVATIONS)}")
        for name, rows in self.tables.items():
            if name not in KINDS or not hasattr(config, rows):
                raise ValueError(
                    f"tables has {name!r}: {rows!r}; the ids are {' or '.join(KINDS)}, and a field of Config"
                )


def bert(config: Config, **changes: Any) -> Architecture:
    """Return BERT's architecture, with the changes of a relative."""
    dropout = config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
    own: dict[str, Any] = {
        "embedding_size": config.hidden_size,
        "order": tuple(range(config.num_hidden_layers)),
        "text_dropout": dropout,
        "choice_dropout": dropout,
        "token_dropout": dropout,
    }
    return Architecture(**own | changes)


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
    config: type[Config] = Config  # with the keys that only this relative has, and its defaults
    architecture: Callable[[Any], Architecture] = bert  # what follows from such a config
    lacks: Mapping[str, str] = field(default_factory=dict)  # task head that does not exist -> why
    # Field of Config -> key of config.json, where they differ; several fields may read one key.
    keys: Mapping[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()  # of these fields the name that BERT has, too; it counts before the key
    ignored: tuple[str, ...] = ()  # keys of config.ABSENT that have no effect here
    fused: tuple[str, ...] = ()  # official modules that hold several of ours
    tied_bias: str = ""  # the decoder's bias while it is tied to the token embedding; "": the decoder's own
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
    def has_segments(self) -> bool:
        """Whether a segment embedding distinguishes the two texts of a pair."""
        return "embeddings.segment" in self.modules

    @property
    def decoder(self) -> str:
        """The official name of the layer that predicts tokens; "" if there is none."""
        return self.heads.get("masked-lm", NO_HEAD).get("decoder", "")

    @property
    def decoder_biases(self) -> tuple[str, str]:
        """The decoder bias that transformers reads: while the decoder is tied to the token embedding, and when not."""
        own = f"{self.decoder}.bias"
        return self.tied_bias or own, own

    @property
    def second_names(self) -> dict[str, str]:
        """Tensors that official files may hold a second time: the second name -> the one in the tables."""
        if not self.decoder:
            return {}
        tied, own = self.decoder_biases
        weights = {f"{self.decoder}.weight": f"{self.modules['embeddings.token']}.weight"}
        return weights if tied == own else {tied: own} | weights

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
