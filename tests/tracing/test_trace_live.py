"""The page that computes, in a real browser: bert.js is right by its numbers, and everything can be used."""

import random
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.models import HARD_TEXTS

import minibert
from minibert.checking.check import check
from minibert.checking.expected import PAIRS, TEXTS
from minibert.checkpoints.checkpoint import Checkpoint
from minibert.text.tokenizer import Tokenizer
from minibert.tracing.live import live, tokenizer_settings
from minibert.tracing.page import FOLDER
from minibert.tracing.trace import model_for

pytestmark = pytest.mark.slow
SENTENCES = Path(__file__).parents[2] / "tutorials/sentences.txt"
SOURCE = "\n".join((FOLDER / f"{name}.js").read_text("utf-8") for name in ("bert", "run"))
ENCODE = "([text, pair]) => minibert.encode(text, pair)"


def arrays(encoded: list[dict[str, Any]], shape: tuple[int, int]) -> dict[str, np.ndarray]:
    """What minibert.encode returned for some texts, padded, as `minibert check` reads it. shape: (D,H)."""
    D, H = shape
    longest = max(len(one["ids"]) for one in encoded)
    rows = {"hidden_states": [], "attentions": [], "logits": []}
    for one in encoded:
        S = len(one["ids"])
        more = (0, longest - S)
        states = np.array(one["states"], dtype=np.float32).reshape(-1, S, D)
        probs = np.array(one["attentions"], dtype=np.float32).reshape(-1, H, S, S)
        rows["hidden_states"].append(np.pad(states, ((0, 0), more, (0, 0))))
        rows["attentions"].append(np.pad(probs, ((0, 0), (0, 0), more, more)))
        if one["logits"]:
            logits = np.array(one["logits"], dtype=np.float32).reshape(S, -1)
            rows["logits"].append(np.pad(logits, (more, (0, 0))))
    named = {name: np.stack(row, axis=int(name != "logits")) for name, row in rows.items() if row}
    return named | {"last_hidden_state": named["hidden_states"][-1]}


# -- bert.js is right


@pytest.mark.parametrize(("name", "model"), [("novels", "minibert-novels"), ("minilm", "all-MiniLM-L6-v2")])
def test_check_says_that_the_numbers_of_the_page_are_right(name, model, open_live, tmp_path):
    opened = open_live(name)
    config = Checkpoint.open(model).config
    encoded = [opened.evaluate(ENCODE, [text, pair]) for text, pair in zip(TEXTS, PAIRS, strict=True)]
    np.savez(tmp_path / "outputs.npz", **arrays(encoded, (config.hidden_size, config.num_attention_heads)))
    report = check(str(tmp_path / "outputs.npz"), model)
    assert report.ok and "right within rounding" in str(report)


@pytest.mark.parametrize("name", ["novels", "minilm"])
def test_fifty_texts_differ_from_model_py_by_at_most_a_ten_thousandth(name, open_live, minilm):
    opened, model = open_live(name), "minibert-novels" if name == "novels" else minilm
    encoder, tokenizer = minibert.load(model), minibert.load_tokenizer(model)
    texts = [*SENTENCES.read_text("utf-8").splitlines(), "", "Where is he?"]
    assert len(texts) == 50
    differences = []
    for text in texts:
        row = tokenizer(text)
        right = encoder(row.input_ids).last_hidden_state[0].detach()
        last = "async text => { const { states, ids } = await minibert.encode(text); return [[...states.at(-1)], ids] }"
        numbers, ids = opened.evaluate(last, text)
        assert ids == row.input_ids[0].tolist()
        differences.append(float((torch.tensor(numbers).reshape(right.shape) - right).abs().max()))
    assert 0 < max(differences) <= 1e-4


def test_a_distilbert_is_computed_and_its_segments_change_nothing(open_live, live_address):
    opened = open_live("distil")
    folder = Path(live_address("distil").removeprefix("file://")).parent / "distil"
    row = minibert.load_tokenizer(folder)("the film", "a book")
    right = minibert.load(folder)(row.input_ids).last_hidden_state[0].detach()
    found = opened.evaluate(ENCODE, ["the film", "a book"])
    assert (found["ids"], found["logits"]) == (row.input_ids[0].tolist(), None)
    assert torch.allclose(torch.tensor(found["states"][-1]), right.flatten(), atol=1e-5)


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
GELU = "x / 2 * (1 + erf(x / Math.SQRT2))"
TANH = "x / 2 * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)))"
SCALE = "const scale = w[`${name}.weight`]"
MISTAKES = [
    ("scores[k] = dot / Math.sqrt(W)", "scores[k] = dot", "not divided by √W"),
    (GELU, TANH, "tanh"),
    ("erf(x / Math.SQRT2)", "erf(x)", "not of x / √2"),
    ("variance + c.eps", "variance + 1e-5", "eps is 1e-5"),
    ("[...ids.keys()]", "ids.map(() => 0)", "all tokens have position 0"),
    ("lookUp(table, segments, c.D)", "lookUp(table, segments.map(() => 0), c.D)", "all tokens are in segment 0"),
    ('["query", "key", "value"]', '["key", "query", "value"]', "query and key are exchanged"),
    ("residual(attended.attention, x)", "attended.attention", "not added after attention"),
    ("context[i] += scores[k] * value[j]", "context[i] += scores[k] * key[j]", "in place of the values"),
    ("residual(fed.feed_forward, middle)", "residual(fed.feed_forward, x)", "the second residual is the input"),
    (SCALE, f"{SCALE}.map(() => 1)", "the weight (gamma) is not used"),
]


@pytest.mark.parametrize(("right", "wrong", "named"), [("", "", ""), *MISTAKES])
def test_a_mistake_in_bert_js_is_named(right, wrong, named, blank, tmp_path):
    assert SOURCE.count(right) == 1 or not right
    packed = (None, None)
    if not blank.evaluate("'opened' in window"):
        checkpoint = Checkpoint.open("minibert-novels")
        model, tokenizer = model_for(checkpoint), minibert.load_tokenizer("minibert-novels")
        made = live(model, tokenizer, minibert.trace(model, tokenizer, "no"), "float32")
        packed = made.settings, made.weights
    source = SOURCE.replace(right, wrong) if right else SOURCE
    encoded = blank.evaluate(RUN, [source, *packed, TEXTS, PAIRS])
    np.savez(tmp_path / "outputs.npz", **arrays(encoded, (256, 4)))
    report = check(str(tmp_path / "outputs.npz"), "minibert-novels")
    assert report.ok == (not named)
    assert named in " ".join(report.causes)
