"""The page that computes: a checkpoint's weights and tokenizer, packed for bert.js, and what the page refuses.

    bfloat16  matrices with 8 bits of precision, 2 bytes a number
    int8      each row of a matrix as whole numbers, -127 to 127, times its largest number / 127: 1 byte a number
    float32   as they are

Biases and norms are float32. Each tensor is one line of base64, little-endian.
"""

import base64
import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minibert.checkpoints.checkpoint import Checkpoint
from minibert.families.bert import BERT
from minibert.families.distilbert import DISTILBERT
from minibert.heads import MaskedLM
from minibert.model import Encoder
from minibert.text import wordpiece
from minibert.text.tokenizer import Tokenizer
from minibert.tracing.journey import Journey
from minibert.utils.inference import inference

FORMATS = ("bfloat16", "int8", "float32")
ACTIVATIONS = ("gelu", "gelu_new", "relu")  # that bert.js has
LIMIT = 200_000_000  # bytes of the weights of a page


@dataclass(frozen=True)
class Live:
    """What a page needs to compute by itself."""

    settings: dict[str, Any]  # c in bert.js
    weights: str  # a line for each tensor of settings["tensors"]
    bytes: int  # of the weights, before base64
    format: str
    has_head: bool
    error: float  # the largest difference that the rounded weights make to the last vectors of the opening text
    cosine: float  # the smallest, of these vectors with the exact ones


def check_live(checkpoint: Checkpoint) -> None:
    """Raise ValueError for a checkpoint that bert.js does not compute, named by its family and what is unlike BERT."""
    config = checkpoint.config
    way = "leave out --live: `minibert trace` shows it"
    if config.family.name not in (BERT.name, DISTILBERT.name):
        raise ValueError(
            f"{checkpoint} is of the {config.family.title} family, and the live page computes only "
            f"{BERT.title} and {DISTILBERT.title}; {way}"
        )
    if config.hidden_act not in ACTIVATIONS:
        raise ValueError(f"hidden_act is {config.hidden_act}; the live page has {', '.join(ACTIVATIONS)}; {way}")


def live(model: Encoder | MaskedLM, tokenizer: Tokenizer, journey: Journey, format: str) -> Live:
    """Return a model and its tokenizer for the page; journey: of the opening text.

    Raises ValueError for weights that are too large for a page, and for another tokenizer than WordPiece.
    """
    # By the names that bert.js uses; a decoder that shares the token embedding is not repeated.
    weights = {name.removeprefix("encoder."): x.detach().float().cpu() for name, x in model.state_dict().items()}
    rounded = {name: packed_weights(x, format) for name, x in weights.items()}
    size = sum(len(bytes_of) for bytes_of, _ in rounded.values())
    if size > LIMIT:
        raise ValueError(
            f"the weights have {size / 1e6:.0f} MB in {format}, and a page at most {LIMIT / 1e6:.0f}; use "
            "--weights int8 if half would fit, a smaller model, or `minibert trace` without --live"
        )
    settings = tokenizer_settings(tokenizer) | sizes_of(model)
    settings["tensors"] = [[name, list(x.shape), format if x.dim() > 1 else "float32"] for name, x in weights.items()]
    lines = (base64.b64encode(bytes_of).decode() for bytes_of, _ in rounded.values())
    states = opening_states(model, {name: x for name, (_, x) in rounded.items()}, journey)
    right = journey.hidden_states[-1]
    return Live(
        settings=settings,
        weights="\n".join(lines),
        bytes=size,
        format=format,
        has_head=isinstance(model, MaskedLM),
        error=float((states - right).abs().max()),
        cosine=float(torch.cosine_similarity(states, right, dim=-1).min()),
    )


def packed_weights(x: Tensor, format: str) -> tuple[bytes, Tensor]:
    """Return a tensor's bytes and its numbers after rounding; vectors are float32 in every format."""
    if x.dim() < 2 or format == "float32":
        return x.numpy().astype("<f4").tobytes(), x
    if format == "bfloat16":
        near = x.bfloat16()
        return near.view(torch.int16).numpy().astype("<i2").tobytes(), near.float()
    scale = x.abs().amax(dim=1, keepdim=True).clamp(min=1e-30) / 127  # (rows,1)
    whole = (x / scale).round()
    return scale.numpy().astype("<f4").tobytes() + whole.to(torch.int8).numpy().tobytes(), whole * scale


def opening_states(model: Encoder | MaskedLM, weights: dict[str, Tensor], journey: Journey) -> Tensor:
    """Return the last vectors of the opening text, (S,D), as a model of these weights computes them."""
    twin: Any = copy.deepcopy(model)
    twin.load_state_dict({name: weights[name.removeprefix("encoder.")] for name in model.state_dict()})
    encoder: Encoder = getattr(twin, "encoder", twin)
    with inference(encoder):
        out = encoder(torch.tensor([journey.ids]), token_type_ids=torch.tensor([journey.segments]))
    return out.last_hidden_state[0]  # type: ignore[no-any-return]  # a Tensor


def sizes_of(model: Encoder | MaskedLM) -> dict[str, Any]:
    """Return the sizes and settings of the computation."""
    config = model.config
    return {
        "D": config.hidden_size,
        "H": config.num_attention_heads,
        "L": len(config.architecture.order),
        "V": config.vocab_size,
        "eps": config.layer_norm_eps,
        "activation": config.hidden_act,
    }


def tokenizer_settings(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the vocabulary and the rules of a WordPiece tokenizer. Raises ValueError for any other."""
    definition = tokenizer._definition
    kinds = [(definition.get(part) or {}).get("type") for part in ("model", "normalizer", "pre_tokenizer")]
    added = definition["added_tokens"]
    kinds += [flag for flag in ("lstrip", "rstrip", "single_word", "normalized") if any(t.get(flag) for t in added)]
    if kinds != ["WordPiece", "BertNormalizer", "BertPreTokenizer"]:
        raise ValueError(
            f"the tokenizer is {', '.join(map(str, kinds))}; the live page has BERT's WordPiece; leave out --live"
        )
    rules = definition["normalizer"]
    accents = rules.get("strip_accents")
    vocabulary = [tokenizer.id_to_token(id) or "" for id in range(max(tokenizer.vocab.values()) + 1)]
    return {
        "vocabulary": vocabulary,
        "clean_text": rules.get("clean_text", True),
        "split_chinese": rules.get("handle_chinese_chars", True),
        "lowercase": rules.get("lowercase", True),
        "strip_accents": rules.get("lowercase", True) if accents is None else accents,
        "special_tokens": [token["content"] for token in added],
        "cls": tokenizer.id_to_token(tokenizer.cls_id),
        "sep": tokenizer.id_to_token(tokenizer.sep_id),
        "unk": tokenizer.id_to_token(tokenizer.unk_id),
        "mask": tokenizer.id_to_token(tokenizer.mask_id),
        "segment": tokenizer.template.segment,
        "max_length": tokenizer.max_length,
        "max_word_length": definition["model"].get("max_input_chars_per_word", wordpiece.MAX_WORD_LENGTH),
        "truncates_left": tokenizer.truncates_left,
        "chinese": [[block[0], block[-1]] for block in wordpiece.CHINESE],
        "after_unicode_8": [[block[0], block[-1]] for block in wordpiece.AFTER_UNICODE_8],
        "category_in_unicode_8": wordpiece.CATEGORY_IN_UNICODE_8,
    }
