"""The benchmark of the server: what is compared, what is counted, what is refused; and, in minutes, all of it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from words import write_words_checkpoint

from minibert.bench.serve import clients, report, run, servers
from minibert.bench.serve.clients import Found, Load
from minibert.bench.serve.run import Plan, Result, Row, Soak, Turn
from minibert.bench.serve.servers import MINIBERT, Contestant
from minibert.cli import main as cli

TORCH, ONNX = Contestant("torch", "infinity, torch", []), Contestant("onnx", "infinity, ONNX", [])


def turns(*rates: float, errors: int = 0) -> list[Turn]:
    return [Turn(rate, 0.01, 0.02, 0.005, errors, 10**8) for rate in rates]


@pytest.fixture
def result() -> Result:
    rows = [
        Row(MINIBERT, turns={1: turns(50, 60, 70), 64: turns(300, 200, 400)}),
        Row(TORCH, turns={1: turns(60, 50, 55), 64: turns(100, 100, 100)}),
        Row(ONNX, turns={1: turns(40, 40, 40), 64: turns(150, 160, 200)}),
    ]
    return Result("texts", rows)


def test_ours_is_compared_with_the_best_other_turn_by_turn(result: Result) -> None:
    one, many = result.faster(1), result.faster(64)
    assert one is not None
    assert many is not None
    assert (one[0], one[1].median) == ("infinity, torch", 1.2)
    assert (many[0], many[1].median) == ("infinity, ONNX", 2.0)
    found = [(goal.bound, goal.value, goal.reached) for goal in report.goals_of(Plan(), result)]
    assert found == [(1.0, 1.2, True), (1.3, 2.0, True)]


def test_a_server_that_differs_is_not_ranked_and_its_goal_not_measured(result: Result) -> None:
    result.rows[1].reason = result.rows[2].reason = "differs"
    assert result.faster(64) is None
    assert [goal.reached for goal in report.goals_of(Plan(), result)] == [None, None]
    assert "infinity, ONNX: differs" in report.result_text(Plan(clients=(1, 64)), result)


def test_errors_wrong_vectors_and_a_soak_that_grows_are_not_ok(result: Result) -> None:
    assert result.equal
    flat, grown = Soak(60, 100, 0, [100] * 50), Soak(60, 100, 0, [*range(100, 150)])
    assert flat.ok
    assert not grown.ok
    assert not Soak(60, 100, 1, [100] * 50).ok
    for broken in (
        Result("", result.rows, grown),
        Result("", [Row(MINIBERT, reason="differs"), *result.rows[1:]]),
        Result("", [Row(MINIBERT, turns={1: turns(50, errors=1)})]),
    ):
        assert not broken.equal
        assert not report.figures(Plan(), broken, 1.0)["ok"]


def test_the_report_says_what_was_measured_and_what_was_not(result: Result) -> None:
    plan = Plan(clients=(1, 64), soak=60)
    result.soak = Soak(60, 18000, 0, [10**8] * 50)
    text = report.result_text(plan, result)
    assert "2.00" in text
    assert "--infinity names its program" in text
    assert "18,000 requests, 0 errors, memory +0.0%" in " ".join(text.split())
    assert json.loads(json.dumps(report.figures(plan, result, 1.0), default=str))["soak"]["growth"] == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--infinity", "nowhere"], "there is no such program"),
        (["--soak", "-1"], "--soak"),
        (["--train"], "--train is about another benchmark"),
        (["--rounds", "0"], "--rounds"),
    ],
    ids=lambda value: value[0][2:] if isinstance(value, list) else "",
)
def test_a_measurement_that_cannot_be_is_refused(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_words_checkpoint(tmp_path / "words")
    assert cli.main(["bench", "--serve", "--model", str(folder), *options]) == 2
    assert said in capsys.readouterr().err


# -- against a server of this test, which answers as it is told


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In place of that of all other tests: the clients find their server on this machine."""
    yield


def test_clients_count_answers_errors_and_bytes(no_network: None) -> None:
    seen: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b"":
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
            seen.append(await reader.readexactly(length))
            status = b"500 No" if len(seen) % 4 == 0 else b"200 OK"
            writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 5\r\n\r\nhello")
            await writer.drain()

    async def both() -> Found:
        server = await asyncio.start_server(suppressed(answer), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            return await clients.run(Load("127.0.0.1", port, "m", ["a", "b", "c"], 3, 0.3))

    found = asyncio.run(both())
    assert len(found.latencies) == len(seen) > 3
    assert found.errors == len(seen) // 4
    assert found.bytes_read == 5 * len(seen)
    assert {json.loads(body)["input"] for body in seen} == {"a", "b", "c"}


def suppressed(answer: Any) -> Any:
    """The end of a connection is no error."""

    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    return answered


# -- all of it


@pytest.mark.slow
def test_a_whole_measurement_with_a_soak_of_five_minutes(no_network: None, minilm: Path) -> None:
    """MINIBERT_SOAK: other seconds. Memory is flat within 5 %, and there is no error."""
    seconds = float(os.environ.get("MINIBERT_SOAK", "300"))
    plan = Plan(model=str(minilm), sentences=500, rounds=1, seconds=2, threads=2, soak=seconds)
    result = run.measure(plan)
    assert not result.rows[0].reason
    assert result.soak is not None
    assert result.soak.errors == 0
    assert abs(result.soak.growth) <= run.MEMORY, result.soak.held
    assert result.equal


@pytest.mark.slow
def test_a_server_that_does_not_start_is_told_with_its_last_words(
    no_network: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_words_checkpoint(tmp_path / "words")
    broken = Contestant("broken", "broken", [*MINIBERT.command, "--pooling", "best"], ours=True)
    monkeypatch.setattr(run, "MINIBERT", broken)
    result = run.measure(Plan(model=str(folder), sentences=8, rounds=1, seconds=0.1))
    assert "pooling is 'best'" in result.rows[0].reason
    assert not result.equal
    assert servers.MODEL in broken.command
