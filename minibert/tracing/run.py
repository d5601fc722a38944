"""`minibert.trace`: one run of the model with every tensor kept, and the page that shows it.

The run uses the hooks of parity/stages.py, so the tensors are the model's own.
"""

from pathlib import Path
from typing import Any

from markupsafe import Markup
from torch import Tensor

from minibert.files import write_text_atomically
from minibert.heads import MaskedLM
from minibert.inputs import inference
from minibert.model import Encoder
from minibert.parity.stages import Inputs, Place, Tensors, forward, recording
from minibert.tasks.classification import Classification
from minibert.tasks.frozen import Classifier
from minibert.tasks.labels import SingleLabel
from minibert.tasks.masked_text import best_tokens
from minibert.text.tokenizer import Tokenizer
from minibert.tracing.journey import Journey, Prediction, decide, mask_in_turn, strongest_units
from minibert.tracing.page import page
from minibert.train.reader import Reader

EMBEDDINGS = {name: Place(f"{name} embeddings") for name in ("token", "segment", "position")} | {
    "sum": Place("embedding sum")
}
MASKED = 64  # first tokens of a classifier's text that are masked in turn, a row of the model for each


class Trace(Journey):
    """A journey that shows itself: in Jupyter, and as the page of `minibert trace`."""

    to_html = page  # as one string

    def save(self, path: str | Path, **options: Any) -> None:
        """Write the page to a file, completely or not at all; `options` are those of to_html."""
        write_text_atomically(Path(path), self.to_html(**options))

    def _repr_html_(self) -> str:
        """The page in a notebook, in a frame so that neither changes the other's style."""
        return Markup(
            '<iframe title="minibert trace" srcdoc="{}" width="100%" height="820" '
            'style="border: 1px solid #8886; border-radius: 8px"></iframe>'
        ).format(self.to_html())


def trace(
    encoder: Encoder | MaskedLM,
    tokenizer: Tokenizer,
    text: str,
    text_b: str | None = None,
    *,
    classifier: Classifier | Reader | None = None,
    model: str = "",
    truncation: str = "warn",
) -> Trace:
    """Run one text, or a pair, through the model and keep every tensor on the way.

    encoder: an Encoder, or a MaskedLM, whose guesses at each [MASK] are kept too. Attention is computed by the
    written-out path whatever the model's setting, dropout is off, and the model is left as it was.
    classifier: its decision is explained by dimensions and tokens; of a Reader, `encoder` is reader.model.encoder.
    model: a name for the page's title. truncation: a text beyond the tokenizer's max_length is cut with a warning
    ("warn") or refused ("error"). Raises TypeError for a text that is no str or an encoder of another type, ValueError
    for a classifier that does not fit or a head that was never trained.
    """
    check(encoder, text, text_b, classifier)
    row = tokenizer(text, text_b, truncation=truncation)
    tensors, states = run(encoder, row)
    ids, pooled = row.input_ids[0].tolist(), tensors.get(Place("pooler"))
    below: Any = encoder.encoder if isinstance(encoder, MaskedLM) else encoder
    layers = [below.layers[own] for own in encoder.config.shared_layers]
    stages = [{place.stage: x for place, x in tensors.items() if place.layer == i} for i in range(len(layers))]
    words = [place for place, word in enumerate(row.word_ids[0]) if word is not None]
    return Trace(
        text=text,
        text_b=text_b,
        model=model,
        config=encoder.config,
        tokens=row.tokens[0],
        ids=ids,
        segments=row.token_type_ids[0].tolist(),
        word_ids=row.word_ids[0],
        offsets=row.offsets[0],
        embeddings={name: tensors[place] for name, place in EMBEDDINGS.items() if place in tensors},
        hidden_states=states,
        layers=stages,
        units=[
            strongest_units(stage["activation"], layer.feed_forward.contract)
            for stage, layer in zip(stages, layers, strict=True)
        ],
        pooled=pooled,
        predictions=predictions(tensors, ids, tokenizer),
        decision=None if classifier is None else decide(classifier, encoder.config, states, pooled),
        masked=mask_in_turn(classifier, below, ids, words[:MASKED], tokenizer.mask_id) if classifier else [],
        notes=notes(encoder, tokenizer, row, text, text_b, classifier),
    )


