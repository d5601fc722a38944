"""Pretraining: equal to transformers step by step, resumed to the bit, refused where nothing can be learned."""

from __future__ import annotations

import itertools
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from training import CLOSE, Found, upstream_training
from words import OTHER, WORDS, write_words_checkpoint

import minibert
from minibert.cli import main as cli
from minibert.losses import IGNORED
from minibert.parity.compare import parameter_pairs
from minibert.train import pretrain
from minibert.train import pretraining as room
from minibert.train.batches import Batch
from minibert.train.loop import Losses, Settings, one_step, train
from minibert.train.pretraining import Job, Request, losses, score
from minibert.train.stream import Stream

pytestmark = pytest.mark.usefixtures("one_thread")
SIZES = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20}
CONFIG = SIZES | {"max_position_embeddings": 24}
QUICK: dict[str, Any] = {"max_length": 16, "batch_size": 4, "learning_rate": 1e-3, "precision": "float32"}


def write_corpus(path: Path, documents: int = 40) -> Path:
    """Documents of three sentences, each about one thing."""
    sentences = [
        [f"the {OTHER[row % 4]} very {word}" for word in (WORDS[row % 6], WORDS[(row + 1) % 6], "fine")]
        for row in range(documents)
    ]
    path.write_text("\n\n".join("\n".join(lines) for lines in sentences) + "\n")
    return path


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a tokenizer, a corpus, and a config for a new model."""
    folder = write_words_checkpoint(tmp_path_factory.mktemp("words"))
    write_corpus(folder / "corpus.txt")
    (folder / "small.json").write_text(json.dumps(CONFIG))
    return folder


def job(words: Path, **how: Any) -> Job:
    given = {"tokenizer": str(words), "config": str(words / "small.json")} | QUICK | how
    return Job.of(room.request_of(str(words / "corpus.txt"), given))


OBJECTIVES = ["mlm", "mlm+nsp", "mlm+sop"]


# ---------------------------------------------------------------------------------------------------------------
# Batches


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_each_batch_is_a_function_of_its_number(objective: str, words: Path, tmp_path: Path) -> None:
    one = job(words, objective=objective, steps=40)
    whole = list(room.replace(one.stream(tmp_path), journal=None).of_epoch(0))
    for first in (0, 1, 17, 39):
        rest = list(room.replace(one.stream(tmp_path), journal=None, given=[]).of_epoch(0, first))
        assert len(rest) == 40 - first
        for batch, again in zip(whole[first:], rest, strict=True):
            assert torch.equal(batch.input_ids, again.input_ids)
            assert torch.equal(batch.labels["labels"], again.labels["labels"])


def test_a_window_that_was_read_is_not_read_again_to_find_a_place(
    words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = job(words, steps=60)
    small = room.replace(one, corpus=room.replace(one.corpus, window=200))
    assert small.corpus.windows > 5
    whole = list(small.stream(tmp_path).of_epoch(0))
    read: list[int] = []
    right = Stream.of_window
    monkeypatch.setattr(Stream, "of_window", lambda self, number: (read.append(number), right(self, number))[1])
    rest = list(small.stream(tmp_path).of_epoch(0, 50))
    assert all(torch.equal(a.input_ids, b.input_ids) for a, b in zip(whole[50:], rest, strict=True))
    assert min(read) > 5


def test_a_journal_that_a_kill_cut_off_is_taken_up_to_its_last_whole_line(words: Path, tmp_path: Path) -> None:
    one = job(words, steps=30)
    small = room.replace(one, corpus=room.replace(one.corpus, window=200))
    whole = list(small.stream(tmp_path).of_epoch(0))
    journal = tmp_path / "windows.txt"
    journal.write_text(journal.read_text()[:-2])
    rest = list(small.stream(tmp_path).of_epoch(0, 20))
    assert all(torch.equal(a.input_ids, b.input_ids) for a, b in zip(whole[20:], rest, strict=True))


def test_what_is_hidden_is_new_each_time_a_sentence_comes_by(words: Path, tmp_path: Path) -> None:
    one = job(words, objective="mlm", steps=60)
    seen: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for batch in one.stream(tmp_path).of_epoch(0):
        for ids, labels in zip(batch.input_ids, batch.labels["labels"], strict=True):
            original = torch.where(labels == IGNORED, ids, labels)
            seen.setdefault(tuple(original.tolist()), set()).add(tuple(labels.tolist()))
    assert max(map(len, seen.values())) > 2


# ---------------------------------------------------------------------------------------------------------------
# Beside transformers


def both(words: Path, tmp_path: Path, objective: str) -> tuple[Any, Any, Job]:
    """A new model on both sides, with dropout."""
    one = job(words, objective=objective, steps=20, step="readable")
    torch.manual_seed(0)
    ours = one.new_model()
    minibert.save(ours, tmp_path / "begun")
    kind = "MaskedLM" if objective == "mlm" else "PreTraining"
    return ours, upstream(kind, tmp_path / "begun"), one


def upstream(kind: str, folder: Path) -> Any:
    """transformers' model, its weights where torch would put them: see README on how they are mapped."""
    model = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(folder, attn_implementation="eager")
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return model


