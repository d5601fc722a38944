"""The relatives of BERT, each a file of data that begins with what it changed, and why.

In reading order:

    base        what a family is
    bert        BERT, which the others are measured against
    distilbert  half the layers, no segments, learned from a BERT
"""

from __future__ import annotations

from minibert.families.base import Family
from minibert.families.bert import BERT
from minibert.families.distilbert import DISTILBERT

# By model_type, the name that config.json has for it.
FAMILIES: dict[str, Family] = {family.name: family for family in (BERT, DISTILBERT)}


def family_of(model_type: object) -> Family:
    """The family of this name. Raises ValueError, listing those that are implemented, for any other."""
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(f"model_type {model_type!r} is not supported; supported: {', '.join(FAMILIES)}")
    return FAMILIES[model_type]
