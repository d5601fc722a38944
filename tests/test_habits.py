"""The shortcuts that users know from transformers work here, and no error prints a whole object."""

import inspect
import re
from collections.abc import Callable
from functools import partial
from itertools import product
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import open_upstream
from support.words import write_words_checkpoint
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import minibert
from minibert import losses, stream
from minibert.prediction import frozen
from minibert.tasks import masked_text
from minibert.text.tokenized import TruncationWarning
from minibert.utils import habits
from minibert.utils.habits import ARGUMENTS, ATTRIBUTES

TEXT, PAIR = "the lovely film", "a dull play"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_words_checkpoint(tmp_path_factory.mktemp("words"), head="sequence-classification")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> minibert.Tokenizer:
    return minibert.load_tokenizer(folder)


# -- a batch and an output


def test_a_batch_is_what_a_model_takes_and_is_read_by_name(folder, tokenizer):
    batch = tokenizer([TEXT, "film"], [PAIR, "book"])
    encoder, model = minibert.load(folder), minibert.load(folder, head="sequence-classification")
    assert list(batch.keys()) == list(batch) == list(dict(batch)) == ["input_ids", "attention_mask", "token_type_ids"]
    assert (batch["input_ids"], batch["tokens"], len(batch)) == (batch.input_ids, batch.tokens, 2)
    named = encoder(batch.input_ids, attention_mask=batch.attention_mask, token_type_ids=batch.token_type_ids)
    assert torch.equal(encoder(**batch).last_hidden_state, named.last_hidden_state)
    assert torch.equal(encoder(**{name: x.to(encoder.device) for name, x in batch.items()})[0], named[0])
    assert model(**batch, labels=torch.tensor([0, 1])).loss.shape == ()
    assert model.device == model.encoder.device == torch.device("cpu")
    for key in ("overflow", 0):
        with pytest.raises(KeyError, match=str(key)):
            batch[key]


def test_dir_has_what_the_package_offers():
    assert {"load", "load_tokenizer", "embed", "save", "train", "TextFeatures", "__version__"} <= set(dir(minibert))
    assert all(getattr(minibert, name) is not None for name in dir(minibert))
    assert minibert.train.finetune.__module__ == "minibert.train.estimator"


# -- a tokenizer


SPECIALS = [f"{name}_token{end}" for name in ("cls", "sep", "pad", "mask", "unk") for end in ("", "_id")]
IDS = torch.tensor([[101, 1996, 103, 102, 0], [101, 7367, 2078, 2072, 102]])
LONG = ["the lovely film was " * 30, "dull " * 513]
CUTS = [{"max_length": 512, "truncation": True}, {"max_length": 5, "truncation": True}, {"max_length": 9}]
AS_IN_TRANSFORMERS: list[Callable[[Any], Any]] = [
    len,
    attrgetter("vocab_size", *SPECIALS),
    methodcaller("get_vocab"),
    lambda one: (sorted(one.all_special_ids), sorted(one.all_special_tokens)),
    *(methodcaller("batch_decode", rows, skip_special_tokens=skip) for rows in (IDS, [*IDS]) for skip in (True, False)),
    *(methodcaller("convert_ids_to_tokens", ids) for ids in (103, IDS[0], IDS[1].tolist())),
    *(methodcaller("convert_tokens_to_ids", token) for token in ("[MASK]", "no such token", ["film", "no such token"])),
]
for text in (TEXT, "", "unbelievable café [MASK] naïve 中文", "a [SEP] b"):
    AS_IN_TRANSFORMERS += [methodcaller("tokenize", text), methodcaller("encode", text, PAIR)]
for text, special in product((TEXT, "a [SEP] b", *LONG), (True, False)):
    AS_IN_TRANSFORMERS += [methodcaller("encode", text, add_special_tokens=special, **how) for how in CUTS]
TENSOR = {"max_length": 8, "padding": "max_length", "truncation": True, "return_tensors": "pt"}


