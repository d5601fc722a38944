"""A checkpoint is opened once by each command: found, its config read, its tensors listed."""

import shlex
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from support.words import write_tsv

import minibert
from minibert.checkpoints import checkpoint as module
from minibert.checkpoints.checkpoint import Checkpoint
from minibert.cli.main import main
from minibert.config import Config
from minibert.storage import hub

ONCE = {"locate": 1, "from_file": 1, "list_tensors": 1}
COMMANDS = [
    "finetune classify texts.tsv --model words --out out --batch-size 8",
    "distill texts.tsv --task classify --teacher tuned --out out --batch-size 8",
    "distill lines.txt --teacher pretrained --out out --steps 2 --max-length 16",
    "predict tuned 'a good film'",
    "evaluate tuned texts.tsv",
    "embed texts.tsv --text 1 --model words --out out.npy",
    "score 'a good film' --model pretrained",
    "fill-mask 'a [MASK] film' --model pretrained",
    "trace 'a good film' --model pretrained --out out.html",
]


@pytest.fixture
def counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a checkpoint is found and its files are read, in a folder with three checkpoints and a table."""
    for name, head in (("tuned", "sequence-classification"), ("pretrained", "masked-lm")):
        model = minibert.load(folder, head=head, new_head=True)
        model.config = replace(model.config, id2label={0: "neg", 1: "pos"})
        model.head_is_trained = True
        minibert.save(model, folder.parent / name)
    write_tsv(folder.parent / "texts.tsv")
    (folder.parent / "lines.txt").write_text("a good film\na bad film\n\n" * 40)
    counts = Counter()

    def counted(name, function):
        def call(*args, **how):
            counts[name] += 1
            return function(*args, **how)

        return call

    monkeypatch.chdir(folder.parent)
    monkeypatch.setattr(hub, "locate", counted("locate", hub.locate))
    monkeypatch.setattr(module, "list_tensors", counted("list_tensors", module.list_tensors))
    monkeypatch.setattr(Config, "from_file", counted("from_file", Config.from_file))
    return counts


@pytest.mark.filterwarnings("ignore:all 24 texts")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split()[0])
def test_a_command_opens_its_checkpoint_once(command, counts):
    assert main(shlex.split(command)) == 0
    assert counts == ONCE


def test_an_open_checkpoint_is_accepted_wherever_a_name_is(counts):
    checkpoint = Checkpoint.open("pretrained")
    minibert.load(checkpoint)
    minibert.load_tokenizer(checkpoint)
    minibert.embed(["a good film"], model=checkpoint)
    minibert.score(["a good film"], checkpoint)
    assert counts == ONCE and Checkpoint.open(checkpoint) is checkpoint


def test_checkpoints_of_one_folder_are_equal_and_print_their_name(folder):
    one = Checkpoint.open(folder)
    other = Checkpoint("another name", folder, "elsewhere")
    assert one == other and hash(one) == hash(other) and str(other) == "another name"
