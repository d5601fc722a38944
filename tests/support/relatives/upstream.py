"""The upstreams of Lean and Parallel, as their inventors would have written them: nothing of minibert."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, dropout: float) -> Tensor:
    """Heads (B,H,S,W) to their contexts (B,S,D)."""
    scores = torch.matmul(q, k.transpose(2, 3)) * (1 / math.sqrt(q.shape[-1]))
    scores = scores.masked_fill(mask[:, None, None] == 0, torch.finfo(scores.dtype).min)
    context = torch.matmul(F.dropout(torch.softmax(scores, dim=-1), dropout), v)
    return context.transpose(1, 2).reshape(len(q), q.shape[2], -1)


class Attention(nn.Module):
    """The last linear layer has this name."""

    def __init__(self, last: str, bias: bool, turn: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.names, self.turn = ("q_proj", "k_proj", "v_proj", last), turn
        for name in self.names:
            self.add_module(name, nn.Linear(24, 24, bias=bias))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        *linears, last = (self.get_submodule(name) for name in self.names)
        q, k, v = (linear(x).view(*x.shape[:2], 3, 8).transpose(1, 2) for linear in linears)
        dropout = 0.1 if self.training else 0.0
        return last(attend(self.turn(q), self.turn(k), v, mask, dropout))  # type: ignore[no-any-return]  # a Tensor


class Model(nn.Module):
    """The loop over layers. names: of the table of tokens, of the layers and of the last norm."""

    names: ClassVar = ("embed_tokens", "layers", "norm")

    def __init__(self, config: Any, *modules: nn.Module) -> None:
        super().__init__()
        self.config = config
        for name, module in zip(self.names, modules, strict=True):
            self.add_module(name, module)

    def embed(self, ids: Tensor) -> Tensor:
        return self.get_submodule(self.names[0])(ids)  # type: ignore[no-any-return]  # a Tensor

    def forward(self, input_ids: Tensor, attention_mask: Tensor, output_hidden_states: bool = False) -> Any:
        _, layers, norm = (self.get_submodule(name) for name in self.names)
        states = [self.embed(input_ids)]
        for layer in layers:  # type: ignore[attr-defined]  # a ModuleList
            states.append(layer(states[-1], attention_mask))
        states[-1] = norm(states[-1])
        return SimpleNamespace(last_hidden_state=states[-1], hidden_states=states)


class MaskedLM(nn.Module):
    """A model, which has this name, with a head; with labels there is a loss."""

    def __init__(self, name: str, model: Model, norm: nn.Module, activation: Any, bias: bool) -> None:
        super().__init__()
        self.config, self.name, self.activation = model.config, name, activation
        self.add_module(name, model)
        self.head = nn.ModuleDict({"dense": nn.Linear(24, 24, bias=bias), "norm": norm})
        self.lm_head = nn.Linear(24, 101, bias=bias)
        self.lm_head.weight = model.get_parameter(f"{model.names[0]}.weight")

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None, **how: Any) -> Any:
        out = self.get_submodule(self.name)(input_ids, attention_mask, **how)
        logits = self.lm_head(self.head["norm"](self.activation(self.head["dense"](out.last_hidden_state))))
        loss = None if labels is None else F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))
        return SimpleNamespace(loss=loss, logits=logits, hidden_states=out.hidden_states)


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
        self.self_attn, self.mlp = Attention("o_proj", False, turned), LeanFeedForward()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(), RMSNorm()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), mask)
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]  # a Tensor


class LeanModel(Model):
    def __init__(self, config: Any) -> None:
        layers = nn.ModuleList(LeanLayer() for _ in range(4))
        super().__init__(config, nn.Embedding(101, 24, padding_idx=0), layers, RMSNorm())


class LeanForMaskedLM(MaskedLM):
    def __init__(self, config: Any) -> None:
        super().__init__("model", LeanModel(config), RMSNorm(), F.silu, bias=False)


# ---------------------------------------------------------------------------------------------------------------
# Parallel


class ParallelBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(24, 1e-5), Attention("out_proj", True, torch.clone)
        self.mlp = nn.ModuleDict({"fc_in": nn.Linear(24, 40), "fc_out": nn.Linear(40, 24)})

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = self.ln_1(x)
        attention = F.dropout(self.attn(y, mask), 0.1, self.training)
        feed_forward = F.dropout(self.mlp["fc_out"](F.gelu(self.mlp["fc_in"](y))), 0.1, self.training)
        return x + attention + feed_forward


class ParallelModel(Model):
    names = ("wte", "h", "ln_f")

    def __init__(self, config: Any) -> None:
        blocks = nn.ModuleList(ParallelBlock() for _ in range(4))
        super().__init__(config, nn.Embedding(101, 24, padding_idx=0), blocks, nn.LayerNorm(24, 1e-5))
        self.wpe, self.drop = nn.Embedding(64, 24), nn.Dropout(0.1)

    def embed(self, ids: Tensor) -> Tensor:
        return self.drop(super().embed(ids) + self.wpe(torch.arange(ids.shape[1])))  # type: ignore[no-any-return]


class ParallelForMaskedLM(MaskedLM):
    def __init__(self, config: Any) -> None:
        super().__init__("transformer", ParallelModel(config), nn.LayerNorm(24, 1e-5), F.gelu, bias=True)
