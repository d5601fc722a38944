"""A port, a whole model in any language: its numbers on fixed inputs beside the checkpoint's, stage by stage.

    --export      inputs.npz: input_ids, attention_mask, token_type_ids, and what they should become
    a model       is called with these inputs, by name
    outputs.npz   is what a program made of them

Numbers at padding do not count: no real token reads them. From the first output that differs, the known mistakes are
made on the reference, which has the weights of the checkpoint, until one gives the same numbers.
"""

from __future__ import annotations

import inspect
import re
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from minibert.checking.diagnosis import Numbers, diagnose, reached
from minibert.checking.mistakes import Functions, Mistake, functions_with
from minibert.checking.numbers import Outputs, bounds, difference, distance, first_wrong, problem
from minibert.checking.report import Report, heat_map
from minibert.checking.solution import limited
from minibert.checkpoints.checkpoint import Checkpoint
from minibert.checkpoints.load import load, name_in_file
from minibert.families.bert import BERT
from minibert.model import FeedForward
from minibert.text.tokenizer import load_tokenizer
from minibert.utils.files import MOST_BYTES, atomic_write
from minibert.utils.inference import inference

TEXTS = ("He opened the door, and went in.", "She was very unhappy.", "No.", "Where is he?", "")
PAIRS = (None, None, None, "He went in.", None)
LIMIT = 120.0  # seconds for loading a model, and for a call
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OUTPUTS = ("hidden_states", "attentions", "last_hidden_state", "pooler_output", "logits")
LAYER = re.compile(r"(hidden_states|attentions)\.(\d+)")  # the name of an output of one layer
EXPECTED = "expected."  # before the names of what the outputs should be, in the file of --export


@dataclass(frozen=True)
class Expected:
    """A checkpoint, the inputs on which a port is tried, and the right outputs."""

    checkpoint: Checkpoint

    @cached_property
    def inputs(self) -> dict[str, Tensor]:
        """Texts and a pair, padded on the right, (B,S) each; the last text is empty."""
        tokenizer = load_tokenizer(self.checkpoint)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a small vocabulary cuts these texts, or does not know them
            rows = [tokenizer([a], None if b is None else [b]) for a, b in zip(TEXTS, PAIRS, strict=True)]
        longest = max(row["input_ids"].shape[1] for row in rows)
        pads = {"input_ids": tokenizer.pad_id, "attention_mask": 0, "token_type_ids": 0}
        return {
            name: torch.cat(
                [nn.functional.pad(row[name], (0, longest - row[name].shape[1]), value=pads[name]) for row in rows]
            )
            for name in INPUTS
        }

    @cached_property
    def head(self) -> str | None:
        """The task head whose logits are compared."""
        return "masked-lm" if self.checkpoint.has_head("masked-lm") else self.checkpoint.head

    def outputs_in(self, dtype: torch.dtype) -> Outputs:
        """Return the outputs of minibert's model, computed in a dtype."""
        model: Any = load(self.checkpoint, head=self.head, dtype=dtype)
        with inference(model):
            found = model(**self.inputs, output_hidden_states=True, output_attentions=True)
            encoder = getattr(model, "encoder", model)
            last = found.hidden_states[-1]
            named = {"hidden_states": torch.stack(found.hidden_states), "attentions": torch.stack(found.attentions)}
            named["last_hidden_state"] = last
            if encoder.pooler is not None:
                named["pooler_output"] = encoder.pooler(last)
            if self.head:
                named["logits"] = found.logits
        return named

    @cached_property
    def right(self) -> Outputs:
        """The outputs in float32, by their names in OUTPUTS."""
        return self.outputs_in(torch.float32)

    @cached_property
    def exact(self) -> Outputs:
        """The same in float64."""
        return self.outputs_in(torch.float64)

    def limits(self, dtype: torch.dtype) -> dict[str, float]:
        """Return how much each output of a port that computes in this dtype may differ, by the names of `in_parts`."""
        other = self.exact if dtype == torch.float32 else self.outputs_in(dtype)
        return bounds(in_parts(self.right), in_parts(other), dtype)

    @cached_property
    def weights(self) -> dict[str, Tensor] | None:
        """The weights by BERT's official names, for the reference; None for a relative that it cannot compute."""
        head = self.head if self.head == "masked-lm" else None
        model: Any = load(self.checkpoint, head=head)
        encoder = getattr(model, "encoder", model)
        config = encoder.config
        architecture = config.architecture
        fits = (
            architecture.feed_forward is FeedForward
            and not architecture.norm_first
            and config.hidden_act == "gelu"
            and architecture.embedding_size == config.hidden_size
        )
        if not fits:
            return None
        of_head = BERT.heads.get(head or "", {})
        found = {name_in_file(BERT, ours, of_head): x for ours, x in model.state_dict().items()}
        found.setdefault("embeddings.token_type_embeddings.weight", torch.zeros(2, config.hidden_size))
        positions = "embeddings.position_embeddings.weight"
        found[positions] = found[positions][architecture.first_position :]
        found["eps"] = torch.tensor(config.layer_norm_eps, dtype=torch.float64)
        found["heads"] = torch.tensor(config.num_attention_heads)
        return found

    def reference(self, functions: Functions) -> Outputs:
        """Return the outputs of these functions of the reference, in parts."""
        weights = self.weights
        assert weights is not None
        ids, mask, segments = (self.inputs[name] for name in INPUTS)
        eps = float(weights["eps"])
        heads = int(weights["heads"])
        with torch.no_grad():
            states, attentions = functions["encode"](ids, segments, mask, weights, heads, eps)
            named = {"hidden_states": torch.stack(states), "attentions": torch.stack(attentions)}
            named["last_hidden_state"] = states[-1]
            if "pooler.dense.weight" in weights:
                named["pooler_output"] = functions["pooler"](
                    states[-1], weights["pooler.dense.weight"], weights["pooler.dense.bias"]
                )
            if "cls.predictions.bias" in weights:
                named["logits"] = functions["predict_tokens"](states[-1], weights, eps)
        return in_parts(named)

    def visible(self, outputs: Outputs) -> Outputs:
        """Return the outputs with 0 at padding."""
        mask = self.inputs["attention_mask"]
        found = {}
        for name, x in outputs.items():
            at = {"attentions": mask[:, None, :, None], "pooler_output": None}.get(name.split(".")[0], mask[:, :, None])
            of_tokens = at is not None and x.dim() == at.dim() and x.shape[0] == mask.shape[0]
            found[name] = x.masked_fill(at == 0, 0.0) if of_tokens and at is not None else x
        return found


