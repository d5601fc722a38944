"""A tag for each word whatever the tokens do, and entities counted as seqeval counts them."""

import json
import re
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models import HARD_TEXTS, minilm_folder
from transformers import AutoTokenizer

from minibert.tasks.base import Encoded
from minibert.tasks.entities import entities
from minibert.tasks.sentences import Sentences
from minibert.tasks.tagging import Tagging
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


def sure(*rows: Any) -> list[Any]:
    """Predictions of these tags."""
    return [{"tags": tags} for tags in rows]


# ---------------------------------------------------------------------------------------------------------------
# Files


def test_what_is_predicted_can_be_read_again(tmp_path):
    lines = TASK.format_predictions(sure(*BEACH.known_tags), BEACH)
    assert lines == ["Redondo\tB-location", "Beach\tI-location", "Blvd\tI-location", ".\tO", "", "me\tO", ""]
    (tmp_path / "a.conll").write_text("\n".join(lines) + "\n")
    again = TASK.read(tmp_path / "a.conll")
    assert (again.words, again.tags) == (BEACH.words, BEACH.tags)


# ---------------------------------------------------------------------------------------------------------------
# Labels


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (
            lambda: TASK.labels_of(Sentences([["a", "b"], ["c"]], [["O", "O"], ["O"]])),
            r"\b2 sentences.*\['O'\]",
        ),
        (lambda: TASK.labels_of(Sentences([], [])), r"\b0 sentences"),
        (
            lambda: TASK.labels_of(Sentences([["a"] * 26], [list("abcdefghijklmnopqrstuvwxyz")])),
            r"\b26 words.* 26 ",
        ),
        (
            lambda: TASK.labels_of(Sentences([["a", "b"] * 200], [["O", "X"] * 200])),
            r"\b400 words",
        ),
        (lambda: TASK.labels_of(Sentences([["a"]])), "no tags"),
        (lambda: Sentences([["a"], ["b", "c"]], [["O"], ["O"]]), r"row 1\b.*tags"),
        (lambda: Sentences([["a"], ["b", "c"]], [["O"]]), r"row 1\b.*tags"),
        (
            lambda: encode(BEACH, labels=["B-location", "O"]),
            r"row 0, word 1\b.*'I-location'",
        ),
    ],
)
def test_sentences_that_cannot_be_used_are_refused(use, message):
    with pytest.raises(ValueError, match=message):
        use()


# ---------------------------------------------------------------------------------------------------------------
# Words and tokens


