"""The server on the emulated device, whose thread computes: the answers of the CPU, one wait a batch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.emulated_device import emulated_device
from support.words import write_words_checkpoint

import minibert
from minibert.serving.app import Server
from minibert.serving.models import Masks, Vectors, load_labels

TEXTS = ["the lovely film", "a very dull play", "good", "the book very good"]
NAMES: dict[str, Any] = {"id2label": {0: "neg", 1: "pos"}, "label2id": {"neg": 0, "pos": 1}}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A masked LM and a classifier."""
    home = tmp_path_factory.mktemp("served")
    return [
        write_words_checkpoint(home / head, head=head, **NAMES) for head in ("masked-lm", "sequence-classification")
    ]


def answers(folders: list[Path], device: str, path: str, ready: Callable[[], None]) -> tuple[list[Any], list[int]]:
    """What a server answers to requests of one text each, sent at once, and the texts of each of its batches.

    ready: called when the models are loaded.
    """
    mask, classifier = folders
    vectors = Vectors("words", minibert.Embedder(mask, minibert.Recipe(pooling="mean"), device))
    assert vectors.embedder.engine.device.type == device
    server = Server(vectors, load_labels(classifier, device), Masks("words", mask, device))
    batches = []
    named, ending = ({"model": "words"}, "") if "embed" in path else ({}, " [MASK]" * ("mask" in path))

    async def main():
        transport = httpx.ASGITransport(server.app)
        async with server.lifespan(server.app), httpx.AsyncClient(transport=transport, base_url="http://t") as client:
            server.batchers[path].computed = lambda texts, tokens: batches.append(texts)
            sent = [client.post(path, json=named | {"input": text + ending}) for text in TEXTS]
            return [answer.json()["data"][0] for answer in await asyncio.gather(*sent)]

    ready()
    return asyncio.run(main()), batches


@pytest.mark.parametrize("path", ["/v1/embeddings", "/classify", "/fill-mask"])
def test_answers_are_those_of_the_cpu_and_a_batch_waits_once(path, folders):
    expected, _ = answers(folders, "cpu", path, lambda: None)
    with emulated_device() as gpu:
        found, batches = answers(folders, "gpu", path, gpu.reset)
    assert sum(batches) == len(TEXTS)
    if path != "/fill-mask":  # of which each text is a batch, whose ids are checked
        assert len(gpu.waits) == len(batches) < len(TEXTS)
    assert found == json.loads(json.dumps(expected), parse_float=lambda x: pytest.approx(float(x), abs=1e-5))
