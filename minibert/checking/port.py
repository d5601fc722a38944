"""A port, a whole model in any language: its numbers on fixed inputs beside the checkpoint's, stage by stage.

    --export      inputs.npz: input_ids, attention_mask, token_type_ids, and what they should become
    a model       is called with these inputs, by name
    outputs.npz   is what a program made of them

Numbers at padding do not count: no real token reads them. From the first output that differs, the known mistakes are
made on the reference, which has the weights of the checkpoint, until one gives the same numbers.
"""

from __future__ import annotations

import copy
import math
import os
import re
import traceback
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from minibert.checking.child import call_twice, message_of
from minibert.checking.diagnosis import Numbers, Run, diagnose, fitting, hidden_causes, mistakes_in, reached
from minibert.checking.mistakes import MISTAKES, Functions, Mistake, functions_with, text_of
from minibert.checking.numbers import Bounds, Outputs, apart, bounds, converted, difference, first_wrong, problem
from minibert.checking.outputs import INPUTS, OUTPUTS, as_tensor, outputs_of
from minibert.checking.process import MEMORY, working_folder
from minibert.checking.relatives import known_changes
from minibert.checking.report import Report, heat_map
from minibert.checking.solution import parsed, started
from minibert.checkpoints.checkpoint import Checkpoint
from minibert.checkpoints.load import load, name_in_file
from minibert.families.bert import BERT
from minibert.model import FeedForward
from minibert.text.tokenizer import load_tokenizer
from minibert.utils.files import atomic_write
from minibert.utils.inference import inference

TEXTS = ("He opened the door, and went in.", "She was very unhappy.", "No.", "Where is he?", "")
PAIRS = (None, None, None, "He went in.", None)
LIMIT = 120.0  # seconds for loading a model, and for a call
LAYER = re.compile(r"(hidden_states|attentions)\.(0|[1-9][0-9]{0,2})")  # the name of an output of one layer
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

    @cached_property
    def model(self) -> Any:
        """Minibert's model in float32."""
        return load(self.checkpoint, head=self.head)

    def outputs_in(self, dtype: torch.dtype, changes: tuple[Any, ...] = ()) -> Outputs:
        """Return the outputs of minibert's model, computed in a dtype; changes: made on it before."""
        model = copy.deepcopy(self.model).to(dtype)
        for change in changes:
            change.make(model)
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

    def limits(self, dtype: torch.dtype) -> Bounds:
        """Return how much each output of a port that computes in this dtype may differ, by the names of `in_parts`."""
        return bounds(self.parts, self.others(dtype), dtype)

    @cached_property
    def parts(self) -> Outputs:
        """The right outputs in parts."""
        return in_parts(self.right)

    def others(self, dtype: torch.dtype) -> list[Outputs]:
        """Return the right outputs, in parts, as ways of computing in another precision give them.

        In a type of less precision these are minibert's own, which rounds little, and the reference's, which rounds
        after each operation.
        """
        if dtype == torch.float32:
            return [in_parts(self.exact)]
        model = {name: x.float() for name, x in in_parts(self.outputs_in(dtype)).items()}
        if not self.is_computable:
            return [{name: x + (model[name] - x) * 2 for name, x in self.parts.items()}]  # with one way only
        return [model, model | self.reference(functions_with(()), dtype)]

    @cached_property
    def is_computable(self) -> bool:
        """Whether the reference computes this checkpoint's outputs."""
        if self.weights is None:
            return False
        limits = bounds(self.parts, self.others(torch.float32))
        own = self.visible(self.reference(functions_with(())))
        right = self.visible(self.parts)
        return all(apart(x, right[name], limits[name]) <= 1.0 for name, x in own.items())

    @cached_property
    def weights(self) -> dict[str, Tensor] | None:
        """The weights by BERT's official names, for the reference; None for a relative that it cannot compute."""
        head = self.head if self.head == "masked-lm" else None
        model = self.model if head else getattr(self.model, "encoder", self.model)
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
        # Position 0 of the reference is the first that is used; those before it are the last.
        found[positions] = found[positions].roll(-architecture.first_position, 0)
        found["first_position"] = torch.tensor(architecture.first_position)
        found["heads"] = torch.tensor(config.num_attention_heads)
        return found

    def reference(
        self, functions: Functions, dtype: torch.dtype = torch.float32, names: Iterable[str] | None = None
    ) -> Outputs:
        """Return the outputs of these functions of the reference, in parts; names: only what these need is computed."""
        wanted = self.parts if names is None else names
        layers = max(layers_for(name) for name in wanted)
        kinds = {name.partition(".")[0] for name in wanted}
        weights = {name: x for name, x in converted(self.weights, dtype).items() if number_of(name) < layers}
        ids, mask, segments = (self.inputs[name] for name in INPUTS)
        with torch.no_grad():
            states, attentions = functions["encode"](ids, segments, mask, weights, int(weights["heads"]), self.eps)
            named: Outputs = {"hidden_states": states, "attentions": attentions, "last_hidden_state": states[-1]}
            if "pooler_output" in kinds and "pooler.dense.weight" in weights:
                pooler = weights["pooler.dense.weight"], weights["pooler.dense.bias"]
                named["pooler_output"] = functions["pooler"](states[-1], *pooler)
            if "logits" in kinds and "cls.predictions.bias" in weights:
                named["logits"] = functions["predict_tokens"](states[-1], weights, self.eps)
        return {name: x if dtype == torch.float64 else x.float() for name, x in in_parts(named).items()}

    @property
    def eps(self) -> float:
        """The eps of config.json."""
        return float(self.checkpoint.config.layer_norm_eps)

    def candidates(self, right: Outputs) -> list[Any]:
        """Return the known mistakes that may explain these outputs."""
        return mistakes_in(reached_by(right)) if self.is_computable else known_changes(self.model)

    def said(self, mistakes: tuple[Any, ...]) -> str:
        """Return what is wrong, with the values of this checkpoint."""
        first = int(self.weights["first_position"]) if self.weights else 0
        return " and ".join(text_of(mistake, self.eps, first) for mistake in mistakes)

    def run(self, right: Outputs) -> Run:
        """Return what computes these outputs with mistakes: by the reference, or else by minibert's model."""

        def run(mistakes: tuple[Any, ...], dtype: torch.dtype) -> list[Outputs]:
            if self.is_computable:
                outputs = self.reference(functions_with(mistakes), dtype, right)
            else:
                changed = in_parts(self.outputs_in(dtype, mistakes))
                outputs = {name: x if dtype == torch.float64 else x.float() for name, x in changed.items()}
            return [self.visible({name: outputs[name] for name in right if name in outputs})]

        return run

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


