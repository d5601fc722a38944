"""What a batch of token ids must look like, checked before any device computes with it.

An id out of range is a segmentation-like failure deep in an embedding table, and on a GPU it poisons the whole
process; here it is one sentence with the value, its place and the limit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minibert.config import Config

WHOLE_NUMBERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check_inputs(
    config: Config, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return token ids, mask (True: a real token) and segments, each (B, S), or raise ValueError or TypeError.

    Without a mask, every position whose id is pad_token_id counts as padding; without segments, all are 0.
    DistilBERT has no segments: whatever is given for them is ignored.
    """
    ids = check_ids(config, input_ids)
    keep = ids != config.pad_token_id if attention_mask is None else check_mask(attention_mask, ids)
    check_padding_side(keep)
    if token_type_ids is None or not config.type_vocab_size:
        return ids, keep, torch.zeros_like(ids)
    check_shape("token_type_ids", token_type_ids, ids)
    return ids, keep, check_integers("token_type_ids", token_type_ids, config.type_vocab_size, "type_vocab_size")


def check_ids(config: Config, input_ids: Tensor) -> Tensor:
    """Token ids (B, S) as int64: two axes, at least one token and at most max_position_embeddings, in range."""
    if not isinstance(input_ids, Tensor):
        raise TypeError(f"input_ids must be a tensor (batch, tokens), not {type(input_ids).__name__}")
    if input_ids.dim() != 2:
        raise ValueError(f"input_ids have shape {tuple(input_ids.shape)}; expected (batch, tokens)")
    tokens, limit = input_ids.shape[1], config.max_position_embeddings
    if tokens == 0:
        raise ValueError("input_ids have 0 tokens a row; the shortest text is [CLS] [SEP], 2 tokens")
    if tokens > limit:
        raise ValueError(f"input_ids have {tokens} tokens a row and the checkpoint has {limit} positions; truncate")
    return check_integers("input_ids", input_ids, config.vocab_size, "vocab_size")


def check_integers(name: str, values: Tensor, limit: int, limit_name: str) -> Tensor:
    """The values as int64, each in 0 .. limit - 1; otherwise ValueError with the first one that is not."""
    if values.dtype not in WHOLE_NUMBERS:
        raise TypeError(f"{name} are {values.dtype}; expected whole numbers (torch.int64)")
    values = values.long()
    outside = (values < 0) | (values >= limit)
    if outside.any():
        place = outside.nonzero()[0].tolist()
        raise ValueError(
            f"{name}{place} is {int(values[tuple(place)])}; the checkpoint has {limit_name} {limit}: 0 to {limit - 1}"
        )
    return values


def check_shape(name: str, values: Tensor, ids: Tensor) -> None:
    """One value for each token id; otherwise TypeError or ValueError."""
    if not isinstance(values, Tensor):
        raise TypeError(f"{name} must be a tensor (batch, tokens), not {type(values).__name__}")
    if values.shape != ids.shape:
        raise ValueError(f"{name} has shape {tuple(values.shape)}; input_ids have {tuple(ids.shape)}")


def check_mask(attention_mask: Tensor, ids: Tensor) -> Tensor:
    """A mask of 1 for real tokens and 0 for padding, of any dtype, as booleans (B, S)."""
    check_shape("attention_mask", attention_mask, ids)
    keep = attention_mask != 0
    if not bool(((attention_mask == 1) | ~keep).all()):
        value = attention_mask[keep & (attention_mask != 1)][0].item()
        raise ValueError(
            f"attention_mask holds {value}; it must hold 1 for a token and 0 for padding; an additive mask is not taken"
        )
    return keep


def check_padding_side(keep: Tensor) -> None:
    """Raise ValueError where rows begin at different places.

    They were padded on the left to equal length, and the shorter ones would be read at the wrong positions. Rows
    without any token have no beginning and are let through.
    """
    starts = keep[keep.any(dim=1)].int().argmax(dim=1)
    if len(starts) and bool((starts != starts[0]).any()):
        raise ValueError(
            "the batch is padded on the left (its rows begin at positions "
            f"{sorted(set(starts.tolist()))}); pad on the right, so that all begin at 0"
        )
