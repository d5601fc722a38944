"""`minibert.trace`: one run of the model with every tensor kept, and the page that shows it; and the command.

The run uses the hooks of hooks.py, so the tensors are the model's own.
"""

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from markupsafe import Markup
from torch import Tensor

from minibert.checkpoints.checkpoint import Checkpoint
from minibert.checkpoints.load import load
from minibert.heads import MaskedLM
from minibert.hooks import Inputs, Place, Tensors, forward, recording
from minibert.model import Encoder
from minibert.prediction.frozen import Classifier
from minibert.prediction.reader import Reader, folder_kind, open_reader
from minibert.tasks.classification import Classification
from minibert.tasks.labels import SingleLabel
from minibert.tasks.masked_text import best_tokens
from minibert.text.tokenizer import Tokenizer, load_tokenizer
from minibert.tracing.ablation import ablate
from minibert.tracing.journey import Journey, MaskGuesses, decide, strongest_units
from minibert.tracing.live import check_live, live
from minibert.tracing.numbers import select
from minibert.tracing.page import page
from minibert.utils.files import user_path, write_text_atomically
from minibert.utils.inference import inference
from minibert.utils.outputs import check_file
from minibert.utils.plotting import heat_map, pyplot, save_figure
from minibert.utils.printing import Figures, block
from minibert.utils.settings import with_settings

OPENING = "She opened the {} and looked at him."  # the text of a page that computes, if none is given
EMBEDDINGS = {name: Place(f"{name} embeddings") for name in ("token", "segment", "position")} | {
    "sum": Place("embedding sum")
}


class Trace(Journey):
    """A journey that shows itself: in Jupyter, and as the page of `minibert trace`."""

    to_html = page  # as one string

    def save(self, path: str | Path, **options: Any) -> None:
        """Write the page to a file, completely or not at all; `options` are passed to to_html."""
        write_text_atomically(user_path(path), self.to_html(**options))

    def _repr_html_(self) -> str:
        """Return the page in a notebook, in a frame so that neither changes the other's style."""
        return Markup(
            '<iframe title="minibert trace" srcdoc="{}" width="100%" height="820" '
            'style="border: 1px solid #8886; border-radius: 8px"></iframe>'
        ).format(self.to_html())


@with_settings()
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

    encoder: an Encoder, or a MaskedLM, whose guesses at each [MASK] are kept too; for a Reader, reader.model.encoder.
    classifier: its decision is explained by dimensions and tokens. model: the page's title. truncation: "warn" cuts a
    text beyond the tokenizer's max_length, "error" refuses it. Raises TypeError or ValueError for what it cannot trace.
    """
    check_input(encoder, text, text_b, classifier)
    row = tokenizer(text, text_b, truncation=truncation)
    tensors, states = record_row(encoder, row)
    ids = row.input_ids[0].tolist()
    pooled = tensors.get(Place("pooler"))
    below: Any = encoder.encoder if isinstance(encoder, MaskedLM) else encoder
    matrices = [below.layers[number].feed_forward.contract for number in encoder.config.architecture.order]
    stages = [{place.stage: x for place, x in tensors.items() if place.layer == step} for step in range(len(matrices))]
    traced = Trace(
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
        units=[*map(strongest_units, (x["activation"] for x in stages), matrices)],
        pooled=pooled,
        predictions=predictions(tensors, ids, tokenizer),
        decision=None if classifier is None else decide(classifier, encoder.config, states, pooled),
        notes=notes(encoder, tokenizer, row, text, text_b, classifier),
    )
    return replace(traced, ablation=ablate(encoder, tokenizer, traced, classifier))


def check_input(encoder: object, text: object, text_b: object, classifier: Classifier | Reader | None) -> None:
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
            raise ValueError("the encoder is not the one in the classifier; pass classifier.model.encoder")
    if classifier is not None and (classifier.pairs or text_b is not None):
        raise ValueError("trace explains decisions of a classifier on one text, not on a pair; leave out one of them")


def record_row(encoder: Encoder | MaskedLM, row: Any) -> tuple[Tensors, tuple[Tensor, ...]]:
    """Return every stage and hidden state of a forward pass on the tokenizer's row, without the batch dimension."""
    batch = Inputs(row.input_ids, row.attention_mask, row.token_type_ids)
    with inference(encoder), recording(encoder) as kept:
        out = forward(encoder, batch, {"output_hidden_states": True, "output_attentions": True})
    # Position embeddings may have been computed without a batch dimension, (S,D).
    tensors = {place: (tensor[0] if len(tensor) == 1 else tensor).cpu() for place, tensor in kept.items()}
    return tensors, tuple(state[0].cpu() for state in out.hidden_states)


