"""The work that `minibert bench` measures: its texts, and the floating-point operations that it cannot do without.

N texts, S tokens, D hidden, F feed-forward, L layers.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from minibert.config import Config
from minibert.tasks.reviews import read_labelled
from minibert.text.tokenizer import Tokenizer

SENTENCE = "a visually stunning rumination on love"  # the one short sentence
# The first 2,000 training sentences of SST-2, by their number of tokens with [CLS] and [SEP], from 3 upwards.
SHORTEST = 3
SST2_COUNTS = (
    4,
    18,
    14,
    14,
    34,
    37,
    45,
    55,
    58,
    55,
    53,
    65,
    58,
    71,
    67,
    70,
    82,
    55,
    63,
    69,
    53,
    60,
    74,
    71,
    58,
    57,
    56,
    43,
    54,
    48,
    34,
    41,
    40,
    38,
    34,
    23,
    32,
    35,
    22,
    22,
    16,
    18,
    21,
    8,
    8,
    4,
    9,
    7,
    6,
    7,
    6,
    4,
    0,
    1,
    1,
    0,
    2,
)
SST2_LENGTHS = dict(enumerate(SST2_COUNTS, start=SHORTEST))


# ---------------------------------------------------------------------------------------------------------------
# Texts


@dataclass(frozen=True)
class Work:
    """Texts, and where they are from."""

    texts: list[str]
    origin: str


def find_work(count: int, tokenizer: Tokenizer) -> Work:
    """The first sentences of SST-2 where $MINIBERT_DATA has them, else as many drawn with the same lengths."""
    folder = os.environ.get("MINIBERT_DATA")
    path = Path(folder) / "sst2" / "train.tsv" if folder else None
    if path is not None and path.is_file():
        texts = read_labelled(path).texts
        if len(texts) >= count:
            return Work(texts[:count], "the first training sentences of SST-2")
    return Work(drawn_texts(count, tokenizer), "drawn words, as many to a sentence as in SST-2")


def drawn_texts(
    count: int, tokenizer: Tokenizer, lengths: Mapping[int, int] = SST2_LENGTHS, seed: int = 0
) -> list[str]:
    """Sentences of vocabulary words whose numbers of tokens are drawn from `lengths` (tokens -> weight)."""
    words, draw = whole_words(tokenizer), random.Random(seed)
    sizes = draw.choices(list(lengths), list(lengths.values()), k=count)
    return [" ".join(draw.choices(words, k=size - 2)) for size in sizes]


def texts_of(tokens: int, count: int, tokenizer: Tokenizer, seed: int = 0) -> list[str]:
    """`count` texts of exactly so many tokens, [CLS] and [SEP] included."""
    return drawn_texts(count, tokenizer, {tokens: 1}, seed)


def whole_words(tokenizer: Tokenizer) -> list[str]:
    """The words that are one token each."""
    tokens = (tokenizer.id_to_token(id) for id in range(tokenizer.vocab_size))
    words = [token for token in tokens if token is not None and token.isascii() and token.isalpha()]
    return [
        word
        for word, ids in zip(words, tokenizer.ids(words), strict=True)
        if ids[1:-1] == [tokenizer.token_to_id(word)]
    ]


# ---------------------------------------------------------------------------------------------------------------
# Floating-point operations; a product and its addition are two


def layer_flops(S: int, asking: int, D: int, F: int) -> int:
    """One layer for a text of S tokens of which the first `asking` are wanted.

    Keys and values of every token; query, output and feed-forward of those that ask; scores and context, asking x S.
    """
    return 2 * S * 2 * D * D + 2 * asking * (2 * D * D + 2 * D * F) + 4 * asking * S * D


def text_flops(S: int, config: Config, first_only: bool = True) -> int:
    """All layers for one text; with first_only the last layer is computed for [CLS] alone, which is exact."""
    D, F, L = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    return (L - 1) * layer_flops(S, S, D, F) + layer_flops(S, 1 if first_only else S, D, F)


def job_flops(lengths: Iterable[int], config: Config) -> int:
    """The [CLS] vectors of texts with these numbers of tokens, without padding."""
    return sum(text_flops(S, config) for S in lengths)


FORMULA = (
    "a text of S tokens costs, in each layer, 4 S D² (keys and values) + 4 A D² (query and output) + 4 A D F "
    "(feed-forward) + 4 A S D (attention), where A = S, and A = 1 in the last layer, of which [CLS] alone is wanted"
)


def padded_bytes(lengths: Sequence[int], config: Config) -> int:
    """About the memory that one padded batch of all texts takes at its peak, every hidden state kept, in float32."""
    D, F, L = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    return 4 * len(lengths) * max(lengths) * ((L + 1) * D + 4 * D + 2 * F)
