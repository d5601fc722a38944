"""Masked LM on raw text: nothing is lost, every epoch hides other tokens, transformers' bits, and words are filled."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from helpers import assert_equal, minilm_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from training import CLOSE, Found, upstream_training
from words import BAD, GOOD, OTHER, write_words_checkpoint

import minibert
from minibert.cli import main as cli
from minibert.heads import Head
from minibert.losses import IGNORED
from minibert.parity.compare import parameter_pairs
from minibert.tasks.base import Augmentation, Example
from minibert.tasks.masked_text import Corpus, Guess, MaskedText, RowScore, fill_lines, fill_mask, fill_text
from minibert.text.masking import unmasked
from minibert.text.tokenized import TruncationWarning, UnknownTokensWarning
from minibert.text.tokenizer import Tokenizer
from minibert.train import finetune
from minibert.train.batches import Batches
from minibert.train.finetuning import FinetuneRun, Reader
from minibert.train.loop import packed_loss, readable_loss, train
from minibert.train.outputs import outputs
from minibert.train.settings import FinetuneSettings, TrainSettings

TASK = MaskedText()
MINILM = minibert.load_tokenizer(minilm_folder())
QUICK: dict[str, Any] = {"batch_size": 8, "learning_rate": 3e-3, "precision": "float32"}
TWENTY = TrainSettings(epochs=4, batch_size=5, learning_rate=1e-3, warmup=0.3)  # steps
pytestmark = pytest.mark.usefixtures("one_thread")
both_types = pytest.mark.parametrize("family", ["bert", "distilbert"])


def lines_of(count: int) -> list[str]:
    """Lines that are easy to guess a word of."""
    return [f"the {OTHER[row % 4]} very {(BAD if row % 2 else GOOD)[row // 2 % 3]}" for row in range(count)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Random checkpoints of a few words by family; of BERT also one without a task head."""
    made = {}
    for name, head in (("bert", "masked-lm"), ("distilbert", "masked-lm"), ("headless", None)):
        folder = tmp_path_factory.mktemp(name)
        made[name] = write_words_checkpoint(folder, "bert" if head is None else name, head)
    return made


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A file with an empty line after every tenth."""
    path = tmp_path / "corpus.txt"
    lines = lines_of(120)
    path.write_text("\n\n".join("\n".join(lines[start : start + 10]) for start in range(0, 120, 10)), "utf-8")
    return path


def text_of(example: Example) -> list[int]:
    """The ids of an example before tokens were hidden, [CLS] and [SEP] included."""
    return unmasked(example.ids, example.labels["labels"])


# ---------------------------------------------------------------------------------------------------------------
# Reading, and rows


def test_an_empty_line_ends_a_document_and_one_of_white_space_is_empty(tmp_path: Path) -> None:
    text = "\n\na b\nc\n \t\n\nd e\nf"
    (tmp_path / "a.txt").write_text(text, "utf-8")
    with gzip.open(tmp_path / "a.txt.gz", "wt", encoding="utf-8") as file:
        file.write(text)
    for name in ("a.txt", "a.txt.gz"):
        found = TASK.read(tmp_path / name)
        assert found.documents == [["a b", "c"], ["d e", "f"]]
        assert len(found) == 4


def test_each_row_of_a_table_is_a_document(tmp_path: Path) -> None:
    records = [{"body": "a b", "n": 1}, {"body": " "}, {"body": "c\n\nd"}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, records)), "utf-8")
    assert MaskedText(text="body").read(tmp_path / "a.jsonl").documents == [["a b"], ["c\n\nd"]]
    (tmp_path / "a.raw").write_text("a\nb", "utf-8")
    assert MaskedText(format="txt").read(tmp_path / "a.raw").documents == [["a", "b"]]


words = st.lists(st.sampled_from(["a", "film", "unbelievable", "[SEP]", "\u200b", "é"]), min_size=1, max_size=12)
texts = st.lists(words, min_size=1, max_size=4)


@settings(max_examples=40)
@given(st.lists(texts, min_size=1, max_size=4), st.sampled_from([3, 5, 16]))
def test_every_token_of_every_line_stands_in_one_row_in_its_order(
    documents: list[list[list[str]]], max_length: int
) -> None:
    data = Corpus([[" ".join(words) for words in lines] for lines in documents])
    wanted = [
        [id for line in lines for id in MINILM.encode(line, add_special_tokens=False)] for lines in data.documents
    ]
    if not any(wanted):
        return
    rows = [text_of(example) for example in TASK.encode(data, MINILM, [], max_length).examples]
    assert all(row[0] == MINILM.cls_id and row[-1] == MINILM.sep_id and len(row) <= max_length for row in rows)
    room = max_length - 2
    assert [row[1:-1] for row in rows] == [ids[i : i + room] for ids in wanted for i in range(0, len(ids), room)]


def test_a_line_of_a_hundred_thousand_words_is_split_and_nothing_is_lost() -> None:
    encoded = TASK.encode(Corpus.of(["a film " * 50_000, "and more"]), MINILM, [], 128)
    assert sum(len(one.ids) - 2 for one in encoded.examples) == 100_002
    assert encoded.notes == (
        "2 lines of 1 documents, 100,002 tokens, fill 794 rows of up to 128; nothing is truncated",
    )


def test_each_epoch_hides_other_tokens_of_the_same_text_and_dev_always_the_same(
    folders: dict[str, Path], corpus: Path
) -> None:
    data = TASK.read(corpus)

    def job(seed: int) -> FinetuneRun:
        return FinetuneRun.of(TASK, data, data, FinetuneSettings(model=str(folders["bert"]), seed=seed, **QUICK))

    drawn = [job(seed).batches(0).of_rows(range(12), epoch).labels["labels"] for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(one.flatten().tolist()) for one in drawn}) == 4
    again = job(1).batches(0).of_rows(range(12), 1).labels["labels"]
    assert torch.equal(again, drawn[3])
    first, other = (job(seed).held_out for seed in (0, 1))
    assert first is not None
    assert first == other
    assert [text_of(one) for one in job(0).encoded.examples] == [text_of(one) for one in first.examples]


# ---------------------------------------------------------------------------------------------------------------
# Beside transformers


def both(folder: Path) -> tuple[Head, Any]:
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="eager")
    return minibert.load(folder, head="masked-lm"), theirs


def batches(
    folder: Path, corpus: Path, change: Callable[[Augmentation], Augmentation] = lambda change: change
) -> Batches:
    """Of a corpus, masked afresh in each epoch; change: a mistake."""
    tokenizer = minibert.load_tokenizer(folder)
    encoded = TASK.encode(TASK.read(corpus), tokenizer, [], 16)
    return Batches(encoded.examples[:25], 5, 0, tokenizer.pad_id, augment=change(TASK.augment(tokenizer, 0)))


@both_types
def test_twenty_readable_steps_are_those_of_a_transformers_loop_bit_for_bit(
    family: str, folders: dict[str, Path], corpus: Path
) -> None:
    ours, theirs = both(folders[family])
    pairs = parameter_pairs(ours, theirs)
    torch.manual_seed(3)
    progress = train(ours, batches(folders[family], corpus), TWENTY, loss_of=readable_loss)
    torch.manual_seed(3)
    losses = upstream_training(theirs, batches(folders[family], corpus), TWENTY, [p for _, _, p in pairs])
    assert progress.step == 20
    assert progress.curve == losses
    assert_equal({name: p.data for name, p, _ in pairs}, {name: p.data for name, _, p in pairs})


@both_types
def test_the_packed_step_has_the_loss_and_the_gradients_of_the_readable_one(
    family: str, folders: dict[str, Path], corpus: Path
) -> None:
    model, _ = both(folders[family])
    for batch in batches(folders[family], corpus).epoch_batches(0):
        found, right = (Found.of(loss_of, model, batch) for loss_of in (packed_loss, readable_loss))
        assert max(found.apart(right).values()) < CLOSE


# ---------------------------------------------------------------------------------------------------------------
# Mistakes on purpose


def faults(original: Sequence[Example], found: Batches, tokenizer: Tokenizer) -> set[str]:
    """What is wrong with the masked rows of five epochs."""
    said, chosen, text = set(), 0, 0
    for epoch in range(5):
        for row, example in enumerate(original):
            before, batch = text_of(example), found.of_rows([row], epoch)
            labels = batch.labels["labels"][0].tolist()
            places = [place for place, label in enumerate(labels) if label != IGNORED]
            chosen, text = chosen + len(places), text + len(before) - 2
            if any(labels[place] != before[place] for place in places):
                said.add("labels")
            if any(before[place] in tokenizer.control_ids for place in places):
                said.add("special")
    return said | (set() if 0.12 < chosen / text < 0.18 else {"share"})


def labels_off_by_one(change: Augmentation) -> Augmentation:
    def wrong(example: Example, epoch: int, row: int) -> Example:
        right = change(example, epoch, row)
        labels = list(right.labels["labels"])
        return Example(right.ids, right.segments, {"labels": labels[1:] + labels[:1]})

    return wrong


def special_tokens_masked(change: Augmentation) -> Augmentation:
    def wrong(example: Example, epoch: int, row: int) -> Example:
        right = change(example, epoch, row)
        before, ids, labels = text_of(right), list(right.ids), list(right.labels["labels"])
        ids[0], labels[0] = ids[labels.index(IGNORED)], before[0]
        return Example(ids, right.segments, {"labels": labels})

    return wrong


def loss_over_all_tokens(change: Augmentation) -> Augmentation:
    def wrong(example: Example, epoch: int, row: int) -> Example:
        right = change(example, epoch, row)
        return Example(right.ids, right.segments, {"labels": text_of(right)})

    return wrong


@pytest.mark.parametrize(
    ("mistake", "fault"),
    [(labels_off_by_one, "labels"), (special_tokens_masked, "special"), (loss_over_all_tokens, "share")],
)
def test_a_mistake_in_masking_is_caught_and_leaves_other_losses(
    mistake: Callable[[Augmentation], Augmentation], fault: str, folders: dict[str, Path], corpus: Path
) -> None:
    tokenizer = minibert.load_tokenizer(folders["bert"])
    right, wrong = batches(folders["bert"], corpus), batches(folders["bert"], corpus, mistake)
    assert faults(right.examples, right, tokenizer) == set()
    assert fault in faults(wrong.examples, wrong, tokenizer)
    ours, theirs = both(folders["bert"])
    torch.manual_seed(3)
    curve = train(ours, wrong, TWENTY, loss_of=readable_loss).curve
    torch.manual_seed(3)
    assert curve != upstream_training(theirs, right, TWENTY)


# ---------------------------------------------------------------------------------------------------------------
# Measured


def test_what_is_measured_is_that_of_the_readable_logits(folders: dict[str, Path], corpus: Path) -> None:
    model, tokenizer = minibert.load(folders["bert"], head="masked-lm"), minibert.load_tokenizer(folders["bert"])
    data = TASK.read(corpus)
    encoded = TASK.encode(data, tokenizer, [], 16)
    answers = TASK.decode(outputs(model, encoded, keep=TASK.reduce), encoded, data, [])
    batch = Batches(encoded.examples, 1, 0, tokenizer.pad_id).of_rows(range(len(encoded.examples)))
    with torch.no_grad():
        out = model(batch.input_ids, attention_mask=batch.attention_mask, labels=batch.labels["labels"])
    chosen = batch.labels["labels"] != IGNORED
    right = (out.logits.argmax(dim=-1) == batch.labels["labels"])[chosen]
    figures = TASK.measure(answers, data, []).figures
    assert figures["loss"] == pytest.approx(float(out.loss), rel=1e-5)
    assert figures["perplexity"] == pytest.approx(float(out.loss.exp()), rel=1e-4)
    assert figures["accuracy"] == pytest.approx(float(right.float().mean()))
    assert figures["masked_tokens"] == int(chosen.sum())
    assert figures["log_likelihood"] == -figures["loss"]


def test_no_more_than_a_batch_of_logits_is_held(
    folders: dict[str, Path], corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minibert.train.outputs.BATCH_TOKENS", 48)
    model, tokenizer = minibert.load(folders["bert"], head="masked-lm"), minibert.load_tokenizer(folders["bert"])
    encoded = TASK.encode(TASK.read(corpus), tokenizer, [], 16)

    def most_alive(keep: Callable[[Tensor, Example], Tensor]) -> int:
        """Of the logits of batches, each of them one block of memory."""
        blocks: weakref.WeakSet[Any] = weakref.WeakSet()
        alive: list[int] = []

        def watched(logits: Tensor, example: Example) -> Tensor:
            blocks.add(logits.untyped_storage())
            alive.append(len(blocks))
            return keep(logits, example)

        assert len(outputs(model, encoded, keep=watched)) == len(alive) == len(encoded.examples) == 36
        return max(alive)

    assert most_alive(TASK.reduce) == 1
    assert most_alive(lambda logits, example: logits) == 12


def test_a_text_without_a_hidden_token_cannot_measure_and_a_batch_without_one_teaches_nothing(
    folders: dict[str, Path],
) -> None:
    tokenizer, data = minibert.load_tokenizer(folders["bert"]), Corpus.of(["the"], "dev.txt")
    rare = MaskedText(mask_rate=1e-9)
    model, encoded = minibert.load(folders["bert"], head="masked-lm"), rare.encode(data, tokenizer, [], 16)
    answers = rare.decode(outputs(model, encoded, keep=rare.reduce), encoded, data, [])
    assert answers == [RowScore(0, 0, 0.0)]
    with pytest.raises(ValueError, match=r"the loss on dev\.txt is 0.0 over 0 masked tokens: too little text"):
        TASK.measure(answers, data, [])
    before = [parameter.clone() for parameter in model.parameters()]
    assert train(model, Batches(encoded.examples, 1, 0, 0), TrainSettings(epochs=1)).curve == [0.0]
    assert_equal(list(model.parameters()), before)


# ---------------------------------------------------------------------------------------------------------------
# Training


@pytest.fixture(scope="module")
def learned(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Head, Path]:
    """A fresh task head that has learned a small corpus, and its folder."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("learned") / "out"
    data, dev = Corpus([lines_of(40)] * 4), Corpus([lines_of(60)])
    quick = QUICK | {"epochs": 25, "learning_rate": 6e-3, "max_length": 18, "model": folders["headless"]}
    return finetune("mask", data, dev=dev, out=out, **quick), out


