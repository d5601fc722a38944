"""minibert: BERT and DistilBERT written by hand, to be read, checked and used.

    encoder = minibert.load("distilbert-base-uncased")
    tokenizer = minibert.load_tokenizer("distilbert-base-uncased")
    vectors = minibert.embed(["a visually stunning rumination on love"])

Each name is imported when it is first used, so that `import minibert` stays quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from minibert.checkpoints.load import load, save
    from minibert.config import Config
    from minibert.lab.trace.run import trace
    from minibert.model import Encoder
    from minibert.text.tokenizer import Tokenizer, load_tokenizer
    from minibert.vectors.embedder import embed
    from minibert.vectors.features import TextFeatures

ROOMS = {
    "Config": "config",
    "Encoder": "model",
    "load": "checkpoints.load",
    "save": "checkpoints.load",
    "Tokenizer": "text.tokenizer",
    "load_tokenizer": "text.tokenizer",
    "TextFeatures": "vectors.features",
    "embed": "vectors.embedder",
    "trace": "lab.trace.run",
}
__all__ = ["Config", "Encoder", "TextFeatures", "Tokenizer", "embed", "load", "load_tokenizer", "save", "trace"]


def __getattr__(name: str) -> object:
    if name not in ROOMS:
        raise AttributeError(f"module 'minibert' has no attribute {name!r}")
    return getattr(importlib.import_module(f"minibert.{ROOMS[name]}"), name)
