"""Who takes part in `minibert bench`: one function for each backend loads a checkpoint and returns texts -> vectors.

All give the [CLS] vector of the last layer, (N, D) in float32, and tokenize themselves. Other runtimes are taken at
their best: sorted by length, batches of a sensible size; "as they come" and the tutorial's batch are what people write.
Each library is imported when its backend is loaded, in a process of its own.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from minibert.device import has_bfloat16, has_int8

Vectors = NDArray[np.float32]
Encode = Callable[..., Vectors]  # texts -> (N, D); ours takes batch_tokens as well
Loaded = tuple[Encode, str]  # and in words, how it computes
Ids = NDArray[np.int64]  # (B, S), and so is a mask
Compute = Callable[[Ids, Ids], Vectors]


@dataclass(frozen=True)
class Setting:
    """What a backend is loaded with."""

    folder: Path  # the checkpoint
    converted: Path  # the folder of what was converted from it
    threads: int
    device: str
    positions: int  # the longest S

    @property
    def batch(self) -> int:
        """Texts in a batch of the others; minibert chooses its own."""
        return 32 if self.device == "cpu" else 512


@dataclass(frozen=True)
class Backend:
    """One runtime, in one precision."""

    name: str
    title: str
    precision: str
    load: Callable[[Setting, str], Loaded]  # with its precision
    package: str = "transformers"
    conversion: str = ""  # in CONVERSIONS
    large: bool = False  # it takes one turn, where memory allows it

    @property
    def ours(self) -> bool:
        """Whether it is minibert."""
        return self.package == "minibert"

    def obstacle(self, device: str) -> str:
        """Why it cannot take part here, or nothing; its package is not imported."""
        if importlib.util.find_spec(self.package) is None:
            return "not installed"
        if self.precision == "bfloat16" and not has_bfloat16(torch.device(device)):
            return "not run: this hardware does not multiply bfloat16"
        if self.ours and self.precision == "int8" and not has_int8(torch.device(device)):
            return "not run: this hardware does not multiply bytes"
        if self.precision == "float16" and torch.device(device).type != "cuda":
            return "not run: float16 needs a CUDA device"
        return ""


def load_ours(setting: Setting, precision: str) -> Loaded:
    """The public function."""
    from minibert.vectors.embedder import embed, load_shared  # here: other runtimes do not carry its libraries

    kernels = load_shared(setting.folder, setting.device, precision).engine.kernels
    return partial(embed, model=setting.folder, precision=precision, device=setting.device), kernels


def load_transformers(
    setting: Setting, dtype: str, how: str = "sdpa", sort: bool = True, one_batch: bool = False, compiled: bool = False
) -> Loaded:
    """AutoModel in batches; or in one batch, with every hidden state kept, as in the tutorial (Alammar 2019)."""
    library: Any = importlib.import_module("transformers")
    model = library.AutoModel.from_pretrained(setting.folder, attn_implementation=how, dtype=getattr(torch, dtype))
    model = model.eval().to(setting.device)
    run: Any = torch.compile(model, dynamic=True) if compiled else model

    @torch.inference_mode()
    def compute(ids: Ids, mask: Ids) -> Vectors:
        x = torch.from_numpy(ids).to(setting.device), torch.from_numpy(mask).to(setting.device)
        out = run(input_ids=x[0], attention_mask=x[1], output_hidden_states=one_batch)
        vectors: Vectors = out.last_hidden_state[:, 0].float().cpu().numpy()
        return vectors

    return batched(setting, compute, sort, one_batch), how


def load_sentence(setting: Setting, precision: str) -> Loaded:
    """SentenceTransformer.encode with [CLS] pooling, in float32; it sorts by length itself."""
    library: Any = importlib.import_module("sentence_transformers")
    models: Any = importlib.import_module("sentence_transformers.models")
    body = models.Transformer(str(setting.folder), max_seq_length=setting.positions)
    pooling = models.Pooling(body.get_word_embedding_dimension(), pooling_mode="cls")
    model = library.SentenceTransformer(modules=[body, pooling], device=setting.device)
    return partial(model.encode, batch_size=setting.batch, show_progress_bar=False), "sdpa"


def load_onnxruntime(setting: Setting, precision: str) -> Loaded:
    """ONNX Runtime's CPU provider, all graph optimisations."""
    runtime: Any = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = setting.threads
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    file = setting.converted / ("model-int8.onnx" if precision == "int8" else "model.onnx")
    session = runtime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    encode = batched(setting, lambda ids, mask: session.run(None, {"input_ids": ids, "attention_mask": mask})[0])
    return encode, "CPUExecutionProvider"


