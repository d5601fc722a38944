"""Entities: the spans of words that tags mark, and their score, counted as in the CoNLL shared tasks.

    B-person I-person O B-location  ->  person 0:2, location 3:4

An entity counts as found only if its type, first and last word are all right. A tag is a prefix and a type: B- begins
an entity, I- is inside one, E- ends it, S- is a single word (BILOU writes L- and U-), O is outside. Predicted tags may
not be well-formed, so any sequence is read by the rules of conlleval and of seqeval's default: an I- or E- after
nothing begins an entity, and so does another type. This reads IOB1, IOB2, IOBES and BILOU alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from minibert.tasks.metrics import ClassScore

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
        continues = prefix in ("I", "E") and before in ("B", "I") and type == type_before
        if not continues:
            if before != OUTSIDE:
                found.append(Entity(type_before, first, place))
            first = place
        before, type_before = prefix, type
    return found


def prefix_and_type(tag: str) -> tuple[str, str]:
    """B-creative-work is B and creative-work. A tag without a prefix is a type; equal ones in a row are one entity."""
    prefix, dash, type = tag.partition("-")
    if tag == OUTSIDE:
        return OUTSIDE, ""
    if prefix in PREFIXES and (dash or not type):
        return PREFIXES[prefix], type
    return "I", tag


def score_entities(
    true: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> tuple[ClassScore, dict[str, ClassScore]]:
    """The score over all entities, and of each type that is true or predicted; rows are true entities."""
    there, found, hits = Counter[str](), Counter[str](), Counter[str]()
    for true_tags, predicted_tags in zip(true, predicted, strict=True):
        spans, guesses = set(entities(true_tags)), set(entities(predicted_tags))
        there.update(entity.type for entity in spans)
        found.update(entity.type for entity in guesses)
        hits.update(entity.type for entity in spans & guesses)
    types = {type: ClassScore.of(hits[type], found[type], there[type]) for type in sorted(there | found)}
    return ClassScore.of(hits.total(), found.total(), there.total()), types
