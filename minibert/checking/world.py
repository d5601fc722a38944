"""Real weights, a vocabulary and a batch of texts, on which the functions of a solution are tried."""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from minibert.checking import reference
from minibert.storage import hub
from minibert.storage.tensor_files import WEIGHTS_FILE
from minibert.utils.files import read_json

MODEL = "minibert-novels"
TEXTS = (
    "He opened the door, and went in.",
    "She was very unhappy.",
    "No.",
    "Naïve café-goers cost $5 & more!",
)
PAIR = ("Where is he?", "He went in.")


class World:
    """The real weights, the vocabulary, and a batch of texts."""

    def __init__(self, model: str = MODEL) -> None:
        self.folder = hub.locate(model).folder

    @cached_property
    def config(self) -> dict[str, Any]:
        """The content of config.json."""
        return read_json(self.folder / "config.json")

    @cached_property
    def heads(self) -> int:
        """The number of attention heads."""
        return int(self.config["num_attention_heads"])

    @cached_property
    def eps(self) -> float:
        """Of each LayerNorm."""
        return float(self.config["layer_norm_eps"])

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        """The weights by their official names, without the prefix bert."""
        return {
            name.removeprefix("bert."): x
            for name, x in reference.read_safetensors(str(self.folder / WEIGHTS_FILE)).items()
        }

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """The tokens and their ids."""
        found: dict[str, int] = read_json(self.folder / "tokenizer.json")["model"]["vocab"]
        return found

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
