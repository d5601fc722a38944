"""What a port is compared with: inputs, a checkpoint's outputs for them, and the same with a known mistake."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from minibert.checking.diagnosis import Run, mistakes_in, reached
from minibert.checking.mistakes import Functions, functions_with, text_of
from minibert.checking.numbers import INPUTS, OUTPUTS, Bounds, Outputs, apart, bounds, converted
from minibert.checking.relatives import known_changes
from minibert.checkpoints.checkpoint import Checkpoint
from minibert.checkpoints.load import load, name_in_file
from minibert.families.bert import BERT
from minibert.model import FeedForward
from minibert.text.tokenizer import load_tokenizer
from minibert.utils.inference import inference

TEXTS = ("He opened the door, and went in.", "She was very unhappy.", "No.", "Where is he?", "")
PAIRS = (None, None, None, "He went in.", None)


@dataclass(frozen=True)
class Expected:
    """A checkpoint, the inputs on which a port is tried, and the right outputs."""

    checkpoint: Checkpoint

    @cached_property
    def inputs(self) -> dict[str, Tensor]:
        """Texts and a pair, padded on the right, (B,S) each; the last text is empty.

        If layers attend within windows, there is one more, which is longer than they are.
        """
        tokenizer = load_tokenizer(self.checkpoint)
        config = self.checkpoint.config
        window = max((size or 0 for size in config.architecture.windows), default=0)
        most = min(window + 8, config.max_position_embeddings)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a small vocabulary cuts these texts, or does not know them
            rows = [tokenizer([a], None if b is None else [b]) for a, b in zip(TEXTS, PAIRS, strict=True)]
            if window:
                rows.append(tokenizer([" ".join(TEXTS[:1] * window)], max_length=most))
        longest = max(row["input_ids"].shape[1] for row in rows)
        pads = {"input_ids": tokenizer.pad_id, "attention_mask": 0, "token_type_ids": 0}
        return {
            name: torch.cat(
                [nn.functional.pad(row[name], (0, longest - row[name].shape[1]), value=pads[name]) for row in rows]
            )
            for name in INPUTS
        }

    @cached_property
    def head(self) -> str | None:
        """The task head whose logits are compared."""
        return "masked-lm" if self.checkpoint.has_head("masked-lm") else self.checkpoint.head

    @cached_property
    def model(self) -> Any:
        """Minibert's model in float32."""
        return load(self.checkpoint, head=self.head)

    def outputs_in(self, dtype: torch.dtype, changes: tuple[Any, ...] = ()) -> Outputs:
        """Return the outputs of minibert's model, computed in a dtype; changes: made on it before."""
        config = self.model.config  # which no change concerns: shared by all copies
        model = copy.deepcopy(self.model, {id(config): config}).to(dtype)
        for change in changes:
            change.make(model)
        with inference(model):
            found = model(**self.inputs, output_hidden_states=True, output_attentions=True)
            encoder = getattr(model, "encoder", model)
            last = found.hidden_states[-1]
            named = {"hidden_states": torch.stack(found.hidden_states), "attentions": torch.stack(found.attentions)}
            named["last_hidden_state"] = last
            if encoder.pooler is not None:
                named["pooler_output"] = encoder.pooler(last)
            if self.head:
                named["logits"] = found.logits
        return named

    @cached_property
    def right(self) -> Outputs:
        """The outputs in float32, by their names in OUTPUTS."""
        return self.outputs_in(torch.float32)

    @cached_property
    def exact(self) -> Outputs:
        """The same in float64."""
        return self.outputs_in(torch.float64)

    def limits(self, dtype: torch.dtype) -> Bounds:
        """Return how much each output of a port that computes in this dtype may differ, by the names of `in_parts`."""
        return bounds(self.parts, self.others(dtype), dtype)

    @cached_property
    def parts(self) -> Outputs:
        """The right outputs in parts."""
        return in_parts(self.right)

    def others(self, dtype: torch.dtype) -> list[Outputs]:
        """Return the right outputs, in parts, as ways of computing in another precision give them.

        In a type of less precision these are minibert's own, which rounds little, and the reference's, which rounds
        after each operation.
        """
        if dtype == torch.float32:
            return [in_parts(self.exact)]
        model = {name: x.float() for name, x in in_parts(self.outputs_in(dtype)).items()}
        if not self.is_computable:
            return [{name: x + (model[name] - x) * 2 for name, x in self.parts.items()}]  # with one way only
        return [model, model | self.reference(functions_with(()), dtype)]

    @cached_property
    def is_computable(self) -> bool:
        """Whether the reference computes this checkpoint's outputs."""
        if self.weights is None:
            return False
        limits = bounds(self.parts, self.others(torch.float32))
        own = self.visible(self.reference(functions_with(())))
        right = self.visible(self.parts)
        return all(apart(x, right[name], limits[name]) <= 1.0 for name, x in own.items())

    @cached_property
    def weights(self) -> dict[str, Tensor] | None:
        """The weights by BERT's official names, for the reference; None for a relative that it cannot compute."""
        head = self.head if self.head == "masked-lm" else None
        model = self.model if head else getattr(self.model, "encoder", self.model)
        encoder = getattr(model, "encoder", model)
        config = encoder.config
        architecture = config.architecture
        fits = (
            architecture.feed_forward is FeedForward
            and not architecture.norm_first
            and config.hidden_act == "gelu"
            and architecture.embedding_size == config.hidden_size
        )
        if not fits:
            return None
        of_head = BERT.heads.get(head or "", {})
        found = {name_in_file(BERT, ours, of_head): x for ours, x in model.state_dict().items()}
        if head:
            found["cls.predictions.bias"] = found.pop("cls.predictions.decoder.bias")  # the name in official files
        found.setdefault("embeddings.token_type_embeddings.weight", torch.zeros(2, config.hidden_size))
        positions = "embeddings.position_embeddings.weight"
        # Position 0 of the reference is the first that is used; those before it are the last.
        found[positions] = found[positions].roll(-architecture.first_position, 0)
        found["first_position"] = torch.tensor(architecture.first_position)
        found["heads"] = torch.tensor(config.num_attention_heads)
        return found

    def reference(
        self, functions: Functions, dtype: torch.dtype = torch.float32, names: Iterable[str] | None = None
    ) -> Outputs:
        """Return the outputs of these functions of the reference, in parts; names: only what these need is computed."""
        wanted = self.parts if names is None else names
        layers = max(layers_for(name) for name in wanted)
        kinds = {name.partition(".")[0] for name in wanted}
        end = f"encoder.layer.{layers}.output.dense.weight"  # where the reference stops counting layers
        weights = {name: x for name, x in converted(self.weights, dtype).items() if name != end}
        ids, mask, segments = (self.inputs[name] for name in INPUTS)
        with torch.no_grad():
            states, attentions = functions["encode"](ids, segments, mask, weights, int(weights["heads"]), self.eps)
            named: Outputs = {"hidden_states": states, "attentions": attentions, "last_hidden_state": states[-1]}
            if "pooler_output" in kinds and "pooler.dense.weight" in weights:
                pooler = weights["pooler.dense.weight"], weights["pooler.dense.bias"]
                named["pooler_output"] = functions["pooler"](states[-1], *pooler)
            if "logits" in kinds and "cls.predictions.bias" in weights:
                named["logits"] = functions["predict_tokens"](states[-1], weights, self.eps)
        return {name: x if dtype == torch.float64 else x.float() for name, x in in_parts(named).items()}

    @property
    def eps(self) -> float:
        """The eps of config.json."""
        return float(self.checkpoint.config.layer_norm_eps)

    def candidates(self, right: Outputs) -> list[Any]:
        """Return the known mistakes that may explain these outputs."""
        return mistakes_in(reached_by(right)) if self.is_computable else known_changes(self.model)

    def said(self, mistakes: tuple[Any, ...]) -> str:
        """Return what is wrong, with the values of this checkpoint."""
        first = int(self.weights["first_position"]) if self.weights else 0
        return " and ".join(text_of(mistake, self.eps, first) for mistake in mistakes)

    def run(self, right: Outputs) -> Run:
        """Return what computes these outputs with mistakes: by the reference, or else by minibert's model."""

        def run(mistakes: tuple[Any, ...], dtype: torch.dtype) -> Outputs:
            if self.is_computable:
                outputs = self.reference(functions_with(mistakes), dtype, right)
            else:
                changed = in_parts(self.outputs_in(dtype, mistakes))
                outputs = {name: x if dtype == torch.float64 else x.float() for name, x in changed.items()}
            return self.visible({name: outputs[name] for name in right if name in outputs})

        return run

    def visible(self, outputs: Outputs) -> Outputs:
        """Return the outputs with 0 at padding."""
        padding = self.inputs["attention_mask"] == 0
        of_dims = {3: padding[:, :, None], 4: padding[:, None, :, None]}  # (B,S,D) and (B,H,S,S)
        return {
            name: x.masked_fill(of_dims[x.dim()], 0.0) if x.dim() in of_dims and len(x) == len(padding) else x
            for name, x in outputs.items()
        }


