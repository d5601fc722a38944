"""`minibert trace`: what a request asks for, checked, run, printed and written."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from minibert.checkpoints.load import has_head, load
from minibert.files import atomic_write, check_output
from minibert.heads import MaskedLM
from minibert.model import Encoder
from minibert.plotting import heat_map, pyplot
from minibert.printing import block
from minibert.tasks.frozen import Classifier
from minibert.text.tokenizer import load_tokenizer
from minibert.tracing.data import choose
from minibert.tracing.run import Trace, trace

ANNOTATED = Path("build/annotated")  # where `make annotated` writes
NAMED_HEADS = ("mean", "rollout")


def run(args: argparse.Namespace, default_model: str) -> dict[str, Any]:
    """Trace a text or a pair, write the page and the pictures, print what is in them and return the figures.

    Raises ValueError for a request that cannot be met, FileNotFoundError for a folder or checkpoint that is missing,
    ImportError for a picture without matplotlib.
    """
    check(args)
    classifier = Classifier.load(args.classifier, model=args.model, device="cpu") if args.classifier else None
    name = args.model or (str(classifier.features.model) if classifier else default_model)
    encoder = model_for(name)
    check_numbers(args, encoder)
    tokenizer = load_tokenizer(name)
    shown = os.path.basename(os.path.normpath(name)) if os.path.isdir(name) else name
    traced = trace(
        encoder, tokenizer, args.text, args.text_b, classifier=classifier, model=shown, truncation=args.truncation
    )
    figures = {"model": name, **describe(traced)}
    if args.out:
        figures |= write_page(traced, args)
    for path in filter(None, (args.png, args.svg)):
        draw(traced, path, args.layer, args.head, args.words)
        print(block("picture", f"{path}: layer {args.layer % len(traced.layers)}, head {args.head}"))
    figures["pictures"] = [str(path) for path in (args.png, args.svg) if path]
    return figures


def check(args: argparse.Namespace) -> None:
    """Refuse what cannot be done before anything is loaded."""
    wanted = {"--out": (args.out, ".html"), "--png": (args.png, ".png"), "--svg": (args.svg, ".svg")}
    if not any(path for path, _ in wanted.values()) and not args.json:
        raise ValueError("nothing to write was named; add --out FILE.html, --png FILE.png or --svg FILE.svg")
    for option, (path, suffix) in wanted.items():
        if path and (path.suffix.lower() != suffix or path.is_dir()):
            raise ValueError(f"{option} is {path}; it must be a file that ends in {suffix}")
        if path and not path.parent.is_dir():
            raise FileNotFoundError(f"{option} is {path}, and there is no folder {path.parent}")
        if path:
            check_output(path, args.overwrite, apart=[args.model, args.classifier])
    if args.annotated and not (args.annotated / "model.html").is_file():
        raise FileNotFoundError(f"--annotated is {args.annotated}, which has no model.html; `make annotated` writes it")
    if args.classifier and args.text_b is not None:
        raise ValueError("--classifier reads one text, and two were given; leave out one of them")
    if args.png or args.svg:
        pyplot()  # raises ImportError, with the way to get it, before the work is done


def check_numbers(args: argparse.Namespace, encoder: Encoder | MaskedLM) -> None:
    """Raise ValueError for a layer or head of the picture that the model does not have."""
    config = encoder.config
    L, H = len(config.shared_layers), config.num_attention_heads
    if not -L <= args.layer < L:
        raise ValueError(f"--layer is {args.layer}; the model has {L} layers: 0 to {L - 1}, or -1 for the last")
    if args.head not in NAMED_HEADS and not (args.head.isdecimal() and int(args.head) < H):
        raise ValueError(f"--head is {args.head!r}; the model has {H} heads: 0 to {H - 1}, mean or rollout")


def model_for(name: str) -> Encoder | MaskedLM:
    """The checkpoint's masked language model if it has that task head, else its encoder."""
    encoder = load(name)
    if not has_head(name, MaskedLM.name):
        return encoder
    model = load(name, head=MaskedLM.name)
    assert isinstance(model, MaskedLM)
    model.encoder.pooler = encoder.pooler  # the task head leaves it out
    return model


def describe(traced: Trace) -> dict[str, Any]:
    """Print the tokens, what the model says, and what a reader should know; return the same as figures."""
    config = traced.config
    print(block("tokens", f"{len(traced.tokens)}: {' '.join(traced.tokens[:24])}{' ...' * (len(traced.tokens) > 24)}"))
    for note in traced.notes:
        print(block("note", note))
    figures: dict[str, Any] = {
        "tokens": traced.tokens,
        "ids": traced.ids,
        "segments": traced.segments,
        "notes": traced.notes,
        "layers": len(config.shared_layers),
        "heads": config.num_attention_heads,
        "hidden_size": config.hidden_size,
    }
    if traced.decision is not None:
        chances = dict(zip(traced.decision.labels, traced.decision.probabilities.tolist(), strict=True))
        print(block("classifier", ", ".join(f"{label} {chance:.4f}" for label, chance in chances.items())))
        figures["probabilities"] = chances
    for prediction in traced.predictions:
        words = ", ".join(f"{guess.token} {guess.probability:.4f}" for guess in prediction.guesses[:5])
        print(block(f"[MASK] {prediction.place}", words))
    figures["masks"] = [
        {"place": one.place, "guesses": [guess._asdict() for guess in one.guesses]} for one in traced.predictions
    ]
    return figures


def write_page(traced: Trace, args: argparse.Namespace) -> dict[str, Any]:
    """Write --out and say what is in it and what is not."""
    choice = choose(traced, args.layers, args.heads)
    traced.save(args.out, layers=choice.layers, heads=choice.heads, annotated=annotated_address(args))
    size = args.out.stat().st_size
    if choice.message:
        print(block("left out", choice.message))
    print(block("page", f"{args.out}: {size / 1e6:.2f} MB"))
    return {"out": str(args.out), "bytes": size, "page_layers": choice.layers, "page_heads": choice.heads}


def annotated_address(args: argparse.Namespace) -> str:
    """The annotated source as seen from the page; "" where there is none."""
    folder: Path = args.annotated or ANNOTATED
    if not (folder / "model.html").is_file():
        return ""
    try:
        return Path(os.path.relpath(folder, args.out.parent)).as_posix()
    except ValueError:  # another drive of Windows
        return folder.resolve().as_uri()


def draw(traced: Trace, path: Path, layer: int, head: str, joined: bool) -> None:
    """The attention of one layer and head as a picture, its kind by the ending of the name."""
    matrix = traced.attention(layer, head, merge=joined)
    names = [name.replace("$", r"\$") for name in (traced.word_names if joined else traced.tokens)]
    title = f"layer {layer % len(traced.layers)}, {head if head in NAMED_HEADS else f'head {head}'}"
    size = min(24.0, 1.6 + 0.26 * len(names))
    figure, axes = pyplot().subplots(figsize=(size, size), layout="constrained")
    heat_map(matrix.float().numpy(), names, names, title=title, axes=axes)
    axes.set_xlabel("looked at")
    axes.set_ylabel("looks")
    with atomic_write(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:].lower(), dpi=200)
    pyplot().close(figure)
