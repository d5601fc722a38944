"""Official weights into our modules and back: a table you can read, and an account of every tensor.

A weights file is a list of named tensors, and so is the state_dict of a torch module; only the names differ. Each row
of the table names one module in minibert, in BERT's files and in DistilBERT's; `{}` is the layer. Its .weight and .bias
keep their names. Upstream names: transformers 5.23 BertModel, DistilBertModel and their heads.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from minibert.checkpoints.tensor_files import WEIGHTS_FILE, StoredTensor, list_tensors, read_tensors
from minibert.config import Config
from minibert.files import write_whole, written_whole
from minibert.heads import Head, TokenPrediction, head_class, with_num_labels
from minibert.model import Encoder

# The encoder, in the order of the forward pass.
# minibert                              BERT                                            DistilBERT
ENCODER = (
    ("embeddings.token", "embeddings.word_embeddings", "embeddings.word_embeddings"),
    ("embeddings.segment", "embeddings.token_type_embeddings", None),
    ("embeddings.position", "embeddings.position_embeddings", "embeddings.position_embeddings"),
    ("embeddings.norm", "embeddings.LayerNorm", "embeddings.LayerNorm"),
    ("layers.{}.attention.query", "encoder.layer.{}.attention.self.query", "transformer.layer.{}.attention.q_lin"),
    ("layers.{}.attention.key", "encoder.layer.{}.attention.self.key", "transformer.layer.{}.attention.k_lin"),
    ("layers.{}.attention.value", "encoder.layer.{}.attention.self.value", "transformer.layer.{}.attention.v_lin"),
    ("layers.{}.attention.output", "encoder.layer.{}.attention.output.dense", "transformer.layer.{}.attention.out_lin"),
    ("layers.{}.attention_norm", "encoder.layer.{}.attention.output.LayerNorm", "transformer.layer.{}.sa_layer_norm"),
    ("layers.{}.feed_forward.expand", "encoder.layer.{}.intermediate.dense", "transformer.layer.{}.ffn.lin1"),
    ("layers.{}.feed_forward.contract", "encoder.layer.{}.output.dense", "transformer.layer.{}.ffn.lin2"),
    ("layers.{}.feed_forward_norm", "encoder.layer.{}.output.LayerNorm", "transformer.layer.{}.output_layer_norm"),
    ("pooler.dense", "pooler.dense", None),
)
# The heads, when a model with a head is loaded; the encoder then stands under its prefix, bert. or distilbert.
HEADS = (
    ("transform", "cls.predictions.transform.dense", "vocab_transform"),
    ("transform_norm", "cls.predictions.transform.LayerNorm", "vocab_layer_norm"),
    ("decoder", "cls.predictions.decoder", "vocab_projector"),
    ("next_sentence", "cls.seq_relationship", None),
    ("pre_classifier", None, "pre_classifier"),
    ("classifier", "classifier", "classifier"),
    ("qa_outputs", "qa_outputs", "qa_outputs"),
)
# Other names under which official files hold a tensor of the table: gamma and beta are what TensorFlow calls them,
# the prefixes those of wrappers (module., _orig_mod.) or of the model that a head was put on.
LAYER_NORM_ENDINGS = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))
PREFIXES = ("module.", "_orig_mod.", "bert.", "distilbert.")
# Tensors that official files may hold a second time, under a second name -> the name in the table.
TOKEN_EMBEDDING = "embeddings.word_embeddings.weight"
SECOND_NAMES = {
    "cls.predictions.bias": "cls.predictions.decoder.bias",
    "cls.predictions.decoder.weight": TOKEN_EMBEDDING,
    "vocab_projector.weight": TOKEN_EMBEDDING,
}
# Tensors of official files that no module of ours needs, and why.
LEFT_OUT = {
    "embeddings.position_ids": "positions are counted, not stored",
    "embeddings.token_type_ids": "segments are given with each batch, not stored",
}
COLUMN = {"bert": 1, "distilbert": 2}  # where a row has the official name


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


def official_name(name: str) -> str:
    """The name without wrapper or model prefix, LayerNorm's gamma and beta as weight and bias."""
    while prefix := next((p for p in PREFIXES if name.startswith(p)), ""):
        name = name.removeprefix(prefix)
    for old, new in LAYER_NORM_ENDINGS:
        if name == old or name.endswith("." + old):
            name = name.removesuffix(old) + new
    return name