@pytest.mark.filterwarnings("ignore::minibert.text.tokenized.TruncationWarning")
def test_a_tokenizer_is_called_and_read_as_in_transformers(minilm):
    ours, theirs = minibert.load_tokenizer(minilm), AutoTokenizer.from_pretrained(minilm)
    for number, call in enumerate(AS_IN_TRANSFORMERS):
        assert call(ours) == call(theirs), (number, call)
    for call in (
        methodcaller("encode", TEXT, PAIR, **TENSOR),
        lambda one: one([TEXT * 9, PAIR], **TENSOR)["input_ids"],
    ):
        assert torch.equal(call(ours), call(theirs))
    assert ours.decode(IDS[0]) == theirs.decode(IDS[0]) and ours.model_max_length == ours.max_length
    batch, expected = ours([TEXT, "film"]), theirs([TEXT, "film"], padding=True)
    for name in ("word_ids", "tokens"):
        assert [getattr(batch, name)(row) for row in (0, 1)] == [getattr(expected, name)(row) for row in (0, 1)]


def test_encode_cuts_with_a_warning_and_leaves_a_bare_text_whole(tokenizer):
    with pytest.warns(TruncationWarning, match=r"^1 of 1 text is .* 20 tokens"):
        assert len(tokenizer.encode("good " * 40)) == 20
    assert len(tokenizer.encode("good " * 40, add_special_tokens=False)) == 40


@pytest.mark.parametrize(
    ("method", "given", "message"),
    [
        ("encode", {"text": TEXT, "pair": PAIR, "add_special_tokens": False}, "SEP"),
        ("encode", {"text": TEXT, "add_special_tokens": False, "stride": 3}, "stride"),
        ("tokenize", {"text": 3}, r"row 0 .*\bint\b"),
    ],
)
def test_what_a_tokenizer_cannot_do_is_refused(tokenizer, method, given, message):
    with pytest.raises((ValueError, TypeError), match=message):
        getattr(tokenizer, method)(**given)


# -- names of transformers, sentence-transformers and scikit-learn


@pytest.mark.parametrize("labels", [None, torch.tensor([1])])
def test_an_output_is_read_as_in_transformers(labels, folder, tokenizer):
    ours = minibert.load(folder, head="sequence-classification")
    theirs = open_upstream(AutoModelForSequenceClassification, folder)
    batch = tokenizer(TEXT, return_tensors="pt")
    with torch.no_grad():
        found, expected = (model(**batch, labels=labels, output_hidden_states=True) for model in (ours, theirs))
        alone, others = (model(**batch, labels=labels, return_dict=False) for model in (ours, theirs))
        (ours_encoded,) = ours.encoder(**batch, return_dict=False)[:1]
    assert torch.equal(ours_encoded, found.hidden_states[-1])
    assert list(found.keys()) == list(expected.keys()) == [name for name, _ in found.items()]
    assert ("loss" in found, "logits" in found, found.loss is None) == ("loss" in expected, True, labels is None)
    assert found["logits"] is found.logits is found[-2] is found[:-1][-1]
    for read in (len, list, dict, lambda out: [0 in out, out.get("x", 7), out.get("attentions")]):
        assert repr(read(found)) == repr(read(expected)), read
    assert found.get("logits") is found.logits
    for name in ("attentions", "pooled"):
        with pytest.raises(KeyError):
            expected[name]
        with pytest.raises(KeyError, match=rf"'{name}'.*logits"):
            found[name]
    with pytest.raises(IndexError):
        found[len(found)]
    values = [(found.to_tuple(), expected.to_tuple()), (found.values(), tuple(expected.values())), (alone, others)]
    for own, upstream in values:
        assert isinstance(own, tuple) and len(own) == len(upstream) and torch.equal(own[0], upstream[0])


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises((AttributeError, TypeError, KeyError)) as error:
        call()
    return str(error.value)


