"""The journey of a sentence as data: every tensor of one forward pass, and what is derived from them.

    text -> tokens -> ids -> embeddings -> L layers -> final vectors -> [CLS] -> classifier, or words at [MASK]

run.py fills a Journey, page.py draws it. Tensors have no batch dimension: one text or pair is traced, B is 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from minibert.config import Config
from minibert.tasks.masked_text import Guess
from minibert.tracing.decision import Decision, Masked
from minibert.tracing.units import Units


@dataclass(frozen=True, eq=False)
class LayerTrace:
    """One layer, in the order of computation; `hidden_states` has what goes in and what comes out."""

    query: Tensor  # (S,D) the heads side by side; key alike
    key: Tensor
    scores: Tensor  # (H,S,S) before softmax
    probs: Tensor  # (H,S,S) each row sums to 1 over the keys
    attention_output: Tensor  # (S,D) what each token gathered, after the output projection
    attention_sum: Tensor  # (S,D) the residual: input + attention_output
    attention_norm: Tensor  # (S,D) LayerNorm of that
    activation: Tensor  # (S,F) the feed-forward's wide layer, after the activation
    units: Units  # the strongest of them
    feed_forward: Tensor  # (S,D) what the feed-forward adds
    feed_forward_sum: Tensor  # (S,D) the residual: attention_norm + feed_forward
    output: Tensor  # (S,D) LayerNorm of that: what goes into the next layer


@dataclass(frozen=True, eq=False)
class Prediction:
    """What the masked language model expects at one [MASK]."""

    place: int  # of the [MASK] among the tokens
    guesses: list[Guess]  # the likeliest first


@dataclass(frozen=True, eq=False)
class Journey:
    """Everything that happened to one text or pair. E is the width of the embeddings, D for most relatives."""

    text: str
    text_b: str | None
    model: str
    config: Config
    tokens: list[str]  # S of them, [CLS] first
    ids: list[int]
    segments: list[int]  # token_type_ids: 0 for the first text, 1 for the second where the relative tells them apart
    word_ids: list[int | None]  # count the words of each text from 0; None for special tokens
    offsets: list[tuple[int, int]]  # characters of the text, (0, 0) for special tokens
    longest: int  # tokens before the text was cut
    token_embeddings: Tensor  # (S,E)
    segment_embeddings: Tensor | None  # (S,E); None where the relative has none
    position_embeddings: Tensor  # (S,E)
    embedding_sum: Tensor  # (S,E)
    hidden_states: tuple[Tensor, ...]  # L + 1 of (S,D): the embeddings after LayerNorm, then each layer's output
    layers: list[LayerTrace]  # L of them
    pooled: Tensor | None  # (D); None where there is no pooler
    predictions: list[Prediction] = field(default_factory=list)
    decision: Decision | None = None
    masked: list[Masked] = field(default_factory=list)  # the decision with [MASK] in a token's place
    notes: list[str] = field(default_factory=list)  # what a reader of the page should know

    @property
    def attentions(self) -> tuple[Tensor, ...]:
        """L of (H,S,S)."""
        return tuple(layer.probs for layer in self.layers)

    @property
    def framing(self) -> str:
        """The row, a word for each text and the special tokens around them: [CLS] text A [SEP] text B [SEP]."""
        names = ["text"] if self.text_b is None else ["text A", "text B"]
        found: list[str] = []
        for token, word, side in zip(self.tokens, self.word_ids, self.sides, strict=True):
            part = token if word is None else names[side]
            if word is None or found[-1:] != [part]:
                found.append(part)
        return " ".join(found)

    @property
    def sides(self) -> list[int]:
        """(S) 0 for the tokens of the first text, 1 for those of the second; special tokens as in `sides` below."""
        return sides(self.word_ids) if self.text_b is not None else [0] * len(self.tokens)

    @property
    def words(self) -> list[int]:
        """The number of the word that each token belongs to, counted through the row; special tokens are words too."""
        return words(self.word_ids, self.sides)

    @property
    def word_names(self) -> list[str]:
        """What stands in the text for each word of `words`, or its token where nothing does."""
        texts, sides, words = (self.text, self.text_b or ""), self.sides, self.words
        names = []
        for number in range(words[-1] + 1):
            first = words.index(number)
            last = first + words.count(number) - 1
            written = texts[sides[first]][self.offsets[first][0] : self.offsets[last][1]].strip()
            names.append(written if written and self.word_ids[first] is not None else self.tokens[first])
        return names

    def attention(self, layer: int, head: int | str, *, merge: bool = False) -> Tensor:
        """The attention of one layer, (S,S), or (words, words) with merge; head is a number, "mean" or "rollout"."""
        if head == "rollout":
            matrix = rollout(self.attentions)[layer]
        else:
            matrix = self.layers[layer].probs.mean(dim=0) if head == "mean" else self.layers[layer].probs[int(head)]
        return merge_words(matrix, self.words) if merge else matrix


def sides(word_ids: Sequence[int | None]) -> list[int]:
    """(S) word ids of a pair to the text that each token belongs to: [CLS] and the first [SEP] to 0, the rest to 1.

    Segments do not say it: some relatives have one segment for both texts.
    """
    first_end = word_ids.index(None, 1)
    return [int(i > first_end) for i in range(len(word_ids))]


def words(word_ids: Sequence[int | None], sides: Sequence[int]) -> list[int]:
    """(S) word ids, which begin again in the second text, to numbers that go through: [CLS] is 0."""
    numbers: list[int] = []
    for i, word in enumerate(word_ids):
        same = i > 0 and word is not None and (word, sides[i]) == (word_ids[i - 1], sides[i - 1])
        numbers.append((numbers[-1] if numbers else -1) + (0 if same else 1))
    return numbers


def merge_words(probs: Tensor, groups: Sequence[int]) -> Tensor:
    """Attention between tokens, (...,S,S), to attention between words, (...,words,words).

    A word receives what its pieces receive (sum over the keys) and looks as its pieces look on average (mean over the
    queries), so that each row still sums to 1.
    """
    member = torch.eye(max(groups) + 1, dtype=probs.dtype)[list(groups)]  # (S, words)
    return (member / member.sum(dim=0)).T @ probs @ member


def rollout(attentions: Sequence[Tensor]) -> list[Tensor]:
    """Attention rollout, L of (H,S,S) to L of (S,S): how much of each input token has reached each place by each layer.

    The mean over the heads with the residual as identity, (A + I) / 2, multiplied through the layers (Abnar and
    Zuidema 2020, "Quantifying Attention Flow in Transformers").
    """
    rolled: list[Tensor] = []
    for probs in attentions:
        mixed = (probs.mean(dim=0) + torch.eye(probs.shape[-1], dtype=probs.dtype)) / 2
        rolled.append(mixed @ rolled[-1] if rolled else mixed)
    return rolled


def quadrants(probs: Tensor, sides: Sequence[int]) -> dict[str, float]:
    """How much of the attention (S,S) of each text's tokens goes to each text, the mean over the query tokens.

    [CLS] and the first [SEP] belong to A, the last [SEP] to B; A→A + A→B = 1 and B→A + B→B = 1.
    """
    second = torch.tensor(sides, dtype=torch.bool)
    members = {"A": ~second, "B": second}
    return {
        f"{q}→{k}": float(probs[members[q]][:, members[k]].sum(dim=-1).mean())
        for q in members
        for k in members
        if members[q].any() and members[k].any()
    }
