"""Texts to features: the same vectors as a step of a scikit-learn pipeline, each text encoded once.

Vectors are cached by text, in this process or in a folder for all processes. A cached row is the bytes of one float32
vector, on disk with a checksum. Its key is the sha256 of everything that determines it: settings and text.
"""

import hashlib
import json
import sqlite3
import threading
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, fields
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import assert_all_finite, check_consistent_length
from sklearn.utils.validation import check_is_fitted

from minibert.tables.texts import TEXTS, are_pairs, as_texts_or_pairs
from minibert.utils.files import AnyPath, user_path
from minibert.utils.printing import progress_bar
from minibert.utils.settings import with_settings
from minibert.vectors.embedder import Embedder
from minibert.vectors.readable import Matrix
from minibert.vectors.recipe import Recipe


class MemoryRows:
    """Rows of this process, shared by its estimators; the oldest are dropped beyond `limit` bytes.

    The default is 87,000 vectors of width 768.
    """

    def __init__(self, limit: int = 256 * 2**20) -> None:
        self.limit = limit
        self.rows: dict[bytes, bytes] = {}
        self.lock = threading.Lock()

    def read(self, keys: set[bytes]) -> dict[bytes, bytes]:
        """Return the rows that are there."""
        with self.lock:
            return {key: self.rows[key] for key in keys & self.rows.keys()}

    def write(self, rows: dict[bytes, bytes]) -> None:
        """Add rows."""
        with self.lock:
            self.rows |= rows
            size = sum(map(len, self.rows.values()))
            while size > self.limit:
                size -= len(self.rows.pop(next(iter(self.rows))))