def in_parts(outputs: Mapping[str, Tensor]) -> Outputs:
    """Return hidden states and attentions layer by layer, hidden_states.0, attentions.0, hidden_states.1, ..."""
    found = {}
    states, attentions = (outputs.get(name, ()) for name in ("hidden_states", "attentions"))
    for number in range(max(len(states), len(attentions) + 1)):
        for name, parts, at in (("attentions", attentions, number - 1), ("hidden_states", states, number)):
            if 0 <= at < len(parts):
                found[f"{name}.{at}"] = parts[at]
    return found | {name: outputs[name] for name in OUTPUTS[2:] if name in outputs}


def stage_of(name: str) -> tuple[str, str, int | None]:
    """Return the function of the reference that makes an output, the title of its stage, and the layer."""
    kind, _, number = name.partition(".")
    if kind == "hidden_states":
        return ("embed", "embeddings", None) if number == "0" else ("layer", "layer", int(number) - 1)
    if kind == "attentions":
        return "layer", "attention", int(number)
    return {
        "last_hidden_state": ("encode", "encoder", None),
        "pooler_output": ("pooler", "pooler", None),
        "logits": ("predict_tokens", "logits", None),
    }[kind]


def compare(expected: Expected, found: Outputs, dtype: torch.dtype) -> Report:
    """Compare the outputs of a port, by their names in OUTPUTS, and name the mistakes that explain the differences."""
    parts = in_parts(found)
    right = {name: x for name, x in in_parts(expected.right).items() if name in parts}
    for name in right:
        if why := problem({name: parts[name].float()}, {name: right[name]}):
            _, title, layer = stage_of(name)
            return Report(False, title, layer, (), float("inf"), (why,))
    parts = expected.visible({name: parts[name].float() for name in right})
    right = expected.visible(right)
    limits = {name: limit for name, limit in expected.limits(dtype).items() if name in right}
    ratios = {name: distance({name: parts[name]}, {name: x}, limits) for name, x in right.items()}
    largest = max(difference(parts[name], x) for name, x in right.items())
    wrong = [name for name in right if ratios[name] > 1.0]
    checked = f"{len(right)} outputs compared: {', '.join(dict.fromkeys(name.split('.')[0] for name in right))}"
    if not wrong:
        allowed = f"the largest difference is {largest:.1e}, at most {max(limits.values()):.1e} is allowed"
        return Report(True, None, None, (), largest, (checked, f"right within rounding: {allowed}"))
    name = wrong[0]
    _, title, layer = stage_of(name)
    place = first_wrong({name: parts[name]}, {name: right[name]}, limits, expected.inputs["attention_mask"])
    causes = causes_of(expected, parts, right, limits)
    where = title if layer is None else f"layer {layer}, {title}"
    lines = [
        checked,
        f"{len(wrong)} differ; the first is {name} ({where}): the largest difference there is {place.largest:.3g}, at "
        f"most {limits[name]:.1e} is allowed",
        str(place),
        *heat_map(parts[name], right[name], limits[name]),
    ]
    if not causes:
        other = ", nor do the weights of this checkpoint" * (name == "hidden_states.0")
        lines.append(f"no known mistake gives these numbers{other}")
    return Report(False, title, layer, causes, largest, tuple(lines))