def name_in_file(model_type: str, ours: str) -> str:
    """The official name, without prefix, of a tensor of our state_dict: the table read from left to right."""
    module, _, kind = ours.removeprefix("encoder.").rpartition(".")
    layer = module.split(".")[1] if module.startswith("layers.") else ""
    row = next(row for row in ENCODER + HEADS if row[0].format(layer) == module)
    theirs = row[COLUMN[model_type]]
    if theirs is None:
        raise ValueError(f"{model_type} has no {module}")
    return f"{theirs.format(layer)}.{kind}"


def why_left_out(model_type: str, name: str) -> str:
    """The reason why an official tensor has no place in the model being loaded; "" if none is known."""
    if name in LEFT_OUT:
        return LEFT_OUT[name]
    columns = [row[COLUMN[model_type]] for row in HEADS + ENCODER[-1:]]  # heads and the pooler
    if name in SECOND_NAMES or any(column and name.startswith(column + ".") for column in columns):
        return "belongs to a head that was not asked for"
    return ""


def by_official_name(tensors: dict[str, StoredTensor], model_type: str, source: str) -> dict[str, StoredTensor]:
    """The file's tensors under their official names. Raises ValueError where two claim one name."""
    found: dict[str, StoredTensor] = {}
    for stored in tensors.values():
        name = official_name(stored.name)
        if name in found:
            raise ValueError(f"{source} has both {found[name].name} and {stored.name}: which is {name} is ambiguous")
        found[name] = stored
    other = next(kind for kind in COLUMN if kind != model_type)
    layers = {kind: ENCODER[4][column].split("{}")[0] for kind, column in COLUMN.items()}
    if not any(n.startswith(layers[model_type]) for n in found) and any(n.startswith(layers[other]) for n in found):
        raise ValueError(f"{source}: config.json says {model_type}, but the tensors are those of a {other}")
    return found


def drop_second_names(found: dict[str, StoredTensor], tied: bool, report: LoadReport) -> None:
    """Leave the tensors of the decoder under one name each, so that none is loaded twice or passed over unseen.

    `tied` is config.tie_word_embeddings. Raises ValueError where two names of one tensor hold different values; an
    untied decoder keeps its own weight, and of two biases the one named decoder.bias, which transformers reads.
    """
    for second, name in SECOND_NAMES.items():
        if second not in found or (name == TOKEN_EMBEDDING and not tied):
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


def may_be_fresh(ours: str) -> bool:
    """Whether a new head may bring this tensor of its state_dict along: all but the encoder, of which the pooler."""
    return ours.startswith("encoder.pooler.") or not ours.startswith("encoder.")


def has_pooler(tensors: dict[str, StoredTensor], model_type: str) -> bool:
    """Whether the checkpoint carries the pooler: files of masked language models do not, DistilBERT has none."""
    return model_type == "bert" and any(official_name(name).startswith("pooler.") for name in tensors)


def fill(
    model: Encoder | Head,
    config: Config,
    tensors: dict[str, StoredTensor],
    source: str,
    dtype: torch.dtype,
    new_head: bool = False,
) -> LoadReport:
    """Read a checkpoint into `model`, whose parameters may be on the meta device, and account for every tensor.

    With `new_head`, the parameters outside the encoder, and a pooler that the file lacks, are initialised afresh as
    BERT does. Raises ValueError, naming the tensors, for a parameter that is missing or of another shape; warns of
    tensors that no row of the table knows.
    """
    found = by_official_name(tensors, config.model_type, source)
    report = LoadReport(source, tuple(sorted({stored.dtype for stored in tensors.values()})))
    if isinstance(model, TokenPrediction) and not new_head:
        drop_second_names(found, config.tie_word_embeddings, report)
    state: dict[str, Tensor] = {}
    wanted: dict[str, str] = {}  # name in the file -> name in the state_dict
    for ours, parameter in model.state_dict().items():
        name = name_in_file(config.model_type, ours)
        if new_head and may_be_fresh(ours) and (name not in found or not ours.startswith("encoder.")):
            report.missing.append(ours)
            state[ours] = fresh(ours, parameter.shape, config.initializer_range).to(dtype)
        elif (stored := found.pop(name, None)) is None:
            report.missing.append(ours)
        elif stored.shape != tuple(parameter.shape):
            report.wrong_shape[stored.name] = f"{stored.shape} in the file, {tuple(parameter.shape)} by config.json"
        else:
            wanted[stored.name] = ours
    for name, stored in found.items():
        report.ignored[stored.name] = why_left_out(config.model_type, name) or "unknown to minibert"
    missing = [ours for ours in report.missing if ours not in state]
    check_complete(report, missing, model.name if isinstance(model, Head) else "")

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


