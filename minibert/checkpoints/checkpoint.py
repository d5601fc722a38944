"""A checkpoint that was found and opened: its config, its tensors, its task heads, each read once.

A weights file is a list of named tensors. Here they have their official names without the prefixes that wrappers and
relatives put before them; `load` gives them the names of our modules.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from minibert.config import Config
from minibert.families import FAMILIES
from minibert.heads import HEAD_CLASSES
from minibert.storage import hub
from minibert.storage.tensor_files import StoredTensor, list_tensors, sha256_of
from minibert.utils.files import AnyPath
from minibert.utils.printing import cut

# TensorFlow calls the weight and bias of LayerNorm gamma and beta; only these exact endings are renamed.
LAYER_NORM_ENDINGS = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))
WRAPPERS = ("module.", "_orig_mod.")  # of DataParallel and torch.compile


@dataclass(frozen=True)
class Checkpoint(os.PathLike[str]):
    """A folder with config.json and weights, by its Hub name or path. Checkpoints of the same folder are equal.

    Every function that reads a checkpoint by name also reads one that is open, so that a command opens it once. What
    its files hold is read when it is first needed, and kept: open it again when they have changed.
    """

    name: str = field(compare=False)  # as it was asked for
    folder: Path
    origin: str = field(compare=False)  # where it was found, in words

    @classmethod
    def open(cls, name: AnyPath) -> Checkpoint:
        """Find a checkpoint by Hub name or folder, or return one that is open. Raises what hub.locate raises."""
        return name if isinstance(name, cls) else cls(*hub.locate(name))

    def __fspath__(self) -> str:
        return str(self.folder)

    def __str__(self) -> str:
        return self.name

    @cached_property
    def config(self) -> Config:
        """The config. Raises what Config.from_file raises."""
        return Config.from_file(self.folder / "config.json")

    @cached_property
    def tensors(self) -> dict[str, StoredTensor]:
        """The tensors by bare name. Raises what list_tensors raises, and ValueError if two have the same bare name."""
        tensors: dict[str, StoredTensor] = {}
        for stored in list_tensors(self.folder).values():
            if (other := tensors.setdefault(bare_name(stored.name), stored)) is not stored:
                raise ValueError(
                    f"{self.folder} has both {cut(other.name)} and {cut(stored.name)}, which are one tensor: ambiguous"
                )
        return tensors

    @cached_property
    def weights_sha256(self) -> str:
        """The SHA-256 of the weights; of several files, of their SHA-256s in order."""
        return sha256_of(stored.file for stored in self.tensors.values())

    def has_head(self, head: str) -> bool:
        """Return whether the weights of this task head are in the file. Raises what `tensors` and `config` raise."""
        family = self.config.family
        needed = dict(HEAD_CLASSES[head].names_in(family)) if head in HEAD_CLASSES else {}
        if self.config.tie_word_embeddings and not self.config.architecture.decoder_bias:
            needed.pop("decoder", None)  # which has no tensor of its own
        modules = {family.second_names.get(name, name).rpartition(".")[0] for name in self.tensors}
        return bool(needed) and modules.issuperset(needed.values())

    @cached_property
    def head(self) -> str | None:
        """The task head that config.json names and whose weights are there; None if there is none."""
        return next(filter(self.has_head, self.named_heads()), None)

    def named_heads(self) -> Iterator[str]:
        """Yield the task heads of the classes that config.json names."""
        named = self.config.extra.get("architectures")
        classes = tuple(map(str, named)) if isinstance(named, list) else ()
        for head, head_class in HEAD_CLASSES.items():
            if any(name.endswith(head_class.upstream) for name in classes):
                yield head


def bare_name(name: str) -> str:
    """Return the name without prefixes of wrappers and relatives; gamma and beta become weight and bias."""
    prefixes = (*WRAPPERS, *(family.prefix for family in FAMILIES.values()))
    while prefix := next((p for p in prefixes if name.startswith(p)), ""):
        name = name.removeprefix(prefix)
    for old, new in LAYER_NORM_ENDINGS:
        if f".{name}".endswith(f".{old}"):
            name = name.removesuffix(old) + new
    return name
