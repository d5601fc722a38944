"""ELECTRA (Clark et al. 2020, "ELECTRA: Pre-training Text Encoders as Discriminators Rather Than Generators").

A masked language model learns from the 15 % of tokens that were masked. ELECTRA learns from all tokens: a small
generator, itself a masked language model, fills the masks with likely words, and the discriminator, the model that is
kept, classifies every token as original or replaced. It learns more in the same time: a small one, trained for four
days on one GPU, beats GPT; a large one equals RoBERTa with a quarter of its computation.

The encoder is BERT's. Where the embeddings are narrower than the hidden size (a small ELECTRA: 128 and 256), a linear
map follows their norm and dropout. There is no pooler: the text classifier has its own first layer, with GELU and with
dropout before it too. Upstream: transformers 5.23 ElectraModel and its heads.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from minibert.config import Config, fraction, size
from minibert.families.base import Architecture, Family, bert
from minibert.families.bert import CLASSIFIER, ENCODER
from minibert.model import Embeddings

OWN_OBJECTIVE = "it was trained on replaced token detection; see replaced-token-detection"


@dataclass(frozen=True)
class ElectraConfig(Config):
    """The config.json of ELECTRA."""

    model_type: str = "electra"
    embedding_size: int = size(128)  # width of the tables
    hidden_size: int = size(256)
    num_attention_heads: int = size(4)
    intermediate_size: int = size(1024)
    choice_dropout: float | None = fraction(0.1)  # before the score of a choice; None: classifier_dropout


class ProjectedEmbeddings(Embeddings):
    """x = LayerNorm(token + segment + position) P + a, from narrow tables to D. Mirrors those of ElectraModel."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.embedding_projection = nn.Linear(config.architecture.embedding_size, config.hidden_size)

    def forward(self, input_ids: Tensor, *ids: Any, **kinds: Any) -> Tensor:
        """Return the projected embeddings, (B,S) each -> (B,S,D)."""
        return self.embedding_projection(super().forward(input_ids, *ids, **kinds))  # type: ignore[no-any-return]  # a Tensor


def electra(config: ElectraConfig) -> Architecture:
    """Return the architecture of ELECTRA."""
    return bert(
        config,
        embedding_size=config.embedding_size,
        embeddings=Embeddings if config.embedding_size == config.hidden_size else ProjectedEmbeddings,
        prediction_act="gelu",
        text_head="gelu",
        dropout_before_text_head=True,
        **({} if config.choice_dropout is None else {"choice_dropout": config.choice_dropout}),
    )


ELECTRA = Family(
    name="electra",
    title="ELECTRA",
    upstream="Electra",
    prefix="electra.",
    modules={name: official for name, official in ENCODER.items() if name != "pooler.dense"}
    | {"embeddings.embedding_projection": "embeddings_project"},
    heads={
        "masked-lm": {
            "transform": "generator_predictions.dense",
            "transform_norm": "generator_predictions.LayerNorm",
            "decoder": "generator_lm_head",
        },
        "replaced-token-detection": {
            "transform": "discriminator_predictions.dense",
            "classifier": "discriminator_predictions.dense_prediction",
        },
        "sequence-classification": {"pre_classifier": "classifier.dense", "classifier": "classifier.out_proj"},
        "token-classification": CLASSIFIER,
        "question-answering": {"qa_outputs": "qa_outputs"},
        "multiple-choice": {"pre_classifier": "sequence_summary.summary", "classifier": "classifier"},
    },
    lacks={"next-sentence": OWN_OBJECTIVE, "pretraining": OWN_OBJECTIVE},
    config=ElectraConfig,
    architecture=electra,
    keys={"choice_dropout": "summary_last_dropout"},
    outputs={"embeddings": "embeddings_project"},
    settings={
        "multiple-choice": {
            "summary_type": "first",
            "summary_use_proj": True,
            "summary_activation": "gelu",
            "summary_proj_to_labels": False,
            "summary_first_dropout": 0,
        }
    },
)
