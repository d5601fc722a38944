"""The forward pass of BERT, from token ids to one vector per token, in the order of computation.

A text arrives as tokens (words or pieces of words), each as its index in the vocabulary (text/wordpiece.py): [CLS]
first, [SEP] after each text, [PAD] to fill short rows. Every token becomes a vector. The vectors pass through L layers:
in each, a token takes in information from all tokens (self-attention), then is transformed on its own (feed-forward).

Letters for shapes, here and in every module:

    B  texts in the batch        D  hidden size             F  feed-forward size
    S  tokens in a row           H  attention heads         V  vocabulary size
    L  layers                    W  width of a head, D / H

The equations are from "BERT" (Devlin et al. 2018) and "Attention Is All You Need" (Vaswani et al. 2017). The operations
follow the order of transformers 5.23's eager path, so that in float32 on a CPU the two are equal bit for bit.

All of minibert computes with this code. A relative of BERT subclasses the classes that it changed (families/), which
config.architecture names. Here texts are padded to rows, (B, S, D). The fast paths pack the tokens of all texts,
(T, D), and exchange linear layers, norms and dropout, which see one token at a time, but not the order. Only attention
must know which tokens form a text: `layout` says it, `attend` computes it, and `wanted` are the tokens that are needed.
"""

from collections.abc import Iterator
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from minibert.activations import ACTIVATION
from minibert.config import Config
from minibert.fields import EncoderOutput
from minibert.inputs import as_inputs
from minibert.kernels.training import sdpa_attention
from minibert.layout import Attend, Layout, Padded
from minibert.utils.habits import from_pretrained, save_pretrained
from minibert.utils.printing import brief


def layer_norm(config: Config, width: int) -> nn.Module:
    """Return LayerNorm: it brings each vector to mean 0 and variance 1, then applies a learned scale and shift."""
    return nn.LayerNorm(width, eps=config.layer_norm_eps)


