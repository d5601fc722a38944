"""The application without a network: what each path answers, and what is refused and how."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from words import labelled, write_words_checkpoint

import minibert
from minibert.serving.app import Server, Service
from minibert.serving.models import Vectors, filler, load_labels, load_masks
from minibert.serving.settings import ServerSettings
from minibert.tasks.frozen import Classifier, train
from minibert.tasks.masked_text import fill_mask
from minibert.train import finetune
from minibert.train.finetuning import Reader
from minibert.vectors.embedder import Embedder
from minibert.vectors.recipe import Recipe

pytestmark = pytest.mark.usefixtures("one_thread")
TEXTS = ["the lovely film", "a very dull play", "", "good"]
JSON = {"content-type": "application/json"}


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.content)

    @property
    def error(self) -> Any:
        return self.body["error"]


async def call(
    server: Server,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] = JSON,
    method: str = "POST",
    gone: asyncio.Event | None = None,
) -> Answer:
    """One request; gone: is set when the client hangs up."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    parts = [{"type": "http.request", "body": content, "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        if parts:
            return parts.pop()
        await (gone or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": raw, "root_path": ""}
    await server.app(scope | {"asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http"}, receive, send)
    if not sent:
        return Answer(0, {}, b"")
    named = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], named, b"".join(message.get("body", b"") for message in sent[1:]))


def ask(service: Service, path: str, body: Any = None, **more: Any) -> Answer:
    """The answer to one request of a server of its own."""
    return with_server(service, lambda server: call(server, path, body, **more))


def with_server(service: Service, work: Callable[[Server], Awaitable[Any]]) -> Any:
    """Work with a server that runs."""

    async def main() -> Any:
        server = Server(service)
        async with server.lifespan(server.app):
            return await asyncio.wait_for(work(server), 30)

    return asyncio.run(main())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_words_checkpoint(tmp_path_factory.mktemp("served") / "words", head="masked-lm")


@pytest.fixture(scope="module")
def vectors(folder: Path) -> Vectors:
    return Vectors("words", Embedder(folder, Recipe(pooling="mean"), "cpu"))


@pytest.fixture(scope="module")
def service(folder: Path, vectors: Vectors) -> Service:
    return Service(vectors, masks=load_masks("words", folder, "cpu"))


def embedded(answer: Answer) -> Any:
    """The vectors of a reply, which must be in order."""
    assert answer.status == 200, answer.content
    rows = answer.body["data"]
    assert [row["index"] for row in rows] == list(range(len(rows)))
    return np.array([row["embedding"] for row in rows], np.float32)


def asking(input: Any, **more: Any) -> dict[str, Any]:
    return {"model": "words", "input": input} | more


# -- vectors


