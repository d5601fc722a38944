"""How a .npy file of vectors was made: a small JSON file beside it, corpus.npy.json for corpus.npy.

{"minibert": version, "model", "recipe": {...}, "identity": {hashes, ...}, "texts": {"path", "column", ...} or null}
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from minibert import __version__
from minibert.utils.files import read_json, user_path, write_text_atomically
from minibert.utils.outputs import OTHER
from minibert.vectors.embedder import Embedder


@dataclass(frozen=True)
class Origin:
    """What made the vectors of a file."""

    model: str
    recipe: dict[str, Any]  # the fields of a Recipe
    identity: dict[str, Any]  # Embedder.identity
    texts: dict[str, Any] | None  # the path of the texts and how they are read; None: they were not a file

    @classmethod
    def of(cls, embedder: Embedder, texts: dict[str, Any] | None) -> Origin:
        """Return the origin of what this embedder makes."""
        model = os.fspath(embedder.model) if isinstance(embedder.model, str | os.PathLike) else ""
        folder = user_path(model).absolute()  # the same from any other folder
        return cls(str(folder) if folder.is_dir() else model, asdict(embedder.recipe), embedder.identity, texts)

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
        """Return what is written beside a .npy file; None if nothing is. Raises ValueError if it is damaged."""
        if not cls.place(vectors).exists():
            return None
        found = read_json(cls.place(vectors))
        found.pop("minibert", None)
        try:
            return cls(**found)
        except TypeError:
            raise ValueError(f"{cls.place(vectors)} is damaged; embed the texts again") from None
