"""BERT (Devlin et al. 2018, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding").

The reference for all relatives, and the defaults of Config. Language models before it read from left to right, because
a word must not see itself when it is predicted. BERT replaces words by [MASK] and predicts them from both sides, in
every layer; it also learns whether a second text follows the first, from the first token, [CLS], through a pooler. The
pretrained model is fine-tuned for each task with one more layer.

BERTs of other languages and fields, and small ones such as MiniLM, have other weights and vocabularies and the same
architecture. Upstream: transformers 5.23 BertModel and its heads.

ERNIE (Sun et al. 2019, "ERNIE: Enhanced Representation through Knowledge Integration", and "ERNIE 2.0") is defined here
too: a BERT trained in another way. Chinese is written without spaces, and BERT masks single characters, which are easy
to guess from their neighbours; ERNIE masks whole words, names and phrases, so that it must learn their meaning. Version
2.0 learns several tasks one after the other and adds an embedding of the task to every token, task 0 by default. It
beat BERT on 16 tasks, English and Chinese.
"""

from dataclasses import dataclass, replace

from torch import Tensor, nn

from minibert.config import Config, size
from minibert.families.base import Architecture, Family, bert
from minibert.model import Embeddings
from minibert.utils.settings import setting

ENCODER = {
    "embeddings.token": "embeddings.word_embeddings",
    "embeddings.segment": "embeddings.token_type_embeddings",
    "embeddings.position": "embeddings.position_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
    "layers.{}.attention.query": "encoder.layer.{}.attention.self.query",
    "layers.{}.attention.key": "encoder.layer.{}.attention.self.key",
    "layers.{}.attention.value": "encoder.layer.{}.attention.self.value",
    "layers.{}.attention.output": "encoder.layer.{}.attention.output.dense",
    "layers.{}.attention_norm": "encoder.layer.{}.attention.output.LayerNorm",
    "layers.{}.feed_forward.expand": "encoder.layer.{}.intermediate.dense",
    "layers.{}.feed_forward.contract": "encoder.layer.{}.output.dense",
    "layers.{}.feed_forward_norm": "encoder.layer.{}.output.LayerNorm",
    "pooler.dense": "pooler.dense",
}
TOKENS = {
    "transform": "cls.predictions.transform.dense",
    "transform_norm": "cls.predictions.transform.LayerNorm",
    "decoder": "cls.predictions.decoder",
}
NEXT_SENTENCE = {"next_sentence": "cls.seq_relationship"}
CLASSIFIER = {"classifier": "classifier"}

BERT = Family(
    name="bert",
    title="BERT",
    upstream="Bert",
    prefix="bert.",
    modules=ENCODER,
    heads={
        "masked-lm": TOKENS,
        "next-sentence": NEXT_SENTENCE,
        "pretraining": TOKENS | NEXT_SENTENCE,
        "sequence-classification": CLASSIFIER,
        "token-classification": CLASSIFIER,
        "question-answering": {"qa_outputs": "qa_outputs"},
        "multiple-choice": CLASSIFIER,
    },
    tied_bias="cls.predictions.bias",
)


@dataclass(frozen=True)
class ErnieConfig(Config):
    """The config.json of ERNIE."""

    model_type: str = "ernie"
    use_task_id: bool = setting(False, "")  # whether an embedding of the task is added to each token
    task_type_vocab_size: int = size(3, minimum=0)  # tasks


class ErnieEmbeddings(Embeddings):
    """x = LayerNorm(token + segment + position + task). Mirrors ErnieEmbeddings."""

    def __init__(self, config: ErnieConfig) -> None:
        super().__init__(config)
        self.task = nn.Embedding(config.task_type_vocab_size, config.hidden_size)

    def add(
        self, input_ids: Tensor, segments: Tensor | None, positions: Tensor, task_type_ids: Tensor | None = None
    ) -> Tensor:
        """Return the sum of the vectors, (B,S) -> (B,S,D). task_type_ids: None means task 0 for all."""
        task = self.task.weight[0] if task_type_ids is None else self.task(task_type_ids)
        return super().add(input_ids, segments, positions) + task  # (B,S,D)


def ernie(config: ErnieConfig) -> Architecture:
    """Return BERT's architecture, with tasks if the checkpoint has them."""
    if not config.use_task_id or not config.task_type_vocab_size:
        return bert(config)
    tables = {"token_type_ids": "type_vocab_size", "task_type_ids": "task_type_vocab_size"}
    return bert(config, embeddings=ErnieEmbeddings, tables=tables)


ERNIE = replace(
    BERT,
    name="ernie",
    title="ERNIE",
    upstream="Ernie",
    prefix="ernie.",
    modules={**ENCODER, "embeddings.task": "embeddings.task_type_embeddings"},
    config=ErnieConfig,
    architecture=ernie,
)
