"""Who takes part in `minibert bench`: one function for each, which loads a checkpoint and returns texts -> vectors.

All give the [CLS] vector of the last layer, (N, D) in float32, and tokenize themselves. Peers are taken at their best:
sorted by length, batches of a sensible size; "as they come" and the tutorial's way are what people write.
Peers are imported when they are loaded, in a process of their own.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from minibert.device import has_bfloat16

Vectors = NDArray[np.float32]
Encode = Callable[..., Vectors]  # texts -> (N, D); ours takes batch_tokens as well
Rows = list[list[int]]
BATCH = {"cpu": 32, "cuda": 512}  # texts


@dataclass(frozen=True)
class Setting:
    """What a contestant is loaded with."""

    folder: Path  # the checkpoint
    converted: Path  # the folder of what was converted from it
    threads: int
    device: str


@dataclass(frozen=True)
class Ready:
    """A loaded contestant."""

    encode: Encode
    route: str = ""
    from_ids: Encode | None = None  # the same for texts that are tokenized already


@dataclass(frozen=True)
class Contestant:
    """One way to get the vectors."""

    name: str
    title: str
    precision: str
    load: Callable[[Setting], Ready]
    package: str = "transformers"
    conversion: str = ""  # in convert.CONVERSIONS
    alone: bool = False  # too large to be kept beside others; measured once

    @property
    def ours(self) -> bool:
        """Whether it is minibert."""
        return self.package == "minibert"

    @property
    def installed(self) -> bool:
        """Whether its package is here; nothing is imported."""
        return importlib.util.find_spec(self.package) is not None


# ---------------------------------------------------------------------------------------------------------------
# minibert


def load_ours(setting: Setting, precision: str) -> Ready:
    """The public function."""
    from minibert.device import choose_device  # here: peers do not carry its libraries
    from minibert.vectors.embedder import embed, load_shared

    device = choose_device(setting.device)
    engine = load_shared(setting.folder, device, precision).engine
    encode: Encode = partial(embed, model=setting.folder, precision=precision, device=device)
    return Ready(encode, engine.route, engine.vectors)


# ---------------------------------------------------------------------------------------------------------------
# transformers


def load_transformers(
    setting: Setting, dtype: str = "float32", attention: str = "sdpa", sort: bool = True, compiled: bool = False
) -> Ready:
    """AutoModel in batches."""
    transformers: Any = importlib.import_module("transformers")
    tokenize = load_tokenizer(setting.folder)
    model = transformers.AutoModel.from_pretrained(
        setting.folder, attn_implementation=attention, dtype=getattr(torch, dtype)
    )
    model = model.eval().to(setting.device)
    run: Any = torch.compile(model, dynamic=True) if compiled else model

    @torch.inference_mode()
    def compute(ids: NDArray[np.int64], mask: NDArray[np.int64]) -> Vectors:
        x = torch.from_numpy(ids).to(setting.device), torch.from_numpy(mask).to(setting.device)
        first = run(input_ids=x[0], attention_mask=x[1]).last_hidden_state[:, 0]
        vectors: Vectors = first.float().cpu().numpy()
        return vectors

    size = BATCH[torch.device(setting.device).type]
    return Ready(batched(tokenize, compute, size, sort), f"{attention}, batches of {size}")


def load_tutorial(setting: Setting) -> Ready:
    """All texts in one batch, padded to the longest, every hidden state kept (Alammar 2019)."""
    transformers: Any = importlib.import_module("transformers")
    tokenize = load_tokenizer(setting.folder)
    model = transformers.AutoModel.from_pretrained(setting.folder, dtype=torch.float32).eval()

    def encode(texts: Sequence[str]) -> Vectors:
        ids, mask = padded([tokenize([text])[0] for text in texts])
        with torch.no_grad():
            out = model(torch.from_numpy(ids), attention_mask=torch.from_numpy(mask), output_hidden_states=True)
        vectors: Vectors = out.last_hidden_state[:, 0, :].numpy()
        return vectors

    return Ready(encode, "one padded batch")


def load_sentence_transformers(setting: Setting) -> Ready:
    """SentenceTransformer.encode with [CLS] pooling; it sorts by length itself."""
    library: Any = importlib.import_module("sentence_transformers")
    models: Any = importlib.import_module("sentence_transformers.models")
    positions = read_positions(setting.folder)
    body = models.Transformer(str(setting.folder), max_seq_length=positions)
    pooling = models.Pooling(body.get_word_embedding_dimension(), pooling_mode="cls")
    model = library.SentenceTransformer(modules=[body, pooling], device=setting.device)
    size = BATCH[torch.device(setting.device).type]

    def encode(texts: Sequence[str]) -> Vectors:
        vectors: Vectors = model.encode(list(texts), batch_size=size, show_progress_bar=False)
        return vectors

    return Ready(encode, f"batches of {size}")


# ---------------------------------------------------------------------------------------------------------------
# Other runtimes


def load_onnxruntime(setting: Setting, file: str) -> Ready:
    """ONNX Runtime's CPU provider, all graph optimisations."""
    runtime: Any = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = setting.threads
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = runtime.InferenceSession(setting.converted / file, options, providers=["CPUExecutionProvider"])

    def compute(ids: NDArray[np.int64], mask: NDArray[np.int64]) -> Vectors:
        vectors: Vectors = session.run(None, {"input_ids": ids, "attention_mask": mask})[0]
        return vectors

    return Ready(batched(load_tokenizer(setting.folder), compute), "CPUExecutionProvider, batches of 32")


