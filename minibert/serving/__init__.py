"""Vectors, labels and masked tokens over HTTP: `minibert serve`, which needs the extra `serve`.

In reading order:

    batcher  requests that arrive together are computed together
    models   request bodies, texts to items of a batch, items to vectors, labels, masked tokens
    app      the paths, and uvicorn that serves them

The API. Bodies are JSON, Content-Type application/json; an unknown field is refused.

    POST /v1/embeddings   {"model": NAME, "input": ..., "encoding_format"?, "dimensions"?, "user"?} as OpenAI has it.
                          input: a text, a list of texts, a list of token ids or a list of such lists. Ids are those
                          of the model's tokenizer, with [CLS] and [SEP]: ids without them are refused, because they
                          are mostly tiktoken's (langchain's OpenAIEmbeddings sends texts with
                          check_embedding_ctx_length=False). encoding_format: "float", or "base64", float32 in little
                          endian. Vectors are those of `minibert.embed`. dimensions: the first numbers of a vector,
                          scaled to length 1 again; refused if vectors do not have length 1 (--normalize).
    GET /v1/models        the names; GET /v1/models/NAME one of them
    POST /classify        {"input": text, texts or pairs, "model"?} -> what `minibert.predict` returns: label,
                          probability, probabilities of each; for several labels per text "labels", of a regression
                          "value", or "values"; "entities" of a tagger; answer, start, end, score of [question, passage]
    POST /fill-mask       {"input": text or texts with [MASK], "top_k"?: 5, "model"?} -> masks: tokens, probabilities;
                          if the checkpoint has the head of a masked LM
    GET /health           {"status": "ok"}, without a key
    GET /metrics          for Prometheus

Replies are {"object": "list", "model", "data": [{"index", ...}], "usage": {"prompt_tokens", "total_tokens"}}; usage has
truncated_texts if texts were cut: texts that are too long are refused, unless the server was started with --truncate
(a classifier reads them as it did when it was trained; texts to tag and passages are read whole, in windows).

Errors are {"error": {"message", "type", "param", "code"}}. No message holds a text of a user, and no text is logged.

    400: malformed JSON, an unknown or a wrong field  415: another content type, or a compressed body
    401: no key, or a wrong one                       422: a row that is wrong or too long, or one too many: 2,048
    404: no such path or model                             texts, 300,000 tokens
    405: another method                               429: the queue is full; Retry-After
    408: body not complete after 30 seconds           500: the server failed
    413: a body of more than 4 MiB                    503: 1,024 connections are open (plain text, by uvicorn)

It listens on 127.0.0.1 unless --host says otherwise. MINIBERT_API_KEY in its environment is a key that every request
but /health must have as `Authorization: Bearer KEY`. A client that disconnects is dropped from the queue. SIGTERM ends
the server once all requests in progress are answered. On a public network, put a reverse proxy in front of it for TLS,
rate limits, and limits on the size of headers and on slow clients.
"""

from dataclasses import dataclass

from minibert.utils.settings import check, setting


@dataclass(frozen=True)
class ServerSettings:
    """The settings of `minibert serve`, besides model, device and recipe; the limits on a request are those of OpenAI.

    Raises ValueError or TypeError for a value out of its limits.
    """

    name: str | None = setting(None, "what requests call the model (default: the last part of --model)")
    classifier: str | None = setting(
        None,
        "for /classify: a folder of `minibert classify train`, `minibert finetune` or transformers",
        metavar="FOLDER",
    )
    host: str = setting("127.0.0.1", "address to listen on; by default only this machine", metavar="ADDRESS")
    port: int = setting(8000, "0: any that is free", minimum=0, maximum=65535)
    truncate: bool = setting(False, "cut texts that are too long, instead of refusing them")
    threads: int | None = setting(None, "threads that compute (default: as torch chooses)", minimum=1, maximum=1024)
    wait_ms: float = setting(5.0, "time for requests to come together in a batch", minimum=0, maximum=1000)
    batch_tokens: int | None = setting(None, "tokens in a batch (default: 1024 on a CPU, else 16384)", minimum=1)
    max_body: int = setting(4 << 20, "bytes of a request", minimum=1)
    max_texts: int = setting(2048, "texts of a request", minimum=1)
    max_tokens: int = setting(300_000, "tokens of a request, special tokens included", minimum=1)
    max_queue: int = setting(600_000, "tokens of all requests that wait (--max-tokens if that is more)", minimum=1)
    max_requests: int = setting(1024, "connections and requests that are open at one time", minimum=1)
    timeout: float = setting(30.0, "seconds for a client to send the body of a request", minimum=0.001, maximum=86400)

    def __post_init__(self) -> None:
        check(self)
