"""`minibert serve`: vectors, labels and masked tokens over HTTP."""

from __future__ import annotations

import argparse
import ipaddress
import os
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from minibert.cli.shared import DEFAULT_MODEL, Arguments, add_device, add_options, read_options
from minibert.serving import ServerSettings
from minibert.utils.printing import Figures, counted, note, require
from minibert.vectors.recipe import Recipe

if TYPE_CHECKING:
    from minibert.serving.app import Server

API_KEY = "MINIBERT_API_KEY"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=DEFAULT_MODEL, metavar="NAME", help="a Hub name or a folder (%(default)s)")
    add_device(parser)
    add_options(parser, Recipe, skip=("long", "stride", "missing", "batch_tokens"))
    add_options(parser, ServerSettings)


def run(args: Arguments) -> Figures:
    """Answer with vectors as OpenAI's API (POST /v1/embeddings), labels and masked tokens, until SIGTERM or Ctrl-C.

    MINIBERT_API_KEY in the environment is the key that requests must have. No text is logged.
    """
    require("serve", "uvicorn", "httptools", "starlette", "msgspec", "prometheus_client")
    from minibert.serving.app import call_in_thread, listen, serve

    settings = read_options(args, ServerSettings)
    key = os.environ.get(API_KEY)
    if key is not None and (not key.strip() or key != key.strip() or not key.isprintable() or not key.isascii()):
        raise ValueError(f"{API_KEY} is empty or not plain text; unset it, or give it a key")
    with listen(settings.host, settings.port) as listener:
        host, port = listener.getsockname()[:2]
        if key is None and not ipaddress.ip_address(host).is_loopback:
            note(f"warning: {host} is open to other machines, and {API_KEY} is not set")
        server = call_in_thread(partial(load_server, args, settings, key))
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        names = ", ".join(server.names)
        print(f"{names} at {address}: {', '.join(server.offers)}; {server.vectors.embedder.description}", flush=True)
        warnings.simplefilter("ignore")  # about texts: the log has none, and replies count those that were cut
        serve(server, listener)
    sample = server.metrics.registry.get_sample_value
    texts, tokens = (int(sample(f"minibert_{name}") or 0) for name in ("texts_total", "batch_tokens_sum"))
    print(f"ended; {counted(texts, 'text')}, {counted(tokens, 'token')}")
    return {"address": address, "texts": texts, "tokens": tokens}


def load_server(args: Arguments, settings: ServerSettings, key: str | None) -> Server:
    """Return the server with its models."""
    import torch

    from minibert.checkpoints.checkpoint import Checkpoint
    from minibert.prediction.reader import folder_kind
    from minibert.serving.app import Server
    from minibert.serving.models import Masks, Vectors, load_labels
    from minibert.utils.device import choose_device
    from minibert.vectors.embedder import Embedder

    if settings.threads:
        torch.set_num_threads(settings.threads)
    device = choose_device(args.device)
    name = settings.name or Path(args.model).name
    settings = replace(settings, batch_tokens=settings.batch_tokens or (1024 if device == "cpu" else 16384))
    checkpoint = Checkpoint.open(args.model)
    embedder = Embedder(checkpoint, read_options(args, Recipe, batch_tokens=settings.batch_tokens), device)
    return Server(
        Vectors(name, embedder, truncate=settings.truncate),
        None if settings.classifier is None else load_labels(settings.classifier, device),
        Masks(name, checkpoint, device) if folder_kind(checkpoint) == "mask" else None,
        settings,
        key,
    )
