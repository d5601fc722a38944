"""Small Parquet files of texts and of vectors, which the tests of shards and of Ray share."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from support.words import BAD, GOOD

TEXTS = [
    f"{good} {bad} {'film ' * (row % 4)}".strip() for row, (good, bad) in enumerate(zip(GOOD * 9, BAD * 9, strict=True))
]


def write_shard(path: Path, texts: Iterable[Any] = TEXTS, rows: int = 10, **columns: Any) -> Path:
    """A Parquet file with the column body, in row groups of so many rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    body = list(texts)
    pq.write_table(pa.table({"id": list(range(len(body))), "body": body} | columns), path, row_group_size=rows)
    return path


def matrix(table: pa.Table) -> np.ndarray[Any, Any]:
    return np.array(table.column("vector").to_pylist(), np.float32)
