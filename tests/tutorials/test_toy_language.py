"""The toy language: its bounds are exact by enumeration, and its sentences agree."""

import itertools
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray
from toy_language import (
    TOPIC_SHARE,
    TOPICS,
    BestPredictions,
    Grammar,
    Language,
    Procedure,
    bounds,
)

from minibert.inputs import IGNORED
from minibert.text.masking import Masking
from minibert.text.wordpiece import SPECIAL_TOKENS

PAD, UNK, CLS, SEP, MASK = range(len(SPECIAL_TOKENS))
LANGUAGE = Language()
ID = {token: id for id, token in enumerate(LANGUAGE.vocabulary)}
TOPIC_OF = {word: topic for topic, kinds in TOPICS.items() for kind in kinds for word in kind.split()}

# Two topics, three words, sentences of two words or more.
TINY = Grammar(
    words=("a", "b", "."),
    transitions=np.array([[0.3, 0.3, 0.4], [0.5, 0.0, 0.5], [0.6, 0.4, 0.0]]),
    emissions=np.array([[[0.9, 0.1, 0], [0.2, 0.8, 0], [0, 0, 1]], [[0.3, 0.7, 0], [0.6, 0.4, 0], [0, 0, 1]]]),
    stop=2,
)


# -- by enumeration


def p_text(grammar: Grammar, words: Sequence[int], topic: int, cut: float) -> float:
    """The probability of words, by going through all states; p(ends | state) is up to a factor."""
    K, total = len(grammar.transitions), 0.0
    for states in itertools.product(range(K), repeat=len(words)):
        p = (1 - cut) * grammar.transitions[grammar.stop][states[0]] + cut * grammar.stationary[states[0]]
        for state, following in itertools.pairwise(states):
            p *= grammar.transitions[state][following]
        for state, word in zip(states, words, strict=True):
            p *= grammar.emissions[topic][state][word]
        total += p * (cut + (1 - cut) * (states[-1] == grammar.stop) / grammar.stationary[grammar.stop])
    return float(total)


def p_seen(procedure: Procedure, seen: int, word: int, chosen: bool, vocabulary: int) -> float:
    """The probability of an id, given the word that stood there; chosen: it is known to be chosen for masking."""
    same = float(seen == word + len(SPECIAL_TOKENS))
    any_token = (seen != MASK) / (vocabulary - 4)  # [UNK] and all words
    kept = 1 - procedure.masked - procedure.replaced
    p = procedure.masked * (seen == MASK) + procedure.replaced * any_token + kept * same
    return p if chosen else procedure.rate * p + (1 - procedure.rate) * same


def enumerated(
    grammar: Grammar, procedure: Procedure, a: list[int], b: list[int], place: int, cut: float
) -> tuple[NDArray[np.float64], float]:
    """The posterior of the word at a place of a + b, and of "is next", by going through all texts and topics."""
    W, T = len(grammar.words), len(grammar.emissions)
    posterior, follows = np.zeros(W), np.zeros(2)
    texts = [
        {words: [p_text(grammar, words, t, cut) for t in range(T)] for words in itertools.product(range(W), repeat=n)}
        for n in (len(a), len(b))
    ]
    for (first, of_first), (second, of_second) in itertools.product(texts[0].items(), texts[1].items()):
        words = (*first, *second)
        usual, counted = 1.0, 1.0
        for i, (seen, word) in enumerate(zip([*a, *b], words, strict=True)):
            usual *= p_seen(procedure, seen, word, False, W + len(SPECIAL_TOKENS))
            counted *= p_seen(procedure, seen, word, i == place, W + len(SPECIAL_TOKENS))
        for t, u in itertools.product(range(T), repeat=2):
            joint = np.array([procedure.is_next * (t == u) / T, (1 - procedure.is_next) / T**2])
            p = of_first[t] * of_second[u]
            posterior[words[place]] += joint.sum() * p * counted
            follows += joint * p * usual
    return posterior / posterior.sum(), follows[0] / follows.sum()


