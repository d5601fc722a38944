"""An older folder into one that is read everywhere: its pickle becomes safetensors, on the user's word.

    pytorch_model.bin -> torch's weights-only unpickler -> tensors by name, each once -> model.safetensors

A pickle is a program for a small machine that builds objects, and it may call any function on its way. torch's
weights-only unpickler knows no function but those that build tensors, and stops at every other. What comes out is
checked before it is believed, and the new folder appears whole or not at all.
"""

from __future__ import annotations

import json
import re
import shutil
import warnings
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minibert.checkpoints.hub import TOKENIZER_FILES, locate
from minibert.checkpoints.names import bare_name, name_in_file
from minibert.checkpoints.tensor_files import (
    INDEX_FILE,
    PICKLES,
    WEIGHTS_FILE,
    list_tensors,
    listing,
    read_index,
    write_tensors,
)
from minibert.config import Config
from minibert.files import atomic_folder, check_output, read_json, regular, write_text_atomically
from minibert.printing import brief

TENSORFLOW, FLAX = ("TensorFlow", "from_tf=True"), ("Flax", "from_flax=True")
OTHER_FRAMEWORKS = {"*.h5": TENSORFLOW, "*.ckpt*": TENSORFLOW, "*.msgpack": FLAX}
FILES = (WEIGHTS_FILE, "config.json", *TOKENIZER_FILES)  # of the folder that is written
WEIGHTS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
NO_WEIGHTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)  # positions and the like


@dataclass
class Converted:
    """What became of a folder: what was read and written, and every entry that was left out, with the reason."""

    folder: Path
    out: Path
    model_type: str
    read: list[str] = field(default_factory=list)  # files of weights
    written: list[str] = field(default_factory=list)
    tensors: int = 0
    left_out: dict[str, str] = field(default_factory=dict)


def convert(name: str | Path, out: str | Path, *, model_type: str | None = None, overwrite: bool = False) -> Converted:
    """Write the checkpoint, a folder or the name of a local one, as safetensors into the new folder `out`.

    model_type: for a config.json that states none; the new one does. overwrite: replace what minibert wrote in `out`.
    The tensors keep their names. Raises FileNotFoundError where there is nothing to convert, ValueError for an `out`
    that holds something, for a pickle that would run code, for one that is damaged or holds no tensors, and for what
    Config refuses.
    """
    out = Path(out)
    check_out(out, overwrite, FILES, apart=[name])
    refuse_other_frameworks(Path(name))
    folder = locate(name, download=False).folder
    check_output(out, overwrite, files=FILES, apart=[folder])
    refuse_other_frameworks(folder)
    config = Config.from_file(folder / "config.json", model_type)
    done = Converted(folder, out, config.model_type)
    with atomic_folder(out, overwrite) as temporary:
        if holds_safetensors(folder):
            copy_safetensors(folder, temporary, done)
        else:
            write_tensors(temporary / WEIGHTS_FILE, read_pickles(folder, config, done))
        stated = read_json(folder / "config.json") | {"model_type": config.model_type}
        write_text_atomically(temporary / "config.json", json.dumps(stated, indent=2, ensure_ascii=False) + "\n")
        for file in TOKENIZER_FILES:
            if (folder / file).exists():
                shutil.copyfile(regular(folder / file), temporary / file)
        done.tensors = len(list_tensors(temporary))
        done.written = sorted(path.name for path in temporary.iterdir())
    return done


# ---------------------------------------------------------------------------------------------------------------
# What is refused before anything is read


def check_out(out: Path, overwrite: bool, files: Iterable[str], apart: Iterable[str | Path] = ()) -> None:
    """Raise for a folder that cannot be made, and what check_output raises."""
    check_output(out, overwrite, files=files, apart=apart)
    if not out.absolute().parent.is_dir():
        raise FileNotFoundError(f"--out is {out}, and there is no folder {out.absolute().parent}")


def refuse_other_frameworks(folder: Path) -> None:
    """Raise ValueError for a folder whose only weights are those of TensorFlow or Flax."""
    if any((folder / name).exists() for name in (WEIGHTS_FILE, INDEX_FILE, *PICKLES)):
        return
    for pattern, (framework, argument) in OTHER_FRAMEWORKS.items():
        if file := next(iter(sorted(folder.glob(pattern))), None):
            raise ValueError(
                f"{file} is a checkpoint of {framework}, which is not read here; transformers 4, with {framework} "
                f"beside it, turns it into safetensors: from_pretrained(..., {argument}), then save_pretrained"
            )


def holds_safetensors(folder: Path) -> bool:
    """Whether the weights need no conversion. Raises ValueError where nothing else does, either."""
    if not any((folder / name).exists() for name in (WEIGHTS_FILE, INDEX_FILE)):
        return False
    if read_json(folder / "config.json").get("model_type"):
        raise ValueError(f"{folder} has safetensors and a model_type already: nothing to convert, minibert loads it")
    return True


def copy_safetensors(folder: Path, out: Path, done: Converted) -> None:
    """The weights as they are: only config.json lacked something."""
    files = {tensor.file.name for tensor in list_tensors(folder).values()}
    done.read = sorted(files)
    for file in files | ({INDEX_FILE} if not (folder / WEIGHTS_FILE).exists() else set()):
        shutil.copyfile(regular(folder / file), out / file)


# ---------------------------------------------------------------------------------------------------------------
# The pickle


