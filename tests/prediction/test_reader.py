"""Folders with a task head, of every kind: what they are, what they answer, and what is refused."""

import json
import pickle
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from support.kinds import HEADS, write_kinds, write_theirs
from support.models import edit_json, every_wrong_number, open_upstream
from support.words import labelled, write_words_checkpoint

import minibert
from minibert.prediction.frozen import Classifier
from minibert.prediction.reader import folder_kind, open_reader, with_given_words
from minibert.tasks.tagging import Sentences
from minibert.text.tokenized import TruncationWarning

TEXTS = ["the film very good", "a dull play, the book."]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_kinds(tmp_path_factory.mktemp("folders"))


def test_texts_in_the_place_of_the_model_are_answered_with_the_order():
    with pytest.raises(TypeError, match=r"model is \['a'\].* before the texts"):
        minibert.predict(["a"], "novels")
    with pytest.raises(TypeError, match=r"model is \['a'\].* texts come before it"):
        minibert.score("novels", ["a"])


# -- kinds


def test_the_kind_of_a_folder_is_decided_by_its_files(home, tmp_path):
    assert [folder_kind(home / name) for name in ("frozen", "tuned", "encoder")] == ["frozen", "classify", "encoder"]
    edit_json(home / "encoder" / "training.json", task="tag")  # the weights are what counts
    assert folder_kind(home / "encoder") == "encoder"
    for head, kind in (("pretraining", "mask"), ("next-sentence", "encoder")):
        assert folder_kind(write_theirs(tmp_path / head, head)) == kind
    assert folder_kind(write_theirs(tmp_path / "electra", "replaced-token-detection", "electra")) == "encoder"
    with pytest.raises(FileNotFoundError, match="no/such"):
        folder_kind("no/such")


@pytest.mark.parametrize("family", ["bert", "distilbert", "roberta", "albert", "electra"])
def test_every_relative_of_transformers_is_recognised_by_its_head(family, tmp_path):
    for task, head in HEADS.items():
        assert folder_kind(write_words_checkpoint(tmp_path / task, family, head)) == task


def test_a_head_that_config_json_names_and_the_weights_lack_is_none(home, tmp_path):
    folder = shutil.copytree(home / "encoder", tmp_path / "bare")
    for named in (["BertForTokenClassification"], None, 7):
        assert folder_kind(edit_json(folder / "config.json", architectures=named)) == "encoder"


# -- answers


