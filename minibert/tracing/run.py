"""`minibert.trace`: one run of the model with every tensor kept, and the page that shows it.

The run uses the hooks of stages.py, so the tensors are the model's own; journey.py says what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from minibert.config import Config
from minibert.files import write_text_atomically
from minibert.heads import MaskedLM
from minibert.model import Encoder, Layer
from minibert.parity.stages import Batch, Place, Tensors, forward, recording
from minibert.tasks.frozen import Classifier
from minibert.tasks.masked_text import Guess
from minibert.text.tokenizer import Tokenizer
from minibert.tracing.decision import decide, masked_in_turn
from minibert.tracing.journey import Journey, LayerTrace, Prediction
from minibert.tracing.page import frame, page
from minibert.tracing.units import strongest_units
from minibert.vectors.pooling import inference

GUESSES = 10  # tokens listed at each [MASK]
MASKED = 64  # tokens that a classifier's text is tried without, the first ones: a row of the model each


@dataclass(frozen=True, eq=False)
class Trace(Journey):
    """A journey that shows itself: in Jupyter, and as the page of `minibert trace`."""

    def to_html(
        self, *, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None, annotated: str = ""
    ) -> str:
        """The page as one string, as page.page makes it."""
        return page(self, layers=layers, heads=heads, annotated=annotated)

    def save(self, path: str | Path, **choices: Any) -> None:
        """Write the page to a file, whole or not at all; `choices` are those of to_html."""
        write_text_atomically(Path(path), self.to_html(**choices))

    def _repr_html_(self) -> str:
        """The page inside the notebook, in a frame of its own so that neither changes the other's style."""
        return frame(self.to_html())


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
    config = encoder.config
    batch = Batch(row.input_ids, row.attention_mask, row.token_type_ids).to(next(encoder.parameters()).device)
    with inference(encoder), recording(encoder) as kept:
        out = forward(encoder, batch, {"output_hidden_states": True, "output_attentions": True})
    # Without the batch dimension; position embeddings may have been computed without one, (S,D).
    tensors = {place: (tensor[0] if len(tensor) == 1 else tensor).cpu() for place, tensor in kept.items()}
    states = tuple(state[0].cpu() for state in out.hidden_states)
    pooled = tensors.get(Place("pooler"))
    ids = row.input_ids[0].tolist()
    masks = [place for place, id in enumerate(ids) if id == tokenizer.mask_id]
    tried = [place for place, word in enumerate(row.word_ids[0]) if word is not None][:MASKED]
    below = encoder.encoder if isinstance(encoder, MaskedLM) else encoder
    logits = tensors.get(Place("decoder"))
    return Trace(
        text=text,
        text_b=text_b,
        model=model,
        config=config,
        tokens=row.tokens[0],
        ids=ids,
        segments=row.token_type_ids[0].tolist(),
        word_ids=row.word_ids[0],
        offsets=row.offsets[0],
        longest=row.longest,
        token_embeddings=tensors[Place("token embeddings")],
        segment_embeddings=tensors.get(Place("segment embeddings")),
        position_embeddings=tensors[Place("position embeddings")],
        embedding_sum=tensors[Place("embedding sum")],
        hidden_states=states,
        layers=[layer_trace(tensors, layer, below.layers[own]) for layer, own in enumerate(config.shared_layers)],
        pooled=pooled,
        predictions=[Prediction(i, guesses(logits[i], tokenizer)) for i in masks] if logits is not None else [],
        decision=decide(classifier, config, states, pooled) if classifier else None,
        masked=masked_in_turn(classifier, below, ids, tried, tokenizer.mask_id) if classifier else [],
        notes=notes(config, tokenizer, row.longest, text, text_b, bool(masks) and logits is None, classifier),
    )


def check_request(encoder: object, text: object, text_b: object, classifier: Classifier | None) -> None:
    """Raise TypeError or ValueError for what cannot be traced, before anything is computed."""
    for name, given in (("text", text), ("text_b", text_b)):
        if not isinstance(given, str) and not (name == "text_b" and given is None):
            raise TypeError(f"{name} is of type {type(given).__name__}; one str is wanted")
    if not isinstance(encoder, Encoder | MaskedLM):
        raise TypeError(f"encoder is of type {type(encoder).__name__}; an Encoder or a MaskedLM is wanted")
    if isinstance(encoder, MaskedLM) and not encoder.head_is_trained:
        raise ValueError("the task head 'masked-lm' was never trained; load a checkpoint that has it")
    if classifier is not None and classifier.pairs:
        raise ValueError(
            "the classifier was trained on pairs, and trace takes apart decisions on one text; leave it out"
        )
    if classifier is not None and text_b is not None:
        raise ValueError("a classifier reads one text, and two were given; leave out the second, or the classifier")


def layer_trace(tensors: Tensors, layer: int, weights: nn.Module) -> LayerTrace:
    """The tensors of one layer by their names here."""

    def of(stage: str) -> Tensor:
        return tensors[Place(stage, layer)]

    assert isinstance(weights, Layer)
    return LayerTrace(
        query=of("query"),
        key=of("key"),
        scores=of("scores"),
        probs=of("probs"),
        attention_output=of("attention output"),
        attention_sum=of("attention sum"),
        attention_norm=of("attention norm"),
        activation=of("activation"),
        units=strongest_units(of("activation"), weights.feed_forward.contract),
        feed_forward=of("contract"),
        feed_forward_sum=of("feed-forward sum"),
        output=of("feed-forward norm"),
    )


def guesses(logits: Tensor, tokenizer: Tokenizer) -> list[Guess]:
    """The likeliest tokens by the logits, (V), of one place."""
    best = logits.float().softmax(dim=-1).topk(min(GUESSES, len(logits)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [Guess(tokenizer.token_text(id), probability) for id, probability in pairs]


def notes(
    config: Config,
    tokenizer: Tokenizer,
    longest: int,
    text: str,
    text_b: str | None,
    unfilled: bool,
    classifier: Classifier | None,
) -> list[str]:
    """What is particular about this text on this model, in sentences. unfilled: a [MASK] that nothing predicts."""
    said = []
    if longest > tokenizer.max_length:
        said.append(f"The text has {longest} tokens, and {tokenizer.max_length} are read; the rest was cut off.")
    if not text and text_b is None:
        said.append("The text is empty: the model reads [CLS] and [SEP] alone.")
    if text_b is not None and config.type_vocab_size < 2:
        said.append("This model has no segments: only the [SEP] between the two texts tells them apart.")
    if config.task_vocab_size:
        said.append("This model adds an embedding of its task, that of task 0, to the sum of each token.")
    if unfilled:
        said.append(
            "The text has a [MASK], and this checkpoint has no masked language model's task head, so nothing is "
            "predicted there; bert-base-uncased and distilbert-base-uncased have one."
        )
    if classifier and classifier.features.precision != "float32":
        said.append(
            f"The classifier was trained on vectors of precision {classifier.features.precision}; this page "
            "computes in that of the encoder, and the last digits can differ."
        )
    return said
