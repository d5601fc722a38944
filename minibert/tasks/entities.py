"""Entities: the stretches of words that tags mark, and how well they are found, as the CoNLL shared tasks count it.

    B-person I-person O B-location  ->  person 0:2, location 3:4

An entity counts as found where type, first and last word are right, all three. A tag is a prefix and a type: B- begins
an entity, I- is inside of one, E- ends it, S- stands alone (BILOU writes L- and U-), O is outside. Tags may be wrong,
as predictions are, so every sequence is read, by the rules of conlleval and of seqeval's default: what is inside of
nothing begins an entity, and so does another type. That reads IOB1, IOB2, IOBES and BILOU alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from minibert.printing import table
from minibert.tasks.metrics import ClassScore, f1, share

OUTSIDE = "O"
PREFIXES = {"B": "B", "I": "I", "E": "E", "S": "S", "L": "E", "U": "S"}


class Entity(NamedTuple):
    """Words first .. end - 1."""

    type: str
    first: int
    end: int


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of one sentence, from the tags of its words."""
    found, first = [], 0
    before, type_before = OUTSIDE, ""
    for place, tag in enumerate([*tags, OUTSIDE]):
        prefix, type = prefix_and_type(tag)
        goes_on = prefix in ("I", "E") and before in ("B", "I") and type == type_before
        if not goes_on:
            if before != OUTSIDE:
                found.append(Entity(type_before, first, place))
            first = place
        before, type_before = prefix, type
    return found


def prefix_and_type(tag: str) -> tuple[str, str]:
    """B-creative-work is B and creative-work. A tag without a prefix is a type, and equal ones in a row one entity."""
    prefix, dash, type = tag.partition("-")
    if tag == OUTSIDE:
        return OUTSIDE, ""
    if prefix in PREFIXES and (dash or not type):
        return PREFIXES[prefix], type
    return "I", tag


# ---------------------------------------------------------------------------------------------------------------
# Scores


def score_entities(
    true: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> tuple[ClassScore, dict[str, ClassScore]]:
    """The score of all entities together, and of each type that is true or predicted; rows are true entities."""
    wanted, given, right = Counter[str](), Counter[str](), Counter[str]()
    for tags, guesses in zip(true, predicted, strict=True):
        there, said = set(entities(tags)), set(entities(guesses))
        wanted.update(entity.type for entity in there)
        given.update(entity.type for entity in said)
        right.update(entity.type for entity in there & said)
    types = {type: score(right[type], given[type], wanted[type]) for type in sorted(wanted | given)}
    return score(right.total(), given.total(), wanted.total()), types


def score(right: int, given: int, wanted: int) -> ClassScore:
    """Precision, recall and F1 from counts."""
    return ClassScore(share(right, given), share(right, wanted), f1(right, given, wanted), wanted)


def entity_table(together: ClassScore, types: dict[str, ClassScore]) -> str:
    """A row for each type, the last for all."""
    rows = [
        [name, f"{one.precision:.3f}", f"{one.recall:.3f}", f"{one.f1:.3f}", f"{one.rows:,}"]
        for name, one in [*types.items(), ("all", together)]
    ]
    return table([["entity", "precision", "recall", "F1", "entities"], *rows])