def causes_of(expected: Expected, parts: Outputs, right: Outputs, limits: dict[str, float]) -> tuple[str, ...]:
    """Return the causes of all differences: output by output, each with the mistakes that were found before."""
    if expected.weights is None:
        return ()
    plain = expected.visible(expected.reference(functions_with(())))
    if any(name in plain and distance({name: plain[name]}, {name: x}, limits) > 1.0 for name, x in right.items()):
        return ()  # the reference cannot compute this relative
    known: tuple[Mistake, ...] = ()
    texts: list[str] = []
    for name in (name for name in right if name in plain):
        explained = expected.visible(expected.reference(functions_with(known)))[name]
        if distance({name: parts[name]}, {name: explained}, limits) <= 1.0:
            continue
        numbers = Numbers(
            [{name: parts[name]}],
            [{name: right[name]}],
            [limits],
            # mypy infers no type for a default of a lambda, which binds it to this name.
            lambda functions, name=name: [{name: expected.visible(expected.reference(functions))[name]}],  # type: ignore[misc]
        )
        found = diagnose(numbers, reached(stage_of(name)[0]), known)
        if not found:
            break
        known += found[0]
        texts += [" and ".join(mistake.cause for mistake in one) for one in found]
    return tuple(texts)


# ---------------------------------------------------------------------------------------------------------------
# What is compared: a model, or a file


def check_model(given: Any, checkpoint: Checkpoint) -> Report:
    """Check a model, or a class or function that takes the folder of the checkpoint and returns one.

    The model is called with input_ids, attention_mask and token_type_ids by name. It returns last_hidden_state, or a
    dict or an object with any of OUTPUTS, or a tuple in their order in transformers: last_hidden_state, hidden_states,
    attentions, logits. Raises ValueError for a result without any.
    """
    expected = Expected(checkpoint)
    try:
        model = given if is_model(given) else limited(lambda: given(str(checkpoint.folder)), LIMIT)
        if not callable(model):
            raise ValueError(f"{given!r} returned {type(model).__name__}, which cannot be called with input_ids")
        first, second = (outputs_of(called_with(model, expected)) for _ in range(2))
    except (ValueError, KeyboardInterrupt):
        raise
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
        return failed(f"the model raised {type(error).__name__}: {error}{where}")
    if any(not torch.equal(x.nan_to_num(), second[name].nan_to_num()) for name, x in first.items()):
        return failed("two calls give different numbers; call model.eval()", "dropout is left on")
    return compare(expected, first, lowest(first))


def failed(text: str, *causes: str) -> Report:
    """Return the report on a model whose numbers cannot be compared."""
    return Report(False, "model", None, causes, float("inf"), (text,))


def is_model(given: Any) -> bool:
    """Return whether it is called with input_ids, and not with the folder of a checkpoint."""
    if isinstance(given, nn.Module):
        return True
    parameters = inspect.signature(given).parameters.values()
    named = any(one.name == "input_ids" or one.kind is one.VAR_KEYWORD for one in parameters)
    return named and not isinstance(given, type)


def called_with(model: Any, expected: Expected) -> Any:
    """Return what the model makes of copies of the inputs. Raises ValueError if it changes them."""
    given = {name: x.clone() for name, x in expected.inputs.items()}

    @torch.no_grad()
    def call() -> Any:
        return model(**given)

    result = limited(call, LIMIT)
    for name, x in expected.inputs.items():
        if not torch.equal(x, given[name]):
            raise ValueError(f"the model changes {name} in place; copy it first")
    return result


