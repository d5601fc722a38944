"""Sentence vectors learn as with sentence-transformers: losses, gradients, the folder; a step is one large batch."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import compress, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.models import Pair, assert_equal
from support.ranks import OwnTexts
from support.training import Found, pairs_of_texts, write_pairs
from support.words import state_vectors
from torch import Tensor

import minibert
from minibert.checkpoints.sentence_files import Stated, read_stated
from minibert.heads import SentenceVectors
from minibert.prediction.collate import ExampleBatch, collate
from minibert.prediction.packed import packed_output
from minibert.tasks.embedding import Embedding, TextRows, false_negatives
from minibert.train import finetune
from minibert.train.distributed import SINGLE_PROCESS
from minibert.train.loop import readable_output
from minibert.train.sentence_vectors import EmbeddingRun, VectorLoss
from minibert.train.settings import FinetuneSettings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its own imports
    import sentence_transformers
    from sentence_transformers.sentence_transformer import losses

CLOSE = 1e-6
PACKED = 1e-5  # the bound of the step without padding
TEXTS = ["the very good film", "a dull book", "meal", "the awful play very very lovely the book"]
QUICK: dict[str, Any] = {"batch_size": 4, "epochs": 2, "learning_rate": 1e-3}


def batch_of(texts: int, rows: int = 6) -> ExampleBatch:
    """A batch of rows of so many texts, no two of which are equal."""
    return collate(
        pairs_of_texts(rows + 1, texts)[: 2 * texts] + pairs_of_texts(9, texts)[3 * texts :], range(8), 0, texts
    )


# ---------------------------------------------------------------------------------------------------------------
# Losses and gradients


class Peer(torch.nn.Module):
    """A model of transformers as the losses of sentence-transformers call one."""

    def __init__(self, model: Any, pooling: str) -> None:
        super().__init__()
        self.model, self.pooling = model, pooling

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        states = self.model(**features).last_hidden_state
        mask = features["attention_mask"].unsqueeze(-1).float()
        mean = (states * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return {"sentence_embedding": states[:, 0] if self.pooling == "cls" else mean}


LOSSES: dict[str, tuple[int, Embedding, Callable[[Any], Any]]] = {
    "pairs": (2, Embedding(), losses.MultipleNegativesRankingLoss),
    "two hard negatives": (4, Embedding(scale=7.0), lambda peer: losses.MultipleNegativesRankingLoss(peer, scale=7.0)),
    "order": (2, Embedding(), losses.CoSENTLoss),
    "values": (2, Embedding(loss="cosine"), losses.CosineSimilarityLoss),
}


@pytest.mark.parametrize(("output_of", "close"), [(readable_output, CLOSE), (packed_output, PACKED)])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_gradients_are_those_of_sentence_transformers(name, pooling, output_of, close, pair):
    texts, task, their_loss = LOSSES[name]
    batch = batch_of(texts)
    similarity = batch.labels["similarity"] if name in ("order", "values") else None
    if similarity is None:
        batch.labels.pop("similarity")
    both = pair()
    ours = SentenceVectors(both.ours, pooling)
    found = VectorLoss(task.step_loss, output_of)(ours, batch)
    peer = Peer(both.theirs.eval(), pooling)
    names = ("input_ids", "attention_mask", "token_type_ids")
    columns = [{one: getattr(batch, one)[text::texts] for one in names} for text in range(texts)]
    expected = their_loss(peer)(columns, similarity)
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=close)
    found.backward()
    expected.backward()
    for gradient, expected in (
        (both.ours.embeddings.token.weight.grad, peer.model.embeddings.word_embeddings.weight.grad),
        (both.ours.layers[0].attention.query.weight.grad, peer.model.encoder.layer[0].attention.self.query.weight.grad),
    ):
        largest = float(expected.abs().max())  # each value is a sum of terms of about this size
        assert largest > 1e-3
        torch.testing.assert_close(gradient, expected, rtol=0, atol=PACKED * largest)


def negatives_of(rows: list[str]) -> list[str]:
    """The negatives of each row's anchor; a row is an anchor, its pair and hard negatives, a letter each."""
    numbers = torch.tensor([[ord(text) for text in row] for row in rows])
    texts = [chr(number) for number in numbers[:, 1:].T.flatten()]
    return ["".join(compress(texts, ~row)) for row in false_negatives(numbers)]


