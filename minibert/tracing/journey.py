"""The journey of a sentence as data: every tensor of one forward pass, and what is derived from them.

    text -> tokens -> ids -> embeddings -> L layers -> final vectors -> [CLS] -> classifier, or tokens at [MASK]

Tensors have no batch dimension: one text or pair is traced, B is 1.

A classifier's decision is explained by the dimensions of its vector and by the tokens of the text:

    logit = Σ_d coefficient_d · standardised_d + intercept             exact, for every recipe and task head
          = Σ_t what token t adds + intercept                          exact, for a mean over the tokens
    probability with a token masked − probability                      measured, a row of the model for each token

A feed-forward is explained by its strongest units:

    FFN(x) = Σ_u a_u w_u + b₂        a_u the activation of unit u, w_u its column of W₂
    share of u = (a_u w_u · FFN(x)) / ‖FFN(x)‖²

A share is the part of FFN(x) that unit u adds in the direction of FFN(x); it is negative for a unit that pulls the
other way. The shares of all units and of b₂ add up to 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from minibert.config import Config
from minibert.fields import EncoderOutput
from minibert.heads import Reads
from minibert.prediction.frozen import Classifier
from minibert.prediction.reader import Reader
from minibert.tasks.base import Doubles, Encoded
from minibert.tasks.masked_text import Guess
from minibert.vectors.readable import pool
from minibert.vectors.recipe import Recipe

UNITS = 6  # listed for each token


class MaskGuesses(NamedTuple):
    """What the masked language model predicts at one [MASK]."""

    place: int  # of the [MASK] among the tokens
    guesses: list[Guess]  # the likeliest first


class Masked(NamedTuple):
    """A classifier's decision on the text with one token replaced by [MASK]."""

    place: int  # of the token
    probability: float  # of the label that the whole text gets
    change: float  # of that probability, from the whole text to this


class Effect(NamedTuple):
    """What one change of the model or of the text does: a head switched off, or a token masked."""

    cosines: list[float]  # (S) of each token's last vector with the whole model's
    mean: float  # the same of the mean of the last vectors
    probability: float | None  # of the label that the classifier gives the unchanged text; None without a classifier


class Filled(NamedTuple):
    """What a masked language model says at one masked token."""

    id: int  # of the token of the text; where the text itself has [MASK], of the likeliest token with all heads
    token: str  # the same, written out
    probability: float  # of this token
    guesses: list[Guess]  # the likeliest first


class Ablation(NamedTuple):
    """The text with one change at a time. Places and heads that would take too long are left out."""

    heads: list[list[Effect]]  # L of H: the head switched off; empty for a long text
    masked: dict[int, Effect]  # by place: the token masked
    filled: dict[int, Filled]  # by place: the token masked, all heads; empty without a masked language model's head
    filled_without: dict[int, list[list[Filled]]]  # by place, L of H: the token masked and the head switched off


class Units(NamedTuple):
    """For each token the K units with the largest shares, of either sign, and the rest of the sum."""

    unit: Tensor  # (S,K) their numbers, 0 to F - 1
    activation: Tensor  # (S,K)
    share: Tensor  # (S,K)
    rest: Tensor  # (S) the share of all other units together
    bias: Tensor  # (S) the share of b₂


@dataclass(frozen=True, eq=False)
class Decision:
    """The decision on one text: what each column of the vector adds to each logit. Two labels have one logit."""

    labels: list[str]
    probabilities: Doubles  # (labels)
    logits: Doubles  # (labels), or (1) for two labels of a logistic regression: the logit of the second
    intercepts: Doubles  # as logits
    coefficients: Doubles  # (logits, width)
    standardised: Doubles  # (width): mean 0 and variance 1 over the training texts; of a task head, vector
    by_token: Doubles | None  # (logits, S): what each token adds; None unless the vector is a mean
    columns: list[str]  # the name of each column of the width
    pooling: str  # cls, mean, max or pooler
    layers: tuple[int, ...]  # the hidden states that are read, 0 for the embeddings
    combine: str  # of several hidden states
    vector: Tensor  # (width) before the scaler
    is_head: bool = False  # a task head decides, not a logistic regression

    @property
    def contributions(self) -> Doubles:
        """(logits, width): what each column adds to each logit."""
        return self.coefficients * self.standardised

    @property
    def decided(self) -> int:
        """The number of the likeliest label."""
        return int(self.probabilities.argmax())


