"""Statistics of a corpus and its baselines: counted right, and a corpus from which nothing can be learned refused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from words import write_words_checkpoint

from minibert.losses import IGNORED
from minibert.tasks.base import Example
from minibert.text.masking import Masking
from minibert.text.tokenizer import load_tokenizer
from minibert.train.batches import Packing
from minibert.train.corpus import Corpus
from minibert.train.stats import CorpusStats, baselines, examine

V = 8
DOCUMENTS = [[[5, 6, 7], [5, 6, 1]], [[7, 5, 6, 2, 1, 7]]] * 10  # 6 always follows 5; 120 tokens


def nats(before: int, token: int) -> dict[str, float]:
    """The baselines of one masked token."""
    return baselines(DOCUMENTS, V, [Example([3, before, 4], [0] * 3, {"labels": [IGNORED, IGNORED, token]})])


def test_baselines_are_probabilities_by_counts_within_documents() -> None:
    assert nats(5, 6)["unigram"] == pytest.approx(-math.log(31 / 128))
    assert nats(5, 6)["bigram"] == pytest.approx(-math.log((30 + 50 * 31 / 128) / (30 + 50)))
    assert nats(7, 5)["bigram"] == pytest.approx(-math.log((20 + 50 * 31 / 128) / (20 + 50)))  # across sentences
    assert nats(4, 6)["bigram"] == pytest.approx(nats(4, 6)["unigram"])  # 4 was never seen
    for before in range(V):
        for name in ("unigram", "bigram"):
            assert sum(math.exp(-nats(before, token)[name]) for token in range(V)) == pytest.approx(1)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_words_checkpoint(tmp_path_factory.mktemp("words"))


def stats_of(words: Path, path: Path, text: str) -> CorpusStats:
    path.write_text(text)
    tokenizer = load_tokenizer(words)
    packing = Packing("next-sentence", 16, tokenizer.template)
    return examine(Corpus.of(path), tokenizer, packing, Masking.of(tokenizer))[0]


def test_possible_problems_are_noted(words: Path, tmp_path: Path) -> None:
    stats = stats_of(words, tmp_path / "c.txt", "the film\n\n" * 30 + "the book\nvery bad\n\n" * 10)
    assert (stats.documents, stats.sentences, stats.tokens, stats.alone) == (40, 50, 100, 0.75)
    assert stats.repeated == pytest.approx(1 - 3 / 50)
    assert "75.0% of the documents have one sentence" in stats.text
    assert "94.0% of the sentences are repeated: they will be memorized" in " ".join(stats.text.split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "the film\n\nthe book\n\nthe play\n",
            "each of the 3 documents has one sentence, so that none follows",
        ),
        ("the film\nthe book\nthe play\n", "is one document, and random sentences must come from another"),
        ("東京\n大阪\n\n京都\n奈良\n", "100% of its tokens are unknown to the vocabulary"),
        ("\u200b\n\n\u200b\n", "each of the 2 documents has one sentence"),
        ("\u200b\n\u200b\n\n\u200b\n\u200b\n", "gives no row to learn from"),
    ],
    ids=["one sentence each", "one document", "another language", "no tokens", "no tokens in pairs"],
)
def test_a_corpus_from_which_nothing_can_be_learned_is_refused(
    text: str, message: str, words: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        stats_of(words, tmp_path / "c.txt", text)
