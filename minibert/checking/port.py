"""A port, a whole model in any language: its numbers on fixed inputs beside the checkpoint's, stage by stage.

Numbers at padding do not count: no real token reads them. From the first output that differs, the known mistakes are
made on the reference, which has the weights of the checkpoint, until one gives the same numbers.
"""

from __future__ import annotations

import math
import os
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from minibert.checking.child import call_twice, message_of
from minibert.checking.diagnosis import Numbers, diagnose, fitting, hidden_causes
from minibert.checking.expected import Expected, in_parts, reached_by, stage_of
from minibert.checking.mistakes import MISTAKES, Mistake
from minibert.checking.numbers import OUTPUTS, Bounds, Outputs, apart, difference, first_wrong, outputs_of, problem
from minibert.checking.process import MEMORY, working_folder
from minibert.checking.report import Report, heat_map
from minibert.checking.solution import started
from minibert.checking.source import parsed
from minibert.checkpoints.checkpoint import Checkpoint

LIMIT = 120.0  # seconds for loading a model, and for a call


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
    numbers = Numbers(parts, right, limits, expected.run(right), dtype)
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
        lines.append(unexplained(expected, at, right) + precision_of(expected, parts, right, dtype))
    return Report(False, title, layer, causes, largest, tuple(lines))


def unexplained(expected: Expected, first: str, right: Outputs) -> str:
    """Return what can be said where no known mistake gives the numbers; first: the first output that is wrong."""
    count = len(MISTAKES) if expected.is_computable else len(expected.candidates({}))
    said = f"no known mistake of {count} gives these numbers"
    if first == "hidden_states.0":
        return f"{said}, nor do the weights of this checkpoint"
    if first == "logits" and len(right) > 1:
        return f"{said}; all before them is right: is the decoder's weight the token embedding (tied)?"
    return said


def within_rounding(expected: Expected, numbers: Numbers, largest: float, checked: str) -> Report:
    """Return the report on outputs that differ by rounding, unless a known mistake explains how they differ."""
    right, limits, dtype = numbers.right, numbers.bounds, numbers.dtype
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
        if name == "hidden_states" and len(x) == len(right) - 1 and x.shape[1:] == right.shape[1:]:
            states, after = (expected.visible(in_parts({name: y})) for y in (x.float(), right[1:]))
            if all(difference(states[part], y) <= 0.01 for part, y in after.items()):
                return failed(said, "hidden_states are only those after the layers: the first is the embeddings")
        more = ": the embeddings and the output of each layer" if name == "hidden_states" else ", one per layer"
        if x.shape[1:] == right.shape[1:]:
            parts, limits = expected.visible(in_parts({name: x.float()})), expected.limits(torch.float32)
            equal = [
                part in parts and apart(parts[part], y, limits[part]) <= 1.0
                for part, y in expected.visible(in_parts({name: right})).items()
            ]
            more += f"; the first {([*equal, False]).index(False)} are right"
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


def causes_of(expected: Expected, numbers: Numbers) -> tuple[str, ...]:
    """Return the causes of all differences: output by output, each with the mistakes that were found before."""
    if not expected.is_computable:
        found = fitting(numbers, ((change,) for change in expected.candidates({})))
        return (" or ".join(map(expected.said, found)),) if found else ()
    parts, right, limits = numbers.found, numbers.right, numbers.bounds
    known: tuple[Mistake, ...] = ()
    texts: list[str] = []

    def rest(mistakes: tuple[Mistake, ...]) -> list[str]:
        """Return the outputs that these do not explain."""
        outputs = numbers.outputs(mistakes)
        if outputs is None:
            return list(right)
        left = [name for name, x in outputs.items() if apart(parts[name], x, limits[name]) > 1.0]
        if left and mistakes and (own := numbers.rounding(mistakes, outputs)):
            left = [name for name in left if apart(parts[name], outputs[name], own[name]) > 1.0]
        return left

    while left := rest(known):
        name = left[0]
        one = {name: right[name]}
        fitted = diagnose(
            Numbers({name: parts[name]}, one, limits, expected.run(one), numbers.dtype),
            reached_by([name]),
            known,
        )
        # Of those with the same numbers, those that explain the most of what follows.
        rests = [rest(known + chosen) for chosen in fitted]
        least = min(map(len, rests), default=len(left))
        best = [chosen for chosen, others in zip(fitted, rests, strict=True) if len(others) == least]
        if not best or least >= len(left):
            texts += [expected.said(chosen) for chosen in best[:1] if name not in rests[fitted.index(chosen)]]
            break
        known += best[0]
        texts.append(" or ".join(dict.fromkeys(expected.said(chosen) for chosen in best)))
    return tuple(texts)


# ---------------------------------------------------------------------------------------------------------------
# What is compared: a model


def check_model(given: Any, checkpoint: Checkpoint) -> Report:
    """Check a model, or a class or function that takes the folder of the checkpoint and returns one.

    The model is called with input_ids, attention_mask and token_type_ids by name. It returns last_hidden_state, or a
    dict or an object with any of OUTPUTS, or a tuple in their order in transformers: last_hidden_state, hidden_states,
    attentions, logits. Raises ValueError for a result without any.
    """
    expected = Expected(checkpoint)
    try:
        first, second, after = call_twice(given, os.fspath(checkpoint), expected.inputs)
    except (ValueError, KeyboardInterrupt):
        raise
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
        return failed(f"the model raised {message_of(error, Path())}{where}")
    return judged(expected, outputs_of(first), outputs_of(second), after)


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
    first, second, after = (
        {name.removeprefix(prefix): x for name, x in answer.tensors.items() if name.startswith(prefix)}
        for prefix in ("first ", "second ", "given ")
    )
    if not first or any(not x.is_floating_point() for x in first.values()) or first.keys() != second.keys():
        return failed("the model returned no numbers")
    return judged(expected, first, second, after)


def folder_size(folder: Path) -> int:
    """Return the bytes of the files in a folder."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def judged(expected: Expected, first: Outputs, second: Outputs, after: Mapping[str, Tensor]) -> Report:
    """Return the report on what two calls of a model returned; after: its inputs after the first."""
    for name, x in expected.inputs.items():
        if name not in after or not torch.equal(x, after[name]):
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
