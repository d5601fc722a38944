"""Vectors, labels and masked words over HTTP: `minibert serve`, which needs the extra `serve`.

In reading order:

    limits    what a request may cost, and how one is refused
    batcher   requests that arrive together are computed together
    bodies    JSON in, read without trust, and JSON out
    models    texts to items of a batch, items to vectors, labels, masked words
    counters  the numbers for Prometheus
    app       the paths, and what guards them
    server    uvicorn, with an end to its patience

The API. Bodies are JSON, Content-Type application/json; a field that is not known is refused.

    POST /v1/embeddings   {"model": NAME, "input": ..., "encoding_format"?, "dimensions"?, "user"?} as OpenAI has it.
                          input: a text, a list of texts, a list of token ids or a list of such lists; [CLS] and [SEP]
                          are put around ids that have none. encoding_format: "float", or "base64", float32 with the
                          lowest byte first. Vectors are those of `minibert.embed`; with --normalize of length 1, and
                          `dimensions` then gives the first ones, of length 1 again (without, it is refused).
    GET /v1/models        the names; GET /v1/models/NAME one of them
    POST /classify        {"input": text, texts or pairs, "model"?} -> label, probability, probabilities of each;
                          of a folder with several labels a text "labels", of a regression "value"
    POST /fill-mask       {"input": text or texts with [MASK], "top_k"?: 5, "model"?} -> masks: tokens, probabilities;
                          where the checkpoint has the head of a masked LM
    GET /health           {"status": "ok"}, without a key
    GET /metrics          for Prometheus

Replies are {"object": "list", "model", "data": [{"index", ...}], "usage": {"prompt_tokens", "total_tokens"}}; usage has
truncated_texts where texts were cut: those that are too long are refused, unless the server was started with --truncate
(a classifier reads what is too long as it did when it was trained).

Errors are {"error": {"message", "type", "param", "code"}}, and never hold a text; none is logged either.

    400: no JSON, an unknown or a wrong field        415: another content type, or a compressed body
    401: no key, or a wrong one                      422: a row that is wrong or too long, or one too many: 2,048
    404: no such path or model                            texts, 300,000 tokens
    405: another method                              429: the queue is full, or 1,024 requests are open: Retry-After
    408: not all of it here after 30 seconds         431: a head of more than 64 KiB
    413: a body of more than 4 MiB                   500: the server failed

Safe by default: it listens on 127.0.0.1; MINIBERT_API_KEY in its environment is a key that every request but /health
must have as `Authorization: Bearer KEY`. A client that goes away is dropped from the queue. SIGTERM ends the server
when all that has arrived is answered.
"""
