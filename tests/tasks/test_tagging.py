"""A tag for each word whatever the tokens do, and entities counted as seqeval counts them."""

from __future__ import annotations

import gzip
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import HARD_TEXTS, minilm_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics import classification_report
from seqeval.metrics.sequence_labeling import get_entities
from transformers import AutoTokenizer

from minibert.tasks.base import Encoded
from minibert.tasks.entities import Entity, entities, score_entities
from minibert.tasks.tagging import Sentences, Tagging
from minibert.text.tokenizer import UnknownTokensWarning, load_tokenizer

FOLDER = minilm_folder()
TOKENIZER = load_tokenizer(FOLDER)
REFERENCE = AutoTokenizer.from_pretrained(FOLDER)
TASK = Tagging()
LABELS = ["B-location", "B-person", "I-location", "I-person", "O"]
BEACH = Sentences([["Redondo", "Beach", "Blvd", "."], ["me"]], [["B-location", "I-location", "I-location", "O"], ["O"]])

WORD = st.one_of(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8), st.sampled_from(HARD_TEXTS))
TAGGED = st.lists(st.lists(st.tuples(WORD, st.sampled_from(LABELS)), max_size=6), min_size=1, max_size=4).map(
    lambda rows: Sentences([[word for word, _ in row] for row in rows], [[tag for _, tag in row] for row in rows])
)


def encode(data: Sentences, max_length: int = 128, labels: list[str] = LABELS) -> Encoded:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownTokensWarning)
        return TASK.encode(data, TOKENIZER, labels, max_length)


def certain(encoded: Encoded) -> list[Any]:
    """Logits that are sure of the labels, and of the first label where a token has none."""
    return [np.eye(len(LABELS), dtype=np.float32)[np.maximum(one.labels["labels"], 0)] for one in encoded.examples]


# ---------------------------------------------------------------------------------------------------------------
# Files