def test_names_of_models_are_answered_with_ours(folder, tokenizer):
    model = minibert.load(folder, head="sequence-classification")
    for one, name in product((model, model.encoder), ("save_pretrained", "from_pretrained")):
        assert ATTRIBUTES[name] in refused(partial(getattr(one, name), "x"))
    for kind in (type(model), minibert.Encoder, minibert.Tokenizer):
        assert ATTRIBUTES["from_pretrained"] in refused(partial(kind.from_pretrained, "x"))
    elsewhere = {
        "encode_plus": tokenizer,
        "save_pretrained": tokenizer,
        "Trainer": minibert.train,
        "TripletLoss": losses,
    }
    here = dict.fromkeys({*ATTRIBUTES, *ALIKE} - {"losses"}, minibert)  # which is a module of ours, with other names
    for name, owner in [*here.items(), *elsewhere.items()]:
        assert ATTRIBUTES[ALIKE.get(name, name)] in refused(partial(getattr, owner, name)), name
    for exchanged in (("x", model), (tokenizer, "x"), (torch.nn.Linear(2, 2), "x")):
        assert "save(model, folder)" in refused(partial(minibert.save, *exchanged))
    assert "Path" in refused(lambda: minibert.Config.from_file({}))
    assert minibert.Config.from_file(str(folder / "config.json")) == minibert.Config.from_file(folder / "config.json")
    assert "load_tokenizer?" in refused(lambda: minibert.load_tokeniser("x"))
    batch = tokenizer(TEXT)
    assert "offsets" in refused(lambda: batch["offset_mapping"]) and "offsets" in refused(lambda: batch.offset_mapping)
    assert "token_type_ids" in refused(lambda: batch.sequence_ids(0))
    assert refused(lambda: batch.nothing) == "'Batch' object has no attribute 'nothing'"
    assert "width" in refused(lambda: minibert.Embedder(folder).get_sentence_embedding_dimension())


ALIKE = {
    "RobertaModel": "AutoModel",
    "BertTokenizerFast": "AutoTokenizer",
    "BertConfig": "AutoConfig",
    "BertForMaskedLM": "AutoModelForMaskedLM",
    "ContrastiveLoss": "losses",
    "TripletEvaluator": "evaluation",
    "SentenceTransformerTrainingArguments": "TrainingArguments",
    "pytorch_cos_sim": "similarity",
}
TRAIN = (minibert.train.pretrain, minibert.train.distill, partial(minibert.train.finetune, "classify", [TEXT], [PAIR]))
PUBLIC = [
    *TRAIN,
    *(getattr(minibert, name) for name in minibert.__all__ if name not in ("Encoder", "score", "stream", "train")),
]


def test_an_argument_of_another_library_is_answered_with_ours(folder, tokenizer):
    calls = {
        "batch_size normalize_embeddings convert_to_tensor show_progress_bar": partial(minibert.embed, [TEXT], folder),
        "batch_size max_seq_length": partial(minibert.TextFeatures, folder),
        "pooling_mode": minibert.Recipe,
        "torch_dtype attn_implementation device_map": partial(minibert.load, folder),
        "text_pair return_offsets_mapping is_split_into_words": partial(tokenizer, TEXT),
        "num_train_epochs output_dir": partial(minibert.train.finetune, "classify", [TEXT, PAIR], ["a", "b"]),
        "top_k": partial(minibert.search, [TEXT], PAIR, model=folder),
        "top_k batch_size": partial(minibert.mine, [TEXT], model=folder),
        "lr": partial(minibert.train.pretrain, "corpus.txt"),
        "eval_dataset max_steps": partial(minibert.train.distill, "corpus.txt"),
        "num_train_epochs lr random_state": minibert.FineTunedClassifier,
        "num_heads num_layers": minibert.Config,
        "use_fast trust_remote_code do_lower_case": partial(minibert.load_tokenizer, folder),
        "aggregation_strategy": partial(minibert.predict, folder, [TEXT]),
    }
    for names, call in calls.items():
        for name in names.split():
            assert f"{name}{habits.argument(name)}" in refused(partial(call, **{name: 8}))
    for hasty in (*PUBLIC, partial(minibert.score, [TEXT], folder)):
        assert re.search(r"has no (argument|setting) xyz; choose from \w+", refused(partial(hasty, xyz=8))), hasty
    assert "use epochs" not in refused(lambda: minibert.embed([TEXT], folder, num_train_epochs=3))
    assert "choose from name, head" in refused(lambda: minibert.load(folder, num_heads=3))
    assert refused(partial(minibert.load(folder), tokenizer(TEXT))).endswith(": model(**batch)")
    assert "pooling?" in refused(lambda: minibert.embed([TEXT], folder, poolng="mean"))
    assert "choose from" in refused(lambda: minibert.TextFeatures(folder, xyz="mean"))


def test_the_page_of_habits_has_every_name_and_names_what_is_there():
    page = (Path(__file__).parents[1] / "tutorials" / "HABITS.md").read_text("utf-8")
    missing = [name for name in (*ATTRIBUTES, *ARGUMENTS) if not re.search(rf"\b{name}\b", page)]
    assert missing == []
    for name in re.findall(r"minibert\.([\w.]+)", page):
        attrgetter(name)(minibert)
    for name in re.findall(r"(?<!\w)tokenizer\.(\w+)", page):
        assert hasattr(minibert.Tokenizer, name) or name in ATTRIBUTES, name


