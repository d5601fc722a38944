"""`minibert serve` as a process: OpenAI's own client, bad clients among good ones, limits, its end."""

import asyncio
import http.client
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from support.words import labelled, write_words_checkpoint

import minibert
from minibert.prediction.frozen import train

KEY = "a key"
pytestmark = pytest.mark.slow
LOCKED = f"authorization: Bearer {KEY}\r\n"
TEXTS = [f"the {a} {b}" for a in ("good", "dull", "lovely", "very") for b in ("film", "book", "play", "meal")]


@pytest.fixture(autouse=True)
def no_network() -> None:
    """In place of that of all other tests: the clients find their server on this machine."""


@dataclass
class Served:
    """A server that runs."""

    process: subprocess.Popen[str]
    folder: Path
    log: Path
    port: int = 0

    def client(self, key: str = KEY) -> Any:
        import openai  # here: it takes 1.5 seconds in every process that collects the tests

        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key=key, max_retries=0, timeout=60)


@contextmanager
def started(folder: Path, log: Path, *options: str, **environment: str) -> Iterator[Served]:
    """A server that has printed where it is; it ends with this."""
    command = [sys.executable, "-m", "minibert", "serve", "--model", str(folder), "--port", "0", *options]
    variables = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | environment
    with (
        log.open("w") as errors,
        subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())
        assert found, log.read_text()
        yield Served(process, folder, log, int(found[1]))
        process.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Open to all, with a classifier."""
    place = tmp_path_factory.mktemp("served")
    folder = write_words_checkpoint(place / "words", head="masked-lm")
    train(*labelled(), model=folder, folds=0).save(place / "sentiment")
    options = ("--pooling", "mean", "--classifier", str(place / "sentiment"))
    with started(folder, place / "open.log", *options) as server:
        yield server


@pytest.fixture(scope="module")
def locked(server: Served) -> Iterator[Served]:
    """With a key, small limits and a short timeout."""
    limits = "--max-body 4000 --max-texts 40 --max-tokens 300 --max-queue 300 --timeout 5 --truncate --normalize"
    options = ("--pooling", "mean", *limits.split())
    with started(server.folder, server.log.with_name("locked.log"), *options, MINIBERT_API_KEY=KEY) as locked:
        yield locked


@pytest.fixture(scope="module")
def expected(server: Served) -> Any:
    return minibert.embed(TEXTS, server.folder, pooling="mean")


# -- real clients


def test_openais_client_gets_the_vectors_of_embed(server, expected):
    with server.client() as client:
        reply = client.embeddings.create(model="words", input=TEXTS)  # encoded as base64
        assert [one.id for one in client.models.list()] == ["words", "sentiment"]
        assert client.models.retrieve("words").owned_by == "minibert"
    np.testing.assert_allclose([row.embedding for row in reply.data], expected, atol=1e-5)


def test_openais_client_understands_the_errors(server, locked):
    import openai

    with server.client() as client, locked.client("wrong") as stranger:
        with pytest.raises(openai.NotFoundError, match="not served here") as missing:
            client.embeddings.create(model="text-embedding-3-small", input="a")
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.UnprocessableEntityError, match="row 1 has 62 tokens"):
            client.embeddings.create(model="words", input=["a", "good " * 60])
        with pytest.raises(openai.AuthenticationError):
            stranger.embeddings.create(model="words", input="a")


def sent_first(port: int, sent: bytes, count: int = 1) -> list[tuple[int, bytes]]:
    """The answers to a client that sends all before it reads."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(sent)
        with client.makefile("rb") as file:
            answers = []
            for _ in range(count):
                status = int(file.readline().split()[1])
                length = http.client.parse_headers(file)["content-length"]
                answers.append((status, file.read(int(length))))
    return answers


def offering(body: bytes, more: str = "") -> bytes:
    """A request of Java's HttpClient and of `curl --http2`, byte by byte but for the values."""
    head = (
        f"POST /v1/embeddings HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nContent-Length: {len(body)}\r\n"
        "Host: 127.0.0.1\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\nUpgrade: h2c\r\n"
        f"User-Agent: Java-http-client/17\r\n{more}content-type: application/json\r\n\r\n"
    )
    return head.encode() + body


