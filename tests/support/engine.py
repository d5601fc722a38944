"""What the tests of the engine share: small random encoders, random rows of ids, and the readable vectors."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from minibert import Config, Encoder, Recipe
from minibert.kernels.int8 import is_exact
from minibert.parity.checkpoints import randomise
from minibert.utils import device
from minibert.vectors.engine import Engine
from minibert.vectors.readable import Matrix, readable_vectors
from support.emulated_device import DeviceTensor

Rows = list[list[int]]
V, L, D = 97, 3, 32
CPU = torch.device("cpu")
MIXED = [5, 2, 9, 9, 5, 30, 1, 2, 17, 9, 64, 3, 5]  # lengths
RELATIVES: list[dict[str, Any]] = [
    {"model_type": "roberta", "pad_token_id": 1, "max_position_embeddings": 66},
    {"model_type": "albert"},
    {"model_type": "albert", "num_hidden_groups": 2},
    {"model_type": "electra", "embedding_size": 12},
    {"model_type": "albert", "embedding_size": 12, "type_vocab_size": 1},
]


EXACT = pytest.mark.skipif(
    not (device.has_int8(CPU) and is_exact()), reason="this CPU or this torch has no fast and exact int8 products"
)


def random_encoder(**changes: Any) -> Encoder:
    """A small encoder with every parameter random."""
    sizes = {"hidden_size": D, "num_attention_heads": 4, "intermediate_size": 64, "num_hidden_layers": L}
    encoder = Encoder(Config(vocab_size=V, **(sizes | changes))).eval()
    randomise(encoder, 0)
    return encoder


ENCODER = random_encoder()
ENGINE = Engine(ENCODER)


def random_rows(lengths: Sequence[int], vocabulary: int = V) -> Rows:
    numbers = random.Random(0)
    return [[numbers.randrange(vocabulary) for _ in range(length)] for length in lengths]


def readable(
    encoder: Encoder, ids: Rows, pooling: str = "cls", layers: Sequence[int] = (-1,), combine: str = "concat"
) -> Matrix:
    """The same vectors by the readable encoder, one text at a time: no batch, no padding, no order to lose."""
    return readable_vectors(encoder, ids, Recipe(pooling, layers, combine, batch_tokens=1))


def difference(a: Matrix, b: Matrix) -> float:
    assert a.shape == b.shape
    assert a.dtype == b.dtype == np.float32
    return float(np.abs(a - b).max())


def cosine(a: Matrix, b: Matrix) -> float:
    """The smallest, of all rows."""
    x, y = torch.from_numpy(a).double(), torch.from_numpy(b).double()
    return float(torch.cosine_similarity(x, y, dim=1).min())


def round_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the device compute float32 in fewer digits, as TF32 does."""
    linear = F.linear

    def tf32(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        rounded = (one.bfloat16().float() if isinstance(one, DeviceTensor) else one for one in (x, weight))
        return linear(*rounded, bias)

    monkeypatch.setattr(F, "linear", tf32)
