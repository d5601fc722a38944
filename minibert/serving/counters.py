"""What GET /metrics says, for Prometheus: numbers of requests, texts and tokens, never a text."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
TOKENS = (16, 64, 128, 256, 512, 768, 1024, 4096, 16384)


class Counters:
    """The numbers of one server, in a registry of their own."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)  # memory, processor seconds, open files
        self.requests = Counter("minibert_requests", "Requests", ["path", "status"], registry=registry)
        self.seconds = Histogram("minibert_request_seconds", "Seconds", ["path"], buckets=SECONDS, registry=registry)
        self.texts = Counter("minibert_texts", "Texts computed", registry=registry)
        self.tokens = Counter("minibert_tokens", "Tokens computed", registry=registry)
        self.busy = Counter("minibert_computing_seconds", "Seconds in which batches were computed", registry=registry)
        self.batches = Histogram("minibert_batch_tokens", "Tokens of a batch", buckets=TOKENS, registry=registry)
        self.dropped = Counter("minibert_dropped", "Requests whose client went away", registry=registry)
        self.waiting = Gauge("minibert_queue_tokens", "Tokens of requests not yet answered", registry=registry)

    def watch_queue(self, tokens: Callable[[], float]) -> None:
        """Ask for the length of the queue when somebody asks for it here."""
        self.waiting.set_function(tokens)

    def computed(self, texts: int, tokens: int, seconds: float) -> None:
        """A batch was computed."""
        self.texts.inc(texts)
        self.tokens.inc(tokens)
        self.busy.inc(seconds)
        self.batches.observe(tokens)

    def answered(self, path: str, status: int, seconds: float) -> None:
        """A request was answered."""
        self.requests.labels(path, str(status)).inc()
        self.seconds.labels(path).observe(seconds)

    def total(self, name: str) -> int:
        """How many there have been of one thing, such as "texts"."""
        return int(self.registry.get_sample_value(f"minibert_{name}_total") or 0)

    def page(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self.registry)
