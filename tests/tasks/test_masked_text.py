"""Masked LM on raw text: nothing is lost, each epoch masks other tokens, training equals transformers."""

import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models import assert_equal, minilm_folder, open_upstream, write_checkpoint
from support.training import to_the_end
from support.words import BAD, GOOD, OTHER, write_words_checkpoint

import minibert
from minibert.heads import Head
from minibert.inputs import IGNORED
from minibert.prediction.logits import predict_logits
from minibert.prediction.reader import open_reader
from minibert.tasks.base import Example
from minibert.tasks.masked_text import Corpus, MaskedText, fill_mask, fill_text
from minibert.text.masking import unmasked
from minibert.text.tokenized import UnknownTokensWarning
from minibert.text.tokenizer import Tokenizer
from minibert.train import finetune
from minibert.train.batches import Batches
from minibert.train.finetuning import FinetuneRun
from minibert.train.loop import train
from minibert.train.settings import FinetuneSettings, TrainSettings

TASK = MaskedText()
MINILM = minibert.load_tokenizer(minilm_folder())
QUICK: dict[str, Any] = {"batch_size": 8, "learning_rate": 3e-3, "precision": "float32"}


def lines_of(count: int) -> list[str]:
    """Lines that are easy to guess a word of."""
    return [f"the {OTHER[row % 4]} very {(BAD if row % 2 else GOOD)[row // 2 % 3]}" for row in range(count)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Random checkpoints of a few words by family; of BERT also one without a task head."""
    place = tmp_path_factory.mktemp("folders")
    made = {name: write_words_checkpoint(place / name, name, "masked-lm") for name in ("bert", "distilbert")}
    return made | {"headless": write_words_checkpoint(place / "headless")}


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


# -- reading, and rows


@pytest.mark.parametrize(
    ("task", "name", "content", "documents"),
    [
        (TASK, "a.txt", "\n\na b\nc\n \t\n\nd e\nf", [["a b", "c"], ["d e", "f"]]),
        (MaskedText(format="txt"), "a.raw", "a\nb", [["a", "b"]]),
        (
            MaskedText(text="body"),
            "a.jsonl",
            '{"body": "a b", "n": 1}\n{"body": " "}\n{"body": "c\\n\\nd"}',
            [["a b"], ["c\n\nd"]],
        ),
    ],
    ids=["blank lines end a document", "plain text by request", "each row of a table is a document"],
)
def test_documents_are_read(task, name, content, documents, tmp_path):
    (tmp_path / name).write_text(content, "utf-8")
    found = task.read(tmp_path / name)
    assert found.documents == documents
    assert len(found) == sum(map(len, documents))


words = st.lists(st.sampled_from(["a", "film", "unbelievable", "[SEP]", "\u200b", "é"]), min_size=1, max_size=12)
texts = st.lists(words, min_size=1, max_size=4)


@settings(max_examples=40)
@given(st.lists(texts, min_size=1, max_size=4), st.sampled_from([3, 5, 16]))
def test_every_token_of_every_line_stands_in_one_row_in_its_order(documents, max_length):
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


def test_each_epoch_masks_other_tokens_of_the_same_text_and_dev_always_the_same(folders, corpus):
    data, folder = TASK.read(corpus), str(folders["bert"])
    jobs = [FinetuneRun.of(TASK, data, data, FinetuneSettings(model=folder, seed=seed, **QUICK)) for seed in (0, 1)]
    drawn = [job.batches().of_rows(range(12), epoch) for job in jobs for epoch in (0, 1)]
    assert len({tuple(one.labels["labels"].flatten().tolist()) for one in drawn}) == 4
    assert_equal(jobs[1].batches().of_rows(range(12), 1).labels, drawn[3].labels)
    texts = [torch.tensor(unmasked(one.input_ids.flatten(), one.labels["labels"].flatten())) for one in drawn]
    assert all(torch.equal(text, texts[0]) for text in texts)
    assert jobs[0].held_out == jobs[1].held_out is not None
    assert [text_of(one) for one in jobs[0].encoded.examples] == [text_of(one) for one in jobs[0].held_out.examples]
    assert MaskedText.fresh_head not in jobs[0].encoded.notes


# -- measured


def opened(folder: Path) -> tuple[Head, Tokenizer]:
    return minibert.load(folder, head="masked-lm"), minibert.load_tokenizer(folder)


def test_figures_are_those_of_the_readable_logits(folders, corpus):
    model, tokenizer = opened(folders["bert"])
    data = TASK.read(corpus)
    encoded = TASK.encode(data, tokenizer, [], 16)
    figures = TASK.measure(predict_logits(model, encoded, keep=TASK.reduce), data, []).figures
    batch = Batches(encoded.examples, 1, 0, tokenizer.pad_id).of_rows(range(len(encoded.examples)))
    labels = batch.labels["labels"]
    with torch.no_grad():
        out = model(batch.input_ids, attention_mask=batch.attention_mask, labels=labels)
    right = (out.logits.argmax(dim=-1) == labels)[labels != IGNORED]
    assert figures["loss"] == -figures["log_likelihood"] == pytest.approx(float(out.loss), rel=1e-5)
    assert figures["perplexity"] == pytest.approx(float(out.loss.exp()), rel=1e-4)
    assert figures["accuracy"] == pytest.approx(float(right.float().mean()))
    assert figures["masked_tokens"] == len(right)


def test_no_more_than_a_batch_of_logits_is_held(folders, corpus):
    model, tokenizer = opened(folders["bert"])
    encoded = TASK.encode(TASK.read(corpus), tokenizer, [], 16)

    def most_alive(keep):
        """The logits of how many batches, each of them one block of memory, are held together."""
        blocks = weakref.WeakSet()
        alive = []

        def watched(logits, example):
            blocks.add(logits.untyped_storage())
            alive.append(len(blocks))
            return keep(logits, example)

        predict_logits(model, encoded, keep=watched, batch_tokens=48)
        return max(alive)

    assert most_alive(TASK.reduce) == 1
    held = []
    assert most_alive(lambda logits, example: (held.append(logits), logits)[1]) == 12


def test_a_text_without_a_masked_token_cannot_measure_and_a_batch_without_one_teaches_nothing(folders):
    model, tokenizer = opened(folders["bert"])
    rare, data = MaskedText(mask_rate=1e-9), Corpus.of(["the"], "dev.txt")
    encoded = rare.encode(data, tokenizer, [], 16)
    with pytest.raises(ValueError, match=r"dev\.txt.* 0 masked"):
        TASK.measure(predict_logits(model, encoded, keep=rare.reduce), data, [])
    before = [parameter.clone() for parameter in model.parameters()]
    training = train(model, Batches(encoded.examples, 1, 0, 0), TrainSettings(epochs=2))
    assert to_the_end(training).curve == [0.0, 0.0]
    assert_equal(list(model.parameters()), before)


# -- training


@pytest.fixture(scope="module")
def learned(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Head, Path]:
    """A fresh task head that has learned a small corpus, and its folder."""
    out = tmp_path_factory.mktemp("learned") / "out"
    data, dev = Corpus([lines_of(40)] * 4), Corpus([lines_of(60)])
    quick = QUICK | {"epochs": 25, "learning_rate": 6e-3, "max_length": 18, "model": folders["headless"]}
    return finetune("mask", data, dev=dev, out=out, **quick), out


def test_a_corpus_is_learned_and_transformers_loads_the_folder_with_equal_logits(learned):
    ours, folder = learned
    report = json.loads((folder / "training.json").read_text())
    epochs, dev = report["epochs"], report["dev"]
    assert epochs[0]["perplexity"] > 10 and dev["perplexity"] < 3 and dev["accuracy"] > 0.6
    assert dev == min(epochs, key=lambda epoch: epoch["loss"]) == epochs[report["best_epoch"] - 1]
    theirs = open_upstream(transformers.AutoModelForMaskedLM, folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(["the film very [MASK]", "the [MASK]"], padding=True, return_tensors="pt")
    with torch.no_grad():
        assert torch.equal(ours(**batch).logits, theirs(**batch).logits)


def test_the_commands_train_measure_and_fill(folders, corpus, tmp_path, run):
    out = tmp_path / "out"
    args = f"finetune mask {corpus} --dev {corpus} --model {folders['headless']} --out {out} --precision float32"
    args += " --epochs 2 --learning-rate 3e-3 --max-length 16 --whole-words --mask-rate 0.2 --json"
    printed = run(*args.split())
    dev = json.loads(printed.splitlines()[-1])["dev"]
    assert "starts with a new one" in " ".join(printed.split())
    assert "120 lines of 12 documents" in " ".join(printed.split())
    assert json.loads(run("evaluate", out, corpus, "--json").splitlines()[-1]) == dev  # the same tokens are masked
    assert open_reader(out).task == MaskedText(mask_rate=0.2, whole_words=True)
    assert "row 1 has 0 [MASK]" in run("predict", out, "the [MASK] very good", "the film", status=2)


# -- filling masks

TEXT = "the [MASK] sat on the [MASK] ."


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random masked language model with the vocabulary of bert-base-uncased."""
    folder = tmp_path_factory.mktemp("mlm")
    write_checkpoint(folder, "bert", "masked-lm", vocab_size=30522, max_position_embeddings=32)
    MINILM.save(folder)
    return folder


def test_every_mask_gets_the_most_probable_tokens_of_transformers(small):
    tokenizer = transformers.AutoTokenizer.from_pretrained(small)
    batch = tokenizer(TEXT, return_tensors="pt")
    model = open_upstream(transformers.BertForMaskedLM, small)
    with torch.no_grad():
        rows = model(**batch).logits[0, batch["input_ids"][0] == tokenizer.mask_token_id].softmax(-1)
    ours = minibert.load(small, head="masked-lm").train()
    for found in (fill_mask(TEXT, small, 4), fill_mask(TEXT, ours, 4, tokenizer=MINILM)):
        assert len(found) == len(rows) == 2
        for guess, row in zip(found, rows, strict=True):
            assert [g.token for g in guess] == tokenizer.convert_ids_to_tokens(row.topk(4).indices)
            assert [g.probability for g in guess] == pytest.approx(row.topk(4).values.tolist(), rel=1e-5)
    assert ours.training


@pytest.mark.parametrize(
    ("text", "model", "settings", "error", "message"),
    [
        ("", "folder", {}, ValueError, r"\b0 \[MASK\], 0\b"),
        (
            f"a [MASK] {'cat ' * 38}[MASK]",
            "folder",
            {},
            ValueError,
            r"\b2 \[MASK\], 1 .* 32 tokens",
        ),
        (TEXT, "folder", {"top_k": 0}, ValueError, r"top_k is 0\b.* 1 to 30522"),
        (TEXT, "folder", {"top_k": 30523}, ValueError, "top_k is 30523"),
        (TEXT, "fresh", {"tokenizer": MINILM}, ValueError, "never trained"),
        ([TEXT], "folder", {}, TypeError, r"\bstr\b"),
        (TEXT, "encoder", {"tokenizer": MINILM}, TypeError, r"\bstr\b"),
        (TEXT, "head", {}, TypeError, "tokenizer="),
        (TEXT, "headless", {}, ValueError, "masked-lm"),
    ],
)
@pytest.mark.filterwarnings("ignore::minibert.text.tokenized.TruncationWarning")
def test_what_cannot_be_filled_is_refused(text, model, settings, error, message, small, folders):
    made = {
        "folder": lambda: small,
        "fresh": lambda: minibert.load(small, head="masked-lm", new_head=True),
        "encoder": lambda: minibert.load(small),
        "head": lambda: minibert.load(small, head="masked-lm"),
        "headless": lambda: folders["headless"],
    }
    with pytest.raises(error, match=message):
        fill_mask(text, made[model](), **settings)


def test_a_line_has_tokens_probabilities_and_the_text_in_which_the_best_one_continues_its_word(learned):
    reader = open_reader(learned[1])
    [guesses] = fill_mask("The film very [MASK]!", reader.model, 5, tokenizer=reader.tokenizer)
    answers, best = reader.answer(data := reader.task.from_texts(["The film very [MASK]!"])), guesses[0]
    filled = f"The film very {best.token}!"
    assert reader.task.format_predictions(answers, data) == [f"{best.token}\t{best.probability:.4f}\t{filled}"]
    assert answers == [{"masks": [[one._asdict() for one in guesses]], "filled": filled}]
    best = [MINILM.vocab[token] for token in ("##ing", "home")]
    assert fill_text("He was walk [MASK] [MASK].", best, MINILM) == "He was walking home."


def test_a_text_that_cannot_be_filled_is_named_by_its_row(small):
    with pytest.raises(ValueError, match=r"row 1 .* 0 \[MASK\]"):
        minibert.predict(small, [TEXT, "no mask"])


# -- bad input


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"corpus.* two lines"),
        (b" \n\n\t\n", r"corpus.* two lines"),
        (b"only one line\n\n", r"corpus.* two lines"),
        (bytes(range(128, 256)) * 40, r"a\.txt, line 1\b.*UTF-8"),
        (b"a\0b\n", "binary"),
        ("a text\nand more\n".encode("utf-16-le"), "binary"),
    ],
)
def test_a_file_that_is_no_corpus_is_refused_before_anything_is_loaded(content, message, tmp_path):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        finetune("mask", tmp_path / "a.txt", model="no such checkpoint")


def test_an_empty_file_measures_nothing(folders, run, tmp_path):
    (tmp_path / "a.txt").touch()
    assert "a.txt" in run("evaluate", folders["bert"], tmp_path / "a.txt", status=2)


def test_a_list_of_texts_is_a_corpus_of_as_many_documents(folders):
    assert TASK.read(lines_of(4)).documents == [[line] for line in lines_of(4)]
    for data in (lines_of(4), Corpus.of(lines_of(4))):
        assert finetune("mask", data, model=folders["bert"], epochs=2).head_is_trained


def test_a_corpus_of_unknown_or_invisible_characters_is_refused_before_weights_are_loaded():
    for text, message in (
        ("😀 😀", r"all 4 tokens of the corpus are \[UNK\]; choose"),
        ("\u200b", "the corpus has no tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            TASK.encode(Corpus.of([text, text]), MINILM, [], 16)
    with pytest.warns(UnknownTokensWarning, match=r"\b3 of 4 .*\[UNK\]"):
        TASK.encode(Corpus.of(["😀 😀", "😀 a"]), MINILM, [], 16)
