"""The readable pooling: each text has the vector of its own tokens, whatever stands beside it in a batch."""

from typing import Any

import numpy as np
import pytest
import torch
from support.models import minilm_folder, open_upstream

import minibert
from minibert.vectors.readable import Matrix, readable_vectors

NAME = "all-MiniLM-L6-v2"
TEXTS = ["a stunning film", "dull, and far too long", "", "the best soup in town", "never again", "fine"]
LONG = "a long and winding road " * 40  # 202 tokens
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def encoder() -> minibert.Encoder:
    return minibert.load(NAME, attention="sdpa")


@pytest.fixture(scope="module")
def ids() -> list[list[int]]:
    return minibert.load_tokenizer(NAME).ids([*TEXTS, LONG])


@pytest.fixture
def small() -> minibert.Encoder:
    """An encoder of one layer, for what does not depend on the size."""
    torch.manual_seed(0)
    config = minibert.Config(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    return minibert.Encoder(config).eval()


def vectors(encoder: minibert.Encoder, ids: list[list[int]], **settings: Any) -> Matrix:
    return readable_vectors(encoder, ids, minibert.Recipe(**{"pooling": "cls"} | settings))


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "pooler"])
def test_a_text_has_the_same_vector_alone_and_in_a_batch_and_beside_a_long_text(encoder, ids, pooling):
    *short, long = ids
    alone = np.concatenate([vectors(encoder, [row], pooling=pooling) for row in short])
    assert np.abs(alone - vectors(encoder, short, pooling=pooling)).max() <= TOLERANCE
    beside_the_long = vectors(encoder, [*short[:2], long], pooling=pooling)
    assert np.abs(alone[:2] - beside_the_long[:2]).max() <= TOLERANCE


def test_vectors_equal_the_output_of_transformers_pooled_by_hand():
    from transformers import AutoModel, AutoTokenizer

    texts = [*TEXTS, "a long and winding road " * 9]
    reference = open_upstream(AutoModel, minilm_folder())
    batch = AutoTokenizer.from_pretrained(minilm_folder())(texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        out = reference(**batch, output_hidden_states=True)
    counts = batch.attention_mask.sum(1).tolist()

    def by_hand(layer, how):
        rows = [states[:count] for states, count in zip(out.hidden_states[layer], counts, strict=True)]
        return torch.stack([row[0] if how == "cls" else getattr(row, how)(0) for row in rows]).numpy()

    last_two = [by_hand(-2, "mean"), by_hand(-1, "mean")]
    for expected, settings in [
        (by_hand(-1, "cls"), {"pooling": "cls"}),
        (by_hand(0, "cls"), {"pooling": "cls", "layers": 0}),
        (by_hand(-1, "mean"), {"pooling": "mean"}),
        (by_hand(3, "amax"), {"pooling": "max", "layers": [3]}),
        (out.pooler_output.numpy(), {"pooling": "pooler"}),
        (np.concatenate(last_two, axis=1), {"pooling": "mean", "layers": (-2, -1)}),
        (last_two[0] + last_two[1], {"pooling": "mean", "layers": (5, 6), "combine": "sum"}),
        ((last_two[0] + last_two[1]) / 2, {"pooling": "mean", "layers": (-2, 6), "combine": "mean"}),
    ]:
        X = minibert.embed(texts, NAME, **settings)
        assert X.dtype == np.float32 and X.shape == expected.shape
        assert np.abs(X - expected).max() <= TOLERANCE, settings


def test_dropout_is_off_while_vectors_are_computed_and_every_module_keeps_its_mode_also_after_errors(small, ids):
    expected = vectors(small, ids[:3])
    small.train()
    small.layers[0].eval()
    before = [module.training for module in small.modules()]
    for rows, message in (([[10**6]], "vocab_size"), ([[101, 102], []], "row 1 has no tokens")):
        with pytest.raises(ValueError, match=message):
            vectors(small, rows)
    assert np.array_equal(vectors(small, ids[:3]), expected)
    assert [module.training for module in small.modules()] == before
