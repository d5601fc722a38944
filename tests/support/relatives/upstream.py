"""The upstreams of Lean and Parallel, as their inventors would have written them: nothing of minibert."""

import math
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, dropout: float) -> Tensor:
    """Heads (B,H,S,W) to their contexts (B,S,D)."""
    scores = torch.matmul(q, k.transpose(2, 3)) * (1 / math.sqrt(q.shape[-1]))
    scores = scores.masked_fill(mask[:, None, None] == 0, torch.finfo(scores.dtype).min)
    context = torch.matmul(F.dropout(torch.softmax(scores, dim=-1), dropout), v)
    return context.transpose(1, 2).reshape(len(q), q.shape[2], -1)


def heads(x: Tensor) -> Tensor:
    return x.view(*x.shape[:2], 3, 8).transpose(1, 2)


class Head(nn.Module):
    """One with labels has a loss."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None, **how: Any) -> Any:
        out = self.encoder()(input_ids, attention_mask, **how)
        logits = self.logits(out.last_hidden_state)
        loss = None if labels is None else F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))
        return SimpleNamespace(loss=loss, logits=logits, hidden_states=out.hidden_states)

    def encoder(self) -> nn.Module:
        raise NotImplementedError

    def logits(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class Model(nn.Module):
    """The loop over layers."""

    def embed(self, ids: Tensor) -> Tensor:
        raise NotImplementedError

    def blocks_and_norm(self) -> tuple[Any, nn.Module]:
        raise NotImplementedError

    def forward(self, input_ids: Tensor, attention_mask: Tensor, output_hidden_states: bool = False) -> Any:
        blocks, norm = self.blocks_and_norm()
        states = [self.embed(input_ids)]
        for block in blocks:
            states.append(block(states[-1], attention_mask))
        states[-1] = norm(states[-1])
        return SimpleNamespace(last_hidden_state=states[-1], hidden_states=states)


# ---------------------------------------------------------------------------------------------------------------
# Lean


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(24))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


def turned(x: Tensor) -> Tensor:
    """Rotary positions, as in Llama."""
    inverse = 1.0 / (250_000.0 ** (torch.arange(0, 8, 2).float() / 8))
    angles = torch.outer(torch.arange(x.shape[2]).float(), inverse).repeat(1, 2)
    return x * angles.cos() + torch.cat((-x[..., 4:], x[..., :4]), dim=-1) * angles.sin()


class LeanAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(24, 24, bias=False) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (heads(linear(x)) for linear in (self.q_proj, self.k_proj, self.v_proj))
        context = attend(turned(q), turned(k), v, mask, 0.1 if self.training else 0.0)
        return self.o_proj(context)  # type: ignore[no-any-return]  # a Tensor


class LeanFeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(24, 40, bias=False), nn.Linear(24, 40, bias=False)
        self.down_proj = nn.Linear(40, 24, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]  # a Tensor


class LeanLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.mlp = LeanAttention(), LeanFeedForward()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(), RMSNorm()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), mask)
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]  # a Tensor


class LeanModel(Model):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(101, 24, padding_idx=0)
        self.layers, self.norm = nn.ModuleList(LeanLayer() for _ in range(4)), RMSNorm()

    def embed(self, ids: Tensor) -> Tensor:
        return self.embed_tokens(ids)  # type: ignore[no-any-return]  # a Tensor

    def blocks_and_norm(self) -> tuple[Any, nn.Module]:
        return self.layers, self.norm


class LeanForMaskedLM(Head):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config, self.model = config, LeanModel(config)
        self.head = nn.ModuleDict({"dense": nn.Linear(24, 24, bias=False), "norm": RMSNorm()})
        self.lm_head = nn.Linear(24, 101, bias=False)
        self.lm_head.weight = self.model.embed_tokens.weight

    def encoder(self) -> nn.Module:
        return self.model

    def logits(self, x: Tensor) -> Tensor:
        return self.lm_head(self.head["norm"](F.silu(self.head["dense"](x))))  # type: ignore[no-any-return]  # a Tensor


# ---------------------------------------------------------------------------------------------------------------
# Parallel


class ParallelAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(24, 24) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (heads(linear(x)) for linear in (self.q_proj, self.k_proj, self.v_proj))
        return self.out_proj(attend(q, k, v, mask, 0.1 if self.training else 0.0))  # type: ignore[no-any-return]


class ParallelBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(24, 1e-5), ParallelAttention()
        self.mlp = nn.ModuleDict({"fc_in": nn.Linear(24, 40), "fc_out": nn.Linear(40, 24)})

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = self.ln_1(x)
        attention = F.dropout(self.attn(y, mask), 0.1, self.training)
        feed_forward = F.dropout(self.mlp["fc_out"](F.gelu(self.mlp["fc_in"](y))), 0.1, self.training)
        return x + attention + feed_forward


class ParallelModel(Model):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.wte, self.wpe, self.drop = nn.Embedding(101, 24, padding_idx=0), nn.Embedding(64, 24), nn.Dropout(0.1)
        self.h, self.ln_f = nn.ModuleList(ParallelBlock() for _ in range(4)), nn.LayerNorm(24, 1e-5)

    def embed(self, ids: Tensor) -> Tensor:
        return self.drop(self.wte(ids) + self.wpe(torch.arange(ids.shape[1])))  # type: ignore[no-any-return]

    def blocks_and_norm(self) -> tuple[Any, nn.Module]:
        return self.h, self.ln_f


class ParallelForMaskedLM(Head):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config, self.transformer = config, ParallelModel(config)
        self.head = nn.ModuleDict({"dense": nn.Linear(24, 24), "norm": nn.LayerNorm(24, 1e-5)})
        self.lm_head = nn.Linear(24, 101)
        self.lm_head.weight = self.transformer.wte.weight

    def encoder(self) -> nn.Module:
        return self.transformer

    def logits(self, x: Tensor) -> Tensor:
        return self.lm_head(self.head["norm"](F.gelu(self.head["dense"](x))))  # type: ignore[no-any-return]  # a Tensor
