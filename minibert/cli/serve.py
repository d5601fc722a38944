"""`minibert serve`: vectors, labels and masked words over HTTP."""

from __future__ import annotations

import argparse
import importlib.util
import ipaddress
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from minibert.cli.shared import DEFAULT_MODEL, Arguments, Figures, add_setting, whole_numbers
from minibert.extras import install_hint

if TYPE_CHECKING:
    from minibert.serving.app import Service
    from minibert.serving.limits import Limits

API_KEY = "MINIBERT_API_KEY"
NEEDED = ("starlette", "uvicorn", "httptools", "orjson", "prometheus_client")


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", default=DEFAULT_MODEL, metavar="NAME", help="a Hub name or a folder (%(default)s)")
    add("--name", metavar="NAME", help="what requests call it (default: the last part of --model)")
    add(
        "--classifier",
        type=Path,
        metavar="FOLDER",
        help="for /classify: what `minibert classify train` or `minibert finetune classify` wrote",
    )
    add("--host", default="127.0.0.1", metavar="ADDRESS", help="to listen on (%(default)s: this machine alone)")
    add("--port", type=int, default=8000, metavar="N", help="0: any that is free (%(default)s)")
    add_setting(parser, "pooling", "HOW", "{choices} (%(default)s)")
    add_setting(parser, "layers", "N,N", "0: embeddings, -1: last; several: -4,-3,-2,-1 (%(default)s)", whole_numbers)
    add_setting(parser, "combine", "HOW", "of several layers: {choices} (%(default)s)")
    add_setting(parser, "precision", "TYPE", "{choices} (%(default)s)")
    add("--normalize", action="store_true", help="vectors of length 1, as OpenAI's are; `dimensions` needs it")
    add("--truncate", action="store_true", help="cut texts that are too long, in place of refusing them")
    add("--device", default="auto", metavar="NAME", help="auto, cpu, cuda or mps (%(default)s)")
    add("--threads", type=int, metavar="N", help="that compute (default: as torch chooses)")
    add("--wait-ms", type=float, default=5, metavar="N", help="to wait for requests to come together (%(default)s)")
    add("--batch-tokens", type=int, metavar="N", help="tokens in a batch (default: 1024 on a CPU, else 16384)")
    add("--max-body", type=int, metavar="BYTES", help="of a request (default: 4 MiB)")
    add("--max-texts", type=int, metavar="N", help="of a request (default: 2048)")
    add("--max-tokens", type=int, metavar="N", help="of a request (default: 300000)")
    add("--max-queue", type=int, metavar="N", help="tokens of all requests that wait (default: 600000)")
    add("--max-requests", type=int, metavar="N", help="that are open at one time (default: 1024)")
    add("--timeout", type=float, metavar="SECONDS", help="for a client to send or to read a part (default: 30)")


def run(args: Arguments) -> Figures:
    """Vectors as OpenAI's API has them (POST /v1/embeddings), labels and masked words, until SIGTERM or Ctrl-C.

    MINIBERT_API_KEY in the environment is the key that requests must have. No text is logged.
    """
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise ImportError(f"`minibert serve` needs {', '.join(missing)}: {install_hint('serve')}")
    from minibert.serving.server import listen, serve

    key, limits = api_key(), limits_of(args)
    check(args)
    with listen(args.host, args.port) as listener:
        host, port = listener.getsockname()[:2]
        if key is None and not ipaddress.ip_address(host).is_loopback:
            print(f"minibert: warning: {host} is open to other machines, and {API_KEY} is not set", file=sys.stderr)
        service = load(args, limits, key)
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        offers = ["/v1/embeddings", *["/classify"] * bool(service.labels), *["/fill-mask"] * bool(service.masks)]
        print(f"{', '.join(service.names)} at {address}: {', '.join(offers)}", flush=True)
        counters = serve(service, listener).counters
    texts, tokens = counters.total("texts"), counters.total("tokens")
    print(f"ended; {texts:,} texts, {tokens:,} tokens")
    return {"address": address, "texts": texts, "tokens": tokens}


def api_key() -> str | None:
    """The key in the environment; None: requests need none. Raises ValueError for one that no request could have."""
    key = os.environ.get(API_KEY)
    if key is not None and (not key.strip() or key != key.strip() or not key.isprintable() or not key.isascii()):
        raise ValueError(
            f"{API_KEY} is set and {'empty' if not key.strip() else 'no plain text'}; unset it, or give it a key"
        )
    return key


def limits_of(args: Arguments) -> Limits:
    """The limits, with what the arguments change in them. Raises what Limits raises."""
    from minibert.serving.limits import Limits

    given = {
        "body_bytes": args.max_body,
        "texts": args.max_texts,
        "tokens": args.max_tokens,
        "queue_tokens": args.max_queue,
        "requests": args.max_requests,
        "timeout": args.timeout,
    }
    return Limits(**{name: value for name, value in given.items() if value is not None})


def check(args: Arguments) -> None:
    """Refuse what cannot be done before anything is loaded."""
    if not 0 <= args.wait_ms <= 1000:
        raise ValueError(f"--wait-ms is {args.wait_ms:g}; it must be from 0 to 1000")
    for name in ("threads", "batch_tokens"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} is {value}; it must be at least 1")


def load(args: Arguments, limits: Limits, key: str | None) -> Service:
    """Everything that the arguments name, loaded. Raises what loading raises."""
    import torch

    from minibert.device import choose_device
    from minibert.serving.app import Service
    from minibert.serving.models import Vectors, load_labels, load_masks
    from minibert.vectors.embedder import Embedder
    from minibert.vectors.recipe import Recipe

    if args.threads:
        torch.set_num_threads(args.threads)
    device, name = choose_device(args.device), args.name or Path(args.model).name
    batch_tokens = args.batch_tokens or (1024 if device == "cpu" else 16384)
    recipe = Recipe(
        pooling=args.pooling,
        layers=args.layers,
        combine=args.combine,
        precision=args.precision,
        batch_tokens=batch_tokens,
    )
    return Service(
        Vectors(name, Embedder(args.model, recipe, device), truncate=args.truncate, normalize=args.normalize),
        None if args.classifier is None else load_labels(args.classifier, device),
        load_masks(name, args.model, device),
        limits,
        key,
        batch_tokens,
        args.wait_ms / 1000,
    )
