"""Load a model by name and save it again: the two calls that join hub, config, model and weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

import torch
from torch import nn

from minibert.checkpoints import hub
from minibert.checkpoints.fill import LoadReport, check_depth, fill, has_pooler, sizes_only
from minibert.checkpoints.names import bare_name, full_name
from minibert.checkpoints.tensor_files import WEIGHTS_FILE, list_tensors, write_tensors
from minibert.config import Config
from minibert.device import check_device
from minibert.files import write_text_atomically
from minibert.heads import HEAD_CLASSES, Head, head_class, with_num_labels
from minibert.model import Encoder
from minibert.printing import brief


class How(TypedDict, total=False):
    """In what form a model is wanted: see `load`."""

    dtype: torch.dtype
    device: str | torch.device
    attention: str
    model_type: str | None


class Labels(How, total=False):
    """What may be said of a task head beside it: see `load`."""

    num_labels: int | None
    new_head: bool


@overload
def load(name: str | Path = ..., *, head: None = ..., report: Literal[False] = ..., **how: Unpack[How]) -> Encoder: ...
@overload
def load(
    name: str | Path = ..., *, head: None = ..., report: Literal[True], **how: Unpack[How]
) -> tuple[Encoder, LoadReport]: ...
@overload
def load(name: str | Path = ..., *, head: str, report: Literal[False] = ..., **how: Unpack[Labels]) -> Head: ...
@overload
def load(
    name: str | Path = ..., *, head: str, report: Literal[True], **how: Unpack[Labels]
) -> tuple[Head, LoadReport]: ...
def load(
    name: str | Path = "distilbert-base-uncased",
    *,
    head: str | None = None,
    num_labels: int | None = None,
    new_head: bool = False,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    attention: str = "eager",
    model_type: str | None = None,
    report: bool = False,
) -> Any:
    """Load a checkpoint by Hub name or folder, in eval mode; where it is looked for stands in minibert/hub.py.

    `attention` is "eager" (written out, bit-equal to transformers' eager path in float32 on a CPU) or "sdpa" (torch's
    fused kernel). Returns the Encoder; with report=True, (Encoder, LoadReport). `head` returns a model with that head
    in the Encoder's place: masked-lm, next-sentence, pretraining, replaced-token-detection, sequence-classification,
    token-classification, question-answering or multiple-choice. A checkpoint without it is refused, unless
    new_head=True asks for a fresh one, untrained, with `num_labels` labels. `model_type`, such as "bert", is for an
    older config.json that states none. Raises FileNotFoundError where the checkpoint is not found, ValueError for a
    file, a config.json or a number of labels that is not what it should be.
    """
    check_device(device)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype is {brief(dtype)}; a torch.dtype is wanted, such as torch.bfloat16")
    if head is not None:
        head_class(head)  # an unknown name is refused before anything is looked for
    elif new_head or num_labels is not None:
        raise ValueError("new_head and num_labels speak of a head, and none was named; add head='...'")
    folder = hub.locate(name).folder
    config, tensors = Config.from_file(folder / "config.json", model_type), list_tensors(folder)
    check_depth(config, tensors, str(folder))
    model: Encoder | Head
    with sizes_only():
        if head is None:
            model = Encoder(config, attention, pooler=has_pooler(tensors, config.family))
        else:
            model = head_class(head)(with_num_labels(config, head, num_labels, new_head), attention)
    account = fill(model, tensors, str(folder), dtype, new_head)
    if isinstance(model, Head):
        model.head_is_trained = not new_head
    model = model.eval().to(device)
    return (model, account) if report else model


def has_head(name: str | Path, head: str) -> bool:
    """Whether the checkpoint carries the weights of this task head. Raises what `load` raises for a broken one."""
    folder = hub.locate(name).folder
    family = Config.from_file(folder / "config.json").family
    held = [family.second_names.get(bare, bare) for bare in map(bare_name, list_tensors(folder))]
    return head in family.heads and all(
        any(tensor.rpartition(".")[0] == module for tensor in held) for module in family.heads[head].values()
    )


def save(model: nn.Module, folder: str | Path) -> None:
    """Write a folder that transformers loads bit-equal and that minibert loads back (without the tokenizer).

    `model` is an Encoder or a model with a task head, bare or in the wrappers of torch.compile and DataParallel. The
    tensors have their official names, those of a bare encoder without prefix; each file appears whole or not at all.
    """
    bare: Any = unwrapped(model)
    folder, config, head = Path(folder), bare.config, getattr(bare, "name", "")
    folder.mkdir(parents=True, exist_ok=True)
    named = {ours: full_name(config.family, ours, head, config.layers_in_group) for ours in bare.state_dict()}
    tensors = {named[ours]: values for ours, values in bare.state_dict().items()}
    tensors = {name: values.detach().cpu().contiguous() for name, values in tensors.items()}
    when_tied, when_not = config.family.decoder_bias
    if when_not in tensors:  # transformers looks for it under another name while the decoder is tied
        bias = tensors.pop(when_not)
        tensors |= {when_tied: bias} if config.tie_word_embeddings else {when_tied: bias.clone(), when_not: bias}
    write_tensors(folder / WEIGHTS_FILE, tensors)
    # transformers loads in the dtype that config.json names, whatever the file holds.
    dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    architecture = config.family.upstream + (HEAD_CLASSES[head].upstream if head else "Model")
    stored = config.to_dict() | {"architectures": [architecture], "dtype": dtype}
    stored.pop("torch_dtype", None)  # what transformers 4 called it
    write_text_atomically(folder / "config.json", json.dumps(stored, indent=2) + "\n")


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside the wrappers of torch.compile (_orig_mod) and of DataParallel and its kin (module)."""
    while inner := [child for name, child in model.named_children() if name in ("_orig_mod", "module")]:
        model = inner[0]
    return model