def test_the_python_of_the_page_runs(minilm, tmp_path, monkeypatch):
    page = (Path(__file__).parents[1] / "tutorials" / "HABITS.md").read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(code, {})


# -- an error never prints a whole module

Call = tuple[Callable[..., Any], dict[str, Any]]


class Verbose:
    """An object that prints itself on many lines, as modules do, which people pass by mistake."""

    def __repr__(self) -> str:
        return "Verbose(\n" + "  (layer): Linear()\n" * 200 + ")"


@pytest.fixture
def public_calls(folder: Path, tokenizer: minibert.Tokenizer, tmp_path: Path) -> list[Call]:
    """What users call, and right arguments: each will be replaced by a wrong one."""
    masked = write_words_checkpoint(tmp_path / "masked", head="masked-lm")
    (tmp_path / "in.txt").write_text("good film\n")
    encoder, cpu = minibert.load(folder), {"device": "cpu"}
    texts, labels = ["good film", "bad film"] * 6, ["pos", "neg"] * 6
    settings = {name: value.default for name, value in inspect.signature(minibert.Recipe).parameters.items()}
    recipe = {name: value for name, value in settings.items() if value is not None}
    model, out = {"model": folder}, {"out": tmp_path / "x.npy", "overwrite": True}
    dtype = {"dtype": torch.float32, "attention": "eager"}
    return [
        (minibert.load, {"name": folder, "head": "sequence-classification"} | dtype | cpu),
        (minibert.load_tokenizer, {"name": folder, "max_length": 12}),
        (minibert.save, {"model": encoder, "folder": tmp_path / "saved"}),
        (minibert.embed, {"texts": texts} | model | cpu | recipe),
        (minibert.embed, {"texts": texts, "model": encoder, "tokenizer": tokenizer}),
        (
            lambda texts, **how: minibert.Embedder(**how)(texts),
            {"texts": texts, "recipe": minibert.Recipe()} | model | cpu,
        ),
        (minibert.Recipe, recipe),
        (
            lambda X, y, **how: minibert.TextFeatures(**how).fit(X, y).transform(X),
            {"X": texts, "y": labels, "cache": tmp_path / "cache"} | model | recipe,
        ),
        (stream.embed_stream, {"texts": texts, "dtype": "float32", "part_rows": 9} | out | model),
        (stream.embed_file, {"path": tmp_path / "in.txt"} | out | model),
        (frozen.train, {"texts": texts, "labels": labels, "grid": [1.0], "folds": 2} | model),
        (tokenizer, {"texts": texts, "pairs": texts, "max_length": 12, "truncation": "warn"}),
        (tokenizer.ids, {"texts": texts, "truncation": "warn", "missing": "error"}),
        (tokenizer.encode, {"text": TEXT, "pair": PAIR}),
        (tokenizer.tokenize, {"text": TEXT}),
        (tokenizer.decode, {"ids": [1, 2]}),
        (tokenizer.convert_ids_to_tokens, {"ids": [1, 2]}),
        (tokenizer.convert_tokens_to_ids, {"tokens": ["good"]}),
        (encoder, dict(tokenizer(texts))),
        (minibert.trace, {"encoder": encoder, "tokenizer": tokenizer, "text": TEXT}),
        (minibert.score, {"texts": texts, "model": masked, "tokens": True} | cpu),
        (masked_text.fill_mask, {"text": "a [MASK]", "model": masked, "top_k": 2}),
    ]


@pytest.mark.slow
def test_no_error_of_a_public_call_prints_a_whole_module(public_calls, folder, tokenizer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = minibert.load(folder, head="sequence-classification")
    wrong = [
        model,
        tokenizer(["good film"] * 200),
        torch.zeros(40, 40, 40),
        list(range(10_000)),
        Verbose(),
        [Verbose()],
        {"text": ["good film"] * 1000},
    ]
    messages = []
    for call, right in public_calls:
        call(**right)  # with the right arguments it works, so that each error below is that of the wrong one
        for argument, value in product(right, wrong):
            try:
                call(**right | {argument: value})
            except Exception as error:
                messages.append(str(error))
    assert len(messages) > 300
    assert [message[:200] for message in messages if len(message) > 600 or "\n" in message] == []