def test_a_client_that_offers_http_2_is_answered_in_http_1_with_its_body(server, expected):
    """Several requests in one packet too; and a websocket, which nobody serves."""
    whole = [offering(of(json.dumps(text))) for text in TEXTS[:3]]
    whole.append(whole[0].replace(b"Upgrade: h2c", b"upgrade: websocket"))
    answers = [sent_first(server.port, one)[0] for one in whole] + sent_first(server.port, b"".join(whole), 4)
    assert {status for status, _ in answers} == {200}
    found = [json.loads(body)["data"][0]["embedding"] for _, body in answers]
    np.testing.assert_allclose(found, expected[[0, 1, 2, 0] * 2], atol=1e-5)


def test_an_offer_that_arrives_in_pieces_is_read_too(server):
    sent = offering(of('"good"'))

    async def in_pieces(size):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(sent), size):
            writer.write(sent[start : start + size])
            await asyncio.sleep(0)
        status, _ = await answer_of(reader)
        writer.close()
        return status

    assert {asyncio.run(in_pieces(size)) for size in (7, 60, len(sent) - 20)} == {200}


@pytest.mark.parametrize(
    ("path", "more", "status"),
    [
        ("/v1/embeddings", "", 413),
        ("/v1/embeddings", "content-encoding: gzip\r\n", 415),
        ("/embeddings", "", 404),
        ("/health", "", 405),
    ],
)
def test_a_refusal_reaches_a_client_that_sends_all_before_it_reads(path, more, status, server):
    """The connection is closed after the answer, and not before all is read: else it would be reset."""
    sent = post(of('"' + "a" * (20 << 20) + '"'), path=path, more=f"connection: close\r\n{more}")
    assert [one for one, _ in sent_first(server.port, sent)] == [status]


def test_who_has_no_key_is_told_so_at_once_or_after_the_body(locked):
    body = of('"' + "a" * (20 << 20) + '"')
    waits = post(body, more=f"expect: 100-continue\r\n{LOCKED.replace(KEY, 'wrong')}")[: -len(body)]
    assert asyncio.run(exchange(locked.port, waits)) == 401
    assert [one for one, _ in sent_first(locked.port, post(body, more="connection: close\r\n"))] == [401]


# -- bad clients among good ones


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The status and the body of an answer with a content-length."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = int(head.partition("content-length:")[2].partition("\r\n")[0])
    return int(head.split(" ", 2)[1]), await reader.readexactly(length)