class DiskRows:
    """Rows in one SQLite file in a folder, which any number of processes may use at once; delete it to empty it.

    If the file cannot be read or written (no rights, disk full, damaged), one warning says so and nothing is kept.
    """

    def __init__(self, folder: AnyPath) -> None:
        self.path = user_path(folder) / "rows.sqlite"
        self.usable = True

    def read(self, keys: set[bytes]) -> dict[bytes, bytes]:
        """Return the rows that are there and whole."""
        command = "SELECT vector FROM rows WHERE key = ?"
        stored = self._run(lambda db: [(key, row) for key in keys for (row,) in db.execute(command, (key,))])
        return {key: row[:-4] for key, row in stored if isinstance(row, bytes) and row == with_checksum(key, row[:-4])}

    def write(self, rows: dict[bytes, bytes]) -> None:
        """Add rows, all of them or none."""
        if self.usable:
            new = [(key, with_checksum(key, row)) for key, row in rows.items()]
            self._run(lambda database: database.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?)", new))

    def _run(self, action: Callable[[sqlite3.Connection], Iterable[tuple[bytes, bytes]]]) -> list[tuple[bytes, bytes]]:
        """Return the result of one transaction by a new connection: none may outlive a fork."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=30)) as database, database:  # seconds to wait for a writer
                database.execute("CREATE TABLE IF NOT EXISTS rows (key BLOB PRIMARY KEY, vector BLOB)")
                return list(action(database))
        except (OSError, sqlite3.Error, UnicodeError) as error:  # the last: SQLite's message quotes damaged bytes
            self.usable = False
            warnings.warn(
                f"the cache {self.path} cannot be used ({error}): vectors are computed and not kept; "
                "make the folder writable, or delete the file if it is damaged",
                stacklevel=2,
            )
            return []


MEMORY = MemoryRows()


def with_checksum(key: bytes, row: bytes) -> bytes:
    """Return a row with the checksum of its key and itself, of 4 bytes."""
    return row + zlib.crc32(key + row).to_bytes(4)


# scikit-learn ships no types.
class TextFeatures(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A scikit-learn transformer from a column of texts, or two of pairs, to a matrix (N, width) of float32.

        make_pipeline(TextFeatures("distilbert-base-uncased"), StandardScaler(), LogisticRegression(max_iter=1000))

    Texts are a list, an array, a Series, or a frame of one column. Pairs are a 2-D array of two columns of texts, or a
    frame whose second column is called as second texts are, such as sentence2 or passage: another may be a language or
    a label, and is refused, as are three columns. From a frame with labels pass only frame["text"].
    model is a Hub name or a folder, device as for `embed`; the other settings are a Recipe's. cache: None keeps the
    last 256 MiB of vectors in this process, so that a grid search encodes each text once; a folder keeps all of them on
    disk, for every process that uses it. A cached vector may come from another batch or device (a difference of about
    1e-6).

    The model is loaded at the first fit, once for all estimators of the process. A pickle holds settings and hashes,
    no weights; it refuses other weights or another tokenizer than it was fitted with.

    After fit: n_features_out_ (the width), weights_sha256_, tokenizer_fingerprint_, pairs_ (True for pairs), recipe_
    (with what the checkpoint's files stated then for pooling "auto").
    After a transform that computed anything: stats_, with the counts .truncated, .windowed and .windows.
    """

    @with_settings()
    def __init__(
        self,
        model: AnyPath = "distilbert-base-uncased",
        *,
        device: str | torch.device = "auto",
        cache: AnyPath | None = None,
        pooling: str = "auto",
        layers: int | Sequence[int] = (-1,),
        combine: str = "concat",
        precision: str = "float32",
        long: str = "cut",
        stride: int | None = None,
        missing: str = "error",
        batch_tokens: int | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        max_length: int | None = None,
    ) -> None:
        self.model = model
        self.device = device
        self.cache = cache
        self.pooling = pooling
        self.layers = layers
        self.combine = combine
        self.precision = precision
        self.long = long
        self.stride = stride
        self.missing = missing
        self.batch_tokens = batch_tokens
        self.normalize = normalize
        self.dimensions = dimensions
        self.max_length = max_length

    @classmethod
    def of(cls, embedder: Embedder, pairs: bool = False) -> Self:
        """Return features with the embedder's vectors, fitted without texts. pairs: True for pairs of texts."""
        features = cls(embedder.model, device=embedder.device, **asdict(embedder.recipe))  # type: ignore[arg-type]
        features._learn(embedder, pairs)  # fails for an Encoder, which has no hashes
        return features

    @property
    def recipe(self) -> Recipe:
        """The settings of the vectors; after fit with what the checkpoint's files stated for pooling "auto".

        Raises ValueError or TypeError for settings that are not possible.
        """
        return self.recipe_ if self.pooling == "auto" and hasattr(self, "recipe_") else self._settings()

    def fit(self, X: object, y: object = None) -> Self:
        """Check settings, texts and labels, and load the model; nothing is learned and no text is encoded.

        Raises what `embed` raises, and ValueError for a different number of labels or NaN among them.
        """
        embedder = Embedder(self.model, self._settings(), self.device)
        rows = as_texts_or_pairs(X, missing=self.missing)
        if y is not None:
            check_consistent_length(rows, y)
            assert_all_finite(y, input_name="y")
        self._learn(embedder, are_pairs(rows))
        return self

    def transform(self, X: object) -> Matrix:
        """Return one vector per text, (N, width) float32, in the order of the texts.

        Raises NotFittedError before fit; ValueError for another checkpoint than at fit, and for pairs instead of texts
        or the reverse; and what `embed` raises.
        """
        check_is_fitted(self)
        embedder = Embedder(self.model, self.recipe, self.device)
        embedder.expected = {"weights": self.weights_sha256_, "tokenizer": self.tokenizer_fingerprint_}
        rows = as_texts_or_pairs(X, missing=self.missing)
        if rows and are_pairs(rows) != self.pairs_:
            given, fitted = ("single texts", "pairs") if self.pairs_ else ("pairs", "single texts")
            raise ValueError(f"these are {given}, and it was fitted on {fitted}; pass {fitted}, or fit again")

        store = MEMORY if self.cache is None else DiskRows(self.cache)
        settings = hashlib.sha256(json.dumps(list(embedder.identity.values())).encode()).digest()
        keys = [hashlib.sha256(settings + json.dumps(text).encode()).digest() for text in rows]
        known = store.read(set(keys))
        new = list({key: number for number, key in enumerate(keys) if key not in known}.values())  # each text once
        if new:
            tokens = embedder.ids(rows)  # all, so that the tokenizer's warnings count the caller's rows
            embedder.warn(tokens.stats)
            self.stats_ = tokens.stats
        starts = range(0, len(new), TEXTS)
        for start in progress_bar(starts, "features", unit="chunk", show=len(starts) > 1):
            some = new[start : start + TEXTS]
            vectors = embedder.vectors(tokens.take(some), some, progress=True)
            computed = {keys[number]: vector.tobytes() for number, vector in zip(some, vectors, strict=True)}
            store.write(computed)
            known |= computed
        return np.frombuffer(bytearray().join(known[key] for key in keys), np.float32).reshape(
            len(rows), embedder.width
        )

    def fit_transform(self, X: object, y: object = None) -> Matrix:
        """Fit, then transform; a generator is read once."""
        texts = list(X) if isinstance(X, Iterator) else X
        return self.fit(texts, y).transform(texts)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False  # of numbers; two columns of texts are pairs
        tags.input_tags.allow_nan = self.missing == "empty"
        tags.transformer_tags.preserves_dtype = []  # text in, float32 out
        return tags

    def _settings(self) -> Recipe:
        """Return the parameters as a Recipe."""
        return Recipe(**{setting.name: getattr(self, setting.name) for setting in fields(Recipe)})

    def _learn(self, embedder: Embedder, pairs: bool) -> None:
        """Set the attributes of a fitted transformer."""
        self.pairs_ = pairs
        self.recipe_ = embedder.recipe
        self.n_features_out_ = embedder.width
        self._n_features_out = embedder.width  # for get_feature_names_out
        self.weights_sha256_ = embedder.hashes["weights"]
        self.tokenizer_fingerprint_ = embedder.hashes["tokenizer"]
