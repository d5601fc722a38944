"""What a server offers, and its limits. Needs none of the extra `serve`."""

from __future__ import annotations

from dataclasses import dataclass

from minibert.settings import check, setting


@dataclass(frozen=True)
class ServerSettings:
    """The settings of `minibert serve`, besides model, device and recipe; the limits on a request are those of OpenAI.

    Raises ValueError or TypeError for a value out of its limits.
    """

    name: str | None = setting(None, "what requests call the model (default: the last part of --model)")
    classifier: str | None = setting(
        None,
        "for /classify: a folder that `minibert classify train` or `minibert finetune classify` wrote",
        metavar="FOLDER",
    )
    host: str = setting("127.0.0.1", "address to listen on; the default: this machine alone", metavar="ADDRESS")
    port: int = setting(8000, "0: any that is free", minimum=0, maximum=65535)
    normalize: bool = setting(False, "vectors of length 1, as OpenAI's are; `dimensions` needs it")
    truncate: bool = setting(False, "cut texts that are too long, instead of refusing them")
    threads: int | None = setting(None, "threads that compute (default: as torch chooses)", minimum=1)
    wait_ms: float = setting(5.0, "time for requests to come together in a batch", minimum=0, maximum=1000)
    batch_tokens: int | None = setting(None, "tokens in a batch (default: 1024 on a CPU, else 16384)", minimum=1)
    max_body: int = setting(4 << 20, "bytes of a request", minimum=1)
    max_texts: int = setting(2048, "texts of a request", minimum=1)
    max_tokens: int = setting(300_000, "tokens of a request, special tokens included", minimum=1)
    max_queue: int = setting(600_000, "tokens of all requests that wait", minimum=1)
    max_requests: int = setting(1024, "connections and requests that are open at one time", minimum=1)
    timeout: float = setting(30.0, "seconds for a client to send the body of a request", minimum=0.001)

    def __post_init__(self) -> None:
        check(self)
        if self.max_queue < self.max_tokens:
            raise ValueError(f"max_queue is {self.max_queue}; it must be at least max_tokens, {self.max_tokens}")
