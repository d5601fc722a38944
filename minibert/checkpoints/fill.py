"""A model filled with the tensors of a checkpoint, and an account of every one of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from minibert.checkpoints.names import bare_name, layer_marks, layers_in, name_in_file, why_left_out
from minibert.checkpoints.tensor_files import StoredTensor, read_tensors
from minibert.config import Config
from minibert.families import FAMILIES
from minibert.families.base import Family
from minibert.heads import Head, TokenPrediction
from minibert.model import Encoder, initialise


class UnknownTensors(UserWarning):
    """The file holds tensors that no row of the table knows; they were not loaded."""


@dataclass
class LoadReport:
    """What became of every tensor of a checkpoint, under the names that its file uses."""

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
        lines += [f"wrong shape: {name} ({shapes})" for name, shapes in self.wrong_shape.items()]
        return "\n".join(lines)


# ---------------------------------------------------------------------------------------------------------------
# What the file holds


def by_bare_name(tensors: dict[str, StoredTensor], family: Family, source: str) -> dict[str, StoredTensor]:
    """The file's tensors without their prefixes. Raises ValueError where two claim one name, or of another relative."""
    found: dict[str, StoredTensor] = {}
    for stored in tensors.values():
        name = bare_name(stored.name)
        if name in found:
            raise ValueError(f"{source} has both {found[name].name} and {stored.name}: which is {name} is ambiguous")
        found[name] = stored
    own = layer_marks(family)
    if not any(name.startswith(own) for name in found):
        for other in FAMILIES.values():
            if any(name.startswith(layer_marks(other)) for name in found):
                raise ValueError(
                    f"{source}: config.json says {family.name}, but the tensors are those of a {other.name}"
                )
    return found


def check_depth(config: Config, tensors: dict[str, StoredTensor], source: str) -> None:
    """Raise ValueError where config.json claims more layers than the file holds, before they are built.

    Of layers in groups, which are used again, fewer are as wrong: a step would take the weights of another.
    """
    held = len(layers_in(config.family, map(bare_name, tensors)))
    claimed, grouped = len(set(config.shared_layers)), config.family.layers_stand_in_groups
    if held and (claimed > held or (grouped and claimed < held)):
        what = "layers in all of its groups" if grouped else "layers"
        raise ValueError(f"{source}: config.json says {claimed} {what}, and the file holds the weights of {held}")


def has_pooler(tensors: dict[str, StoredTensor], family: Family) -> bool:
    """Whether the checkpoint carries the pooler: files of masked language models do not."""
    return family.has_pooler and any(bare_name(name).startswith(family.modules["pooler.dense"]) for name in tensors)


def drop_second_names(found: dict[str, StoredTensor], config: Config, report: LoadReport) -> None:
    """Leave the tensors of the decoder under one name each, so that none is loaded twice or passed over unseen.

    Raises ValueError where two names of one tensor hold different values; a decoder that is not tied keeps its own
    weight, and of two biases the one that transformers reads then.
    """
    family, tied = config.family, config.tie_word_embeddings
    embedding = name_in_file(family, "embeddings.token.weight")
    for second, name in family.second_names.items():
        if second not in found or (name == embedding and not tied):
            continue
        stored = found.pop(second)
        if name not in found:
            found[name] = stored
            continue
        report.ignored[stored.name] = f"a second name of {found[name].name}"
        (_, one), (_, other) = read_tensors([stored, found[name]])
        if tied and not torch.equal(one, other):
            raise ValueError(
                f"{report.source}: {stored.name} differs from {found[name].name}, and config.json ties the "
                "decoder to the token embedding; tie_word_embeddings: false keeps them apart"
            )


# ---------------------------------------------------------------------------------------------------------------
# Into the model


