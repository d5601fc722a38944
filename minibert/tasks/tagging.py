"""Tagging: a label for each word, such as the type of entity it belongs to (Devlin et al. 2018, section 5.3).

    words     Redondo           Beach        Blvd
    tags      B-location        I-location   I-location
    tokens    red  ##ond  ##o   beach        b  ##l  ##vd
    labels    0    -100   -100  1            1  -100  -100

A file has words and their tags (sentences.py). A word is labelled, and its prediction read, at its first token. A word
without tokens, because it is invisible, gets O. Raw text is split as such files are: at spaces and at punctuation,
which is a word by itself, but not inside of O'Brien, U.S or 3.5; a Chinese character is a word.

A sentence of more tokens than the model reads at once is split into windows that overlap by half, for training too, so
that no word is lost. A word is labelled and read where its first token is farthest from an end of the window:

    1 2 3 4            windows of four tokens: 1 to 3 are read in the first, 4 and 5 in the second, 6 to 8 in the third
        3 4 5 6        (at equal distance the earlier window counts)
            5 6 7 8

A word that is longer than a window is read at its first token, with as many of its others as fit.

The metric counts entities, as the CoNLL shared tasks do: an entity is found only if its type, first and last word are
all right (entities.py).
"""

import re
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from scipy.special import softmax

from minibert.inputs import IGNORED
from minibert.tables.columns import listed
from minibert.tables.formats import format_by_name
from minibert.tables.texts import as_texts
from minibert.tables.writing import one_line
from minibert.tasks.base import Encoded, Example, Logits, Measure, Prediction, Row, Task
from minibert.tasks.entities import OUTSIDE, entities, note_on, score_entities, standard_tags
from minibert.tasks.labels import label_number
from minibert.tasks.metrics import class_table
from minibert.tasks.names import in_order
from minibert.tasks.sentences import WRONG_TASK, Sentences, read_sentences, untagged
from minibert.tasks.settings import ClassificationSettings, TaggingSettings
from minibert.text.tokenized import in_windows
from minibert.text.tokenizer import Tokenizer, TokenStats
from minibert.text.wordpiece import CHINESE, is_in
from minibert.utils.printing import Figures, counted, progress_bar

MOST_TAGS = 20  # of data with fewer than two words for each
MOST_WORDS = 300  # of a sentence that is the only one
JOINS = "-'’.,&/_"  # part of a word between two letters or digits; a comma only between digits


# ---------------------------------------------------------------------------------------------------------------
# The task


