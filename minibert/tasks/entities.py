"""Entities: the spans of words that tags mark.

    B-person I-person O B-location  ->  person 0:2, location 3:4

A tag is a prefix and a type: B- begins an entity, I- is inside one, E- ends it, S- is a single word (BILOU writes L-
and U-), O is outside. Predicted tags may not be well-formed, so any sequence is read by the rules of conlleval and of
seqeval's default: an I- or E- after nothing begins an entity, and so does another type. This reads IOB1, IOB2, IOBES
and BILOU alike. A tag without a prefix is a type; equal ones in a row are one entity.

What is a prefix depends on all tags of a model: the E of E-mail is not one unless B-mail or I-mail is a tag too.
"""

import re
from collections.abc import Iterable, Sequence

from minibert.tables.columns import listed
from minibert.tasks.metrics import ClassScore, class_scores
from minibert.tasks.names import in_order

OUTSIDE = "O"
PREFIXES = {"O": "O", "B": "B", "I": "I", "E": "E", "S": "S", "L": "E", "U": "S"}
LATER = ("E-", "L-", "S-", "U-")  # besides B- and I-
STYLES = re.compile(r"(?P<prefix>[BIESLU])_(?P<type>.+)"), re.compile(r"(?P<type>.+)[-_](?P<prefix>[BIESLU])")

Entity = tuple[str, int, int]  # its type, and its words: first .. end - 1


def entities(tags: Sequence[str]) -> list[Entity]:
    """Return the entities of one sentence, from the tags of its words in their standard form."""
    complete: list[Entity] = []
    first = 0
    before = OUTSIDE
    type_before = ""
    for place, tag in enumerate([*tags, OUTSIDE]):
        prefix, type = prefix_and_type(tag)
        if prefix not in ("I", "E") or before not in ("B", "I") or type != type_before:  # it does not continue
            if before != OUTSIDE:
                complete.append((type_before, first, place))
            first = place
        before, type_before = prefix, type
    return complete


def prefix_and_type(tag: str) -> tuple[str, str]:
    """Return B and creative-work for B-creative-work. A tag without a prefix is a type, inside an entity."""
    prefix, dash, type = tag.partition("-")
    if prefix in PREFIXES and (dash or not type):
        return PREFIXES[prefix], type
    return "I", tag


def standard_tags(tags: Iterable[str]) -> dict[str, str]:
    """Return each of a model's tags in the standard form, B-person.

    B_person and person-B become B-person if all tags but O are written like this and a type has both B and I. E-mail
    becomes a type, I-E-mail, if neither B-mail nor I-mail is a tag; so does S-Bahn, if other tags have no prefix.
    """
    known = set(tags)
    marked = sorted(known - {OUTSIDE, "0"})
    for style in STYLES:
        parts = [style.fullmatch(tag) for tag in marked]
        renamed = {match[0]: f"{match['prefix']}-{match['type']}" for match in parts if match}
        begun = {tag[2:] for tag in renamed.values() if tag[0] == "B"}
        if len(renamed) == len(marked) and any(f"I-{type}" in renamed.values() for type in begun):
            return {tag: renamed.get(tag, tag) for tag in known}
    alone = {tag for tag in marked if tag[:2] in LATER and not {f"B-{tag[2:]}", f"I-{tag[2:]}"} & known}
    bare = any(tag[0] in "EL" for tag in alone) or any(prefix_and_type(tag)[1] == tag for tag in marked)
    return {tag: f"I-{tag}" if bare and tag in alone else tag for tag in known}


def note_on(tags: Iterable[str]) -> str:
    """Return which types of entities were understood if tags are written unusually; else ""."""
    standard = standard_tags(tags)
    types = in_order(type for standard_tag in standard.values() if (type := prefix_and_type(standard_tag)[1]))
    usual = all(
        tag == standard_tag and (tag == OUTSIDE or prefix_and_type(standard_tag)[1] != tag)
        for tag, standard_tag in standard.items()
    )
    missing = "" if OUTSIDE in standard else "no tag is O, which is outside of entities, so every word is in one; "
    return "" if usual and not missing else f"{missing}the types of entity are taken to be {listed(types)}"


def score_entities(
    true: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], known: Iterable[str] = ()
) -> tuple[ClassScore, dict[str, ClassScore]]:
    """Return the score over all entities, and of each type that is true or predicted; `rows` counts true entities.

    known: the tags of the model, if not all of them occur.
    """
    standard = standard_tags([*known, *(tag for tags in (*true, *predicted) for tag in tags)])
    right, predicted_entities = (
        [set(entities([standard[tag] for tag in tags])) for tags in rows] for rows in (true, predicted)
    )
    return class_scores(right, predicted_entities, class_of=lambda entity: entity[0])