@pytest.mark.parametrize(
    ("rows", "negatives"),
    [
        # Equal to an anchor or its pair, or a pair of an equal anchor.
        (["abx", "acb", "dey", "faz"], ["bexyz", "cexyz", "ebcaxbyz", "aexyz"]),
        # France and paris, x and paris, france and rome: rome is no negative of x, paris none of the second france.
        (["fp", "xp", "fr", "uv"], ["pv", "pv", "rv", "vppr"]),
        (["ab", "bc", "cd", "de"], ["b", "c", "d", "e"]),
        # Its own hard negative stays one, unless it is a pair of the anchor.
        (["fpn", "xpr", "frm", "uvk"], ["pvnmk", "pvnrmk", "rvnmk", "vpprnrmk"]),
        (["fpr", "frx", "fpf", "uvv"], ["pvxv", "rvxv", "pvxv", "vpprrxf"]),
        (["ab", "cd", "ef"], ["bdf", "dbf", "fbd"]),
    ],
)
def test_what_rows_of_a_step_connect_is_no_negative(rows, negatives):
    assert list(map(sorted, negatives_of(rows))) == list(map(sorted, negatives))


# ---------------------------------------------------------------------------------------------------------------
# A step of several batches


def model_of(pair: Callable[..., Pair], **sizes: Any) -> SentenceVectors:
    torch.manual_seed(0)
    return SentenceVectors(pair(**sizes).ours, "mean").double()


@pytest.mark.parametrize("output_of", [readable_output, packed_output])
def test_batches_of_any_sizes_add_up_to_one_large_batch(output_of, pair):
    model, rows = model_of(pair), [replace(row, labels={"numbers": row.labels["numbers"]}) for row in pairs_of_texts(9)]

    def found(kind, ends):
        parts = [collate(rows[2 * a : 2 * b], range(a, b), 0, 2) for a, b in pairwise(ends)]
        return Found.of_step(kind(Embedding().step_loss, output_of), model, parts)

    whole = found(VectorLoss, [0, 9])
    assert max(found(VectorLoss, [0, 4, 5, 9]).apart(whole).values()) < PACKED
    assert max(found(OwnTexts, [0, 4, 5, 9]).apart(whole).values()) > 0.01  # a mistake


def test_both_passes_of_a_step_have_the_same_dropout(pair, monkeypatch):
    """So the loss of the step is the same, whichever of its batches has gradients."""
    model = model_of(pair, hidden_dropout_prob=0.2).train()
    parts = [collate(pairs_of_texts(4, seed=seed), range(4), 0, 2) for seed in (1, 2)]

    def spread():
        loss = VectorLoss(Embedding().step_loss, packed_output).of_step(model, parts, "float32", SINGLE_PROCESS)
        one, other = (float(loss.means(model, part)["loss"].detach()) for part in parts)
        return abs(one - other)

    assert spread() < 1e-9
    monkeypatch.setattr("minibert.train.sentence_vectors.set_random_states", lambda *_: None)
    assert spread() > 1e-3


# ---------------------------------------------------------------------------------------------------------------
# The folder


