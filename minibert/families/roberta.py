"""RoBERTa (Liu et al. 2019, "RoBERTa: A Robustly Optimized BERT Pretraining Approach").

The network of BERT, trained longer, on ten times the text, in larger batches, with new masks in every epoch and without
next sentence prediction, which did not help: 90.2 on MNLI where BERT-large had 86.6. Its byte-level BPE leaves no text
unknown. From fairseq it kept how positions are counted: they begin after the one for padding, at pad_token_id + 1,
and count only real tokens, so that the 514 rows of the position table serve 512 tokens. The text classifier has its own
first layer, with dropout before it too.

XLM-R (Conneau et al. 2019, "Unsupervised Cross-lingual Representation Learning at Scale") is the same for a hundred
languages with a vocabulary of 250,000, CamemBERT (Martin et al. 2019) the same for French. Both use SentencePiece.
Upstream: transformers 5.23 RobertaModel, XLMRobertaModel, CamembertModel and their heads.
"""

from dataclasses import dataclass, replace

from torch import Tensor

from minibert.config import Config, size
from minibert.families.base import Architecture, Family, bert
from minibert.families.bert import CLASSIFIER, ENCODER
from minibert.families.distilbert import NO_PAIRS
from minibert.model import Embeddings


@dataclass(frozen=True)
class RobertaConfig(Config):
    """The config.json of RoBERTa."""

    model_type: str = "roberta"
    vocab_size: int = size(50265)
    pad_token_id: int = size(1, minimum=0)


@dataclass(frozen=True)
class XLMRobertaConfig(RobertaConfig):
    """The config.json of XLM-R and CamemBERT."""

    model_type: str = "xlm-roberta"
    vocab_size: int = size(30522)


class RobertaEmbeddings(Embeddings):
    """BERT's embeddings, whose positions count only real tokens, from pad_token_id + 1. Mirrors RobertaEmbeddings."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.padding = self.position.padding_idx = config.pad_token_id

    def positions(self, input_ids: Tensor) -> Tensor:
        """Return the position of each token, (B,S) -> (B,S); [PAD] has the row before the first."""
        real = input_ids != self.padding
        return real.cumsum(dim=1) * real + self.padding


def roberta(config: RobertaConfig) -> Architecture:
    """Return the architecture of RoBERTa."""
    return bert(
        config,
        embeddings=RobertaEmbeddings,
        first_position=config.pad_token_id + 1,
        padding_has_position=False,
        prediction_act="gelu",
        text_head="tanh",
        dropout_before_text_head=True,
        choice_head="pooler",
        choice_dropout=config.hidden_dropout_prob,
    )


ROBERTA = Family(
    name="roberta",
    title="RoBERTa",
    upstream="Roberta",
    prefix="roberta.",
    modules=ENCODER,
    heads={
        "masked-lm": {
            "transform": "lm_head.dense",
            "transform_norm": "lm_head.layer_norm",
            "decoder": "lm_head.decoder",
        },
        "sequence-classification": {"pre_classifier": "classifier.dense", "classifier": "classifier.out_proj"},
        "token-classification": CLASSIFIER,
        "question-answering": {"qa_outputs": "qa_outputs"},
        "multiple-choice": CLASSIFIER,
    },
    lacks={"next-sentence": NO_PAIRS, "pretraining": NO_PAIRS},
    config=RobertaConfig,
    architecture=roberta,
    tied_bias="lm_head.bias",
    pairs_in_segments=False,
)
XLM_ROBERTA = replace(ROBERTA, name="xlm-roberta", title="XLM-R", upstream="XLMRoberta", config=XLMRobertaConfig)
CAMEMBERT = replace(XLM_ROBERTA, name="camembert", title="CamemBERT", upstream="Camembert")
