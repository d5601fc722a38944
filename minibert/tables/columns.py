"""The columns of a table: how one is requested, and which of a file's names is meant."""

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence

from minibert.tables.texts import TEXT_COLUMNS


class Column:
    """A requested column: by name, by number from 1, or by one of its usual names if `name` is None.

    role: in messages: column, text, pair or label. blank: an empty cell is allowed: the text has none of the labels.
    """

    def __init__(
        self, role: str, name: str | int | None = None, usual: tuple[str, ...] = TEXT_COLUMNS, blank: bool = False
    ) -> None:
        self.role = role
        self.name = None if name is None else str(name)
        self.usual = usual
        self.blank = blank


def names_in(record: Mapping[str, object]) -> list[str]:
    """Return the names in an object, and in objects within it: review, review.body."""
    below = {name: names_in(value) if isinstance(value, dict) else [] for name, value in record.items()}
    return list(dict.fromkeys(f"{name}.{one}" if one else name for name in below for one in ("", *below[name])))


def nested(record: object, name: str) -> object:
    """Return the value of a name that names_in returned; None if there is none."""
    if not isinstance(record, dict) or name in record:
        return record[name] if isinstance(record, dict) else None
    outer = (start for start in record if name.startswith(f"{start}."))
    return next(
        (value for start in outer if (value := nested(record[start], name[len(start) + 1 :])) is not None), None
    )


def names_of(columns: Sequence[Column], names: Sequence[str]) -> list[str | None]:
    """Return each column's name as the file writes it, None for one that has no usual name there.

    Blanks around a name and the case of a usual one do not matter.
    """
    usual = {name.strip().lower(): name for name in reversed(names)}  # the first of equal ones
    written = {as_written(name): name for name in reversed(names)}
    return [
        next((usual[candidate] for candidate in column.usual if candidate in usual), None)
        if column.name is None
        else written.get(as_written(column.name), column.name)
        for column in columns
    ]


def as_written(name: str) -> str:
    """Return a name without blanks around it, each umlaut as one character."""
    return unicodedata.normalize("NFC", name.strip())


def has_header(columns: Sequence[Column], first: Sequence[str]) -> bool:
    """Return whether the first row is a header: a name is requested, or it has all the usual names."""
    if requested := [column.name for column in columns if column.name is not None]:
        return not all(name.isdecimal() for name in requested)
    return len(columns) == 1 or all(names_of(columns, first))


def find_columns(
    columns: Sequence[Column], names: Sequence[str], where: str, first: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the name of each requested column in a file with these names.

    A column that is not requested by name is the only one; in a table without a header, whose first row is `first`, the
    columns left over are used in order. Raises ValueError for a column that is missing, ambiguous or requested twice.
    """
    wanted = names_of(columns, names)
    taken = {name for name, column in zip(wanted, columns, strict=True) if column.name}
    left = [name for name in names if name not in taken]
    unnamed = sum(column.name is None for column in columns)
    spare = iter(left if (first or len(columns) == 1) and len(left) == unnamed else ())
    counts = Counter(names)
    chosen: dict[str, Column] = {}
    for column, written in zip(columns, wanted, strict=True):
        name = written or next(spare, "")
        if name in chosen or counts[name] != 1:
            what = repr(name) if name else " or ".join(column.usual)
            count = "only one" if name in chosen else "more than one" if name in names else "no"
            if first and not any(one.name for one in columns):
                either = f"{listed(first)}; if these are no names, choose a number from 1 to {len(first)}"
            else:
                either = listed(names) + " (without a header, columns have numbers)" * bool(first)
            raise ValueError(f"{where} has {count} column {what}; choose as {column.role} one of: {either}")
        chosen[name] = column
    return tuple(chosen)


def listed(names: Sequence[str]) -> str:
    """Return names for a message: the first ten, each cut to 40 characters."""
    first = ", ".join(repr(name if len(name) <= 40 else name[:37] + "...") for name in names[:10])
    return (first or "none") + (f" and {len(names) - 10} more" if len(names) > 10 else "")
