"""Entities are those of seqeval, and what is a prefix depends on all tags of a model."""

import re
from typing import Any

import numpy as np
import pytest
from seqeval.metrics import classification_report
from seqeval.metrics.sequence_labeling import get_entities

from minibert.tasks.entities import entities, note_on, score_entities, standard_tags
from minibert.tasks.sentences import Sentences
from minibert.tasks.tagging import Tagging

TASK = Tagging()


def sure(*rows: Any) -> list[Any]:
    """Predictions of these tags."""
    return [{"tags": tags} for tags in rows]


SCHEMES = {
    "IOB": ["O", "B-a", "I-a", "B-b", "I-b", "B-c-d", "I-c-d"],
    "IOBES": ["O", *(f"{prefix}-{type}" for prefix in "BIES" for type in "ab")],
    "without types": ["O", "B", "I", "E", "S"],
}


@pytest.mark.parametrize("tags", SCHEMES.values(), ids=SCHEMES)
def test_entities_are_those_of_seqeval_however_wrong_the_tags_are(tags):
    random = np.random.default_rng(0)
    for _ in range(300):
        row = random.choice(tags, size=random.integers(0, 12)).tolist()
        theirs = [(type.replace("_", ""), first, last + 1) for type, first, last in get_entities(row)]
        assert entities(row) == theirs, row


@pytest.mark.parametrize("tags", SCHEMES.values(), ids=SCHEMES)
def test_scores_are_those_of_seqeval(tags):
    random = np.random.default_rng(1)
    true = [random.choice(tags, size=size).tolist() for size in random.integers(1, 15, size=60)]
    predicted = [
        [tag if random.random() < 0.7 else str(random.choice(tags)) for tag in row] for row in true
    ]  # right about as often as a model
    theirs = classification_report(true, predicted, output_dict=True, zero_division=0)
    ours = TASK.measure(sure(*predicted), Sentences([[""] * len(row) for row in true], true), [])
    found, micro = [ours.figures[name] for name in ("precision", "recall", "f1", "entities")], theirs["micro avg"]
    assert found == pytest.approx([micro[name] for name in ("precision", "recall", "f1-score", "support")])
    for name, one in ours.figures["types"].items():
        wanted = theirs[name or "_"]
        expected = [wanted["precision"], wanted["recall"], wanted["f1-score"], wanted["support"]]
        assert list(one.values()) == pytest.approx(expected), name


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("B-a I-a O B-b B-b I-c-d O I-a", [("a", 0, 2), ("b", 3, 4), ("b", 4, 5), ("c-d", 5, 6), ("a", 7, 8)]),
        ("I-a I-a B-a O I-b", [("a", 0, 2), ("a", 2, 3), ("b", 4, 5)]),  # IOB1: B- only between neighbours
        ("B-a I-a L-a U-a O U-b", [("a", 0, 3), ("a", 3, 4), ("b", 5, 6)]),  # BILOU
        ("ORG ORG O PER NN-P", [("ORG", 0, 2), ("PER", 3, 4), ("NN-P", 4, 5)]),  # no prefixes
    ],
)
def test_entities_by_hand(tags, expected):
    assert entities(tags.split()) == expected


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O B-a I-a", "O B-a I-a"),
        ("O B-a I-a E-a S-b", "O B-a I-a E-a S-b"),
        ("O I-a L-a U-b", "O I-a L-a U-b"),
        ("O B_a I_a B_b", "O B-a I-a B-b"),
        ("0 B_a I_a", "0 B-a I-a"),
        ("O a-B a-I b_B", "O B-a I-a B-b"),
        ("O E-mail Phone", "O I-E-mail Phone"),
        ("O E-mail B-a I-a", "O I-E-mail B-a I-a"),
        ("O S-Bahn Bus", "O I-S-Bahn Bus"),
        ("O Vitamin-B Vitamin-E", "O Vitamin-B Vitamin-E"),
        ("O B_a", "O B_a"),
        ("O B I", "O B I"),
    ],
)
def test_a_prefix_is_what_all_tags_together_make_of_it(tags, expected):
    assert standard_tags(tags.split()) == dict(zip(tags.split(), expected.split(), strict=True))


def test_entities_are_counted_by_these_prefixes():
    for style in ("{prefix}-{type}", "{prefix}_{type}", "{type}-{prefix}"):
        begin, inside = (style.format(prefix=prefix, type="a") for prefix in "BI")
        overall, types = score_entities([[begin, inside, "O", begin, begin]], [[begin, inside, "O", begin, inside]])
        assert (overall.rows, round(overall.precision, 3), list(types)) == (3, 0.5, ["a"])
    overall, types = score_entities([["E-mail", "E-mail", "O", "Phone"]], [["E-mail", "E-mail", "O", "O"]])
    assert (overall.rows, overall.recall, list(types)) == (2, 0.5, ["E-mail", "Phone"])


@pytest.mark.parametrize(
    ("tags", "note"),
    [
        ("O B-a I-a B-b", ""),
        ("O B I", ""),
        ("O B_a I_a", "the types of entity are taken to be 'a'"),
        ("O E-mail Phone", "the types of entity are taken to be 'E-mail', 'Phone'"),
        ("0 B-a I-a", "no tag is O, .* taken to be '0', 'a'"),
        ("NOUN VERB", "no tag is O, .* taken to be 'NOUN', 'VERB'"),
    ],
)
def test_what_is_taken_for_a_type_is_said_of_unusual_tags(tags, note):
    found = note_on(tags.split())
    assert re.fullmatch(note, found)
