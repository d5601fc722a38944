"""`minibert trace`: the run of the model as a page, as pictures, and as printed figures."""

import argparse
import os
from pathlib import Path
from typing import Any

from minibert.checkpoints.load import load
from minibert.heads import MaskedLM
from minibert.model import Encoder
from minibert.outputs import check_output
from minibert.plotting import heat_map, pyplot, save_figure
from minibert.printing import block
from minibert.text.tokenizer import load_tokenizer
from minibert.tracing.page import choose
from minibert.tracing.run import Trace, trace
from minibert.train.reader import Reader, folder_kind, open_reader


def run(args: argparse.Namespace, default_model: str) -> dict[str, Any]:
    """Trace a text or a pair, write the page and the pictures, print a summary and return the figures.

    Raises ValueError for a request that cannot be met, FileNotFoundError for a folder or checkpoint that is missing,
    ImportError for a picture without matplotlib.
    """
    check(args)
    classifier = open_reader(args.classifier, model=args.model, device="cpu") if args.classifier else None
    encoder: Encoder | MaskedLM
    if isinstance(classifier, Reader):
        name, encoder, tokenizer = args.classifier, classifier.model.encoder, classifier.tokenizer
    else:
        name = args.model or (str(classifier.features.model) if classifier else default_model)
        most = classifier.features.recipe.max_length if classifier else None
        encoder, tokenizer = model_for(name), load_tokenizer(name, max_length=most)
    shown = os.path.basename(os.path.normpath(name)) if os.path.isdir(name) else name
    traced = trace(
        encoder, tokenizer, args.text, args.text_b, classifier=classifier, model=shown, truncation=args.truncation
    )
    choice = choose(traced, args.layers, args.heads)
    attention = traced.attention(args.layer, args.head, merge=args.words)
    figures = {"model": name, **describe(traced)}
    if args.out:
        annotated: Path = args.annotated or Path("build/annotated")  # where `make annotated` writes
        there = (annotated / "model.html").is_file()
        link = Path(os.path.relpath(annotated, args.out.parent)).as_posix() if there else ""
        traced.save(args.out, layers=choice.layers, heads=choice.heads, annotated=link)
        figures |= {
            "out": str(args.out),
            "bytes": args.out.stat().st_size,
            "page_layers": choice.layers,
            "page_heads": choice.heads,
        }
        if choice.message:
            print(block("left out", choice.message))
        print(block("page", f"{args.out}: {figures['bytes'] / 1e6:.2f} MB"))
    pictures = [path for path in (args.png, args.svg) if path]
    for path in pictures:
        head = f"head {args.head}" if args.head.isdecimal() else args.head
        title = f"layer {args.layer % len(traced.layers)}, {head}"
        draw(attention.float().numpy(), traced.word_names if args.words else traced.tokens, title, path)
        print(block("picture", f"{path}: {title}"))
    return figures | {"pictures": [str(path) for path in pictures]}


def check(args: argparse.Namespace) -> None:
    """Raise ValueError, FileNotFoundError or ImportError for outputs that cannot be written."""
    outputs = {".html": args.out, ".png": args.png, ".svg": args.svg}
    if not any(outputs.values()) and not args.json:
        raise ValueError("there is nothing to write; add --out FILE.html, --png FILE.png or --svg FILE.svg")
    for suffix, path in [(suffix, path) for suffix, path in outputs.items() if path]:
        check_output(path, args.overwrite, endings=(suffix,), apart=[args.model, args.classifier])
    if args.annotated and not (args.annotated / "model.html").is_file():
        raise FileNotFoundError(f"--annotated is {args.annotated}, which has no model.html; `make annotated` writes it")
    if args.png or args.svg:
        pyplot()  # raises ImportError, with the way to get it


def model_for(name: str) -> Encoder | MaskedLM:
    """The checkpoint's masked language model if it has that task head, else its encoder."""
    encoder = load(name)
    if folder_kind(name) != "mask":
        return encoder
    model: Any = load(name, head=MaskedLM.name)
    model.encoder.pooler = encoder.pooler  # the task head leaves it out
    return model  # type: ignore[no-any-return]  # a MaskedLM


def describe(traced: Trace) -> dict[str, Any]:
    """Print the tokens, the notes and what the model predicts; return the same as figures."""
    print(block("tokens", f"{len(traced.tokens)}: {' '.join(traced.tokens[:24])}{' ...' * (len(traced.tokens) > 24)}"))
    for note in traced.notes:
        print(block("note", note))
    figures: dict[str, Any] = {
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
    """Attention as a picture, whose format is the ending of its name."""
    names = [name.replace("$", r"\$") for name in names]  # matplotlib would read a formula
    size = min(24.0, 1.6 + 0.26 * len(names))
    figure, axes = pyplot().subplots(figsize=(size, size), layout="constrained")
    heat_map(matrix, names, names, title=title, axes=axes)
    axes.set(xlabel="to (key)", ylabel="from (query)")
    save_figure(figure, path, dpi=200)
