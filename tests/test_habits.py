"""The shortcuts that users know from transformers work here, and no error prints a whole object."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from words import write_words_checkpoint

import minibert
from minibert import stream
from minibert.tasks import frozen, masked_text
from minibert.text.tokenized import TruncationWarning
from minibert.text.tokenizer import Tokenizer
from minibert.vectors.embedder import Embedder
from minibert.vectors.recipe import Recipe

TEXT, PAIR = "the lovely film", "a dull play"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_words_checkpoint(tmp_path_factory.mktemp("words"), head="sequence-classification")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return minibert.load_tokenizer(folder)


@pytest.fixture(scope="module")
def theirs(minilm: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(minilm)


# -- a batch and an output


def test_a_batch_is_what_a_model_takes(folder: Path, tokenizer: Tokenizer) -> None:
    batch = tokenizer([TEXT, "film"], [PAIR, "book"])
    encoder, model = minibert.load(folder), minibert.load(folder, head="sequence-classification")
    assert list(batch.keys()) == list(batch) == list(dict(batch)) == ["input_ids", "attention_mask", "token_type_ids"]
    named = encoder(batch.input_ids, attention_mask=batch.attention_mask, token_type_ids=batch.token_type_ids)
    assert torch.equal(encoder(**batch).last_hidden_state, named.last_hidden_state)
    assert torch.equal(encoder(**{name: x.to(encoder.device) for name, x in batch.items()})[0], named[0])
    assert torch.equal(model(**batch).logits, model(**batch, labels=torch.tensor([0, 1]))["logits"])


def test_a_batch_and_an_output_are_read_by_name_and_an_output_by_index(folder: Path, tokenizer: Tokenizer) -> None:
    batch = tokenizer([TEXT, "film"])
    assert batch["input_ids"] is batch.input_ids
    assert batch["tokens"] is batch.tokens
    assert len(batch) == 2
    for key in ("overflow", 0):
        with pytest.raises(KeyError, match=f"a Batch has no .*{key}.*; it has input_ids, attention_mask"):
            batch[key]  # type: ignore[index]
    out = minibert.load(folder)(**tokenizer([TEXT]))
    assert out[0] is out["last_hidden_state"] is out.last_hidden_state
    model = minibert.load(folder, head="sequence-classification")
    loss, logits = model(**tokenizer([TEXT]), labels=torch.tensor([1]))[:2]
    assert (loss.shape, logits.shape) == ((), (1, 2))
    assert model.device == model.encoder.device == torch.device("cpu")


def test_dir_has_what_the_package_offers() -> None:
    assert {"load", "load_tokenizer", "embed", "save", "TextFeatures", "__version__"} <= set(dir(minibert))
    assert all(getattr(minibert, name) is not None for name in dir(minibert))


# -- a tokenizer


@pytest.mark.parametrize("text", [TEXT, "", "unbelievable café [MASK] naïve 中文", "a [SEP] b"])
def test_the_tokenizers_short_forms_give_what_transformers_gives(minilm: Path, theirs: Any, text: str) -> None:
    ours = minibert.load_tokenizer(minilm)
    assert ours.tokenize(text) == theirs.tokenize(text)
    assert ours.encode(text) == theirs.encode(text)
    assert ours.encode(text, PAIR) == theirs.encode(text, PAIR)
    assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)
    ids = ours.encode(text)
    assert ours.convert_ids_to_tokens(ids) == theirs.convert_ids_to_tokens(ids)
    assert ours.convert_ids_to_tokens(torch.tensor(ids)) == theirs.convert_ids_to_tokens(ids)
    assert ours.convert_tokens_to_ids([*ours.tokenize(text), "no such token"]) == theirs.convert_tokens_to_ids(
        [*theirs.tokenize(text), "no such token"]
    )
    assert ours.decode(ids) == theirs.decode(ids)


def test_encode_cuts_with_a_warning_and_leaves_a_bare_text_whole(tokenizer: Tokenizer) -> None:
    with pytest.warns(TruncationWarning, match="^1 of 1 texts are longer than 20 tokens"):
        assert len(tokenizer.encode("good " * 40)) == 20
    assert len(tokenizer.encode("good " * 40, add_special_tokens=False)) == 40


def test_what_the_short_forms_cannot_do_is_said(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match=r"without .SEP. a pair would be one text"):
        tokenizer.encode(TEXT, PAIR, add_special_tokens=False)
    with pytest.raises(ValueError, match=f"id {tokenizer.vocab_size} is not in the vocabulary, which has"):
        tokenizer.convert_ids_to_tokens([tokenizer.vocab_size])
    with pytest.raises(TypeError, match="row 0 is of type int, not a text"):
        tokenizer.tokenize(3)  # type: ignore[arg-type]


# -- an error never prints a whole module


class Verbose:
    """An object as the ones that people pass by mistake print themselves."""

    def __repr__(self) -> str:
        return "Verbose(\n" + "  (layer): Linear()\n" * 200 + ")"


def partial(function: Callable[..., Any], **right: Any) -> Callable[..., Any]:
    def call(**wrong: Any) -> Any:
        return function(**right | wrong)

    call.arguments = [*right]  # type: ignore[attr-defined]
    return call


def overwriting(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda **given: function(**given, overwrite=True)


def public_calls(folder: Path, tmp_path: Path) -> dict[str, Callable[..., Any]]:
    """What users call, with a right object for each argument that is needed, to be replaced one by one."""
    masked = write_words_checkpoint(tmp_path / "masked", head="masked-lm")
    encoder, tokenizer = minibert.load(folder), minibert.load_tokenizer(folder)
    texts, labels = ["good film", "bad film"] * 6, ["pos", "neg"] * 6
    batch = tokenizer(texts)

    def fit(X: Any, y: Any, **settings: Any) -> Any:
        return minibert.TextFeatures(**{"model": folder} | settings).fit(X, y).transform(X)

    settings = {name: value.default for name, value in inspect.signature(Recipe).parameters.items()}
    recipe = {name: value for name, value in settings.items() if value is not None}
    ids = batch.input_ids
    return {
        "load": partial(
            minibert.load,
            name=folder,
            head="sequence-classification",
            dtype=torch.float32,
            device="cpu",
            attention="eager",
        ),
        "load_tokenizer": partial(minibert.load_tokenizer, name=folder, max_length=12),
        "save": partial(minibert.save, model=encoder, folder=tmp_path / "saved"),
        "embed": partial(minibert.embed, texts=texts, model=folder, device="cpu", **recipe),
        "embed an encoder": partial(minibert.embed, texts=texts, model=encoder, tokenizer=tokenizer),
        "Embedder": partial(lambda **given: Embedder(**given)(texts), model=folder, recipe=Recipe(), device="cpu"),
        "Recipe": partial(Recipe, **recipe),
        "TextFeatures": partial(fit, X=texts, y=labels, model=folder, cache=tmp_path / "cache", **recipe),
        "embed_stream": partial(
            overwriting(stream.embed_stream),
            texts=texts,
            out=tmp_path / "x.npy",
            model=folder,
            dtype="float32",
            part_rows=9,
        ),
        "embed_file": partial(
            overwriting(stream.embed_file), path=tmp_path / "in.txt", out=tmp_path / "x.npy", model=folder
        ),
        "train": partial(frozen.train, texts=texts, labels=labels, model=folder, grid=[1.0], C=1.0, folds=2),
        "tokenizer": partial(tokenizer, texts=texts, pairs=texts, max_length=12, truncation="warn"),
        "ids": partial(tokenizer.ids, texts=texts, truncation="warn", missing="error"),
        "encode": partial(tokenizer.encode, text=TEXT, pair=PAIR),
        "tokenize": partial(tokenizer.tokenize, text=TEXT),
        "decode": partial(tokenizer.decode, ids=[1, 2]),
        "convert_ids_to_tokens": partial(tokenizer.convert_ids_to_tokens, ids=[1, 2]),
        "convert_tokens_to_ids": partial(tokenizer.convert_tokens_to_ids, tokens=["good"]),
        "encoder": partial(
            encoder, input_ids=ids, attention_mask=batch.attention_mask, token_type_ids=batch.token_type_ids
        ),
        "trace": partial(minibert.trace, encoder=encoder, tokenizer=tokenizer, text=TEXT),
        "fill_mask": partial(masked_text.fill_mask, text="a [MASK]", model=masked, top_k=2),
    }


def test_no_error_of_a_public_call_prints_a_whole_module(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("good film\n")
    wrong = [
        minibert.load(folder, head="sequence-classification"),
        minibert.load_tokenizer(folder)(["good film"] * 200),
        torch.zeros(40, 40, 40),
        list(range(10_000)),
        {"text": ["good film"] * 1000},
        Verbose(),
        [Verbose()],
    ]
    found, seen = [], 0
    for name, call in public_calls(folder, tmp_path).items():
        call()  # with the right arguments it works, so that each error below is that of the wrong one
        for argument in call.arguments:  # type: ignore[attr-defined]
            for value in wrong:
                try:
                    call(**{argument: value})
                except Exception as error:
                    seen += 1
                    message = str(error)
                    if len(message) > 600 or "\n" in message:
                        found.append((name, argument, type(value).__name__, type(error).__name__, message[:90]))
    assert seen > 300
    assert not found, "\n".join(map(str, found))
