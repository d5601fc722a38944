"""The relatives of BERT, each a file of data that begins with what it changed, and why.

In reading order:

    limits      what a value of a config.json may be
    base        what a family is
    bert        BERT, which the others are measured against, and ERNIE, which masks whole words and knows tasks
    distilbert  half the layers, no segments, learned from a BERT
    roberta     trained longer; positions that skip padding; XLM-R for a hundred languages, CamemBERT for French
    albert      narrow tables, and one layer used twelve times
    electra     learns which tokens were replaced
"""

from __future__ import annotations

from minibert.families.albert import ALBERT
from minibert.families.base import Family
from minibert.families.bert import BERT, ERNIE
from minibert.families.distilbert import DISTILBERT
from minibert.families.electra import ELECTRA
from minibert.families.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA

# By model_type, the name that config.json has for it.
FAMILIES: dict[str, Family] = {
    family.name: family for family in (BERT, DISTILBERT, ROBERTA, XLM_ROBERTA, CAMEMBERT, ALBERT, ELECTRA, ERNIE)
}


def family_of(model_type: object) -> Family:
    """The family of this name. Raises ValueError, listing those that are implemented, for any other."""
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(f"model_type {model_type!r} is not supported; supported: {', '.join(FAMILIES)}")
    return FAMILIES[model_type]