def logits_of(folder: Path, kind: Any, *texts: Any) -> Any:
    """The output of transformers' model."""
    model = open_upstream(kind, folder)
    batch = transformers.AutoTokenizer.from_pretrained(folder)(*texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        return model(**batch)


def test_labels_of_texts_and_pairs_are_those_of_transformers(home):
    for name, names, pairs in (
        ("classify", ["LABEL_0", "LABEL_1"], ()),
        ("classify", ["LABEL_0", "LABEL_1"], (TEXTS[::-1],)),
        ("tuned", ["neg", "pos"], ()),
    ):
        logits = logits_of(home / name, transformers.AutoModelForSequenceClassification, TEXTS, *pairs).logits
        expected = logits.softmax(dim=-1).numpy()
        found = minibert.predict(home / name, TEXTS, *pairs)
        assert [list(one["probabilities"]) for one in found] == [names] * 2
        assert np.allclose([list(one["probabilities"].values()) for one in found], expected, atol=1e-6)
        assert [one["label"] for one in found] == [names[row.argmax()] for row in expected]
        assert np.allclose([one["probability"] for one in found], expected.max(axis=1))


def test_a_frozen_classifier_answers_in_the_same_form(home):
    classifier = Classifier.load(home / "frozen")
    found = minibert.predict(home / "frozen", TEXTS)
    assert [one["label"] for one in found] == classifier.predict(TEXTS).tolist()
    assert np.allclose([list(one["probabilities"].values()) for one in found], classifier.predict_proba(TEXTS))
    assert minibert.predict(classifier, TEXTS) == found


@pytest.mark.parametrize(
    ("problem", "labels", "expected"),
    [
        ("multi_label_classification", 3, ["labels", "probability", "probabilities"]),
        ("regression", 1, ["value"]),
        ("regression", 3, ["values"]),
        (None, 1, ["value"]),
        (None, 3, ["label", "probability", "probabilities"]),
    ],
)
def test_the_problem_type_of_config_json_decides_the_form(problem, labels, expected, tmp_path):
    write_theirs(tmp_path, "sequence-classification", num_labels=labels, problem_type=problem)
    logits = logits_of(tmp_path, transformers.AutoModelForSequenceClassification, TEXTS).logits
    found = minibert.predict(tmp_path, TEXTS)
    assert [list(one) for one in found] == [expected] * 2
    if expected == ["value"]:
        assert np.allclose([one["value"] for one in found], logits[:, 0], atol=1e-6)
    elif expected == ["values"]:
        assert [list(one["values"]) for one in found] == [["LABEL_0", "LABEL_1", "LABEL_2"]] * 2
        assert np.allclose([list(one["values"].values()) for one in found], logits, atol=1e-6)
        reader = open_reader(tmp_path)
        data = reader.task.from_texts(TEXTS)
        assert reader.task.format_predictions(reader.answer(data), data)[1].count("\t") == 3
        with pytest.raises(ValueError, match=r"^row 0 .* 3: 'LABEL_0', 'LABEL_1', 'LABEL_2'"):
            reader.measure(reader.task.from_labels(TEXTS, [0.5, 2]))
    elif problem:
        probabilities = [list(one["probabilities"].values()) for one in found]
        assert np.allclose(probabilities, logits.sigmoid(), atol=1e-6)
        assert [len(one["labels"]) for one in found] == (logits > 0).sum(dim=1).tolist()


def test_a_head_of_one_class_is_refused_and_its_encoder_loads(tmp_path):
    write_theirs(tmp_path, "sequence-classification", num_labels=1)
    edit_json(tmp_path / "config.json", problem_type="single_label_classification")
    assert minibert.load(tmp_path).embeddings.token.weight.isfinite().all()
    assert minibert.embed(TEXTS, tmp_path).shape == (2, 24)
    for call in (partial(minibert.load, head="sequence-classification"), partial(minibert.predict, texts=TEXTS)):
        with pytest.raises(ValueError, match=r"single_label_classification.* 1 label.*regression"):
            call(tmp_path)


def test_answers_have_the_form_of_their_task_and_are_cut_from_the_text(home):
    question = json.dumps({"question": "the film", "choices": ["good", "bad", "dull"]})
    [chosen] = minibert.predict(home / "choose", question)
    assert list(chosen) == ["number", "choice", "probability", "probabilities"]
    [row] = minibert.predict(home / "tag", TEXTS[1])
    [answer] = minibert.predict(home / "answer", "who", TEXTS[1])
    assert list(answer) == ["answer", "start", "end", "score"]
    for one, text in [(answer, answer["answer"]), *((one, one["text"]) for one in row["entities"])]:
        assert text == TEXTS[1][one["start"] : one["end"]] != ""
        assert 0 < one["score"] <= 1
    assert {tuple(one) for one in row["entities"]} <= {("text", "label", "start", "end", "score")}


def test_the_words_of_a_tagger_may_be_given(tmp_path):
    write_theirs(tmp_path, "token-classification", num_labels=2)
    text = "film, film, film,"
    found = minibert.predict(tmp_path, [text], pretokenized=True)[0]["entities"]
    assert {one["text"] for one in found} <= {text, text[:11], text[:5]}
    assert with_given_words(open_reader(tmp_path)).task.from_texts([text]).words == [text.split()]


def test_one_str_is_one_text_and_no_texts_have_no_answers(home):
    for name in ("frozen", "tuned", "classify", "tag", "mask"):
        text = "the [MASK]"
        assert minibert.predict(home / name, text) == minibert.predict(home / name, [text])
        assert minibert.predict(home / name, []) == []
    assert minibert.predict(home / "answer", [], []) == []


def test_a_loaded_model_answers_as_its_folder(home):
    for name, head in HEADS.items():
        texts = ['{"question": "the", "choices": ["a", "b"]}'] if name == "choose" else ["the [MASK] film"]
        pairs = ["the good film"] if name == "answer" else None
        model, tokenizer = minibert.load(home / name, head=head), minibert.load_tokenizer(home / name)
        expected = minibert.predict(home / name, texts, pairs)
        assert minibert.predict(model, texts, pairs, tokenizer=tokenizer) == expected
        assert minibert.load(home / name, head=head).predict(texts, pairs) == expected


def without_source(folder: Path, head: str) -> Any:
    """A trained model that nobody loaded."""
    model = minibert.load(folder, head=head)
    model.checkpoint = None
    return model


# -- long texts

LONG, SHORT = "the [MASK] very good film " * 40, "a [MASK] film"  # 200 tokens and 3, of the 120 that are read
ASKED = [json.dumps({"question": text, "choices": ["good", "bad"]}) for text in (LONG, SHORT, SHORT)]


@pytest.mark.parametrize(
    ("name", "texts", "pairs", "message"),
    [
        (
            "frozen",
            [LONG, SHORT, LONG + "x"],
            None,
            r"^2 of 3 texts .* 120 tokens .* 203\b",
        ),
        ("tuned", [LONG, SHORT, LONG + "x"], None, r"^2 of 3 texts .* 20 tokens .* 203\b"),
        ("classify", [LONG, SHORT], [SHORT, SHORT], r"^1 of 2 texts .* 120 .* 206\b"),
        ("choose", ASKED, None, r"^1 of 3 questions .* 120 .* 204\b"),
        ("answer", [LONG, SHORT], [SHORT, LONG], r"^1 of 2 questions .* 64 .* 200\b"),
        ("mask", [f"a [MASK] {'very ' * 200}", SHORT], None, r"^1 of 2 texts .* 120 .* 204\b"),
    ],
)
def test_texts_beyond_the_limit_are_counted_in_one_warning(name, texts, pairs, message, home):
    with pytest.warns(TruncationWarning, match=message) as caught:
        minibert.predict(home / name, texts, pairs)
    assert len(caught) == 1
    assert str(pickle.loads(pickle.dumps(caught[0].message))) == str(caught[0].message)


def test_a_tagger_reads_a_long_text_to_its_end(tmp_path):
    write_theirs(tmp_path, "token-classification", num_labels=2)
    words = 300 * ["film"]
    reader = open_reader(tmp_path)
    data = Sentences([words], [300 * ["LABEL_0"]])
    assert reader.measure(data).figures["words"] == len(reader.answer(data)[0]["tags"]) == 300
    text = " ".join(words)
    assert minibert.predict(tmp_path, text)[0]["entities"][-1]["end"] == len(text)


# -- what is refused


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda home: minibert.predict(home / "tuned", TEXTS, pretokenized=True), ValueError, "pretokenized.*classify"),
        (lambda home: open_reader(home / "tag", model="x"), ValueError, r"model is 'x'.*\btag\b"),
        (
            lambda home: minibert.predict(
                minibert.load(home / "encoder", head="token-classification", new_head=True, num_labels=3),
                TEXTS,
                tokenizer=minibert.load_tokenizer(home / "encoder"),
            ),
            ValueError,
            r"'token-classification'.*never trained",
        ),
        (
            lambda home: without_source(home / "mask", "masked-lm").predict(TEXTS),
            TypeError,
            "tokenizer=load_tokenizer",
        ),
        (
            lambda home: minibert.predict(home / "tag", TEXTS, tokenizer=minibert.load_tokenizer(home / "tag")),
            TypeError,
            "tokenizer",
        ),
    ],
)
def test_a_call_that_cannot_be_is_refused(call, error, message, home):
    with pytest.raises(error, match=message):
        call(home)