def in_parts(outputs: Mapping[str, Tensor]) -> Outputs:
    """Return hidden states and attentions layer by layer, hidden_states.0, attentions.0, hidden_states.1, ..."""
    found = {}
    states, attentions = (outputs.get(name, ()) for name in ("hidden_states", "attentions"))
    for number in range(max(len(states), len(attentions) + 1)):
        for name, parts, at in (("attentions", attentions, number - 1), ("hidden_states", states, number)):
            if 0 <= at < len(parts):
                found[f"{name}.{at}"] = parts[at]
    return found | {name: outputs[name] for name in OUTPUTS[2:] if name in outputs}


def stage_of(name: str) -> tuple[str, str, int | None]:
    """Return the function of the reference that makes an output, the title of its stage, and the layer."""
    kind, _, number = name.partition(".")
    if kind == "hidden_states":
        return ("embed", "embeddings", None) if number == "0" else ("layer", "layer", int(number) - 1)
    if kind == "attentions":
        return "layer", "attention", int(number)
    return {
        "last_hidden_state": ("encode", "encoder", None),
        "pooler_output": ("pooler", "pooler", None),
        "logits": ("predict_tokens", "logits", None),
    }[kind]


def layers_for(name: str) -> float:
    """Return how many layers an output needs."""
    kind, _, number = name.partition(".")
    return int(number or 0) + (kind == "attentions") if kind in OUTPUTS[:2] else math.inf


def reached_by(names: Iterable[str]) -> tuple[str, ...]:
    """Return the functions of the reference that make these outputs, the likeliest last."""
    return tuple(dict.fromkeys(one for name in names for one in ("encode", *reached(stage_of(name)[0]))))