def test_vectors_are_those_of_embed_with_their_usage(service: Service, folder: Path) -> None:
    answer = ask(service, "/v1/embeddings", asking(TEXTS))
    np.testing.assert_allclose(embedded(answer), minibert.embed(TEXTS, folder, pooling="mean"), atol=1e-5)
    tokens = sum(map(len, minibert.load_tokenizer(folder).ids(TEXTS)))
    assert answer.body["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert answer.body["model"] == "words"


def test_one_text_and_base64_and_float_are_the_same_numbers(service: Service) -> None:
    whole = embedded(ask(service, "/v1/embeddings", asking(TEXTS[0])))
    answer = ask(service, "/v1/embeddings", asking([TEXTS[0]], encoding_format="base64"))
    raw = base64.b64decode(answer.body["data"][0]["embedding"])
    assert np.array_equal(np.frombuffer(raw, "<f4"), whole[0])


def test_token_ids_with_and_without_the_special_ones_are_the_text(service: Service, folder: Path) -> None:
    whole = minibert.load_tokenizer(folder).ids(TEXTS[:2])
    bare = [row[1:-1] for row in whole]
    expected = minibert.embed(TEXTS[:2], folder, pooling="mean")
    for rows in (whole, bare, [whole[0], bare[1]]):
        np.testing.assert_allclose(embedded(ask(service, "/v1/embeddings", asking(rows))), expected, atol=1e-5)
    one = embedded(ask(service, "/v1/embeddings", asking(bare[0])))
    np.testing.assert_allclose(one, expected[:1], atol=1e-5)


def test_normalized_vectors_have_length_1_and_so_have_their_first_dimensions(vectors: Vectors, folder: Path) -> None:
    service = Service(Vectors("words", vectors.embedder, normalize=True))
    found = embedded(ask(service, "/v1/embeddings", asking(TEXTS)))
    plain = minibert.embed(TEXTS, folder, pooling="mean")
    np.testing.assert_allclose(found, plain / np.linalg.norm(plain, axis=1, keepdims=True), atol=1e-5)
    first = embedded(ask(service, "/v1/embeddings", asking(TEXTS, dimensions=3)))
    np.testing.assert_allclose(first, plain[:, :3] / np.linalg.norm(plain[:, :3], axis=1, keepdims=True), atol=1e-5)
    for wrong in (0, -1, vectors.width + 1):
        answer = ask(service, "/v1/embeddings", asking("good", dimensions=wrong))
        assert (answer.status, answer.error["param"]) == (400, "dimensions")


def test_dimensions_of_vectors_that_are_not_normalized_are_refused(service: Service, vectors: Vectors) -> None:
    answer = ask(service, "/v1/embeddings", asking("good", dimensions=3))
    assert answer.status == 400
    assert "--normalize" in answer.error["message"]
    assert ask(service, "/v1/embeddings", asking("good", dimensions=vectors.width)).status == 200


def test_a_text_that_is_too_long_is_refused_by_row_or_cut_and_counted(vectors: Vectors, folder: Path) -> None:
    long = "good " * 40  # the model has 20 positions
    answer = ask(Service(vectors), "/v1/embeddings", asking(["good", long]))
    assert (answer.status, answer.error["code"]) == (422, "context_length_exceeded")
    assert "row 1 has 42 tokens, and the model takes 20" in answer.error["message"]
    cutting = Service(Vectors("words", vectors.embedder, truncate=True))
    answer = ask(cutting, "/v1/embeddings", asking(["good", long]))
    expected = minibert.embed(["good", "good " * 18], folder, pooling="mean")
    np.testing.assert_allclose(embedded(answer), expected, atol=1e-5)
    assert answer.body["usage"] == {"prompt_tokens": 23, "total_tokens": 23, "truncated_texts": 1}
    ids = minibert.load_tokenizer(folder).ids(["good"])[0][1:-1] * 40
    assert ask(Service(vectors), "/v1/embeddings", asking([ids])).error["code"] == "context_length_exceeded"
    np.testing.assert_allclose(embedded(ask(cutting, "/v1/embeddings", asking([ids])))[0], expected[1], atol=1e-5)


def test_a_batch_is_filled_up_to_one_of_a_few_numbers_of_tokens() -> None:
    sizes = [(tokens, tokens + sum(map(len, filler(tokens)))) for tokens in range(1, 1025)]
    assert all(tokens <= filled <= max(tokens + 7, 1.125 * tokens) for tokens, filled in sizes)
    assert len({filled for _, filled in sizes}) == 40
    assert all(len(row) <= 16 for tokens, _ in sizes for row in filler(tokens))


# -- labels and masked tokens


def test_a_frozen_classifier_answers_as_in_python(vectors: Vectors, folder: Path, tmp_path: Path) -> None:
    texts, labels = labelled()
    train(texts, labels, model=str(folder), folds=0).save(tmp_path / "sentiment")
    classifier = Classifier.load(tmp_path / "sentiment")
    service = Service(vectors, load_labels(tmp_path / "sentiment", "cpu"))
    answer = ask(service, "/classify", {"input": texts[:5]})
    expected = classifier.predict_proba(texts[:5])
    for row, probabilities in zip(answer.body["data"], expected, strict=True):
        assert list(row["probabilities"]) == classifier.labels
        np.testing.assert_allclose(list(row["probabilities"].values()), probabilities, atol=1e-5)
        assert row["label"] == classifier.labels[probabilities.argmax()]
        assert row["probability"] == max(row["probabilities"].values())
    assert ask(service, "/v1/models", method="GET").body["data"][1]["id"] == "sentiment"
    assert ask(service, "/classify", {"input": [["a", "b"]]}).status == 422
    assert ask(service, "/classify", {"input": "good", "model": "words"}).status == 404


def test_a_frozen_classifier_of_pairs_with_windows_or_whole(vectors: Vectors, folder: Path, tmp_path: Path) -> None:
    texts, labels = labelled()
    train(texts, labels, pairs=texts[::-1], model=str(folder), folds=0).save(tmp_path / "pairs")
    service = Service(vectors, load_labels(tmp_path / "pairs", "cpu"))
    answer = ask(service, "/classify", {"input": [[texts[0], texts[3]], [texts[1], "good"]]})
    expected = Classifier.load(tmp_path / "pairs").predict_proba([texts[0], texts[1]], [texts[3], "good"])
    found = [list(row["probabilities"].values()) for row in answer.body["data"]]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    refused = ask(service, "/classify", {"input": [[texts[0], texts[3]], ["one"]]})
    assert (refused.status, refused.error["message"][:5]) == (422, "row 1")
    train(texts, labels, model=str(folder), folds=0, long="windows").save(tmp_path / "windows")
    long = [" ".join(texts[:8]), "good"]
    answer = ask(Service(vectors, load_labels(tmp_path / "windows", "cpu")), "/classify", {"input": long})
    expected = Classifier.load(tmp_path / "windows").predict_proba(long)
    found = [list(row["probabilities"].values()) for row in answer.body["data"]]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_fine_tuned_folder_answers_as_its_reader(vectors: Vectors, folder: Path, tmp_path: Path) -> None:
    texts, labels = labelled()
    settings = {"model": folder, "epochs": 1, "batch_size": 8, "max_length": 20, "device": "cpu"}
    finetune("classify", texts, labels, out=tmp_path / "tuned", **settings)
    reader = Reader.load(tmp_path / "tuned")
    service = Service(vectors, load_labels(tmp_path / "tuned", "cpu"))
    answer = ask(service, "/classify", {"input": texts[:5]})
    for row, expected in zip(answer.body["data"], reader.answer(reader.task.from_texts(texts[:5])), strict=True):
        assert row["label"] == expected.label
        np.testing.assert_allclose(list(row["probabilities"].values()), expected.probabilities, atol=1e-5)
    pairs = ask(service, "/classify", {"input": [[texts[0], texts[1]]]})
    (expected,) = reader.answer(reader.task.from_texts([texts[0]], [texts[1]]))
    np.testing.assert_allclose(list(pairs.body["data"][0]["probabilities"].values()), expected.probabilities, atol=1e-5)


def test_a_folder_without_a_classifier_is_refused(folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_labels(folder / "nowhere", "cpu")


def test_masked_tokens_are_those_of_fill_mask(service: Service, folder: Path) -> None:
    texts = ["the [MASK] film", "a [MASK] and a [MASK]"]
    answer = ask(service, "/fill-mask", {"input": texts, "top_k": 3})
    for row, text in zip(answer.body["data"], texts, strict=True):
        expected = fill_mask(text, str(folder), 3)
        assert [[guess["token"] for guess in mask] for mask in row["masks"]] == [
            [guess.token for guess in mask] for mask in expected
        ]
        np.testing.assert_allclose(
            [[guess["probability"] for guess in mask] for mask in row["masks"]],
            [[guess.probability for guess in mask] for mask in expected],
            atol=1e-5,
        )
    assert len(ask(service, "/fill-mask", {"input": texts[0]}).body["data"][0]["masks"][0]) == 5
    refused = ask(service, "/fill-mask", {"input": ["the [MASK]", "no mask"]})
    assert (refused.status, refused.error["message"]) == (422, "row 1 has no [MASK]")
    assert ask(service, "/fill-mask", {"input": texts[0], "top_k": 10**6}).error["param"] == "top_k"


def test_paths_without_their_model_are_404(vectors: Vectors) -> None:
    for path in ("/classify", "/fill-mask"):
        assert ask(Service(vectors), path, {"input": "a"}).error["code"] == "not_served"


# -- the key, the paths, the limits


def test_the_key_is_required_everywhere_but_at_health(service: Service) -> None:
    locked = replace(service, api_key="secret")
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic secret"}, {"authorization": "é"}):
        answer = ask(locked, "/v1/embeddings", asking("good"), headers=JSON | headers)
        assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
        assert ask(locked, "/metrics", method="GET", headers=headers).status == 401
    assert (
        ask(locked, "/v1/embeddings", asking("good"), headers=JSON | {"authorization": "Bearer secret"}).status == 200
    )
    assert ask(locked, "/health", method="GET").body == {"status": "ok"}


def test_the_key_is_compared_in_constant_time(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: compared.append((len(a), len(b))) or a == b)
    locked = replace(service, api_key="secret")
    for given in ("s", "secret", "secret" * 99):
        ask(locked, "/v1/models", method="GET", headers={"authorization": f"Bearer {given}"})
    assert compared == [(32, 32)] * 3  # hashes: not even the length of the key shows


def test_other_paths_and_methods_have_error_bodies_too(service: Service) -> None:
    missing = ask(service, "/v1/chat/completions", {})
    assert (missing.status, missing.error["type"]) == (404, "invalid_request_error")
    method = ask(service, "/v1/embeddings", method="GET")
    assert (method.status, method.headers["allow"]) == (405, "POST")
    assert ask(service, "/v1/models/words", method="GET").body["id"] == "words"
    assert ask(service, "/v1/models/other", method="GET").error["code"] == "model_not_found"


LIMITS = ServerSettings(max_body=400, max_texts=3, max_tokens=16, max_queue=20)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (asking("x" * 500), 413, "more than 400 bytes"),
        (asking(["a"] * 4), 422, "row 3 is one too many: a request may have 3 texts"),
        (asking(["good", "good good", "good " * 9]), 422, "row 2 has one token too many"),
        (asking([[5], [5] * 16]), 422, "row 1 has one token too many"),
        (asking([5] * 17), 422, "row 0 has one token too many"),
    ],
    ids=["body", "texts", "tokens", "ids", "a row of ids"],
)
def test_limits_are_held_by_row(body: Any, status: int, said: str, vectors: Vectors) -> None:
    answer = ask(Service(vectors, settings=LIMITS), "/v1/embeddings", body)
    assert answer.status == status
    assert said in answer.error["message"]