def layers_for(name: str) -> float:
    """Return how many layers an output needs."""
    kind, _, number = name.partition(".")
    return int(number or 0) + (kind == "attentions") if kind in OUTPUTS[:2] else math.inf


def number_of(name: str) -> int:
    """Return the layer of a weight, -1 if it is of none."""
    return int(name.split(".")[2]) if name.startswith("encoder.layer.") else -1


def compare(expected: Expected, found: Outputs, dtype: torch.dtype, some: bool = False) -> Report:
    """Compare the outputs of a port, by their names in OUTPUTS, and name the mistakes that explain the differences.

    some: there may be fewer states and attentions than the checkpoint has.
    """
    unknown = found.keys() - expected.right.keys()
    found = {name: x for name, x in found.items() if name in expected.right}
    if not found:
        return failed(f"{', '.join(unknown)} cannot be compared: the checkpoint has none")
    if why := miscounted(expected, found, some):
        return why
    given = {name: x.float() for name, x in in_parts(found).items()}
    right = {name: x for name, x in expected.parts.items() if name in given}
    for name in right:
        if fault := problem({name: given[name]}, {name: right[name]}):
            _, title, layer = stage_of(name)
            return Report(False, title, layer, (), math.inf, (fault,))
    parts, right = expected.visible(given), expected.visible(right)
    limits = {name: limit for name, limit in expected.limits(dtype).items() if name in right}
    wrong = [name for name, x in right.items() if apart(parts[name], x, limits[name]) > 1.0]
    largest = max(difference(parts[name], x) for name, x in right.items())
    checked = f"{len(right)} outputs compared: {', '.join(dict.fromkeys(name.split('.')[0] for name in right))}"
    checked += f"; not {', '.join(unknown)}, which the checkpoint has not" * bool(unknown)
    numbers = Numbers([parts], [right], [limits], expected.run(right), dtype)
    if not wrong:
        return within_rounding(expected, numbers, largest, checked)
    name = origin(given, wrong[0])
    _, title, layer = stage_of(name)
    at = wrong[0]
    place = first_wrong({at: parts[at]}, {at: right[at]}, limits, expected.inputs["attention_mask"])
    causes = layout(expected, given, limits) or causes_of(expected, numbers)
    where = title if layer is None else f"layer {layer}, {title}"
    lines = [
        checked,
        f"{len(wrong)} differ; the first is {name} ({where}): the largest difference there is {place.largest:.3g}, at "
        f"most {limits[name].largest:.1e} is allowed",
        str(place),
        *heat_map(parts[at], right[at], limits[at].largest),
    ]
    if not causes:
        other = ", nor do the weights of this checkpoint" * (name == "hidden_states.0")
        hint = precision_of(expected, parts, right, dtype)
        lines.append(f"no known mistake of {len(MISTAKES)} gives these numbers{other}{hint}")
    return Report(False, title, layer, causes, largest, tuple(lines))


