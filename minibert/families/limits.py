"""What a value of a config.json may be: each by itself, checked before anything of its size is allocated."""

from __future__ import annotations

from dataclasses import field, fields
from typing import Any

# Variants of BERT that config.json can ask for and the encoder does not compute: name -> the value that asks for none.
ABSENT = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False, "pruned_heads": {}}
# For whoever has a checkpoint of the first years: its config.json does not say of which relative it is.
HOW_TO_SAY = 'say which it is: load(..., model_type="bert"), or minibert convert FOLDER --out FOLDER2 --model-type bert'


def size(default: int, least: int = 1, most: int = 2**24) -> int:
    """A field for a whole number. The most is far beyond any BERT: what a config.json claims is allocated."""
    return field(default=default, metadata={"kind": int, "least": least, "most": most})


def share(default: float | None) -> Any:
    """A field for a number from 0 to 1; None is taken only where it is the default."""
    return field(default=default, metadata={"kind": int | float, "least": 0, "most": 1})


def check_values(config: Any) -> None:
    """Raise ValueError, naming the field, for a value beyond its limits or a variant that is not implemented."""
    given = [f for f in fields(config) if f.metadata and getattr(config, f.name) is not f.default]
    for name, limits in ((f.name, f.metadata) for f in given):
        value, least, most = getattr(config, name), limits["least"], limits["most"]
        if not isinstance(value, limits["kind"]) or isinstance(value, bool) or not least <= value <= most:
            kind = "whole number" if limits["kind"] is int else "number"
            raise ValueError(f"{name} is {value!r}; it must be a {kind} of at least {least} and at most {most}")
    for name, accepted in ABSENT.items():
        if config.extra.get(name) not in (None, accepted):
            raise ValueError(f"{name} {config.extra[name]!r} is not implemented; only {accepted!r} is")
