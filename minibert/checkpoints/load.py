"""Load a model by name and save it again, with a report on every tensor of the checkpoint.

    load: checkpoint -> config -> model without memory -> its tensors, one by one -> LoadReport
    save: state_dict -> official names -> model.safetensors, config.json

The state_dict of a torch module is a list of named tensors, as a weights file is; only the names differ.
"""

from __future__ import annotations

import json
import logging
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from minibert.checkpoints.checkpoint import Checkpoint
from minibert.checkpoints.sentence_files import Stated, write_stated
from minibert.config import Config
from minibert.families.base import NO_HEAD, Family
from minibert.heads import HEAD_CLASSES, Head, SentenceVectors, TokenPrediction, head_class, with_num_labels
from minibert.model import Encoder
from minibert.storage import hub
from minibert.storage.tensor_files import WEIGHTS_FILE, StoredTensor, read_weight, write_tensors
from minibert.utils.device import check_device
from minibert.utils.files import AnyPath, atomic_write, regular, user_path, write_text_atomically
from minibert.utils.printing import MOST, brief, cut
from minibert.utils.settings import with_settings
from minibert.utils.wording import advice

if TYPE_CHECKING:
    from minibert.text.tokenizer import Tokenizer

log = logging.getLogger("minibert")
UNKNOWN = "unknown to minibert"
# Tensors of official files that none of our modules needs, and why.
LEFT_OUT = {
    "embeddings.position_ids": "positions are counted, not stored",
    "embeddings.token_type_ids": "segments are given with each batch, not stored",
}


class UnknownTensors(UserWarning):
    """Warns that the file holds tensors without a place in the model, which were not loaded."""


@dataclass
class LoadReport:
    """What happened to every tensor of a checkpoint, under the names in its file."""

    source: str
    dtypes: tuple[str, ...] = ()  # as stored, for example ("F32",)
    loaded: dict[str, str] = field(default_factory=dict)  # name in the file -> name in the state_dict
    ignored: dict[str, str] = field(default_factory=dict)  # name in the file -> why
    missing: list[str] = field(default_factory=list)  # names in the state_dict, freshly initialised
    wrong_shape: dict[str, str] = field(default_factory=dict)  # name in the file -> both shapes

    def __str__(self) -> str:
        lines = [f"{len(self.loaded)} tensors loaded ({', '.join(self.dtypes)}) from {self.source}"]
        lines += [f"ignored: {name} ({why})" for name, why in self.ignored.items()]
        lines += [f"missing, freshly initialised: {name}" for name in self.missing]
        return "\n".join(lines)


class Options(TypedDict, total=False):
    """The other arguments of `load`."""

    num_labels: int | None
    new_head: bool
    dtype: torch.dtype
    device: str | torch.device
    attention: str
    model_type: str | None