def fill(
    model: Encoder | Head,
    tensors: dict[str, StoredTensor],
    source: str,
    dtype: torch.dtype,
    new_head: bool = False,
) -> LoadReport:
    """Read a checkpoint into `model`, whose parameters may be on the meta device, and account for every tensor.

    With `new_head`, the parameters outside the encoder, and a pooler that the file lacks, begin afresh. Raises
    ValueError, naming the tensors, for a parameter that is missing, of another shape or not floating-point; warns of
    tensors that no row of the table knows.
    """
    config, head = model.config, model.name if isinstance(model, Head) else ""
    family = config.family
    found = by_bare_name(tensors, family, source)
    report = LoadReport(source, tuple(sorted({stored.dtype for stored in tensors.values()})))
    if isinstance(model, TokenPrediction) and not new_head:
        drop_second_names(found, config, report)
    wanted: dict[str, str] = {}  # name in the file -> name in the state_dict
    for ours, parameter in model.state_dict().items():
        name = name_in_file(family, ours, head, config.layers_in_group)
        begins_afresh = new_head and may_be_fresh(ours) and (name not in found or not ours.startswith("encoder."))
        if begins_afresh or (stored := found.pop(name, None)) is None:
            report.missing.append(ours)
        elif stored.shape != tuple(parameter.shape):
            report.wrong_shape[stored.name] = f"{stored.shape} in the file, {tuple(parameter.shape)} by config.json"
        else:
            wanted[stored.name] = ours
    for name, stored in found.items():
        report.ignored[stored.name] = why_left_out(family, name) or "unknown to minibert"
    check_complete(report, model, new_head)

    state = {ours: tensor.to(dtype) for ours, tensor in fresh(model, config, report.missing).items()}
    for stored, tensor in read_tensors([tensors[name] for name in wanted]):
        value = tensor.to(dtype, copy=True)  # the file may change while the model lives
        if not torch.isfinite(value).all():
            raise ValueError(
                f"{source}: tensor {stored.name} ({stored.dtype}) holds NaN, infinite values or numbers "
                f"too large for {dtype}"
            )
        report.loaded[stored.name] = wanted[stored.name]
        state[wanted[stored.name]] = value
    model.load_state_dict(state, assign=True)
    return report


def may_be_fresh(ours: str) -> bool:
    """Whether a new task head may bring this tensor along: all but those of the encoder, but its pooler too."""
    return ours.startswith("encoder.pooler.") or not ours.startswith("encoder.")


def check_complete(report: LoadReport, model: Encoder | Head, new_head: bool) -> None:
    """Raise ValueError for tensors that are missing or of the wrong shape; warn of unknown ones."""
    missing = [ours for ours in report.missing if not (new_head and may_be_fresh(ours))]
    head = model.name if isinstance(model, Head) else ""
    if report.wrong_shape:
        name, shapes = next(iter(report.wrong_shape.items()))
        on_top = bool(head) and any(name.startswith(module) for module in model.config.family.heads[head].values())
        way_out = f"; new_head=True makes a fresh head {head!r}" if on_top else ""
        raise ValueError(
            f"{report.source}: {len(report.wrong_shape)} tensors of the wrong shape: {name}, {shapes}{way_out}"
        )
    if missing and head and all(may_be_fresh(ours) for ours in missing):
        raise ValueError(
            f"{report.source} lacks {len(missing)} tensors of the head {head!r}, {missing[0]} the first; "
            "new_head=True makes a fresh head"
        )
    if missing:
        raise ValueError(f"{report.source} lacks {len(missing)} tensors, {missing[0]} the first")
    unknown = [name for name, why in report.ignored.items() if why == "unknown to minibert"]
    if unknown:
        message = f"{report.source}: {len(unknown)} tensors are unknown to minibert and were not loaded"
        warnings.warn(f"{message}: {', '.join(unknown[:5])}", UnknownTensors, stacklevel=5)


def fresh(model: nn.Module, config: Config, names: list[str]) -> dict[str, Tensor]:
    """The parameters of these names as a new model has them; the modules that hold them leave the meta device."""
    modules = {name.rpartition(".")[0]: model.get_submodule(name.rpartition(".")[0]) for name in names}
    for module in modules.values():
        module.to_empty(device="cpu", recurse=False)
        initialise(module, config)
    return {name: model.get_parameter(name).detach() for name in names}


class NoInitialisation(TorchFunctionMode):
    """Inside, torch.nn.init, which fills new modules with random numbers, leaves every tensor as it is."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Skip what would draw values that the file replaces; on the meta device that alone takes a second."""
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return kwargs.get("tensor", args[0] if args else None)
        return func(*args, **kwargs)


@contextmanager
def sizes_only() -> Iterator[None]:
    """Modules made inside have shapes and no memory (torch's meta device): every value comes from the file."""
    with torch.device("meta"), NoInitialisation():
        yield
