"""The texts of the benchmark: sentences of SST-2, or sentences drawn with the same lengths."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from pathlib import Path

from minibert.tasks.reviews import read_labelled
from minibert.text.tokenizer import Tokenizer

SENTENCE = "a visually stunning rumination on love"  # the one short sentence
# How many of the first 2,000 training sentences of SST-2 have 3 tokens, 4 tokens ..., [CLS] and [SEP] included.
SST2_COUNTS = """
    4 18 14 14 34 37 45 55 58 55 53 65 58 71 67 70 82 55 63 69 53 60 74 71 58 57 56 43 54
    48 34 41 40 38 34 23 32 35 22 22 16 18 21 8 8 4 9 7 6 7 6 4 0 1 1 0 2
"""
SST2_LENGTHS = dict(enumerate(map(int, SST2_COUNTS.split()), start=3))  # tokens -> sentences


def find_texts(count: int, tokenizer: Tokenizer) -> tuple[list[str], str]:
    """The first sentences of SST-2 where $MINIBERT_DATA has them, else drawn ones; and where they are from."""
    folder = os.environ.get("MINIBERT_DATA")
    path = Path(folder or "", "sst2", "train.tsv")
    if folder and path.is_file() and len(texts := read_labelled(path).texts) >= count:
        return texts[:count], "the first training sentences of SST-2"
    return drawn_texts(count, tokenizer), "drawn words, as many to a sentence as in SST-2"


def drawn_texts(count: int, tokenizer: Tokenizer, lengths: Mapping[int, int] = SST2_LENGTHS) -> list[str]:
    """Sentences of vocabulary words whose numbers of tokens are drawn from `lengths` (tokens -> weight)."""
    words, draw = whole_words(tokenizer), random.Random(0)
    sizes = draw.choices(list(lengths), list(lengths.values()), k=count)
    return [" ".join(draw.choices(words, k=size - 2)) for size in sizes]


def whole_words(tokenizer: Tokenizer) -> list[str]:
    """The words that are one token each."""
    tokens = (tokenizer.id_to_token(id) for id in range(tokenizer.vocab_size))
    words = [token for token in tokens if token is not None and token.isascii() and token.isalpha()]
    rows = zip(words, tokenizer.ids(words), strict=True)
    return [word for word, ids in rows if ids[1:-1] == [tokenizer.token_to_id(word)]]
