"""Attention in a packed batch: softmax(Q Kᵀ / √W) V within each text, whatever comes before and after it.

    T  tokens of all texts in a packed batch; B texts, S tokens of each in a group

Four implementations, which differ only in rounding:

    grouped_attention    torch's fused kernel, one group of texts of equal length after the other
    padded_attention     the same kernel once, with padding and a mask: on a GPU launches cost more than padding
    BatchedAttention     the same groups by two batched products over all texts and heads, into memory that is reused:
                         for texts of ordinary length two to three times as fast on a CPU
    varlen_attention     one kernel that takes the bounds of the texts: CUDA

On a CPU attention is computed in float32: oneDNN, which multiplies bfloat16, compiles and caches a kernel of about a
megabyte for each number of texts and tokens, and no two groups have the same.
"""

from collections.abc import Callable, Iterator
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minibert.kernels.matmul import MAX_ERROR, Workspace, is_x86, relative_error
from minibert.kernels.packing import Packed, pack
from minibert.layout import Attend
from minibert.utils.device import without_cudnn

# Attention in a packed batch: query, key, value, batch to the result, (T,H,W); `by_heads` makes an inputs.Attend of it.
PackedAttend = Callable[[Tensor, Tensor, Tensor, Packed], Tensor]

MAX_SCORES = 1 << 20  # held at once: they stay in the caches
MAX_TOKENS = 128  # of a text; longer texts go to the fused kernel, which does not store the scores
SIMD_WIDTH = 16  # numbers: torch's softmax is slow for rows that do not fill one vector register


def by_heads(attend: PackedAttend) -> Attend:
    """Return the same attention for model.SelfAttention, (H,T,W) -> (H,T,W)."""

    def attend_by_heads(
        query: Tensor, key: Tensor, value: Tensor, packed: Packed, dropout: nn.Module
    ) -> tuple[Tensor, None]:
        q, k, v = (x.transpose(0, 1) for x in (query, key, value))  # (H,T,W) -> (T,H,W)
        context = attend(q, k, v, packed) if packed.window is None else local_attention(q, k, v, packed, packed.window)
        return context.transpose(0, 1), None

    return attend_by_heads


def grouped_attention(query: Tensor, key: Tensor, value: Tensor, packed: Packed) -> Tensor:
    """Attend within each text, one group of equal length after the other: (T,H,W) -> (T,H,W).

    query may hold the first token of each text only and the extra rows, (B + extra,H,W); these are returned unchanged.
    """
    groups = zip(*(packed.by_group(x) for x in (query, key, value)), strict=True)
    contexts = [fused(q, k, v).flatten(0, 1) for q, k, v in groups]  # (B,S,H,W) -> (T,H,W)
    return torch.cat([*contexts, query[sum(map(len, contexts)) :]])


def local_attention(query: Tensor, key: Tensor, value: Tensor, packed: Packed, window: int) -> Tensor:
    """Attend to the tokens at most window // 2 away, group after group: (T,H,W) or (B + extra,H,W) -> the same.

    A block of queries is multiplied only with the keys that it reaches.
    """
    half = window // 2
    contexts = []
    first = packed.first - packed.bounds[:-1]  # (B): the column of the first tokens
    rows = zip(packed.groups, packed.by_group(first), *(packed.by_group(x) for x in (query, key, value)), strict=True)
    for (_, S), firsts, q, k, v in rows:
        columns = torch.arange(S, device=q.device)
        if q.shape[1] < S:  # one query per text
            near = (firsts - columns).abs() <= half  # (B,1) - (S) -> (B,S)
            contexts.append(fused(q, k, v, near[:, None, None]).flatten(0, 1))
            continue
        parts = [fused(q[:, at], k[:, reached], v[:, reached], near) for at, reached, near in blocks(columns, window)]
        contexts.append(torch.cat(parts, dim=1).flatten(0, 1))
    return torch.cat([*contexts, query[sum(map(len, contexts)) :]])


def blocks(columns: Tensor, window: int) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield blocks of queries as long as the window, the keys that each reaches, and which query sees which of them.

    columns: 0, 1, ..., S - 1, on the device of the mask, (queries,keys). Memory grows with S times the window.
    """
    half = window // 2
    size = max(window, 1)
    S = len(columns)
    for begin in range(0, S, size):
        at = slice(begin, begin + size)
        reached = slice(max(0, begin - half), begin + size + half)
        yield at, reached, (columns[at, None] - columns[reached]).abs() <= half


def fused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the attention of one group by torch's kernel, (B,S,H,W) -> (B,S,H,W); on a CPU in float32.

    mask: True for a key that a query sees, (B,1,S,S) or the like.
    """
    q, k, v = (x.float() if x.device.type == "cpu" else x for x in (query, key, value))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (B,S,H,W) -> (B,H,S,W)
    with without_cudnn():
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # nothing here is padding
    return context.transpose(1, 2).to(query.dtype)  # (B,H,S,W) -> (B,S,H,W)