class Renamed:
    """The stream's batches with the label under the name that BertForPreTraining gives it."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.an_epoch = stream, stream.an_epoch

    def of_epoch(self, epoch: int, first: int = 0) -> Any:
        for batch in self.stream.of_epoch(epoch, first):
            labels = dict(batch.labels)
            if "sentence_order_label" in labels:
                labels["next_sentence_label"] = labels.pop("sentence_order_label")
            yield room.replace(batch, labels=labels)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_twenty_readable_steps_are_those_of_transformers_bit_for_bit(
    objective: str, words: Path, tmp_path: Path
) -> None:
    ours, theirs, one = both(words, tmp_path, objective)
    stream, settings = one.stream(tmp_path), room.replace(one.settings, learning_rate=1e-3)
    pairs = parameter_pairs(ours, theirs)
    torch.manual_seed(3)
    progress = train(ours, stream, settings, loss_of=partial(losses, objective, "readable"))
    torch.manual_seed(3)
    batches: Any = Renamed(stream)
    # clipping sums the squares of gradients in the order of the parameters: see tests/train/test_loop.py
    curve = upstream_training(theirs, batches, settings, [p for _, _, p in pairs])
    assert progress.curve == curve
    assert len(curve) == 20
    assert all(torch.equal(p, other) for _, p, other in pairs)
    if objective != "mlm":
        assert [round(sum(parts), 4) for parts in zip(*progress.parts.values(), strict=True)] == [
            round(loss, 4) for loss in curve
        ]


def batch_of(one: Job, tmp_path: Path) -> Batch:
    return next(one.stream(tmp_path).of_epoch(0))


def summed(found: Losses) -> torch.Tensor:
    assert isinstance(found, dict)
    return torch.stack(list(found.values())).sum()


def shifted(batch: Batch) -> Batch:
    """Labels off by one place."""
    return room.replace(batch, labels={**batch.labels, "labels": batch.labels["labels"].roll(1, dims=1)})


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_packed_step_is_the_readable_one(objective: str, words: Path, tmp_path: Path) -> None:
    one = job(words, objective=objective, batch_size=16)
    torch.manual_seed(0)
    model, batch = one.new_model().eval(), batch_of(one, tmp_path)

    def found(step: str, batch: Batch) -> Found:
        return Found.of(lambda model, batch: summed(losses(objective, step, model, batch)), model, batch)

    right = found("readable", batch)
    assert max(found("packed", batch).apart(right).values()) < CLOSE
    assert max(found("packed", shifted(batch)).apart(right).values()) > 1e-2  # the control


def test_uneven_parts_of_a_step_are_the_step_of_the_whole(words: Path, tmp_path: Path) -> None:
    """Masked words are counted by token, next sentences by row: sums, no means of means."""
    one = job(words, batch_size=12)
    torch.manual_seed(0)
    model = one.new_model().eval()
    rows = list(itertools.islice(one.stream(tmp_path).rows(0), 12))
    masked = [room.masked(row, one.masking, number) for number, row in enumerate(rows)]

    def step(sizes: list[int]) -> dict[str, torch.Tensor]:
        cuts = [0, *itertools.accumulate(sizes)]
        parts = [room.collate(masked[a:b], range(a, b), 0) for a, b in itertools.pairwise(cuts)]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        room_losses = partial(losses, "mlm+nsp", "packed")
        one_step(model, parts, optimizer, room_losses, Settings(clip=1e9), 1)
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    whole, parted = step([12]), step([1, 8, 3])
    for name, gradient in whole.items():
        assert (gradient - parted[name]).abs().max() < 1e-6, name


# ---------------------------------------------------------------------------------------------------------------
# Runs


def test_a_batch_is_learned_by_heart(words: Path, tmp_path: Path) -> None:
    """Who cannot overfit one batch has a mistake in labels, masks or gradients."""
    one = job(words, batch_size=4)
    torch.manual_seed(0)
    model, batch = one.new_model(), batch_of(one, tmp_path)

    class Same:
        an_epoch = 150

        def of_epoch(self, epoch: int, first: int = 0) -> Any:
            return itertools.repeat(batch, self.an_epoch)

    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    settings = Settings(epochs=1, learning_rate=1e-2, clip=1.0)
    progress = train(model, Same(), settings, loss_of=partial(losses, "mlm+nsp", "packed"))
    assert progress.parts["masked-lm"][-1] < 0.01
    assert progress.parts["next-sentence"][-1] < 0.01


def test_what_was_learned_is_an_ordinary_checkpoint(words: Path, tmp_path: Path) -> None:
    how = QUICK | {"steps": 30, "save_every": 10, "learning_rate": 3e-3}
    model: Any = pretrain(
        words / "corpus.txt", out=tmp_path / "out", config=words / "small.json", tokenizer=words, **how
    )
    report = json.loads((tmp_path / "out" / "training.json").read_text())
    assert [entry["step"] for entry in report["epochs"]] == [10, 20, 30]
    assert len(report["curves"]["masked-lm"]) == len(report["curves"]["next-sentence"]) == 30
    assert report["epochs"][-1]["masked_lm_loss"] < report["epochs"][0]["masked_lm_loss"]
    theirs = upstream("PreTraining", tmp_path / "out").eval()
    ids = torch.arange(5, 12)[None]
    with torch.no_grad():
        assert torch.equal(model(ids).prediction_logits, theirs(ids).prediction_logits)
    assert not (tmp_path / "out.training").exists()
    assert minibert.embed(["the film"], model=tmp_path / "out").shape == (1, 12)


def test_a_run_that_was_broken_off_is_resumed_to_the_same_bits(
    words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how: dict[str, Any] = QUICK | {"steps": 12, "save_every": 4, "config": words / "small.json", "tokenizer": words}
    corpus = words / "corpus.txt"
    whole = pretrain(corpus, out=tmp_path / "whole", **how)
    left = {"steps": 7}
    right = room.losses

    def broken_off(*given: Any) -> Any:
        left["steps"] -= 1
        if left["steps"] < 0:
            raise KeyboardInterrupt
        return right(*given)

    monkeypatch.setattr(room, "losses", broken_off)
    with pytest.raises(KeyboardInterrupt):
        pretrain(corpus, out=tmp_path / "out", **how)
    monkeypatch.setattr(room, "losses", right)
    resumed = pretrain(corpus, out=tmp_path / "out", **how)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))
    first, second = (json.loads((tmp_path / name / "training.json").read_text()) for name in ("whole", "out"))
    assert first["curves"] == second["curves"]
    assert first["epochs"] == second["epochs"]


def test_a_checkpoint_goes_on(words: Path, tmp_path: Path) -> None:
    model = pretrain(words / "corpus.txt", out=tmp_path / "out", init=words, steps=2, objective="mlm", **QUICK)
    begun = minibert.load(words)
    assert model.config.hidden_size == begun.config.hidden_size
    moved = (model.encoder.embeddings.token.weight - begun.embeddings.token.weight).abs().max()
    assert 0 < moved < 0.01


def test_the_score_is_the_mean_over_hidden_words(words: Path, tmp_path: Path) -> None:
    one = job(words)
    torch.manual_seed(0)
    model: Any = one.new_model().eval()
    found = score(model, one.held_out, "mlm+nsp")
    sums, right, count, told = 0.0, 0, 0, 0
    for row in one.held_out:
        with torch.no_grad():
            out = model(torch.tensor([row.ids]), token_type_ids=torch.tensor([row.segments]))
        labels = torch.tensor(row.labels["labels"])
        wanted = labels != IGNORED
        logits = out.prediction_logits[0][wanted]
        sums += float(torch.nn.functional.cross_entropy(logits, labels[wanted], reduction="sum"))
        right += int((logits.argmax(-1) == labels[wanted]).sum())
        count += int(wanted.sum())
        told += int(out.seq_relationship_logits.argmax() == row.labels["next_sentence_label"])
    assert found["masked_tokens"] == count
    assert found["masked_lm_loss"] == pytest.approx(sums / count, rel=1e-5)
    assert found["masked_accuracy"] == right / count
    assert found["next_sentence_accuracy"] == told / len(one.held_out)


def test_the_command_looks_learns_and_says_how_it_goes(
    words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["pretrain", str(words / "corpus.txt"), "--tokenizer", str(words), "--config", str(words / "small.json")]
    args += ["--steps", "4", "--save-every", "2", "--max-length", "16", "--batch-size", "4", "--whole-words"]
    assert cli.main([*args, "--out", str(tmp_path / "out"), "--json"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("corpus         36 documents")
    assert [line.split()[:2] for line in printed if line.startswith("step ")] == [["step", "2"], ["step", "4"]]
    figures = json.loads(printed[-1])
    assert figures["steps"] == 4
    assert {"masked_lm_loss", "masked_accuracy", "next_sentence_accuracy"} <= set(figures["dev"])


# ---------------------------------------------------------------------------------------------------------------
# What cannot be learned


@pytest.mark.parametrize(
    ("content", "words_of"),
    [
        (
            "the film\n\nthe book\n\nthe play\n",
            "each of the 3 documents has one sentence, so that none follows another",
        ),
        ("the film\nthe book\nthe play\n", "is one document, and random sentences are to come from another"),
        ("東京\n大阪\n\n京都\n奈良\n", "100% of its tokens are unknown to the vocabulary"),
        ("\u200b\n\n\u200b\n", "each of the 2 documents has one sentence"),
    ],
    ids=["one sentence each", "one document", "another language", "nothing to see"],
)
def test_a_corpus_from_which_nothing_can_be_learned_is_refused(
    content: str, words_of: str, words: Path, tmp_path: Path
) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text(content)
    request = room.request_of(
        str(path), {"tokenizer": str(words), "config": str(words / "small.json"), "dev": str(words / "corpus.txt")}
    )
    with pytest.raises(ValueError, match=words_of):
        Job.of(room.replace(request, max_length=16))


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"steps": 0}, "steps is 0; it must be at least 1"),
        ({"objective": "clm"}, "objective is 'clm'; choose from mlm, mlm"),
        ({"max_length": 25}, "max_length is 25; it must be at least 8, and the model has positions for 24 tokens"),
        ({"max_length": 3}, "max_length is 3; it must be at least 8"),
        ({"mask_rate": 1.0}, "mask rate is 1.0"),
        ({"step": "fast"}, "step is 'fast'; choose packed or readable"),
        ({"phrases": os.devnull}, "is a device, not a file"),
        ({"init": "x"}, "either config, for a new model, or init"),
        ({"tokenizer": None}, "a new model needs a tokenizer"),
    ],
)
def test_a_request_that_cannot_be_is_refused_before_anything_is_computed(
    how: dict[str, Any], told: str, words: Path
) -> None:
    with pytest.raises(ValueError, match=told):
        job(words, **how)


def test_a_config_for_another_vocabulary_is_refused(words: Path, tmp_path: Path) -> None:
    (tmp_path / "wide.json").write_text(json.dumps(CONFIG | {"vocab_size": 9999}))
    with pytest.raises(ValueError, match="vocab_size is 9,999, and the tokenizer has"):
        job(words, config=str(tmp_path / "wide.json"))


def test_what_may_go_wrong_is_said_beforehand(words: Path, tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("the film\n\n" * 30 + "the book\nvery bad\n\n" * 10)
    request = room.request_of(
        str(path),
        QUICK | {"tokenizer": str(words), "config": str(words / "small.json"), "dev": str(words / "corpus.txt")},
    )
    findings = Job.of(request).findings
    assert findings.alone == 0.75
    assert findings.repeated == pytest.approx(1 - 3 / 50)
    assert "75.0% of the documents have one sentence" in findings.text
    assert "learned by heart" in findings.text


def test_a_run_begun_with_another_corpus_is_not_resumed(words: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="steps was 9 and is 2"):
        asked = job(words, steps=9).asked
        (tmp_path / "out.training").mkdir()
        (tmp_path / "out.training" / "asked.json").write_text(json.dumps(asked))
        how = QUICK | {"steps": 2, "config": words / "small.json", "tokenizer": words}
        pretrain(words / "corpus.txt", out=tmp_path / "out", **how)


def test_request_and_settings_have_no_name_in_common() -> None:
    assert not set(Request.__dataclass_fields__) & set(Settings.__dataclass_fields__)
