"""The contestants of embedding: minibert and other runtimes.

Each is loaded as a function from texts to the [CLS] vectors of the last layer, (N,D) in float32, tokenizing included.
Other runtimes run at their best: sorted by length, in batches of a sensible size. "As they come" and "the tutorial" are
what people write. A library is imported when its contestant is loaded, in a process of its own.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from minibert.bench.plan import MINILM, BenchSettings
from minibert.bench.results import Contestant, Context

BATCH = {"cpu": 32, "cuda": 512}  # texts in a batch of the other runtimes; minibert chooses its own
Vectors = NDArray[np.float32]
Loaded = tuple[Callable[..., Any], str]  # the function that does the job, and its route: the kernels that it uses
Ids = NDArray[np.int64]  # (B,S); a mask has the same type


def load_ours(context: Context, precision: str) -> Loaded:
    """Return minibert.embed."""
    from minibert.vectors.embedder import Embedder, embed  # here: other runtimes do not need its libraries
    from minibert.vectors.recipe import Recipe

    recipe = Recipe("cls", precision=precision, max_length=context.max_tokens)
    route = Embedder(context.folder, recipe, context.device).engine.kernels
    return partial(embed, model=context.folder, recipe=recipe, device=context.device), route


def load_transformers(
    context: Context,
    dtype: str,
    attention: str = "sdpa",
    sort: bool = True,
    tutorial: bool = False,
    compile: bool = False,
) -> Loaded:
    """Return AutoModel in batches. tutorial: in one padded batch that keeps every hidden state (Alammar 2019)."""
    import transformers

    model = transformers.AutoModel.from_pretrained(
        context.folder, attn_implementation=attention, dtype=getattr(torch, dtype)
    ).eval()
    run: Any = torch.compile(model.to(context.device), dynamic=True) if compile else model.to(context.device)

    @torch.inference_mode()
    def compute(*batch: Ids) -> Vectors:
        ids, mask = (torch.from_numpy(x).to(context.device) for x in batch)
        out = run(input_ids=ids, attention_mask=mask, output_hidden_states=tutorial)
        return np.asarray(out.last_hidden_state[:, 0].float().cpu())

    return batched(context, compute, sort, one_batch=tutorial), attention


def load_sentence_transformers(context: Context, precision: str) -> Loaded:
    """Return SentenceTransformer.encode with [CLS] pooling, which sorts by length."""
    from sentence_transformers import SentenceTransformer, models

    body = models.Transformer(str(context.folder), max_seq_length=context.max_tokens)
    pooling = models.Pooling(body.get_word_embedding_dimension(), pooling_mode="cls")
    model = SentenceTransformer(modules=[body, pooling], device=context.device)
    model.to(getattr(torch, precision))
    return partial(model.encode, batch_size=BATCH[context.device], show_progress_bar=False), "sdpa"


def load_onnxruntime(context: Context, precision: str) -> Loaded:
    """Return ONNX Runtime's CPU provider with all graph optimisations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = context.threads
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    file = context.scratch / ("model-int8.onnx" if precision == "int8" else "model.onnx")
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    encode = batched(context, lambda ids, mask: session.run(None, {"input_ids": ids, "attention_mask": mask})[0])
    return encode, "CPUExecutionProvider"


def load_openvino(context: Context, precision: str) -> Loaded:
    """Return OpenVINO's CPU plugin, which reads the ONNX file."""
    from openvino import Core

    core = Core()
    hint = {"float32": "f32", "bfloat16": "bf16"}[precision]
    hints = {"INFERENCE_PRECISION_HINT": hint, "INFERENCE_NUM_THREADS": context.threads, "NUM_STREAMS": "1"}
    model = core.compile_model(core.read_model(context.scratch / "model.onnx"), "CPU", hints)
    infer = model.create_infer_request().infer
    encode = batched(context, lambda ids, mask: infer({"input_ids": ids, "attention_mask": mask})[0].astype(np.float32))
    return encode, f"CPU plugin, precision {model.get_property('INFERENCE_PRECISION_HINT')}"


