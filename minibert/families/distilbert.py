"""DistilBERT (Sanh et al. 2019, "DistilBERT, a distilled version of BERT: smaller, faster, cheaper and lighter").

A BERT of half the depth, distilled from a full one: initialised with every second layer of the teacher, then trained on
the teacher's predictions, by the authors' script at every token. It keeps 97 % of BERT's scores with 60 % of its
parameters.

Besides layers it drops the segments, because it does not learn next sentence prediction, and with them the pooler; a
text head therefore has its own first layer, with ReLU. There is no dropout between attention and its residual.
config.json has other names for the sizes. Upstream: transformers 5.23 DistilBertModel and its heads.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from minibert.config import Config, fixed, fraction, size
from minibert.families.base import Architecture, Family, bert
from minibert.model import Embeddings, Layer

ENCODER = {
    "embeddings.token": "embeddings.word_embeddings",
    "embeddings.position": "embeddings.position_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
    "layers.{}.attention.query": "transformer.layer.{}.attention.q_lin",
    "layers.{}.attention.key": "transformer.layer.{}.attention.k_lin",
    "layers.{}.attention.value": "transformer.layer.{}.attention.v_lin",
    "layers.{}.attention.output": "transformer.layer.{}.attention.out_lin",
    "layers.{}.attention_norm": "transformer.layer.{}.sa_layer_norm",
    "layers.{}.feed_forward.expand": "transformer.layer.{}.ffn.lin1",
    "layers.{}.feed_forward.contract": "transformer.layer.{}.ffn.lin2",
    "layers.{}.feed_forward_norm": "transformer.layer.{}.output_layer_norm",
}
TEXT = {"pre_classifier": "pre_classifier", "classifier": "classifier"}
NO_PAIRS = "it was not trained on next sentences"


@dataclass(frozen=True)
class DistilBertConfig(Config):
    """The config.json of DistilBERT."""

    model_type: str = "distilbert"
    num_hidden_layers: int = size(6, maximum=2**12)
    type_vocab_size: int = fixed(default=0)
    layer_norm_eps: float = fixed(default=1e-12)
    classifier_dropout: float | None = fraction(0.2)
    qa_dropout: float = fraction(0.1)  # before the start and end logits of an answer


class WithoutSegments(Embeddings):
    """x = LayerNorm(token + position). Mirrors DistilBert's Embeddings."""

    def __init__(self, config: Config) -> None:
        nn.Module.__init__(self)  # not Embeddings', which creates segments too
        self.token = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.position = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.norm = config.architecture.norm(config, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def add(self, input_ids: Tensor, segments: Tensor | None, positions: Tensor) -> Tensor:
        """Return the sum of the vectors, (B,S) -> (B,S,D)."""
        return self.token(input_ids) + self.position(positions)  # type: ignore[no-any-return]  # (B,S,D)


class DistilBertLayer(Layer):
    """BERT's layer, without dropout between attention and its residual. Mirrors TransformerBlock."""

    def __init__(self, config: Config, number: int = 0) -> None:
        super().__init__(config, number)
        self.attention_residual.dropout.p = 0.0


def distilbert(config: DistilBertConfig) -> Architecture:
    """Return the architecture of DistilBERT."""
    return bert(
        config,
        embeddings=WithoutSegments,
        layer=DistilBertLayer,
        tables={},
        text_head="relu",
        token_dropout=config.hidden_dropout_prob,
        answer_dropout=config.qa_dropout,
    )


DISTILBERT = Family(
    name="distilbert",
    title="DistilBERT",
    upstream="DistilBert",
    prefix="distilbert.",
    modules=ENCODER,
    heads={
        "masked-lm": {
            "transform": "vocab_transform",
            "transform_norm": "vocab_layer_norm",
            "decoder": "vocab_projector",
        },
        "sequence-classification": TEXT,
        "token-classification": {"classifier": "classifier"},
        "question-answering": {"qa_outputs": "qa_outputs"},
        "multiple-choice": TEXT,
    },
    lacks={"next-sentence": NO_PAIRS, "pretraining": NO_PAIRS},
    keys={
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "classifier_dropout": "seq_classif_dropout",
    },
    aliases=("hidden_size", "num_hidden_layers", "num_attention_heads"),
    ignored=("position_embedding_type", "is_decoder", "add_cross_attention"),
    config=DistilBertConfig,
    architecture=distilbert,
)
