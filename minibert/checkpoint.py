"""Load a model by name and save it again: the two calls that join config, model, weights and hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from minibert import hub
from minibert.model import Encoder
from minibert.weights import load_encoder, save_folder

ARCHITECTURE = {"bert": "BertModel", "distilbert": "DistilBertModel"}


def load(
    name: str | Path = "distilbert-base-uncased",
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    attention: str = "eager",
    report: bool = False,
) -> Any:
    """Load a checkpoint by Hub name or folder, in eval mode; where it is looked for stands in minibert/hub.py.

    `attention` is "eager" (written out, bit-equal to transformers' eager path in float32 on a CPU) or "sdpa" (torch's
    fused kernel). Returns the Encoder; with report=True, (Encoder, LoadReport). Raises FileNotFoundError where the
    checkpoint is not found, ValueError for a file or config.json that is not what it should be.
    """
    check_device(device)
    source = hub.locate(name)
    model, account = load_encoder(source.folder, dtype=dtype, attention=attention)
    model = model.to(device)
    return (model, account) if report else model


def check_device(device: str | torch.device) -> None:
    """Raise ValueError for a device that this machine or this build of torch does not have."""
    kind = torch.device(device).type
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {str(device)!r} was asked for, and torch sees no CUDA device here; use device='cpu'")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise ValueError("device 'mps' was asked for, and torch sees no such device here; use device='cpu'")


def save(model: Encoder, folder: str | Path) -> None:
    """Write a folder that transformers loads bit-equal and that minibert loads back (without the tokenizer)."""
    save_folder(model, model.config, Path(folder), ARCHITECTURE[model.config.model_type])
