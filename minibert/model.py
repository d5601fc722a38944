"""The forward pass of BERT and its relatives, from token ids to one vector per token, in the order of computation.

A text arrives as tokens (words or pieces of words), each as its index in the vocabulary (text/wordpiece.py): [CLS]
first, [SEP] after each text, [PAD] to fill short rows. Every token becomes a vector. The vectors pass through L layers:
in each, a token takes in information from all tokens (self-attention), then is transformed on its own (feed-forward).

Letters for shapes, here and in every module:

    B  texts in the batch        D  hidden size             F  feed-forward size
    S  tokens in a row           H  attention heads         V  vocabulary size
    L  layers                    W  width of a head, D / H

All of minibert computes with this code. The readable path pads texts to rows, (B, S, D), as the shapes below say. The
fast paths pack the tokens of all texts without padding, (T, D), and exchange parts, such as linear layers, but not the
order: a linear layer or a norm sees one token at a time, and only attention must know which tokens form a text.

The equations are from "BERT" (Devlin et al. 2018), whose layers are the encoder layers of "Attention Is All
You Need" (Vaswani et al. 2017). The operations follow the order of transformers 5.23's eager path, so that in float32
on a CPU the two are equal bit for bit.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minibert.activations import ACTIVATION
from minibert.config import Config
from minibert.inputs import Attend, Fields, Layout, Padded, as_inputs, output
from minibert.kernels.parts import OneProduct, Products
from minibert.utils.device import without_cudnn
from minibert.utils.habits import from_pretrained, save_pretrained
from minibert.utils.printing import brief


@output
class EncoderOutput(Fields):
    """The output of the encoder; fields are named as in transformers."""

    last_hidden_state: Tensor  # (B, S, D)
    pooler_output: Tensor | None = None  # (B, D); None: the checkpoint has no pooler
    hidden_states: tuple[Tensor, ...] | None = None  # L + 1 of (B, S, D), the embeddings first
    attentions: tuple[Tensor, ...] | None = None  # L of (B, H, S, S)


def layer_norm(config: Config, width: int) -> nn.LayerNorm:
    """Return LayerNorm: it brings each vector to mean 0 and variance 1, then applies a learned scale and shift."""
    return nn.LayerNorm(width, eps=config.layer_norm_eps, bias=config.norm_bias)


class Embeddings(nn.Module):
    """x = LayerNorm(token + segment + position). Mirrors BertEmbeddings and its relatives.

    An embedding is a table with a learned vector for each id. The vectors of the token, of its segment (0 for the first
    text of a pair, 1 for the second) and of its position are added (section 3). Relatives may lack segments, add
    a task embedding, give [PAD] no position, or project the sum to D.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, D = config.embedding_size, config.hidden_size
        self.token = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        self.position: nn.Embedding | None = None
        if not config.rotary_thetas:
            padding_idx = None if config.padding_has_position else config.first_position - 1
            self.position = nn.Embedding(config.max_position_embeddings, width, padding_idx=padding_idx)
        self.segment = nn.Embedding(config.type_vocab_size, width) if config.type_vocab_size else None
        self.task = nn.Embedding(config.task_vocab_size, width) if config.task_vocab_size else None
        self.norm = layer_norm(config, width)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.embedding_projection = nn.Linear(width, D) if width != D or config.always_projected else None
        self.config = config

    def positions(self, input_ids: Tensor) -> Tensor:
        """Return positions: (S), the same for every row; or (B,S), if [PAD] has none and only real tokens count."""
        if self.config.padding_has_position:
            return self.config.first_position + torch.arange(input_ids.shape[1], device=input_ids.device)
        real = input_ids != self.config.pad_token_id
        return real.cumsum(dim=1) * real + self.config.first_position - 1

    def forward(
        self,
        input_ids: Tensor,
        segments: Tensor | None = None,
        tasks: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Return the embeddings of token ids, segments and tasks: (B,S) each -> (B,S,D).

        segments, tasks: None means 0 for all. positions: None means as in padded rows.
        """
        x: Tensor = self.token(input_ids)  # (B,S) -> (B,S,D)
        if self.segment is not None:
            x = x + (self.segment.weight[0] if segments is None else self.segment(segments))
        if self.position is not None:
            positions = self.positions(input_ids) if positions is None else positions
            x = x + self.position(positions)  # (B,S,D) + (S,D)
        if self.task is not None:
            x = x + (self.task.weight[0] if tasks is None else self.task(tasks))
        x = self.dropout(self.norm(x))  # dropout: zeros, only in training
        return x if self.embedding_projection is None else self.embedding_projection(x)  # (B,S,D)


def eager_attention(
    query: Tensor, key: Tensor, value: Tensor, layout: Padded, dropout: nn.Module
) -> tuple[Tensor, Tensor]:
    """Attention(Q, K, V) = softmax(Q Kᵀ / √W) V, written out (Vaswani et al. 2017, equation 1).

    A score is the dot product of a query and a key, divided by √W so that it does not grow with the width; softmax
    turns the scores of a query into weights of the values. The dtype's lowest number is added to the score of padding:
    softmax makes it 0 and, unlike -inf, keeps the row of a query without any key finite.
    """
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5  # (B,H,S,W) @ (B,H,W,S) -> (B,H,S,S)
    scores = scores + layout.bias(scores.dtype)
    probs = dropout(scores.softmax(dim=-1))  # softmax: no value below 0, each row sums to 1 over the keys
    context = probs @ value  # (B,H,S,S) @ (B,H,S,W) -> (B,H,S,W)
    return context, probs


def sdpa_attention(
    query: Tensor, key: Tensor, value: Tensor, layout: Padded, dropout: nn.Dropout
) -> tuple[Tensor, None]:
    """Compute the same by torch's fused kernel, which does not store the scores and so cannot return probs."""
    if layout.keep.shape[-2] > 1 and torch.is_grad_enabled():  # its gradient is wrong where a window has only padding
        return eager_attention(query, key, value, layout, dropout)[0], None
    p = dropout.p if dropout.training else 0.0
    with without_cudnn():
        return F.scaled_dot_product_attention(query, key, value, attn_mask=layout.bias(query.dtype), dropout_p=p), None


ATTENTION: dict[str, Attend] = {"eager": eager_attention, "sdpa": sdpa_attention}  # minibert.load's attention=


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Turn each pair of numbers by an angle that grows with the position, (B,H,S,W) -> (B,H,S,W) (Su et al. 2021).

    The product of a turned query and a turned key depends on the distance of their tokens only. Pair i is the numbers i
    and i + W/2, and its angle p theta^(-2i/W) at position p. Mirrors apply_rotary_pos_emb.
    """
    W = x.shape[-1]
    angles = positions[..., None].float() * (1.0 / theta ** (torch.arange(0, W, 2, device=x.device).float() / W))
    angles = torch.cat((angles, angles), dim=-1).unsqueeze(-3)  # (S,W/2) -> (1,S,W)
    exact = x.to(torch.promote_types(x.dtype, torch.float32))
    half = torch.cat((-exact[..., W // 2 :], exact[..., : W // 2]), dim=-1)
    return (exact * angles.cos() + half * angles.sin()).to(x.dtype)


class SelfAttention(nn.Module):
    """Multi-head attention: H heads of width W in parallel, then Concat(heads) Wᴼ (Vaswani et al. 3.2.2).

    Each head has its own queries, keys and values, W wide; one D by D matrix computes them for all heads at once.
    Mirrors BertSelfAttention with the projection of BertSelfOutput, and DistilBertSelfAttention.
    """

    def __init__(self, config: Config, number: int = 0) -> None:
        super().__init__()
        D = config.hidden_size
        bias = config.attention_bias
        self.head_size = D // config.num_attention_heads  # W
        self.query = nn.Linear(D, D, bias)
        self.key = nn.Linear(D, D, bias)
        self.value = nn.Linear(D, D, bias)
        self.output = nn.Linear(D, D, bias)
        self.products = OneProduct() if config.family.fused else Products()
        self.theta = config.rotary_thetas[number] if config.rotary_thetas else None
        self.window = config.windows[number] if config.windows else None
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)

    def split_heads(self, x: Tensor) -> Tensor:
        """Cut each vector into H pieces of width W: (B,S,D) -> (B,S,H,W) -> (B,H,S,W)."""
        return x.view(*x.shape[:-1], x.shape[-1] // self.head_size, self.head_size).transpose(-3, -2)

    def project(self, x: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries of the wanted tokens, and the keys and values of all, (B,S,D) each."""
        if wanted is x:
            query, key, value = self.products(x, self.query, self.key, self.value)
        else:
            query = self.query(wanted)
            key, value = self.products(x, self.key, self.value)
        return query, key, value

    def forward(
        self, x: Tensor, layout: Layout, attend: Attend, wanted: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """(B,S,D) -> (B,S,D), and the attention probabilities (B,H,S,S) if `attend` stores them.

        wanted: the rows of x whose output is needed; None: all.
        """
        query, key, value = map(self.split_heads, self.project(x, x if wanted is None else wanted))  # (B,H,S,W) each
        if self.theta is not None:
            if layout.positions is None:
                raise ValueError(f"{type(layout).__name__} has no positions, and the model has rotary positions")
            query = rotate(query, layout.wanted(layout.positions), self.theta)
            key = rotate(key, layout.positions, self.theta)
        context, probs = attend(query, key, value, layout.within(self.window), self.dropout)  # (B,H,S,W), (B,H,S,S)
        # Contiguous, as upstream: for B = W = 1 flatten by itself makes a view, whose products round differently.
        context = context.transpose(-3, -2).contiguous().flatten(-2)  # (B,H,S,W) -> (B,S,H,W) -> (B,S,D)
        return self.output(context), probs


class FeedForward(nn.Module):
    """FFN(x) = activation(x W₁ + b₁) W₂ + b₂, each token by itself. Mirrors BertIntermediate + BertOutput, and FFN.

    With a gate, (activation(x W₁) * (x V)) W₂ (GeGLU: Shazeer 2020). Mirrors ModernBertMLP.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        D, width = config.hidden_size, config.intermediate_size
        bias = config.feed_forward_bias
        self.expand = nn.Linear(D, width, bias)
        self.gate = nn.Linear(D, width, bias) if config.gated else None
        self.contract = nn.Linear(width, D, bias)
        self.products = OneProduct() if config.family.fused else Products()
        self.activation = ACTIVATION[config.hidden_act]
        self.dropout = nn.Dropout(config.feed_forward_dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B,S,D) -> (B,S,F) -> (B,S,D)."""
        if self.gate is None:
            y = self.activation(self.expand(x))  # (B,S,D) -> (B,S,F)
        else:
            y, gate = self.products(x, self.expand, self.gate)
            y = self.activation(y) * gate
        return self.contract(self.dropout(y))  # type: ignore[no-any-return]  # (B,S,F) -> (B,S,D)


class Residual(nn.Module):
    """x + Dropout(change): attention and feed-forward add to a token's vector instead of replacing it."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, change: Tensor, x: Tensor) -> Tensor:
        """(B,S,D) and (B,S,D) -> (B,S,D)."""
        return self.dropout(change) + x  # type: ignore[no-any-return]  # a Tensor: (B,S,D)


class Layer(nn.Module):
    """x = LayerNorm(x + Attention(x)); x = LayerNorm(x + FFN(x)). Mirrors BertLayer and TransformerBlock.

    `x +` is the residual connection. The norm follows the sum ("post-norm"), as in Vaswani et al.
    """

    def __init__(self, config: Config, number: int = 0) -> None:
        super().__init__()
        self.attention = SelfAttention(config, number)
        self.attention_residual = Residual(config.attention_residual_dropout)
        self.attention_norm = layer_norm(config, config.hidden_size)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config.feed_forward_residual_dropout)
        self.feed_forward_norm = layer_norm(config, config.hidden_size)

    def forward(self, x: Tensor, layout: Layout, attend: Attend) -> tuple[Tensor, Tensor | None]:
        """(B,S,D) -> (B,S,D), and the attention probabilities (B,H,S,S) if `attend` returns them."""
        wanted = layout.wanted(x)  # all tokens, or in the last layer of a fast path fewer
        attended, probs = self.attention(x, layout, attend, wanted)
        x = self.attention_norm(self.attention_residual(attended, wanted))
        x = self.feed_forward_norm(self.feed_forward_residual(self.feed_forward(x), x))
        return x, probs


class PreNormLayer(Layer):
    """x = x + Attention(LayerNorm(x)); x = x + FFN(LayerNorm(x)): what most models after BERT do (Xiong et al. 2020).

    The first layer has no norm before its attention, because the embeddings end with one. Mirrors
    ModernBertEncoderLayer.
    """

    def __init__(self, config: Config, number: int = 0) -> None:
        super().__init__(config, number)
        if number == 0:
            self.attention_norm = nn.Identity()  # type: ignore[assignment]  # a LayerNorm in all other layers

    def forward(self, x: Tensor, layout: Layout, attend: Attend) -> tuple[Tensor, Tensor | None]:
        """(B,S,D) -> (B,S,D), and the attention probabilities (B,H,S,S) if `attend` returns them."""
        normed = self.attention_norm(x)
        attended, probs = self.attention(normed, layout, attend, layout.wanted(normed))
        x = self.attention_residual(attended, layout.wanted(x))
        x = self.feed_forward_residual(self.feed_forward(self.feed_forward_norm(x)), x)
        return x, probs


class Pooler(nn.Module):
    """pooled = tanh(W x[CLS] + b), trained by next sentence prediction. Mirrors BertPooler."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """(B,S,D) -> (B,D), from the first token of each text, [CLS]."""
        return torch.tanh(self.dense(x[:, 0]))  # (B,S,D) -> (B,D)


def initialise(model: nn.Module, config: Config, path: str = "") -> None:
    """Initialise as BERT does: matrices from N(0, initializer_range²), biases 0, LayerNorm 1 and 0, [PAD] 0.

    Numbers are drawn in the order of transformers 5.23, so that one seed gives the same encoder (BertPreTrainedModel).
    With a cutoff, as in ModernBERT, no number is further from 0 than so many deviations, and the matrices that end a
    residual branch or a head are smaller. path: the place of `model` in a larger one, for the names.
    """
    for name, module in model.named_modules(prefix=path):
        for kind, values in module.named_parameters(recurse=False):
            if kind == "bias":
                nn.init.zeros_(values)
            elif isinstance(module, nn.LayerNorm):
                nn.init.ones_(values)
            elif config.initializer_cutoff_factor is None:
                nn.init.normal_(values, std=config.initializer_range)
            else:
                std = config.initializer_range
                last = name.rpartition(".")[2]
                if last in ("output", "contract", "transform", "pre_classifier", "decoder"):
                    std /= (2 * config.num_hidden_layers) ** 0.5
                elif last in ("classifier", "qa_outputs"):
                    std = config.hidden_size**-0.5
                most = config.initializer_cutoff_factor * std
                nn.init.trunc_normal_(values, std=std, a=-most, b=most)
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            nn.init.zeros_(module.weight[module.padding_idx])


class Encoder(nn.Module):
    """Token ids to vectors: embeddings, L layers, and the pooler where the checkpoint has one.

    Mirrors BertModel and DistilBertModel. `attention` is "eager" (written out) or "sdpa" (torch's fused kernel).
    """

    source: Path | None = None  # the checkpoint that the weights were loaded from
    from_pretrained, save_pretrained = staticmethod(from_pretrained), staticmethod(save_pretrained)

    def __init__(self, config: Config, attention: str = "eager", pooler: bool = True) -> None:
        super().__init__()
        if attention not in ATTENTION:
            raise ValueError(f"attention {brief(attention)} is not known; choose from {', '.join(ATTENTION)}")
        self.config = config
        self.attend = ATTENTION[attention]
        self.embeddings = Embeddings(config)
        make = PreNormLayer if config.norm_first else Layer
        self.layers = nn.ModuleList(make(config, number) for number in range(len(set(config.shared_layers))))
        self.final_norm = layer_norm(config, config.hidden_size) if config.norm_first else None
        self.pooler = Pooler(config) if pooler and config.family.has_pooler else None
        initialise(self, config)

    @property
    def device(self) -> torch.device:
        """The device of the weights, on which the inputs must be."""
        return self.embeddings.token.weight.device

    def forward(
        self,
        input_ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        task_type_ids: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        return_dict: bool | None = None,
    ) -> EncoderOutput:
        """Encode (B, S) token ids; arguments and fields are named as in transformers. Raises what inputs.py raises.

        Without attention_mask, padding is recognised by pad_token_id. output_attentions=True uses the written-out
        attention, even where "sdpa" is set. return_dict=False returns the fields that are not None as a tuple.
        """
        ids, keep, segments, tasks = as_inputs(self.config, input_ids, attention_mask, token_type_ids, task_type_ids)
        layout = Padded(keep[:, None, None, :], self.embeddings.positions(ids))  # (B,S) -> (B,1,1,S)
        attend = eager_attention if output_attentions and self.attend is sdpa_attention else self.attend

        x = self.embeddings(ids, segments, tasks, layout.positions)  # (B,S) -> (B,S,D)
        hidden_states: list[Tensor] = [x] if output_hidden_states else []
        attentions: list[Any] = []
        steps = self.through_layers(x, layout, attend)
        for x, probs in steps:  # (B,S,D), (B,H,S,S)
            if output_hidden_states:
                hidden_states.append(x)
            if output_attentions:
                attentions.append(probs)
        pooled = None if self.pooler is None else self.pooler(x)  # (B,S,D) -> (B,D)
        out = EncoderOutput(x, pooled, tuple(hidden_states) or None, tuple(attentions) or None)
        return out.to_tuple() if return_dict is False else out  # type: ignore[return-value]  # only on request

    def through_layers(
        self, x: Tensor, layout: Layout, attend: Attend, depth: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield the states after each layer, (B,S,D), and its attention probabilities; depth: of the first so many."""
        steps = self.config.shared_layers[:depth]  # 0, 1, 2, ... unless layers are shared
        for step, number in enumerate(steps, start=1):
            x, probs = self.layers[number](x, layout if step < len(steps) else layout.last(), attend)
            if self.final_norm is not None and step == len(self.config.shared_layers):
                x = self.final_norm(x)
            yield x, probs
