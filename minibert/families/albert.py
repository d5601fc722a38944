"""ALBERT (Lan et al. 2019, "ALBERT: A Lite BERT for Self-supervised Learning of Language Representations").

A BERT with a ninth of the weights, 12 million instead of 108 at the size of BERT-base, and the same computation. A
token by itself needs fewer numbers than a token in its context: the embeddings are 128 wide, and a linear map projects
them to the hidden size. All layers share one set of weights (or each of a few groups has its own): twelve steps, one
stored layer. Scaled to a hidden size of 4096, it beats BERT-large by 1.4 points on MNLI.

Next sentence prediction is too easy, because another topic is enough to recognise a random sentence; ALBERT instead
predicts the order of two consecutive texts (`sop_logits`). There is no dropout after the feed-forward, and in version 2
none at all in pretraining; the activation is GELU by tanh. Upstream: transformers 5.23 AlbertModel and its heads.
"""

from dataclasses import dataclass

from minibert.config import ACTIVATIONS, Config, fraction, size
from minibert.families.base import Architecture, Family, bert
from minibert.families.bert import CLASSIFIER
from minibert.families.electra import ProjectedEmbeddings
from minibert.model import Layer
from minibert.utils.settings import check_number, setting

LAYER = "encoder.albert_layer_groups.{}.albert_layers.{}"
ENCODER = {
    "embeddings.token": "embeddings.word_embeddings",
    "embeddings.segment": "embeddings.token_type_embeddings",
    "embeddings.position": "embeddings.position_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
    "embeddings.embedding_projection": "encoder.embedding_hidden_mapping_in",
    "layers.{}.attention.query": f"{LAYER}.attention.query",
    "layers.{}.attention.key": f"{LAYER}.attention.key",
    "layers.{}.attention.value": f"{LAYER}.attention.value",
    "layers.{}.attention.output": f"{LAYER}.attention.dense",
    "layers.{}.attention_norm": f"{LAYER}.attention.LayerNorm",
    "layers.{}.feed_forward.expand": f"{LAYER}.ffn",
    "layers.{}.feed_forward.contract": f"{LAYER}.ffn_output",
    "layers.{}.feed_forward_norm": f"{LAYER}.full_layer_layer_norm",
    "pooler.dense": "pooler",
}
TOKENS = {
    "transform": "predictions.dense",
    "transform_norm": "predictions.LayerNorm",
    "decoder": "predictions.decoder",
}


@dataclass(frozen=True)
class AlbertConfig(Config):
    """The config.json of ALBERT."""

    model_type: str = "albert"
    vocab_size: int = size(30000)
    embedding_size: int = size(128)  # width of the tables
    hidden_size: int = size(4096)
    num_attention_heads: int = size(64)
    intermediate_size: int = size(16384)
    num_hidden_groups: int = size(1)  # groups of layers that share their weights
    inner_group_num: int = size(1, maximum=64)  # distinct layers in a group
    hidden_act: str = setting("gelu_new", "", choices=ACTIVATIONS)
    hidden_dropout_prob: float = fraction(0.0)
    attention_probs_dropout_prob: float = fraction(0.0)
    classifier_dropout: float | None = fraction(0.1)


class AlbertLayer(Layer):
    """BERT's layer, without dropout between feed-forward and its residual. Mirrors AlbertLayer."""

    def __init__(self, config: Config, number: int = 0) -> None:
        super().__init__(config, number)
        self.feed_forward_residual.dropout.p = 0.0


def order(config: AlbertConfig) -> tuple[int, ...]:
    """Return which layer computes each step: step i uses group int(i / (L / groups)), all of its layers in turn.

    Raises ValueError for more groups than steps.
    """
    L, inner = config.num_hidden_layers, config.inner_group_num
    check_number("num_hidden_groups, at most num_hidden_layers,", config.num_hidden_groups, int, 1, L)
    steps_per_group = L / config.num_hidden_groups  # a fraction is rounded where upstream rounds it
    groups = [int(step / steps_per_group) for step in range(L)]
    return tuple(group * inner + layer for group in groups for layer in range(inner))


def albert(config: AlbertConfig) -> Architecture:
    """Return the architecture of ALBERT."""
    return bert(
        config,
        embedding_size=config.embedding_size,
        embeddings=ProjectedEmbeddings,  # even where embedding_size equals hidden_size
        layer=AlbertLayer,
        order=order(config),
        layers_in_group=config.inner_group_num,
    )


ALBERT = Family(
    name="albert",
    title="ALBERT",
    upstream="Albert",
    prefix="albert.",
    modules=ENCODER,
    heads={
        "masked-lm": TOKENS,
        "pretraining": {**TOKENS, "sentence_order": "sop_classifier.classifier"},
        "sequence-classification": CLASSIFIER,
        "token-classification": CLASSIFIER,
        "question-answering": {"qa_outputs": "qa_outputs"},
        "multiple-choice": CLASSIFIER,
    },
    lacks={"next-sentence": "ALBERT predicts the order of sentences instead; see pretraining"},
    config=AlbertConfig,
    architecture=albert,
    keys={"classifier_dropout": "classifier_dropout_prob"},
    ignored=("is_decoder", "add_cross_attention"),
    tied_bias="predictions.bias",
    outputs={"embeddings": "encoder.embedding_hidden_mapping_in", "pooler": "pooler_activation"},
)
