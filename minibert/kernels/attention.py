"""Attention in a packed batch: softmax(Q Kᵀ / √W) V within each text, whatever comes before and after it.

    T  tokens of all texts in a packed batch; B texts, S tokens of each in a group

Four implementations, which differ only in rounding:

    grouped_attention    torch's fused kernel, one group after the other; also within a window, and in training
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
from minibert.kernels.packing import Packed, PackedTexts, pack, pad_groups
from minibert.layout import Attend
from minibert.utils.device import without_cudnn

# Attention in a packed batch: query, key, value, batch to the result, (T,H,W); `by_heads` makes a layout.Attend of it.
PackedAttend = Callable[[Tensor, Tensor, Tensor, PackedTexts], Tensor]

MAX_SCORES = 1 << 20  # held at once: they stay in the caches
MAX_TOKENS = 128  # of a text; longer texts go to the fused kernel, which does not store the scores
SIMD_WIDTH = 16  # numbers: torch's softmax is slow for rows that do not fill one vector register


def by_heads(attend: PackedAttend) -> Attend:
    """Return the same attention for model.SelfAttention, (H,T,W) -> (H,T,W)."""

    def attend_by_heads(
        query: Tensor, key: Tensor, value: Tensor, packed: PackedTexts, dropout: nn.Module
    ) -> tuple[Tensor, None]:
        q, k, v = (x.transpose(0, 1) for x in (query, key, value))  # (H,T,W) -> (T,H,W)
        context = attend(q, k, v, packed) if packed.window is None else grouped_attention(q, k, v, packed)
        return context.transpose(0, 1), None

    return attend_by_heads


def fused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the attention of one group by torch's kernel, (B,H,S,W) -> (B,H,S,W); on a CPU in float32.

    mask: True for a key that a query sees, (B,1,S,S) or the like.
    """
    q, k, v = (x.float() if x.device.type == "cpu" else x for x in (query, key, value))
    with without_cudnn():
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).to(query.dtype)


def grouped_attention(
    query: Tensor, key: Tensor, value: Tensor, packed: Packed, attend: Callable[..., Tensor] = fused
) -> Tensor:
    """Attend within each text and the window of the layer, one group after the other: (T,H,W) -> (T,H,W).

    In the last layer query may have the tokens that are read only, (N,H,W). Rows after the tokens become 0.
    attend: computes one group, as `fused` does.
    """
    asking = packed.read_groups if packed.is_last else packed.groups
    parts = (pad_groups(x, groups) for x, groups in ((query, asking), (key, packed.groups), (value, packed.groups)))
    contexts = []
    for number, heads in enumerate(zip(*parts, strict=True)):
        q, k, v = (x.transpose(1, 2) for x in heads)  # (B,S,H,W) -> (B,H,S,W), B rows of the group
        context = attend_in_window(q, k, v, packed, number, attend)
        contexts.append(asking[number].unpad(context.transpose(1, 2)))  # (B,H,S,W) -> (B,S,H,W) -> (n,H,W)
    together = torch.cat(contexts) if len(contexts) > 1 else contexts[0]
    more = len(query) - len(together)  # the rows of padding after the tokens
    return F.pad(together, (0, 0, 0, 0, 0, more)) if more else together


def attend_in_window(
    query: Tensor, key: Tensor, value: Tensor, packed: Packed, number: int, attend: Callable[..., Tensor]
) -> Tensor:
    """Attend in the group of this number, (B,H,S,W) or from the tokens that are read, (B,H,N,W), to the same.

    With a window a block of queries is multiplied only with the keys that it reaches.
    """
    mask = packed.groups[number].mask
    window = packed.window
    if window is None or key.shape[2] <= window // 2 + 1:  # every token of these texts is in the window
        return attend(query, key, value, mask)
    if packed.is_last and packed.read is not None:
        return attend(query, key, value, local_mask(packed, number, window))
    if packed.keeps_padding:  # added to the scores: the fused kernel's gradient is wrong in a window of padding alone
        seen = local_mask(packed, number, window)
        bias = torch.zeros_like(seen, dtype=torch.float32).masked_fill(~seen, torch.finfo(torch.float32).min)
        return attend(query, key, value, bias)
    contexts = []
    for at, reached, near in blocks(torch.arange(key.shape[2], device=key.device), window):
        if mask is not None:  # a query that is padding sees every key: without any its gradient would not be a number
            near = near & mask[..., reached] | ~mask[..., at].transpose(-1, -2)
        contexts.append(attend(query[:, :, at], key[:, :, reached], value[:, :, reached], near))
    return torch.cat(contexts, dim=2)


def local_mask(packed: Packed, number: int, window: int) -> Tensor:
    """Return the mask of a group, (rows,1,queries,keys): True for a key in the window of a query.

    A query of read_groups that is padding sees every key: without any its gradient would not be a number.
    """
    columns = packed.columns[:, None]  # (T,1), as many axes as one head has
    read_groups = packed.read_groups if packed.is_last else packed.groups
    queries = pad_groups(packed.wanted(columns), read_groups)[number]  # (rows,queries,1)
    near = (queries - pad_groups(columns, packed.groups)[number].transpose(1, 2)).abs()[:, None] <= window // 2
    real = packed.groups[number].mask
    read = read_groups[number].mask
    seen = near if real is None else near & real
    return seen if read is None or packed.keeps_padding else seen | ~read.transpose(-1, -2)


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


class BatchedAttention:
    """Attention by two batched products over all texts and heads of a group, in float32.

    The result is valid until the next call in this thread.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, packed: PackedTexts) -> Tensor:
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
                context.copy_(fused(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2))
                continue
            texts = max(1, MAX_SCORES // (H * q.shape[1] * S))  # some at a time
            for parts in zip(*(torch.split(x, texts) for x in (q, k, v, context)), strict=True):
                self.attend_texts(*parts)
        result[end:] = 0  # the rows of padding
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


def padded_attention(query: Tensor, key: Tensor, value: Tensor, packed: PackedTexts) -> Tensor:
    """Attend within each text by one kernel for the padded batch, (T,H,W) or (B,H,W) -> the same."""
    all_tokens = len(query) == len(key)
    q, k, v = packed.pad(query) if all_tokens else query[:, None], packed.pad(key), packed.pad(value)  # (B,S,H,W)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (B,S,H,W) -> (B,H,S,W)
    context = fused(q, k, v, packed.mask[:, None, None]).transpose(1, 2).flatten(0, 1)  # (B,H,S,W) -> (BS,H,W)
    return context.index_select(0, packed.cells) if all_tokens else context


def varlen_attention(query: Tensor, key: Tensor, value: Tensor, packed: PackedTexts) -> Tensor:
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
