"""Real weights, a vocabulary and a batch of texts, on which the functions of a solution are tried."""

from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from minibert import reference

TEXTS = (
    "He opened the door, and went in.",
    "She was very unhappy.",
    "No.",
    "Naïve café-goers cost $5 & more!",
)
PAIR = ("Where is he?", "He went in.")


class World:
    """The real weights, the vocabulary, and a batch of texts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder  # for files
        self.weights, self.vocabulary, self.heads, self.eps = reference.load_model()

    @cached_property
    def batch(self) -> tuple[Tensor, Tensor, Tensor]:
        """Texts and a pair as ids, segments and mask, (B,S) each, padded on the right."""
        rows = [self.row(text) for text in TEXTS] + [self.row(*PAIR)]
        ids, segments = (pad_sequence([torch.tensor(row[part]) for row in rows], batch_first=True) for part in (0, 1))
        return ids, segments, (ids != 0).long()  # [PAD] is 0

    def row(self, first: str, second: str | None = None) -> tuple[list[int], list[int]]:
        """Return [CLS] first [SEP] second [SEP] as ids, and the segments."""
        texts = [reference.tokenize(text, self.vocabulary) for text in (first, second) if text is not None]
        tokens = ["[CLS]", *texts[0], "[SEP]"]
        segments = [0] * len(tokens)
        if second is not None:
            tokens += [*texts[1], "[SEP]"]
            segments += [1] * (len(tokens) - len(segments))
        return [self.vocabulary[token] for token in tokens], segments

    def of_layer(self, number: int) -> dict[str, Tensor]:
        """Return the weights of a layer."""
        before = f"encoder.layer.{number}."
        return {name[len(before) :]: x for name, x in self.weights.items() if name.startswith(before)}

    @cached_property
    def states(self) -> Tensor:
        """The embeddings of the batch, (B,S,D)."""
        ids, segments, _ = self.batch
        return reference.embed(ids, segments, self.weights, self.eps)
