"""Convert an older folder, whose weights are a pickle, to safetensors, at the user's request.

    pytorch_model.bin -> torch's weights-only unpickler -> tensors by name, each once -> model.safetensors

A pickle is a program for a small machine that builds objects, and it may call any function. torch's weights-only
unpickler knows only the functions that build tensors, and stops at every other. Its result is checked, and the new
folder is written atomically.
"""

import json
import re
import shutil
import warnings
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minibert.checkpoints.checkpoint import bare_name
from minibert.config import Config
from minibert.storage.hub import TOKENIZER_FILES, locate
from minibert.storage.modules import PATTERNS, home_of
from minibert.storage.tensor_files import (
    INDEX_FILE,
    PICKLES,
    WEIGHTS_FILE,
    list_tensors,
    read_index,
    write_tensors,
)
from minibert.utils.files import (
    AnyPath,
    inside,
    listing,
    parse_json,
    read_json,
    read_small,
    regular,
    user_path,
    write_text_atomically,
)
from minibert.utils.outputs import atomic_folder, check_folder
from minibert.utils.printing import Figures, brief, cut

COPIED = (*TOKENIZER_FILES, *PATTERNS)
DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),  # of positions
)


def convert(name: AnyPath, out: AnyPath, *, model_type: str | None = None, overwrite: bool = False) -> Figures:
    """Write a checkpoint, a folder or the name of a local one, as safetensors into the new folder `out`.

    model_type: for a config.json that has none; the new one has it. overwrite: replace what minibert wrote in `out`.
    The tensors keep their names; a decoder that is tied to the token embedding is the same matrix, and is written once.
    Returns both folders, the model_type, the files that were read and written, the number of tensors, and what was
    left out, with the reason. Raises FileNotFoundError if there is nothing to convert, ValueError for an `out` that
    is not empty, for a pickle that would run code, is damaged or holds no tensors, and for what Config refuses.
    """
    out = user_path(out)
    folder = locate(name, download=False).folder
    check_folder(out, overwrite, apart=[name, folder])
    config = Config.from_file(folder / "config.json", model_type)
    stated = read_json(folder / "config.json")
    done: Figures = {"folder": folder, "out": out, "model_type": config.model_type, "left_out": {}}
    with atomic_folder(out, overwrite) as temporary:
        if any((folder / file).exists() for file in (WEIGHTS_FILE, INDEX_FILE)):
            if stated.get("model_type"):
                raise ValueError(f"{folder} has safetensors and a model_type: nothing to convert, minibert loads it")
            done["read"] = sorted({tensor.file.name for tensor in list_tensors(folder).values()})
            copied = [path.name for path in folder.glob("*.safetensors*")]
        else:
            copied = []
            write_tensors(temporary / WEIGHTS_FILE, without_tied(read_pickles(folder, done), config, done["left_out"]))
        written = json.dumps(stated | {"model_type": config.model_type}, indent=2, ensure_ascii=False)
        write_text_atomically(temporary / "config.json", f"{written}\n")
        if (around := home_of(folder)) != folder:
            copy_statement(around, folder, temporary)
        copy_matching(folder, temporary, (*copied, *COPIED))
        done["tensors"] = len(list_tensors(temporary))
        paths = (path for path in temporary.rglob("*") if path.is_file())
        done["written"] = sorted(path.relative_to(temporary).as_posix() for path in paths)
    return done


def copy_matching(folder: Path, out: Path, patterns: Iterable[str]) -> None:
    """Copy the files of a folder that match one of the patterns, and those of the folders in it."""
    for path in [path for pattern in patterns for path in folder.glob(pattern)]:
        inside(folder, str(path.parent.relative_to(folder)), folder)
        file = out / path.relative_to(folder)
        file.parent.mkdir(exist_ok=True)
        shutil.copyfile(regular(path), file)


