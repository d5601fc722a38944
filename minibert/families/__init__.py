"""The relatives of BERT, each a file of data that begins with what it changed, and why.

In reading order:

    base        what a family is
    bert        BERT, the reference for all others, and ERNIE, which masks whole words and embeds tasks
    distilbert  half the layers and no segments, distilled from a BERT
    roberta     trained longer; positions that skip padding; XLM-R for a hundred languages, CamemBERT for French
    albert      narrow embeddings, and one layer used twelve times
    electra     learns which tokens were replaced
    modernbert  BERT six years later: rotary positions, local attention, norm first, gates, no biases
"""

from minibert.families import albert, bert, distilbert, electra, modernbert, roberta
from minibert.families.base import Family
from minibert.utils.printing import brief

# Every Family that these modules define, by model_type of config.json: a relative is added in one file.
FAMILIES: dict[str, Family] = {
    family.name: family
    for module in (bert, distilbert, roberta, albert, electra, modernbert)
    for family in vars(module).values()
    if isinstance(family, Family)
}


def family_of(model_type: object) -> Family:
    """Return the family of this model_type. Raises ValueError, listing the implemented ones, for any other."""
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(f"model_type {brief(model_type)} is not supported; supported: {', '.join(FAMILIES)}")
    return FAMILIES[model_type]
