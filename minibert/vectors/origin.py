"""How a .npy file of vectors was made: a small JSON file beside it, corpus.npy.json for corpus.npy.

{"minibert": version, "model", "recipe": {...}, "identity": {hashes, ...}, "texts": {"path", "column", ...} or null,
 "hashes": [[64, hash of the first 64 texts], ...]}
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minibert import __version__
from minibert.tables.formats import FileSettings
from minibert.tables.texts import TextOrPair
from minibert.utils.files import read_json, user_path, write_text_atomically
from minibert.utils.outputs import OTHER
from minibert.utils.wording import advice
from minibert.vectors.embedder import Embedder
from minibert.vectors.parts import Parts, hash_of
from minibert.vectors.recipe import Recipe


@dataclass(frozen=True)
class Origin:
    """What made the vectors of a file."""

    model: str
    recipe: dict[str, Any]  # the fields of a Recipe
    identity: dict[str, Any]  # Embedder.identity
    texts: dict[str, Any] | None  # the path of the texts and how they are read; None: they were not a file
    hashes: list[list[int]]  # of parts.hashes_of, one after the other

    @classmethod
    def of(cls, embedder: Embedder, texts: dict[str, Any] | None, parts: Parts) -> Origin:
        """Return the origin of what this embedder makes."""
        model = os.fspath(embedder.model)  # type: ignore[arg-type]  # an Encoder has no identity
        folder = user_path(model).absolute()  # the same from any other folder
        hashes = [pair for number in sorted(parts.hashes) for pair in parts.hashes[number].tolist()]
        name = str(folder) if folder.is_dir() else model
        return cls(name, asdict(embedder.recipe), embedder.identity, texts, hashes)

    def changed(self, texts: Sequence[TextOrPair]) -> range:
        """Return the first rows with a hash that is not that of these texts; none if all are as embedded."""
        first = 0
        for rows, known in self.hashes:
            if hash_of(texts[first : first + rows]) != known:
                return range(first, first + rows)
            first += rows
        return range(0)

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
        try:
            values = read_json(cls.place(vectors))
            values.pop("minibert", None)
            hashes = np.array(values.pop("hashes"), np.uint32).reshape(-1, 2).tolist()
            origin = cls(**values, hashes=hashes)
            Recipe(**origin.recipe)
            how = {**(origin.texts or {"path": ""})}
            FileSettings(**{name: how[name] for name in how.keys() - {"path", "column", "column2"}})
            if not all(map(isinstance, (origin.model, origin.identity, how.get("path")), (str, dict, str))):
                raise TypeError
        except (KeyError, TypeError, ValueError, OverflowError):
            raise ValueError(
                f"{cls.place(vectors)} does not say how {vectors} was made: damaged, or of another version; embed the "
                "texts again" + advice(", or delete it and name {} and {}", model=..., texts=...)
            ) from None
        return origin
