"""DistilBERT (Sanh et al. 2019, "DistilBERT, a distilled version of BERT: smaller, faster, cheaper and lighter").

A BERT of half the depth, distilled from a full one: initialised with every second layer of the teacher, then trained on
the teacher's predictions, by the authors' script at every token. It keeps 97 % of BERT's scores with 60 % of its
parameters.

Besides layers it drops the segments, because it does not learn next sentence prediction, and with them the pooler; a
text head therefore has its own first layer, with ReLU. There is no dropout between attention and its residual.
config.json has other names for the sizes. Upstream: transformers 5.23 DistilBertModel and its heads.
"""

from minibert.families.base import Family

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
        "qa_dropout": "qa_dropout",
    },
    aliases=("hidden_size", "num_hidden_layers", "num_attention_heads"),
    ignored=("position_embedding_type", "is_decoder", "add_cross_attention"),
    defaults={"num_hidden_layers": 6, "classifier_dropout": 0.2, "qa_dropout": 0.1},
    behaviour={
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-12,
        "attention_residual_dropout": 0.0,
        "text_head": "relu",
        "classifier_dropout_on_tokens": False,
    },
    second_names={"vocab_projector.weight": "embeddings.word_embeddings.weight"},
    decoder_bias=("vocab_projector.bias", "vocab_projector.bias"),
)
