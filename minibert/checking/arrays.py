"""The files of a port: inputs.npz, which --export writes, and outputs.npz, what any program made of them.

inputs.npz     input_ids, attention_mask, token_type_ids, and expected.NAME, what they should become
outputs.npz    any of OUTPUTS, as a whole or by layers: hidden_states.0, hidden_states.1, ...
"""

from __future__ import annotations

import math
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minibert.checking.expected import Expected
from minibert.checking.numbers import INPUTS, OUTPUTS, as_tensor
from minibert.checking.port import compare, lowest
from minibert.checking.report import Report
from minibert.checkpoints.checkpoint import Checkpoint
from minibert.utils.files import atomic_write

LAYER = re.compile(r"(hidden_states|attentions)\.(0|[1-9][0-9]{0,2})")  # the name of an output of one layer
EXPECTED = "expected."  # before the names of what the outputs should be, in the file of --export


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
            layers = name.removeprefix(EXPECTED) in OUTPUTS[:2]  # of which there may be another number
            if shape[layers:] != right.shape[layers:] or math.prod(shape) > 2 * right.numel():
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