def load_ctranslate2(context: Context, precision: str) -> Loaded:
    """Return CTranslate2's encoder, which accepts rows without padding."""
    import ctranslate2

    folder = str(context.scratch / "ctranslate2")
    encoder = ctranslate2.Encoder(folder, device="cpu", compute_type=precision, intra_threads=context.threads)

    def compute(ids: Ids, mask: Ids) -> Vectors:
        rows = [row[:length].tolist() for row, length in zip(ids, mask.sum(axis=1), strict=True)]
        return np.asarray(encoder.forward_batch(rows).last_hidden_state)[:, 0]

    return batched(context, compute), f"compute type {encoder.compute_type}"


def batched(
    context: Context, compute: Callable[[Ids, Ids], Vectors], sort: bool = True, one_batch: bool = False
) -> Callable[[Sequence[str]], Vectors]:
    """Return texts -> vectors from a function of one padded batch: the longest texts first, or in the given order."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(context.folder)

    def encode(texts: Sequence[str]) -> Vectors:
        rows: list[list[int]] = tokenizer(list(texts), truncation=True, max_length=context.max_tokens)["input_ids"]
        order = sorted(range(len(rows)), key=lambda number: -len(rows[number])) if sort else list(range(len(rows)))
        size = len(rows) if one_batch else BATCH[context.device]
        batches = [order[start : start + size] for start in range(0, len(rows), size)]
        padded = (tokenizer.pad({"input_ids": [rows[n] for n in batch]}, return_tensors="np") for batch in batches)
        vectors = np.concatenate([compute(batch["input_ids"], batch["attention_mask"]) for batch in padded])
        return vectors[np.argsort(order)]

    return encode


class FirstVectors(nn.ModuleList):
    """Wraps a model and returns only its [CLS] vectors, so that a runtime copies nothing else."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(B,S), (B,S) -> (B,D)."""
        first: Tensor = self[0](input_ids=input_ids, attention_mask=attention_mask).last_hidden_state[:, 0]
        return first


def to_onnx(folder: Path, out: Path) -> None:
    """Write transformers' model as model.onnx with torch's tracing exporter, unless it exists; B and S stay dynamic."""
    if (out / "model.onnx").exists():
        return
    import transformers

    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    ids = torch.ones(2, 7, dtype=torch.long)
    names = ["input_ids", "attention_mask"]
    axes = {name: {0: "B", 1: "S"} for name in names} | {"vectors": {0: "B"}}
    torch.onnx.export(
        FirstVectors([model]).eval(),
        (ids, ids),
        out / "model.onnx",
        input_names=names,
        output_names=["vectors"],
        dynamic_axes=axes,
        opset_version=17,
        dynamo=False,
    )


def to_onnx_int8(folder: Path, out: Path) -> None:
    """Write model.onnx with int8 weights; activations are quantized dynamically."""
    from onnxruntime import quantization

    to_onnx(folder, out)
    logging.getLogger().setLevel(logging.ERROR)
    quantization.quantize_dynamic(out / "model.onnx", out / "model-int8.onnx", weight_type=quantization.QuantType.QInt8)


def to_ctranslate2(folder: Path, out: Path) -> None:
    """Write a folder with CTranslate2's own converter."""
    from ctranslate2 import converters

    converters.TransformersConverter(str(folder)).convert(str(out / "ctranslate2"), force=True)