@dataclass(frozen=True, eq=False)
class Journey:
    """Everything that happened to one text or pair. E is the width of the embeddings, D for most families."""

    text: str
    text_b: str | None
    model: str
    config: Config
    tokens: list[str]  # S of them, [CLS] first
    ids: list[int]
    segments: list[int]  # token_type_ids: 0 for the first text, 1 for the second if the family has segments
    word_ids: list[int | None]  # count the words of each text from 0; None for special tokens
    offsets: list[tuple[int, int]]  # characters of the text, (0, 0) for special tokens
    embeddings: dict[str, Tensor]  # token, segment, position and sum, (S,E) each; without segment if there is none
    hidden_states: tuple[Tensor, ...]  # L + 1 of (S,D): the embeddings after LayerNorm, then each layer's output
    layers: list[dict[str, Tensor]]  # L of them: the tensors of a layer by their stages in hooks.py
    units: list[Units]  # L of them
    pooled: Tensor | None  # (D); None without a pooler
    predictions: list[MaskGuesses] = field(default_factory=list)
    decision: Decision | None = None
    ablation: Ablation | None = None
    notes: list[str] = field(default_factory=list)  # what a reader of the page should know

    @property
    def attentions(self) -> tuple[Tensor, ...]:
        """L of (H,S,S)."""
        return tuple(layer["probs"] for layer in self.layers)

    @property
    def masked(self) -> list[Masked]:
        """The classifier's decision with each token masked in turn; empty without a classifier."""
        if self.decision is None or self.ablation is None:
            return []
        whole = float(self.decision.probabilities.max())
        masked = ((place, effect.probability) for place, effect in self.ablation.masked.items())
        return [Masked(place, p, p - whole) for place, p in masked if p is not None]

    @property
    def norm(self) -> str:
        """The name of the norm in this model: LayerNorm, or RMSNorm."""
        return type(self.config.architecture.norm(self.config, 1)).__name__

    @property
    def is_parallel(self) -> bool:
        """Whether the feed-forward reads what the attention reads, since a layer has only one norm."""
        return "feed-forward norm" not in self.layers[0]

    @property
    def sides(self) -> list[int]:
        """(S) the text of each token: [CLS] and the first [SEP] belong to 0, the rest of a pair to 1.

        Segments do not tell this: some families have one segment for both texts.
        """
        first_end = self.word_ids.index(None, 1) if self.text_b is not None else len(self.tokens)
        return [int(i > first_end) for i in range(len(self.tokens))]

    @property
    def words(self) -> list[int]:
        """(S) the number of each token's word, counted through both texts; special tokens are words too: [CLS] is 0."""
        keys = list(zip(self.word_ids, self.sides, strict=True))
        begins = [key[0] is None or place == 0 or key != keys[place - 1] for place, key in enumerate(keys)]
        return [number - 1 for number in accumulate(begins)]

    @property
    def word_names(self) -> list[str]:
        """The characters of each word of `words`, or its token if it has none."""
        texts = (self.text, self.text_b or "")
        words = self.words
        names = []
        for number in range(words[-1] + 1):
            first = words.index(number)
            last = first + words.count(number) - 1
            written = texts[self.sides[first]][self.offsets[first][0] : self.offsets[last][1]].strip()
            names.append(written if written and self.word_ids[first] is not None else self.tokens[first])
        return names

    def attention(self, layer: int, head: int | str, *, merge: bool = False) -> Tensor:
        """Return one layer's attention, (S,S), or (words, words) with merge; head is a number, "mean" or "rollout".

        Raises ValueError for a layer or head that the model does not have.
        """
        L = len(self.layers)
        H = self.config.num_attention_heads
        if not -L <= layer < L or (head not in ("mean", "rollout") and str(head) not in map(str, range(H))):
            raise ValueError(
                f"layer is {layer} and head is {head}; there are layers 0 to {L - 1}, -1 for the last, and heads 0 to "
                f"{H - 1}, mean and rollout"
            )
        if head == "rollout":
            matrix = rollout(self.attentions)[layer]
        else:
            matrix = self.attentions[layer].mean(dim=0) if head == "mean" else self.attentions[layer][int(head)]
        return merge_words(matrix, self.words) if merge else matrix


def merge_words(probs: Tensor, words: Sequence[int]) -> Tensor:
    """Return attention between words, (...,words,words), from attention between tokens, (...,S,S).

    The attention to a word is the sum over its pieces, and from a word the mean over its pieces, so that each row still
    sums to 1.
    """
    member = torch.eye(max(words) + 1, dtype=probs.dtype)[list(words)]  # (S, words)
    return (member / member.sum(dim=0)).T @ probs @ member


def rollout(attentions: Sequence[Tensor]) -> list[Tensor]:
    """Return how much of each input token has reached each token by each layer: L of (H,S,S) to L of (S,S).

    This is attention rollout: the mean over the heads with the residual as identity, (A + I) / 2, multiplied through
    the layers (Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers").
    """
    rolled: list[Tensor] = []
    for probs in attentions:
        mixed = (probs.mean(dim=0) + torch.eye(probs.shape[-1], dtype=probs.dtype)) / 2
        rolled.append(mixed @ rolled[-1] if rolled else mixed)
    return rolled


def quadrants(probs: Tensor, sides: Sequence[int]) -> dict[str, float]:
    """Return the share of the attention (S,S) from each text to each text, the mean over the query tokens.

    [CLS] and the first [SEP] belong to A, the last [SEP] to B; A→A + A→B = 1 and B→A + B→B = 1.
    """
    second = torch.tensor(sides, dtype=torch.bool)
    members = {name: member for name, member in (("A", ~second), ("B", second)) if member.any()}
    return {f"{q}→{k}": float(probs[members[q]][:, members[k]].sum(dim=-1).mean()) for q in members for k in members}