def within_rounding(expected: Expected, numbers: Numbers, largest: float, checked: str) -> Report:
    """Return the report on outputs that differ by rounding, unless a known mistake explains how they differ."""
    (right,), (limits,), dtype = numbers.right, numbers.bounds, numbers.dtype
    if dtype != torch.float32:
        others = [expected.visible({name: x[name] for name in right}) for x in expected.others(dtype)]
        if hidden := hidden_causes(numbers, others, expected.candidates(right)):
            said = "the differences are within rounding, but a known mistake explains them"
            said += ", of which rounding hides which it is" * (len(hidden) > 1)
            cause = ", or ".join(expected.said((mistake,)) for mistake in hidden)
            return Report(False, "model", None, (cause,), largest, (checked, said))
    allowed = max(limit.largest for limit in limits.values())
    said = f"right within rounding: the largest difference is {largest:.1e}, at most {allowed:.1e} is allowed"
    return Report(True, None, None, (), largest, (checked, said))


def miscounted(expected: Expected, found: Outputs, some: bool) -> Report | None:
    """Return the report on outputs that the checkpoint does not have, or of another number of layers."""
    for name, x in found.items():
        right = expected.right[name]
        if name not in OUTPUTS[:2] or len(x) == len(right) or (some and len(x) < len(right)):
            continue
        said = f"{name} has {len(x)} parts; expected {len(right)}"
        without = len(x) == len(right) - 1 and x.shape[1:] == right.shape[1:] and name == "hidden_states"
        if (
            without
            and difference(x.float(), right[1:]) <= 100 * expected.limits(torch.float32)["hidden_states.0"].largest
        ):
            return failed(said, "hidden_states are only those after the layers: the first is the embeddings")
        more = ": the embeddings and the output of each layer" if name == "hidden_states" else ", one per layer"
        return failed(said + more)
    return None


def origin(given: Outputs, wrong: str) -> str:
    """Return the first output that is wrong: if numbers are not finite, the one in which a row became so."""
    for name, x in given.items():
        if name == wrong:
            break
        if not bool(x.isfinite().all()) and not bool(given[wrong].isfinite().all()):
            return name
    return wrong


def layout(expected: Expected, given: Outputs, limits: Bounds) -> tuple[str, ...]:
    """Return what is wrong with the order of right numbers: exchanged axes, or texts in another order."""
    right = expected.visible({name: expected.parts[name] for name in given})
    transposed = {name: x.transpose(-1, -2) if name.startswith("attentions") else x for name, x in given.items()}
    order = order_of(expected, given)
    changes = {
        "the two last axes of attentions are exchanged: queries, then keys": transposed,
        f"the texts are in another order: {', '.join(map(str, order))}": {
            name: x[torch.tensor(order).argsort()] for name, x in given.items() if x.shape[0] == len(order)
        },
    }
    for cause, changed in changes.items():
        parts = expected.visible(changed)
        if parts.keys() == right.keys() and all(apart(parts[name], x, limits[name]) <= 1 for name, x in right.items()):
            return (cause,)
    return ()


def order_of(expected: Expected, given: Outputs) -> list[int]:
    """Return which text each row is most like, or the right order if two rows are most like the same."""
    name, rows = next(iter(given.items()))
    texts = range(len(expected.inputs["attention_mask"]))
    right = expected.visible({name: expected.parts[name]})[name]
    near = [
        min(texts, key=lambda text: difference(expected.visible({name: row.expand_as(rows)})[name][text], right[text]))
        for row in rows
    ]
    return near if sorted(near) == list(texts) else list(texts)


def precision_of(expected: Expected, parts: Outputs, right: Outputs, dtype: torch.dtype) -> str:
    """Return a hint if the numbers are right as a type of less precision has them."""
    for other in (torch.float16, torch.bfloat16):
        limits = expected.limits(other)
        if dtype == torch.float32 and all(apart(parts[name], x, limits[name]) <= 1.0 for name, x in right.items()):
            name = str(other).removeprefix("torch.")
            return f"; they are right for numbers that were computed in {name}: if yours were, add --precision {name}"
    return ""