@settings(max_examples=80, deadline=None)
@given(data=TAGGED, max_length=st.sampled_from([3, 8, 128]))
def test_windows_and_places_are_those_of_transformers_and_each_word_has_most_context(data, max_length):
    """The rule by brute force: of all windows of transformers with a word's first token the most central one."""
    encoded, room = encode(data, max_length), max_length - 2
    examples = iter(encoded.examples)
    for words, tags in zip(data.words, data.known_tags, strict=True):
        windows = {"max_length": max_length, "stride": room - max(1, room // 2), "return_overflowing_tokens": True}
        theirs = REFERENCE(list(words), is_split_into_words=True, truncation=True, **windows)
        whole = REFERENCE(list(words), is_split_into_words=True, add_special_tokens=False).word_ids()
        wanted = [[-100] * len(ids) for ids in theirs["input_ids"]]
        for word in set(whole):
            first, context = whole.index(word), {}
            for number in range(len(wanted)):
                position = 1 + first - number * max(1, room // 2)
                if 0 < position < len(wanted[number]) - 1:
                    context[number, position] = min(position, len(wanted[number]) - 1 - position)
            number, position = max(context, key=context.__getitem__)
            wanted[number][position] = LABELS.index(tags[word])
        for ids, labels in zip(theirs["input_ids"], wanted, strict=True):
            if set(labels) != {-100}:  # a word is read in it
                ours = next(examples)
                assert (ours.ids, ours.labels["labels"]) == (ids, labels)
    assert next(examples, None) is None


@settings(max_examples=80, deadline=None)
@given(data=TAGGED, max_length=st.sampled_from([3, 8, 128]))
def test_every_word_has_an_answer_and_it_is_its_own(data, max_length):
    encoded = encode(data, max_length)
    answers = [one["tags"] for one in TASK.decode(certain(encoded), encoded, data, LABELS)]
    assert [len(row) for row in answers] == [len(words) for words in data.words]
    for row, tags, found in zip(answers, data.known_tags, encoded.back, strict=True):
        seen = [tag if place is not None else "O" for tag, place in zip(tags, found, strict=True)]
        assert row == seen


def test_words_without_a_token_are_outside_and_are_counted():
    vanish = Sentences(
        [["me"], ["Ann", "\u200b", "Lee"], ["\u200b"], [], ["you"]], [["O"], ["B-person"] * 3, ["O"], [], ["O"]]
    )
    for data, max_length, expected, count in (
        (
            vanish,
            128,
            [["O"], ["B-person", "O", "B-person"], ["O"], [], ["O"]],
            "^2 of 6 words without a token, read as O",
        ),
        (
            BEACH,
            6,
            BEACH.tags,
            r"^1 of 2 sentences longer than 6 tokens \(the longest has 10\), read in windows, 4 rows in all",
        ),
    ):
        encoded = encode(data, max_length)
        assert [one["tags"] for one in TASK.decode(certain(encoded), encoded, data, LABELS)] == expected
        assert re.search(count, encoded.notes[0])
    assert len(encode(vanish).examples) == 3  # a sentence without a token has none
    assert encode(BEACH).notes == ()


# ---------------------------------------------------------------------------------------------------------------
# Measure


def test_a_measure_has_entities_types_and_words():
    data = Sentences([["Ann", "Lee", "in", "Rome"], ["me"]], [["B-person", "I-person", "O", "B-location"], ["O"]])
    measure = TASK.measure(sure(["B-person", "O", "O", "B-location"], ["O"]), data, LABELS)
    assert measure.score == measure.figures["f1"] == 0.5
    assert (measure.figures["accuracy"], measure.figures["degenerate"]) == (0.8, False)
    assert measure.figures["types"]["location"] == {"precision": 1.0, "recall": 1.0, "f1": 1.0, "rows": 1}
    assert measure.figures["types"]["person"]["f1"] == 0.0
    assert TASK.measure(sure(["O"] * 4, ["O"]), data, LABELS).figures["degenerate"]
    assert json.loads(json.dumps(measure.figures)) == measure.figures
    assert "0.800 of 5 words have the right tag" in measure.text


# ---------------------------------------------------------------------------------------------------------------
# Raw text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("He left New York, for (Paris).", "He left New York , for ( Paris ) ."),
        ("Lufthansa.", "Lufthansa ."),
        ("O'Brien of the U.S. paid $3.50 or 1,000 yen", "O'Brien of the U.S . paid $ 3.50 or 1,000 yen"),
        ("York,Paris \u2013 Rh\u00f4ne\u2014Alpes", "York , Paris \u2013 Rh\u00f4ne \u2014 Alpes"),
        ("@user wrote #London!", "@user wrote #London !"),
        ("cafe\u0301 \u0928\u092e\u0938\u094d\u0924\u0947", "cafe\u0301 \u0928\u092e\u0938\u094d\u0924\u0947"),
        ("\u201eLufthansa\u201c, M\u00fcnchen/Bonn!", "\u201e Lufthansa \u201c , M\u00fcnchen/Bonn !"),
        ("\u5317\u4eac\u5e02 BMW\u3002", "\u5317 \u4eac \u5e02 BMW \u3002"),
        (" \t\n", ""),
    ],
)
def test_raw_text_is_split_at_spaces_and_punctuation_as_training_data_is(text, words):
    data = TASK.from_texts([text])
    assert data.words == [words.split()]
    assert [text[start:end] for start, end in data.places[0]] == words.split()
    assert Tagging(pretokenized=True).from_texts([text]).words == [text.split()]


def test_entities_have_their_place_in_the_text_and_the_mean_probability_of_their_words():
    data = TASK.from_texts(["He left  New York, alone.", ""])
    tags = ["O", "O", "B-location", "I-location", "O", "O", "O"]
    first = {"tags": tags, "probabilities": [1.0, 1.0, 0.5, 1.0, 1.0, 1.0, 1.0], "entities": entities(tags)}
    answers = [first, {"tags": [], "probabilities": [], "entities": []}]
    entity = {"text": "New York", "label": "location", "start": 9, "end": 17, "score": 0.75}
    assert TASK.as_dicts(answers, data) == [{"entities": [entity]}, {"entities": []}]
