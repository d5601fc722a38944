"""Run the models of notebooks 13 and 15 on your own functions, those of tutorials/build.

    MY_BERT=$PWD/my_bert.py make tutorials

Each model that a notebook passes through `own` then computes its linear layers, LayerNorms, GELU and attention with the
functions of that file. Let `minibert check my_bert.py` say first that they are right.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from minibert.checking.child import load_module
from minibert.layout import Padded

load_functions = cache(load_module)


def own(model: Any) -> Any:
    """Return the model, exchanged by `computing_with` if $MY_BERT names a file. Raises FileNotFoundError."""
    path = os.environ.get("MY_BERT")
    return computing_with(load_functions(Path(path).resolve()), model) if path else model


def computing_with(functions: ModuleType, model: Any) -> Any:
    """Return a model whose parts, exchanged in place, compute with these functions.

    Its weights and their names stay. What the 24 functions do not compute stays minibert's: other activations, norms
    without a bias, attention within windows or with dropout.
    """

    class Linear(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return functions.linear(x, self.weight, self.bias)  # type: ignore[no-any-return]  # of the learner's file

    class LayerNorm(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            return functions.layer_norm(x, self.weight, self.bias, self.eps)  # type: ignore[no-any-return]  # as above

    encoder = getattr(model, "encoder", model)
    before = encoder.attend

    def attend(
        query: Tensor, key: Tensor, value: Tensor, layout: Padded, dropout: nn.Dropout
    ) -> tuple[Tensor, Tensor | None]:
        if layout.keep.shape[-2] > 1 or (dropout.training and dropout.p):  # a mask per query, or dropout
            return before(query, key, value, layout, dropout)
        return functions.attention(query, key, value, layout.keep[:, 0, 0].long())  # type: ignore[no-any-return]  # as above

    encoder.attend = attend
    for part in model.modules():
        if type(part) is nn.Linear and part.bias is not None:
            part.__class__ = Linear
        elif type(part) is nn.LayerNorm and part.bias is not None:
            part.__class__ = LayerNorm
        if getattr(part, "activation", None) is F.gelu:
            part.activation = functions.gelu
    return model
