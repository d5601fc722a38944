"""Embedding: sentences to [CLS] vectors, one sentence, cold starts, and the growth of the cost.

The roofline is the number of operations that the job cannot avoid, at the rate of this machine's matrix products.
S tokens, D hidden, F feed-forward, L layers. In each layer a text costs 4 S D² operations for keys and values, 4 Q D²
for query and output, 4 Q D F for the feed-forward and 4 Q S D for attention. Q is the number of query tokens: Q = S,
and in the last layer Q = 1, because only [CLS] is needed. A multiplication and its addition are two operations.
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.benchmark import Timer

import minibert
from minibert.bench import peers
from minibert.bench.harness import Row, Sample, Session, count_launches, do_job, load_contestant, total_memory
from minibert.bench.settings import TURNS, Settings, cores
from minibert.config import Config
from minibert.kernels.matmul import Linear, choose_linear
from minibert.tasks.classification import Classification
from minibert.text.tokenizer import Tokenizer
from minibert.utils.files import user_path
from minibert.utils.printing import progress_bar
from minibert.vectors.pooling import POOLINGS

SENTENCE = "a visually stunning rumination on love"  # the one short sentence
# How many of the first 2,000 training sentences of SST-2 have 3 tokens, 4 tokens ..., [CLS] and [SEP] included.
SST2_COUNTS = """
    4 18 14 14 34 37 45 55 58 55 53 65 58 71 67 70 82 55 63 69 53 60 74 71 58 57 56 43 54
    48 34 41 40 38 34 23 32 35 22 22 16 18 21 8 8 4 9 7 6 7 6 4 0 1 1 0 2
"""
SST2_LENGTHS = dict(enumerate(map(int, SST2_COUNTS.split()), start=3))  # tokens -> sentences
CHECKED = 250  # texts that are compared with the reference before anything is timed, and in every round
# Smallest cosine to transformers (eager, float32), and largest difference to it in float32. Measured on real weights:
# cosines of 0.9999 in bfloat16, differences of 1e-6 to 4e-6 for every float32 kernel. int8 changes the vectors by
# design: its cosine is printed, and only a gross error is rejected.
SMALLEST_COSINE = {"float32": 0.999999, "bfloat16": 0.999, "float16": 0.999, "int8": 0.9}
LARGEST_DIFFERENCE, NEAREST = 1e-4, 0.98
CALLS = 10  # of a turn with one short sentence
GROWTH: dict[str, Mapping[str, Sequence[int]]] = {  # what grows: its values by size; on a GPU "default" is "full"
    "tokens in a text": {"default": (8, 32, 128, 512), "full": (8, 16, 32, 64, 128, 256, 512)},
    "sentences": {"default": (100, 1000), "full": (100, 1000, 10_000, 100_000)},
    "threads": dict.fromkeys(("default", "full"), sorted({2**n for n in range(10) if 2**n <= cores()} | {cores()})),
}
GROWING_TOKENS = {"cpu": 4096, "cuda": 1 << 18}  # in the texts of one point, when their length grows
GROWING_TEXTS = 500  # when the threads grow
REPEATS = 3  # samples of a point
FLOAT32, BFLOAT16 = ("minibert-float32", "transformers-sorted"), ("minibert-bfloat16", "transformers-sdpa-bfloat16")
PRODUCT_TOKENS, PRODUCT_SECONDS = {"cpu": 1024, "cuda": 16384}, 0.5  # rows of the products of the roofline, and time
OURS = """
import sys, time, minibert
vector = minibert.embed(sys.argv[1], sys.argv[2], device=sys.argv[3])
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
    """Make sentences of $MINIBERT_DATA the work: of SST-2, or of novels for masked LM; without them, drawn ones."""
    count, data, texts = session.settings.sentences, user_path(os.environ.get("MINIBERT_DATA", "")), list[str]()
    novels, reviews = data / "novels" / "heldout.txt", data / "sst2" / "train.tsv"
    if session.settings.objective == "mlm":
        origin = "the first sentences of held-out novels"
        texts = [line for line in novels.read_text("utf-8").splitlines() if line][:count] if novels.is_file() else []
    else:
        origin = "the first training sentences of SST-2"
        texts = Classification().read(reviews).texts[:count] if reviews.is_file() else []
    if len(texts) < count:
        texts, origin = draw_texts(count, session.tokenizer), "random words, with the sentence lengths of SST-2"
    session.work, session.result.origin = texts, origin
    session.result.lengths = [len(ids) for ids in session.tokenizer.ids(texts)]


