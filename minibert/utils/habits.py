"""Names that people know from transformers, sentence-transformers and scikit-learn, and what is here in their place.

An error for such a name says what ours is. They are rows of data/habits.tsv: the kind of the name, the name, ours.
tutorials/HABITS.md lists all of them, with those that work as they are.
"""

import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minibert.utils.printing import did_you_mean
from minibert.utils.wording import advice

TABLE = Path(__file__).parents[1] / "data" / "habits.tsv"


def names_of(kind: str) -> dict[str, str]:
    """Return the names of one kind in TABLE, each with what is here in its place."""
    rows = [line.split("\t") for line in TABLE.read_text("utf-8").splitlines()]
    return {name: ours for of_kind, name, ours in rows if of_kind == kind}


ATTRIBUTES = names_of("attribute")  # and methods, of a class or of `minibert` itself
ARGUMENTS = names_of("argument")  # of functions and of settings: what ours is called, or a sentence
COMMANDS = names_of("command")  # of minibert: what people call it
# Kinds of names, and the name above that answers them: BertForMaskedLM is answered as AutoModelForMaskedLM.
KINDS = {
    r"[A-Z]\w*?(Model|Tokenizer|Config)(Fast)?": r"Auto\1",
    r"[A-Z]\w*?(?:Model)?(For[A-Z]\w+)": r"AutoModel\1",
    r"\w+Loss": "losses",
    r"\w+Evaluator": "evaluation",
    r"\w+TrainingArguments": "TrainingArguments",
    r"(\w*cos_sim|dot_score)": "similarity",
}


def refuse_unknown(owner: str, given: Iterable[str], known: Collection[str], what: str = "argument") -> None:
    """Raise TypeError for the first unknown name; it says what minibert calls it, or the nearest known name."""
    for name in given:
        if name not in known:
            ours = ARGUMENTS.get(name, "")
            near = argument(name) if " " in ours or ours in known else "" if ours else did_you_mean(name, known)
            raise TypeError(f"{owner} has no {what} {name}{near or '; choose from ' + ', '.join(known)}")


def argument(name: str) -> str:
    """Return the advice for an argument or option of other libraries; "" for any other name."""
    ours = ARGUMENTS.get(name, "")
    return f"; {ours}" if " " in ours else advice("; use {}", **{ours: ...}) if ours else ""


def in_place_of(name: str) -> str:
    """Return what minibert has in place of a name of other libraries; "" for any other name."""
    for kind, first in KINDS.items():
        name = name if name in ATTRIBUTES else re.sub(f"^{kind}$", first, name)
    return ATTRIBUTES.get(name, "")


def unknown_attribute(owner: str, name: str, known: Iterable[str]) -> AttributeError:
    """Return the error for a missing attribute; it says what minibert has in its place, or the nearest name."""
    ours = in_place_of(name)
    return AttributeError(f"{owner} has no attribute {name}{f'; {ours}' if ours else did_you_mean(name, known)}")


def save_pretrained(*_: object, **__: object) -> None:
    """Raise AttributeError, with our name for it, which torch's own error for a missing attribute could not say."""
    raise AttributeError(f"there is no save_pretrained; {ATTRIBUTES['save_pretrained']}")


def from_pretrained(*_: object, **__: object) -> None:
    """Raise AttributeError, whether it is called on a class or on an object."""
    raise AttributeError(f"there is no from_pretrained; {ATTRIBUTES['from_pretrained']}")


class Habits:
    """A base class whose missing attributes raise the error above."""

    from_pretrained = staticmethod(from_pretrained)

    if not TYPE_CHECKING:  # else mypy would accept any attribute

        def __getattr__(self, name: str) -> Any:
            if not in_place_of(name):
                return self.__getattribute__(name)  # raises the usual error, or that of a property
            raise unknown_attribute(type(self).__name__, name, ())
