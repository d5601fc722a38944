"""How good vectors are: correlations as scipy has them, ranks counted by hand, errors as repeated draws show them."""

import json
import math

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import ndcg_score
from support.words import write_words_checkpoint

import minibert
from minibert.tasks import vector_measures as measures
from minibert.tasks.vector_measures import measure_file, measure_retrieval, measure_similarity, ranking_scores

FIRST = ["the good film", "the bad film", "a dull film", "fine words", "one text"]
SECOND = ["the good film", "the good film", "one text", "words", "fine film"]
SCORES = [5.0, 2.0, 0.5, 4.0, 0.0]


def test_correlations_are_those_of_scipy_over_the_cosines_of_the_vectors(checkpoint):
    a, b = (minibert.embed(side, checkpoint, pooling="mean").astype(np.float64) for side in (FIRST, SECOND))
    cosines = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    found = measure_similarity(FIRST, SECOND, SCORES, checkpoint, pooling="mean")
    assert found.figures["pearson"] == pytest.approx(pearsonr(SCORES, cosines).statistic, abs=1e-6)
    assert found.figures["spearman"] == pytest.approx(spearmanr(SCORES, cosines).statistic)
    assert found.rows == 5
    other = measure_similarity(FIRST, SECOND, SCORES[::-1], checkpoint, pooling="mean")
    assert other.figures != found.figures


def test_the_error_of_a_correlation_is_the_deviation_over_new_samples(monkeypatch):
    """Of a normal pair with correlation r it is (1 - r²) / √n."""
    random = np.random.default_rng(0)
    r, n = 0.8, 400
    x = random.normal(size=n)
    y = r * x + math.sqrt(1 - r * r) * random.normal(size=n)
    draws = random.integers(n, size=(measures.DRAWS, n))
    assert measures.bootstrap_error(x, y, draws) == pytest.approx((1 - r * r) / math.sqrt(n), rel=0.15)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("seed", range(5))
def test_figures_of_a_ranking_are_those_of_scikit_learn_and_of_counting(seed, count):
    random = np.random.default_rng(seed)
    rows = random.permutation(30).tolist()
    right = set(random.choice(30, count, replace=False).tolist())
    found = ranking_scores(rows, right)
    relevance = [[int(row in right) for row in rows]]
    assert found["ndcg@10"] == pytest.approx(ndcg_score(relevance, [range(30, 0, -1)], k=10))
    ranks = [rank for rank, row in enumerate(rows, start=1) if row in right]
    assert found["mrr@10"] == (1 / ranks[0] if ranks[0] <= 10 else 0)
    for k in (1, 5, 10):
        assert found[f"recall@{k}"] == sum(rank <= k for rank in ranks) / count


def test_equal_texts_are_one_and_equal_queries_have_several_right_texts(checkpoint):
    queries = ["the film", "the film", "fine words", "fine words"]
    texts = ["a dull film", "one text", "fine words", "fine words"]
    found = measure_retrieval(queries, texts, checkpoint, pooling="mean")
    assert (found.rows, found.texts) == (2, 3)
    assert found.figures["recall@5"] == 1.0 and found.errors["recall@5"] == 0.0
    assert found.figures["recall@1"] in (0.5, 0.75)  # one of two right texts, and the text itself


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: measure_similarity(["a"], ["b"], [1.0, 2.0], model), "1 text, 1 pair, 2 scores"),
        (lambda model: measure_similarity(["a"] * 2, ["b"] * 2, ["a", 1], model), "row 0 has the score 'a'"),
        (lambda model: measure_similarity(["a"] * 2, ["b"] * 2, [1.0, 1.0], model), "2 different scores.* 1$"),
        (lambda model: measure_similarity([], [], [], model), "2 different scores.* 0$"),
        (lambda model: measure_retrieval(["a"], ["b", "c"], model), "1 query and 2 texts"),
        (lambda model: measure_retrieval(["a", "b"], ["c", "c"], model), "1 text$"),
    ],
)
def test_what_cannot_be_measured_is_refused(call, message, checkpoint):
    with pytest.raises(ValueError, match=message):
        call(checkpoint)


@pytest.mark.parametrize("header", [True, False])
def test_a_table_is_read_by_usual_names_or_by_order(header, checkpoint, file):
    rows = [f'"{a}","{b}",{score}' for a, b, score in zip(FIRST, SECOND, SCORES, strict=True)]
    path = file("sts.csv", "\n".join(["sentence1,sentence2,score"] * header + rows) + "\n")
    expected = measure_similarity(FIRST, SECOND, SCORES, checkpoint, pooling="mean")
    recipe = minibert.Recipe("mean")
    assert measure_file(path, "similarity", checkpoint, recipe=recipe).figures == expected.figures
    path.write_text("sentence1,sentence2,score\na,b,high\n")
    with pytest.raises(ValueError, match=r"line 2.* 'high'"):
        measure_file(path, "similarity", checkpoint)


def test_the_command_measures_a_checkpoint_without_a_head_or_the_vectors_of_any(checkpoint, file, run, tmp_path):
    path = file("sts.tsv", "".join(f"{a}\t{b}\t{s}\n" for a, b, s in zip(FIRST, SECOND, SCORES, strict=True)))
    out = run("evaluate", checkpoint, path, "--pooling", "mean", "--json")
    figures = json.loads(out.splitlines()[-1])
    expected = measure_similarity(FIRST, SECOND, SCORES, checkpoint, pooling="mean")
    assert figures["spearman"] == pytest.approx(expected.figures["spearman"])
    assert f"{figures['spearman']:.4f} ± {figures['spearman_error']:.4f}" in out
    path.write_text("query\ttext\n" + "".join(f"{a}\t{b}\n" for a, b in zip(FIRST, SECOND, strict=True)))
    head = write_words_checkpoint(tmp_path / "head", head="sequence-classification")
    for folder in (checkpoint, head):
        assert "5 queries among 4 texts" in " ".join(run("evaluate", folder, path, "--vectors", "retrieval").split())


@pytest.mark.parametrize("names", ["query-id,corpus-id,score,query,document", "question,passage"])
def test_the_usual_names_of_queries_and_documents_are_known(names, checkpoint, file):
    others = len(names.split(",")) - 2
    rows = [",".join([*["1"] * others, a, b]) for a, b in zip(FIRST, SECOND, strict=True)]
    path = file("pairs.csv", "\n".join([names, *rows]) + "\n")
    found = measure_file(path, "retrieval", checkpoint, recipe=minibert.Recipe("mean"))
    assert found == measure_retrieval(FIRST, SECOND, checkpoint, pooling="mean")


def test_a_text_that_does_not_answer_its_query_is_refused(checkpoint, file):
    path = file("qrels.tsv", "query\tdocument\tscore\na\tone text\t1\nb\tthe film\t0\n")
    with pytest.raises(ValueError, match=r"line 3, has the score 0\b"):
        measure_file(path, "retrieval", checkpoint)


def test_a_header_or_a_row_above_a_single_row_is_refused(checkpoint, file):
    path = file("pairs.csv", "frage,antwort\nthe good film,one text\n")
    with pytest.raises(ValueError, match=r"'frage', 'antwort'.*--text"):
        measure_file(path, "retrieval", checkpoint)
    assert measure_file(path, "retrieval", checkpoint, columns=("1", "2")).rows == 2