def draw_texts(count: int, tokenizer: Tokenizer, lengths: Mapping[int, int] = SST2_LENGTHS) -> list[str]:
    """Sentences of whole-word tokens whose numbers of tokens are drawn from `lengths` (tokens -> weight)."""
    tokens = (tokenizer.id_to_token(id) for id in range(tokenizer.vocab_size))
    words = [token for token in tokens if token is not None and token.isascii() and token.isalpha()]
    rows, draw = zip(words, tokenizer.ids(words), strict=True), random.Random(0)
    words = [word for word, ids in rows if ids[1:-1] == [tokenizer.token_to_id(word)]]
    sizes = draw.choices(list(lengths), list(lengths.values()), k=count)
    return [" ".join(draw.choices(words, k=size - 2)) for size in sizes]


def compare(vectors: peers.Vectors, reference: peers.Vectors, precision: str = "float32") -> dict[str, float]:
    """Row by row, (N,D) with (N,D): the largest difference and the smallest cosine; equal: the same, in this precision.

    nearest: the share of vectors that are nearer to their own reference than to that of the next text, which falls if
    the order of the rows is wrong. Vectors of another shape or with values that are not finite have nothing in common.
    """
    if vectors.shape != reference.shape or not np.isfinite(vectors).all():
        return {"difference": 1e30, "cosine": -1.0, "nearest": 0.0, "equal": False}
    a, b = vectors.astype(np.float64), reference.astype(np.float64)
    cosines = (a * b).sum(axis=1) / np.maximum(np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1), 1e-30)
    to_own, to_next = (np.linalg.norm(a - other, axis=1) for other in (b, np.roll(b, 1, axis=0)))
    difference, cosine, nearest = float(np.abs(a - b).max()), float(cosines.min()), float((to_own <= to_next).mean())
    near = nearest >= NEAREST and (precision != "float32" or difference <= LARGEST_DIFFERENCE)
    equal = near and cosine >= SMALLEST_COSINE[precision]
    return {"difference": difference, "cosine": cosine, "nearest": nearest, "equal": equal}


# ---------------------------------------------------------------------------------------------------------------
# The roofline


def text_flops(S: int, config: Config, first_only: bool = True) -> int:
    """Operations of all layers for one text of S tokens. first_only: the last layer is computed for [CLS] alone."""
    D, F, L = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    return sum(4 * S * D * D + 4 * Q * (D * D + D * F + S * D) for Q in [S] * (L - 1) + [1 if first_only else S])


def padded_bytes(lengths: Sequence[int], config: Config) -> int:
    """Approximate memory of one padded batch of all texts, with every hidden state, in float32."""
    widths = (config.num_hidden_layers + 5) * config.hidden_size + 2 * config.intermediate_size
    return 4 * len(lengths) * max(lengths) * widths


def product_rates(config: Config, precisions: Iterable[str], device: str) -> dict[str, float]:
    """Operations a second by "precision kernel", of torch's own kernel and of the one that the engine chooses.

    The products are those of one layer; the median over PRODUCT_SECONDS counts.
    """
    D, F, T, where = config.hidden_size, config.intermediate_size, PRODUCT_TOKENS[device], torch.device(device)
    shapes = [(D, D), (D, 2 * D), (D, D), (D, F), (F, D)]  # (in, out): query, key with value, output, feed-forward
    loop, found = "for x, product in zip(inputs, products): product(x)", {}
    for precision in precisions:
        dtype = getattr(torch, precision)
        inputs = [torch.ones(T, size, dtype=dtype, device=where) for size, _ in shapes]
        kernels: list[type[Linear]] = [Linear, choose_linear(dtype, where)]
        for kernel in dict.fromkeys(kernels):
            products = [kernel([nn.Linear(*shape)], dtype, where) for shape in shapes]
            with torch.inference_mode():  # the timer warms up, and waits for a GPU
                timer = Timer(loop, globals=locals(), num_threads=torch.get_num_threads())
                seconds = timer.blocked_autorange(min_run_time=PRODUCT_SECONDS).median
            found[f"{precision} {kernel.description}"] = sum(2 * T * m * n for m, n in shapes) / seconds
    return found


