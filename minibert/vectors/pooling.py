"""One vector from the states of a text's tokens, the readable way: padded batches through the encoder as it is.

This is what engine.py must equal. B batch, S tokens, D hidden, L layers; N texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from minibert.model import Encoder, EncoderOutput
from minibert.vectors.cache import Matrix
from minibert.vectors.recipe import DEFAULT, Recipe


def readable_vectors(
    encoder: Encoder,
    ids: Sequence[Sequence[int]],
    recipe: Recipe = DEFAULT,
    *,
    second: Sequence[int] | None = None,
    progress: bool = True,
) -> Matrix:
    """One vector for each row of token ids, (N, width) float32, in the order of the rows.

    second: where in each row the second text of a pair begins; None: no row is a pair.
    Computed by the encoder as it is, on its device, with its attention, in its dtype; in eval and inference mode,
    and the encoder's own modes are put back. A batch has at most batch_tokens tokens, padding included (one row at
    the least), and leaves only its pooled rows behind, so memory does not grow with N. Sums in another order make a
    row differ by about 1e-6 with the batch that it is in. A progress bar appears after 2 seconds.
    Raises ValueError for a recipe or ids that do not fit the encoder.
    """
    layers, width = recipe.fit_to(encoder.config, has_pooler=encoder.pooler is not None)
    second = second if encoder.config.family.pairs_in_segments else None
    device = next(encoder.parameters()).device
    vectors = np.empty((len(ids), width), dtype=np.float32)
    bar = tqdm(total=len(ids), unit="text", delay=2, disable=None if progress else True)
    with inference(encoder), bar:
        for rows in batches([len(row) for row in ids], recipe.batch_tokens):
            input_ids, keep = (x.to(device) for x in pad([ids[row] for row in rows], encoder.config.pad_token_id))
            segments = None if second is None else in_second(keep, [second[row] for row in rows])
            try:
                out = encoder(input_ids, attention_mask=keep, token_type_ids=segments, output_hidden_states=True)
            except torch.OutOfMemoryError as error:
                raise torch.OutOfMemoryError(
                    f"a batch of {tuple(keep.shape)} tokens does not fit on {device}; use a "
                    f"smaller batch_tokens than {recipe.batch_tokens}"
                ) from error
            vectors[rows] = pool(out, keep, recipe, layers).cpu().numpy()
            bar.update(len(rows))
    return vectors


@contextmanager
def inference(encoder: nn.Module) -> Iterator[None]:
    """Dropout off and no gradients inside; afterwards each module is in the mode that it was in."""
    modes = [(module, module.training) for module in encoder.modules()]
    encoder.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module, training in modes:
            module.training = training


def batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Row numbers by length, the longest first, so that little is padded and memory is at its peak at once."""
    if 0 in lengths:
        raise ValueError(f"row {list(lengths).index(0)} has no tokens; the shortest text is [CLS] [SEP], 2 tokens")
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    while order:
        count = max(1, batch_tokens // lengths[order[0]])
        yield order[:count]
        order = order[count:]


def pad(rows: list[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Rows of ids as one tensor (B, S), padded on the right, and where it holds tokens (B, S)."""
    lengths = torch.tensor([len(row) for row in rows])
    input_ids = pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=pad_id)
    return input_ids, torch.arange(input_ids.shape[1]) < lengths[:, None]


def in_second(keep: Tensor, second: Sequence[int]) -> Tensor:
    """token_type_ids (B, S): 1 from where the second text of each row begins to its end, else 0."""
    places = torch.arange(keep.shape[1], device=keep.device)
    return (keep & (places >= torch.tensor(second, device=keep.device)[:, None])).long()


def pool(out: EncoderOutput, keep: Tensor, recipe: Recipe, layers: tuple[int, ...]) -> Tensor:
    """One float32 vector a row from the states of its tokens: each layer pooled, then combined, (B, width).

    keep, (B, S), is False for padding; layers are counted from 0, as by Recipe.fit_to.
    cls: the state of [CLS]. mean and max: over all tokens of the row, [CLS] and [SEP] included, padding not, as in
    sentence-transformers. pooler: what next sentence prediction reads (Devlin et al. 2018, section 3.1, NSP).
    """
    if recipe.pooling == "pooler":
        assert out.pooler_output is not None  # Recipe.fit_to
        return out.pooler_output.float()
    assert out.hidden_states is not None
    pooled = [pool_tokens(out.hidden_states[layer].float(), keep[:, :, None], recipe.pooling) for layer in layers]
    return combine_layers(pooled, recipe.combine)


def pool_tokens(states: Tensor, keep: Tensor, pooling: str) -> Tensor:
    """(B, S, D) to (B, D) by "cls", "mean" or "max"; keep, (B, S, 1), is False for padding."""
    if pooling == "cls":
        return states[:, 0]
    if pooling == "mean":
        return states.masked_fill(~keep, 0).sum(dim=1) / keep.sum(dim=1)
    return states.masked_fill(~keep, -torch.inf).amax(dim=1)


def combine_layers(pooled: Sequence[Tensor], combine: str) -> Tensor:
    """One vector of each text from those of several layers, each (B, D): (B, k D) or (B, D)."""
    if combine == "concat":
        return torch.cat(list(pooled), dim=-1)
    stacked = torch.stack(list(pooled))
    return stacked.sum(dim=0) if combine == "sum" else stacked.mean(dim=0)


def average_windows(vectors: Matrix, ids: Sequence[Sequence[int]], windows: Sequence[int]) -> Matrix:
    """One vector of each text, (N, width), from those of its windows, (K, width): their mean, by tokens of text.

    windows: how many each text has, (N); ids: the tokens of each window, (K). A single window is as it was.
    """
    ends = np.cumsum(windows)
    result: Matrix = vectors[ends - windows]
    for text in np.flatnonzero(np.asarray(windows) > 1).tolist():
        part = slice(int(ends[text]) - windows[text], int(ends[text]))
        tokens = [len(row) - 2 for row in ids[part]]  # without [CLS] and [SEP]
        result[text] = np.average(vectors[part], axis=0, weights=tokens)
    return result
