"""One vector for each text by the encoder's own forward pass, in padded batches: the reference for engine.py.

B batch, S tokens, D hidden size, L layers; N texts.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from minibert.kernels.packing import batches, check_rows
from minibert.model import Encoder
from minibert.utils.device import batch_tokens_on
from minibert.utils.inference import inference
from minibert.vectors.pooling import COMBINATIONS, POOLINGS
from minibert.vectors.recipe import CLS, Recipe

Matrix = NDArray[np.float32]


def readable_vectors(
    encoder: Encoder,
    ids: Sequence[Sequence[int]],
    recipe: Recipe = CLS,
    *,
    second: Sequence[int] | None = None,
) -> Matrix:
    """Return one vector for each row of token ids, (N, width) float32, in the order of the rows.

    second: where in each row the second text of a pair begins; None: no row is a pair.
    The encoder computes on its device, with its attention and dtype, in eval and inference mode; its own modes are
    restored. A batch has at most batch_tokens tokens including padding, at least one row; only its pooled rows are
    kept, so that memory does not grow with N. Rows differ by about 1e-6 with the batch that they are in. Raises
    ValueError for a recipe or ids that do not fit the encoder.
    """
    layers, width = recipe.fit_to(encoder.config, has_pooler=encoder.pooler is not None)
    lengths = check_rows(encoder.config, ids, second).tolist()
    second = second if encoder.config.family.pairs_in_segments else None
    vectors = np.empty((len(ids), width), dtype=np.float32)
    with inference(encoder):
        for rows in batches(lengths, recipe.batch_tokens or batch_tokens_on(encoder.device)):
            input_ids, keep = pad([ids[row] for row in rows], encoder.config.pad_token_id, encoder.device)
            segments = None
            if second is not None:
                starts = torch.tensor([second[row] for row in rows], device=encoder.device)
                segments = (keep & (torch.arange(keep.shape[1], device=encoder.device) >= starts[:, None])).long()
            out = encoder(input_ids, attention_mask=keep, token_type_ids=segments, output_hidden_states=True)
            pooled = pool(out, keep, recipe, layers)
            vectors[rows] = (F.normalize(pooled) if recipe.normalize else pooled).cpu().numpy()
    return vectors[:, : recipe.dimensions]


def pad(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Return rows of ids as one tensor (B, S), padded on the right, and a mask (B, S), True for tokens."""
    lengths = torch.tensor([len(row) for row in rows])
    input_ids = pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=pad_id)
    return input_ids.to(device), (torch.arange(input_ids.shape[1]) < lengths[:, None]).to(device)


def pool(out: Any, keep: Tensor, recipe: Recipe, layers: Sequence[int]) -> Tensor:
    """Return one float32 vector for each row: each layer pooled, then combined, not normalized, (B, width).

    out: an EncoderOutput with the states of all layers, and the pooler's if the recipe reads it, see Recipe.fit_to.
    keep, (B, S), is False for padding; layers are counted from 0, as by Recipe.fit_to.
    """
    pooling = POOLINGS[recipe.pooling]
    if pooling.through_pooler:
        pooled = [out.pooler_output.float()]
    else:
        pooled = [pooling.pool(out.hidden_states[layer].float(), keep[:, :, None]) for layer in layers]
    return COMBINATIONS[recipe.combine](torch.stack(pooled))
