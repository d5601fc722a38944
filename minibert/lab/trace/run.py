"""The journey of a sentence as data: every tensor of one forward pass, read out of the modules of model.py.

    text -> tokens -> ids -> embeddings -> L layers -> final vectors -> [CLS] -> classifier, or words at [MASK]

`trace` runs the model once, with the hooks of stages.py; page.py draws the result. Tensors have no batch
dimension: one text or pair is traced, B is 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minibert.config import Config
from minibert.heads import MaskedLM
from minibert.lab.stages import Batch, Place, Tensors, forward, recording
from minibert.model import Encoder, EncoderOutput
from minibert.tasks.fill_mask import Guess
from minibert.tasks.frozen import Classifier
from minibert.text.tokenizer import Tokenizer
from minibert.vectors.pooling import inference, pool
from minibert.vectors.recipe import check_recipe

GUESSES = 10  # tokens listed at each [MASK]


@dataclass(frozen=True, eq=False)
class LayerTrace:
    """One layer, in the order of computation; `hidden_states` has what goes in and what comes out."""

    scores: Tensor  # (H,S,S) before softmax
    probs: Tensor  # (H,S,S) each row sums to 1 over the keys
    attention_output: Tensor  # (S,D) what each token gathered, after the output projection
    attention_sum: Tensor  # (S,D) the residual: input + attention_output
    attention_norm: Tensor  # (S,D) LayerNorm of that
    activation: Tensor  # (S,F) the feed-forward's wide layer, after the activation
    feed_forward: Tensor  # (S,D) what the feed-forward adds
    feed_forward_sum: Tensor  # (S,D) the residual: attention_norm + feed_forward
    output: Tensor  # (S,D) LayerNorm of that: what goes into the next layer


@dataclass(frozen=True, eq=False)
class Prediction:
    """What the masked language model expects at one [MASK]."""

    place: int  # of the [MASK] among the tokens
    guesses: list[Guess]  # the likeliest first


@dataclass(frozen=True, eq=False)
class Decision:
    """How a classifier decides on this text: logit = sum of contributions + intercept, for each class or for one."""

    labels: list[str]
    probabilities: NDArray[np.float64]  # (labels)
    logits: NDArray[np.float64]  # (labels), or (1) for two labels: that of the second
    intercepts: NDArray[np.float64]  # as logits
    contributions: NDArray[np.float64]  # (logits, width): coefficient times standardised feature
    columns: list[str]  # what each column of the width is
    recipe: str  # how the vector was made
    vector: Tensor  # (width) before the scaler


@dataclass(frozen=True, eq=False)
class Trace:
    """Everything that happened to one text or pair; in Jupyter it shows itself as the page of `minibert trace`."""

    text: str
    text_b: str | None
    model: str
    config: Config
    tokens: list[str]  # S of them, [CLS] first
    ids: list[int]
    segments: list[int]  # 0 for the first text, 1 for the second
    word_ids: list[int | None]  # count the words of each text from 0; None for special tokens
    offsets: list[tuple[int, int]]  # characters of the text, (0, 0) for special tokens
    longest: int  # tokens before the text was cut
    token_embeddings: Tensor  # (S,D)
    segment_embeddings: Tensor | None  # (S,D); DistilBERT has none
    position_embeddings: Tensor  # (S,D)
    embedding_sum: Tensor  # (S,D)
    hidden_states: tuple[Tensor, ...]  # L + 1 of (S,D): the embeddings after LayerNorm, then each layer's output
    layers: list[LayerTrace]  # L of them
    pooled: Tensor | None  # (D); None where there is no pooler
    predictions: list[Prediction] = field(default_factory=list)
    decision: Decision | None = None
    notes: list[str] = field(default_factory=list)  # what a reader of the page should know

    @property
    def attentions(self) -> tuple[Tensor, ...]:
        """L of (H,S,S)."""
        return tuple(layer.probs for layer in self.layers)

    @property
    def words(self) -> list[int]:
        """The number of the word that each token belongs to, counted through the row; special tokens are words too."""
        return words(self.word_ids, self.segments)

    def attention(self, layer: int, head: int | str, *, merge: bool = False) -> Tensor:
        """The attention of one layer, (S,S), or (words, words) with merge; head is a number, "mean" or "rollout"."""
        if head == "rollout":
            matrix = rollout(self.attentions)[layer]
        else:
            matrix = self.layers[layer].probs.mean(dim=0) if head == "mean" else self.layers[layer].probs[int(head)]
        return merge_words(matrix, self.words) if merge else matrix

    def to_html(self, **choices: Any) -> str:
        """The page as one string; `choices` are those of page.page (layers, heads, annotated)."""
        from minibert.lab.trace.page import page

        return page(self, **choices)

    def save(self, path: str | Path, **choices: Any) -> None:
        """Write the page to a file, whole or not at all."""
        from minibert.files import write_whole

        write_whole(Path(path), self.to_html(**choices))

    def _repr_html_(self) -> str:
        """The page inside the notebook, in a frame of its own so that neither changes the other's style."""
        from minibert.lab.trace.page import frame

        return frame(self.to_html())