def lowest(outputs: Outputs) -> torch.dtype:
    """Return the dtype of least precision among the outputs; float32 at most."""
    found = {x.dtype for x in outputs.values()}
    return next((dtype for dtype in (torch.bfloat16, torch.float16) if dtype in found), torch.float32)


def outputs_of(result: Any) -> Outputs:
    """Return the outputs in what a model returned, by their names in OUTPUTS. Raises ValueError if there are none."""
    order = ("last_hidden_state", "hidden_states", "attentions", "logits")
    if isinstance(result, Tensor | np.ndarray):
        named = {"last_hidden_state": result}
    elif isinstance(result, Mapping):
        named = {name: result[name] for name in OUTPUTS if result.get(name) is not None}
    elif isinstance(result, tuple | list) and not hasattr(result, "_fields"):
        named = dict(zip(order, result, strict=False))  # a model may return only the first of them
    else:
        named = {name: getattr(result, name) for name in OUTPUTS if getattr(result, name, None) is not None}
    if not named:
        raise ValueError(f"the model returned {type(result).__name__} without any of {', '.join(OUTPUTS)}")
    return {name: as_tensor(value, name) for name, value in named.items()}


def as_tensor(value: Any, name: str) -> Tensor:
    """Return an output as one tensor; several layers are stacked. Raises ValueError for anything but numbers."""
    if isinstance(value, tuple | list):
        return torch.stack([as_tensor(one, name) for one in value])
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(np.ascontiguousarray(value))
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{name} is of type {kind}; it must be numbers (float32, float16 or bfloat16)")
    return value.detach().cpu()


def write_inputs(path: Path, checkpoint: Checkpoint) -> list[str]:
    """Write the inputs and the expected outputs as .npz; return a line for each array."""
    expected = Expected(checkpoint)
    arrays = {name: x.numpy() for name, x in expected.inputs.items()}
    arrays |= {EXPECTED + name: x.numpy() for name, x in expected.right.items()}
    with atomic_write(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # numpy types its second argument as a bool
    return [f"{name}  {array.dtype}  {tuple(array.shape)}" for name, array in arrays.items()]


def check_arrays(path: Path, checkpoint: Checkpoint, precision: str) -> Report:
    """Check the outputs in an .npz. precision: in which they were computed; "auto": float16 if they are, else float32.

    Raises ValueError for unknown names, no output, other inputs than --export wrote, and a damaged file.
    """
    expected = Expected(checkpoint)
    try:
        with np.load(path, allow_pickle=False) as file:
            most = max(MOST_BYTES, 4 * sum(x.nbytes for x in expected.right.values()))  # in float64, layers apart too
            if sum(one.file_size for one in file.zip.infolist()) > most:
                raise ValueError(f"it holds more than {most / 1e6:.0f} MB")
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # numpy and zipfile raise a dozen types
        raise ValueError(f"{path} is not an .npz file of numbers: {error}") from None
    known = (*INPUTS, *OUTPUTS)
    unknown = [name for name in arrays if not (name in known or LAYER.fullmatch(name) or name.startswith(EXPECTED))]
    if unknown:
        raise ValueError(
            f"{path} has {unknown[0]!r}, which is not an output; choose from {', '.join(OUTPUTS)}, or of one layer "
            "hidden_states.0, attentions.0, ..."
        )
    for name in INPUTS:
        if name in arrays and not np.array_equal(arrays[name], expected.inputs[name].numpy()):
            raise ValueError(f"{path} has other {name} than the checkpoint's; write them with --export")
    found = stacked(arrays, path)
    if not found:
        raise ValueError(f"{path} has no output; it needs any of {', '.join(OUTPUTS)}")
    outputs = {name: as_tensor(value, name) for name, value in found.items()}
    dtype = lowest(outputs) if precision == "auto" else getattr(torch, precision)
    return compare(expected, outputs, dtype)


def stacked(arrays: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the outputs, with single layers stacked. Raises ValueError if layers are missing between them."""
    found = {name: arrays[name] for name in OUTPUTS if name in arrays}
    for kind in OUTPUTS[:2]:
        layers = sorted(int(one[2]) for name in arrays if (one := LAYER.fullmatch(name)) and one[1] == kind)
        if layers != list(range(len(layers))):
            raise ValueError(f"{path} has {kind} of the layers {layers}; give them from 0 on without a gap")
        if layers:
            found[kind] = [arrays[f"{kind}.{number}"] for number in layers]
    return found