async def exchange(port: int, sent: bytes, disconnect: bool = False) -> int:
    """Send bytes; the status of the answer, 0 where there is none."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    try:
        await writer.drain()
        if disconnect:
            return 0
        line = await reader.readline()
        return int(line.split()[1]) if line else 0
    except ConnectionError:
        return 0
    finally:
        writer.transport.abort()


def post(body: bytes, kind: str = "application/json", path: str = "/v1/embeddings", more: str = "") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: {kind}\r\n{more}content-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def of(input: str) -> bytes:
    """A body around some JSON."""
    return b'{"model": "words", "input": ' + input.encode("utf-8", "surrogatepass") + b"}"


INPUTS: dict[str, tuple[int, str]] = {  # the expected status, and the JSON of "input"
    "deep JSON": (422, "[" * 100_000 + "]" * 100_000),
    "deep objects": (400, '{"a":' * 50_000 + "1" + "}" * 50_000),
    "an integer of 5,000 digits": (400, "9" * 5000),
    "one among ids": (422, "[5, " + "9" * 300 + "]"),
    "one of 5,000 digits among ids": (422, "[5, " + "9" * 5000 + "]"),
    "NaN": (400, "[NaN]"),
    "surrogates as bytes": (400, '"\udc80"'),
    "null": (400, "null"),
    "an empty list": (400, "[]"),
    "an object": (400, '{"a": 1}'),
    "a number among texts": (422, '["a", 1]'),
    "a list among texts": (422, '["a", ["b"]]'),
    "an empty row of ids": (422, "[[5], []]"),
    "a negative id": (422, "[[5], [-1]]"),
    "an id beyond the vocabulary": (422, "[[5], [100000]]"),
    "ids of another tokenizer": (422, "[[5, 6, 7]]"),
    "an id that is true": (422, "[[5, true]]"),
    "a text of 10,000 words": (422, '["a", "' + "good " * 10_000 + '"]'),
    "2,049 texts": (422, "[" + '"a",' * 2048 + '"a"]'),
    "5 MiB": (413, '"' + "a" * (5 << 20) + '"'),
}
BODIES: dict[str, tuple[int, bytes]] = {
    "nothing": (400, b""),
    "bytes that are no UTF-8": (400, b'{"model": "words", "input": "\xff\xfe"}'),
    "a list": (400, b"[1, 2]"),
    "no input": (400, b'{"model": "words"}'),
    "an unknown field": (400, b'{"model": "words", "input": "a", "dimension": 3}'),
    "an unknown encoding": (400, b'{"model": "words", "input": "a", "encoding_format": "int8"}'),
    "true for a number": (400, b'{"model": "words", "input": "a", "dimensions": true}'),
    "another model": (404, b'{"model": "gpt", "input": "a"}'),
}
BAD: dict[str, tuple[int, bytes]] = {  # what is sent
    **{name: (status, post(of(input))) for name, (status, input) in INPUTS.items()},
    **{name: (status, post(body)) for name, (status, body) in BODIES.items()},
    "a form": (415, post(b"input=a", "application/x-www-form-urlencoded")),
    "compressed": (415, post(of('"a"'), more="content-encoding: gzip\r\n")),
    "5 MiB in chunks": (
        413,
        b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        + b"transfer-encoding: chunked\r\n\r\n"
        + (b"10000\r\n" + b"a" * 65536 + b"\r\n") * 80
        + b"0\r\n\r\n",
    ),
    "another path": (404, post(b"{}", path="/v1/completions")),
    "a slash at the end": (404, post(of('"a"'), path="/v1/embeddings/")),
    "another method": (405, b"DELETE /v1/embeddings HTTP/1.1\r\nhost: x\r\n\r\n"),
    "no HTTP": (400, b"\x16\x03\x01 hello\r\n\r\n"),
    "no mask": (422, post(b'{"input": "a film"}', path="/fill-mask")),
    "pairs for a classifier of texts": (422, post(b'{"input": [["a", "b"]]}', path="/classify")),
}


def test_bad_requests_of_every_kind_are_refused_and_disturb_nobody(server, expected):
    """Good clients get the right vectors before, meanwhile and after; some bad ones disconnect half-way."""
    requests = [post(of(json.dumps(text))) for text in TEXTS]
    wrong = []
    answered = asyncio.Barrier(5)  # the good ones have their first answers, and the bad ones begin

    async def bad():
        await answered.wait()
        await asyncio.gather(*(exchange(server.port, sent[: len(sent) // 2], True) for _, sent in BAD.values()))
        return {name: await exchange(server.port, sent) for name, (_, sent) in BAD.items()}

    async def good(number, others):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for sent in itertools.count():
            last = others.done()  # one more answer, after all the bad ones
            place = (number * 5 + sent) % len(TEXTS)
            writer.write(requests[place])
            status, body = await answer_of(reader)
            found = json.loads(body)["data"][0]["embedding"] if status == 200 else None
            if found is None or not np.allclose(found, expected[place], atol=1e-5):
                wrong.append((place, status))
            if sent == 0:
                await answered.wait()
            if last:
                break
        writer.close()

    async def together():
        others = asyncio.create_task(bad())
        await asyncio.gather(*(good(number, others) for number in range(4)))
        return await others

    assert asyncio.run(together()) == {name: status for name, (status, _) in BAD.items()}
    assert not wrong


def test_no_text_is_ever_logged(server, locked):
    """After all that the other tests have sent."""
    secret = "averysecretword"
    for body in (of(f'"{secret}"'), of(f'["{secret}", 1]'), of(f'"{secret} {"good " * 60}"'), of(f'"{secret}')):
        asyncio.run(exchange(server.port, post(body, more=f"x: {secret}\r\n")))
        asyncio.run(exchange(server.port, post(body, path=f"/{secret}?{secret}")))
    assert secret not in server.log.read_text() + locked.log.read_text()
    assert "Traceback" not in server.log.read_text() + locked.log.read_text()


def test_clients_that_disconnect_are_dropped_from_the_queue(server):
    """Each requests 2,048 vectors, and all disconnect as soon as some of them wait."""
    many = post(of(json.dumps(["good film " * 8] * 2048)))

    def number(name):
        page = httpx.get(f"http://127.0.0.1:{server.port}/metrics").text
        return float(re.findall(rf"(?m)^minibert_{name} (.+)$", page)[0])

    async def come_and_go():
        pairs = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(8)]
        for _, writer in pairs:
            writer.write(many)
        while not number("queue_tokens"):
            await asyncio.sleep(0.01)
        for _, writer in pairs:
            writer.transport.abort()
        while number("queue_tokens"):
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(come_and_go(), 60))
    assert number("dropped_total") >= 1
    assert number("texts_total") < 8 * 2048


# -- limits


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (post(of('"' + "a" * 4000 + '"'), more=LOCKED), 413),
        (post(of("[" + '"a",' * 40 + '"a"]'), more=LOCKED), 422),
        (post(of("[" + ",".join(['"' + "good " * 18 + '"'] * 16) + "]"), more=LOCKED), 422),
        (post(of('"a"'), more=LOCKED), 200),
        (post(b"x" * 100, more=LOCKED)[:-60], 408),
    ],
    ids=["body", "texts", "tokens", "none", "seconds for the body"],
)
def test_the_limits_are_those_of_the_command_line(sent, status, locked):
    assert asyncio.run(exchange(locked.port, sent)) == status


# -- the beginning and the end


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--port {port}", "--port {port} of --host 127.0.0.1 cannot be used: "),
        ("--port 70000", "port is 70000"),
        ("--host 300.1.1.1", "--port 0 of --host 300.1.1.1 cannot be used"),
        ("--host 203.0.113.7", "cannot be used"),
        ("--max-texts 0", "--max-texts is 0"),
        ("--timeout nan", "timeout is nan"),
        ("--pooling best", "pooling is 'best'"),
        ("--classifier nowhere", "nowhere"),
        ("--classifier {folder}", "serve it at /fill-mask: --model {folder}"),
        ("--model nowhere/at/all", "nowhere/at/all"),
    ],
)
def test_a_wrong_request_to_serve_is_one_clear_error(options, message, server, run):
    values = vars(server)
    error = run("serve", "--model", server.folder, "--port", 0, *options.format(**values).split(), status=2).strip()
    assert message.format(**values) in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize("key", ["", "  ", "a\tb", " a", "clé"])
def test_a_key_that_no_request_could_have_is_refused(key, monkeypatch, run):
    monkeypatch.setenv("MINIBERT_API_KEY", key)
    assert "MINIBERT_API_KEY" in run("serve", "--port", 0, status=2)


def test_sigterm_finishes_what_is_in_flight_and_exits_0(locked):
    """The last test of this server, which it ends."""
    request = post(of(json.dumps(["good film"] * 40)), more=LOCKED)

    async def in_flight():
        pairs = [await asyncio.open_connection("127.0.0.1", locked.port) for _ in range(9)]  # the last stays idle
        for _, writer in pairs[:8]:
            writer.write(request[:-1])
        pairs[8][1].write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        await answer_of(pairs[8][0])  # all but their last bytes were there before
        locked.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        for _, writer in pairs[:8]:
            writer.write(request[-1:])
        found = [await answer_of(reader) for reader, _ in pairs[:8]]
        for _, writer in pairs:
            writer.close()
        return found

    found = asyncio.run(in_flight())
    answered = [json.loads(body)["data"] for status, body in found if status == 200]
    assert {status for status, _ in found} <= {200, 429} and answered
    assert all(len(rows) == 40 for rows in answered)
    printed, _ = locked.process.communicate(timeout=120)
    assert (locked.process.returncode, "ended; " in printed) == (0, True)
