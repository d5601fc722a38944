"""`minibert serve`: vectors, labels and masked tokens over HTTP."""

from __future__ import annotations

import argparse
import importlib.util
import ipaddress
import os
import sys
from dataclasses import replace
from pathlib import Path

from minibert.cli.options import add_options, read_options
from minibert.cli.shared import DEFAULT_MODEL, Arguments, Figures
from minibert.printing import install_hint
from minibert.serving.settings import ServerSettings
from minibert.vectors.recipe import Recipe

API_KEY = "MINIBERT_API_KEY"
REQUIRED = ("starlette", "uvicorn", "msgspec", "prometheus_client")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=DEFAULT_MODEL, metavar="NAME", help="a Hub name or a folder (%(default)s)")
    parser.add_argument("--device", default="auto", metavar="NAME", help="auto, cpu, cuda or mps (%(default)s)")
    add_options(parser, Recipe, skip=("long", "stride", "truncation", "missing", "batch_tokens"))
    add_options(parser, ServerSettings)


def run(args: Arguments) -> Figures:
    """Vectors as OpenAI's API has them (POST /v1/embeddings), labels and masked tokens, until SIGTERM or Ctrl-C.

    MINIBERT_API_KEY in the environment is the key that requests must have. No text is logged.
    """
    if missing := [name for name in REQUIRED if importlib.util.find_spec(name) is None]:
        raise ImportError(f"`minibert serve` needs {', '.join(missing)}: {install_hint('serve')}")
    from minibert.serving.app import Service, listen, serve

    settings, key = read_options(args, ServerSettings), os.environ.get(API_KEY)
    if key is not None and (not key.strip() or key != key.strip() or not key.isprintable() or not key.isascii()):
        raise ValueError(f"{API_KEY} is empty or no plain text; unset it, or give it a key")
    with listen(settings.host, settings.port) as listener:
        host, port = listener.getsockname()[:2]
        if key is None and not ipaddress.ip_address(host).is_loopback:
            print(f"minibert: warning: {host} is open to other machines, and {API_KEY} is not set", file=sys.stderr)
        import torch

        from minibert.device import choose_device
        from minibert.serving.models import Vectors, load_labels, load_masks
        from minibert.vectors.embedder import Embedder

        if settings.threads:
            torch.set_num_threads(settings.threads)
        device, name = choose_device(args.device), settings.name or Path(args.model).name
        settings = replace(settings, batch_tokens=settings.batch_tokens or (1024 if device == "cpu" else 16384))
        recipe = read_options(args, Recipe, batch_tokens=settings.batch_tokens)
        embedder = Embedder(args.model, recipe, device)
        service = Service(
            Vectors(name, embedder, truncate=settings.truncate, normalize=settings.normalize),
            None if settings.classifier is None else load_labels(settings.classifier, device),
            load_masks(name, args.model, device),
            settings,
            key,
        )
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        offers = ["/v1/embeddings", *["/classify"] * bool(service.labels), *["/fill-mask"] * bool(service.masks)]
        print(f"{', '.join(service.names)} at {address}: {', '.join(offers)}", flush=True)
        metrics = serve(service, listener).metrics
    texts, tokens = metrics.total("texts"), metrics.total("tokens")
    print(f"ended; {texts:,} texts, {tokens:,} tokens")
    return {"address": address, "texts": texts, "tokens": tokens}
