"""ELECTRA (Clark et al. 2020, "ELECTRA: Pre-training Text Encoders as Discriminators Rather Than Generators").

A masked language model learns from the 15 % of tokens that were masked. ELECTRA learns from all tokens: a small
generator, itself a masked language model, fills the masks with likely words, and the discriminator, the model that is
kept, classifies every token as original or replaced. It learns more in the same time: a small one, trained for four
days on one GPU, beats GPT; a large one equals RoBERTa with a quarter of its computation.

The encoder is BERT's. Where the embeddings are narrower than the hidden size (a small ELECTRA: 128 and 256), a linear
map follows their norm and dropout. There is no pooler: the text classifier has its own first layer, with GELU and with
dropout before it too. Upstream: transformers 5.23 ElectraModel and its heads.
"""

from minibert.families.base import Family
from minibert.families.bert import CLASSIFIER, ENCODER

OWN_OBJECTIVE = "it was trained on replaced token detection; see replaced-token-detection"

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
    keys={"embedding_size": "embedding_size", "choice_dropout": "summary_last_dropout"},
    defaults={
        "embedding_size": 128,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
        "choice_dropout": 0.1,
    },
    behaviour={"prediction_act": "gelu", "text_head": "gelu", "dropout_before_text_head": True},
    second_names={"generator_lm_head.weight": "embeddings.word_embeddings.weight"},
    decoder_bias=("generator_lm_head.bias", "generator_lm_head.bias"),
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