def predictions(tensors: Tensors, ids: list[int], tokenizer: Tokenizer) -> list[MaskGuesses]:
    """Return the ten likeliest tokens at each [MASK]; none without the head of a masked language model."""
    logits = tensors.get(Place("decoder"))  # (S,V)
    if logits is None:
        return []
    places = [place for place, id in enumerate(ids) if id == tokenizer.mask_id]
    guesses = best_tokens(logits[places], tokenizer, min(10, logits.shape[-1]))
    return list(map(MaskGuesses, places, guesses))


def notes(
    encoder: Encoder | MaskedLM,
    tokenizer: Tokenizer,
    row: Any,
    text: str,
    text_b: str | None,
    classifier: Classifier | Reader | None,
) -> list[str]:
    """Return what is particular about this text on this model, in sentences."""
    precision = classifier.features.precision if isinstance(classifier, Classifier) else "float32"
    applies_to = {
        f"The text has {row.longest} tokens, and {tokenizer.max_length} are read; the rest was cut off.": (
            row.longest > tokenizer.max_length
        ),
        "The text is empty: the model reads only [CLS] and [SEP].": not text and text_b is None,
        "This model has no segments: only the [SEP] between the two texts separates them.": (
            text_b is not None and encoder.config.type_vocab_size < 2
        ),
        "This model adds an embedding of its task, task 0, to the sum of each token.": (
            "task_type_ids" in encoder.config.architecture.tables
        ),
        "The text has a [MASK], and this checkpoint has no masked language model's task head, so nothing is predicted "
        "there; bert-base-uncased and distilbert-base-uncased have one.": (
            not isinstance(encoder, MaskedLM) and tokenizer.mask_id in row.input_ids[0].tolist()
        ),
        f"The classifier was trained on vectors of precision {precision}; this page computes in the encoder's, "
        "and the last digits can differ.": precision != "float32",
    }
    return [note for note, applies in applies_to.items() if applies]


# ---------------------------------------------------------------------------------------------------------------
# `minibert trace`


def run(args: argparse.Namespace, default_model: str) -> Figures:
    """Trace a text or a pair, write the page and the pictures, print a summary and return the figures.

    Raises ValueError for a request that cannot be met, FileNotFoundError for a folder or checkpoint that is missing,
    ImportError for a picture without matplotlib.
    """
    check_outputs(args)
    if args.live:
        return run_live(args, default_model)
    classifier = open_reader(args.classifier, model=args.model, device="cpu") if args.classifier else None
    encoder: Encoder | MaskedLM
    if isinstance(classifier, Reader):
        name = args.classifier
        encoder = classifier.model.encoder
        tokenizer = classifier.tokenizer
    else:
        name = args.model or (str(classifier.features.model) if classifier else default_model)
        most = classifier.features.recipe.max_length if classifier else None
        checkpoint = Checkpoint.open(name)
        encoder = model_for(checkpoint)
        tokenizer = load_tokenizer(checkpoint, max_length=most)
    shown = title_of(name)
    traced = trace(
        encoder, tokenizer, args.text, args.text_b, classifier=classifier, model=shown, truncation=args.truncation
    )
    selection = select(traced, args.layers, args.heads)
    attention = traced.attention(args.layer, args.head, merge=args.words)
    figures = {"model": name, **describe(traced)}
    if args.out:
        annotated: Path = args.annotated or Path("build/annotated")  # where `make annotated` writes
        there = (annotated / "model.html").is_file()
        link = Path(os.path.relpath(annotated, args.out.parent)).as_posix() if there else ""
        traced.save(args.out, layers=selection.layers, heads=selection.heads, annotated=link)
        figures |= {"out": str(args.out), "bytes": args.out.stat().st_size}
        figures |= {"page_layers": selection.layers, "page_heads": selection.heads}
        if selection.message:
            print(block("left out", selection.message))
        print(block("page", f"{args.out}: {figures['bytes'] / 1e6:.2f} MB"))
    pictures = [path for path in (args.png, args.svg) if path]
    for path in pictures:
        head = f"head {args.head}" if args.head.isdecimal() else args.head
        title = f"layer {args.layer % len(traced.layers)}, {head}"
        draw(attention.float().numpy(), traced.word_names if args.words else traced.tokens, title, path)
        print(block("picture", f"{path}: {title}"))
    return figures | {"pictures": [str(path) for path in pictures]}