def check(encoder: object, text: object, text_b: object, classifier: Classifier | Reader | None) -> None:
    """Raise TypeError or ValueError for a request that cannot be traced, before anything is computed."""
    if not isinstance(encoder, Encoder | MaskedLM) or not isinstance(text, str) or not isinstance(text_b, str | None):
        raise TypeError(
            f"encoder, text and text_b are of types {type(encoder).__name__}, {type(text).__name__}, "
            f"{type(text_b).__name__}; an Encoder or MaskedLM and str are required"
        )
    if isinstance(encoder, MaskedLM) and not encoder.head_is_trained:
        raise ValueError("the task head 'masked-lm' was never trained; load a checkpoint that has it")
    if isinstance(classifier, Reader):
        if not isinstance(classifier.task, Classification) or not isinstance(classifier.task.label_type, SingleLabel):
            raise ValueError(
                "trace explains the decision for one label of a text, and this model answers otherwise; see its "
                "answers with `minibert predict`, or trace the model without --classifier"
            )
        if encoder is not classifier.model.encoder:
            raise ValueError("the encoder is not that of the classifier; pass classifier.model.encoder")
    if classifier is not None and (classifier.pairs or text_b is not None):
        raise ValueError("trace explains decisions of a classifier on one text, not on a pair; leave out one of them")


def run(encoder: Encoder | MaskedLM, row: Any) -> tuple[Tensors, tuple[Tensor, ...]]:
    """Every stage and the hidden states of a forward pass on the tokenizer's row, without the batch dimension."""
    batch = Inputs(row.input_ids, row.attention_mask, row.token_type_ids)
    with inference(encoder), recording(encoder) as kept:
        out = forward(encoder, batch, {"output_hidden_states": True, "output_attentions": True})
    # Position embeddings may have been computed without a batch dimension, (S,D).
    tensors = {place: (tensor[0] if len(tensor) == 1 else tensor).cpu() for place, tensor in kept.items()}
    return tensors, tuple(state[0].cpu() for state in out.hidden_states)


def predictions(tensors: Tensors, ids: list[int], tokenizer: Tokenizer) -> list[Prediction]:
    """The ten likeliest tokens at each [MASK]; none without the head of a masked language model."""
    logits = tensors.get(Place("decoder"))  # (S,V)
    places = [] if logits is None else [place for place, id in enumerate(ids) if id == tokenizer.mask_id]
    guesses = [] if logits is None else best_tokens(logits[places], tokenizer, min(10, logits.shape[-1]))
    return [Prediction(place, found) for place, found in zip(places, guesses, strict=True)]


def notes(
    encoder: Encoder | MaskedLM,
    tokenizer: Tokenizer,
    row: Any,
    text: str,
    text_b: str | None,
    classifier: Classifier | Reader | None,
) -> list[str]:
    """What is particular about this text on this model, in sentences."""
    precision = classifier.features.precision if isinstance(classifier, Classifier) else "float32"
    found = {
        f"The text has {row.longest} tokens, and {tokenizer.max_length} are read; the rest was cut off.": (
            row.longest > tokenizer.max_length
        ),
        "The text is empty: the model reads [CLS] and [SEP] alone.": not text and text_b is None,
        "This model has no segments: only the [SEP] between the two texts separates them.": (
            text_b is not None and encoder.config.type_vocab_size < 2
        ),
        "This model adds an embedding of its task, that of task 0, to the sum of each token.": (
            encoder.config.task_vocab_size > 0
        ),
        "The text has a [MASK], and this checkpoint has no masked language model's task head, so nothing is predicted "
        "there; bert-base-uncased and distilbert-base-uncased have one.": (
            not isinstance(encoder, MaskedLM) and tokenizer.mask_id in row.input_ids[0].tolist()
        ),
        f"The classifier was trained on vectors of precision {precision}; this page computes in that of the encoder, "
        "and the last digits can differ.": precision != "float32",
    }
    return [note for note, applies in found.items() if applies]