def read_pickles(folder: Path, config: Config, done: Converted) -> dict[str, Tensor]:
    """The tensors of the folder's pickle or shards, ready to be written; what else was in there goes to `left_out`."""
    pickle = next((name for name in PICKLES if (folder / name).exists()), None)
    if pickle is None:
        raise FileNotFoundError(f"{folder} has no weights: none of {', '.join(PICKLES)}; it holds: {listing(folder)}")
    done.read = sorted(set(read_index(folder / pickle).values())) if pickle.endswith(".json") else [pickle]
    tensors: dict[str, Tensor] = {}
    for file in done.read:
        path = folder / file
        for name, value in unpickle(path).items():
            if not isinstance(name, str) or name in tensors:
                raise ValueError(f"{path}: {brief(name)} is no name of a tensor, or stands in two shards")
            if isinstance(value, Tensor):
                tensors[name] = checked(path, name, value.detach())
            else:
                done.left_out[name] = f"no tensor but of type {type(value).__name__}"
    if not tensors:
        held = ", ".join([*done.left_out][:8]) or "nothing"
        raise ValueError(f"{folder / done.read[0]} holds no tensors by name; it holds: {held}")
    drop_tied(tensors, config, done)
    check_size(tensors, folder, done)
    return apart(tensors)


def apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each in memory of its own, as safetensors has it: two parameters that share one are written twice."""
    found: dict[str, Tensor] = {}
    memory: set[int] = set()
    for name, tensor in tensors.items():
        begins = tensor.untyped_storage().data_ptr()
        own = tensor.is_contiguous() and begins not in memory
        memory.add(begins)
        found[name] = tensor if own else tensor.clone(memory_format=torch.contiguous_format)
    return found


def unpickle(path: Path) -> dict[Any, Any]:
    """What a file of torch.save holds, the tensors mapped where that is possible.

    Raises ValueError for a file that would run code, is damaged, or holds something else than names and values.
    """
    archive = zipped(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old formats: they are why this is here
            found = torch.load(path, map_location="cpu", weights_only=True, mmap=archive)
    except MemoryError:
        raise
    except Exception as error:  # a damaged pickle makes an unpickler fail in any way that there is
        if called := re.search(r"GLOBAL (\S+)", str(error)):
            raise ValueError(f"{path} would run {called[1]} when opened, and no weight does: refused") from None
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(
            f"{path} is damaged, or was not written by torch ({reason[0][:60]}); download it again"
        ) from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds a {type(found).__name__}, not tensors by name")
    return found


def zipped(path: Path) -> bool:
    """Whether the file is an archive, as torch.save has written since 1.6. Raises ValueError for one that is none.

    torch stores its records as they are; a compressed one could hold far more than the file shows.
    """
    with regular(path, "checkpoint").open("rb") as file:
        if file.read(4) != b"PK\x03\x04":
            return False
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise ValueError(f"{path} is cut short or damaged ({error}); download it again") from None
    if any(record.filename.endswith("/constants.pkl") for record in records):
        raise ValueError(f"{path} is TorchScript, a program and not weights by name; save its state_dict() instead")
    if compressed := [record.filename for record in records if record.compress_type]:
        raise ValueError(f"{path}: its record {compressed[0]!r} is compressed, which torch.save never does: refused")
    return True


def checked(path: Path, name: str, tensor: Tensor) -> Tensor:
    """The tensor itself. Raises ValueError for a kind that safetensors has not: sparse, quantized, without values."""
    plain = tensor.layout == torch.strided and not tensor.is_quantized and tensor.device.type == "cpu"
    if not plain or tensor.dtype not in WEIGHTS + NO_WEIGHTS:
        kind = str(tensor.dtype).removeprefix("torch.") + ("" if plain else f" ({tensor.layout}, {tensor.device})")
        supported = ", ".join(str(dtype).removeprefix("torch.") for dtype in WEIGHTS + NO_WEIGHTS)
        raise ValueError(f"{path}: tensor {name} is {kind}; supported: dense {supported}")
    return tensor


def check_size(tensors: dict[str, Tensor], folder: Path, done: Converted) -> None:
    """Raise ValueError for tensors larger than their files: one number can claim to be a matrix of any size."""
    claimed = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    held = sum((folder / file).stat().st_size for file in done.read)
    if claimed > 2 * held:  # two parameters may share one memory
        raise ValueError(f"{folder / done.read[0]} has {held:,} bytes and claims tensors of {claimed:,}: refused")


def drop_tied(tensors: dict[str, Tensor], config: Config, done: Converted) -> None:
    """Leave out the decoder's weight and bias where they are the memory of others, as config.json says they are.

    transformers and minibert tie them again; the names that stay are those that both look for.
    """
    family, names = config.family, {bare_name(name): name for name in tensors}
    if not config.tie_word_embeddings:
        return
    embedding = name_in_file(family, "embeddings.token.weight")
    kept = {second: name for second, name in family.second_names.items() if name == embedding}
    kept |= {family.decoder_bias[1]: family.decoder_bias[0]}
    for second, first in kept.items():
        if second == first or second not in names or first not in names:
            continue
        one, other = tensors[names[second]], tensors[names[first]]
        if one.data_ptr() == other.data_ptr() and one.shape == other.shape and one.stride() == other.stride():
            del tensors[names[second]]
            done.left_out[names[second]] = f"tied: the same as {names[first]}"