# ---------------------------------------------------------------------------------------------------------------
# The stages of the measurement


def prepare(model: str, scratch: Path, settings: Settings) -> Path:
    """The folder of the checkpoint."""
    return peers.checkpoint_folder(model, scratch)


def load(session: Session) -> None:
    """Every contestant: its checkpoint converted, then loaded, then its vectors of some texts compared."""
    find_texts(session)
    result, context = session.result, session.context
    result.flops = sum(text_flops(S, result.config) for S in result.lengths)
    size = {"sentences": len(result.lengths), "tokens": sum(result.lengths)}
    contestants = peers.contestants_for(context.device, session.settings.quick)
    result.rows = [
        Row(one, "embedding", size, reason=one.obstacle(context.device), flops=result.flops) for one in contestants
    ]
    needed = 1.1 * padded_bytes(result.lengths, result.config)  # a tenth to spare
    for row in result.rows:
        if row.contestant.large and not row.reason and needed > total_memory() / 2:
            row.reason = f"not run: it needs {needed / 1e9:.0f} GB, more than half of the memory"
        if row.contestant.convert:
            session.request(row, row.contestant.convert, context.folder, context.scratch, process="helper")
    session.call(load_contestant, peers.REFERENCE, context)
    some = spread_out(session.work)
    session.reference = session.call(do_job, peers.REFERENCE.name, context.device, some)[1]
    session.load(result.rows)
    session.turn(result.rows, some, partial(check_vectors, session), counts=False)