class BatchedAttention:
    """Attention by two batched products over all texts and heads of a group, in float32.

    The result is valid until the next call in this thread.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, packed: Packed) -> Tensor:
        """(T,H,W) or (B,H,W) -> the same."""
        T, H, W = query.shape
        result = self.workspace.buffer("contexts", T, H * W, query.dtype).view(T, H, W)
        end = 0
        for q, k, v in zip(*(packed.by_group(x) for x in (query, key, value)), strict=True):
            begin = end
            end += q.shape[0] * q.shape[1]
            context = result[begin:end].view(q.shape)
            S = k.shape[1]
            if S > MAX_TOKENS:
                context.copy_(fused(q, k, v))
                continue
            texts = max(1, MAX_SCORES // (H * q.shape[1] * S))  # some at a time
            for parts in zip(*(torch.split(x, texts) for x in (q, k, v, context)), strict=True):
                self.attend_texts(*parts)
        result[end:] = query[end:]
        return result

    def attend_texts(self, query: Tensor, key: Tensor, value: Tensor, result: Tensor) -> None:
        """softmax(Q Kᵀ / √W) V, where each head of each text is one matrix of a batch."""
        B, Sq, H, W = query.shape
        q, k, v = self.heads("q", query), self.heads("k", key), self.heads("v", value)
        scores = self.workspace.buffer("scores", B * H, Sq * k.shape[1]).view(B * H, Sq, -1)
        torch.baddbmm(scores, q, k.transpose(1, 2), beta=0, alpha=W**-0.5, out=scores)  # (BH,Sq,W) -> (BH,Sq,S)
        context = self.workspace.buffer("context by head", B * H, Sq * W).view(B * H, Sq, W)
        weights = softmax(scores, out=self.workspace.buffer("weights", B * H, Sq * k.shape[1]).view_as(scores))
        torch.bmm(weights, v, out=context)  # (BH,Sq,S) -> (BH,Sq,W)
        result.copy_(context.view(B, H, Sq, W).transpose(1, 2))  # (B,H,Sq,W) -> (B,Sq,H,W)

    def heads(self, name: str, x: Tensor) -> Tensor:
        """(B,S,H,W) -> (BH,S,W), in float32."""
        B, S, H, W = x.shape
        heads = self.workspace.buffer(f"{name} by head", B * H, S * W).view(B, H, S, W)
        return heads.copy_(x.transpose(1, 2)).view(B * H, S, W)


def softmax(scores: Tensor, out: Tensor) -> Tensor:
    """softmax over the last axis into other memory; in place torch takes twice as long."""
    if scores.shape[-1] >= SIMD_WIDTH:
        return torch.softmax(scores, dim=-1, out=out)
    torch.sub(scores, scores.amax(dim=-1, keepdim=True), out=out).exp_()
    return out.div_(out.sum(dim=-1, keepdim=True))


def padded_attention(query: Tensor, key: Tensor, value: Tensor, packed: Packed) -> Tensor:
    """Attend within each text by one kernel for the padded batch, (T,H,W) or (B,H,W) -> the same."""
    all_tokens = len(query) == len(key)
    q, k, v = packed.pad(query) if all_tokens else query[:, None], packed.pad(key), packed.pad(value)  # (B,S,H,W)
    context = fused(q, k, v, packed.mask[:, None, None]).flatten(0, 1)  # (B,S,H,W) -> (BS,H,W)
    return context.index_select(0, packed.cells) if all_tokens else context


def varlen_attention(query: Tensor, key: Tensor, value: Tensor, packed: Packed) -> Tensor:
    """Attend within each text by one kernel that reads the bounds of the texts; CUDA.

    The kernels are those of torch's own attention: the memory-efficient one for float32, FlashAttention for bfloat16
    and float16.
    """
    if len(query) == len(key):
        bounds = packed.bounds
        longest = packed.longest
    else:  # one query token for each text
        bounds = torch.arange(len(query) + 1, dtype=torch.int32, device=query.device)
        longest = 1
    lengths = bounds, packed.bounds, longest, packed.longest
    if query.dtype == torch.float32:
        efficient = torch.ops.aten._efficient_attention_forward
        return cast(Tensor, efficient(query[None], key[None], value[None], None, *lengths, 0.0, 0)[0][0])
    return cast(Tensor, torch.ops.aten._flash_attention_forward(query, key, value, *lengths, 0.0, False, False)[0])


def choose_attention(dtype: torch.dtype, device: torch.device, head_size: int, workspace: Workspace) -> PackedAttend:
    """Return the fastest implementation on this device; varlen_attention must agree with padded_attention.

    On x86 CPUs torch has a fast library for batches of small products; on others the fused kernel is as fast.
    head_size: FlashAttention supports only multiples of 8.
    """
    if device.type == "cpu":
        return BatchedAttention(workspace) if is_x86() else grouped_attention
    if device.type == "mps":
        return padded_attention
    packed = pack([[0] * 19, [0] * 7, [0] * 7], device)
    random = torch.Generator().manual_seed(0)  # leaves the caller's random state alone
    query, key, value = torch.randn(3, 33, 2, head_size, generator=random).to(device, dtype)
    try:
        for queries in (query, query[:3]):  # of all tokens, and of the first of each text
            results = (attend(queries, key, value, packed) for attend in (varlen_attention, padded_attention))
            if relative_error(*results) > MAX_ERROR[dtype]:
                return padded_attention
    except (AttributeError, RuntimeError, TypeError):  # this torch or GPU has no such kernel, or with other arguments
        return padded_attention
    return varlen_attention
