"""The relatives of BERT, each a file of data that begins with what it changed, and why.

In reading order:

    base        what a family is
    bert        BERT, the reference for all others, and ERNIE, which masks whole words and embeds tasks
    distilbert  half the layers and no segments, distilled from a BERT
    roberta     trained longer; positions that skip padding; XLM-R for a hundred languages, CamemBERT for French
    albert      narrow embeddings, and one layer used twelve times
    electra     learns which tokens were replaced
"""

from __future__ import annotations

from minibert.families.albert import ALBERT
from minibert.families.base import Family
from minibert.families.bert import BERT, ERNIE
from minibert.families.distilbert import DISTILBERT
from minibert.families.electra import ELECTRA
from minibert.families.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA

# By model_type of config.json.
FAMILIES: dict[str, Family] = {
    family.name: family for family in (BERT, DISTILBERT, ROBERTA, XLM_ROBERTA, CAMEMBERT, ALBERT, ELECTRA, ERNIE)
}


def family_of(model_type: object) -> Family:
    """The family of this model_type. Raises ValueError, listing the implemented ones, for any other."""
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(f"model_type {model_type!r} is not supported; supported: {', '.join(FAMILIES)}")
    return FAMILIES[model_type]