@pytest.mark.parametrize(
    ("name", "texts", "error", "message"),
    [
        ("no/such", [TEXTS], FileNotFoundError, "no/such"),
        ("encoder", [TEXTS], ValueError, "task head"),
        ("answer", [TEXTS], ValueError, "second texts"),
        *((name, [TEXTS, TEXTS], ValueError, "one text") for name in ("frozen", "tag", "mask")),
        ("mask", [TEXTS], ValueError, r"row 0 .* 0 \[MASK\]"),
        ("tuned", [["a", None]], TypeError, r"row 1 .*None"),
        ("classify", [[["a", "b"]]], TypeError, r"row 0 .*\blist\b"),
        ("classify", [["a"], ["b", "c"]], ValueError, r"\b1 text and 2 pairs"),
    ],
)
def test_texts_that_cannot_be_answered_are_refused(name, texts, error, message, home):
    with pytest.raises(error, match=message):
        minibert.predict(home / name, *texts)


def test_two_labels_of_one_name_are_refused(home, tmp_path):
    folder = relabelled(home / "classify", tmp_path / "twice", {"0": "a", "1": "a"})
    with pytest.raises(ValueError, match=r"'a'.*id2label"):
        minibert.predict(folder, TEXTS)


def relabelled(folder: Path, new: Path, names: dict[str, Any]) -> Path:
    return edit_json(shutil.copytree(folder, new) / "config.json", id2label=names)


