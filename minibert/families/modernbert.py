"""ModernBERT (Warner et al. 2024, "Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder").

The encoder of BERT with what six years of language models have found. What each change is for:

    rotary positions    queries and keys are turned by their position: no table, so a text may be 8,192 tokens long, and
                        a score depends on the distance of two tokens (Su et al. 2021, "RoFormer")
    local attention     in two of three layers a token attends to the 64 on each side of it, so that the cost grows with
                        the length, not with its square (Beltagy et al. 2020, "Longformer")
    norm first          x + f(LN(x)) in place of LN(x + f(x)): deep models train without trouble (Xiong et al. 2020)
    GeGLU               the feed-forward multiplies its activations by a second linear map (Shazeer 2020)
    no biases           except for the last layers of task heads
    no segments         and no next sentence prediction, as in RoBERTa

model.py computes all of it; this file says which of it ModernBERT has, and reads the layout of layers and angles, for
which config.json has had two sets of keys. Every task head begins with the layers of the masked LM head. Upstream:
transformers 5.23 ModernBertModel and its heads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minibert.families.base import Family
from minibert.families.distilbert import NO_PAIRS
from minibert.utils.printing import brief
from minibert.utils.settings import check_number

GLOBAL, LOCAL = "full_attention", "sliding_attention"  # the types of layers
THETAS = {GLOBAL: ("global_rope_theta", 160_000.0), LOCAL: ("local_rope_theta", 10_000.0)}  # older key, default
HEAD = {"pre_classifier": "head.dense", "pre_norm": "head.norm"}
BIASES = {"attention_bias": False, "feed_forward_bias": False, "norm_bias": False, "head_bias": False}


def pattern(layers: int, every: int) -> list[str]:
    """Return the types of layers of which the first, and then one in `every`, is global."""
    return [LOCAL if number % every else GLOBAL for number in range(layers)]


def layer_types(config: Any) -> list[str]:
    """Return the type of each layer. Raises ValueError or TypeError for types that do not fit the layers."""
    L = config.num_hidden_layers
    types = config.extra.get("layer_types")
    if types is None:
        every = config.extra.get("global_attn_every_n_layers")
        check_number("global_attn_every_n_layers", every := 3 if every is None else every, int, 1)
        return pattern(L, every)
    if not isinstance(types, list) or len(types) != L or not {GLOBAL, LOCAL}.issuperset(map(str, types)):
        count = f"{len(types)} values" if isinstance(types, list) else brief(types)
        raise ValueError(f"layer_types has {count}, for {L} layers; each layer needs {GLOBAL!r} or {LOCAL!r}")
    return types


def windows(config: Any) -> tuple[int | None, ...]:
    """Return the window of each layer; None: the layer is global. sliding_window, half of it, counts first."""
    window, half = (config.extra.get(key) for key in ("local_attention", "sliding_window"))
    check_number("local_attention", window := 128 if window is None else window, int, 0, 2**24)
    window = window if half is None else 2 * check_number("sliding_window", half, int, 0, 2**23)
    return tuple(window if one == LOCAL else None for one in layer_types(config))


def rotary_thetas(config: Any) -> tuple[float, ...]:
    """Return theta of each layer: from rope_parameters, else from the older keys, else the defaults.

    Raises ValueError for a rope_type other than "default".
    """
    newer = config.extra.get("rope_parameters") or {}
    thetas = {}
    for kind, (older, default) in THETAS.items():
        given = {**(newer.get(kind) or {}), **(config.extra.get("rope_scaling") or {})}
        if (rope_type := given.get("rope_type", given.get("type", "default"))) != "default":
            raise ValueError(f"rope_type {brief(rope_type)} of {kind} is not implemented; only 'default' is")
        stated = [theta for theta in (given.get("rope_theta"), config.extra.get(older)) if theta is not None]
        thetas[kind] = theta = (stated or [default])[0]
        check_number(f"rope_theta of {kind}", theta, float, above=0)
    return tuple(thetas[one] for one in layer_types(config))


def activation(config: Any) -> str:
    """Return the activation of the first layer of every task head."""
    return str(config.extra.get("classifier_activation") or "gelu")


@dataclass(frozen=True)
class WithLayerTypes(Family):
    """A family whose config.json may list the type of each layer."""

    def read(self, raw: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
        """Read a config.json; a list that repeats becomes its period, which fits any number of layers."""
        types = raw.get("layer_types")
        if isinstance(types, list) and len(types) == raw.get("num_hidden_layers", self.defaults["num_hidden_layers"]):
            for every in range(1, len(types) + 1):
                if types == pattern(len(types), every):
                    kept = {name: value for name, value in raw.items() if name != "layer_types"}
                    return super().read(kept | {"global_attn_every_n_layers": every}, fields)
        return super().read(raw, fields)


MODERNBERT = WithLayerTypes(
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
    keys={
        "hidden_act": "hidden_activation",
        "layer_norm_eps": "norm_eps",
        "hidden_dropout_prob": "embedding_dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "feed_forward_dropout": "mlp_dropout",
        "attention_bias": "attention_bias",
        "feed_forward_bias": "mlp_bias",
        "norm_bias": "norm_bias",
        "head_bias": "classifier_bias",
        "decoder_bias": "decoder_bias",
        "classifier_pooling": "classifier_pooling",
        "initializer_cutoff_factor": "initializer_cutoff_factor",
        "sparse_prediction": "sparse_prediction",
    },
    ignored=("position_embedding_type", "is_decoder", "add_cross_attention", "chunk_size_feed_forward"),
    defaults={
        **BIASES,
        "vocab_size": 50368,
        "intermediate_size": 1152,
        "num_hidden_layers": 22,
        "max_position_embeddings": 8192,
        "layer_norm_eps": 1e-5,
        "pad_token_id": 50283,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "classifier_dropout": 0.0,
        "initializer_cutoff_factor": 2.0,
    },
    behaviour={
        "type_vocab_size": 0,
        "norm_first": True,
        "gated": True,
        "windows": windows,
        "rotary_thetas": rotary_thetas,
        "attention_residual_dropout": lambda config: config.attention_probs_dropout_prob,
        "feed_forward_residual_dropout": 0.0,
        "prediction_act": activation,
        "text_head": activation,
        "token_head": activation,
        "norm_in_heads": True,
        "classifier_dropout_on_answers": True,
    },
    second_names={"decoder.weight": "embeddings.tok_embeddings.weight"},
    decoder_bias=("decoder.bias", "decoder.bias"),
    settings={"masked-lm": {"sparse_pred_ignore_index": -100}},
    pairs_in_segments=False,
)
