"""A saved classifier: one file, which appears by one rename, so that a folder holds the old classifier or the new one.

    classifier.safetensors   mean, scale, coef, intercept; in its metadata, as JSON, everything else

Read without trust: each number and each entry is checked here, and what is wrong is one ValueError. A folder of an
earlier minibert, with the JSON in a file of its own, is read as well.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from minibert.checkpoints.tensor_files import sha256
from minibert.files import atomic_write, parse_json, read_json, regular, shown

Arrays = dict[str, NDArray[np.floating[Any]]]

TENSORS_FILE = "classifier.safetensors"
DETAILS_FILE = "classifier.json"  # of an earlier minibert
DETAILS = "classifier"  # the entry of the metadata
FORMAT = 1  # of the details; a later one is refused
ARRAYS = ("mean", "scale", "coef", "intercept")


def is_text(value: Any) -> bool:
    """Whether an entry is text that says something."""
    return isinstance(value, str) and value != ""


def is_count(value: Any) -> bool:
    """Whether an entry is a whole number of at least 0."""
    return type(value) is int and value >= 0


def is_positive(value: Any) -> bool:
    """Whether an entry is a number above 0."""
    return type(value) in (int, float) and 0 < value < math.inf


def are_labels(value: Any) -> bool:
    """Whether an entry is the names of at least two classes."""
    return isinstance(value, list) and all(map(is_text, value)) and len(set(value)) == len(value) >= 2


def are_scores(value: Any) -> bool:
    """Whether an entry is the accuracies of a cross-validation."""
    return isinstance(value, list) and all(
        isinstance(score, dict)
        and score.keys() == {"C", "mean", "std"}
        and all(type(number) in (int, float) and math.isfinite(number) for number in score.values())
        for score in value
    )


ENTRIES: dict[str, Callable[[Any], bool]] = {  # that are needed to use it; those of the recipe are checked by Recipe
    "model": is_text,
    "weights_sha256": is_text,
    "tokenizer_fingerprint": is_text,
    "tensors_sha256": is_text,
    "labels": are_labels,
    "C": is_positive,
    "rows": is_count,
    "folds": is_count,
    "scores": are_scores,
}


def write(folder: Path, details: Mapping[str, Any], arrays: Arrays) -> None:
    """Write a classifier into a folder, in place of the one that is there; when that fails, nothing is left of it.

    arrays: by the names in ARRAYS. Raises OSError, which names the file, where it cannot be written.
    """
    contiguous = {name: np.ascontiguousarray(arrays[name]) for name in ARRAYS}
    content = {"format": FORMAT} | dict(details) | {"tensors_sha256": digest(contiguous)}
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with atomic_write(folder / TENSORS_FILE) as temporary:
            temporary.write_bytes(save(contiguous, {DETAILS: json.dumps(content)}))
    except BaseException:
        for path in made:
            with suppress(OSError):
                path.rmdir()
        raise
    (folder / DETAILS_FILE).unlink(missing_ok=True)


def read(folder: Path, recipe: tuple[str, ...] = ()) -> tuple[dict[str, Any], Arrays]:
    """The details and the arrays of the classifier in a folder, checked; `recipe` names more entries that are needed.

    Raises FileNotFoundError where there is none, ValueError where it is damaged or of a later format.
    """
    if not (folder / TENSORS_FILE).exists():
        if (folder / DETAILS_FILE).exists():
            raise damaged(folder, f"{TENSORS_FILE} is missing")
        raise FileNotFoundError(
            f"{folder} holds no classifier: there is no {TENSORS_FILE}; `minibert classify train` makes one"
        )
    arrays, text = read_file(folder)
    details = read_details(folder, text)
    check_details(folder, details, recipe)
    found = sha256(folder / TENSORS_FILE) if text is None else digest(arrays)
    if found != details["tensors_sha256"]:
        raise damaged(folder, f"the numbers in {TENSORS_FILE} are not those that were written")
    check_arrays(folder, arrays, len(details["labels"]))
    return details, arrays


def read_file(folder: Path) -> tuple[Arrays, str | None]:
    """The arrays, and the JSON beside them; None where it is in a file of its own."""
    try:
        with safe_open(regular(folder / TENSORS_FILE), framework="np") as file:
            stored = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118  # it is no dict
            for name in ARRAYS:
                if stored.get(name) not in ("F32", "F64"):
                    raise damaged(folder, f"{TENSORS_FILE}: {name} is {stored.get(name, 'missing')}, not F32 or F64")
            return {name: file.get_tensor(name) for name in ARRAYS}, (file.metadata() or {}).get(DETAILS)
    except SafetensorError as error:
        raise damaged(folder, f"{TENSORS_FILE}: {error}") from None


def read_details(folder: Path, text: str | None) -> dict[str, Any]:
    """Everything but the arrays, from the metadata or else from the file of an earlier minibert."""
    if text is None and not (folder / DETAILS_FILE).exists():
        raise FileNotFoundError(
            f"{folder} holds no classifier: {TENSORS_FILE} has none, and there is no {DETAILS_FILE}; "
            "`minibert classify train` makes one"
        )
    try:
        details = read_json(folder / DETAILS_FILE) if text is None else parse_json(text)
    except ValueError as error:
        raise damaged(folder, str(error)) from None
    if not isinstance(details, dict) or "format" not in details:
        raise damaged(folder, "it is not what minibert writes")
    return details


def check_details(folder: Path, details: dict[str, Any], recipe: tuple[str, ...]) -> None:
    """Raise ValueError for a later format, and for an entry that is missing or of another kind."""
    if details["format"] != FORMAT:
        raise ValueError(
            f"the classifier in {folder} has format {shown(details['format'])}, this minibert reads {FORMAT}; "
            "update minibert, or train it again"
        )
    if absent := [name for name in (*ENTRIES, *recipe) if name not in details]:
        raise damaged(folder, f"it lacks {', '.join(absent)}")
    for name, is_right in ENTRIES.items():
        if not is_right(details[name]):
            raise damaged(folder, f"{name} is {shown(details[name])}")


def check_arrays(folder: Path, arrays: Arrays, classes: int) -> None:
    """Raise ValueError for arrays that do not fit each other or the labels, or that hold NaN or infinity."""
    width = arrays["mean"].size
    rows = 1 if classes == 2 else classes  # two classes share one row of coefficients
    expected = {"mean": (width,), "scale": (width,), "coef": (rows, width), "intercept": (rows,)}
    for name, shape in expected.items():
        if arrays[name].shape != shape:
            raise damaged(folder, f"{classes} labels and {width} columns need {name} {shape}, not {arrays[name].shape}")
        if not np.isfinite(arrays[name]).all():
            raise damaged(folder, f"{name} holds NaN or infinity")
    if not (arrays["scale"] > 0).all():
        raise damaged(folder, "scale holds a number that is not above 0")


def digest(arrays: Arrays) -> str:
    """The SHA-256 of the numbers, array by array."""
    return hashlib.sha256(b"".join(arrays[name].tobytes() for name in ARRAYS)).hexdigest()


def damaged(folder: Path, what: str) -> ValueError:
    """The error for a folder that is not as `write` left it."""
    return ValueError(f"the classifier in {folder} is damaged ({what}); train it again")