ROWS = {
    "a mask among words": ([5, MASK, 7], [6, 5, 7], 1),
    "a word that may be wrong": ([5, 6, 7], [MASK, 5, 7], 0),
    "the full stop masked": ([5, 6, MASK], [MASK, MASK, 7], 2),
    "a token that is no word": ([UNK, 6, 7], [5, 5, MASK, 7], 0),
    "in the second text": ([5, 5, 7], [MASK, 6, MASK], 5),
    "an impossible row": ([7, 7, 7], [6, MASK], 3),
}


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize(
    "procedure",
    [Procedure(), Procedure(is_next=0.3, rate=0.3, replaced=0.2, masked=0.6), Procedure(full=0, cut=0.4)],
    ids=["as in BERT", "otherwise", "cut"],
)
def test_the_posterior_equals_that_of_enumeration(row: str, procedure: Procedure) -> None:
    a, b, place = ROWS[row]
    ids = [CLS, *a, SEP, *b, SEP, PAD]
    labels = [IGNORED] * len(ids)
    labels[place + 1 + (place >= len(a))] = 5
    cut = 0.0 if procedure.full is None else procedure.cut
    words, is_next = enumerated(TINY, procedure, a, b, place, cut)
    found = bounds(TINY, [ids], [labels], procedure=procedure)
    assert np.abs(found.words[0] - words).max() < 1e-9 and abs(found.is_next[0] - is_next) < 1e-9


def test_rows_of_different_lengths_do_not_disturb_each_other() -> None:
    ids = [[CLS, 5, MASK, 7, SEP, 6, 5, 7, SEP], [CLS, MASK, 7, SEP], [CLS, *[5, 6, 7] * 9, MASK, 7, SEP]]
    labels = [[5 if at == row.index(MASK) else IGNORED for at in range(len(row))] for row in ids]
    together = bounds(TINY, ids, labels)
    alone = [bounds(TINY, [row], [label]) for row, label in zip(ids, labels, strict=True)]
    assert np.abs(np.concatenate([one.words for one in alone]) - together.words).max() < 1e-12
    assert np.abs(np.concatenate([one.is_next for one in alone]) - together.is_next).max() < 1e-12
    assert together.is_next[1] == 0.5  # of a single text nothing is known


# -- a bound that is one


@pytest.fixture(scope="module")
def drawn() -> SimpleNamespace:
    """Pairs of two sentences and two, masked; a random second text is of the next document, of any topic."""
    count, seed = 600, 0
    special = np.isin(np.arange(len(ID)), [PAD, CLS, SEP, MASK])
    masking = Masking(MASK, special, (~special).nonzero()[0], np.zeros_like(special), seed=seed)
    documents = [
        [[ID[word] for word in " ".join(part).split()] for part in (one[:2], one[2:])]
        for one in LANGUAGE.documents(2 * count, seed, (4, 4))
    ]
    rows = [[CLS, *documents[2 * row][0], SEP, *documents[2 * row + row % 2][1], SEP] for row in range(count)]
    ids, labels = zip(*(masking(row, 0, number) for number, row in enumerate(rows)), strict=True)
    return SimpleNamespace(ids=list(ids), labels=list(labels), next_labels=[row % 2 for row in range(count)])


@pytest.fixture(scope="module")
def best(drawn: SimpleNamespace) -> BestPredictions:
    return bounds(LANGUAGE, drawn.ids, drawn.labels, drawn.next_labels)


def losses(found: BestPredictions) -> NDArray[np.float64]:
    return np.asarray(-np.log(found.words[np.arange(len(found.true)), found.true]))


def expected_losses(found: BestPredictions) -> NDArray[np.float64]:
    return np.asarray(-(found.words * np.log(found.words + 1e-300)).sum(axis=1))


def test_the_loss_is_the_entropy_and_the_accuracy_the_probability_of_the_likeliest_answer(
    best: BestPredictions,
) -> None:
    gap = losses(best) - expected_losses(best)
    assert abs(gap.mean()) < 3 * gap.std() / len(gap) ** 0.5
    assert best.loss == pytest.approx(losses(best).mean())
    likeliest = np.maximum(best.is_next, 1 - best.is_next)
    for accuracy, sure in ((best.accuracy, best.words.max(axis=1)), (best.next_accuracy, likeliest)):
        assert abs(accuracy - sure.mean()) < 3 * (sure * (1 - sure)).sum() ** 0.5 / len(sure)


# -- rows that are cut