# ---------------------------------------------------------------------------------------------------------------
# The run


def trace(
    encoder: Encoder | MaskedLM,
    tokenizer: Tokenizer,
    text: str,
    text_b: str | None = None,
    *,
    classifier: Classifier | None = None,
    model: str = "",
    truncation: str = "warn",
) -> Trace:
    """Run one text, or a pair, through the model and keep every tensor on the way.

    encoder: as minibert.load returns it, or a MaskedLM, whose guesses at each [MASK] are kept too. Attention is
    computed by the written-out path whatever the model is set to, dropout is off, and the model is left as it was.
    classifier: its decision is taken apart into contributions. model: a name for the page's title.
    truncation: a text beyond the tokenizer's max_length is cut with a warning ("warn") or refused ("error").
    Raises TypeError for what is no text or no encoder, ValueError for a classifier that does not fit.
    """
    check_request(encoder, text, text_b, classifier)
    row = tokenizer(text, text_b, truncation=truncation)
    base = encoder.encoder if isinstance(encoder, MaskedLM) else encoder
    device = next(encoder.parameters()).device
    batch = Batch(row.input_ids, row.attention_mask, row.token_type_ids).to(device)
    with inference(encoder), recording(encoder) as kept:  # type: ignore[arg-type]  # a head has modules and modes too
        out = forward(encoder, batch, {"output_hidden_states": True, "output_attentions": True})
    tensors = {place: tensor[0].cpu() for place, tensor in kept.items()}
    states = tuple(state[0].cpu() for state in out.hidden_states)
    pooled = tensors.get(Place("pooler"))
    decision = decide(classifier, base.config, states, pooled) if classifier else None
    masks = [i for i, id in enumerate(row.input_ids[0].tolist()) if id == tokenizer.mask_id]
    logits = tensors.get(Place("decoder"))
    return Trace(
        text=text,
        text_b=text_b,
        model=model,
        config=base.config,
        tokens=row.tokens[0],
        ids=row.input_ids[0].tolist(),
        segments=row.token_type_ids[0].tolist(),
        word_ids=row.word_ids[0],
        offsets=row.offsets[0],
        longest=row.longest,
        token_embeddings=tensors[Place("token embeddings")],
        segment_embeddings=tensors.get(Place("segment embeddings")),
        position_embeddings=positions(kept),
        embedding_sum=tensors[Place("embedding sum")],
        hidden_states=states,
        layers=[layer_trace(tensors, number) for number in range(base.config.num_hidden_layers)],
        pooled=pooled,
        predictions=[Prediction(i, guesses(logits[i], tokenizer)) for i in masks] if logits is not None else [],
        decision=decision,
        notes=notes(base.config, tokenizer, row.longest, text, text_b, bool(masks) and logits is None, classifier),
    )


def check_request(encoder: object, text: object, text_b: object, classifier: Classifier | None) -> None:
    """Raise TypeError or ValueError for what cannot be traced, before anything is computed."""
    for name, given in (("text", text), ("text_b", text_b)):
        if not isinstance(given, str) and not (name == "text_b" and given is None):
            raise TypeError(f"{name} is of type {type(given).__name__}; one str is wanted")
    if not isinstance(encoder, Encoder | MaskedLM):
        raise TypeError(f"encoder is of type {type(encoder).__name__}; an Encoder or a MaskedLM is wanted")
    if isinstance(encoder, MaskedLM) and not encoder.head_is_trained:
        raise ValueError("the head 'masked-lm' was never trained; load a checkpoint that has it")
    if classifier is not None and text_b is not None:
        raise ValueError("a classifier reads one text, and two were given; leave out the second, or the classifier")


def positions(kept: Tensors) -> Tensor:
    """The position embeddings, which the model computes without a batch dimension, (S,D)."""
    tensor = kept[Place("position embeddings")]
    return (tensor if tensor.dim() == 2 else tensor[0]).cpu()


def layer_trace(tensors: Tensors, layer: int) -> LayerTrace:
    """The tensors of one layer by their names here."""
    stages = (
        "scores",
        "probs",
        "attention output",
        "attention sum",
        "attention norm",
        "activation",
        "contract",
        "feed-forward sum",
        "feed-forward norm",
    )
    return LayerTrace(*(tensors[Place(stage, layer)] for stage in stages))


