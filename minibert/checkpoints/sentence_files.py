"""How the vectors of a checkpoint are meant to be made, as its sentence-transformers files state it: read, written.

modules.json                        the steps, each with its type and folder: Transformer, Pooling, Normalize
1_Pooling/config.json               how the vectors of a text's tokens become one
sentence_bert_config.json           max_seq_length, to which texts are cut; newer folders have model_max_length in
                                    tokenizer_config.json instead
config_sentence_transformers.json   a text that is put before every text; how many numbers of a vector are kept
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minibert.checkpoints.checkpoint import Checkpoint
from minibert.storage.modules import TYPES, home_of, read_modules, refusal
from minibert.utils.files import AnyPath, read_json, write_text_atomically
from minibert.utils.printing import brief, cut
from minibert.utils.settings import check_number

STEPS = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
MODES = ("cls", "mean", "max")
OLDER = {  # keys of a pooling's config.json before there was "pooling_mode"
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True)
class Stated:
    """How vectors are made: max_length is in tokens, at most the model's positions; None: as many as the tokenizer.

    dimensions: the first numbers of a vector, which are kept; None: all.
    """

    pooling: str
    normalize: bool
    max_length: int | None
    dimensions: int | None = None

    def __str__(self) -> str:
        return f"pooling {self.pooling}{', normalized' * self.normalize}, at most {self.max_length} tokens"


def read_stated(name: AnyPath) -> Stated | None:
    """Return what the files of a checkpoint state; None if there is no modules.json for it.

    Raises ValueError for files that are damaged, missing or outside the folder, and for steps that minibert does not
    have.
    """
    checkpoint = Checkpoint.open(name)
    folder = checkpoint.folder
    path = home_of(folder) / "modules.json"
    if not path.exists():
        return None
    modules = read_modules(path)
    steps = [step for step, _ in modules]
    if steps not in STEPS:
        listed = cut(", ".join(steps)) or "nothing"
        raise refusal(path, f"the vectors are made by {listed}, and minibert can only do {', '.join(STEPS[1])}")
    names = [brief(place.relative_to(path.parent).as_posix()) for _, place in modules]
    if modules[0][1] != folder:
        raise refusal(path, f"its Transformer is in {names[0]}, and minibert reads that of {folder} itself")
    pooling = modules[1][1] / "config.json"
    if not os.path.isfile(pooling):  # False if the name is too long
        raise refusal(path, f"its Pooling is in {names[1]}, where there is no config.json")
    mode = pooling_mode(read_json(pooling))
    if mode not in MODES:
        raise refusal(pooling, f"its pooling is {brief(mode)}, and minibert can only do {', '.join(MODES)}")
    own = path.parent / "config_sentence_transformers.json"
    values = read_json(own) if own.exists() else {}
    check_prompt(own, values)
    return Stated(mode, len(steps) == 3, read_max_length(checkpoint), whole_number(own, "truncate_dim", values))


def pooling_mode(config: dict[str, Any]) -> Any:
    """Return the one pooling that a config.json of a Pooling names, else all of them; the mean if it names none."""
    named = config.get("pooling_mode") or [mode for key, mode in OLDER.items() if config.get(key)] or "mean"
    return named[0] if isinstance(named, list) and len(named) == 1 else named


def check_prompt(path: Path, values: dict[str, Any]) -> None:
    """Raise ValueError for a prompt that is put before every text."""
    name = values.get("default_prompt_name")
    prompts = values.get("prompts") or {}
    if not isinstance(name, str | None) or not isinstance(prompts, dict):
        raise refusal(path, '"prompts" must map names to texts, and "default_prompt_name" must be one of the names')
    if name is not None and (prompt := prompts.get(name)):
        raise refusal(path, f"it puts {brief(prompt)} before every text; put it there yourself")


def read_max_length(checkpoint: Checkpoint) -> int:
    """Return the number of tokens, special tokens included, to which texts are cut."""
    folder = checkpoint.folder
    own = next(iter(sorted(folder.glob("sentence_*_config.json"))), None)
    settings = folder / "tokenizer_config.json"
    values = [read_json(path) if path is not None and path.exists() else {} for path in (own, settings)]
    positions = checkpoint.config.max_tokens
    if own is not None and values[0].get("do_lower_case") and not values[1].get("do_lower_case"):
        raise refusal(own, "it lowercases texts (do_lower_case), and the tokenizer does not; lowercase them yourself")
    for path, key, stated in ((own, "max_seq_length", values[0]), (settings, "model_max_length", values[1])):
        if length := whole_number(path, key, stated):
            return min(length, positions)
    return positions


def whole_number(path: Path | None, key: str, values: dict[str, Any]) -> int | None:
    """Return a number of a file, None without it. Raises ValueError for anything but a number of at least 1."""
    if not (number := values.get(key)):
        return None
    try:
        check_number(f"{path}: {key}", number, float, minimum=1)
    except TypeError as error:  # the file is wrong, not the caller
        raise ValueError(str(error)) from None
    return int(number)


def write_stated(folder: Path, stated: Stated, width: int) -> None:
    """Write these files beside a checkpoint, as sentence-transformers 5 and 6 read them; width: of a vector."""
    steps = STEPS[stated.normalize]
    paths = ["", *(f"{number}_{step}" for number, step in enumerate(steps) if number)]
    own = {"max_seq_length": stated.max_length, "do_lower_case": False}
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"{TYPES}models.{step}"}
        for number, (step, path) in enumerate(zip(steps, paths, strict=True))
    ]
    files: dict[str, Any] = {
        f"{paths[1]}/config.json": {"word_embedding_dimension": width}
        | {key: mode == stated.pooling for key, mode in OLDER.items()},
        "sentence_bert_config.json": {name: value for name, value in own.items() if value is not None},
        "config_sentence_transformers.json": {
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        }
        | ({"truncate_dim": stated.dimensions} if stated.dimensions else {}),
        "modules.json": modules,
    }
    for path in paths[1:]:
        (folder / path).mkdir(exist_ok=True)
    for name, values in files.items():
        write_text_atomically(folder / name, json.dumps(values, indent=2) + "\n")
