"""The benchmark of the server: goals, clients, and whole measurements."""

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from minibert.bench import harness, serving
from minibert.bench.settings import Settings
from minibert.cli import main as cli


@pytest.mark.parametrize(
    ("job", "errors", "peaks", "fails"),
    [
        ("serving", 0, (100, 150), False),
        ("serving", 1, (100, 100), True),
        ("soak", 0, (100, 101), False),
        ("soak", 0, (100, 150), True),
    ],
)
def test_errors_and_a_soak_that_grows_fail_the_run(
    job: str, errors: int, peaks: tuple[int, int], fails: bool, row: Any, result: Any
) -> None:
    found, one = result(), row("minibert-float32", job=job, at=64)
    for peak in peaks:
        one.samples.append(harness.Sample(8.0, peak))
        serving.summarize(one, ([0.1, 0.2, 0.3, 0.4], errors))
    serving.judge(one, found)
    assert bool(found.wrong) == fails
    assert (one.samples[0].seconds, one.samples[0].details["p50"]) == (8.0 / (4 - errors), 0.25)


@pytest.mark.parametrize(("device", "precision"), [("cpu", "float32"), ("cuda", "bfloat16")])
def test_the_device_and_its_precision_reach_every_server(device: str, precision: str) -> None:
    ours, torch_engine, onnx = serving.contestants_for("/somewhere/infinity_emb", device)
    commands = [" ".join(one.load.keywords["command"]) for one in (ours, torch_engine, onnx)]  # type: ignore[attr-defined]
    assert all(f"--device {device} " in command for command in commands)
    assert commands[0].endswith(f" --precision {precision}")
    assert commands[1].startswith("/somewhere/infinity_emb v2 ")
    assert commands[1].endswith(f" --engine torch --dtype {precision}")
    assert [one.precision for one in (ours, torch_engine, onnx)] == [precision, precision, "float32"]
    assert [one.package for one in serving.contestants_for("", device)] == ["minibert"]
    known = serving.MINIBERT[serving.MINIBERT.index("serve") :] + commands[0].split()[-4:]
    assert cli.parse([part.format(folder="a", port=1) for part in known]).device == device


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In place of that of all other tests: the clients find their server on this machine."""
    yield


def test_clients_count_answers_and_errors(no_network: None) -> None:
    seen: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
                seen.append(await reader.readexactly(length))
                status = b"500 No" if len(seen) % 4 == 0 else b"200 OK"
                writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 5\r\n\r\nhello")
        writer.close()

    async def both() -> tuple[list[float], int]:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            return await serving.all_clients(port, ["a", "b", "c"], 3, 0.3)

    latencies, errors = asyncio.run(both())
    assert len(latencies) == len(seen) > 3
    assert errors == len(seen) // 4
    assert {json.loads(body)["input"] for body in seen} == {"a", "b", "c"}


@pytest.mark.slow
def test_a_whole_measurement_with_a_soak_of_five_minutes(
    no_network: None, minilm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MINIBERT_SOAK: other seconds. Memory is flat within 5 %, and there is no error."""
    seconds = float(os.environ.get("MINIBERT_SOAK", "300"))
    monkeypatch.delenv("MINIBERT_DATA", raising=False)
    settings = Settings(serve=True, quick=True, sentences=500, threads=1, soak=seconds)
    found = harness.measure(str(minilm), settings, serving)
    assert found.wrong == []
    assert [row.at for row in found.rows if row.ranked] == [1, 8, 64, 64]
    assert "0 errors" in found.notes["soak"]


@pytest.mark.slow
def test_a_server_that_does_not_start_is_reported_with_its_last_line(
    no_network: None, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MINIBERT", [*serving.MINIBERT, "--pooling", "best"])
    monkeypatch.delenv("MINIBERT_DATA", raising=False)  # its sentences are too long for this vocabulary
    found = harness.measure(str(checkpoint), Settings(serve=True, quick=True, sentences=8), serving)
    assert "pooling is 'best'" in found.wrong[0]
