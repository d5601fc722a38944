"""The page that computes, as it is used: what it draws, bad input, changes with their controls, undo and addresses."""

import base64
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import torch
from support.words import write_words_checkpoint

import minibert
from minibert.checkpoints.checkpoint import Checkpoint
from minibert.hooks import Inputs
from minibert.tracing import live as module
from minibert.tracing.ablation import without_heads
from minibert.tracing.live import packed_weights
from minibert.tracing.numbers import page_data, select
from minibert.tracing.page import FOLDER
from minibert.tracing.trace import model_for

browsers = pytest.mark.slow
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "reduced_motion": "reduce"}
DESK = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"}
TEXT = "the film very good"
DONE = "document.querySelector('#progress').hidden && document.querySelector('#status').textContent.includes('tokens')"
# The vectors of the last layer as they are drawn, and the numbers of the table of the outcome.
LAST = "[...trace.data.vectors[`hidden${trace.data.L}`]]"


def folder_of(address: str, name: str = "words") -> Path:
    return Path(address.removeprefix("file://")).parent / name


def wait(opened: Any) -> str:
    """Wait until the page has computed what was asked last; what it tells."""
    opened.wait_for_function(DONE)
    return str(opened.locator("#status").inner_text())


def type_text(opened: Any, text: str, box: str = "text") -> str:
    opened.fill(f"#typed-{box}", text)
    opened.wait_for_function("([box, text]) => trace.state[box] === text", arg=[box, text])
    return wait(opened)


def effects(opened: Any) -> list[list[str]]:
    rows = opened.locator(".effect tbody tr").all()
    return [[cell.strip() for cell in row.locator("th, td").all_inner_texts()] for row in rows]


# -- what is drawn


@browsers
@pytest.mark.parametrize("texts", [(TEXT,), ("a [MASK] film", "the book is good")])
def test_what_bert_js_gives_the_page_is_what_python_gives_it(texts, open_live, live_address):
    where = f"#text={quote(texts[0])}" + (f"&second={quote(texts[1])}" if texts[1:] else "")
    opened = open_live(where=where)
    name = str(folder_of(live_address("words")))
    traced = minibert.trace(model_for(Checkpoint.open(name)), minibert.load_tokenizer(name), *texts)
    right = page_data(traced, select(traced))
    drawn = opened.evaluate("({ ...trace.data, vectors: null, attention: null, pairs: null })")
    assert {key: drawn[key] for key in ("tokens", "ids", "sides", "words", "S", "D", "H", "L")} == {
        key: right[key] for key in ("tokens", "ids", "sides", "words", "S", "D", "H", "L")
    }
    assert drawn["norms"].keys() == right["norms"].keys() and drawn["cosines"].keys() == right["cosines"].keys()
    for kind in ("norms", "cosines"):
        for key, values in right[kind].items():
            assert drawn[kind][key] == pytest.approx(values, abs=1e-3), key
    for layer, tokens in right["units"].items():
        for mine, own in zip(drawn["units"][layer], tokens, strict=True):
            assert mine["unit"][0] == own["unit"][0]
            assert [*mine["share"], mine["rest"], mine["bias"]] == pytest.approx(
                [*own["share"], own["rest"], own["bias"]], abs=1e-3
            )
    for layer, attention in right["attention"].items():
        shares = opened.evaluate("layer => trace.data.attention[layer].quadrants", layer)
        for head, quadrants in attention["quadrants"].items():
            assert shares[head] == pytest.approx(quadrants, abs=1e-4)
    for layer in range(traced.config.num_hidden_layers):
        for head in ("0", "mean", "rollout"):
            probs = opened.evaluate("([layer, head]) => [...trace.probs(layer, head)]", [layer, head])
            assert probs == pytest.approx(traced.attention(layer, head).flatten().tolist(), abs=1e-4)
    step = opened.evaluate("trace.steps(1, 2, 3)")
    assert step["weight"] == pytest.approx(traced.attentions[0][1, 2, 3].item(), abs=1e-4)
    assert opened.locator(".draw:empty").evaluate_all("all => all.map((one) => one.className)") in (
        [["draw effect"]] if texts[1:] else [["draw quadrants", "draw effect"]]
    )


@browsers
def test_what_is_typed_is_drawn_and_a_pair_has_its_parts(open_live):
    opened = open_live()
    type_text(opened, "a dull play")
    assert opened.locator(".words .token").all_inner_texts() == ["[CLS]", "a", "dull", "play", "[SEP]"]
    assert opened.locator(".ids tbody tr").count() == 5 and opened.title().startswith("a dull play")
    assert not opened.locator(".parts").is_visible()
    type_text(opened, "the meal", "second")
    assert opened.locator(".parts").is_visible() and opened.locator(".quadrants tbody tr").count() == 2
    assert set(opened.locator(".size-S").all_inner_texts()) == {"8"}