def load_openvino(setting: Setting, precision: str) -> Loaded:
    """OpenVINO's CPU plugin, from the ONNX file."""
    core = importlib.import_module("openvino").Core()
    hint = {"float32": "f32", "bfloat16": "bf16"}[precision]
    hints = {"INFERENCE_PRECISION_HINT": hint, "INFERENCE_NUM_THREADS": setting.threads, "NUM_STREAMS": "1"}
    model = core.compile_model(core.read_model(setting.converted / "model.onnx"), "CPU", hints)
    infer = model.create_infer_request().infer
    encode = batched(setting, lambda ids, mask: infer({"input_ids": ids, "attention_mask": mask})[0].astype(np.float32))
    return encode, f"CPU plugin, precision {model.get_property('INFERENCE_PRECISION_HINT')}"


def load_ctranslate2(setting: Setting, precision: str) -> Loaded:
    """CTranslate2's encoder, which takes rows without padding."""
    library: Any = importlib.import_module("ctranslate2")
    folder = str(setting.converted / "ctranslate2")
    encoder = library.Encoder(folder, device="cpu", compute_type=precision, intra_threads=setting.threads)

    def compute(ids: Ids, mask: Ids) -> Vectors:
        rows = [row[:length].tolist() for row, length in zip(ids, mask.sum(axis=1), strict=True)]
        return np.asarray(encoder.forward_batch(rows).last_hidden_state)[:, 0]

    return batched(setting, compute), f"compute type {encoder.compute_type}"


def batched(setting: Setting, compute: Compute, sort: bool = True, one_batch: bool = False) -> Encode:
    """texts -> vectors, from a function of one padded batch: the longest texts first, or as they come."""
    transformers: Any = importlib.import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(setting.folder)

    def encode(texts: Sequence[str]) -> Vectors:
        rows = tokenizer(list(texts), truncation=True, max_length=setting.positions)["input_ids"]
        lengths = np.array([len(row) for row in rows])
        order = np.argsort(-lengths, kind="stable") if sort else np.arange(len(rows))
        size = len(rows) if one_batch else setting.batch
        batches = [order[start : start + size] for start in range(0, len(rows), size)]
        vectors = np.concatenate([compute(*padded([rows[number] for number in batch])) for batch in batches])
        result = np.empty_like(vectors)
        result[order] = vectors
        return result

    return encode


def padded(rows: list[list[int]]) -> tuple[Ids, Ids]:
    """Ids and mask, (B, S); padding has the id 0, [PAD] in the vocabularies that are measured."""
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.zeros(mask.shape, np.int64)
    ids[mask] = np.concatenate(rows)
    return ids, mask.astype(np.int64)


class FirstVectors(nn.ModuleList):
    """A model inside; ids and mask -> the [CLS] vectors, so that a runtime copies nothing else."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(B,S), (B,S) -> (B,D)."""
        first: Tensor = self[0](input_ids=input_ids, attention_mask=attention_mask).last_hidden_state[:, 0]
        return first


def to_onnx(folder: Path, out: Path) -> None:
    """transformers' model as model.onnx, by torch's exporter that traces; B and S stay open."""
    transformers: Any = importlib.import_module("transformers")
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    ids, names = torch.ones(2, 7, dtype=torch.long), ["input_ids", "attention_mask"]
    options: Any = {"input_names": names, "output_names": ["vectors"], "dynamo": False, "opset_version": 17}
    axes = {name: {0: "B", 1: "S"} for name in names} | {"vectors": {0: "B"}}
    torch.onnx.export(FirstVectors([model]).eval(), (ids, ids), out / "model.onnx", dynamic_axes=axes, **options)