class Slow(Vectors):
    """Vectors that wait until they may go on."""

    def __init__(self, vectors: Vectors) -> None:
        super().__init__("words", vectors.embedder)
        self.go, self.started, self.count = threading.Event(), threading.Event(), 0

    def compute(self, rows: list[Any]) -> Any:
        self.started.set()
        assert self.go.wait(20)
        self.count += len(rows)
        return super().compute(rows)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(5000):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("the condition was never met")


def test_a_full_queue_is_429_and_has_room_again_later(vectors: Vectors) -> None:
    slow = Slow(vectors)

    async def work(server: Server) -> None:
        first = asyncio.ensure_future(call(server, "/v1/embeddings", asking(["good " * 10])))
        await until(lambda: server.batchers[slow].tokens == 12)
        second = await call(server, "/v1/embeddings", asking(["good " * 10]))
        assert (second.status, second.error["code"]) == (429, "queue_full")
        assert int(second.headers["retry-after"]) >= 1
        slow.go.set()
        assert (await first).status == 200
        assert (await call(server, "/v1/embeddings", asking("good"))).status == 200

    with_server(Service(slow, settings=LIMITS), work)


def test_a_client_that_disconnects_is_dropped(vectors: Vectors) -> None:
    slow = Slow(vectors)

    async def work(server: Server) -> None:
        gone = asyncio.Event()
        first = asyncio.ensure_future(call(server, "/v1/embeddings", asking("good")))
        await until(slow.started.is_set)
        second = asyncio.ensure_future(call(server, "/v1/embeddings", asking(["good", "film"]), gone=gone))
        await until(lambda: server.batchers[slow].tokens == 9)
        gone.set()
        assert (await second).status in (0, 499)
        assert server.batchers[slow].tokens == 3
        slow.go.set()
        assert (await first).status == 200
        page = (await call(server, "/metrics", method="GET")).content.decode()
        assert "minibert_dropped_total 1.0" in page
        assert "minibert_texts_total 1.0" in page

    with_server(Service(slow), work)
    assert slow.count == 1


