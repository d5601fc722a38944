"""The application without a network: what each path answers, and what is refused and how."""

import asyncio
import base64
import json
import re
import shutil
import threading
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from support.models import edit_json
from support.words import labelled, state_vectors, write_words_checkpoint

import minibert
from minibert.cli import main as cli
from minibert.prediction.frozen import train
from minibert.serving import ServerSettings, app, models
from minibert.serving.models import Masks, Vectors, load_labels
from minibert.tasks.masked_text import fill_mask

TEXTS = ["the lovely film", "a very dull play", "", "good"]
EMBED, LONG = "/v1/embeddings", "good " * 40  # the model has 20 positions


async def call(server: app.Server, path: str, body: Any = None, method: str = "POST", **more: Any) -> httpx.Response:
    """One request to a server whose queues run."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(server.app), base_url="http://test") as client:
        return await client.request(method, path, json=body, **more)


def run(server: app.Server, work: Awaitable[Any]) -> Any:
    """Work with a server while its queues run."""

    async def main():
        async with server.lifespan(server.app):
            return await asyncio.wait_for(work, 30)

    return asyncio.run(main())


def ask(server: app.Server, path: str, body: Any = None, **more: Any) -> httpx.Response:
    return run(server, call(server, path, body, **more))


def embed(server: app.Server, input: Any, **more: Any) -> httpx.Response:
    return ask(server, EMBED, {"model": "words", "input": input} | more)


def found_in(answer: httpx.Response, name: str = "embedding") -> Any:
    """One value of each result; the results must be in order."""
    assert answer.status_code == 200, answer.content
    rows = answer.json()["data"]
    assert [row["index"] for row in rows] == list(range(len(rows)))
    return [row[name] for row in rows]


def assert_close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_words_checkpoint(tmp_path_factory.mktemp("served") / "words", head="masked-lm")


@pytest.fixture(scope="module")
def vectors(folder: Path) -> Vectors:
    return Vectors("words", minibert.Embedder(folder, minibert.Recipe(pooling="mean"), "cpu"))


@pytest.fixture(scope="module")
def server(folder: Path, vectors: Vectors) -> app.Server:
    return app.Server(vectors, masks=Masks("words", folder, "cpu"))


# -- vectors


def test_vectors_are_those_of_embed_with_their_usage(server, folder):
    answer = embed(server, TEXTS)
    assert_close(found_in(answer), minibert.embed(TEXTS, folder, pooling="mean"))
    tokens = sum(map(len, minibert.load_tokenizer(folder).ids(TEXTS)))
    assert answer.json()["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert answer.json()["model"] == "words"


def test_one_text_and_base64_and_float_are_the_same_numbers(server):
    whole = np.array(found_in(embed(server, TEXTS[0])), np.float32)
    (encoded,) = found_in(embed(server, [TEXTS[0]], encoding_format="base64"))
    assert np.array_equal(np.frombuffer(base64.b64decode(encoded), "<f4"), whole[0])


def test_token_ids_with_the_special_ones_are_the_text(server, folder):
    whole = minibert.load_tokenizer(folder).ids(TEXTS)
    expected = minibert.embed(TEXTS, folder, pooling="mean")
    assert_close(found_in(embed(server, whole)), expected)
    assert_close(found_in(embed(server, whole[0])), expected[:1])


def test_token_ids_that_may_be_of_another_tokenizer_are_refused_with_the_way_out(server, folder):
    whole = minibert.load_tokenizer(folder).ids(TEXTS[:2])
    cls, *bare, sep = whole[1]
    for row in (bare, [cls, *bare], [*bare, sep], [cls], [sep], [sep, *bare, cls], [100_000, 7]):
        answer = embed(server, [whole[0], row])
        assert (answer.status_code, answer.json()["error"]["param"]) == (422, "input")
        for words in ("row 1", "another tokenizer", "check_embedding_ctx_length=False", f"{cls} and {sep}"):
            assert words in answer.json()["error"]["message"]
    beyond = embed(server, [cls, 100_000, sep])
    assert (beyond.status_code, "row 0" in beyond.json()["error"]["message"]) == (422, True)


def test_normalized_vectors_have_length_1_and_so_have_their_first_dimensions(vectors, folder):
    server = app.Server(
        Vectors("words", minibert.Embedder(folder, minibert.Recipe(pooling="mean", normalize=True), "cpu"))
    )
    plain = minibert.embed(TEXTS, folder, pooling="mean")
    for dimensions in (None, 3):
        first = plain[:, :dimensions]
        found = found_in(embed(server, TEXTS, dimensions=dimensions))
        assert_close(found, first / np.linalg.norm(first, axis=1, keepdims=True))


@pytest.mark.parametrize(
    ("settings", "dimensions", "message"),
    [
        ({"normalize": True}, 0, "1 to 24"),
        ({"normalize": True}, 25, "1 to 24"),
        ({"normalize": True, "dimensions": 8}, 9, "1 to 8"),
        ({}, 25, r"be 24\b"),
        ({}, 3, r"be 24\b.*serve --normalize"),
        ({"dimensions": 8}, 3, r"be 8\b.*serve --normalize"),
    ],
)
def test_dimensions_that_vectors_cannot_have_are_refused_with_those_that_they_can(
    settings, dimensions, message, folder
):
    embedder = minibert.Embedder(folder, minibert.Recipe(pooling="mean", **settings), "cpu")
    answer = embed(app.Server(Vectors("words", embedder)), "good", dimensions=dimensions)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "dimensions")
    assert re.search(message, error["message"]) and message.count("--normalize") == error["message"].count(
        "--normalize"
    )


def test_serve_follows_the_checkpoint_by_default_and_says_so_in_its_first_line(folder, tmp_path, monkeypatch, capsys):
    stated = state_vectors(shutil.copytree(folder, tmp_path / "stated"))
    served = []
    monkeypatch.setattr(app, "serve", lambda server, listener: served.append(server))
    for options, words in (
        ([], "pooling mean, normalized, at most 12 tokens, computed in float32 on cpu"),
        (["--no-normalize"], "pooling mean, at most 12 tokens, computed in float32 on cpu"),
        (["--pooling", "cls", "--normalize"], "pooling cls, normalized, at most 20 tokens, computed in float32 on cpu"),
    ):
        assert cli.main(["serve", "--model", str(stated), "--port", "0", "--device", "cpu", *options]) == 0
        assert capsys.readouterr().out.splitlines()[0].endswith(words)
    expected = minibert.embed(TEXTS, stated, pooling="auto")
    assert_close(found_in(embed(served[0], TEXTS, model="stated")), expected)
    assert len(found_in(embed(served[0], TEXTS, model="stated", dimensions=3))[0]) == 3
    assert "max_length 12" in embed(served[0], LONG, model="stated").json()["error"]["message"]


def test_models_are_loaded_in_a_thread_that_has_ended_when_the_server_runs(folder, monkeypatch):
    loading = []
    alive = []

    def load(*arguments, **settings):
        loading.append(threading.current_thread())
        return Vectors(*arguments, **settings)

    monkeypatch.setattr(models, "Vectors", load)
    monkeypatch.setattr(app, "serve", lambda server, listener: alive.append(loading[0].is_alive()))
    assert cli.main(["serve", "--model", str(folder), "--port", "0", "--device", "cpu"]) == 0
    assert loading != [threading.main_thread()]
    assert alive == [False]


def test_a_text_that_is_too_long_is_cut_on_request_and_counted(vectors, folder):
    server = app.Server(Vectors("words", vectors.embedder, truncate=True))
    answer = embed(server, ["good", LONG])
    expected = minibert.embed(["good", "good " * 18], folder, pooling="mean")
    assert_close(found_in(answer), expected)
    assert answer.json()["usage"] == {"prompt_tokens": 23, "total_tokens": 23, "truncated_texts": 1}
    cls, good, sep = minibert.load_tokenizer(folder).ids(["good"])[0]
    ids = [cls, *[good] * 40, sep]
    assert_close(found_in(embed(server, [ids])), expected[1:])


@pytest.mark.filterwarnings("ignore:1 of 2 texts is longer")
def test_token_ids_are_cut_on_the_side_that_the_files_state(folder, tmp_path):
    left = shutil.copytree(folder, tmp_path / "left")
    edit_json(left / "tokenizer_config.json", truncation_side="left")
    embedder = minibert.Embedder(left, minibert.Recipe(pooling="mean"), "cpu")
    texts = ["the lovely film", LONG + "bad play"]
    ids = minibert.load_tokenizer(left).ids(texts, max_length=20)
    cls, *short, sep = ids[0]
    good = minibert.load_tokenizer(left).ids(["good"])[0][1]
    whole = [[cls, *short, sep], [cls, *[good] * 40, *ids[1][-3:]]]
    answer = embed(app.Server(Vectors("words", embedder, truncate=True)), whole)
    assert_close(found_in(answer), minibert.embed(texts, left, pooling="mean"))
    assert answer.json()["usage"]["truncated_texts"] == 1


# -- labels and masked tokens


def assert_answers_as_predict(server: app.Server, input: list[Any], folder: Path) -> None:
    """The answers to texts or pairs are those of `minibert.predict`, numbers within 1e-5."""
    texts, pairs = zip(*input, strict=True) if isinstance(input[0], list) else (input, None)
    answer = ask(server, "/classify", {"input": input})
    for found, row in zip(answer.json()["data"], minibert.predict(folder, texts, pairs), strict=True):
        close = json.loads(json.dumps(row), parse_float=lambda number: pytest.approx(float(number), abs=1e-5))
        assert {name: found[name] for name in row} == close


@pytest.mark.filterwarnings("ignore::minibert.text.tokenizer.TruncationWarning")
@pytest.mark.parametrize("kind", ["texts", "pairs", "windows"])
def test_a_frozen_classifier_answers_as_in_python(kind, vectors, folder, tmp_path):
    texts, labels = labelled()
    settings = {"pairs": {"pairs": texts[::-1]}, "windows": {"long": "windows"}}.get(kind, {})
    train(texts, labels, model=folder, folds=0, **settings).save(tmp_path / "sentiment")
    server, rows = app.Server(vectors, load_labels(tmp_path / "sentiment", "cpu")), [" ".join(texts[:8]), "good"]
    rows = [[row, texts[0]] for row in rows] if kind == "pairs" else rows
    assert_answers_as_predict(server, rows, tmp_path / "sentiment")
    assert ask(server, "/v1/models", method="GET").json()["data"][1]["id"] == "sentiment"
    assert ask(server, "/classify", {"input": texts if kind == "pairs" else [["a", "b"]]}).status_code == 422
    assert ask(server, "/classify", {"input": "good", "model": "words"}).status_code == 404


@pytest.mark.parametrize(
    ("head", "input"),
    [
        ("sequence-classification", ["the good film", "a dull play"]),
        ("sequence-classification", [["the good film", "a dull play"]]),
        ("token-classification", ["the good film, a play", "x", ""]),
        ("question-answering", [["the film", "the very good film"], ["the play", "a dull play " * 30]]),
    ],
)
def test_a_folder_of_transformers_answers_as_predict(head, input, vectors, tmp_path):
    write_words_checkpoint(tmp_path / "theirs", head=head, max_position_embeddings=120)
    server = app.Server(vectors, load_labels(tmp_path / "theirs", "cpu"))
    assert_answers_as_predict(server, input, tmp_path / "theirs")


def test_a_tagger_reads_a_long_text_whole_and_a_classifier_counts_what_it_cut(vectors, tmp_path):
    long = " ".join(["good film"] * 40)  # 80 tokens; the models have 20 positions
    write_words_checkpoint(tmp_path / "tag", head="token-classification")
    (expected,) = minibert.predict(tmp_path / "tag", [long])
    answer = ask(app.Server(vectors, load_labels(tmp_path / "tag", "cpu")), "/classify", {"input": long})
    (entities,) = found_in(answer, "entities")
    assert [one["start"] for one in entities] == [one["start"] for one in expected["entities"]]
    assert max(one["end"] for one in entities) > len(long) / 2
    assert "truncated_texts" not in answer.json()["usage"]
    write_words_checkpoint(tmp_path / "classify", head="sequence-classification")
    classifier = app.Server(vectors, load_labels(tmp_path / "classify", "cpu"))
    assert ask(classifier, "/classify", {"input": [long, "good"]}).json()["usage"]["truncated_texts"] == 1


def test_what_classify_cannot_serve_is_refused_with_the_way_out(folder, vectors, tmp_path):
    with pytest.raises(ValueError, match=r"'mask'.*/fill-mask.*--model"):
        load_labels(folder, "cpu")
    with pytest.raises(ValueError, match=r"'choose'.*minibert predict"):
        load_labels(write_words_checkpoint(tmp_path / "choose", head="multiple-choice"), "cpu")
    tagger = load_labels(write_words_checkpoint(tmp_path / "tag", head="token-classification"), "cpu")
    answer = ask(app.Server(vectors, tagger), "/classify", {"input": [["a", "b"]]})
    assert (answer.status_code, answer.json()["error"]["message"]) == (422, "row 0 is not a single text")


def test_masked_tokens_are_those_of_fill_mask(server, folder):
    texts = ["the [MASK] film", "a [MASK] and a [MASK]"]
    for found, text in zip(found_in(ask(server, "/fill-mask", {"input": texts}), "masks"), texts, strict=True):
        expected = fill_mask(text, folder, 5)
        for mask, guesses in zip(found, expected, strict=True):
            assert [guess["token"] for guess in mask] == [guess.token for guess in guesses]
            assert_close([guess["probability"] for guess in mask], [guess.probability for guess in guesses])
    assert len(found_in(ask(server, "/fill-mask", {"input": texts[0], "top_k": 3}), "masks")[0][0]) == 3


# -- the key, the paths, the limits


def test_the_key_is_required_everywhere_but_at_health(vectors, monkeypatch):
    compared = []
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: compared.append(a) or a == b)  # in constant time
    locked = app.Server(vectors, api_key="secret")
    wrong = ("", "Bearer wrong", "Basic secret", "Bearer secret2", b"\xe9")
    for key in wrong:
        for path, method in ((EMBED, "POST"), ("/metrics", "GET")):
            answer = ask(locked, path, method=method, headers={"authorization": key})
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert ask(locked, "/v1/models", method="GET", headers={"authorization": "Bearer secret"}).status_code == 200
    assert len(compared) == 2 * len(wrong) + 1
    assert ask(locked, "/health", method="GET").json() == {"status": "ok"}


def test_a_body_that_is_no_json_is_refused_with_its_fault(server):
    body, headers = b'{"model": "words", "input": %s}', {"content-type": "application/json"}
    for half in (rb'"\ud800"', rb'["good", "\ud83d"]', rb'"\ud800 good film"', rb'"\ud800\u0041"'):
        answer = ask(server, EMBED, content=body % half, headers=headers)
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
        assert "byte " in answer.json()["error"]["message"]
    for content in (b"\xef\xbb\xbf" + body % b'"good"', (body % b'"good"').decode().encode("utf-16")):
        answer = ask(server, EMBED, content=content, headers=headers)
        assert (answer.status_code, "byte order mark" in answer.json()["error"]["message"]) == (400, True)
    assert "truncated" in ask(server, EMBED, content=b'{"model": "words', headers=headers).json()["error"]["message"]
    assert ask(server, EMBED, content=body % rb'"\ud83d\ude00"', headers=headers).status_code == 200


MISSING = ["/embeddings", "/v1", "/v1/chat/completions"]


@pytest.mark.parametrize("path", [*MISSING, f"{EMBED}/", "/classify/", "/fill-mask/", "/health/", "/metrics/"])
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_a_path_that_is_not_there_is_answered_with_those_that_are(path, method, server):
    """A slash at the end is no redirection."""
    answer = ask(server, path, {} if method == "POST" else None, method=method)
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "invalid_request_error")
    assert f"{EMBED}, /fill-mask" in answer.json()["error"]["message"]


def test_other_methods_and_models_have_error_bodies_too(server):
    method = ask(server, EMBED, method="GET")
    assert (method.status_code, method.headers["allow"], "error" in method.json()) == (405, "POST", True)
    assert ask(server, "/v1/models/words", method="GET").json()["id"] == "words"
    assert ask(server, "/v1/models/other", method="GET").json()["error"]["code"] == "model_not_found"
    assert ask(server, "/classify", {"input": "a"}).json()["error"]["code"] == "not_served"


LIMITS = ServerSettings(max_body=400, max_texts=3, max_tokens=16, max_queue=20)


@pytest.mark.parametrize(
    ("input", "status", "message"),
    [
        ("x" * 500, 413, "400 bytes"),
        (["a"] * 4, 422, r"row 3 .*3 texts"),
        (["good", "good good", "good " * 9], 422, r"row 2\b"),
        ([[2, 5, 3], [2, *[5] * 14, 3]], 422, r"row 1\b"),
        ([2, *[5] * 15, 3], 422, r"row 0\b"),
        (["good", LONG], 422, r"row 1 .*42.*max_length 20"),
        ([[2, 5, 3], [2, *[5] * 40, 3]], 422, r"row 1 .*40.* 18\b"),
    ],
    ids=["body", "texts", "tokens", "ids", "a row of ids", "length", "length of ids"],
)
def test_limits_are_held_by_row(input, status, message, vectors):
    answer = embed(app.Server(vectors, settings=LIMITS), input)
    assert answer.status_code == status and re.search(message, answer.json()["error"]["message"]), answer.content


def test_a_full_queue_is_429_and_has_space_again_later(vectors):
    server = app.Server(vectors, settings=LIMITS)

    async def work():
        answers = []
        for waiting in (10, 0):
            server.batchers[EMBED].tokens = waiting
            answers.append(await call(server, EMBED, {"model": "words", "input": "good " * 10}))
        return answers

    full, later = run(server, work())
    assert (full.status_code, full.json()["error"]["code"], later.status_code) == (429, "queue_full", 200)
    assert int(full.headers["retry-after"]) >= 1


class Poisoned(Vectors):
    """Vectors that fail for one text, with a message that must not get out."""

    def compute(self, rows: list[Any]) -> Any:
        if any(len(row.ids[0]) == 5 for row in rows):
            raise RuntimeError("the secret text")
        return super().compute(rows)


def test_a_failure_is_reported_without_its_message_to_its_own_client_alone(vectors, folder, capsys):
    server = app.Server(Poisoned("words", vectors.embedder))

    async def work():
        bodies = [{"model": "words", "input": text} for text in ("good", "good good good", "bad", "film")]
        return await asyncio.gather(*(call(server, EMBED, body) for body in bodies))

    answers = run(server, work())
    assert [answer.status_code for answer in answers] == [200, 500, 200, 200]
    assert answers[1].json()["error"]["type"] == "server_error"
    assert_close(found_in(answers[2]), minibert.embed(["bad"], folder, pooling="mean"))
    printed = capsys.readouterr()
    assert "RuntimeError" in printed.err
    assert "secret" not in printed.err + printed.out + answers[1].text