# -- bad input


LISTEN = """() => {
  const status = document.querySelector("#status");
  window.told = [];
  new MutationObserver(() => told.push(status.textContent)).observe(status, { childList: true });
}"""


@browsers
@pytest.mark.parametrize(
    ("text", "tokens", "told"),
    [
        ("", 2, "empty"),
        ("good " * 600, 512, "602 tokens, and 512 are read"),
        ("東京", 4, r"2 of the tokens are \[UNK\]"),
        ("the 😀 film", 5, r"1 of the tokens is \[UNK\]"),
        ("مرحبا", 3, r"1 of the tokens is \[UNK\]"),
        ("</script><img src=x onerror=alert(1)>", None, "tokens"),
    ],
    ids=["empty", "long", "unknown", "emoji", "right-to-left", "HTML"],
)
def test_bad_input_is_told_and_never_becomes_html(text, tokens, told, open_live):
    opened = open_live()
    elements = opened.locator("img, iframe").count()
    opened.evaluate(LISTEN)
    said = type_text(opened, text)
    assert re.search(told, said) and (tokens is None or f"{tokens} tokens, computed" in said)
    assert opened.locator("img, iframe").count() == elements == 0
    assert opened.locator(".given bdi").inner_text().strip() == (text.strip() or "(empty)")
    progress = [line for line in opened.evaluate("told") if "layer 1 of" in line]
    assert bool(progress) == (tokens == 512)  # a progress line, not a frozen page


BROKEN = """window.Worker = class {
  constructor() { setTimeout(() => this.onerror(new Event("error"))); }
  postMessage() {}
}"""


@browsers
@pytest.mark.parametrize("workers", ["delete window.Worker", BROKEN], ids=["none", "broken"])
def test_without_workers_the_page_computes_the_same(workers, open_live):
    own, other = open_live(), open_live(before=workers)
    assert "without a worker" in wait(other) and "without a worker" not in wait(own)
    assert other.evaluate(LAST) == own.evaluate(LAST)


@pytest.mark.parametrize(
    ("family", "sizes", "options", "message"),
    [
        ("roberta", {}, [], "RoBERTa.*leave out --live"),
        ("albert", {}, [], "ALBERT"),
        ("bert", {"hidden_act": "silu"}, [], "hidden_act is silu"),
        ("bert", {}, ["--layers", "0"], "--layers .*--live"),
        ("bert", {}, ["--png", "a.png"], "--png .*--live"),
    ],
)
def test_what_bert_js_does_not_compute_is_refused_before_anything_is_written(
    family, sizes, options, message, run, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    model = write_words_checkpoint(tmp_path / "model", family, **sizes)
    error = run("trace", "--live", "--model", model, "--out", "page.html", *options, status=2)
    assert re.search(message, error) and error.count("\n") == 1 and not Path("page.html").exists()


def test_weights_too_large_for_a_page_are_refused_with_their_size(run, checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "LIMIT", 1000)
    error = run("trace", "the film", "--live", "--model", checkpoint, "--out", "page.html", status=2)
    assert re.search(r"MB in bfloat16.*--weights int8.*without --live", error) and not Path("page.html").exists()
    assert "there is no text" in run("trace", "--model", checkpoint, "--out", "page.html", status=2)


@pytest.mark.parametrize("weights", ["bfloat16", "int8", "float32"])
def test_the_page_says_what_its_weights_are_and_keeps_within_its_size(weights, run, checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = run(
        "trace", "the film", "--live", "--model", checkpoint, "--weights", weights, "--out", "page.html", "--json"
    )
    figures = json.loads(out.splitlines()[-1])
    html = Path("page.html").read_text("utf-8")
    assert len(html.encode()) == figures["bytes"] <= 1.4 * figures["weights"] + 500_000
    assert (figures["error"] > 0) == (weights != "float32") and f"in this page are {weights}" in html


# -- weights


UNPACK = "([source, text, shape, format]) => [...new Function(source + '; return numbers')()(text, shape, format)]"


@browsers
@pytest.mark.parametrize("format", ["bfloat16", "int8", "float32"])
def test_weights_are_unpacked_as_python_rounded_them(format, browser):
    x = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)) * torch.tensor([[1.0], [100], [1e-3], [0], [5]])
    numbers, rounded = packed_weights(x, format)
    opened = browser.new_page()
    text = base64.b64encode(numbers).decode()
    found = opened.evaluate(UNPACK, [(FOLDER / "run.js").read_text("utf-8"), text, [5, 7], format])
    opened.close()
    assert found == rounded.flatten().tolist()
    assert (rounded - x).abs().max() <= {"bfloat16": 1.0, "int8": 1.5, "float32": 0.0}[format]
    assert torch.equal(rounded, x) == (format == "float32")


