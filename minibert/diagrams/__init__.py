"""The block diagrams: drawn once, here, for README, the tutorials, the annotated source and the trace page.

In reading order:

    example   the sentence and the sizes that all of them show
    drawing   a few words to draw with
    forward   the forward pass: the whole way, and each class of model.py
    training  pretraining, frozen features and fine-tuning, teacher and student

`python -m minibert.diagrams FOLDER` writes each as FOLDER/NAME.svg; those of tutorials/pictures are made so.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from markupsafe import Markup

from minibert.diagrams import forward, training
from minibert.diagrams.drawing import STYLE, SWITCHED, Drawing
from minibert.files import write_text_atomically

__all__ = ["DIAGRAMS", "STYLE", "SWITCHED", "inline", "write"]

# Name -> who draws it.
DIAGRAMS: dict[str, Callable[[], Drawing]] = {
    draw.__name__: draw
    for draw in (
        forward.way,
        forward.embeddings,
        forward.attention,
        forward.feed_forward,
        forward.layer,
        forward.pooler,
        forward.directions,
        training.pretraining,
        training.features,
        training.distillation,
    )
}


def inline(name: str) -> Markup:
    """A diagram as a part of a page, in whose style sheet STYLE or SWITCHED must be. Raises KeyError for no diagram."""
    return DIAGRAMS[name]().legend().svg(style=False)


def write(folder: Path) -> list[Path]:
    """Write all of them; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{name}.svg" for name in DIAGRAMS]
    for file in files:
        write_text_atomically(file, DIAGRAMS[file.stem]().legend().svg())
    return files
