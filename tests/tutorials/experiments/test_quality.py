"""Quality beside transformers: both sides begin alike and learn from the same batches in the same order.

Pretraining against the possible: the whole way on a small scale, with its goals, picture and guesses.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grammar
import novels
import possible
import pytest
import quality
import torch
import transfer
from support.words import labelled, write_words_checkpoint

from minibert.heads import Head
from minibert.tasks.classification import Classification
from minibert.tasks.embedding import Embedding
from minibert.train import loop
from minibert.train.estimator import prepare
from minibert.train.finetuning import FinetuneRun
from minibert.train.settings import FinetuneSettings

pytestmark = [
    pytest.mark.filterwarnings("ignore:all .* texts were predicted"),  # models that have hardly begun
    pytest.mark.filterwarnings("ignore:.* words of the corpus"),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without dropout, so that the packed and the padded step learn the same."""
    place = tmp_path_factory.mktemp("checkpoint")
    return write_words_checkpoint(place, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def data() -> tuple[Classification, Any, Any]:
    task = Classification()
    return task, task.from_labels(*labelled(24)), task.from_labels(*labelled(12))


def similar() -> tuple[Embedding, Any, Any]:
    task = Embedding()
    texts, _ = labelled(24)
    return task, task.from_labels(texts, [row % 5 for row in range(24)], texts[::-1]), None


def weights_after(
    side: Callable[[FinetuneRun, Head], Head], checkpoint: Path, data: Callable[[], tuple[Any, Any, Any]] = data
) -> dict[str, torch.Tensor]:
    settings = FinetuneSettings(
        model=str(checkpoint), epochs=2, batch_size=8, learning_rate=1e-3, precision="float32", device="cpu"
    )
    run = prepare(*data(), settings)
    torch.manual_seed(0)
    model = side(run, run.new_model())
    # The gradient of a key's bias is zero but for rounding, which Adam turns into whole steps.
    return {name: weight for name, weight in model.named_parameters() if not name.endswith("key.bias")}


@pytest.mark.parametrize("data", [data, similar])
def test_the_two_sides_end_at_the_same_weights_without_dropout_and_another_learning_rate_is_caught(
    data: Any, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = (weights_after(side, checkpoint, data) for side in (quality.train_ours, quality.train_theirs))
    assert all((weight - theirs[name]).abs().max() < 1e-4 for name, weight in ours.items())
    monkeypatch.setattr(quality, "learning_rate_at", lambda *args: 2 * loop.learning_rate_at(*args))
    theirs = weights_after(quality.train_theirs, checkpoint, data)
    assert any((weight - theirs[name]).abs().max() > 1e-3 for name, weight in ours.items())


def test_the_command_prints_both_sides_and_fails_where_they_are_apart(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(quality, "DATA", {"small": ()})
    monkeypatch.setattr(quality, "read_data", lambda name, folder: data())
    monkeypatch.setenv("MINIBERT_DATA", str(tmp_path))
    assert quality.main(["small", "--model", str(checkpoint), "--seeds", "2", "--epochs", "2", "--json"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:4] == ["small", "24", "12", "accuracy"]
    apart = quality.Comparison(
        "accuracy", 1, 1, 0.1, {"minibert": [0.9], "transformers": [0.5]}, {"minibert": [1.0], "transformers": [1.0]}
    )
    monkeypatch.setattr(quality, "train_both", lambda *args: apart)
    assert quality.main(["small"]) == 1


@pytest.mark.parametrize(
    ("program", "arguments", "has_data", "message"),
    [
        (quality, [], False, "one of sst2, mrpc, wnut17, sts, xquad"),
        (quality, ["imdb"], True, "one of sst2, mrpc, wnut17, sts, xquad"),
        (transfer, [], False, "one of sst2, mrpc"),
        (grammar, ["--model", "minibert-novels"], True, "zorro has no pairs"),
        (novels, [], True, "novels/train.txt.gz"),
    ],
)
def test_data_that_are_not_there_are_named(
    program: Any,
    arguments: list[str],
    has_data: bool,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if has_data:
        monkeypatch.setenv("MINIBERT_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match="2"):
        program.main(arguments)
    assert message in " ".join(capsys.readouterr().err.split())


SMALL = possible.CONFIG | {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}


@pytest.mark.slow
def test_ten_steps_miss_the_goals_and_teacher_and_student_are_ordinary_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import transformers

    for name, value in (("DOCUMENTS", 300), ("HELD_OUT", 30), ("CONFIG", SMALL)):
        monkeypatch.setattr(possible, name, value)
    args = ["--out", str(tmp_path / "out"), "--steps", "10", "--student-steps", "5"]
    assert possible.main(args) == 1
    printed = capsys.readouterr().out
    loss, _, following = map(float, re.findall(r"[\d.]+(?=,|%)", printed.partition("best possible")[2])[:3])
    assert 1.0 < loss < 1.6 and 50 < following <= 100
    assert float(re.findall(r"share of ours +([\d.]+)", printed)[0]) < 0.5
    assert "missed" in printed
    teacher = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "out" / "bert")
    student = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out" / "distilbert")
    assert teacher.config.num_hidden_layers == 2 * student.config.n_layers
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out" / "bert")
    assert tokenizer.tokenize("these boats drift .") == ["these", "boats", "drift", "."]
