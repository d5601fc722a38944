"""What every diagram is of: one sentence, and a model of the sizes of all-MiniLM-L6-v2. Letters as in model.py."""

from __future__ import annotations

from minibert.config import Config

SENTENCE = "a visually stunning rumination on love"
TOKENS = ("[CLS]", "a", "visually", "stunning", "rum", "##ination", "on", "love", "[SEP]")
IDS = (101, 1037, 17453, 14726, 19379, 12758, 2006, 2293, 102)
HIDDEN = TOKENS.index("stunning")  # the token that is hidden where words are guessed

CONFIG = Config(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
S = len(TOKENS)
D, H, L = CONFIG.hidden_size, CONFIG.num_attention_heads, CONFIG.num_hidden_layers
F, V = CONFIG.intermediate_size, CONFIG.vocab_size
W = D // H


def weights_of_encoder() -> int:
    """How many numbers the encoder has that can be trained. Counted, not computed with: nothing is filled in."""
    import torch

    from minibert.model import Encoder

    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Encoder(CONFIG).parameters())
