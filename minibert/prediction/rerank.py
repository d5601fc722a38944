"""Sort what a search found by a cross-encoder: a classifier that reads a query and a text as one pair.

    queries, hits of each -> pairs (query, text) -> the probability that the text answers the query -> hits, sorted

It reads every pair anew, so it is for the best texts of `search` only (Nogueira and Cho 2019, "Passage Re-ranking with
BERT"). `minibert finetune classify --pair` trains one, from queries with texts that answer them and texts that do not.
"""

from collections.abc import Sequence
from typing import Any

from minibert.prediction.frozen import Classifier
from minibert.prediction.reader import Reader, open_reader, predict
from minibert.tables.texts import as_texts
from minibert.utils.files import AnyPath
from minibert.utils.printing import brief, counted
from minibert.utils.settings import with_settings
from minibert.vectors.search import Hit


@with_settings()
def rerank(
    model: AnyPath | Classifier | Reader,
    queries: str | Sequence[str],
    hits: Sequence[Sequence[Hit]],
    *,
    device: str = "auto",
) -> list[list[Hit]]:
    """Return the hits of each query sorted by a cross-encoder, whose scores replace the cosines; equals stay in order.

    model: a folder that `open_reranker` opens, or what it returned. queries, hits: those of `search`.
    Raises ValueError for other numbers of queries than of lists of hits, and for texts that are pairs themselves; also
    what `open_reranker` raises.
    """
    reader = model if isinstance(model, Classifier | Reader) else open_reranker(model, device)
    asked = as_texts(queries)
    if len(asked) != len(hits):
        raise ValueError(
            f"{counted(len(asked), 'query')} and hits of {len(hits)}; give the hits that `search` returned"
        )
    pairs = [(query, hit.text) for query, some in zip(asked, hits, strict=True) for hit in some]
    if any(isinstance(text, tuple) for _, text in pairs):
        raise ValueError("the texts that were found are pairs; a cross-encoder reads a query and a single text")
    # Each pair once: in a batch, a processor may round equal rows differently.
    different = list(dict.fromkeys(pairs))
    answers = predict(reader, *map(list, zip(*different, strict=True))) if pairs else []
    score = dict(zip(different, map(score_of, answers), strict=True))
    scored = [
        [hit._replace(score=score[query, hit.text]) for hit in some] for query, some in zip(asked, hits, strict=True)
    ]
    return [sorted(some, key=lambda hit: -hit.score) for some in scored]


def open_reranker(folder: AnyPath, device: str = "auto") -> Classifier | Reader:
    """Open a classifier of pairs with one number, or with two labels, of which the second says that the text answers.

    Raises ValueError for any other model, and what `open_reader` raises.
    """
    reader = open_reader(folder, device=device)
    score_of(predict(reader, ["a"], ["b"])[0])  # raises
    return reader


def score_of(answer: Any) -> float:
    """Return the number, or the probability of the second of two labels. Raises ValueError for any other answer."""
    probabilities = list(answer.get("probabilities", ()))
    if "value" not in answer and not ("label" in answer and len(probabilities) == 2):
        given = brief(probabilities or answer)
        raise ValueError(f"a re-ranker gives a pair a number or one of two labels, and this model gives {given}")
    return float(answer["value"] if "value" in answer else answer["probabilities"][probabilities[1]])
