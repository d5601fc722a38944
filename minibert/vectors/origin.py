"""How a .npy file of vectors was made: a small JSON file beside it, corpus.npy.json for corpus.npy.

{"minibert": version, "model", "recipe": {...}, "identity": {hashes, ...}, "texts": {"path", "column", ...} or null,
 "hashes": [[4096, hashes of the first texts], ...]}
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from minibert import __version__
from minibert.tables.formats import FileSettings
from minibert.utils.files import read_json, user_path, write_text_atomically
from minibert.utils.outputs import OTHER
from minibert.utils.printing import brief
from minibert.utils.settings import type_of
from minibert.vectors.embedder import Embedder
from minibert.vectors.parts import BLOCK, DIGITS, Parts
from minibert.vectors.recipe import Recipe

PLACE = ("path", "column", "column2")  # of texts; their other settings are FileSettings


@dataclass(frozen=True)
class Origin:
    """What made the vectors of a file."""

    model: str
    recipe: dict[str, Any]  # the fields of a Recipe
    identity: dict[str, Any]  # Embedder.identity
    texts: dict[str, Any] | None  # the path of the texts and how they are read; None: they were not a file
    hashes: list[Any] = field(default_factory=list)  # of each part: the number of texts, and hashes_of them

    @classmethod
    def of(cls, embedder: Embedder, texts: dict[str, Any] | None, parts: Parts) -> Origin:
        """Return the origin of what this embedder makes."""
        model = os.fspath(embedder.model) if isinstance(embedder.model, str | os.PathLike) else ""
        folder = user_path(model).absolute()  # the same from any other folder
        hashes = [[stats.texts, parts.hashes[number]] for number, stats in sorted(parts.stats.items())]
        name = str(folder) if folder.is_dir() else model
        return cls(name, asdict(embedder.recipe), embedder.identity, texts, hashes)

    def check_types(self) -> None:
        """Raise TypeError or ValueError for values that embed does not write."""
        for one in fields(self):
            kind, optional = type_of(Origin, one.name)
            if not isinstance(value := getattr(self, one.name), kind) and not (optional and value is None):
                raise TypeError(f"{one.name} is {brief(value)}")
        Recipe(**self.recipe)
        if self.texts is not None and not isinstance(self.texts.get("path"), str):
            raise TypeError("texts has no path")
        FileSettings(**{name: value for name, value in (self.texts or {}).items() if name not in PLACE})
        if not all(len(hashes) == DIGITS * -(-rows // BLOCK) for rows, hashes in self.hashes):
            raise TypeError("hashes are not of texts")

    @staticmethod
    def place(vectors: Path) -> Path:
        """Return the path of the JSON file beside a .npy file."""
        return vectors.with_name(f"{vectors.name}.json")

    @classmethod
    def check(cls, vectors: Path) -> None:
        """Raise ValueError if the place beside the .npy file is taken by a file that minibert did not write."""
        place = cls.place(vectors)
        if not place.exists():
            return
        try:
            ours = "minibert" in read_json(place)
        except ValueError:
            ours = False
        if not ours:
            raise ValueError(f"{place} is there already, and minibert would write how the vectors were made; {OTHER}")

    def write(self, vectors: Path) -> None:
        """Write the JSON file beside a .npy file."""
        write_text_atomically(
            self.place(vectors), json.dumps({"minibert": __version__} | asdict(self), indent=1) + "\n"
        )

    @classmethod
    def read(cls, vectors: Path) -> Origin | None:
        """Return what is written beside a .npy file; None if nothing is. Raises ValueError if it is damaged.

        Earlier versions wrote no hashes.
        """
        if not cls.place(vectors).exists():
            return None
        found = read_json(cls.place(vectors))
        found.pop("minibert", None)
        try:
            origin = cls(**found)
            origin.check_types()
        except (TypeError, ValueError) as error:
            raise ValueError(f"{cls.place(vectors)} is damaged ({error}); embed the texts again") from None
        return origin
