"""Load a model by name and save it again: the two calls that join config, model, weights and hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from minibert.checkpoints import hub
from minibert.checkpoints.fill import LoadReport, load_encoder, load_head, save_folder
from minibert.device import check_device
from minibert.heads import Head, head_class
from minibert.model import Encoder

ARCHITECTURE = {"bert": "Bert", "distilbert": "DistilBert"}  # and after it Model, ForMaskedLM, ...


def load(
    name: str | Path = "distilbert-base-uncased",
    *,
    head: str | None = None,
    num_labels: int | None = None,
    new_head: bool = False,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    attention: str = "eager",
    report: bool = False,
) -> Any:
    """Load a checkpoint by Hub name or folder, in eval mode; where it is looked for stands in minibert/hub.py.

    `attention` is "eager" (written out, bit-equal to transformers' eager path in float32 on a CPU) or "sdpa" (torch's
    fused kernel). Returns the Encoder; with report=True, (Encoder, LoadReport). `head` returns a model with that head
    in the Encoder's place: masked-lm, next-sentence, pretraining, sequence-classification, token-classification,
    question-answering or multiple-choice. A checkpoint without it is refused, unless new_head=True asks for a fresh
    one, untrained, with `num_labels` labels. Raises FileNotFoundError where the checkpoint is not found, ValueError
    for a file, a config.json or a number of labels that is not what it should be.
    """
    check_device(device)
    if head is not None:
        head_class(head)  # an unknown name is refused before anything is looked for
    elif new_head or num_labels is not None:
        raise ValueError("new_head and num_labels speak of a head, and none was named; add head='...'")
    source = hub.locate(name)
    model: Encoder | Head
    account: LoadReport
    if head is None:
        model, account = load_encoder(source.folder, dtype=dtype, attention=attention)
    else:
        model, account = load_head(
            source.folder, head, num_labels=num_labels, new_head=new_head, dtype=dtype, attention=attention
        )
    model = model.to(device)
    return (model, account) if report else model


def save(model: nn.Module, folder: str | Path) -> None:
    """Write a folder that transformers loads bit-equal and that minibert loads back (without the tokenizer).

    `model` is an Encoder or a model with a head, bare or in the wrappers of torch.compile and DataParallel.
    """
    bare: Any = unwrapped(model)
    architecture = ARCHITECTURE[bare.config.model_type] + getattr(bare, "upstream", "Model")
    save_folder(bare, bare.config, Path(folder), architecture)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside the wrappers of torch.compile (_orig_mod) and of DataParallel and its kin (module)."""
    while inner := [child for name, child in model.named_children() if name in ("_orig_mod", "module")]:
        model = inner[0]
    return model