def test_a_corpus_is_learned(learned: tuple[Head, Path]) -> None:
    report = json.loads((learned[1] / "training.json").read_text())
    assert report["epochs"][0]["perplexity"] > 10
    assert report["dev"]["perplexity"] < 3
    assert report["dev"]["accuracy"] > 0.6
    assert report["dev"] == report["epochs"][report["best_epoch"] - 1]
    assert report["dev"]["loss"] == min(epoch["loss"] for epoch in report["epochs"])


def test_transformers_loads_the_folder_with_equal_logits(learned: tuple[Head, Path]) -> None:
    ours, folder = learned
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="eager").eval()
    batch = transformers.AutoTokenizer.from_pretrained(folder)(
        ["the film very [MASK]", "the [MASK]"], padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        assert torch.equal(ours(**batch).logits, theirs(**batch).logits)


def test_a_checkpoint_without_the_task_head_gets_a_fresh_one_and_says_so(
    folders: dict[str, Path], corpus: Path
) -> None:
    data = TASK.read(corpus)
    settings = [FinetuneSettings(model=str(folders[name])) for name in ("headless", "bert")]
    notes = [FinetuneRun.of(TASK, data, None, one).encoded.notes for one in settings]
    assert notes[0] == (MaskedText.fresh_head, *notes[1])
    assert "training starts with a new one" in MaskedText.fresh_head


def test_the_commands_train_measure_and_fill(
    folders: dict[str, Path], corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    args = ["finetune", "mask", str(corpus), "--dev", str(corpus), "--model", str(folders["headless"]), "--out", out]
    args += ["--epochs", "2", "--learning-rate", "3e-3", "--precision", "float32", "--max-length", "16"]
    assert cli.main([*args, "--whole-words", "--mask-rate", "0.2", "--json"]) == 0
    printed = capsys.readouterr().out
    dev = json.loads(printed.splitlines()[-1])["dev"]
    assert "starts with a new one" in " ".join(printed.split())
    assert "120 lines of 12 documents" in " ".join(printed.split())
    assert cli.main(["evaluate", out, str(corpus), "--json"]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed.splitlines()[-1]) == dev  # the same tokens are hidden
    assert printed.startswith("perplexity")
    assert Reader.load(out).task == MaskedText(mask_rate=0.2, whole_words=True)
    assert cli.main(["predict", out, "the [MASK] very good", "the film"]) == 2
    assert "the text has 0 [MASK]" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------------
# Filling masks

TEXT = "the [MASK] sat on the [MASK] ."


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random masked language model, 8 wide, with the vocabulary of bert-base-uncased."""
    folder = tmp_path_factory.mktemp("mlm")
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = transformers.BertForMaskedLM(transformers.BertConfig(max_position_embeddings=32, **sizes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(minilm_folder() / name, folder)
    return folder


def test_every_mask_gets_the_most_probable_tokens_of_transformers(small: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(small)
    batch = tokenizer(TEXT, return_tensors="pt")
    model = transformers.BertForMaskedLM.from_pretrained(small, attn_implementation="eager").eval()
    with torch.no_grad():
        rows = model(**batch).logits[0, batch["input_ids"][0] == tokenizer.mask_token_id].softmax(-1)
    ours: Any = minibert.load(small, head="masked-lm").train()
    for found in (fill_mask(TEXT, small, 4), fill_mask(TEXT, ours, 4, tokenizer=minibert.load_tokenizer(small))):
        assert len(found) == len(rows) == 2
        for guess, row in zip(found, rows, strict=True):
            assert [g.token for g in guess] == tokenizer.convert_ids_to_tokens(row.topk(4).indices)
            assert [g.probability for g in guess] == pytest.approx(row.topk(4).values.tolist(), rel=1e-5)
    assert ours.training


def test_what_cannot_be_filled_is_refused(small: Path, tmp_path: Path) -> None:
    for text in ("", "the cat sat", "[mask]"):
        with pytest.raises(ValueError, match=r"the text has 0 \[MASK\], 0 of them"):
            fill_mask(text, small)
    with (
        pytest.warns(TruncationWarning),
        pytest.raises(ValueError, match=r"the text has 2 \[MASK\], 1 of them in the first 32 tokens"),
    ):
        fill_mask("a [MASK] " + "cat " * 38 + "[MASK]", small)
    for top_k in (0, -1, 30523):
        with pytest.raises(ValueError, match=f"top_k is {top_k}; it must be 1 to 30522"):
            fill_mask(TEXT, small, top_k)
    tokenizer, fresh = minibert.load_tokenizer(small), minibert.load(small, head="masked-lm", new_head=True)
    with pytest.raises(ValueError, match="for a trained head 'masked-lm'"):
        fill_mask(TEXT, fresh, tokenizer=tokenizer)  # type: ignore[arg-type]
    wrong: Any = [([TEXT], small), (TEXT, minibert.load(small)), (TEXT, minibert.load(small, head="masked-lm"))]
    for text, model in wrong:
        with pytest.raises(TypeError, match="fill_mask takes one str"):
            fill_mask(text, model)
    minibert.save(minibert.load(small), tmp_path / "encoder")
    tokenizer.save(tmp_path / "encoder")
    with pytest.raises(ValueError, match="masked-lm"):
        fill_mask(TEXT, tmp_path / "encoder")


def test_the_best_token_replaces_each_mask_and_continues_its_word() -> None:
    guesses = [Guess("##ing", 0.9), Guess("home", 0.8)]
    assert fill_text("He was walk [MASK] [MASK].", guesses, MINILM) == "He was walking home."


def test_a_line_has_tokens_probabilities_and_the_text(learned: tuple[Head, Path]) -> None:
    reader: Any = Reader.load(learned[1])
    (best,) = fill_mask("The film very [MASK]!", reader.model, 1, tokenizer=reader.tokenizer)
    assert best[0].token in GOOD + BAD
    (line,) = fill_lines(["The film very [MASK]!"], reader.model, reader.tokenizer)
    assert line == f"{best[0].token}\t{best[0].probability:.4f}\tThe film very {best[0].token}!"


# ---------------------------------------------------------------------------------------------------------------
# Bad input


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is no corpus of at least two lines; give a file with one sentence or paragraph a line"),
        (" \n\n\t\n", "is no corpus of at least two lines"),
        ("only one line\n\n", "is no corpus of at least two lines"),
    ],
)
def test_a_corpus_of_nothing_or_of_one_line_is_refused_before_anything_is_loaded(
    text: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text(text, "utf-8")
    with pytest.raises(ValueError, match=words):
        finetune("mask", tmp_path / "a.txt", model="no such checkpoint")


def test_a_list_of_texts_is_no_corpus_and_becomes_one(folders: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match=r"data of type list is no corpus .* or Corpus\.of\(lines\)"):
        finetune("mask", lines_of(4), model="no such checkpoint")
    assert finetune("mask", Corpus.of(lines_of(4)), model=folders["bert"], epochs=1).head_is_trained


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (bytes(range(128, 256)) * 40, r"a\.txt, line 1, is not UTF-8"),
        (b"a\0b\n", "is a binary file"),
        ("a text\nand more\n".encode("utf-16-le"), "is a binary file"),
    ],
)
def test_binary_files_are_refused_before_anything_is_loaded(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(ValueError, match=words):
        finetune("mask", tmp_path / "a.txt", model="no such checkpoint")


def test_a_corpus_of_unknown_or_invisible_characters_is_refused_before_weights_are_loaded() -> None:
    with pytest.raises(ValueError, match=r"all 4 tokens of the corpus are \[UNK\]; choose a checkpoint"):
        TASK.encode(Corpus.of(["😀 😀", "😀 😀"]), MINILM, [], 16)
    with pytest.raises(ValueError, match="all 0 tokens of the corpus"):
        TASK.encode(Corpus.of(["\u200b", "\u200b"]), MINILM, [], 16)
    with pytest.warns(UnknownTokensWarning, match=r"3 of 4 tokens are \[UNK\]"):
        TASK.encode(Corpus.of(["😀 😀", "😀 a"]), MINILM, [], 16)


def test_a_mask_rate_of_nothing_or_all_is_refused_before_the_file_is_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for rate in ("0", "1", "-0.5", "nan"):
        assert cli.main(["finetune", "mask", "no file", "--out", str(tmp_path / "out"), f"--mask-rate={rate}"]) == 2
        assert re.search("mask.rate is", capsys.readouterr().err)