@overload
def load(name: AnyPath = ..., *, head: None = ..., report: Literal[False] = ..., **how: Unpack[Options]) -> Encoder: ...
@overload
def load(name: AnyPath = ..., *, head: str, report: Literal[False] = ..., **how: Unpack[Options]) -> Head: ...
@overload
def load(
    name: AnyPath = ..., *, head: str | None = ..., report: Literal[True], **how: Unpack[Options]
) -> tuple[Any, LoadReport]: ...
@with_settings()
def load(
    name: AnyPath = "distilbert-base-uncased",
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
    """Load a checkpoint by Hub name or folder, in eval mode; hub.locate has the order of places to look.

    `attention` is "eager" (written out, bit-equal to transformers' eager path in float32 on a CPU) or "sdpa" (torch's
    fused kernel). Returns the Encoder; with report=True, (Encoder, LoadReport). `head` returns a model with that head
    instead of the Encoder: masked-lm, next-sentence, pretraining, replaced-token-detection, sequence-classification,
    token-classification, question-answering or multiple-choice. A checkpoint without it is refused, unless
    new_head=True requests a fresh one, untrained, with `num_labels` labels. `model_type`: "bert", ..., if config.json
    has none. Raises FileNotFoundError if there is no such checkpoint, ValueError or TypeError for what is invalid.
    """
    check_device(device)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype is {brief(dtype)}; expected a torch.dtype such as torch.bfloat16")
    if head is None and (new_head or num_labels is not None):
        raise ValueError("new_head and num_labels are for a task head; add head='...'")
    make = Encoder if head is None else head_class(head)  # an unknown name is refused before anything is read
    checkpoint = Checkpoint.open(name)
    folder = checkpoint.folder
    config = Config.from_file(folder / "config.json", model_type) if model_type else checkpoint.config
    tensors = checkpoint.tensors
    if head is not None:
        config = with_num_labels(config, head, num_labels, new_head)
    with torch.device("meta"), NoInitialisation():  # shapes without memory: the values come from the file
        model = make(config, attention)
    if isinstance(model, Encoder) and not any(bare.startswith("pooler.") for bare in tensors):
        model.pooler = None  # files of masked LMs have none
    loaded = LoadReport(str(folder), tuple(sorted({stored.dtype for stored in tensors.values()})))
    fill_model(model, dict(tensors), loaded, dtype, new_head)
    if isinstance(model, Head):
        model.head_is_trained = not new_head
    model.checkpoint = checkpoint  # in which `save` and `predict` find the tokenizer
    model = model.eval().to(device)
    return (model, loaded) if report else model


def fill_model(
    model: Encoder | Head, unread: dict[str, StoredTensor], report: LoadReport, dtype: torch.dtype, new_head: bool
) -> None:
    """Read the tensors, by bare name, into a model on the meta device, and report on every one of them.

    With `new_head`, the parameters outside the encoder, and a pooler that the file lacks, are fresh. Raises ValueError,
    naming the tensors, for a parameter that is missing, of another shape or not finite; warns of unknown tensors.
    """
    config = model.config
    name_tied(unread, config)
    if isinstance(model, TokenPrediction) and not new_head:
        drop_second_names(unread, config, report)
    wanted: list[tuple[StoredTensor, list[str]]] = []
    parameters = model.state_dict()
    for name, parts in names_in_file(model).items():
        rows = sum(parameters[ours].shape[0] for ours in parts)
        shape = (rows, *parameters[parts[0]].shape[1:])
        fresh = new_head and in_head(parts[0]) and (name not in unread or not parts[0].startswith("encoder."))
        if fresh or (stored := unread.pop(name, None)) is None:
            report.missing += parts
        elif stored.shape != shape:
            report.wrong_shape[stored.name] = f"{stored.shape} in the file, {shape} by config.json"
        else:
            wanted.append((stored, parts))
    report.ignored |= {stored.name: why_left_out(config.family, name) or UNKNOWN for name, stored in unread.items()}
    check_complete(report, model, new_head)
    for module in dict.fromkeys(name.rpartition(".")[0] for name in report.missing):  # in this order: they are drawn
        model.get_submodule(module).to_empty(device="cpu", recurse=False)
        config.architecture.initialise(model.get_submodule(module), config, module)
    state = {ours: model.get_parameter(ours).detach().to(dtype) for ours in report.missing}
    for stored, parts in wanted:
        whole = read_weight(stored).to(dtype, copy=True)  # the file may change during the life of the model
        if not torch.isfinite(whole).all():
            raise ValueError(
                f"{report.source}: tensor {stored.name} ({stored.dtype}) holds NaN, infinite values or numbers too "
                f"large for {dtype}"
            )
        report.loaded[stored.name] = ", ".join(parts)
        rows_of_parts = torch.split(whole, [parameters[ours].shape[0] for ours in parts])
        state |= {
            ours: rows if len(parts) == 1 else rows.clone() for ours, rows in zip(parts, rows_of_parts, strict=True)
        }
    model.load_state_dict(state, assign=True)


def name_tied(unread: dict[str, StoredTensor], config: Config) -> None:
    """Rename the token embedding if the file has it only under the name of the decoder that it is tied to."""
    embedding = name_in_file(config.family, "embeddings.token.weight")
    if config.tie_word_embeddings and embedding not in unread:
        second = next(name for name, first in config.family.second_names.items() if first == embedding)
        if second in unread:
            unread[embedding] = unread.pop(second)


def drop_second_names(unread: dict[str, StoredTensor], config: Config, report: LoadReport) -> None:
    """Keep each tensor of the decoder under one name.

    Raises ValueError if two names of one tensor hold different values. An untied decoder keeps its own weight and, of
    two biases, the one that transformers then reads.
    """
    family, tied = config.family, config.tie_word_embeddings
    embedding = name_in_file(family, "embeddings.token.weight")
    for second, name in family.second_names.items():
        if second not in unread or (name == embedding and not tied):
            continue
        stored = unread.pop(second)
        first = unread.setdefault(name, stored)
        if first is stored:
            continue
        report.ignored[stored.name] = f"a second name of {first.name}"
        if tied and not torch.equal(read_weight(stored), read_weight(first)):
            raise ValueError(
                f"{report.source}: {stored.name} differs from {first.name}, and config.json ties the decoder to the "
                "token embedding; tie_word_embeddings: false keeps them apart"
            )


def in_head(ours: str) -> bool:
    """Return whether a tensor may be fresh in a new head: those outside the encoder, and the pooler."""
    return ours.startswith("encoder.pooler.") or not ours.startswith("encoder.")


def check_complete(report: LoadReport, model: Encoder | Head, new_head: bool) -> None:
    """Raise ValueError for tensors that are missing or of the wrong shape; warn of unknown ones."""
    missing = [ours for ours in report.missing if not (new_head and in_head(ours))]
    family = model.config.family
    modules = tuple(head_names(model).values())
    only_head = all(map(in_head, missing)) and all(name.startswith(modules) for name in report.wrong_shape)
    if missing or report.wrong_shape:
        problems = [f"tensor {cut(name)} has shape {shapes}" for name, shapes in report.wrong_shape.items()]
        tensors = "tensor" if len(missing) == 1 else "tensors"
        problems += [f"it lacks {len(missing)} {tensors} of {family.title}, such as {', '.join(missing[:3])}"]
        hint = ""
        if isinstance(model, Head) and only_head:
            hint = f"; head {model.name!r} is not in it" + advice("; {} makes a fresh one", new_head=True)
        raise ValueError(f"{report.source}: {problems[0]}" + hint)
    if unknown := [name for name, why in report.ignored.items() if why == UNKNOWN]:
        warnings.warn(
            f"{report.source}: tensors unknown to minibert were not loaded ({len(unknown)}): "
            f"{', '.join(map(cut, unknown[:5]))}",
            UnknownTensors,
            stacklevel=5,
        )


class NoInitialisation(TorchFunctionMode):
    """Keep torch.nn.init from filling tensors within the block: even on the meta device that takes a second."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Skip the functions that draw values."""
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return kwargs.get("tensor", args[0] if args else None)
        return func(*args, **kwargs)


# ---------------------------------------------------------------------------------------------------------------
# Names of tensors: official ones into ours and back, by the tables of families/


def head_names(model: nn.Module) -> Mapping[str, str]:
    """Return the modules of the model's task head, see Head.names_in; none for an encoder."""
    return model.names_in(model.config.family) if isinstance(model, Head) else NO_HEAD


def name_in_file(family: Family, ours: str, of_head: Mapping[str, str] = NO_HEAD, in_group: int = 1) -> str:
    """Return the official name, without prefix, of a tensor of our state_dict; of_head: the modules of its head.

    in_group: config.architecture.layers_in_group. Raises LookupError if the relative has no such tensor.
    """
    module, _, kind = ours.removeprefix("encoder.").rpartition(".")
    layer = module.split(".")[1] if module.startswith("layers.") else "0"
    official = family.official(module.replace(f"layers.{layer}.", "layers.{}.", 1), of_head)
    return f"{family.numbered(official, int(layer), in_group)}.{kind}"


def names_in_file(model: Any) -> dict[str, list[str]]:
    """Return the official names, without prefix, of a model's tensors: each with ours, which are its rows in order."""
    config, of_head = model.config, head_names(model)
    names: dict[str, list[str]] = {}
    for ours in model.state_dict():
        names.setdefault(name_in_file(config.family, ours, of_head, config.architecture.layers_in_group), []).append(
            ours
        )
    order = [module.rpartition(".")[2] for module in config.family.modules]  # query, key, value, ...
    for parts in names.values():
        if len(parts) > 1:
            parts.sort(key=lambda ours: order.index(ours.split(".")[-2]))
    return names


def full_name(family: Family, ours: str, of_head: Mapping[str, str] = NO_HEAD, in_group: int = 1) -> str:
    """Return the same with the relative's prefix, which the encoder of a model with a task head has in a file."""
    return (family.prefix if ours.startswith("encoder.") else "") + name_in_file(family, ours, of_head, in_group)


def why_left_out(family: Family, name: str) -> str:
    """Return why an official tensor has no place in the model being loaded; "" for a tensor that is not official."""
    modules = [module for head in HEAD_CLASSES.values() for module in head.names_in(family).values()]
    modules += [family.modules["pooler.dense"]] if family.has_pooler else []
    in_head = name in family.second_names or any(name.startswith(module + ".") for module in modules)
    return LEFT_OUT.get(name, "belongs to a head that was not requested" if in_head else "")


# ---------------------------------------------------------------------------------------------------------------
# Saving


@with_settings()
def save(model: nn.Module, folder: AnyPath, tokenizer: Tokenizer | None = None) -> None:
    """Write a folder that transformers loads bit-equal and that minibert loads back, with the tokenizer if it is known.

    `model` is an Encoder or a model with a task head, bare or wrapped by torch.compile or DataParallel. The tensors
    have their official names, those of a bare encoder without prefix; each file is written atomically.
    tokenizer: None means the one already in `folder`, else the one of the checkpoint that the model was loaded from; if
    there is none, one line in the log says so. Raises TypeError for any other model.
    """
    while inner := getattr(model, "_orig_mod", getattr(model, "module", None)):
        model = inner  # inside the wrapper of torch.compile, or of DataParallel and the like
    if not isinstance(model, Encoder | Head):
        raise TypeError(f"model is {brief(model)}; an Encoder or a model with a head comes first: save(model, folder)")
    folder = user_path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(model, SentenceVectors):
        length = tokenizer.max_length if tokenizer else None
        stated = Stated(model.pooling, model.normalize, length, model.dimensions)
        write_stated(folder, stated, model.config.hidden_size)
        model = model.encoder
    config: Any = model.config
    tensors = official_tensors(model)
    write_tensors(folder / WEIGHTS_FILE, tensors)
    # transformers loads in the dtype that config.json names, whatever the dtype of the file.
    dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    architecture = config.family.upstream + (model.upstream if isinstance(model, Head) else "Model")
    stored = config.to_dict() | {"architectures": [architecture], "dtype": dtype}
    stored.pop("torch_dtype", None)  # its name in transformers 4
    write_text_atomically(folder / "config.json", json.dumps(stored, indent=2) + "\n")
    if tokenizer is not None:
        tokenizer.save(folder)
    elif not tokenizer_files(folder):
        known = tokenizer_files(model.checkpoint.folder) if model.checkpoint else []
        for path in known:
            with atomic_write(folder / path.name) as temporary:
                shutil.copyfile(regular(path), temporary)
        if not known:
            log.warning(
                "minibert: notice: %s has no tokenizer, since none is known for this model; add it with "
                "tokenizer.save(folder), or save(model, folder, tokenizer)",
                cut(str(folder), MOST),
            )


def official_tensors(model: Any) -> dict[str, Tensor]:
    """Return the tensors of a model by their official names, as transformers looks for them."""
    config = model.config
    state = model.state_dict()
    tensors: dict[str, Tensor] = {}
    for bare, parts in names_in_file(model).items():
        name = (config.family.prefix if parts[0].startswith("encoder.") else "") + bare
        tensors[name] = state[parts[0]] if len(parts) == 1 else torch.cat([state[ours] for ours in parts])
    when_tied, when_not = config.family.decoder_biases
    if when_not in tensors:  # transformers looks for it under another name while the decoder is tied
        bias = tensors.pop(when_not)
        tensors |= {when_tied: bias} if config.tie_word_embeddings else {when_tied: bias.clone(), when_not: bias}
    return tensors


def tokenizer_files(folder: Path) -> list[Path]:
    """Return the files of a tokenizer in a folder."""
    return [path for name in hub.TOKENIZER_FILES if (path := folder / name).exists()]
