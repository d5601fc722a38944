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

from dataclasses import replace

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


ERNIE = replace(
    BERT,
    name="ernie",
    title="ERNIE",
    upstream="Ernie",
    prefix="ernie.",
    modules={**ENCODER, "embeddings.task": "embeddings.task_type_embeddings"},
    keys={"use_task_id": "use_task_id", "task_type_vocab_size": "task_type_vocab_size"},
    behaviour={"task_vocab_size": lambda config: config.task_type_vocab_size if config.use_task_id else 0},
)
