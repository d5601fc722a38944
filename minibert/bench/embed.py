"""Embedding: sentences to [CLS] vectors, one sentence, and cold starts.

The roofline is the number of operations that the job cannot avoid, divided by the rate of this machine's matrix
products. S tokens, D hidden, F feed-forward, L layers. In each layer a text costs 4 S D² operations for keys and
values, 4 Q D² for query and output, 4 Q D F for the feed-forward and 4 Q S D for attention. Q is the number of query
tokens: Q = S, and in the last layer Q = 1, because only [CLS] is needed. A multiplication and its addition are two
operations.
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.benchmark import Timer

import minibert
from minibert.bench import peers
from minibert.bench.harness import Benchmark, Session, do_job, load_contestant, total_memory
from minibert.bench.results import BenchRow, Equality, Sample
from minibert.config import Config
from minibert.kernels.matmul import Linear, choose_linear
from minibert.tasks.classification import Classification
from minibert.text.tokenizer import Tokenizer
from minibert.utils.files import user_path
from minibert.utils.printing import progress_bar
from minibert.vectors.pooling import POOLINGS

SENTENCE = "a visually stunning rumination on love"  # the one short sentence
# How many of the first 2,000 training sentences of SST-2 have 3 tokens, 4 tokens, ..., including [CLS] and [SEP].
SST2_COUNTS = """
    4 18 14 14 34 37 45 55 58 55 53 65 58 71 67 70 82 55 63 69 53 60 74 71 58 57 56 43 54
    48 34 41 40 38 34 23 32 35 22 22 16 18 21 8 8 4 9 7 6 7 6 4 0 1 1 0 2
"""
SST2_LENGTHS = dict(enumerate(map(int, SST2_COUNTS.split()), start=3))  # tokens -> sentences
CHECKED = 250  # texts that are compared with the reference before anything is timed, and in every round
# Smallest cosine to transformers (eager, float32), and largest difference to it in float32. Measured on real weights:
# cosines of 0.9999 in bfloat16, differences of 1e-6 to 4e-6 for every float32 kernel. int8 changes the vectors by
# design: its cosine is printed, and only a gross error is rejected.
SMALLEST_COSINE = {"float32": 0.999999, "bfloat16": 0.999, "int8": 0.9}
LARGEST_DIFFERENCE = 1e-4
NEAREST = 0.98  # share of the vectors that must be nearer to their own reference than to that of the next text
CALLS = 10  # of a turn with one short sentence
PRODUCT_TOKENS = {"cpu": 1024, "cuda": 16384}  # rows of the matrix products of the roofline
PRODUCT_SECONDS = 0.5
FLOAT32 = ("minibert-float32", "transformers-sorted")
OURS = """
import sys, time, minibert
vector = minibert.embed(sys.argv[1], sys.argv[2], device=sys.argv[3], pooling="cls")
print(time.time())
"""
THEIRS = """
import sys, time, torch
from transformers import AutoModel, AutoTokenizer
tokenizer, model = (kind.from_pretrained(sys.argv[2]) for kind in (AutoTokenizer, AutoModel))
model.eval().to(sys.argv[3])
with torch.inference_mode():
    batch = tokenizer(sys.argv[1], return_tensors="pt").to(sys.argv[3])
    vector = model(**batch).last_hidden_state[0, 0].cpu().numpy()