def peer_vectors(folder: Path, texts: list[str]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(texts)


@pytest.fixture(scope="module", params=[("mean", False), ("cls", True)], ids=["mean", "cls, normalized"])
def trained(
    request: pytest.FixtureRequest, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Path, Stated]:
    """A trained model, its folder, and how its vectors are made."""
    place = tmp_path_factory.mktemp("trained")
    pooling, normalize = request.param
    how = QUICK | {"pooling": pooling, "normalize": normalize, "max_length": 9}
    model = finetune("embed", write_pairs(place / "pairs.tsv"), out=place / "out", model=checkpoint, **how)
    return model, place / "out", Stated(pooling, normalize, 9)


@pytest.mark.filterwarnings("ignore::minibert.text.tokenized.TruncationWarning")
def test_sentence_transformers_reads_the_folder_and_makes_the_same_vectors(trained):
    model, out, stated = trained
    assert read_stated(out) == stated
    texts = [*TEXTS, "film " * 30]
    vectors = minibert.embed(texts, out)
    assert np.abs(vectors - peer_vectors(out, texts)).max() < CLOSE
    assert np.abs(np.linalg.norm(vectors, axis=1) - 1).max() < 1e-5 or not stated.normalize
    assert np.abs(vectors - minibert.embed(texts, model)).max() < CLOSE
    assert np.abs(vectors - minibert.embed(texts, out, pooling="max")).max() > 0.01


def test_a_trained_model_predicts_the_similarity_of_pairs_and_the_vector_of_a_text(trained):
    model, *_ = trained
    first, second = minibert.embed(TEXTS[:2], model)
    cosine = float(first @ second / np.linalg.norm(first) / np.linalg.norm(second))
    assert model.predict([TEXTS[0]], [TEXTS[1]])[0]["similarity"] == pytest.approx(cosine, abs=1e-5)
    np.testing.assert_allclose(model.predict([TEXTS[0]])[0]["vector"], first, atol=1e-5)


def test_the_pooler_of_the_checkpoint_is_kept(trained, checkpoint):
    start, end = (minibert.load(place).pooler for place in (checkpoint, trained[1]))
    assert start is not None and end is not None
    assert_equal(start.state_dict(), end.state_dict())


def test_a_folder_that_sentence_transformers_wrote_makes_the_same_vectors(folder, tmp_path):
    state_vectors(folder, "mean", True, 12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sentence_transformers.SentenceTransformer(str(folder), device="cpu").save(str(tmp_path / "theirs"))
    assert np.abs(minibert.embed(TEXTS, tmp_path / "theirs") - peer_vectors(folder, TEXTS)).max() < CLOSE


def test_a_checkpoint_that_states_its_vectors_is_trained_as_it_states(folder, tmp_path):
    state_vectors(folder, "cls", True, 12)
    finetune("embed", write_pairs(tmp_path / "pairs.tsv"), out=tmp_path / "out", model=folder, **QUICK)
    assert read_stated(tmp_path / "out") == Stated("cls", True, 20)


# ---------------------------------------------------------------------------------------------------------------
# A run


def test_pairs_find_each_other_after_training_and_the_best_epoch_is_kept(folder, tmp_path, run):
    data = write_pairs(tmp_path / "pairs.tsv")
    before = minibert.measure_retrieval(*columns_of(data), model=folder, pooling="mean").figures["mrr@10"]
    out = tmp_path / "out"
    printed = run("finetune", "embed", data, "--dev", data, "--model", folder, "--out", out, "--epochs", 8,
                  "--learning-rate", 2e-3, "--batch-size", 8, "--pooling", "mean")  # fmt: skip
    after = minibert.measure_retrieval(*columns_of(data), model=out).figures["mrr@10"]
    assert after > before + 0.1
    assert f"mrr@10 {after:.4f}" in printed
    assert minibert.load(out).config.num_hidden_layers == minibert.load(folder).config.num_hidden_layers


def columns_of(path: Path) -> tuple[list[str], list[str]]:
    first, second = zip(*(line.split("\t") for line in path.read_text().splitlines()), strict=True)
    return list(first), list(second)


def test_text_alone_is_learned_by_reading_it_twice_with_other_dropout(folder, tmp_path):
    texts = {"text": columns_of(write_pairs(tmp_path / "pairs.tsv"))[0]}
    model = finetune("embed", texts, model=folder, **QUICK)
    start = minibert.load(folder)
    weights = [encoder.layers[0].attention.query.weight.detach() for encoder in (model.encoder, start)]
    assert float((weights[0] - weights[1]).abs().max()) > 1e-4


# ---------------------------------------------------------------------------------------------------------------
# What is refused


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    def write(*lines, name="rows.tsv"):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
        return tmp_path / name

    yield write


def refused(data: Any, folder: Path, pattern: str, dev: Any = None, **settings: Any) -> None:
    with pytest.raises(ValueError, match=pattern):
        finetune("embed", data, dev=dev, model=folder, **(QUICK | settings))


def test_a_step_without_another_text_is_refused(folder, rows):
    refused(rows("good\tfine", "bad\tdull", "a\tb"), folder, r"1 row\b.*a batch of 2", batch_size=1)
    refused(rows("good\tfine", "good film\tfine", "film\tfine"), folder, "all 3 rows have the same text")
    refused({"text": ["good"] * 3}, folder, "all 3 rows have the same text")


def test_similarities_that_cannot_be_learned_are_refused(folder, rows):
    refused(rows("good\tfine\t1", "bad\tdull\tnan"), folder, r"line 2\b.*nan")
    refused(rows("good\tfine\t1", "bad\tdull\tvery"), folder, "line 2.*'very'.*number")
    refused(rows("good\tfine\t3", "bad\tdull\t3"), folder, "all 2 rows is the same")
    refused(rows("good\tfine\t1", "bad\tdull\t5"), folder, "row 1 .* 5; .*highest=5", loss="cosine")
    refused(rows("good\tfine", "bad\tdull", "a\tb"), folder, "'cosine'.*no similarity", loss="cosine")
    with pytest.raises(TypeError, match="pairs="):
        finetune("embed", ["good", "bad"], [1, 2], model=folder)


def test_missing_texts_and_lengths_that_differ_are_refused(folder, rows):
    refused(rows("good\tfine\tbad", "bad\tdull\t", "a\tb\tc"), folder, "line 2.*empty cell")
    refused({"text": ["good", "bad"], "pair": ["fine"]}, folder, "text 2, pair 1", text="text", pair="pair")


def test_files_whose_columns_are_not_certain_are_refused(folder, rows):
    refused(rows("a\tb\tc", "good\tfine\t1", "bad\tdull\t2"), folder, "'a', 'b', 'c'.*text=")
    refused(rows("good\tfine", "bad\tdull"), folder, "pair", text="1", negatives=("2",))
    refused(rows("good\tfine\t1"), folder, "not both", text="1", pair="2", label="3", negatives=("3",))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a good film", "bad"], "dev cannot be measured.* one text"),
        (["a good film\tfine", "bad\tfine"], "dev cannot be measured.* 1 text$"),
        (["a good film\tfine\t3", "bad\tdull\t3.0"], "dev cannot be measured.*2 different scores"),
        (["a good film\tfine\t3"], "dev cannot be measured.*2 different scores"),
        (["a good film\tfine\t3", "bad\tdull\t1e308"], r"dev\.tsv, line 2, .*1e308.*3\.4e\+38"),
    ],
)
def test_a_dev_file_that_cannot_be_measured_is_refused_before_the_model_is_found(lines, message, folder, rows):
    pairs = rows("a good film\tfine", "bad\tdull")
    refused(pairs, folder / "nowhere", message, dev=rows(*lines, name="dev.tsv"))
    if "dev cannot" in message:
        with pytest.raises(ValueError, match=message.partition(".*")[2]):
            Embedding().measure([], Embedding().read(rows(*lines, name="dev.tsv")), [])


def test_poolings_that_are_not_trained_are_refused(folder, rows):
    pairs = rows("good\tfine", "bad\tdull", "a\tb")
    state_vectors(folder, "max", False, 12)
    refused(pairs, folder, "max")
    refused(pairs, folder, "'encoder'.*nothing would be trained", pooling="mean", freeze="encoder")


def test_the_rows_are_counted_and_not_their_texts(folder, rows):
    data = TextRows((["good", "bad", "fine"], ["film", "book", "play"], ["a", "b", "c"]))
    dev = TextRows((["good", "bad"], ["film", "book"]))
    settings = FinetuneSettings(model=str(folder), device="cpu")
    assert "3 rows, 2 for evaluation;" in EmbeddingRun.of(Embedding(), data, dev, settings).summary