def copy_statement(around: Path, folder: Path, out: Path) -> None:
    """Copy the sentence-transformers files around a Transformer's folder; modules.json then finds it in `out`."""
    copy_matching(around, out, PATTERNS)
    modules = parse_json(read_small(around / "modules.json").decode("utf-8-sig"))
    modules = [module | {"path": "" if around / module["path"] == folder else module["path"]} for module in modules]
    write_text_atomically(out / "modules.json", json.dumps(modules, indent=2) + "\n")


def read_pickles(folder: Path, done: Figures) -> dict[str, Tensor]:
    """Return the tensors of the folder's pickle or shards; anything else in there is reported in `left_out`.

    Each is a copy, contiguous and in memory of its own, as safetensors requires.
    """
    pickle = next((name for name in PICKLES if (folder / name).exists()), None)
    if pickle is None:
        raise FileNotFoundError(
            f"{folder} has none of {', '.join(PICKLES)}; it holds: {listing(folder)}; transformers 4 converts "
            "checkpoints of TensorFlow and Flax, by from_pretrained(..., from_tf=True)"
        )
    done["read"] = sorted(set(read_index(folder / pickle).values())) if pickle.endswith(".json") else [pickle]
    tensors: dict[str, Tensor] = {}
    for file in done["read"]:
        for name, value in unpickle(folder / file).items():
            if not isinstance(value, Tensor):
                done["left_out"][str(name)] = f"not a tensor but of type {type(value).__name__}"
            elif not isinstance(name, str) or name in tensors:
                raise ValueError(f"{folder / file}: {brief(name)} is not the name of a tensor, or is in two shards")
            else:
                tensors[name] = checked_tensor(folder / file, name, value.detach())
    if not tensors:
        held = [cut(name) for name in [*done["left_out"]][:8]]
        raise ValueError(f"{folder / done['read'][0]} holds no tensors by name; it holds: {held}")
    return tensors


def without_tied(tensors: dict[str, Tensor], config: Config, left_out: dict[str, str]) -> dict[str, Tensor]:
    """Return the tensors without a decoder weight that config.json ties to the token embedding: it is the same."""
    names = {bare_name(name): name for name in tensors}
    for second, first in config.family.second_names.items() if config.tie_word_embeddings else ():
        weights = second.endswith(".weight") and {second, first} <= names.keys()
        if weights and torch.equal(tensors[names[second]], tensors[names[first]]):
            del tensors[names[second]]
            left_out[names[second]] = f"tied: the same as {names[first]}"
    return tensors


def unpickle(path: Path) -> dict[Any, Any]:
    """Return what torch.save wrote. Raises ValueError for a file that would run code, is damaged or holds no dict."""
    archive = zipfile.is_zipfile(regular(path, "checkpoint"))  # as torch.save writes since 1.6; only that can be mapped
    try:
        with warnings.catch_warnings(action="ignore"):  # about old formats
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=archive)
    except Exception as error:  # a damaged pickle makes an unpickler fail in any way
        reason = f"is damaged, or not weights of torch ({type(error).__name__}: {str(error)[:90]}); download it again"
        if called := re.search(r"GLOBAL (\S+)", str(error)):
            reason = f"would run {cut(called[1])} when opened, which no weight needs: refused"
        raise ValueError(f"{path} {' '.join(reason.split())}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, not tensors by name")
    return content


def checked_tensor(path: Path, name: str, tensor: Tensor) -> Tensor:
    """Return a contiguous copy. Raises ValueError for one that safetensors cannot hold, or larger than its memory."""
    plain = tensor.layout == torch.strided and not tensor.is_quantized and tensor.device.type == "cpu"
    if not plain or tensor.dtype not in DTYPES or tensor.nbytes > tensor.untyped_storage().nbytes():
        kind = f"{tensor.dtype}, {tensor.layout}, {tensor.device}, {tuple(tensor.shape)}".replace("torch.", "")
        raise ValueError(f"{path}: tensor {cut(name)} is {kind}; supported: dense and fully stored, real numbers")
    return tensor.clone(memory_format=torch.contiguous_format)