print(time.time())
"""


def find_texts(session: Session) -> None:
    """Make sentences of $MINIBERT_DATA the work: SST-2, or novels for masked LM; without them, random words.

    Texts of a given number of tokens are random words too.
    """
    count = session.settings.sentences
    tokens = session.settings.tokens
    data = user_path(os.environ.get("MINIBERT_DATA") or ".")
    texts: list[str] = []
    if tokens:
        origin = f"random words, {tokens:,} tokens per text"
        texts = draw_texts(count, session.tokenizer, {tokens: 1})
    elif session.settings.objective == "mlm":
        origin = "the first sentences of held-out novels"
        file = data / "novels" / "heldout.txt"
        if file.is_file():
            texts = [line for line in file.read_text("utf-8").splitlines() if line][:count]
    else:
        origin = "the first training sentences of SST-2"
        file = data / "sst2" / "train.tsv"
        if file.is_file():
            texts = Classification().read(file).texts[:count]
    if len(texts) < count:
        origin = "random words, with the sentence lengths of SST-2"
        texts = draw_texts(count, session.tokenizer)
    session.work = texts
    session.result.origin = origin
    session.result.lengths = [len(ids) for ids in session.tokenizer.ids(texts, max_length=tokens)]


def draw_texts(count: int, tokenizer: Tokenizer, lengths: Mapping[int, int] = SST2_LENGTHS) -> list[str]:
    """Return sentences of whole-word tokens; their numbers of tokens are drawn from `lengths` (tokens -> weight)."""
    draw = random.Random(0)
    tokens = (tokenizer.id_to_token(id) for id in range(tokenizer.vocab_size))
    words = [token for token in tokens if token is not None and token.isascii() and token.isalpha()]
    rows = zip(words, tokenizer.ids(words), strict=True)
    words = [word for word, ids in rows if ids[1:-1] == [tokenizer.token_to_id(word)]]
    sizes = draw.choices(list(lengths), list(lengths.values()), k=count)
    return [" ".join(draw.choices(words, k=size - 2)) for size in sizes]


def equality(vectors: peers.Vectors, reference: peers.Vectors, precision: str = "float32") -> Equality:
    """Compare (N,D) with (N,D), row by row. They are equal within the limits of this precision, in the same order.

    Vectors of another shape or with values that are not finite have nothing in common.
    """
    if vectors.shape != reference.shape or not np.isfinite(vectors).all():
        return Equality(difference=1e30, cosine=-1.0, equal=False)
    a = vectors.astype(np.float64)
    b = reference.astype(np.float64)
    cosines = (a * b).sum(axis=1) / np.maximum(np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1), 1e-30)
    cosine = float(cosines.min())
    difference = float(np.abs(a - b).max())
    # A wrong order of the rows, which cosines may miss: vectors are then nearer to the reference of another text.
    to_own, to_next = (np.linalg.norm(a - other, axis=1) for other in (b, np.roll(b, 1, axis=0)))
    in_order = float((to_own <= to_next).mean()) >= NEAREST
    near = cosine >= SMALLEST_COSINE[precision] and (precision != "float32" or difference <= LARGEST_DIFFERENCE)
    return Equality(difference, cosine, near and in_order)


# ---------------------------------------------------------------------------------------------------------------
# The roofline


def text_flops(S: int, config: Config, first_only: bool = True) -> int:
    """Return the operations of all layers for one text of S tokens. first_only: the last layer only computes [CLS]."""
    D, F, L = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    matrices = len(config.architecture.feed_forward.leaves)  # of the feed-forward
    flops = 0
    for step, window in enumerate(config.architecture.windows or [None] * L, start=1):
        seen = S if window is None else min(S, 2 * (window // 2) + 1)  # keys
        Q = 1 if first_only and step == L else S  # queries
        flops += 4 * S * D * D + Q * (4 * D * D + 2 * matrices * D * F + 4 * seen * D)
    return flops


def padded_bytes(lengths: Sequence[int], config: Config) -> int:
    """Return the approximate memory of one padded batch of all texts, with every hidden state, in float32."""
    widths = (config.num_hidden_layers + 5) * config.hidden_size + 2 * config.intermediate_size
    return 4 * len(lengths) * max(lengths) * widths


def product_rates(config: Config, precisions: Iterable[str], device: str) -> dict[str, float]:
    """Return operations per second by "precision kernel": of torch's own kernel and of the engine's choice.

    The products are those of one layer; the median over PRODUCT_SECONDS counts.
    """
    D = config.hidden_size
    F = config.intermediate_size
    T = PRODUCT_TOKENS[device]
    where = torch.device(device)
    shapes = [(D, D), (D, 2 * D), (D, D), (D, F), (F, D)]  # (in, out): query, key with value, output, feed-forward
    rates = {}
    for precision in precisions:
        dtype = getattr(torch, precision)
        inputs = [torch.ones(T, size, dtype=dtype, device=where) for size, _ in shapes]
        kernels: list[type[Linear]] = [Linear, choose_linear(dtype, where)]
        for kernel in dict.fromkeys(kernels):
            products = [kernel([nn.Linear(*shape)], dtype, where) for shape in shapes]
            loop = "for x, product in zip(inputs, products): product(x)"
            with torch.inference_mode():  # the timer warms up, and waits for a GPU
                timer = Timer(loop, globals=locals(), num_threads=torch.get_num_threads())
                seconds = timer.blocked_autorange(min_run_time=PRODUCT_SECONDS).median
            rates[f"{precision} {kernel.description}"] = sum(2 * T * m * n for m, n in shapes) / seconds
    return rates


# ---------------------------------------------------------------------------------------------------------------
# The stages of the measurement


def load(session: Session) -> None:
    """Convert the checkpoint for each contestant, load it, and compare its vectors of some texts."""
    find_texts(session)
    result, context = session.result, session.context
    result.flops = sum(text_flops(S, result.config) for S in result.lengths)
    size = {"sentences": len(result.lengths), "tokens": sum(result.lengths)}
    rows = session.enter(peers.contestants_for(context.device, session.settings.quick), size, result.flops)
    needed = 1.1 * padded_bytes(result.lengths, result.config)  # a tenth to spare
    for row in rows:
        if row.contestant.large and not row.reason and needed > total_memory() / 2:
            row.reason = f"not run: it needs {needed / 1e9:.0f} GB, more than half of the memory"
        if row.contestant.convert:
            session.request(row, row.contestant.convert, context.folder, context.scratch, process="helper")
    session.call(load_contestant, peers.REFERENCE, context)
    some = spread_out(session.work)
    session.reference = session.call(do_job, peers.REFERENCE.name, context.device, some)[1]
    session.load(rows)
    session.turn(rows, some, partial(check_vectors, session), counts=False)


def spread_out(rows: Any) -> Any:
    """Return about CHECKED of the texts or vectors, evenly spread; all if there are fewer than twice as many."""
    return rows[:: max(1, len(rows) // CHECKED)]


def check_vectors(session: Session, row: BenchRow, vectors: peers.Vectors) -> None:
    """Compare with the reference and keep the worst result; a row whose vectors differ is not ranked."""
    measured = equality(spread_out(vectors), session.reference, row.contestant.precision)
    row.equality = max(row.equality or measured, measured, key=lambda equality_of_row: equality_of_row.difference)
    row.reason = "" if row.equality.equal else "differs from the reference"


def beside_the_cpu(session: Session) -> None:
    """On a GPU, compare our vectors in every pooling and precision with those of the CPU in float32."""
    result, context = session.result, session.context
    if context.device == "cpu":
        return
    texts = spread_out(session.work)
    lines = []
    for pooling in [name for name in POOLINGS if name != "pooler" or result.config.family.has_pooler]:
        compute = partial(minibert.embed, texts, context.folder, pooling=pooling)
        reference = session.call(partial(compute, device="cpu"))
        for precision in ("float32", "bfloat16"):
            vectors = session.call(partial(compute, device=context.device, precision=precision))
            measured = equality(vectors, reference, precision)
            lines.append(f"{pooling} {precision} {measured.difference:.1e}, {1 - measured.cosine:.0e}")
            result.failures += [] if measured.equal else [f"differs from the CPU: {lines[-1]}"]
    result.notes["beside the CPU"] = "; ".join(lines)  # largest difference, 1-cosine


def rounds(session: Session) -> None:
    """In each round, measure the rate of matrix products, then give every contestant a turn and compare its vectors."""
    result = session.result
    precisions = sorted({row.contestant.precision for row in result.rows if not row.reason} - {"int8"})
    for _ in progress_bar(range(session.settings.rounds), "rounds"):
        rates = session.call(product_rates, result.config, precisions, session.context.device)
        for kernel, rate in rates.items():
            result.rates.setdefault(kernel, []).append(rate)
        session.turn(result.rows, session.work, partial(check_vectors, session))


def pair(session: Session, job: str) -> list[BenchRow]:
    """Return new rows of one sentence for minibert and transformers, both in float32, if they run."""
    main = [row for row in session.result.rows if row.ranked and row.job == session.result.job]
    return [BenchRow(row.contestant, job, {"sentences": 1}) for row in main if row.contestant.name in FLOAT32]


def one_sentence(session: Session) -> None:
    """Measure the seconds for one short sentence with the model loaded and warm."""
    rows = pair(session, "one sentence")
    for _ in progress_bar(range(6 if session.settings.quick else 20), "one sentence"):
        session.turn(rows, [SENTENCE], calls=CALLS)
    session.result.rows += rows


def cold_starts(session: Session) -> None:
    """Measure the seconds from the start of Python until the program prints; its files have been read before."""
    context = session.context
    rows = pair(session, "cold start")
    session.stop(*session.processes.keys() - {"helper"})
    for row in progress_bar(rows * (1 if session.settings.quick else 3), "cold starts"):
        arguments = [OURS if row.contestant.ours else THEIRS, SENTENCE, str(context.folder), context.device]
        start = partial(subprocess.run, [sys.executable, "-c", *arguments], capture_output=True, check=True)
        began = time.time()
        with suppress(subprocess.CalledProcessError):  # its row shows already that it does not run
            row.samples.append(Sample(float(session.call(start).stdout) - began))
    session.result.rows += rows


BENCHMARK = Benchmark(peers.checkpoint_folder, (load, beside_the_cpu, rounds, one_sentence, cold_starts))
