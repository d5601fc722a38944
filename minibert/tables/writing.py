"""Tables that are written: rows, each a dict, to a file whose ending decides the format.

.tsv      columns separated by tabs; tabs and line ends inside a cell become spaces
.csv      columns separated by commas, quoted where needed
.jsonl    one object per line
.parquet  with pyarrow, all rows at once

The first row of a .tsv or .csv has the names of the columns. Lists and objects in their cells are JSON, null is empty.
Memory does not grow with the rows, except for .parquet. The file appears when it is complete.
"""

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from minibert.utils.files import atomic_write
from minibert.utils.printing import brief

ENDINGS = (".tsv", ".csv", ".jsonl", ".parquet")
Rows = Sequence[Mapping[str, Any]]


@contextmanager
def table_writer(path: Path) -> Iterator[Callable[[Rows], None]]:
    """Yield a function that writes rows to a table. It raises ValueError for a column that the first row lacks."""
    format = path.suffix.lower()
    rows = list[Mapping[str, Any]]()
    with atomic_write(path) as temporary:
        if format == ".parquet":
            yield rows.extend
            write_parquet(rows, temporary)
            return
        names: list[str] = []
        with temporary.open("w", encoding="utf-8", newline="") as file:
            tabs: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None}
            how, clean = (tabs, one_line) if format == ".tsv" else ({}, str)
            lines: Any = csv.writer(file, lineterminator="\n", **how)

            def write(rows: Rows) -> None:
                for row in rows:
                    if format == ".jsonl":
                        file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
                        continue
                    if not names:
                        names.extend(row)
                        lines.writerow(map(clean, names))
                    if more := row.keys() - set(names):
                        raise ValueError(
                            f"a row has {brief(min(more))}, which the first row lacks; write a .jsonl instead"
                        )
                    lines.writerow(clean(as_cell(row.get(name))) for name in names)

            yield write


def one_line(*cells: str) -> str:
    """Return cells joined by tabs; tabs and line ends inside a cell become spaces."""
    return "\t".join(re.sub(r"[\r\n\t]+", " ", cell) for cell in cells)


def as_cell(value: object) -> str:
    """Return a value as text."""
    if isinstance(value, dict | list | tuple | bool):
        return json.dumps(value, ensure_ascii=False, default=str)
    return "" if value is None else str(value)


def write_parquet(rows: Rows, path: Path) -> None:
    """Write all rows as one table. Raises ValueError or TypeError for a column of mixed types."""
    import pyarrow
    from pyarrow import parquet

    names = dict.fromkeys(name for row in rows for name in row)
    table = pyarrow.table({name: [row.get(name) for row in rows] for name in names})
    parquet.write_table(table, path)