def reached_by(names: Iterable[str]) -> tuple[str, ...]:
    """Return the functions of the reference that make these outputs, the likeliest last."""
    return tuple(dict.fromkeys(one for name in names for one in ("encode", *reached(stage_of(name)[0]))))


def causes_of(expected: Expected, numbers: Numbers) -> tuple[str, ...]:
    """Return the causes of all differences: output by output, each with the mistakes that were found before."""
    if not expected.is_computable:
        found = fitting(numbers, ((change,) for change in expected.candidates({})))
        return (" or ".join(map(expected.said, found)),) if found else ()
    (parts,), (right,), (limits,) = numbers.found, numbers.right, numbers.bounds
    known: tuple[Mistake, ...] = ()
    texts: list[str] = []

    def explained(mistakes: tuple[Mistake, ...]) -> list[str]:
        """Return the outputs that these do not explain."""
        outputs = numbers.outputs(mistakes)
        return (
            [name for name, x in outputs[0].items() if apart(parts[name], x, limits[name]) > 1.0]
            if outputs
            else list(right)
        )

    while left := explained(known):
        name = left[0]
        one = {name: right[name]}
        fitted = diagnose(
            Numbers([{name: parts[name]}], [one], [limits], expected.run(one), numbers.dtype),
            reached_by([name]),
            known,
        )
        # Of those with the same numbers, those that explain the most of what follows.
        unexplained = [explained(known + chosen) for chosen in fitted]
        least = min(map(len, unexplained), default=len(left))
        best = [chosen for chosen, rest in zip(fitted, unexplained, strict=True) if len(rest) == least]
        if not best or least >= len(left):
            texts += [expected.said(chosen) for chosen in best[:1] if name not in unexplained[fitted.index(chosen)]]
            break
        known += best[0]
        texts.append(" or ".join(dict.fromkeys(expected.said(chosen) for chosen in best)))
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
        calls = call_twice(given, os.fspath(checkpoint), expected.inputs)
    except (ValueError, KeyboardInterrupt):
        raise
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
        return failed(f"the model raised {message_of(error, Path())}{where}")
    first, second = (outputs_of(result) for result, _ in calls)
    return judged(expected, first, second, calls[0][1])


def check_model_of_file(path: Path, name: str, checkpoint: Checkpoint) -> Report:
    """Check the class or function of this name in a file, in a process of its own. Raises as check_model."""
    parsed(path)
    expected = Expected(checkpoint)
    memory = MEMORY + 8 * sum(x.nbytes for x in expected.right.values()) + 6 * folder_size(Path(checkpoint))
    with working_folder() as folder:
        save_file(expected.inputs, folder / "inputs.safetensors")
        process = started(folder, path, name=name, checkpoint=os.fspath(checkpoint), memory=memory)
        try:
            answer = process.answer("model", LIMIT)
        finally:
            process.stop()
    if answer.state == "refused":
        raise ValueError(f"{path} has {answer.message}" if answer.message.startswith("no ") else answer.message)
    if answer.state != "done":
        return failed(
            f"the model raised {answer.message}" if answer.state == "raised" else f"the model: {answer.message}"
        )
    first, second = (
        {name: answer.tensors[prefix + name] for name in OUTPUTS if prefix + name in answer.tensors}
        for prefix in ("first ", "second ")
    )
    if not first or any(not x.is_floating_point() for x in first.values()) or first.keys() != second.keys():
        return failed("the model returned no numbers")
    return judged(expected, first, second, {name: answer.tensors.get(f"first given {name}") for name in INPUTS})