@pytest.mark.parametrize(
    "text",
    [
        "Redondo\tB-location\nBeach\tI-location\n\nme\tO\n",
        "Redondo B-location\nBeach  I-location \n\n\n\nme O",
        "\ufeffRedondo\tB-location\r\nBeach\tI-location\r\n\t\r\nme\tO\r\n",
        "-DOCSTART- -X- -X- O\n\nRedondo NNP x B-location\nBeach NNP x I-location\n\nme PRP x O\n",
        "-DOCSTART-\nRedondo\tB-location\nBeach\tI-location\n-DOCSTART-\nme\tO\n",
    ],
    ids=["tabs", "spaces", "marks and line ends of Windows", "four columns", "documents without empty lines"],
)
def test_sentences_are_read_from_conll_columns(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.conll").write_bytes(text.encode())
    (tmp_path / "a.conll.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("a.conll", "a.conll.gz"):
        data = TASK.read(tmp_path / name)
        assert data.words == [["Redondo", "Beach"], ["me"]]
        assert data.tags == [["B-location", "I-location"], ["O"]]


def test_a_word_may_hold_spaces_where_columns_are_by_tab(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("New York\tB-location\n#\tO\n")
    assert TASK.read(tmp_path / "a.conll").words == [["New York", "#"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("me\tO\n\nRedondo\n", "a.conll, line 3, is 'Redondo'; it must have a word and its tag, in 2 columns"),
        ("me\tO\nyou\tx\tO\n", r"a.conll, line 2, is 'you\\tx\\tO'; it must have .* in 2 columns"),
        ("me\tO\nyou\t\n", "a.conll, line 2, is"),
        ("\tO\n", "a.conll, line 1, is"),
        ("\n\n-DOCSTART- O\n", "a.conll holds no sentences"),
        ("", "a.conll holds no sentences"),
        ("me\tO\n\xff\tO\n", "a.conll, line 2, is not UTF-8"),
    ],
)
def test_a_file_that_is_no_table_of_words_and_tags_is_refused_by_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.conll").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=message):
        TASK.read(tmp_path / "a.conll")


def test_what_is_predicted_can_be_read_again(tmp_path: Path) -> None:
    lines = TASK.format_predictions(BEACH.known_tags, BEACH)
    assert lines == ["Redondo\tB-location", "Beach\tI-location", "Blvd\tI-location", ".\tO", "", "me\tO", ""]
    (tmp_path / "a.conll").write_text("\n".join(lines) + "\n")
    again = TASK.read(tmp_path / "a.conll")
    assert (again.words, again.tags) == (BEACH.words, BEACH.tags)


# ---------------------------------------------------------------------------------------------------------------
# Labels


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Sentences([["a", "b"], ["c"]], [["O", "O"], ["O"]]), r"3 words have the tags \['O'\]"),
        (Sentences([], []), "0 words have the tags"),
        (Sentences([["a"]]), "these sentences have no tags"),
    ],
)
def test_sentences_from_which_nothing_can_be_learned_are_refused(data: Sentences, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TASK.labels_of(data)


def test_a_sentence_with_a_tag_too_few_is_refused_by_row() -> None:
    with pytest.raises(ValueError, match="row 1 has not as many tags as words"):
        Sentences([["a"], ["b", "c"]], [["O"], ["O"]])
    with pytest.raises(ValueError, match="row 1 has not as many tags as words"):
        Sentences([["a"], ["b", "c"]], [["O"]])


def test_a_tag_that_was_not_in_the_training_data_is_refused_by_row() -> None:
    with pytest.raises(ValueError, match="row 0, word 1, has the tag 'I-location'; known are: B-location, O"):
        encode(BEACH, labels=["B-location", "O"])


# ---------------------------------------------------------------------------------------------------------------
# Words and tokens


def test_a_words_label_stands_at_its_first_token_alone() -> None:
    first = encode(BEACH).examples[0]
    assert REFERENCE.convert_ids_to_tokens(first.ids) == [
        *("[CLS]", "red", "##ond", "##o", "beach", "b", "##l", "##vd", ".", "[SEP]")
    ]
    assert first.labels["labels"] == [-100, 0, -100, -100, 2, 2, -100, -100, 4, -100]
    assert first.segments == [0] * 10


@settings(max_examples=80, deadline=None)
@given(data=TAGGED, max_length=st.sampled_from([3, 8, 128]))
def test_ids_and_places_are_those_of_transformers(data: Sentences, max_length: int) -> None:
    examples = iter(encode(data, max_length).examples)
    for words, tags in zip(data.words, data.known_tags, strict=True):
        theirs = REFERENCE(list(words), is_split_into_words=True, truncation=True, max_length=max_length)
        if len(theirs["input_ids"]) == 2:
            continue
        ours = next(examples)
        assert ours.ids == theirs["input_ids"]
        before, wanted = None, []
        for word in theirs.word_ids():
            wanted.append(-100 if word in (None, before) else LABELS.index(tags[word]))
            before = word
        assert ours.labels["labels"] == wanted
    assert next(examples, None) is None


@settings(max_examples=80, deadline=None)
@given(data=TAGGED, max_length=st.sampled_from([3, 8, 128]))
def test_every_word_has_an_answer_and_it_is_its_own(data: Sentences, max_length: int) -> None:
    encoded = encode(data, max_length)
    answers = TASK.decode(certain(encoded), encoded, data, LABELS)
    assert [len(row) for row in answers] == [len(words) for words in data.words]
    for row, tags, found in zip(answers, data.known_tags, encoded.back, strict=True):
        seen = [tag if place is not None else "O" for tag, place in zip(tags, found, strict=True)]
        assert row == seen


def test_words_that_vanish_are_outside_and_are_counted() -> None:
    data = Sentences([["Ann", "\u200b", "Lee", "\x07"]], [["B-person", "I-person", "I-person", "O"]])
    encoded = encode(data)
    assert TASK.decode(certain(encoded), encoded, data, LABELS) == [["B-person", "O", "I-person", "O"]]
    assert encoded.notes == ("2 words are invisible (such as U+200B) and count as O",)


def test_words_that_are_cut_off_are_outside_and_are_counted() -> None:
    encoded = encode(BEACH, max_length=6)
    assert TASK.decode(certain(encoded), encoded, BEACH, LABELS) == [["B-location", "I-location", "O", "O"], ["O"]]
    (note,) = encoded.notes
    assert note == (
        "1 of 2 sentences are longer than 6 tokens (the longest has 10): 2 words were truncated and count as O"
    )


def test_a_sentence_without_a_token_has_no_example_and_an_answer() -> None:
    data = Sentences([["me"], ["\u200b"], [], ["you"]], [["O"], ["B-person"], [], ["O"]])
    encoded = encode(data)
    assert len(encoded.examples) == 2
    assert TASK.decode(certain(encoded), encoded, data, LABELS) == [["O"], ["O"], [], ["O"]]


# ---------------------------------------------------------------------------------------------------------------
# Entities


def test_an_entity_is_a_type_and_a_stretch_of_words() -> None:
    tags = ["B-person", "I-person", "O", "B-location", "B-location", "I-creative-work", "O", "I-person"]
    assert entities(tags) == [
        Entity("person", 0, 2),
        Entity("location", 3, 4),
        Entity("location", 4, 5),
        Entity("creative-work", 5, 6),
        Entity("person", 7, 8),
    ]


SCHEMES = {
    "IOB": ["O", "B-a", "I-a", "B-b", "I-b", "B-c-d", "I-c-d"],
    "IOBES": ["O", *(f"{prefix}-{type}" for prefix in "BIES" for type in "ab")],
    "without types": ["O", "B", "I", "E", "S"],
}


@pytest.mark.parametrize("tags", SCHEMES.values(), ids=SCHEMES)
def test_entities_are_those_of_seqeval_however_wrong_the_tags_are(tags: list[str]) -> None:
    random = np.random.default_rng(0)
    for _ in range(300):
        row = random.choice(tags, size=random.integers(0, 12)).tolist()
        theirs = [(type.replace("_", ""), first, last + 1) for type, first, last in get_entities(row)]
        assert entities(row) == theirs, row


@pytest.mark.parametrize("tags", SCHEMES.values(), ids=SCHEMES)
def test_scores_are_those_of_seqeval(tags: list[str]) -> None:
    random = np.random.default_rng(1)
    true = [random.choice(tags, size=size).tolist() for size in random.integers(1, 15, size=60)]
    predicted = [
        [tag if random.random() < 0.7 else str(random.choice(tags)) for tag in row] for row in true
    ]  # right about as often as a model
    theirs = classification_report(true, predicted, output_dict=True, zero_division=0)
    together, types = score_entities(true, predicted)
    for name, ours in {"micro avg": together, **{type or "_": one for type, one in types.items()}}.items():
        expected = theirs[name]
        assert (ours.precision, ours.recall) == pytest.approx((expected["precision"], expected["recall"])), name
        assert ours.f1 == pytest.approx(expected["f1-score"]), name
        assert ours.rows == expected["support"], name


def test_a_rule_that_drops_stray_insides_would_be_seen() -> None:
    def strict(tags: list[str]) -> list[Entity]:
        return [entity for entity in entities(tags) if tags[entity.first].startswith("B-")]

    assert strict(["O", "I-a"]) != entities(["O", "I-a"]) == [Entity("a", 1, 2)]


def test_iob1_where_b_parts_neighbours_alone_has_the_entities_of_iob2() -> None:
    iob2 = ["B-a", "I-a", "B-a", "O", "B-b"]
    iob1 = ["I-a", "I-a", "B-a", "O", "I-b"]
    assert entities(iob1) == entities(iob2)


def test_bilou_has_the_entities_of_iobes() -> None:
    iobes = ["B-a", "I-a", "E-a", "S-a", "O", "S-b"]
    assert entities([{"E": "L", "S": "U"}.get(tag[0], tag[0]) + tag[1:] for tag in iobes]) == entities(iobes)


def test_tags_without_a_prefix_are_types_and_equal_ones_in_a_row_are_one() -> None:
    assert entities(["ORG", "ORG", "O", "PER", "NN-P"]) == [
        Entity("ORG", 0, 2),
        Entity("PER", 3, 4),
        Entity("NN-P", 4, 5),
    ]


# ---------------------------------------------------------------------------------------------------------------
# Measure


def test_a_measure_has_entities_types_and_words() -> None:
    data = Sentences([["Ann", "Lee", "in", "Rome"], ["me"]], [["B-person", "I-person", "O", "B-location"], ["O"]])
    measure = TASK.measure([["B-person", "O", "O", "B-location"], ["O"]], data, LABELS)
    assert measure.score == measure.figures["f1"] == 0.5
    assert measure.figures["accuracy"] == 0.8
    assert measure.figures["types"]["location"] == {"precision": 1.0, "recall": 1.0, "f1": 1.0, "rows": 1}
    assert measure.figures["types"]["person"]["f1"] == 0.0
    assert not measure.figures["degenerate"]
    assert json.loads(json.dumps(measure.figures)) == measure.figures
    assert "person" in measure.text
    assert "the tags of 0.800 of 5 words are right" in measure.text


def test_a_model_that_finds_nothing_is_said_to_be_degenerate() -> None:
    measure = TASK.measure([["O"] * 4, ["O"]], BEACH, LABELS)
    assert measure.score == 0.0
    assert measure.figures["degenerate"]
    assert "every word got the tag O" in measure.text


def test_a_measure_without_the_truth_is_refused() -> None:
    with pytest.raises(ValueError, match="have no tags"):
        TASK.measure([["O"]], Sentences([["a"]]), LABELS)