def load_openvino(setting: Setting, precision: str) -> Ready:
    """OpenVINO's CPU plugin, from the ONNX file."""
    library: Any = importlib.import_module("openvino")
    core = library.Core()
    hints = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": setting.threads, "NUM_STREAMS": "1"}
    model = core.compile_model(core.read_model(setting.converted / "model.onnx"), "CPU", hints)
    request = model.create_infer_request()

    def compute(ids: NDArray[np.int64], mask: NDArray[np.int64]) -> Vectors:
        vectors: Vectors = request.infer({"input_ids": ids, "attention_mask": mask})[0].astype(np.float32)
        return vectors

    hint = str(model.get_property("INFERENCE_PRECISION_HINT"))
    return Ready(batched(load_tokenizer(setting.folder), compute), f"CPU plugin, precision {hint}, batches of 32")


def load_ctranslate2(setting: Setting, precision: str) -> Ready:
    """CTranslate2's encoder; it packs and pads by itself."""
    library: Any = importlib.import_module("ctranslate2")
    encoder = library.Encoder(
        str(setting.converted / "ctranslate2"), device="cpu", compute_type=precision, intra_threads=setting.threads
    )
    tokenize = load_tokenizer(setting.folder)

    def encode(texts: Sequence[str]) -> Vectors:
        rows = tokenize(texts)
        parts = (
            np.asarray(encoder.forward_batch([rows[row] for row in numbers]).last_hidden_state)[:, 0]
            for numbers in portions(rows, 32, sort=True)
        )
        return in_order(zip(portions(rows, 32, sort=True), parts, strict=True), len(rows))

    return Ready(encode, f"compute type {encoder.compute_type}, batches of 32")


# ---------------------------------------------------------------------------------------------------------------
# What peers share: texts to padded batches, and the vectors back in order


def read_positions(folder: Path) -> int:
    """The longest S."""
    transformers: Any = importlib.import_module("transformers")
    return int(transformers.AutoConfig.from_pretrained(folder).max_position_embeddings)


def load_tokenizer(folder: Path) -> Callable[[Sequence[str]], Rows]:
    """transformers' tokenizer: texts -> rows of ids, cut but not padded."""
    transformers: Any = importlib.import_module("transformers")
    tokenizer, positions = transformers.AutoTokenizer.from_pretrained(folder), read_positions(folder)

    def tokenize(texts: Sequence[str]) -> Rows:
        rows: Rows = tokenizer(list(texts), truncation=True, max_length=positions)["input_ids"]
        return rows

    return tokenize


def batched(
    tokenize: Callable[[Sequence[str]], Rows],
    compute: Callable[[NDArray[np.int64], NDArray[np.int64]], Vectors],
    size: int = BATCH["cpu"],
    sort: bool = True,
) -> Encode:
    """texts -> vectors, from a function of one padded batch."""

    def encode(texts: Sequence[str]) -> Vectors:
        rows = tokenize(texts)
        batches = portions(rows, size, sort)
        return in_order(((numbers, compute(*padded([rows[row] for row in numbers]))) for numbers in batches), len(rows))

    return encode


def portions(rows: Rows, size: int, sort: bool) -> Iterator[NDArray[np.int64]]:
    """Row numbers of one batch after the other: the longest first, or as they come."""
    lengths = np.array([len(row) for row in rows])
    order = np.argsort(-lengths, kind="stable") if sort else np.arange(len(rows))
    for start in range(0, len(order), size):
        yield order[start : start + size]