def test_truncated_rows_need_a_procedure_that_truncates(drawn: SimpleNamespace) -> None:
    """One text, without its first and last three words."""
    ids = [[CLS, *row[4 : row.index(SEP) - 3], SEP] for row in drawn.ids]
    labels = [
        [IGNORED, *label[4 : row.index(SEP) - 3], IGNORED] for row, label in zip(drawn.ids, drawn.labels, strict=True)
    ]
    with pytest.raises(ValueError, match=r"row \d+ .*Procedure.full"):
        bounds(LANGUAGE, ids, labels)
    found = [bounds(LANGUAGE, ids, labels, procedure=Procedure(full=0, cut=p)) for p in (1.0, 0.5, 1e-6)]
    assert found[0].loss < found[1].loss < found[2].loss  # all are truncated
    assert abs(found[0].loss - expected_losses(found[0]).mean()) < 0.1


# -- a vocabulary that was learned


def test_another_vocabulary_is_taken_by_its_ids_and_refused_without_a_word_of_the_language(
    drawn: SimpleNamespace,
) -> None:
    order = np.random.default_rng(3).permutation(len(ID))
    vocab = {token: int(order[id]) for token, id in ID.items()}
    ids = [[int(order[id]) for id in row] for row in drawn.ids[:20]]
    labels = [[label if label == IGNORED else int(order[label]) for label in row] for row in drawn.labels[:20]]
    found = bounds(LANGUAGE, ids, labels, vocab=vocab)
    assert (found.words == bounds(LANGUAGE, drawn.ids[:20], drawn.labels[:20]).words).all()
    vocab = {token: id for token, id in ID.items() if token not in ("boat", "ovens")}
    with pytest.raises(ValueError, match=r"'boat'.* 1 "):
        bounds(LANGUAGE, drawn.ids, drawn.labels, vocab=vocab)


# -- the language


@pytest.fixture(scope="module")
def documents() -> list[list[str]]:
    return list(LANGUAGE.documents(400, 7))


@pytest.mark.parametrize(
    ("sentence", "agrees"),
    [
        ("these boats near this island drift .", True),
        ("these boats near this island drifts .", False),
        ("this boat drifts .", True),
        ("this boats drift .", False),
    ],
)
def test_a_verb_agrees_with_its_subject_across_a_phrase_and_a_determiner_with_its_noun(
    sentence: str, agrees: bool
) -> None:
    row = [CLS, *(ID[word] for word in sentence.split()), SEP]
    with nullcontext() if agrees else pytest.raises(ValueError, match="whole sentences"):
        bounds(LANGUAGE, [row], [[IGNORED] * len(row)], procedure=Procedure(rate=0))  # every word is the true one


def test_a_document_carries_its_topic(documents: list[list[str]]) -> None:
    shares, main = [], Counter[str]()
    for document in documents:
        words = [word.removesuffix("s") for sentence in document for word in sentence.split()]
        topics = Counter(TOPIC_OF[word] for word in words if word in TOPIC_OF)
        topic, count = topics.most_common(1)[0]
        shares.append(count / topics.total())
        main[topic] += 1
    assert abs(float(np.mean(shares)) - TOPIC_SHARE) < 0.02
    assert set(main) == set(TOPICS) and min(main.values()) > 25  # 50 on average


def test_a_document_depends_on_seed_and_number_alone() -> None:
    ten = list(LANGUAGE.documents(10, 3))
    assert list(Language().documents(10, 3)) == ten
    assert list(LANGUAGE.documents(4, 3, first=6)) == ten[6:]
    assert list(LANGUAGE.documents(10, 4)) != ten
    assert list(Language(1).documents(10, 3)) != ten


def test_the_corpus_has_a_sentence_a_line_and_empty_lines_between_documents(tmp_path: Path) -> None:
    LANGUAGE.write(tmp_path / "corpus.txt", 5, seed=3, sentences=(2, 3))
    text = (tmp_path / "corpus.txt").read_text("utf-8")
    documents = [block.split("\n") for block in text.removesuffix("\n").split("\n\n")]
    assert documents == list(LANGUAGE.documents(5, 3, (2, 3)))
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.txt"]


def test_a_language_of_fewer_topics_says_their_words_alone() -> None:
    small = Language(topics=("sea", "music"))
    assert {"boats", "songs", "this", "."} < set(small.words) < set(LANGUAGE.words) - {"baker"}
    for language in (small, LANGUAGE):
        for probabilities in (language.emissions, language.transitions):
            assert np.allclose(probabilities.sum(axis=-1), 1)
    assert np.array_equal(Language(topics=tuple(TOPICS)).emissions, LANGUAGE.emissions)