def folder_size(folder: Path) -> int:
    """Return the bytes of the files in a folder."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def judged(expected: Expected, first: Outputs, second: Outputs, after: Mapping[str, Tensor | None]) -> Report:
    """Return the report on what two calls of a model returned; after: its inputs after the first."""
    for name, x in expected.inputs.items():
        given = after[name]
        if given is None or not torch.equal(x, given):
            raise ValueError(f"the model changes {name} in place; copy it first")
    if any(not torch.equal(x.nan_to_num(), second[name].nan_to_num()) for name, x in first.items()):
        return failed("two calls give different numbers; call model.eval()", "dropout is left on")
    return compare(expected, first, lowest(first))


def failed(text: str, *causes: str) -> Report:
    """Return the report on a model whose numbers cannot be compared."""
    return Report(False, "model", None, causes, float("inf"), (text,))


def lowest(outputs: Outputs) -> torch.dtype:
    """Return the dtype of least precision among the outputs; float32 at most."""
    found = {x.dtype for x in outputs.values()}
    return next((dtype for dtype in (torch.bfloat16, torch.float16) if dtype in found), torch.float32)


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
        arrays = arrays_in(path, expected)
    except ArrayError as error:
        raise ValueError(f"{path} {error}") from None
    except Exception as error:  # numpy and zipfile raise a dozen types
        text = str(error).partition("\n")[0][:200] or type(error).__name__
        raise ValueError(f"{path} is not an .npz file of numbers: {text}") from None
    for name, array in arrays.items():
        right = expected.inputs.get(name, expected.right.get(name.removeprefix(EXPECTED)))
        if name.startswith(EXPECTED) and not np.allclose(array, right, rtol=1e-3, atol=1e-3):  # type: ignore[arg-type]  # numpy types no tensors
            raise ValueError(f"{path} has other {name} than the checkpoint's: name the one that --export had")
        if name in INPUTS and not np.array_equal(array, right):  # type: ignore[arg-type]  # numpy types no tensors
            raise ValueError(f"{path} has other {name} than the checkpoint's; write them with --export")
    found = stacked(arrays, path)
    if not found:
        raise ValueError(f"{path} has no output; it needs any of {', '.join(OUTPUTS)}")
    outputs = {name: as_tensor(value, name) for name, value in found.items()}
    dtype = lowest(outputs) if precision == "auto" else getattr(torch, precision)
    return compare(expected, outputs, dtype, some=any(LAYER.fullmatch(name) for name in arrays))


class ArrayError(ValueError):
    """An array of a file has a name, a shape or a type that cannot be compared."""


def arrays_in(path: Path, expected: Expected) -> dict[str, Any]:
    """Return the arrays of an .npz by name. Shapes are read before numbers: a small file may hold very large ones.

    Raises ArrayError for unknown names, shapes and types, and what numpy and zipfile raise for a damaged file.
    """
    arrays: dict[str, Any] = {}
    with zipfile.ZipFile(path) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numpy, for odd headers
        for entry in file.infolist():
            name = entry.filename.removesuffix(".npy")
            if name in arrays:
                raise ArrayError(f"has {name!r} twice")
            right = right_array(name, expected)
            with file.open(entry) as stream:
                version = np.lib.format.read_magic(stream)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, _, dtype = read(stream)
            if dtype.kind not in "fiub":
                raise ArrayError(f"has {name} of type {dtype}; it must be numbers (float32, float16 or float64)")
            if shape[-right.dim() :] != right.shape and shape[1:] != right.shape[1:]:
                raise ArrayError(f"has {name} of shape {shape}; expected {tuple(right.shape)}")
            if math.prod(shape) > 2 * right.numel():
                raise ArrayError(f"has {name} of shape {shape}; expected {tuple(right.shape)}")
            with file.open(entry) as stream:
                array = np.lib.format.read_array(stream, allow_pickle=False)
            arrays[name] = array.astype(array.dtype.newbyteorder("="))
    return arrays


def right_array(name: str, expected: Expected) -> Tensor:
    """Return what an array of this name should be. Raises ArrayError for a name that is not known."""
    if name in INPUTS:
        return expected.inputs[name]
    layer = LAYER.fullmatch(name)
    kind, number = (layer[1], int(layer[2])) if layer else (name.removeprefix(EXPECTED), 0)
    right: Tensor | None = expected.right.get(kind)
    if right is None or kind not in OUTPUTS:
        raise ArrayError(
            f"has {name[:100]!r}, which is not an output of this checkpoint; choose from "
            f"{', '.join(expected.right)}, or of one layer hidden_states.0, attentions.0, ..."
        )
    if number >= len(right):
        raise ArrayError(f"has {name}; the last of this checkpoint is {kind}.{len(right) - 1}")
    return right[number] if layer else right


def stacked(arrays: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the outputs, with single layers stacked. Raises ValueError if layers are missing between them."""
    found = {name: arrays[name] for name in OUTPUTS if name in arrays}
    for kind in OUTPUTS[:2]:
        layers = sorted(int(one[2]) for name in arrays if (one := LAYER.fullmatch(name)) and one[1] == kind)
        if layers and kind in found:
            raise ValueError(f"{path} has {kind} as a whole and by layers; give one of them")
        if layers != list(range(len(layers))):
            raise ValueError(f"{path} has {kind} of the layers {layers}; give them from 0 on without a gap")
        if layers:
            found[kind] = [arrays[f"{kind}.{number}"] for number in layers]
    return found
