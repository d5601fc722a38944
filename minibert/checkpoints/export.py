"""Export a model as an ONNX file, which other runtimes read: onnxruntime, OpenVINO, a browser.

Inputs and outputs are named as in transformers; inputs may have any number of texts of any length up to the model's
positions, with padding on the right.
"""

import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from minibert.checkpoints.checkpoint import Checkpoint
from minibert.checkpoints.load import load
from minibert.heads import Head, MultipleChoice, QuestionAnswering, SequenceClassification, TokenClassification
from minibert.model import Encoder
from minibert.utils.files import AnyPath, atomic_write, user_path
from minibert.utils.outputs import check_file
from minibert.utils.printing import require

SHAPES = ((1, 2), (3, 17), (2, 64), (5, 9))  # texts, tokens: inputs at which the file is compared with the model
ENCODER = "encoder"  # the `head` of a model without one
FINE_TUNED = {one.name for one in (SequenceClassification, TokenClassification, QuestionAnswering, MultipleChoice)}
BOUND = 3e-5  # the largest difference between them


class Positional(nn.Module):
    """The model with positional inputs and a tuple of tensors as output, as a graph requires."""

    def __init__(self, model: Encoder | Head) -> None:
        super().__init__()
        self.model = model
        # RoBERTa's tokenizers give no segments: every token is in segment 0, as in the model without that input.
        segments = model.config.type_vocab_size and model.config.family.pairs_in_segments
        self.inputs = ("input_ids", "attention_mask", "token_type_ids")[: 3 if segments else 2]

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Return the fields of the model's output that are not None, in their order."""
        return tuple(self.model(input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)[:])


def export(name: AnyPath, out: AnyPath, *, head: str | None = None, overwrite: bool = False) -> dict[str, Any]:
    """Write the checkpoint, or its model with a task head, as an ONNX file in float32, and compare the two.

    head: None: the task head of fine-tuning that the checkpoint has, else "encoder", the model without a head.
    out: a name with the suffix .onnx. overwrite: replace a file that minibert wrote. Returns "out", the names of
    "inputs" and "outputs", and the largest "difference" of an output from the model's. Raises ImportError without the
    extra onnx, ValueError for another suffix, for a file that exists, and what `load` raises; RuntimeError if the
    file does not compute what the model computes.
    """
    out = user_path(out)
    require("onnx", "onnx", "onnxruntime", "onnxscript")
    check_file(out, overwrite, endings=(".onnx",), apart=[name])
    checkpoint = Checkpoint.open(name)
    if head is None:
        head = checkpoint.head if checkpoint.head in FINE_TUNED else ENCODER
    model = load(checkpoint, head=None if head == ENCODER else head)
    wrapped = Positional(model)
    example = inputs_of(model, (2, 7))
    # Every axis of an input may have any size, tokens up to the number of positions.
    names = ("batch", "choices") if isinstance(model, MultipleChoice) else ("batch",)
    axes = {axis: Dim(name) for axis, name in enumerate(names)} | {
        len(names): Dim("tokens", max=model.config.max_tokens)
    }
    outputs = tuple(model(example[0], attention_mask=example[1]).keys())
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it reports packages that are not needed
    with warnings.catch_warnings(action="ignore"), atomic_write(out) as temporary:
        program: Any = torch.onnx.export(
            wrapped,
            example,
            dynamo=True,
            input_names=list(wrapped.inputs),
            output_names=list(outputs),
            dynamic_shapes=[axes for _ in example],
            verbose=False,
        )
        program.model.producer_name = "minibert"
        program.save(str(temporary))
        difference = largest_difference(wrapped, temporary)
        if not difference <= BOUND:
            raise RuntimeError(
                f"the exported ONNX model differs from PyTorch by {difference:.1g} (limit {BOUND:g}), so the file was "
                "deleted"
            )
    return {"out": out, "inputs": wrapped.inputs, "outputs": outputs, "difference": difference}


def inputs_of(model: Encoder | Head, shape: tuple[int, int]) -> tuple[Tensor, ...]:
    """Return ids, mask and, if the model reads them, segments of random texts; half of the last is padding.

    shape: texts and tokens; a multiple-choice model gets three choices for each text.
    """
    texts = shape[0]
    tokens = min(shape[1], model.config.max_tokens)
    size = (texts, 3, tokens) if isinstance(model, MultipleChoice) else (texts, tokens)
    ids = torch.randint(0, model.config.vocab_size, size, generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[-1, ..., (tokens + 1) // 2 :] = 0
    segments = torch.zeros_like(ids)
    segments[..., tokens // 2 :] = min(1, max(0, model.config.type_vocab_size - 1))
    return (ids, mask, segments)[: len(Positional(model).inputs)]


@torch.inference_mode()
def largest_difference(wrapped: Positional, file: Path) -> float:
    """Return the largest difference between the model and the file over SHAPES, by onnxruntime on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(file.read_bytes(), providers=["CPUExecutionProvider"])
    largest = 0.0
    for shape in SHAPES:
        given = inputs_of(wrapped.model, shape)
        outputs = session.run(None, {name: tensor.numpy() for name, tensor in zip(wrapped.inputs, given, strict=True)})
        pairs = zip(outputs, wrapped(*given), strict=True)
        largest = max(largest, *(float((torch.from_numpy(x) - y).abs().max()) for x, y in pairs))
    return largest