# Checkpoints of published sizes: the class, and the values that differ from transformers' default config. The ids of
# special tokens belong to the tokenizer, which comes from another checkpoint.
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "distilbert-shape": ("DistilBert", {}),
    "roberta-shape": (
        "Roberta",
        {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
        | {"pad_token_id": 0, "bos_token_id": 101, "eos_token_id": 102},
    ),
    "albert-shape": (
        "Albert",
        {"vocab_size": 30522, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
        | {"bos_token_id": 101, "eos_token_id": 102},
    ),
    "modernbert-shape": (
        "ModernBert",
        {"pad_token_id": 0, "cls_token_id": 101, "sep_token_id": 102, "bos_token_id": 101, "eos_token_id": 102},
    ),
}


def checkpoint_folder(model: str, scratch: Path, settings: BenchSettings) -> Path:
    """Return the folder of a checkpoint; one of SHAPES is written, with random weights and MINILM's tokenizer."""
    from minibert.storage.hub import locate  # here: other runtimes do not need these libraries
    from minibert.text.tokenizer import load_tokenizer

    if model not in SHAPES:
        return locate(model).folder
    import transformers

    torch.manual_seed(0)  # in a process of its own
    family, sizes = SHAPES[model]
    config = getattr(transformers, f"{family}Config")(**sizes)
    getattr(transformers, f"{family}Model")(config).save_pretrained(scratch / model)
    load_tokenizer(locate(MINILM).folder).save(scratch / model)
    return scratch / model


REFERENCE = Contestant(
    "reference", "transformers, eager, float32", "float32", partial(load_transformers, attention="eager")
)
OURS = tuple(
    Contestant(f"minibert-{precision}", "minibert", precision, load_ours, "minibert")
    for precision in ("float32", "bfloat16", "int8")
)
SORTED = Contestant("transformers-sorted", "transformers, sorted", "float32", load_transformers)
SENTENCE_TRANSFORMERS = tuple(
    Contestant(name, "sentence-transformers", precision, load_sentence_transformers, "sentence_transformers")
    for name, precision in (("sentence-transformers", "float32"), ("sentence-transformers-bfloat16", "bfloat16"))
)
ON_CPU = (
    *OURS,
    Contestant(
        "tutorial",
        "the tutorial: one padded batch",
        "float32",
        partial(load_transformers, sort=False, tutorial=True),
        large=True,
    ),
    Contestant("transformers", "transformers, as they come", "float32", partial(load_transformers, sort=False)),
    SORTED,
    SENTENCE_TRANSFORMERS[0],
    Contestant("onnxruntime", "ONNX Runtime", "float32", load_onnxruntime, "onnxruntime", to_onnx),
    Contestant("openvino", "OpenVINO", "float32", load_openvino, "openvino", to_onnx),
    Contestant("ctranslate2", "CTranslate2", "float32", load_ctranslate2, "ctranslate2", to_ctranslate2),
    Contestant("transformers-bfloat16", "transformers, sorted", "bfloat16", load_transformers),
    Contestant("openvino-bfloat16", "OpenVINO", "bfloat16", load_openvino, "openvino", to_onnx),
    Contestant("onnxruntime-int8", "ONNX Runtime, dynamic", "int8", load_onnxruntime, "onnxruntime", to_onnx_int8),
    Contestant("ctranslate2-int8", "CTranslate2", "int8", load_ctranslate2, "ctranslate2", to_ctranslate2),
)
ON_CUDA = (
    *OURS[:2],
    SORTED,
    *SENTENCE_TRANSFORMERS,
    *(
        Contestant(f"transformers-{name}-bfloat16", f"transformers, {title}, sorted", "bfloat16", load, package)
        for name, title, load, package in (
            ("sdpa", "SDPA", load_transformers, "transformers"),
            ("compiled", "torch.compile", partial(load_transformers, compile=True), "transformers"),
            ("flash", "flash attention", partial(load_transformers, attention="flash_attention_2"), "flash_attn"),
        )
    ),
)


def contestants_for(device: str, quick: bool = False) -> list[Contestant]:
    """Return the contestants on this device; a quick run on a CPU has only minibert and transformers."""
    if device != "cpu":
        return list(ON_CUDA)
    return [
        contestant
        for contestant in ON_CPU
        if not quick or (contestant.package in ("minibert", "transformers") and not contestant.large)
    ]