def padded(rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ids and mask, (B, S); padding has the id 0, [PAD] in the vocabularies that are measured."""
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.zeros(mask.shape, np.int64)
    ids[mask] = np.concatenate(rows)
    return ids, mask.astype(np.int64)


def in_order(parts: Any, count: int) -> Vectors:
    """Vectors of batches, each with its row numbers, in one matrix."""
    result: Vectors | None = None
    for numbers, vectors in parts:
        if result is None:
            result = np.empty((count, vectors.shape[1]), np.float32)
        result[numbers] = vectors
    assert result is not None, "no texts"
    return result


# ---------------------------------------------------------------------------------------------------------------
# The list

REFERENCE = Contestant(
    "reference", "transformers, eager, float32", "float32", partial(load_transformers, attention="eager")
)
OURS = tuple(
    Contestant(f"minibert-{precision}", "minibert", precision, partial(load_ours, precision=precision), "minibert")
    for precision in ("float32", "bfloat16", "float16")
)
ON_CPU = (
    *OURS[:2],
    Contestant("tutorial", "the tutorial: one padded batch", "float32", load_tutorial, alone=True),
    Contestant("transformers", "transformers, as they come", "float32", partial(load_transformers, sort=False)),
    Contestant("transformers-sorted", "transformers, sorted", "float32", load_transformers),
    Contestant(
        "sentence-transformers", "sentence-transformers", "float32", load_sentence_transformers, "sentence_transformers"
    ),
    Contestant(
        "onnxruntime", "ONNX Runtime", "float32", partial(load_onnxruntime, file="model.onnx"), "onnxruntime", "onnx"
    ),
    Contestant("openvino", "OpenVINO", "float32", partial(load_openvino, precision="f32"), "openvino", "onnx"),
    Contestant(
        "ctranslate2",
        "CTranslate2",
        "float32",
        partial(load_ctranslate2, precision="float32"),
        "ctranslate2",
        "ctranslate2",
    ),
    Contestant(
        "transformers-bfloat16", "transformers, sorted", "bfloat16", partial(load_transformers, dtype="bfloat16")
    ),
    Contestant(
        "openvino-bfloat16", "OpenVINO", "bfloat16", partial(load_openvino, precision="bf16"), "openvino", "onnx"
    ),
    Contestant(
        "onnxruntime-int8",
        "ONNX Runtime, dynamic",
        "int8",
        partial(load_onnxruntime, file="model-int8.onnx"),
        "onnxruntime",
        "onnx-int8",
    ),
    Contestant(
        "ctranslate2-int8",
        "CTranslate2",
        "int8",
        partial(load_ctranslate2, precision="int8"),
        "ctranslate2",
        "ctranslate2",
    ),
)
ON_GPU = (
    *OURS,
    *(
        Contestant(
            f"transformers-{attention}-{dtype}",
            f"transformers, {attention}, sorted",
            dtype,
            partial(load_transformers, dtype=dtype, attention=attention),
        )
        for dtype in ("float32", "bfloat16", "float16")
        for attention in ("sdpa", "eager")
    ),
    Contestant(
        "transformers-compiled-bfloat16",
        "transformers, torch.compile",
        "bfloat16",
        partial(load_transformers, dtype="bfloat16", compiled=True),
    ),
    Contestant(
        "sentence-transformers", "sentence-transformers", "float32", load_sentence_transformers, "sentence_transformers"
    ),
)
QUICK = ("minibert-float32", "minibert-bfloat16", "transformers", "transformers-sorted")
NAMED = {contestant.name: contestant for contestant in (REFERENCE, *ON_GPU, *ON_CPU)}


def contestants_for(device: str, quick: bool = False) -> list[Contestant]:
    """Who takes part on this device; a quick run takes minibert and transformers alone."""
    everyone = ON_CPU if torch.device(device).type == "cpu" else ON_GPU
    return [one for one in everyone if not quick or one.name in QUICK or torch.device(device).type != "cpu"]


def obstacle(contestant: Contestant, device: str) -> str:
    """Why it cannot take part here, or nothing."""
    if not contestant.installed:
        return "not installed"
    if contestant.precision == "bfloat16" and not has_bfloat16(torch.device(device)):
        return "not run: this hardware does not multiply bfloat16"
    if contestant.precision == "float16" and torch.device(device).type != "cuda":
        return "not run: float16 needs a CUDA device"
    return ""
