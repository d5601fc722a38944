"""Vectors, labels and masked tokens over HTTP: `minibert serve`, which needs the extra `serve`.

In reading order:

    settings  what a server offers, and its limits
    requests  request bodies, checked, and errors
    batcher   requests that arrive together are computed together
    models    texts to items of a batch, items to vectors, labels, masked tokens
    app       the paths, and uvicorn that serves them

The API. Bodies are JSON, Content-Type application/json; an unknown field is refused.

    POST /v1/embeddings   {"model": NAME, "input": ..., "encoding_format"?, "dimensions"?, "user"?} as OpenAI has it.
                          input: a text, a list of texts, a list of token ids or a list of such lists; [CLS] and [SEP]
                          are put around ids that have none. encoding_format: "float", or "base64", float32 in little
                          endian. Vectors are those of `minibert.embed`; with --normalize of length 1, and
                          `dimensions` then gives the first ones, of length 1 again (without, it is refused).
    GET /v1/models        the names; GET /v1/models/NAME one of them
    POST /classify        {"input": text, texts or pairs, "model"?} -> label, probability, probabilities of each;
                          of a folder with several labels a text "labels", of a regression "value"
    POST /fill-mask       {"input": text or texts with [MASK], "top_k"?: 5, "model"?} -> masks: tokens, probabilities;
                          if the checkpoint has the head of a masked LM
    GET /health           {"status": "ok"}, without a key
    GET /metrics          for Prometheus

Replies are {"object": "list", "model", "data": [{"index", ...}], "usage": {"prompt_tokens", "total_tokens"}}; usage has
truncated_texts if texts were cut: texts that are too long are refused, unless the server was started with --truncate
(a classifier reads them as it did when it was trained).

Errors are {"error": {"message", "type", "param", "code"}}, and never hold a text; none is logged either.

    400: malformed JSON, an unknown or a wrong field  415: another content type, or a compressed body
    401: no key, or a wrong one                       422: a row that is wrong or too long, or one too many: 2,048
    404: no such path or model                             texts, 300,000 tokens
    405: another method                               429: the queue is full; Retry-After
    408: body not complete after 30 seconds           500: the server failed
    413: a body of more than 4 MiB                    503: 1,024 connections are open (plain text, by uvicorn)

It listens on 127.0.0.1 unless --host says otherwise. MINIBERT_API_KEY in its environment is a key that every request
but /health must have as `Authorization: Bearer KEY`. A client that disconnects is dropped from the queue. SIGTERM ends
the server when all requests in progress are answered. To serve strangers, put a reverse proxy in front of it: TLS,
limits on the size of a head and on clients that are slow to send it or to read, and rates for each client are its work.
"""