class Poisoned(Vectors):
    """Vectors that fail for one text, with a message that must not get out."""

    def compute(self, rows: list[Any]) -> Any:
        if any(len(row.ids[0]) == 5 for row in rows):
            raise RuntimeError("the secret text")
        return super().compute(rows)


def test_a_failure_is_reported_without_its_message_to_its_own_client_alone(
    vectors: Vectors, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work(server: Server) -> list[Answer]:
        return await asyncio.gather(
            *(call(server, "/v1/embeddings", asking(text)) for text in ("good", "good good good", "bad", "film"))
        )

    answers = with_server(Service(Poisoned("words", vectors.embedder)), work)
    assert [answer.status for answer in answers] == [200, 500, 200, 200]
    assert answers[1].error["type"] == "server_error"
    expected = minibert.embed(["bad"], folder, pooling="mean")
    np.testing.assert_allclose(embedded(answers[2]), expected, atol=1e-5)
    printed = capsys.readouterr()
    assert "RuntimeError" in printed.err
    assert "secret" not in printed.err + printed.out + answers[1].content.decode()


def test_a_limit_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="max_texts is 0"):
        ServerSettings(max_texts=0)
    with pytest.raises(ValueError, match="max_queue is 5"):
        ServerSettings(max_tokens=10, max_queue=5)


def test_a_checkpoint_without_the_head_has_no_masked_tokens(minilm: Path) -> None:
    assert load_masks("x", minilm, "cpu") is None
