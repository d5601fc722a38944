"""The relatives of BERT, each one file with all that it changed: why, the code, and the names as data.

In reading order:

    base        what a family is
    bert        BERT, the reference for all others, and ERNIE, which masks whole words and embeds tasks
    distilbert  half the layers and no segments, distilled from a BERT
    roberta     trained longer; positions that skip padding; XLM-R for a hundred languages, CamemBERT for French
    electra     learns which tokens were replaced
    albert      narrow embeddings, and one layer used twelve times
    modernbert  BERT six years later: rotary positions, local attention, norm first, gates, no biases
"""

from minibert.families import albert, bert, distilbert, electra, modernbert, roberta
from minibert.families.base import Family

# Every Family that these modules define, by model_type of config.json: a relative is added in one file.
FAMILIES: dict[str, Family] = {
    family.name: family
    for module in (bert, distilbert, roberta, albert, electra, modernbert)
    for family in vars(module).values()
    if isinstance(family, Family)
}