def spread_out(rows: Any) -> Any:
    """About CHECKED of the texts or vectors, evenly spread; all of them if there are fewer than twice as many."""
    return rows[:: max(1, len(rows) // CHECKED)]


def check_vectors(session: Session, row: Row, vectors: peers.Vectors) -> None:
    """Compare with the reference, and keep the worst; a row whose vectors differ is not ranked."""
    found = compare(spread_out(vectors), session.reference, row.contestant.precision)
    row.equality = max(row.equality or found, found, key=lambda one: one["difference"])
    row.reason = "" if row.equality["equal"] else "differs from the reference"


def beside_the_cpu(session: Session) -> None:
    """On a GPU: our vectors in every pooling and precision, compared with those of the CPU in float32."""
    result, context, texts = session.result, session.context, spread_out(session.work)
    poolings, lines = [name for name in POOLINGS if name != "pooler" or result.config.family.has_pooler], []
    for pooling in poolings if context.device != "cpu" else ():
        compute = partial(minibert.embed, texts, context.folder, pooling=pooling)
        reference = session.call(partial(compute, device="cpu"))
        for precision in ("float32", "bfloat16"):
            vectors = session.call(partial(compute, device=context.device, precision=precision))
            found = compare(vectors, reference, precision)
            lines.append(f"{pooling} {precision} {found['difference']:.1e}, {1 - found['cosine']:.0e}")
            result.failures += [] if found["equal"] else [f"differs from the CPU: {lines[-1]}"]
    result.notes["beside the CPU"] = "; ".join(lines)  # largest difference, 1-cosine


def rounds(session: Session) -> None:
    """Each round: the rate of matrix products, then a turn of every contestant; the vectors are compared again."""
    result = session.result
    precisions = sorted({row.contestant.precision for row in result.rows if not row.reason} - {"int8"})
    for _ in progress_bar(range(session.settings.rounds), "rounds"):
        found = session.call(product_rates, result.config, precisions, session.context.device)
        for kernel, rate in found.items():
            result.rates.setdefault(kernel, []).append(rate)
        session.turn(result.rows, session.work, partial(check_vectors, session))


def pair(
    session: Session, job: str, size: Mapping[str, float], at: int = 0, names: Sequence[str] = FLOAT32, flops: int = 0
) -> list[Row]:
    """New rows for minibert and transformers, sorted, by default both in float32, if they run."""
    found = [session.result.row(name) for name in names]
    return [Row(row.contestant, job, size, at, flops=flops) for row in found if row]


def one_sentence(session: Session) -> None:
    """Seconds for one short sentence with the model warm."""
    rows = pair(session, "one sentence", {"sentences": 1})
    for _ in progress_bar(range(TURNS[session.settings.size][0]), "one sentence"):
        session.turn(rows, [SENTENCE], calls=CALLS)
    session.result.rows += rows


def growth(session: Session) -> None:
    """The cost by what grows, ours beside transformers'; on a GPU in bfloat16 too, and how many kernels we launch."""
    tokenizer, longest, on_gpu = session.tokenizer, session.context.max_tokens, session.context.device != "cpu"
    size = "full" if on_gpu and not session.settings.quick else session.settings.size
    short = {S: count for S, count in SST2_LENGTHS.items() if longest >= S}
    for what, at in [(what, at) for what, values in GROWTH.items() for at in values.get(size, ())]:
        is_length = what == "tokens in a text"
        if is_length and at > longest:
            continue
        counts = {"sentences": at, "tokens in a text": GROWING_TOKENS[session.context.device] // at}
        count = counts.get(what, GROWING_TEXTS)
        texts = draw_texts(count, tokenizer, {at: 1} if is_length else short)
        lengths = [len(ids) for ids in tokenizer.ids(texts)]
        # The rates of products were not measured with other threads.
        flops = 0 if what == "threads" else sum(text_flops(S, session.result.config) for S in lengths)
        names, amount = FLOAT32 + BFLOAT16 * on_gpu, {"sentences": count, "tokens": sum(lengths)}
        rows = pair(session, what, amount, at, names, flops)
        if what == "threads":
            session.load(rows, threads=at)  # in new processes
        session.turn(rows, texts, counts=False)
        for _ in progress_bar(range(REPEATS), f"{what}: {at}"):
            session.turn(rows, texts)
        for row in [row for row in rows if on_gpu and row.contestant.ours]:
            row.launches = session.request(row, count_launches, row.contestant.name, texts) or 0
        session.result.rows += rows


def cold_starts(session: Session) -> None:
    """Seconds from the start of Python to the time that the program prints; the files have been read before."""
    rows, context = pair(session, "cold start", {"sentences": 1}), session.context
    session.stop(*session.processes.keys() - {"helper"})
    for row in progress_bar(rows * TURNS[session.settings.size][1], "cold starts"):
        arguments = [OURS if row.contestant.ours else THEIRS, SENTENCE, str(context.folder), context.device]
        start = partial(subprocess.run, [sys.executable, "-c", *arguments], capture_output=True, check=True)
        began = time.time()
        with suppress(subprocess.CalledProcessError):  # its row shows already that it does not run
            row.samples.append(Sample(float(session.call(start).stdout) - began))
    session.result.rows += rows


STAGES = (load, beside_the_cpu, rounds, one_sentence, growth, cold_starts)


def goals(settings: Settings) -> list[Any]:
    """Goal, its lower bounds in a wide and in a narrower model, and how it is measured."""
    best, peak = "against the best other runtime", "peak memory of"
    ours, bfloat16, int8 = "minibert-float32", "minibert-bfloat16", "minibert-int8"
    return [
        ("float32, share of the roofline", 0.75, 0.60, lambda r: r.roofline(r.row(ours)).get("median")),
        ("bfloat16, share of the roofline", 0.50, 0.35, lambda r: r.roofline(r.row(bfloat16)).get("median")),
        (f"float32, {best}", 1.1, 1.1, lambda r: r.speedup(ours)),
        (f"bfloat16, {best}", 1.1, 1.1, lambda r: r.speedup(bfloat16)),
        (f"int8, {best}", 1.1, 1.0, lambda r: r.speedup(int8)),
        ("int8, smallest cosine", 0.999, 0.998, lambda r: r.row(int8) and r.row(int8).equality["cosine"]),
        (f"{peak} bfloat16 as a multiple of int8's", 1.0, 1.0, lambda r: r.memory(int8, bfloat16)),
        (
            f"{peak} sorted transformers as a multiple of ours",
            1.0,
            1.0,
            lambda r: r.memory(ours, "transformers-sorted"),
        ),
        ("one short sentence, against transformers", 1.0, 1.0, lambda r: r.speedup(ours, job="one sentence")),
        ("cold start to the first vector, against transformers", 1.0, 1.0, lambda r: r.speedup(ours, job="cold start")),
    ]
