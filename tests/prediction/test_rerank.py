"""What a search found, sorted by a classifier of pairs: by its score, with every text kept, and no other model."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.words import labelled, write_words_checkpoint

import minibert
from minibert.cli import main as cli
from minibert.prediction.rerank import rerank
from minibert.train import finetune
from minibert.vectors.search import Hit

TEXTS = ["the film", "the book very", "a play", "the meal"]
HITS = [[Hit(3, 0.9, TEXTS[3]), Hit(0, 0.8, TEXTS[0]), Hit(2, 0.7, TEXTS[2])], [Hit(1, 0.6, TEXTS[1])]]
QUERIES = ["the good film", "bad"]


def trained(folder: Path, labels: list[Any], **more: Any) -> Path:
    write_words_checkpoint(folder / "start")
    texts = labelled(len(labels))[0]
    finetune(
        "classify",
        texts,
        labels,
        pairs=texts[::-1],
        model=folder / "start",
        out=folder / "out",
        batch_size=4,
        epochs=1,
        **more,
    )
    return folder / "out"


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("judge"), ["no", "yes"] * 4)


@pytest.mark.parametrize("kind", ["labels", "number"])
def test_the_hits_are_in_the_order_of_the_models_own_answers(kind, judge, tmp_path):
    folder = judge if kind == "labels" else trained(tmp_path, [0.5, 2.0, 1.0, 3.5] * 2, regression=True)
    first, second = rerank(folder, QUERIES, HITS)
    for query, before, after in zip(QUERIES, HITS, (first, second), strict=True):
        answers = minibert.predict(folder, [query] * len(before), [hit.text for hit in before])
        expected = [answer["probabilities"]["yes"] if kind == "labels" else answer["value"] for answer in answers]
        assert {hit.row: hit.score for hit in after} == pytest.approx(
            {hit.row: score for hit, score in zip(before, expected, strict=True)}, abs=1e-5
        )
        assert [hit.score for hit in after] == sorted((hit.score for hit in after), reverse=True)
        assert all(hit.text == TEXTS[hit.row] for hit in after)


def test_equal_scores_keep_the_order_of_the_search_and_no_hits_are_none(judge):
    twins = [[Hit(row, 1 - row / 10, "the film") for row in (4, 2, 9)], []]
    found, none = minibert.rerank(judge, QUERIES, twins)
    assert [hit.row for hit in found] == [4, 2, 9] and none == []
    assert len({hit.score for hit in found}) == 1


def test_search_shows_the_scores_of_the_folder(judge, capsys, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    line = ["search", str(tmp_path / "texts.txt"), QUERIES[0], "--model", str(judge), "--json"]
    assert cli.main([*line, "--rerank", str(judge)]) == 0
    hits = json.loads(capsys.readouterr().out.splitlines()[-1])["queries"][0]["hits"]
    plain = minibert.search(TEXTS, QUERIES[0], model=judge)
    assert hits == [hit._asdict() for hit in rerank(judge, QUERIES[0], plain)[0]]
    assert [hit["score"] for hit in hits] != [hit.score for hit in plain[0]]


@pytest.mark.parametrize(("kind", "message"), [("labels", r"\['a', 'b', 'c'\]"), ("encoder", "no task head")])
def test_a_model_that_gives_no_score_of_a_pair_is_refused_before_the_search(kind, message, capsys, tmp_path):
    folder = trained(tmp_path, ["a", "b", "c"] * 3) if kind == "labels" else write_words_checkpoint(tmp_path / "plain")
    with pytest.raises(ValueError, match=message):
        rerank(folder, QUERIES, HITS)
    assert cli.main(["search", str(tmp_path / "nothing.npy"), "a", "--rerank", str(folder)]) == 2
    error = capsys.readouterr().err
    assert re.search(message, error) and "nothing.npy" not in error


def test_hits_of_other_queries_or_of_pairs_are_refused(judge):
    with pytest.raises(ValueError, match="1 query and hits of 2"):
        rerank(judge, "one", HITS)
    with pytest.raises(ValueError, match="pairs"):
        rerank(judge, "one", [[Hit(0, 1.0, ("a", "b"))]])
    with pytest.raises(FileNotFoundError, match="nowhere"):
        rerank("./nowhere", QUERIES, HITS)