def strongest_units(activation: Tensor, contract: nn.Linear) -> Units:
    """Return the strongest units, from activations (S,F) and the second matrix of the feed-forward, W₂ (D,F) with b₂.

    A token to which the feed-forward adds nothing has shares of 0.
    """
    with torch.no_grad():
        b = contract.weight.new_zeros(len(contract.weight)) if contract.bias is None else contract.bias
        a, weight, bias = (x.detach().double().cpu() for x in (activation, contract.weight, b))
        added = a @ weight.T + bias  # (S,D)
        square = added.square().sum(dim=-1, keepdim=True).clamp(min=torch.finfo(added.dtype).tiny)  # (S,1)
        share = a * (added @ weight) / square  # (S,F): a_u w_u · FFN(x), without ever forming a_u w_u
        unit = share.abs().topk(min(UNITS, a.shape[-1]), dim=-1).indices
        listed = share.gather(-1, unit)
        rest = share.sum(dim=-1) - listed.sum(dim=-1)
        return Units(unit, a.gather(-1, unit), listed, rest, (added @ bias) / square[:, 0])


def decide(
    classifier: Classifier | Reader, config: Config, states: tuple[Tensor, ...], pooled: Tensor | None
) -> Decision:
    """Return the classifier's decision on these states, by the recipe it was trained with, dimension by dimension.

    states: L + 1 of (S,D). pooled: (D), or None. Raises ValueError for a classifier of another width or recipe.
    """
    if isinstance(classifier, Reader):
        return decide_by_head(classifier, states, pooled)
    recipe = classifier.features.recipe
    layers, whole = recipe.fit_to(config, has_pooler=pooled is not None)
    width = min(whole, recipe.dimensions or whole)
    scaler, regression = classifier.head
    if width != scaler.n_features_in_:
        raise ValueError(
            f"the classifier reads {scaler.n_features_in_} columns, and this encoder gives {width}; "
            f"it was trained on {classifier.features.model}"
        )
    S, D = states[0].shape
    out = EncoderOutput(states[-1][None], None if pooled is None else pooled[None], tuple(x[None] for x in states))
    (vector,) = vectors_alone(out, recipe, layers)  # (width)
    length = max(float(np.linalg.norm(vector)), 1e-12) if recipe.normalize else 1.0
    vector = (vector / length)[:width]
    standardised = (vector - scaler.mean_) / scaler.scale_
    by_token = None
    if recipe.pooling == "mean":  # of S vectors, each of a text of one token
        alone = EncoderOutput(states[-1][:, None], None, tuple(x[:, None] for x in states))  # S texts of 1 token
        vectors = vectors_alone(alone, recipe, layers)[:, :width] / length  # (S,width)
        by_token = regression.coef_ @ ((vectors - scaler.mean_) / scaler.scale_ / S).T
    state_names = [f" of hidden state {layer}" for layer in layers] if whole > D else [""]
    return Decision(
        labels=classifier.labels,
        probabilities=classifier.head.predict_proba(vector[None])[0],
        logits=regression.coef_ @ standardised + regression.intercept_,
        intercepts=np.asarray(regression.intercept_, dtype=np.float64),
        coefficients=regression.coef_,
        standardised=standardised,
        by_token=by_token,
        columns=[f"dimension {d % D}{state_names[d // D]}" for d in range(width)],
        pooling=recipe.pooling,
        layers=layers,
        combine=recipe.combine,
        vector=torch.from_numpy(vector),
    )


def vectors_alone(out: EncoderOutput, recipe: Recipe, layers: Sequence[int]) -> Doubles:
    """Return the vectors of texts without padding, (B,width), by a recipe."""
    vectors = pool(out, torch.ones(out.last_hidden_state.shape[:2], dtype=torch.bool), recipe, layers)
    return np.asarray(vectors.double().numpy())


def decide_by_head(reader: Reader, states: tuple[Tensor, ...], pooled: Tensor | None) -> Decision:
    """Return the decision of a task head on these states, by the vector that its last layer reads."""
    head: Any = reader.model  # a SequenceClassification
    with torch.no_grad():
        read = states[-1].mean(dim=0) if Reads.MEAN in head.reads else states[-1][0]  # (S,D) -> (D); the first is [CLS]
        vector = head.through_first_layer(read if pooled is None else pooled)
        weight, bias, values = (x.detach().double().numpy() for x in (*head.classifier.parameters(), vector))
    logits = weight @ values + bias
    (answer,) = reader.task.decode([logits], Encoded([]), None, reader.labels)
    return Decision(
        labels=reader.labels,
        probabilities=np.array(list(answer["probabilities"].values())),
        logits=logits,
        intercepts=bias,
        coefficients=weight,
        standardised=values,
        by_token=None,
        columns=[f"dimension {d}" for d in range(len(values))],
        pooling="mean" if Reads.MEAN in head.reads else "cls" if pooled is None else "pooler",
        layers=(len(states) - 1,),
        combine="",
        vector=torch.from_numpy(values),
        is_head=True,
    )