@pytest.mark.parametrize("name", [None, 7, True, ["a"], {}])
def test_a_label_without_a_text_as_name_is_refused_only_where_labels_are_predicted(name, home, tmp_path):
    names = {"0": "a", "1": name}
    folder = relabelled(home / "classify", tmp_path / "classify", names)
    ids = torch.tensor([[2, 5, 3]])
    before, model = (minibert.load(one, head="sequence-classification") for one in (home / "classify", folder))
    assert torch.equal(model(ids).logits, before(ids).logits)  # which have no names
    minibert.save(minibert.load(relabelled(home / "encoder", tmp_path / "encoder", names)), tmp_path / "again")
    assert transformers.AutoModel.from_pretrained(tmp_path / "again").config.id2label == {0: "a", 1: name}
    question = (["Who was here?"], ["The cat was here."])
    answers = minibert.predict(relabelled(home / "answer", tmp_path / "answer", names), *question)
    assert answers == minibert.predict(home / "answer", *question)
    with pytest.raises(ValueError, match=r"label .* 1\b.*id2label"):
        minibert.predict(folder, TEXTS)


def test_a_new_head_replaces_labels_without_a_text_as_name(home, tmp_path):
    folder = relabelled(home / "classify", tmp_path / "classify", {"0": None, "1": 7})
    texts, labels = labelled()
    minibert.train.finetune("classify", texts, labels, model=folder, out=tmp_path / "tuned", epochs=1, batch_size=8)
    assert minibert.predict(tmp_path / "tuned", TEXTS[:1])[0]["label"] in labels


@every_wrong_number
def test_a_length_that_cannot_be_is_refused_with_the_file_and_the_key(value, home, tmp_path):
    folder = shutil.copytree(home / "tuned", tmp_path / "damaged")
    edit_json(folder / "training.json", asked={"max_length": value})
    with pytest.raises(ValueError, match=r"training\.json.*max_length is .{1,60};"):
        minibert.predict(folder, TEXTS)


def test_a_damaged_training_json_is_refused_and_a_lost_one_is_not_needed(home, tmp_path):
    folder = shutil.copytree(home / "tuned", tmp_path / "damaged")
    found = minibert.predict(folder, TEXTS)
    (folder / "training.json").write_text('{"task": "classify", "settings": {"colour": 1}, "asked": {"max_length": 9}}')
    with pytest.raises(ValueError, match="train again"):
        minibert.predict(folder, TEXTS)
    (folder / "training.json").unlink()
    assert minibert.predict(folder, TEXTS) == found