def to_onnx_int8(folder: Path, out: Path) -> None:
    """model.onnx with the weights of its products as int8, activations quantized as they come."""
    quantization: Any = importlib.import_module("onnxruntime.quantization")
    logging.getLogger().setLevel(logging.ERROR)
    quantization.quantize_dynamic(out / "model.onnx", out / "model-int8.onnx", weight_type=quantization.QuantType.QInt8)


def to_ctranslate2(folder: Path, out: Path) -> None:
    """The folder that CTranslate2's own converter writes."""
    converters: Any = importlib.import_module("ctranslate2.converters")
    converters.TransformersConverter(str(folder)).convert(str(out / "ctranslate2"), force=True)


# Checkpoints of published sizes: the relative, and what its config has otherwise than transformers' default. The
# tokenizer is that of another checkpoint, which the ids of special tokens follow.
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
}


def write_shape(name: str, folder: Path, vocabulary_from: Path) -> None:
    """One of SHAPES with freshly drawn weights, by transformers, and the tokenizer of another checkpoint."""
    from minibert.text.tokenizer import load_tokenizer  # here: other runtimes do not carry its libraries

    transformers: Any = importlib.import_module("transformers")
    torch.manual_seed(0)  # in a process of its own
    relative, sizes = SHAPES[name]
    config = getattr(transformers, f"{relative}Config")(**sizes)
    getattr(transformers, f"{relative}Model")(config).save_pretrained(folder)
    load_tokenizer(vocabulary_from).save(folder)


CONVERSIONS = {"onnx": to_onnx, "onnx-int8": to_onnx_int8, "ctranslate2": to_ctranslate2}  # in this order
EAGER = partial(load_transformers, how="eager")
UNSORTED = partial(load_transformers, sort=False)
TUTORIAL = partial(load_transformers, sort=False, one_batch=True)
COMPILED = partial(load_transformers, compiled=True)
REFERENCE = Backend("reference", "transformers, eager, float32", "float32", EAGER)
OURS = tuple(
    Backend(f"minibert-{precision}", "minibert", precision, load_ours, "minibert")
    for precision in ("float32", "bfloat16", "float16")
)
SENTENCE = Backend("sentence-transformers", "sentence-transformers", "float32", load_sentence, "sentence_transformers")
ON_CPU = (
    *OURS[:2],
    Backend("tutorial", "the tutorial: one padded batch", "float32", TUTORIAL, large=True),
    Backend("transformers", "transformers, as they come", "float32", UNSORTED),
    Backend("transformers-sorted", "transformers, sorted", "float32", load_transformers),
    SENTENCE,
    Backend("onnxruntime", "ONNX Runtime", "float32", load_onnxruntime, "onnxruntime", "onnx"),
    Backend("openvino", "OpenVINO", "float32", load_openvino, "openvino", "onnx"),
    Backend("ctranslate2", "CTranslate2", "float32", load_ctranslate2, "ctranslate2", "ctranslate2"),
    Backend("transformers-bfloat16", "transformers, sorted", "bfloat16", load_transformers),
    Backend("openvino-bfloat16", "OpenVINO", "bfloat16", load_openvino, "openvino", "onnx"),
    Backend("minibert-int8", "minibert", "int8", load_ours, "minibert"),
    Backend("onnxruntime-int8", "ONNX Runtime, dynamic", "int8", load_onnxruntime, "onnxruntime", "onnx-int8"),
    Backend("ctranslate2-int8", "CTranslate2", "int8", load_ctranslate2, "ctranslate2", "ctranslate2"),
)
ON_CUDA = (
    *OURS,
    *(
        Backend(f"transformers-{attention}-{precision}", f"transformers, {attention}, sorted", precision, load)
        for precision in ("float32", "bfloat16", "float16")
        for attention, load in (("sdpa", load_transformers), ("eager", EAGER))
    ),
    Backend("transformers-compiled-bfloat16", "transformers, torch.compile", "bfloat16", COMPILED),
    SENTENCE,
)


def backends_for(device: str, quick: bool = False) -> list[Backend]:
    """Who takes part on this device; a quick run on the CPU takes minibert and transformers alone."""
    if torch.device(device).type != "cpu":
        return list(ON_CUDA)
    return [one for one in ON_CPU if not quick or (one.package in ("minibert", "transformers") and not one.large)]
