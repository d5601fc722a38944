"""ModernBERT (Warner et al. 2024, "Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder").

The encoder of BERT with what six years of language models have found. What each change is for:

    rotary positions    queries and keys are turned by their position: no table, and a score depends on the distance of
                        two tokens (Su et al. 2021, "RoFormer"); to read 8,192 of them took training and a larger θ
    local attention     in two of three layers a token attends to the 64 on each side of it, so that the cost grows with
                        the length, not with its square (Beltagy et al. 2020, "Longformer")
    norm first          x + f(LN(x)) in place of LN(x + f(x)): deep models train without trouble (Xiong et al. 2020)
    GeGLU               the feed-forward multiplies its activations by a second linear map (Shazeer 2020)
    no biases           except for the last layers of task heads
    no segments         and no next sentence prediction, as in RoBERTa

Read beside model.py, this file is what changed. Every task head begins with the layers of the masked LM head. Upstream:
transformers 5.23 ModernBertModel and its heads.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from minibert.activations import ACTIVATION
from minibert.config import ACTIVATIONS, Config, fixed, fraction, size
from minibert.families.base import Architecture, Family, bert, initialise
from minibert.families.distilbert import NO_PAIRS
from minibert.kernels.parts import OneProduct
from minibert.layout import Attend, Layout
from minibert.model import Embeddings, Encoder, FeedForward, Layer, SelfAttention
from minibert.utils.printing import brief
from minibert.utils.settings import check_number, setting

GLOBAL, LOCAL = "full_attention", "sliding_attention"  # the types of layers
THETAS = {GLOBAL: "global_rope_theta", LOCAL: "local_rope_theta"}
HEAD = {"pre_classifier": "head.dense", "pre_norm": "head.norm"}
BIASES = {"attention_bias": False, "feed_forward_bias": False, "norm_bias": False, "head_bias": False}


# ---------------------------------------------------------------------------------------------------------------
# What it computes


class TokenEmbeddings(Embeddings):
    """x = LayerNorm(token): no positions and no segments. Mirrors ModernBertEmbeddings."""

    def __init__(self, config: Config) -> None:
        nn.Module.__init__(self)  # not Embeddings', which creates the other tables too
        self.token = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.norm = config.architecture.norm(config, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def add(self, input_ids: Tensor, segments: Tensor | None, positions: Tensor) -> Tensor:
        """Return the vectors of the tokens, (B,S) -> (B,S,D)."""
        return self.token(input_ids)  # type: ignore[no-any-return]  # a Tensor


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Turn each pair of numbers by an angle that grows with the position, (B,H,S,W) -> (B,H,S,W) (Su et al. 2021).

    The product of a turned query and a turned key depends on the distance of their tokens only. Pair i is the numbers i
    and i + W/2, and its angle p theta^(-2i/W) at position p. Mirrors apply_rotary_pos_emb.
    """
    W = x.shape[-1]
    angles = positions[..., None].float() * (1.0 / theta ** (torch.arange(0, W, 2, device=x.device).float() / W))
    angles = torch.cat((angles, angles), dim=-1).unsqueeze(-3)  # (S,W/2) -> (1,S,W)
    exact = x.to(torch.promote_types(x.dtype, torch.float32))
    half = torch.cat((-exact[..., W // 2 :], exact[..., : W // 2]), dim=-1)
    return (exact * angles.cos() + half * angles.sin()).to(x.dtype)


class RotaryAttention(SelfAttention):
    """Multi-head attention of turned queries to turned keys, in a local layer only within a window."""

    def __init__(self, config: Config, number: int = 0) -> None:
        own = config.architecture
        super().__init__(config, number, own.attention_bias)
        self.theta = own.rotary_thetas[number]
        self.window = own.windows[number] if own.windows else None

    def forward(
        self, x: Tensor, layout: Layout, attend: Attend, wanted: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """(B,S,D) -> (B,S,D), and the attention probabilities (B,H,S,S) if `attend` stores them."""
        if layout.positions is None:
            raise ValueError(f"{type(layout).__name__} has no positions, and the model has rotary positions")
        positions = layout.positions

        def rotary(query: Tensor, key: Tensor, *more: Any) -> tuple[Tensor, Tensor | None]:
            query = rotate(query, layout.wanted(positions), self.theta)
            return attend(query, rotate(key, positions, self.theta), *more)

        return super().forward(x, layout.within(self.window), rotary, wanted)


class ModernBertAttention(RotaryAttention):
    """The same with queries, keys and values as one product. Mirrors ModernBertAttention."""

    leaves = RotaryAttention.leaves  # the same products

    def __init__(self, config: Config, number: int = 0) -> None:
        super().__init__(config, number)
        self.products = OneProduct()

    def project(self, x: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries of the wanted tokens, and the keys and values of all, (B,S,D) each."""
        if wanted is x:
            query, key, value = self.products(x, self.query, self.key, self.value)
            return query, key, value
        return self.query(wanted), *self.products(x, self.key, self.value)


class GatedFeedForward(FeedForward):
    """FFN(x) = (activation(x W₁) * (x V)) W₂ (GeGLU, or with another activation SwiGLU, ...: Shazeer 2020)."""

    leaves = FeedForward.leaves | {"gate": ("gate",)}

    def __init__(self, config: Config) -> None:
        nn.Module.__init__(self)  # not FeedForward's: a seed draws the gate before the last matrix
        D, width, bias = config.hidden_size, config.intermediate_size, config.architecture.feed_forward_bias
        self.expand = nn.Linear(D, width, bias)
        self.gate = nn.Linear(D, width, bias)
        self.contract = nn.Linear(width, D, bias)
        self.activation = ACTIVATION[config.hidden_act]
        self.dropout = nn.Dropout(config.architecture.feed_forward_dropout)

    def inner(self, x: Tensor) -> Tensor:
        """Return activation(x W₁) * (x V), (B,S,D) -> (B,S,F)."""
        return self.activation(self.expand(x)) * self.gate(x)  # type: ignore[no-any-return]  # a Tensor

    def forward(self, x: Tensor) -> Tensor:
        """(B,S,D) -> (B,S,F) -> (B,S,D)."""
        return self.contract(self.dropout(self.inner(x)))  # type: ignore[no-any-return]  # a Tensor


class ModernBertFeedForward(GatedFeedForward):
    """The same with both matrices as one product. Mirrors ModernBertMLP."""

    leaves = GatedFeedForward.leaves  # the same products

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.products = OneProduct()

    def inner(self, x: Tensor) -> Tensor:
        """Return activation(x W₁) * (x V), (B,S,D) -> (B,S,F)."""
        y, gate = self.products(x, self.expand, self.gate)
        return self.activation(y) * gate  # type: ignore[no-any-return]  # a Tensor


class PreNormLayer(Layer):
    """x = x + Attention(LayerNorm(x)); x = x + FFN(LayerNorm(x)), as most models after BERT (Xiong et al. 2020)."""

    def forward(self, x: Tensor, layout: Layout, attend: Attend) -> tuple[Tensor, Tensor | None]:
        """(B,S,D) -> (B,S,D), and the attention probabilities (B,H,S,S) if `attend` returns them."""
        normed = self.attention_norm(x)
        attended, probs = self.attention(normed, layout, attend, layout.wanted(normed))
        x = self.attention_residual(attended, layout.wanted(x))
        x = self.feed_forward_residual(self.feed_forward(self.feed_forward_norm(x)), x)
        return x, probs


class ModernBertLayer(PreNormLayer):
    """The same, with attention's dropout before its residual, and none after the feed-forward.

    The first layer has no norm before its attention, because the embeddings end with one. Mirrors
    ModernBertEncoderLayer.
    """

    def __init__(self, config: Config, number: int = 0) -> None:
        super().__init__(config, number)
        if number == 0:
            self.attention_norm = nn.Identity()
        self.attention_residual.dropout.p = config.attention_probs_dropout_prob
        self.feed_forward_residual.dropout.p = 0.0


class PreNormEncoder(Encoder):
    """An encoder of such layers, which ends with a norm. Mirrors ModernBertModel."""

    def __init__(self, config: Config, attention: str = "eager", pooler: bool = True) -> None:
        super().__init__(config, attention, pooler)
        self.final_norm = config.architecture.norm(config, config.hidden_size)

    def through_layers(
        self, x: Tensor, layout: Layout, attend: Attend, depth: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield the states after each layer, (B,S,D), the last ones normalised, and its attention probabilities."""
        steps = super().through_layers(x, layout, attend, depth)
        for step, (states, probs) in enumerate(steps, start=1):
            yield (self.final_norm(states) if step == len(self.order) else states), probs


def layer_norm(config: "ModernBertConfig", width: int) -> nn.Module:
    """Return LayerNorm, without a shift unless the checkpoint has one."""
    return nn.LayerNorm(width, eps=config.layer_norm_eps, bias=config.norm_bias)


def draw(values: Tensor, name: str, config: "ModernBertConfig") -> None:
    """Draw the numbers of a matrix, none further from 0 than initializer_cutoff_factor deviations.

    The matrices that end a residual branch or a head are smaller. Mirrors ModernBertPreTrainedModel._init_weights.
    """
    std = config.initializer_range
    last = name.rpartition(".")[2]
    if last in ("output", "contract", "transform", "pre_classifier", "decoder"):
        std /= (2 * config.num_hidden_layers) ** 0.5
    elif last in ("classifier", "qa_outputs"):
        std = config.hidden_size**-0.5
    most = config.initializer_cutoff_factor * std
    nn.init.trunc_normal_(values, std=std, a=-most, b=most)


# ---------------------------------------------------------------------------------------------------------------
# What its config.json says, for which there have been two sets of keys


@dataclass(frozen=True)
class ModernBertConfig(Config):
    """The config.json of ModernBERT."""

    model_type: str = "modernbert"
    vocab_size: int = size(50368)
    num_hidden_layers: int = size(22, maximum=2**12)
    intermediate_size: int = size(1152)
    max_position_embeddings: int = size(8192)  # the longest text: there is no table
    type_vocab_size: int = fixed(default=0)
    layer_norm_eps: float = fraction(1e-5)
    hidden_dropout_prob: float = fraction(0.0)  # after the embeddings
    attention_probs_dropout_prob: float = fraction(0.0)
    feed_forward_dropout: float = fraction(0.0)  # before the second matrix of the feed-forward
    pad_token_id: int = size(50283, minimum=0)
    classifier_dropout: float | None = fraction(0.0)
    attention_bias: bool = setting(False, "")  # whether these linear layers and LayerNorm have a bias
    feed_forward_bias: bool = setting(False, "")
    norm_bias: bool = setting(False, "")
    head_bias: bool = setting(False, "")  # of the first layer of a task head
    decoder_bias: bool = setting(True, "")  # of the layer that predicts tokens
    classifier_pooling: str = setting("cls", "", choices=("cls", "mean"))  # what a head reads of a text
    classifier_activation: str = setting("gelu", "", choices=ACTIVATIONS)  # of the first layer of a task head
    sparse_prediction: bool = setting(False, "")  # see Architecture
    initializer_cutoff_factor: float = setting(2.0, "", above=0)
    global_attn_every_n_layers: int = size(3)  # the first layer is global, and then one in so many
    layer_types: tuple[str, ...] | None = None  # of each layer, if they have no such period
    local_attention: int = size(128, minimum=0)  # the window of a local layer: tokens at most half of it away
    global_rope_theta: float = setting(160_000.0, "", above=0)  # of the angles in these layers
    local_rope_theta: float = setting(10_000.0, "", above=0)

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Self:
        """Return the content of a config.json with either set of keys; the newer ones count first.

        Raises ValueError for a rope_type other than "default".
        """
        values = dict(raw)
        types = values.get("layer_types")
        if isinstance(types, list) and len(types) == (values.get("num_hidden_layers") or cls.num_hidden_layers):
            periods = [every for every in range(1, len(types) + 1) if types == pattern(len(types), every)]
            values |= {"layer_types": None, "global_attn_every_n_layers": periods[0]} if periods else {}
        newer, scaling = (checked_dict(name, values.pop(name, None)) for name in ("rope_parameters", "rope_scaling"))
        for kind, name in THETAS.items():
            given = {**checked_dict(f"rope_parameters of {kind}", newer.get(kind)), **scaling}
            if (rope_type := given.get("rope_type", given.get("type", "default"))) != "default":
                raise ValueError(f"rope_type {brief(rope_type)} of {kind} is not implemented; only 'default' is")
            values |= {name: given["rope_theta"]} if given.get("rope_theta") is not None else {}
        half = values.pop("sliding_window", None)
        values |= {} if half is None else {"local_attention": 2 * check_number("sliding_window", half, int, 0, 2**23)}
        return super().from_dict(values)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of config.json, the angles under both sets of keys."""
        thetas = {kind: {"rope_type": "default", "rope_theta": getattr(self, name)} for kind, name in THETAS.items()}
        types = {"layer_types": list(self.types())} if self.layer_types else {}
        written = {name: value for name, value in super().to_dict().items() if name != "layer_types"}
        return {**written, **types, "rope_parameters": thetas}

    def with_layers(self, take: Sequence[int]) -> Self:
        """Return the config of a smaller one with these layers, each of its type."""
        types = [self.types()[number] for number in take]
        return self.from_dict(self.to_dict() | {"num_hidden_layers": len(take), "layer_types": types})

    def types(self) -> tuple[str, ...]:
        """Return the type of each layer. Raises ValueError for types that do not fit the layers."""
        L = self.num_hidden_layers
        types = self.layer_types
        if types is None:
            return tuple(pattern(L, self.global_attn_every_n_layers))
        if not isinstance(types, tuple) or len(types) != L or not {GLOBAL, LOCAL}.issuperset(map(str, types)):
            count = f"{len(types)} values" if isinstance(types, tuple) else brief(types)
            raise ValueError(f"layer_types has {count}, for {L} layers; each layer needs {GLOBAL!r} or {LOCAL!r}")
        return types


def pattern(layers: int, every: int) -> list[str]:
    """Return the types of layers of which the first, and then one in `every`, is global."""
    return [LOCAL if number % every else GLOBAL for number in range(layers)]


def checked_dict(name: str, value: Any) -> dict[str, Any]:
    """Return a value of config.json that must be a dictionary, {} for a null. Raises ValueError for any other."""
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{name} is {brief(value)}; it must be a dictionary")
    return value or {}


def modernbert(config: ModernBertConfig) -> Architecture:
    """Return the architecture of ModernBERT."""
    usual = bert(config)
    return bert(
        config,
        encoder=PreNormEncoder,
        embeddings=TokenEmbeddings,
        attention=ModernBertAttention,
        feed_forward=ModernBertFeedForward,
        layer=ModernBertLayer,
        norm=layer_norm,
        initialise=partial(initialise, draw=draw),
        tables={},
        norm_first=True,
        windows=tuple(config.local_attention if kind == LOCAL else None for kind in config.types()),
        rotary_thetas=tuple(getattr(config, THETAS[kind]) for kind in config.types()),
        attention_bias=config.attention_bias,
        feed_forward_bias=config.feed_forward_bias,
        feed_forward_dropout=config.feed_forward_dropout,
        head_bias=config.head_bias,
        decoder_bias=config.decoder_bias,
        prediction_act=config.classifier_activation,
        text_head=config.classifier_activation,
        token_head=config.classifier_activation,
        norm_in_heads=True,
        reads_mean=config.classifier_pooling == "mean",
        sparse_prediction=config.sparse_prediction,
        answer_dropout=usual.text_dropout,
    )


# ---------------------------------------------------------------------------------------------------------------
# Its names


MODERNBERT = Family(
    name="modernbert",
    title="ModernBERT",
    upstream="ModernBert",
    prefix="model.",
    modules={
        "embeddings.token": "embeddings.tok_embeddings",
        "embeddings.norm": "embeddings.norm",
        "layers.{}.attention_norm": "layers.{}.attn_norm",
        "layers.{}.attention.query": "layers.{}.attn.Wqkv",
        "layers.{}.attention.key": "layers.{}.attn.Wqkv",
        "layers.{}.attention.value": "layers.{}.attn.Wqkv",
        "layers.{}.attention.output": "layers.{}.attn.Wo",
        "layers.{}.feed_forward_norm": "layers.{}.mlp_norm",
        "layers.{}.feed_forward.expand": "layers.{}.mlp.Wi",
        "layers.{}.feed_forward.gate": "layers.{}.mlp.Wi",
        "layers.{}.feed_forward.contract": "layers.{}.mlp.Wo",
        "final_norm": "final_norm",
    },
    fused=("layers.{}.attn.Wqkv", "layers.{}.mlp.Wi"),
    heads={
        "masked-lm": {"transform": "head.dense", "transform_norm": "head.norm", "decoder": "decoder"},
        "sequence-classification": {**HEAD, "classifier": "classifier"},
        "token-classification": {**HEAD, "classifier": "classifier"},
        "question-answering": {**HEAD, "qa_outputs": "classifier"},
        "multiple-choice": {**HEAD, "classifier": "classifier"},
    },
    lacks={"next-sentence": NO_PAIRS, "pretraining": NO_PAIRS},
    config=ModernBertConfig,
    architecture=modernbert,
    keys={
        "hidden_act": "hidden_activation",
        "layer_norm_eps": "norm_eps",
        "hidden_dropout_prob": "embedding_dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "feed_forward_dropout": "mlp_dropout",
        "feed_forward_bias": "mlp_bias",
        "head_bias": "classifier_bias",
    },
    ignored=("position_embedding_type", "is_decoder", "add_cross_attention", "chunk_size_feed_forward"),
    settings={"masked-lm": {"sparse_pred_ignore_index": -100}},
    pairs_in_segments=False,
)