class Embeddings(nn.Module):
    """x = LayerNorm(token + segment + position). Mirrors BertEmbeddings.

    An embedding is a table with a learned vector for each id. The vectors of the token, of its segment (0 for the first
    text of a pair, 1 for the second) and of its position are added (section 3).
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.architecture.embedding_size  # D
        self.token = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        self.position = nn.Embedding(config.max_position_embeddings, width)
        self.segment = nn.Embedding(config.type_vocab_size, width)
        self.norm = config.architecture.norm(config, width)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def positions(self, input_ids: Tensor) -> Tensor:
        """Return the position of each token, (S), the same for every row: (B,S) -> (S)."""
        return torch.arange(input_ids.shape[1], device=input_ids.device)

    def add(self, input_ids: Tensor, segments: Tensor | None, positions: Tensor) -> Tensor:
        """Return the sum of the vectors, (B,S) -> (B,S,D)."""
        segment = self.segment.weight[0] if segments is None else self.segment(segments)
        return self.token(input_ids) + segment + self.position(positions)  # type: ignore[no-any-return]  # (B,S,D)

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor | None = None, positions: Tensor | None = None, **kinds: Tensor
    ) -> Tensor:
        """Return the embeddings, (B,S) each -> (B,S,D). None: segment 0 for all; positions as in padded rows."""
        positions = self.positions(input_ids) if positions is None else positions
        x = self.add(input_ids, token_type_ids, positions, **kinds)  # (B,S) -> (B,S,D)
        return self.dropout(self.norm(x))  # type: ignore[no-any-return]  # dropout: zeros, only in training


def eager_attention(
    query: Tensor, key: Tensor, value: Tensor, layout: Padded, dropout: nn.Module
) -> tuple[Tensor, Tensor]:
    """Attention(Q, K, V) = softmax(Q Kᵀ / √W) V, written out (Vaswani et al. 2017, equation 1).

    A score is the dot product of a query and a key, divided by √W so that it does not grow with the width; softmax
    turns the scores of a query into weights of the values. The dtype's lowest number is added to the score of padding:
    softmax makes it 0 and, unlike -inf, keeps the row of a query without any key finite.
    """
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5  # (B,H,S,W) @ (B,H,W,S) -> (B,H,S,S)
    mask = scores.new_zeros(layout.keep.shape).masked_fill(~layout.keep, torch.finfo(scores.dtype).min)  # (B,1,1,S)
    scores = scores + mask  # (B,H,S,S) + (B,1,1,S): 0 at a token, the lowest number at [PAD]
    probs = dropout(scores.softmax(dim=-1))  # softmax: no value below 0, each row sums to 1 over the keys
    context = probs @ value  # (B,H,S,S) @ (B,H,S,W) -> (B,H,S,W)
    return context, probs


ATTENTION: dict[str, Attend] = {"eager": eager_attention, "sdpa": sdpa_attention}  # minibert.load's attention=


class SelfAttention(nn.Module):
    """Multi-head attention: H heads of width W in parallel, then Concat(heads) Wᴼ (Vaswani et al. 3.2.2).

    Each head has its own queries, keys and values, W wide; one D by D matrix computes them for all heads at once.
    Mirrors BertSelfAttention with the projection of BertSelfOutput, and DistilBertSelfAttention.
    """

    # The products that a fast path exchanges: name -> the linear layers with one input, which may become one product.
    leaves: ClassVar = {"attention": ("query", "key", "value"), "output": ("output",)}

    def __init__(self, config: Config, number: int = 0, bias: bool = True) -> None:
        super().__init__()
        D = config.hidden_size
        self.head_size = D // config.num_attention_heads  # W
        self.query = nn.Linear(D, D, bias)
        self.key = nn.Linear(D, D, bias)
        self.value = nn.Linear(D, D, bias)
        self.output = nn.Linear(D, D, bias)
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)

    def split_heads(self, x: Tensor) -> Tensor:
        """Cut each vector into H pieces of width W: (B,S,D) -> (B,S,H,W) -> (B,H,S,W)."""
        return x.view(*x.shape[:-1], x.shape[-1] // self.head_size, self.head_size).transpose(-3, -2)

    def project(self, x: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries of the wanted tokens, and the keys and values of all, (B,S,D) each."""
        return self.query(wanted), self.key(x), self.value(x)

    def forward(
        self, x: Tensor, layout: Layout, attend: Attend, wanted: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """(B,S,D) -> (B,S,D), and the attention probabilities (B,H,S,S) if `attend` stores them.

        wanted: the rows of x whose output is needed; None: all.
        """
        query, key, value = map(self.split_heads, self.project(x, x if wanted is None else wanted))  # (B,H,S,W) each
        context, probs = attend(query, key, value, layout, self.dropout)  # (B,H,S,W), (B,H,S,S)
        # Contiguous, as upstream: for B = W = 1 flatten by itself makes a view, whose products round differently.
        context = context.transpose(-3, -2).contiguous().flatten(-2)  # (B,H,S,W) -> (B,S,H,W) -> (B,S,D)
        return self.output(context), probs


class FeedForward(nn.Module):
    """FFN(x) = activation(x W₁ + b₁) W₂ + b₂, each token by itself. Mirrors BertIntermediate + BertOutput, and FFN."""

    leaves: ClassVar = {"expand": ("expand",), "contract": ("contract",)}  # see SelfAttention

    def __init__(self, config: Config, bias: bool = True) -> None:
        super().__init__()
        self.expand = nn.Linear(config.hidden_size, config.intermediate_size, bias)
        self.contract = nn.Linear(config.intermediate_size, config.hidden_size, bias)
        self.activation = ACTIVATION[config.hidden_act]

    def inner(self, x: Tensor) -> Tensor:
        """Return activation(x W₁ + b₁), (B,S,D) -> (B,S,F)."""
        return self.activation(self.expand(x))

    def forward(self, x: Tensor) -> Tensor:
        """(B,S,D) -> (B,S,F) -> (B,S,D)."""
        return self.contract(self.inner(x))  # type: ignore[no-any-return]  # a Tensor


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

    `x +` is the residual connection. The norm follows the sum, as in Vaswani et al.
    """

    def __init__(self, config: Config, number: int = 0) -> None:
        super().__init__()
        own = config.architecture  # BERT's is SelfAttention, FeedForward and layer_norm
        self.attention = own.attention(config, number)
        self.attention_residual = Residual(config.hidden_dropout_prob)
        self.attention_norm = own.norm(config, config.hidden_size)
        self.feed_forward = own.feed_forward(config)
        self.feed_forward_residual = Residual(config.hidden_dropout_prob)
        self.feed_forward_norm = own.norm(config, config.hidden_size)

    def forward(self, x: Tensor, layout: Layout, attend: Attend) -> tuple[Tensor, Tensor | None]:
        """(B,S,D) -> (B,S,D), and the attention probabilities (B,H,S,S) if `attend` returns them."""
        wanted = layout.wanted(x)  # all tokens, or in the last layer of a fast path fewer
        attended, probs = self.attention(x, layout, attend, wanted)
        x = self.attention_norm(self.attention_residual(attended, wanted))
        x = self.feed_forward_norm(self.feed_forward_residual(self.feed_forward(x), x))
        return x, probs


class Pooler(nn.Module):
    """pooled = tanh(W x[CLS] + b), trained by next sentence prediction. Mirrors BertPooler."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """(B,S,D) -> (B,D), from the first token of each text, [CLS]."""
        return torch.tanh(self.dense(x[:, 0]))  # (B,S,D) -> (B,D)


class Encoder(nn.Module):
    """Token ids to vectors: embeddings, L layers, and the pooler where the checkpoint has one.

    Mirrors BertModel and DistilBertModel. `attention` is "eager" (written out) or "sdpa" (torch's fused kernel).
    """

    from_pretrained, save_pretrained = staticmethod(from_pretrained), staticmethod(save_pretrained)

    def __new__(cls, config: Config | None = None, *_: Any, **__: Any) -> Self:
        """Choose the class of this relative, as Config does; config is None only for a copy."""
        return super().__new__(config.architecture.encoder if config and cls is Encoder else cls)  # type: ignore # a subclass

    def __init__(self, config: Config, attention: str = "eager", pooler: bool = True) -> None:
        super().__init__()
        if attention not in ATTENTION:
            raise ValueError(f"attention {brief(attention)} is not known; choose from {', '.join(ATTENTION)}")
        self.config = config
        self.checkpoint: Any = None  # what the weights were loaded from
        self.attend = ATTENTION[attention]
        self.embeddings = config.architecture.embeddings(config)
        self.order = config.architecture.order  # 0, 1, 2, ...: the layers in the order in which they compute
        self.layers = nn.ModuleList(config.architecture.layer(config, number) for number in sorted(set(self.order)))
        self.pooler = Pooler(config) if pooler and config.family.has_pooler else None
        config.architecture.initialise(self, config)

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
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        return_dict: bool | None = None,
        **kinds: Any,
    ) -> EncoderOutput:
        """Encode (B, S) token ids; arguments and fields are named as in transformers. Raises what inputs.py raises.

        Without attention_mask, padding is recognised by pad_token_id. output_attentions=True uses the written-out
        attention, even where "sdpa" is set. return_dict=False returns the fields that are not None as a tuple.
        """
        ids, keep, kinds = as_inputs(self.config, input_ids, attention_mask, kinds | {"token_type_ids": token_type_ids})
        layout = Padded(keep[:, None, None, :], self.embeddings.positions(ids))  # (B,S) -> (B,1,1,S)
        attend = eager_attention if output_attentions and self.attend is sdpa_attention else self.attend

        x = self.embeddings(ids, positions=layout.positions, **kinds)  # (B,S) -> (B,S,D)
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
        steps = self.order[:depth]
        for step, number in enumerate(steps, start=1):
            x, probs = self.layers[number](x, layout if step < len(steps) else layout.last(), attend)
            yield x, probs
