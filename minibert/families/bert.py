"""BERT (Devlin et al. 2018, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding").

The one that the relatives are measured against, and the defaults of Config. Before it, language models read from left
to right, for a word must not see itself when it is predicted. BERT hides words behind [MASK] instead and guesses them
from both sides, in every layer; and it learns whether a second text follows the first, for which the first token,
[CLS], is read by a pooler. What came out of pretraining is fine-tuned for each task with one more layer.

BERTs of other languages and fields, and small ones such as MiniLM, have other weights and vocabularies, and the same
shape. Upstream: transformers 5.23 BertModel and its heads.
"""

from minibert.families.base import Family

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
    second_names={
        "cls.predictions.bias": "cls.predictions.decoder.bias",
        "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
    },
    decoder_bias=("cls.predictions.bias", "cls.predictions.decoder.bias"),
)
