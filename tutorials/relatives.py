"""The tools of notebook 11: small random relatives of BERT, the position rows that they use, and published sizes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from minibert import Config, Encoder
from minibert.families import FAMILIES
from minibert.parity.checkpoints import randomise

PUBLISHED: dict[str, dict[str, Any]] = {
    "BERT-base": {"model_type": "bert"},
    "BERT-large": {
        "model_type": "bert",
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
    "DistilBERT-base": {"model_type": "distilbert"},
    "RoBERTa-base": {"model_type": "roberta", "max_position_embeddings": 514, "type_vocab_size": 1},
    "XLM-R-base": {
        "model_type": "xlm-roberta",
        "vocab_size": 250002,
        "max_position_embeddings": 514,
        "type_vocab_size": 1,
    },
    "ALBERT-base-v2": {
        "model_type": "albert",
        "hidden_size": 768,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
    },
    "ELECTRA-small": {"model_type": "electra"},
    "ELECTRA-base": {
        "model_type": "electra",
        "embedding_size": 768,
        "hidden_size": 768,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
    },
}


def small(model_type: str, vocab_size: int = 50, **values: Any) -> Encoder:
    """Return a small encoder of this relative; all its weights are random, including each LayerNorm and bias."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    raw = {"max_position_embeddings": 12, "vocab_size": vocab_size, "type_vocab_size": 2, **sizes, **values}
    keys = FAMILIES[model_type].keys  # what its config.json calls them
    raw = {keys.get(name, name): value for name, value in raw.items()}
    encoder = Encoder(Config.from_dict({"model_type": model_type, **raw})).eval()
    randomise(encoder, seed=0)
    return encoder


def rows_used(encoder: Encoder, ids: Tensor) -> list[list[int]]:
    """Return for each token the rows of the position table that its embedding depends on."""
    table = encoder.embeddings.position.weight.data
    before = encoder.embeddings(ids)
    used: list[list[int]] = [[] for _ in ids[0]]
    for row in range(len(table)):
        kept = table[row].clone()
        table[row] += torch.arange(table.shape[1])
        changed = (encoder.embeddings(ids) != before).any(-1)[0]
        table[row] = kept
        for place in changed.nonzero().flatten().tolist():
            used[place].append(row)
    return used


def count(raw: dict[str, Any]) -> tuple[dict[str, int], int]:
    """Return the parameters of each part of an encoder, and what the uses of its layers sum up to."""
    with torch.device("meta"):  # shapes without numbers
        encoder = Encoder(Config.from_dict(raw))
    words = {
        "token.": "tokens",
        "embedding_projection": "map",
        "norm": "norms",
        "pooler": "pooler",
        "attention.": "attention",
        "feed_forward": "feed-forward",
        "embeddings": "other tables",
    }
    parts = ("tokens", "other tables", "map", "attention", "feed-forward", "norms", "pooler")
    found = dict.fromkeys(parts, 0)
    for name, parameter in encoder.named_parameters():
        found[next(part for word, part in words.items() if word in name)] += parameter.numel()
    of_layer = [sum(parameter.numel() for parameter in layer.parameters()) for layer in encoder.layers]
    return found, sum(of_layer[number] for number in encoder.order)
