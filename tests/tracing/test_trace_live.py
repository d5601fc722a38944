"""The page that computes, in a real browser: bert.js is right by its numbers, and everything can be used."""

import random
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import HARD_TEXTS
from torch.nn.functional import pad

import minibert
from minibert.checking.expected import PAIRS, TEXTS
from minibert.checking.report import Report
from minibert.checkpoints.checkpoint import Checkpoint
from minibert.text.tokenizer import Tokenizer
from minibert.tracing.live import live, tokenizer_settings
from minibert.tracing.page import FOLDER
from minibert.tracing.trace import model_for

pytestmark = pytest.mark.slow
SENTENCES = Path(__file__).parents[2] / "tutorials/sentences.txt"
SOURCE = "\n".join((FOLDER / f"{name}.js").read_text("utf-8") for name in ("bert", "run"))
ENCODE = "([text, pair]) => minibert.encode(text, pair)"


def report_on(encoded: list[dict[str, Any]], model: str | Path) -> Report:
    """What `minibert check` says of what minibert.encode returned for TEXTS and PAIRS."""
    config = Checkpoint.open(model).config
    longest = max(len(one["ids"]) for one in encoded)
    rows = {"hidden_states": [], "attentions": [], "logits": []}
    for one in encoded:
        S = len(one["ids"])
        states = torch.tensor(one["states"]).reshape(-1, S, config.hidden_size)
        probs = torch.tensor(one["attentions"]).reshape(-1, config.num_attention_heads, S, S)
        rows["hidden_states"].append(pad(states, (0, 0, 0, longest - S)))
        rows["attentions"].append(pad(probs, (0, longest - S, 0, longest - S)))
        if one["logits"]:
            rows["logits"].append(pad(torch.tensor(one["logits"]).reshape(S, -1), (0, 0, 0, longest - S)))
    outputs = {name: torch.stack(row, dim=int(name != "logits")) for name, row in rows.items() if row}
    return minibert.check(lambda **inputs: outputs, model)


# -- bert.js is right


@pytest.mark.parametrize("name", ["novels", "minilm", "distil"])
def test_check_says_that_the_numbers_of_the_page_are_right(name, open_live, live_models):
    opened = open_live(name)
    encoded = [opened.evaluate(ENCODE, [text, pair]) for text, pair in zip(TEXTS, PAIRS, strict=True)]
    report = report_on(encoded, live_models[name])
    assert report.ok and "right within rounding" in str(report)


ODD = ["[MASK]", "[SEP]", "東京", "naïve", "ÅNGSTRÖM", "don't", "x" * 101, "😀👍🏽"]
CHARACTERS = [
    chr(code) for code in (*range(0xD800), *range(0xE000, 0x1F000)) if unicodedata.category(chr(code)) != "Cn"
]


def strings(count: int) -> list[str]:
    """Strings of all kinds of characters and of words, the same each time."""
    chance = random.Random(58)
    words = [*SENTENCES.read_text("utf-8").split(), *ODD]
    made = [*HARD_TEXTS]
    while len(made) < count:
        kinds = CHARACTERS[: chance.choice((0x80, 0x250, 0x3000, 0x10000, None))]
        characters = "".join(chance.choices(kinds, k=4))
        made.append(" ".join([*chance.sample(words, 4), characters, chance.choice(words) + characters[:2]]))
    return made[:count]


IDS = """([source, settings, texts]) => {
  const rowOf = new Function(source + "; return rowOf")();
  const c = { ...settings, vocab: new Map(settings.vocabulary.map((token, id) => [token, id])) };
  return texts.map((text) => rowOf(text, null, c).ids);
}"""


@pytest.fixture(scope="module")
def blank(browser: Any) -> Iterator[Any]:
    opened = browser.new_page()
    yield opened
    opened.close()


@pytest.mark.parametrize(
    "rules", [{}, {"lowercase": False}, {"strip_accents": False}, {"lowercase": False, "strip_accents": True}]
)
def test_two_thousand_strings_become_the_ids_of_the_library(rules, blank, minilm):
    own = minibert.load_tokenizer(minilm)
    definition = own._definition | {"normalizer": own._definition["normalizer"] | rules}
    tokenizer = Tokenizer(definition, settings=own._settings)
    texts = strings(2000)
    assert len(set(texts)) > 1990
    ids = blank.evaluate(IDS, [SOURCE, tokenizer_settings(tokenizer), texts])
    wrong = [text for text, mine, right in zip(texts, ids, tokenizer.ids(texts), strict=True) if mine != right]
    assert wrong == []


# -- mistakes in bert.js are found and named

RUN = """([source, settings, weights, texts, pairs]) => {
  const { open, encode } = new Function(source + "; return { open, encode }")();
  window.opened ??= { settings, weights };
  open(window.opened);
  return Promise.all(texts.map((text, i) => encode({ text, pair: pairs[i] }, { report() {} })));
}"""
MISTAKES = [
    ("scores[k] = dot / Math.sqrt(W)", "scores[k] = dot", "not divided by √W"),
    ("variance + c.eps", "variance + 1e-5", "eps is 1e-5"),
    ("[...ids.keys()]", "ids.map(() => 0)", "all tokens have position 0"),
    ("residual(fed.feed_forward, middle)", "residual(fed.feed_forward, x)", "the second residual is the input"),
]


@pytest.mark.parametrize(("right", "wrong", "named"), [("", "", ""), *MISTAKES])
def test_a_mistake_in_bert_js_is_named(right, wrong, named, blank):
    assert SOURCE.count(right) == 1 or not right
    packed = (None, None)
    if not blank.evaluate("'opened' in window"):
        checkpoint = Checkpoint.open("minibert-novels")
        model, tokenizer = model_for(checkpoint), minibert.load_tokenizer("minibert-novels")
        made = live(model, tokenizer, minibert.trace(model, tokenizer, "no"), "float32")
        packed = made.settings, made.weights
    source = SOURCE.replace(right, wrong) if right else SOURCE
    encoded = blank.evaluate(RUN, [source, *packed, TEXTS, PAIRS])
    report = report_on(encoded, "minibert-novels")
    assert report.ok == (not named)
    assert named in " ".join(report.causes)