def check_complete(report: LoadReport, missing: list[str], head: str) -> None:
    """Raise ValueError for tensors that are missing or of the wrong shape; warn of unknown ones. "": no head."""
    if report.wrong_shape:
        name, shapes = next(iter(report.wrong_shape.items()))
        way_out = (
            f"; new_head=True makes a fresh head {head!r}" if name.startswith(("classifier.", "qa_outputs.")) else ""
        )
        raise ValueError(
            f"{report.source}: {len(report.wrong_shape)} tensors of the wrong shape: {name}, {shapes}{way_out}"
        )
    if missing:
        if head and all(may_be_fresh(ours) for ours in missing):
            raise ValueError(
                f"{report.source} lacks {len(missing)} tensors of the head {head!r}, {missing[0]} the "
                "first; new_head=True makes a fresh head"
            )
        raise ValueError(f"{report.source} lacks {len(missing)} tensors, {missing[0]} the first")
    unknown = [name for name, why in report.ignored.items() if why == "unknown to minibert"]
    if unknown:
        warnings.warn(
            f"{report.source}: {len(unknown)} tensors are unknown to minibert and were not loaded: "
            f"{', '.join(unknown[:5])}",
            UnknownTensors,
            stacklevel=4,
        )


def fresh(name: str, shape: torch.Size, std: float) -> Tensor:
    """A new parameter as BERT initialises it: normal matrices, zero biases, LayerNorm weights of one."""
    if name.endswith("bias"):
        return torch.zeros(shape)
    return torch.ones(shape) if len(shape) == 1 else torch.empty(shape).normal_(std=std)


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


def load_encoder(
    folder: Path, *, dtype: torch.dtype = torch.float32, attention: str = "eager"
) -> tuple[Encoder, LoadReport]:
    """The encoder of the checkpoint in `folder`, in eval mode on the CPU, and the account of its tensors."""
    config = Config.from_file(folder / "config.json")
    tensors = list_tensors(folder)
    with sizes_only():
        encoder = Encoder(config, attention, pooler=has_pooler(tensors, config.model_type))
    report = fill(encoder, config, tensors, str(folder), dtype)
    return encoder.eval(), report


def load_head(
    folder: Path,
    head: str,
    *,
    num_labels: int | None = None,
    new_head: bool = False,
    dtype: torch.dtype = torch.float32,
    attention: str = "eager",
) -> tuple[Head, LoadReport]:
    """The checkpoint in `folder` as a model with this head, in eval mode on the CPU, and the account of its tensors."""
    config = with_num_labels(Config.from_file(folder / "config.json"), head, num_labels, new_head)
    with sizes_only():
        model = head_class(head)(config, attention)
    report = fill(model, config, list_tensors(folder), str(folder), dtype, new_head)
    model.head_is_trained = not new_head
    return model.eval(), report


def save_folder(model: nn.Module, config: Config, folder: Path, architecture: str) -> None:
    """Write config.json and model.safetensors under the official names; each file appears whole or not at all.

    `architecture` is the upstream class that the folder is for. A bare encoder is written without prefix.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for ours, tensor in model.state_dict().items():
        prefix = f"{config.model_type}." if ours.startswith("encoder.") else ""
        tensors[prefix + name_in_file(config.model_type, ours)] = tensor.detach().cpu().contiguous()
    if (bias := tensors.get("cls.predictions.decoder.bias")) is not None:
        tensors["cls.predictions.bias"] = bias.clone()  # transformers reads this name where the decoder is tied,
        if config.tie_word_embeddings:  # and the other where it is not
            del tensors["cls.predictions.decoder.bias"]
    with written_whole(folder / WEIGHTS_FILE) as temporary:
        save_file(tensors, temporary, metadata={"format": "pt"})
    # transformers loads in the dtype that config.json names, whatever the file holds.
    dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    stored = config.to_dict() | {"architectures": [architecture], "dtype": dtype}
    stored.pop("torch_dtype", None)  # what transformers 4 called it
    write_whole(folder / "config.json", json.dumps(stored, indent=2) + "\n")