def run_live(args: argparse.Namespace, default_model: str) -> Figures:
    """Write the page that computes by itself, print a summary and return the figures. Raises what `run` raises."""
    name = args.model or default_model
    checkpoint = Checkpoint.open(name)
    check_live(checkpoint)
    model, tokenizer = model_for(checkpoint), load_tokenizer(checkpoint)
    door = tokenizer.id_to_token(tokenizer.mask_id) if isinstance(model, MaskedLM) else "door"
    text = OPENING.format(door) if args.text is None else args.text
    traced = trace(model, tokenizer, text, args.text_b, model=title_of(name), truncation=args.truncation)
    packed = live(model, tokenizer, traced, args.weights)
    html = page(replace(traced, ablation=None), live=packed)
    write_text_atomically(args.out, html)
    figures = {"model": name, **describe(traced), "out": str(args.out), "bytes": len(html.encode())}
    print(block("weights", f"{packed.format}, {packed.bytes / 1e6:.2f} MB; last vectors differ by {packed.error:.2g}"))
    print(block("page", f"{args.out}: {figures['bytes'] / 1e6:.2f} MB"))
    return figures | {"weights": packed.bytes, "error": packed.error, "cosine": packed.cosine}


def title_of(name: str) -> str:
    """Return how the page names a checkpoint: of a folder only the last part."""
    return os.path.basename(os.path.normpath(name)) if os.path.isdir(name) else name


def check_outputs(args: argparse.Namespace) -> None:
    """Raise ValueError, FileNotFoundError or ImportError for outputs that cannot be written."""
    if args.text is None and not args.live:
        raise ValueError("there is no text; give one, or --live for a page in which it is typed")
    others = ("classifier", "layers", "heads", "png", "svg")
    if args.live and (named := [f"--{name}" for name in others if getattr(args, name) is not None]):
        raise ValueError(f"{', '.join(named)} cannot be combined with --live, whose page has all layers and heads")
    if args.live and not args.out:
        raise ValueError("--live writes a page; add --out FILE.html")
    outputs = {".html": args.out, ".png": args.png, ".svg": args.svg}
    if not any(outputs.values()) and not args.json:
        raise ValueError("there is nothing to write; add --out FILE.html, --png FILE.png or --svg FILE.svg")
    for suffix, path in [(suffix, path) for suffix, path in outputs.items() if path]:
        check_file(path, args.overwrite, endings=(suffix,), apart=[args.model, args.classifier])
    if args.annotated and not (args.annotated / "model.html").is_file():
        raise FileNotFoundError(f"--annotated is {args.annotated}, which has no model.html; `make annotated` writes it")
    if args.png or args.svg:
        pyplot()  # raises ImportError, with the way to get it


def model_for(checkpoint: Checkpoint) -> Encoder | MaskedLM:
    """Return the checkpoint's masked language model if it has that task head, else its encoder."""
    encoder = load(checkpoint)
    if folder_kind(checkpoint) != "mask":
        return encoder
    model: Any = load(checkpoint, head=MaskedLM.name)
    model.encoder.pooler = encoder.pooler  # the task head leaves it out
    return model  # type: ignore[no-any-return]  # a MaskedLM


def describe(traced: Trace) -> Figures:
    """Print the tokens, the notes and what the model predicts; return the same as figures."""
    print(block("tokens", f"{len(traced.tokens)}: {' '.join(traced.tokens[:24])}{' ...' * (len(traced.tokens) > 24)}"))
    for note in traced.notes:
        print(block("note", note))
    figures: Figures = {
        "tokens": traced.tokens,
        "ids": traced.ids,
        "segments": traced.segments,
        "notes": traced.notes,
        "layers": len(traced.layers),
        "heads": traced.config.num_attention_heads,
        "hidden_size": traced.config.hidden_size,
        "masks": [
            {"place": place, "guesses": [guess._asdict() for guess in guesses]} for place, guesses in traced.predictions
        ],
    }
    if traced.decision is not None:
        figures["probabilities"] = dict(
            zip(traced.decision.labels, traced.decision.probabilities.tolist(), strict=True)
        )
        print(block("classifier", ", ".join(f"{label} {p:.4f}" for label, p in figures["probabilities"].items())))
    for place, guesses in traced.predictions:
        print(block(f"[MASK] {place}", ", ".join(f"{guess.token} {guess.probability:.4f}" for guess in guesses[:5])))
    return figures


def draw(matrix: Any, names: list[str], title: str, path: Path) -> None:
    """Draw attention as a picture, whose format is the ending of its name."""
    names = [name.replace("$", r"\$") for name in names]  # matplotlib would read a formula
    size = min(24.0, 1.6 + 0.26 * len(names))
    figure, axes = pyplot().subplots(figsize=(size, size), layout="constrained")
    heat_map(matrix, names, names, title=title, axes=axes)
    axes.set(xlabel="to (key)", ylabel="from (query)")
    save_figure(figure, path, dpi=200)
