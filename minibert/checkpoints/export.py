"""A model as an ONNX file, which other runtimes read: onnxruntime, OpenVINO, a browser.

The file has transformers' names for what goes in, and takes any number of texts of any length. Beside it stands a text
that says what goes in and what comes out.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from minibert.checkpoints.load import load
from minibert.extras import install_hint
from minibert.files import atomic_write, check_output, write_text_atomically
from minibert.heads import Head, MultipleChoice
from minibert.model import Encoder

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
LARGEST = 2**31  # bytes of one ONNX file, the limit of its format
SHAPES = ((1, 2), (3, 17), (2, 64), (5, 9))  # texts, tokens: what is tried with the finished file
MEANING = {
    "input_ids": "ids of [CLS] text [SEP], or [CLS] first [SEP] second [SEP]; short rows are filled up with {pad}",
    "attention_mask": "1 for a token, 0 for padding",
    "token_type_ids": "0 for the first text and its special tokens, 1 for the second text and the last [SEP]",
}


@dataclass(frozen=True)
class Exported:
    """An ONNX file that was written: what goes in, what comes out, and how far it is from the model."""

    out: Path
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]  # at which it was compared
    difference: float  # the largest, over all of them


class Positional(nn.Module):
    """The model with positional inputs and a tuple of tensors as its output, which is what a graph has."""

    def __init__(self, model: Encoder | Head) -> None:
        super().__init__()
        self.model = model
        self.segments = bool(model.config.type_vocab_size)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of what forward takes."""
        return ("input_ids", "attention_mask", *(["token_type_ids"] if self.segments else []))

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """All fields of the model's output that are there, in their order."""
        out = self.model(input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        return tuple(out[name] for name in out.keys())  # noqa: SIM118  # an output is no dict


def export(name: str | Path, out: str | Path, *, head: str | None = None, overwrite: bool = False) -> Exported:
    """Write the checkpoint, or its model with a task head, as an ONNX file in float32, and compare the two.

    out: a name that ends in .onnx; a .txt of the same name says what goes in. overwrite: replace both, where minibert
    wrote them. Raises ImportError without the extra onnx, ValueError for another name, for a file that is there or a
    model beyond 2 GB, and what `load` raises; RuntimeError where the finished file does not compute what the model
    computes.
    """
    out = Path(out)
    check_request(out, overwrite, name)
    model = load(name, head=head)
    bytes_needed = sum(parameter.numel() * 4 for parameter in model.parameters())
    if bytes_needed > LARGEST:
        raise ValueError(f"{name} has {bytes_needed:,} bytes of weights, and an ONNX file holds at most {LARGEST:,}")
    wrapped = Positional(model)
    example = inputs_of(model, (2, 7))[: len(wrapped.inputs)]
    outputs = tuple(model(example[0], attention_mask=example[1]).keys())
    with quiet(), atomic_write(out) as temporary:
        program: Any = torch.onnx.export(
            wrapped,
            example,
            dynamo=True,
            input_names=list(wrapped.inputs),
            output_names=list(outputs),
            dynamic_shapes=[dynamic(model) for _ in example],
            verbose=False,
        )
        program.model.doc_string = describe(str(name), model, wrapped.inputs, outputs)
        program.save(str(temporary))
        difference = compare(wrapped, temporary)
        if not difference <= 3e-5:
            raise RuntimeError(
                f"the ONNX file differs from the model by {difference:.1g}, more than 3e-05: not written"
            )
    write_text_atomically(out.with_suffix(".txt"), program.model.doc_string)
    return Exported(out, wrapped.inputs, outputs, tuple(shape_of(model, shape) for shape in SHAPES), difference)


def check_request(out: Path, overwrite: bool, name: str | Path) -> None:
    """Raise before anything is loaded."""
    absent = [package for package in PACKAGES if importlib.util.find_spec(package) is None]
    if absent:
        raise ImportError(f"exporting needs {', '.join(absent)}: {install_hint('onnx')}")
    if out.suffix != ".onnx" or out.is_dir():
        raise ValueError(f"out is {out}; it must be a file that ends in .onnx")
    if not out.absolute().parent.is_dir():
        raise FileNotFoundError(f"out is {out}, and there is no folder {out.absolute().parent}")
    for file in (out, out.with_suffix(".txt")):
        check_output(file, overwrite, apart=[name])


def dynamic(model: Encoder | Head) -> dict[int, Any]:
    """Every axis of an input may have any size, tokens up to the positions that the model has."""
    tokens = Dim("tokens", max=model.config.max_tokens)
    names = ("batch", "choices") if isinstance(model, MultipleChoice) else ("batch",)
    return {axis: Dim(name) for axis, name in enumerate(names)} | {len(names): tokens}


def shape_of(model: Encoder | Head, shape: tuple[int, int]) -> tuple[int, ...]:
    """Texts and tokens as this model takes them: of multiple choice, three choices a question."""
    texts, tokens = shape[0], min(shape[1], model.config.max_tokens)
    return (texts, 3, tokens) if isinstance(model, MultipleChoice) else (texts, tokens)


def inputs_of(model: Encoder | Head, shape: tuple[int, int]) -> tuple[Tensor, ...]:
    """Ids, mask and segments of random texts, the last of them padded by half."""
    size = shape_of(model, shape)
    ids = torch.randint(0, model.config.vocab_size, size, generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[-1, ..., (size[-1] + 1) // 2 :] = 0
    segments = torch.zeros_like(ids)
    segments[..., size[-1] // 2 :] = min(1, max(0, model.config.type_vocab_size - 1))
    return ids, mask, segments


def compare(wrapped: Positional, file: Path) -> float:
    """The largest difference between the model and the file over SHAPES, by onnxruntime on the CPU."""
    runtime: Any = importlib.import_module("onnxruntime")
    session = runtime.InferenceSession(file.read_bytes(), providers=["CPUExecutionProvider"])
    largest = 0.0
    for shape in SHAPES:
        given = inputs_of(wrapped.model, shape)[: len(wrapped.inputs)]
        found = session.run(None, {name: tensor.numpy() for name, tensor in zip(wrapped.inputs, given, strict=True)})
        with torch.inference_mode():
            expected = wrapped(*given)
        differences = [float((torch.from_numpy(x) - y).abs().max()) for x, y in zip(found, expected, strict=True)]
        largest = max(largest, *differences)
    return largest


def describe(name: str, model: Encoder | Head, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> str:
    """What goes into the file and what comes out, in words."""
    config = model.config
    axes = "batch, choices, tokens" if isinstance(model, MultipleChoice) else "batch, tokens"
    lines = [f"{config.family.title} {name}, {model.name if isinstance(model, Head) else 'encoder'}, float32", ""]
    lines += [f"in   {key}: int64 ({axes}): {MEANING[key].format(pad=config.pad_token_id)}" for key in inputs]
    with torch.inference_mode():
        small, large = (Positional(model)(*inputs_of(model, shape)[: len(inputs)]) for shape in ((2, 1), (5, 7)))
    for key, one, other in zip(outputs, small, large, strict=True):
        sizes = zip(one.shape, other.shape, strict=True)
        shape = ", ".join({(2, 5): "batch", (1, 7): "tokens"}.get(pair, str(pair[0])) for pair in sizes)
        lines.append(f"out  {key}: float32 ({shape})")
    most, V = config.max_tokens, config.vocab_size
    lines += ["", f"At most {most} tokens a row; ids are 0 to {V - 1}, made by the checkpoint's own tokenizer."]
    if isinstance(model, Head) and len(config.id2label) > 1 and model.has_labels:
        lines.append("labels: " + ", ".join(f"{number} {label}" for number, label in config.id2label.items()))
    return "\n".join(lines) + "\n"


@contextmanager
def quiet() -> Iterator[None]:
    """Silence what the exporter says of packages that are not needed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