@dataclass(frozen=True)
class Tagging(TaggingSettings, Task):
    """A tag for each word of a sentence.

    pretokenized: in raw texts there is a space between any two words. columns: of a file, the word's and the tag's, by
    name or by number from 1, -1 is the last. tag_names: of tags that are numbers, from 0. format, encoding: of a file.
    """

    name = "tag"
    head = "token-classification"
    main = "f1"

    def read(self, path: Any) -> Sentences:
        """Return the sentences of a file, see sentences.read_sentences."""
        return read_sentences(path, self)

    def rows(self, path: str, how: ClassificationSettings) -> Iterator[Row] | None:
        """Return the sentences of a CoNLL file, tagged or not; its name may end in anything that no table has."""
        if format_by_name(path) or how.format or how.text or not Path(path).suffix:
            return None
        sentences = read_sentences(path, replace(self, encoding=how.encoding), tagged=False)
        return (Row(" ".join(words), None, {"words": words}, words) for words in sentences.words)

    def from_rows(self, rows: Sequence[Row]) -> Sentences:
        """Return untagged sentences, of the words of the file if it has them."""
        words = [row.words for row in rows if row.words is not None]
        return untagged(words) if words else super().from_rows(rows)

    def with_given_words(self) -> Self:
        """Return the task for texts whose words are separated by spaces."""
        return replace(self, pretokenized=True)

    def from_texts(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Sentences:
        """Return untagged sentences, split into words; there are no pairs."""
        texts = as_texts(texts)
        places = [list(word_places(text, self.pretokenized)) for text in texts]
        words = [[text[start:end] for start, end in row] for text, row in zip(texts, places, strict=True)]
        return Sentences(words, None, texts, places)

    def labels_of(self, data: Sentences) -> list[str]:
        """Return the tags in order, see names.py. Raises ValueError for fewer than two, and for other data."""
        words = sum(map(len, data.words))
        used = in_order(tag for tags in data.known_tags for tag in tags)
        if len(used) < 2:
            raise ValueError(f"{len(data)} sentences have the tags {used}; training needs at least two tags")
        if len(used) > MOST_TAGS and 2 * len(used) > words:
            raise ValueError(
                f"{words:,} words have {len(used):,} different tags ({listed(used)}), too many to learn; is the last "
                f"column the tag?"
            )
        if len(data) == 1 and words > MOST_WORDS:
            raise ValueError(
                f"the data is a single sentence of {words:,} words; put an empty line between sentences{WRONG_TASK}"
            )
        return used

    def names_in(self, data: Sentences) -> Collection[str]:
        """Return the tags of the data."""
        return {tag for tags in data.known_tags for tag in tags}

    def encode(self, data: Sentences, tokenizer: Tokenizer, labels: Sequence[str], max_length: int) -> Encoded:
        """Return an example for each window of each sentence; a sentence without a token has none.

        `back` has for each sentence the position of each word's first token in its rows, the windows one after the
        other; None for a word without one.
        """
        max_length = tokenizer.resolve_max_length(max_length, pairs=False)
        numbers = {label: number for number, label in enumerate(labels)}
        examples: list[Example] = []
        back: list[list[int | None]] = []
        split = longest = tokens = unknown = 0
        encodings = tokenizer.encode_each(data.words, words=True)
        for row, text in enumerate(progress_bar(encodings, "encoding", len(data), unit="text")):
            ids = text.ids
            windows, places = as_windows(text.word_ids, max_length)
            back.append([places.get(word) for word in range(len(data.words[row]))])
            known = [IGNORED] * max_length * len(windows)  # the label of a word at its first token, -100 elsewhere
            for word, tag in enumerate(data.tags[row] if data.tags else ()):
                number = label_number(tag, numbers, f"row {row}, word {word},")
                if (at := back[-1][word]) is not None:
                    known[at] = number
            for start, window in zip(range(0, len(known), max_length), windows, strict=True):
                row_ids = tokenizer.template.row(ids[window.start : window.stop])
                own = {"labels": known[start : start + len(row_ids)]} if data.tags else {}
                examples.append(Example(row_ids, [0] * len(row_ids), own))
            split += len(ids) + 2 > max_length
            longest = max(longest, len(ids) + 2)
            tokens += len(ids)
            unknown += ids.count(tokenizer.unk_id)
        tokenizer.warn(TokenStats(len(data), tokens, unknown), max_length)
        notes = [
            *data.notes,
            note_on(labels) if data.tags else "",
            *encoding_notes(back, split, longest, len(examples), max_length),
        ]
        return Encoded(examples, notes=tuple(filter(None, notes)), back=back)

    def decode(
        self, logits: Sequence[Logits], encoded: Encoded, data: Sentences, labels: Sequence[str]
    ) -> list[Prediction]:
        """Return the best tag of each word at its first token, its probability, the entities; O without a token."""
        remaining = iter(logits)
        standard = standard_tags([OUTSIDE, *labels])
        answers = []
        for places in encoded.back:
            last = max((place for place in places if place is not None), default=-1)
            windows = list[Any]()
            read = 0
            while read <= last:  # a word is read in each window, so the last one has this position
                windows.append(softmax(next(remaining).astype(np.float64), axis=-1))  # (tokens,K)
                read += len(windows[-1])
            p = np.concatenate(windows) if windows else ()
            tags = [OUTSIDE if place is None else labels[p[place].argmax()] for place in places]
            probabilities = [1.0 if place is None else float(p[place].max()) for place in places]
            spans = entities([standard[tag] for tag in tags])
            answers.append({"tags": tags, "probabilities": probabilities, "entities": spans})
        return answers

    def measure(self, answers: Sequence[Prediction], data: Sentences, labels: Sequence[str]) -> Measure:
        """Return precision, recall and F1 of entities, overall and by type, and the accuracy over words."""
        predicted = [answer["tags"] for answer in answers]
        overall, types = score_entities(data.known_tags, predicted, labels)
        words = [pair for rows in zip(data.known_tags, predicted, strict=True) for pair in zip(*rows, strict=True)]
        figures: Figures = {
            "f1": overall.f1,
            "precision": overall.precision,
            "recall": overall.recall,
            "accuracy": sum(true == tag for true, tag in words) / max(len(words), 1),
            "sentences": len(data),
            "words": len(words),
            "entities": overall.rows,
            "degenerate": len({tag for _, tag in words}) == 1,
            "types": {type: asdict(answer) for type, answer in types.items()},
        }
        text = class_table("entities", {**types, "all": overall}, "entities")
        return Measure(
            figures, self.main, f"{text}\n\n{figures['accuracy']:.3f} of {len(words):,} words have the right tag"
        )

    def format_predictions(self, answers: Sequence[Prediction], data: Sentences) -> list[str]:
        """Return a line for each word and its tag, an empty line after each sentence: a file for `read`."""
        lines = []
        for words, answer in zip(data.words, answers, strict=True):
            lines += [*(one_line(word, tag) for word, tag in zip(words, answer["tags"], strict=True)), ""]
        return lines

    def as_dicts(self, answers: Sequence[Prediction], data: Sentences) -> list[Prediction]:
        """Return the entities of each raw text; text[start:end] is their text, the score the mean over their words."""
        dicts: list[Prediction] = []
        for text, places, answer in zip(data.texts, data.places, answers, strict=True):
            row = []
            for label, first, last in answer["entities"]:
                start = places[first][0]
                end = places[last - 1][1]
                score = float(np.mean(answer["probabilities"][first:last]))
                row.append({"text": text[start:end], "label": label, "start": start, "end": end, "score": score})
            dicts.append({"entities": row})
        return dicts


def encoding_notes(
    back: Sequence[Sequence[int | None]], split: int, longest: int, rows: int, max_length: int
) -> list[str]:
    """Return notes on words without a token, and on sentences that were split into windows."""
    words = sum(map(len, back))
    lost = sum(row.count(None) for row in back)
    counts = [
        (lost, f"of {counted(words, 'word')} without a token, read as {OUTSIDE}: invisible, such as U+200B"),
        (
            split,
            f"of {counted(len(back), 'sentence')} longer than {max_length} tokens (the longest has {longest:,}), read "
            f"in windows, {counted(rows, 'row')} in all",
        ),
    ]
    return [f"{count:,} {note}" for count, note in counts if count]


def as_windows(word_ids: Sequence[int], max_length: int) -> tuple[list[range], dict[int, int]]:
    """Return the windows of a sentence, and for each word with a token the position of its first one in their rows.

    word_ids: the word of each token. Rows are of max_length tokens with [CLS] and [SEP], the last may be shorter. A
    window in which no word is read is left out.
    """
    room = max_length - 2
    stride = max(1, room // 2)
    windows = in_windows(range(len(word_ids)), room, stride)
    first: dict[int, int] = {}
    for token, word in enumerate(word_ids):
        first.setdefault(word, token)
    best = {}
    for word, token in first.items():
        near = range(max(0, (token - room) // stride + 1), min(token // stride + 1, len(windows)))  # those it is in
        best[word] = max(near, key=lambda one: min(token - windows[one].start, windows[one].stop - 1 - token))
    kept = {window: number for number, window in enumerate(sorted(set(best.values())))}
    places = {word: kept[one] * max_length + 1 + first[word] - windows[one].start for word, one in best.items()}
    return [windows[one] for one in kept], places


def word_places(text: str, pretokenized: bool) -> Iterator[tuple[int, int]]:
    """Yield the first character of each word, and the one after its last. pretokenized: split only at spaces."""
    for chunk in re.finditer(r"\S+", text):
        start, end = chunk.span()
        for place in range(start, end):
            if not pretokenized and is_separate(text, place):
                yield from ((start, place), (place, place + 1)) if start < place else ((place, place + 1),)
                start = place + 1
        if start < end:
            yield start, end


def is_separate(text: str, place: int) -> bool:
    """Return whether a character is a word of its own: punctuation, and Chinese, which has no spaces."""
    mark = text[place]
    before = text[max(place - 1, 0) : place]
    after = text[place + 1 : place + 2]
    if unicodedata.category(mark)[0] not in "PS":
        return is_in(mark, CHINESE)
    inside = mark in JOINS and before.isalnum() and after.isalnum() and (mark != "," or (before + after).isdigit())
    return not inside and not (mark in "@#" and after.isalnum())
