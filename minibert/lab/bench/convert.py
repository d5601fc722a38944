"""Checkpoints for the benchmark: random weights in DistilBERT's shape, and what other runtimes read."""

from __future__ import annotations

import importlib
import logging
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")


def write_distilbert(folder: Path, vocabulary_from: Path) -> None:
    """DistilBERT's shape with freshly drawn weights, by transformers, and the tokenizer of another checkpoint."""
    transformers: Any = importlib.import_module("transformers")
    torch.manual_seed(0)  # in a process of its own
    transformers.DistilBertModel(transformers.DistilBertConfig()).save_pretrained(folder)
    for name in TOKENIZER_FILES:
        if (vocabulary_from / name).exists():
            shutil.copy(vocabulary_from / name, folder / name)


class FirstVectors(nn.Module):
    """ids and mask -> the [CLS] vectors, so that a runtime copies nothing else."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(B,S), (B,S) -> (B,D)."""
        first: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state[:, 0]
        return first


def to_onnx(folder: Path, out: Path) -> None:
    """transformers' model as model.onnx, by torch's exporter that traces; B and S stay open."""
    transformers: Any = importlib.import_module("transformers")
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    ids = torch.ones(2, 7, dtype=torch.long)
    torch.onnx.export(
        FirstVectors(model).eval(),
        (ids, ids),
        str(out / "model.onnx"),
        dynamo=False,
        opset_version=17,
        input_names=["input_ids", "attention_mask"],
        output_names=["vectors"],
        dynamic_axes={"input_ids": {0: "B", 1: "S"}, "attention_mask": {0: "B", 1: "S"}, "vectors": {0: "B"}},
    )


def to_onnx_int8(folder: Path, out: Path) -> None:
    """model.onnx with the weights of its products as int8, activations quantized as they come."""
    quantization: Any = importlib.import_module("onnxruntime.quantization")
    logging.getLogger().setLevel(logging.ERROR)
    quantization.quantize_dynamic(out / "model.onnx", out / "model-int8.onnx", weight_type=quantization.QuantType.QInt8)


def to_ctranslate2(folder: Path, out: Path) -> None:
    """The folder that CTranslate2's own converter writes."""
    converters: Any = importlib.import_module("ctranslate2.converters")
    converters.TransformersConverter(str(folder)).convert(str(out / "ctranslate2"), force=True)


CONVERSIONS = {"onnx": to_onnx, "onnx-int8": to_onnx_int8, "ctranslate2": to_ctranslate2}  # in this order