def guesses(logits: Tensor, tokenizer: Tokenizer) -> list[Guess]:
    """The likeliest tokens by the logits, (V), of one place."""
    best = logits.float().softmax(dim=-1).topk(min(GUESSES, len(logits)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [Guess(tokenizer.id_to_token(id) or f"[id {id}]", probability) for id, probability in pairs]


def notes(
    config: Config,
    tokenizer: Tokenizer,
    longest: int,
    text: str,
    text_b: str | None,
    masked: bool,
    classifier: Classifier | None,
) -> list[str]:
    """What is particular about this text on this model, in sentences."""
    said = []
    if longest > tokenizer.max_length:
        said.append(f"The text has {longest} tokens, and {tokenizer.max_length} are read; the rest was cut off.")
    if not text and text_b is None:
        said.append("The text is empty: the model reads [CLS] and [SEP] alone.")
    if text_b is not None and not config.type_vocab_size:
        said.append("This model has no segments: only the [SEP] between the two texts tells them apart.")
    if masked:
        said.append(
            "The text has a [MASK], and this checkpoint has no masked language model's head, so nothing is "
            "predicted there; bert-base-uncased and distilbert-base-uncased have one."
        )
    if classifier and classifier.features.precision != "float32":
        said.append(
            f"The classifier was trained on vectors of precision {classifier.features.precision}; this page "
            "computes in that of the encoder, and the last digits can differ."
        )
    return said


# ---------------------------------------------------------------------------------------------------------------
# What is derived from the run


def words(word_ids: Sequence[int | None], segments: Sequence[int]) -> list[int]:
    """(S) word ids, which begin again in the second text, to numbers that go through: [CLS] is 0."""
    numbers: list[int] = []
    for i, word in enumerate(word_ids):
        same = i > 0 and word is not None and (word, segments[i]) == (word_ids[i - 1], segments[i - 1])
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


def quadrants(probs: Tensor, segments: Sequence[int]) -> dict[str, float]:
    """How much of the attention (S,S) of each text's tokens goes to each text, the mean over the tokens that look.

    [CLS] and the first [SEP] belong to A, the last [SEP] to B; A→A + A→B = 1 and B→A + B→B = 1.
    """
    second = torch.tensor(segments, dtype=torch.bool)
    sides = {"A": ~second, "B": second}
    return {
        f"{q}→{k}": float(probs[sides[q]][:, sides[k]].sum(dim=-1).mean())
        for q in sides
        for k in sides
        if sides[q].any() and sides[k].any()
    }


def decide(classifier: Classifier, config: Config, states: tuple[Tensor, ...], pooled: Tensor | None) -> Decision:
    """The classifier's decision on these states, by the recipe it was trained with, dimension by dimension."""
    features = classifier.features
    layers, width = check_recipe(
        config,
        pooling=features.pooling,
        layers=features.layers,
        combine=features.combine,
        has_pooler=pooled is not None,
    )
    scaler, regression = classifier.head[0], classifier.head[-1]
    if width != scaler.n_features_in_:
        raise ValueError(
            f"the classifier reads {scaler.n_features_in_} columns, and this encoder gives {width}; "
            f"it was trained on {features.model}"
        )
    out = EncoderOutput(states[-1], None if pooled is None else pooled[None], tuple(state[None] for state in states))
    keep = torch.ones(1, len(states[0]), dtype=torch.bool)
    vector = pool(out, keep, features.pooling, layers, features.combine)[0]  # (width)
    x = (vector.double().numpy() - scaler.mean_) / scaler.scale_
    contributions = regression.coef_ * x  # (logits, width)
    logits = contributions.sum(axis=1) + regression.intercept_
    single = len(layers) == 1 or features.combine != "concat"
    D = config.hidden_size
    columns = [f"dimension {d % D}" + ("" if single else f" of hidden state {layers[d // D]}") for d in range(width)]
    how = (
        "the pooler's output"
        if features.pooling == "pooler"
        else (f"{features.pooling} over the tokens" if features.pooling != "cls" else "the vector of [CLS]")
    )
    which = (
        f"hidden state {layers[0]}"
        if len(layers) == 1
        else (f"hidden states {', '.join(map(str, layers))}, put together by {features.combine}")
    )
    return Decision(
        labels=classifier.labels,
        probabilities=probabilities(logits),
        logits=logits,
        intercepts=np.asarray(regression.intercept_, dtype=np.float64),
        contributions=contributions,
        columns=columns,
        recipe=f"{how}, {which}",
        vector=vector,
    )


def probabilities(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """One logit, that of the second of two labels, by the sigmoid; several by softmax."""
    scores = np.array([0.0, logits[0]]) if len(logits) == 1 else logits
    odds = np.exp(scores - scores.max())
    return np.asarray(odds / odds.sum())