# -- changes


def changed(folder: Path, change: str) -> torch.Tensor:
    """The last vectors of TEXT with a change, computed by minibert with hooks."""
    encoder, tokenizer = minibert.load(folder), minibert.load_tokenizer(folder)
    row = tokenizer(TEXT)
    kind, *numbers, how = change.split(".")
    layer = encoder.layers[int(numbers[0])] if kind not in ("mask", "state") else None
    if change.startswith("mask"):
        row.input_ids[0, int(how)] = tokenizer.mask_id
    elif kind == "head" and how == "zero":
        batch = Inputs(row.input_ids, row.attention_mask, row.token_type_ids)
        return without_heads(encoder, batch, int(numbers[0])).last_hidden_state[int(numbers[1])].detach()
    elif kind == "head":
        W = encoder.layers[0].attention.head_size
        at = slice(int(numbers[1]) * W, (int(numbers[1]) + 1) * W)

        def mean_of_head(_, given):
            x = given[0].clone()
            x[..., at] = x[..., at].mean(dim=1, keepdim=True)
            return (x,)

        layer.attention.output.register_forward_pre_hook(mean_of_head)
    elif kind == "state":
        donor = encoder(tokenizer("a bad meal").input_ids, output_hidden_states=True).hidden_states[int(numbers[0])]

        def put(_, given):
            x = given[0].clone()
            x[0, int(how)] = donor[0, int(numbers[1])]
            return (x, *given[1:])

        encoder.layers[int(numbers[0])].register_forward_pre_hook(put)
    else:
        keep = 0.0 if how == "zero" else 1.0

        def off(_, __, out):
            x, *others = out if isinstance(out, tuple) else (out,)
            x = keep * x.mean(dim=1, keepdim=True).expand_as(x)
            return (x, *others) if others else x

        getattr(layer, kind).register_forward_hook(off)
    return encoder(row.input_ids, output_attentions=True).last_hidden_state[0].detach()


CHANGES = (
    "mask.3 head.0.1.zero head.1.2.mean attention.1.zero attention.0.mean feed_forward.1.mean feed_forward.0.zero "
    "state.1.2.3 state.0.1.1"
)


@browsers
@pytest.mark.parametrize("change", CHANGES.split())
def test_a_change_does_what_minibert_does_with_it_and_has_a_control(change, open_live, live_address):
    opened = open_live(where=f"#text={quote(TEXT)}&other=a%20bad%20meal&changes={change}")
    right = changed(folder_of(live_address("words")), change)
    assert opened.evaluate(LAST) == pytest.approx(right.flatten().tolist(), abs=2e-4)
    cls, mean, *_ = effects(opened)
    assert cls[1:2] == mean[1:2] == ["1.0000"]
    assert cls[2] != "1.0000" and cls[3] != cls[2] and "Control: " in opened.locator(".effect .hint").inner_text()


FOCUSED = "one => one === document.activeElement && getComputedStyle(one).outlineStyle"
ADD = {
    "mask": ("#mask-token", "2", "[data-add=mask]", "token 2, film, masked"),
    "head": ("#off-what", "head.1.0", "[data-add=off]", "layer 1, head 0: zero"),
    "feed-forward": ("#off-what", "feed_forward.0", "[data-add=off]", "layer 0, feed-forward: zero"),
    "state": ("#move-layer", "1", "[data-add=state]", "after layer 0, token 0 of the other sentence"),
}


@browsers
@pytest.mark.parametrize("by", ["mouse", "touch", "keyboard"])
@pytest.mark.parametrize("settings", [PHONE, DESK | {"has_touch": True}], ids=["390", "1280"])
def test_changes_are_made_taken_back_and_shared_by_mouse_touch_and_keyboard(by, settings, open_live, live_address):
    opened = open_live(**settings)

    def press(place):
        button = opened.locator(place).last
        if by == "keyboard":
            button.focus()
            assert button.evaluate(FOCUSED) == "solid"
            opened.keyboard.press("Enter")
        elif by == "touch":
            button.tap()
        else:
            button.click()

    type_text(opened, "a bad meal", "other")
    for number, (select_, value, button, said) in enumerate(ADD.values(), start=1):
        opened.select_option(select_, value)
        press(button)
        opened.wait_for_function("n => document.querySelectorAll('[data-remove]').length === n", arg=number)
        wait(opened)
        assert said in opened.locator(".chips").inner_text()
    before = effects(opened)
    assert len(before) == 3 and before[2][0] == "probability of film at 2"  # the masked-LM head guesses
    assert opened.evaluate("document.documentElement.scrollWidth") == settings["viewport"]["width"]
    assert opened.locator(".lens tbody tr").count() == opened.locator(".compared tbody tr").count() == 3
    shared = open_live(where="#" + opened.url.partition("#")[2])
    assert effects(shared) == before
    press("[data-remove='3']")
    opened.wait_for_function("document.querySelectorAll('[data-remove]').length === 3")
    assert opened.evaluate("document.activeElement.className") == "undo"
    press("#change .undo")
    opened.wait_for_function("document.querySelectorAll('[data-remove]').length === 4")
    wait(opened)
    assert effects(opened) == before
    press("#clear")
    opened.wait_for_function("document.querySelectorAll('[data-remove]').length === 0")


