"""The trace page in a real browser, from disk: it draws, follows a token, switches layers, and loads nothing else."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.words import write_words_checkpoint

import minibert
from minibert.tracing.trace import Trace

pytestmark = pytest.mark.slow
TEXT = "a visually stunning rumination on love"
WORD = "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft"
ENDLESS = ("good " + "b" * 20_000 + " film", "c" * 20_000)
NOVEL = "she looked at him and smiled ."
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "reduced_motion": "reduce"}
PAIR = ("A man is eating food.", "Someone's having a </script><b>meal</b> مرحبا")


@pytest.fixture(scope="module")
def traces(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Trace, str]]:
    """Each with the address of its page."""
    encoder, tokenizer = minibert.load(minilm), minibert.load_tokenizer(minilm)
    folder, found = tmp_path_factory.mktemp("pages"), {}
    for name, texts in {
        "one": (TEXT,),
        "pair": PAIR,
        "long": (" ".join([TEXT] * 8),),
        "word": (WORD,),
        "endless": ENDLESS,
    }.items():
        found[name] = minibert.trace(encoder, tokenizer, *texts), (folder / f"{name}.html").as_uri()
    masked_lm = minibert.load("minibert-novels", head="masked-lm"), minibert.load_tokenizer("minibert-novels")
    found["novel"] = minibert.trace(*masked_lm, NOVEL), (folder / "novel.html").as_uri()
    write_words_checkpoint(folder, "modernbert", num_hidden_layers=4, local_attention=4, initializer_range=0.3)
    modern = minibert.load(folder), minibert.load_tokenizer(folder)
    found["modern"] = minibert.trace(*modern, "the film very lovely it good"), (folder / "modern.html").as_uri()
    for name, (traced, _) in found.items():
        traced.save(folder / f"{name}.html")
    return found


@pytest.fixture
def visit(browser: Any, traces: dict[str, tuple[Trace, str]]) -> Iterator[Any]:
    """Open a page; at the end of the test nothing went wrong on it, and nothing but the file was requested."""
    pages, troubles = [], []

    def call(name="one", where="", **settings):
        traced, address = traces[name]
        pages.append(page := browser.new_page(**settings))
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda request: request.url.partition("#")[0] == address or troubles.append(request.url))
        page.goto(address + where)
        return page, traced

    yield call
    for page in pages:
        page.close()
    assert troubles == []


def choose(page: Any, name: str, value: object) -> None:
    page.locator(f'input[name={name}][value="{value}"]').check()


def cells(page: Any, table: str) -> list[list[str]]:
    """The rows of a drawn table, as they are read."""
    rows = page.locator(f"{table} tbody tr").all()
    return [[cell.strip() for cell in row.locator("th, td").all_inner_texts()] for row in rows]


def number(text: str) -> float:
    return float(text.replace("−", "-").removesuffix("%").strip())


def approx(values: Any, abs: float = 0.0105) -> Any:
    return pytest.approx(torch.as_tensor(values).tolist(), abs=abs)


def test_it_draws_every_stop(visit):
    page, _ = visit()
    assert page.title() == f"{TEXT} · minibert trace" and page.locator("section.stop").count() == 14
    for selector in (".strips canvas", ".field canvas", ".heads canvas", ".matrix canvas", ".cube canvas", "path"):
        assert page.locator(selector).count() > 0
    assert page.locator(".draw:empty").count() == 0
    page.locator("#attention .links a").nth(2).click()
    assert "scores.softmax(dim=-1)" in page.locator(".row:target").inner_text()


def test_a_token_is_focused_by_keyboard_and_the_arcs_show_what_it_looks_at(visit):
    page, traced = visit()
    page.locator("input[name=token]").first.focus()
    for _ in range(5):  # [CLS] a visually stunning rum
        page.keyboard.press("ArrowRight")
    row = traced.attention(0, "mean")[4]
    assert [number(weight) for _, weight, *_ in cells(page, ".weights")] == approx(row.topk(8).values, 6e-4)
    announced = re.sub(r"\s+", " ", page.locator("#announcement").inner_text())
    assert announced.startswith(f"rum looks at {traced.tokens[int(row.argmax())]} {row.max():.2f},")
    assert [page.locator(one).first.text_content() for one in (".unit.here", ".strips .of")] == [
        "rum",
        "Vectors of rum",
    ]


def test_the_strips_show_the_numbers_of_the_chosen_token(visit):
    page, traced = visit()
    choose(page, "token", 7)
    shown, vector = page.locator(".strips").first.locator(".strip").last, traced.hidden_states[0][7]
    numbers = re.findall(r"[−\d.]+(?=,)", shown.locator(".numbers").inner_text())[:6]
    assert [number(one) for one in numbers] == approx(vector[:6], 0.006)
    assert f"length {vector.norm():.2f}" == shown.locator(".norm").inner_text()


def test_a_switch_of_layer_or_head_changes_the_pictures(visit):
    page, traced = visit()

    def drawn():
        canvases = [page.locator(place).first for place in (".matrix canvas", ".field[data-vectors=output] canvas")]
        pixels = [canvas.evaluate("canvas => canvas.toDataURL()") for canvas in canvases]
        return pixels + [page.locator(place).first.inner_html() for place in (".arcs", ".norms")]

    first = drawn()
    choose(page, "layer", 4)
    assert not set(first) & set(drawn())
    for head in ("7", "rollout"):
        choose(page, "head", head)
        assert number(cells(page, ".weights")[0][1]) == approx(traced.attention(4, head).max(), 6e-4)


def test_the_quadrants_of_a_pair_show_a_part_of_it(visit):
    page, traced = visit("pair")
    A = traced.segments.count(0)
    choose(page, "part", "AB")
    drawn = page.evaluate("() => { const v = trace.view(); return v.rows.map(q => v.columns.map(k => v.at(q, k))) }")
    assert torch.allclose(torch.tensor(drawn), traced.attention(0, "mean")[:A, A:], atol=1e-4)
    assert sum(number(cell.inner_text()) for cell in page.locator(".quadrants tbody td").all()[:2]) == approx(1, 0.002)
    choose(page, "token", A + 1)
    assert "is not in the text whose attention is shown" in page.locator("#looks").inner_text()


PRODUCTS, SOFTMAX = ".pair .wide >> nth=0 >> table", ".pair .wide >> nth=1 >> table"


def test_the_steps_of_a_pair_are_the_models_own(visit):
    page, traced = visit(where="#layer=1&head=8&pair=4,5")
    layer, products, shares = traced.layers[1], cells(page, PRODUCTS), cells(page, SOFTMAX)
    q, k = layer["query"][4, 8 * 32 : 9 * 32], layer["key"][5, 8 * 32 : 9 * 32]  # W is 32
    for row, w in zip(products[:6], (q * k).abs().argsort(descending=True), strict=False):
        assert [number(cell) for cell in row[:4]] == approx([w, q[w], k[w], q[w] * k[w]])
    assert [number(products[-1][3]), sum(number(row[3]) for row in products[:-1])] == approx([q @ k] * 2, 0.05)
    looked_at = {int(row[0].split()[-1]): row for row in shares[:6]}
    scores, probs = layer["scores"][8, 4], layer["probs"][8, 4]
    for j, row in looked_at.items():
        assert [number(row[1]), number(row[3])] == approx([scores[j], probs[j]])
    assert sum(number(row[3]) for row in shares[:-1]) == pytest.approx(1, abs=0.004)
    text = page.locator(".pair").inner_text()
    assert f"= {scores[5]:.2f}." in text and f"= {probs[5]:.3f}. (" in text
    # A mistake would be seen: another head, the pair turned round, and scores that were never scaled.
    others = layer["scores"][7, 4], layer["scores"][8, 5], scores * 32**0.5
    assert all(abs(other.softmax(-1)[5] - number(looked_at[5][3])) > 0.01 for other in others)


def test_the_steps_of_a_pair_know_rotation_and_windows(visit):
    page, traced = visit("modern", where="#layer=1&head=2&pair=3,1")
    scores, probs = traced.layers[1]["scores"][2, 3], traced.layers[1]["probs"][2, 3]
    shares = cells(page, SOFTMAX)
    looked_at = {int(row[0].split()[-1]): row for row in shares[:5]}
    assert sorted(looked_at) == [1, 2, 3, 4, 5] and len(shares) == 6  # two to each side, no others, and the sum
    for j, row in looked_at.items():
        assert [number(row[1]), number(row[3])] == approx([scores[j], probs[j]])
    page.locator("#to").select_option("7")
    assert "reads at most 2 tokens to each side, and this key is 4 away" in page.locator(".pair").inner_text()
    assert [cells(page, SOFTMAX)[-2][n] for n in (0, 1, 3)] == [f"{traced.tokens[7]} 7", "−∞", "0.000"]


def test_of_a_long_text_the_first_tokens_have_steps_and_their_weights_count_all(visit, traces):
    layer = traces["long"][0].layers[2]
    probs, of_kept = layer["probs"][:, :24, :24], layer["scores"][:, :24, :24].softmax(dim=-1)
    head, query, key = map(int, torch.unravel_index((of_kept - probs).argmax(), probs.shape))
    page, _ = visit("long", where=f"#layer=2&head={head}&pair={query},{key}")
    (chosen,) = (row for row in cells(page, SOFTMAX) if row[0].endswith(f" {key}"))
    assert number(chosen[3]) == approx(probs[head, query, key], 1e-3)
    assert (
        float(of_kept[head, query, key] - probs[head, query, key]) > 0.01 and page.locator("#to option").count() == 24
    )
    choose(page, "token", 28)
    assert "This page has queries and keys only for the first 24 tokens" in page.locator(".pair").inner_text()


def test_the_strongest_units_are_those_of_the_token_and_their_shares_add_up(visit):
    page, traced = visit(where="#layer=3&token=2")
    rows, units = cells(page, ".units table"), traced.units[3]
    for column, expected in enumerate((units.unit, units.activation, 100 * units.share)):
        assert [number(row[column]) for row in rows[:6]] == approx(expected[2], 0.06)
    assert [sum(number(row[2]) for row in rows[:-1]), number(rows[-1][2])] == approx([100, 100], 0.5)
    choose(page, "token", 3)
    assert cells(page, ".units table")[0] != rows[0]


# -- the state in the address


STATE = "({layer, head, token, pair, merge, part} = trace.state, [layer, head, token, pair, merge, part])"


def test_each_choice_is_written_into_the_address_and_comes_back_from_it(visit):
    page, _ = visit("pair")
    entries = page.evaluate("history.length")
    for name, value in (("layer", 2), ("head", "rollout"), ("part", "AB")):
        choose(page, name, value)
    page.locator("#merge").check()
    page.locator("#to").select_option("6")
    assert page.evaluate("location.hash") == "#layer=2&head=rollout&token=0&pair=0,6&merge=true&part=AB"
    chosen = page.evaluate(STATE)
    page.reload()
    assert (page.evaluate(STATE), page.evaluate("history.length")) == (chosen, entries)


@pytest.mark.parametrize(
    "where",
    [
        "#nonsense",
        "#layer=9&head=12&token=99&pair=4",
        "#layer=-1&head=1e1&token=01&pair=4,99",
        "#layer=&head=&token=&pair=,&merge=1&part=AB",
        "#head=<img src=x onerror=alert(1)>&pair=1,2,3&constructor=1&__proto__=2",
        "#token=%E0%A4%A&layer=0x1&pair=-1,2",
    ],
)
def test_nonsense_in_the_address_is_ignored(where, visit):
    page, _ = visit(where=where)
    assert (page.evaluate(STATE), page.evaluate("scrollY")) == ([0, "mean", -1, None, False, "all"], 0)


# -- a phone, and no mouse


@pytest.mark.parametrize("name", ["one", "pair", "word", "novel"])
def test_a_phone_scrolls_down_only_and_a_tap_chooses_a_token(name, visit):
    page, _ = visit(name, **PHONE)
    assert not page.locator("#map").evaluate("map => map.open")
    page.locator(".arcs .unit").nth(3).tap()
    assert page.evaluate("trace.state.token") == 3 and page.locator('input[name=token][value="3"]').is_checked()
    assert page.evaluate("document.documentElement.scrollWidth") == 390


CUT_OFF = """[...document.querySelectorAll(".wide")].filter(
  (one) => one.scrollWidth > one.clientWidth || one.scrollHeight > one.clientHeight).map((one) => one.ariaLabel)"""


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", ["one", "pair", "word"])
def test_no_table_is_cut_off(name, width, visit):
    page, traced = visit(name, viewport={"width": width, "height": 844})
    page.locator("details").evaluate_all("all => all.forEach((one) => { one.open = true })")
    assert page.evaluate(CUT_OFF) == []
    assert page.locator(".norms >> nth=0 >> tbody tr").count() == len(traced.tokens)
    page.add_style_tag(content=".wide { max-height: 8rem }")  # a cut would be seen
    assert page.evaluate(CUT_OFF) != []


@pytest.mark.parametrize("width", [390, 1280])
def test_a_word_of_thousands_of_letters_makes_nothing_wide_and_no_page_of_itself(width, visit):
    page, _ = visit("endless", viewport={"width": width, "height": 844})
    widest = "Math.max(...[...document.querySelectorAll('*')].map(one => one.scrollWidth))"
    assert page.evaluate(widest) <= 1280
    assert page.evaluate("document.documentElement.scrollHeight") < 30_000


def test_a_long_texts_tables_of_lengths_are_folded_and_say_how_many_rows_they_have(visit):
    page, traced = visit("long")
    assert not page.locator(".norms details").first.evaluate("one => one.open")
    assert f"{len(traced.tokens)} rows" in page.locator(".norms summary").first.inner_text()


@pytest.mark.parametrize("width", [390, 1280])
def test_the_matrix_of_58_tokens_has_labels_which_stay_when_it_is_scrolled(width, visit):
    page, traced = visit("long", viewport={"width": width, "height": 844})
    labels = page.locator(".matrix .labels span")
    assert labels.all_text_contents() == page.locator(".matrix .columns span").all_text_contents() == traced.tokens
    assert len(traced.tokens) == 58 and labels.nth(4).bounding_box()["height"] >= 12
    page.locator(".matrix .scroll").evaluate("one => one.scrollBy(400, 0)")
    left = labels.nth(4).bounding_box()["x"] - page.locator(".matrix").bounding_box()["x"]
    assert 0 <= left < 10 and labels.nth(4).bounding_box()["width"] > 40
    scrolls = page.locator(".matrix .scroll").evaluate("one => one.scrollLeft") > 0
    assert scrolls == ("scroll it sideways" in page.locator(".matrix .hint").inner_text()) == (width == 390)


def test_a_cell_of_the_matrix_is_read_by_tap_and_by_keyboard(visit):
    page, traced = visit(**PHONE)
    weights, canvas = traced.attention(0, "mean"), page.locator(".matrix canvas")

    def read():
        return re.sub(r"\s+", " ", page.locator(".matrix .readout").inner_text())

    size = canvas.bounding_box()["width"] / 9
    canvas.tap(position={"x": 4.5 * size, "y": 2.5 * size})
    assert read() == f"visually → rum: {weights[2, 4]:.4f}" and page.evaluate("trace.state.pair") == [2, 4]
    canvas.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowLeft", "Tab"):
        page.keyboard.press(key)
    assert read() == f"rum → stunning: {weights[4, 3]:.4f}"
    canvas.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("[trace.state.pair, document.activeElement.tagName]") == [[4, 3], "CANVAS"]
    assert "tap it, or use the arrow keys" in page.locator(".matrix .hint").inner_text()


def test_a_number_of_a_vector_is_read_by_keyboard(visit):
    page, traced = visit()
    page.locator(".strips canvas").first.focus()
    page.keyboard.press("ArrowRight")
    assert (
        f"dimension 1: {traced.embeddings['token'][0, 1]:.3f}".replace("-", "−")
        in page.locator(".strips").first.inner_text()
    )


# -- a head switched off, a token masked


def test_a_head_that_is_switched_off_turns_the_vectors_as_the_page_says(visit):
    page, traced = visit(where="#off=5.11")
    effect = traced.ablation.heads[5][11]
    rows = [number(row[1]) for row in cells(page, ".ablation table")]
    assert rows == approx([*effect.cosines, effect.mean], 6e-5) and min(effect.cosines) < 0.99
    assert f"layer 5, head 11 is switched off: the cosine with the original is {effect.cosines[0]:.4f}" in (
        page.locator(".outcome").inner_text()
    )
    page.locator("#masked").select_option("3")  # one change at a time without guesses
    masked = traced.ablation.masked[3]
    assert [number(row[1]) for row in cells(page, ".ablation table")] == approx([*masked.cosines, masked.mean], 6e-5)
    assert page.evaluate("[trace.state.off, location.hash]") == [None, "#mask=3"]


def test_a_masked_word_is_guessed_with_all_heads_and_without_one(visit):
    page, traced = visit("novel", where="#mask=2", **PHONE)
    with_all = traced.ablation.filled[2]
    assert [row[0] for row in cells(page, ".ablation .wide >> nth=0 >> table")] == [
        guess.token for guess in with_all.guesses
    ]
    canvas = page.locator(".ablation canvas")
    size = canvas.bounding_box()["width"] / 4
    canvas.tap(position={"x": 1.5 * size, "y": 0.5 * size})  # layer 0, head 1
    without = traced.ablation.filled_without[2][0][1]
    shown = cells(page, ".ablation .wide >> nth=1 >> table")
    assert [row[0] for row in shown] == [guess.token for guess in without.guesses]
    assert [number(row[1]) for row in shown] == approx([guess.probability for guess in without.guesses], 6e-5)
    assert page.evaluate("location.hash") == "#mask=2&off=0.1"
    drop = f"{without.probability - with_all.probability:.4f}".replace("-", "−")
    assert page.locator(".ablation .readout").inner_text() == f"layer 0, head 1 switched off: {drop}"