LISTS = {
    "#mask-token": "mask",
    "#off-what": "off",
    "#off-how": "off",
    "#move-layer": "state",
    "#move-from": "state",
    "#move-to": "state",
}


@browsers
@pytest.mark.parametrize("settings", [PHONE, DESK], ids=["390", "1280"])
def test_each_entry_of_each_list_makes_a_change_of_its_own(settings, open_live):
    opened = open_live(**settings)
    type_text(opened, "a bad meal", "other")
    for place, button in LISTS.items():
        values = opened.locator(f"{place} option").evaluate_all("all => all.map((one) => one.value)")
        said, results = set(), set()
        for value in values:
            opened.select_option(place, value)
            opened.click(f"[data-add={button}]")
            opened.wait_for_function("document.querySelectorAll('[data-remove]').length === 1")
            wait(opened)
            said.add(opened.locator(".chips li").first.inner_text())
            results.add(str(opened.evaluate(LAST)))
            opened.click("#clear")
            opened.wait_for_function("document.querySelectorAll('[data-remove]').length === 0")
            wait(opened)
        assert len(values) > 1 and len(said) == len(results) == len(values), place


@browsers
@pytest.mark.parametrize("settings", [PHONE, DESK], ids=["390", "1280"])
def test_each_token_has_its_guesses_at_every_layer(settings, open_live):
    opened = open_live(**settings)
    tokens = opened.locator("#lens-token option").all_inner_texts()
    assert len(tokens) == len(TEXT.split()) + 2
    for number, token in enumerate(tokens):
        opened.select_option("#lens-token", str(number))
        opened.wait_for_function("at => trace.state.lens === at", arg=number)
        wait(opened)
        assert f"Guesses for token {number}, {token.split()[1]}" in opened.locator(".draw.lens").inner_text()
        assert opened.locator(".lens tbody tr").count() == 3


NONSENSE = [
    "#changes=head.9.0.zero_mask.x_off_state.1.2_constructor.1&lens=-2",
    "#changes=mask.400",
    "#changes=%E0%A4%A",
]


@browsers
@pytest.mark.parametrize("where", NONSENSE)
def test_nonsense_in_the_address_changes_nothing(where, open_live):
    opened = open_live(where=where)
    assert opened.locator("[data-remove]").count() == (1 if "400" in where else 0) and effects(opened) == []


@browsers
def test_a_checkpoint_without_a_head_says_that_it_has_no_guesses(open_live):
    opened = open_live("distil")
    assert "no masked-LM head" in opened.locator(".draw.lens").inner_text() and opened.locator("#mask").count() == 0


# -- for everyone


USED = "button, select, textarea, input, progress, canvas[tabindex]"
NAMELESS = """used => [...document.querySelectorAll(used)].filter(
  (one) => !(one.ariaLabel || one.labels?.length || one.textContent.trim())).map((one) => one.outerHTML)"""
CONTRAST = r"""() => {
  const channels = (colour) => colour.match(/[\d.]+/g).slice(0, 3).map((x) => x / 255);
  const linear = (x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
  const light = (colour) => channels(colour).reduce((sum, x, i) => sum + linear(x) * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (one) => {
    const colour = getComputedStyle(one).backgroundColor;
    return /, 0\)$/.test(colour) ? ground(one.parentElement) : colour;
  };
  const written = (one) => one.textContent.trim() && !one.disabled && one.tagName !== "OPTION";
  return [...document.querySelectorAll("#typing *, #change *")].filter(written).map((one) => {
    const [dark, bright] = [light(getComputedStyle(one).color), light(ground(one))].sort((a, b) => a - b);
    return (bright + 0.05) / (dark + 0.05);
  });
}"""


@browsers
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_that_can_be_used_has_a_name_and_all_text_enough_contrast(scheme, open_live):
    opened = open_live(where="#changes=head.0.1.zero&other=a%20bad%20meal", color_scheme=scheme)
    assert opened.evaluate(NAMELESS, USED) == []
    ratios = opened.evaluate(CONTRAST)
    assert len(ratios) > 50 and min(ratios) >= 4.5
