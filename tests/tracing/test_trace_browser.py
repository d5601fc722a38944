"""The trace page in a real browser, from disk: it draws, follows a token, switches layers, and asks for nothing."""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import minibert
from minibert.config import Config
from minibert.model import Encoder
from minibert.tracing.run import Trace

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="needs Chromium: apt install chromium"),
]
sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the extra test")

TEXT = "a visually stunning rumination on love"
PAIR = ("A man is eating food.", "Someone's having a </script><b>meal</b> مرحبا")


@pytest.fixture(scope="module")
def traces(minilm: Path) -> dict[str, Trace]:
    encoder, tokenizer = minibert.load(minilm), minibert.load_tokenizer(minilm)
    narrow = Encoder(
        Config(embedding_size=8, type_vocab_size=0, num_hidden_layers=2, shared_layers=(0, 0)), pooler=False
    )
    return {
        "one": minibert.trace(encoder, tokenizer, TEXT),
        "pair": minibert.trace(encoder, tokenizer, *PAIR),
        "narrow": minibert.trace(narrow, tokenizer, *PAIR),
        "long": minibert.trace(encoder, tokenizer, " ".join([TEXT] * 4)),
    }


@pytest.fixture(scope="module")
def files(traces: dict[str, Trace], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    for name, traced in traces.items():
        traced.save(folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in traces}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Any, files: dict[str, Path]) -> Iterator[Any]:
    """Open a page; at the end of the test nothing went wrong on it and nothing but the file was asked for."""
    pages: list[Any] = []
    troubles: list[str] = []

    def call(name: str = "one", where: str = "", **settings: Any) -> Any:
        page = browser.new_page(**settings)
        pages.append(page)
        address = files[name].as_uri()
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda request: request.url.partition("#")[0] == address or troubles.append(request.url))
        page.goto(address + where)
        return page

    yield call
    for page in pages:
        page.close()
    assert troubles == []


def html(page: Any, selector: str) -> str:
    return str(page.locator(selector).first.inner_html())


def picture(page: Any, selector: str = ".matrix canvas") -> str:
    """The pixels of a canvas."""
    return str(page.locator(selector).first.evaluate("canvas => canvas.toDataURL()"))


def choose(page: Any, name: str, value: object) -> None:
    page.locator(f'input[name={name}][value="{value}"]').check()


def weights(page: Any) -> list[tuple[str, float]]:
    """The table beside the arcs: "from → to" and the weight."""
    rows = page.locator(".weights tbody tr").all()
    return [(row.locator("th").inner_text(), float(row.locator("td").first.inner_text())) for row in rows]


def test_it_draws_every_stop_and_a_screenshot_is_not_blank(visit, browser):
    page = visit()
    assert page.title() == f"{TEXT} · minibert trace"
    assert page.locator("section.stop").count() == 13
    for selector in (".strips canvas", ".field canvas", ".heads canvas", ".matrix canvas", ".cube canvas", "path"):
        assert page.locator(selector).count() > 0
    assert page.locator(".draw:empty").count() == 0
    page.locator("#attention").scroll_into_view_if_needed()
    empty = browser.new_page()
    assert len(page.screenshot()) > 5 * len(empty.screenshot())
    empty.close()


def test_a_relative_with_narrow_tables_and_no_segments_is_drawn_too(visit, traces):
    page = visit("narrow")
    assert page.locator(".draw:empty").count() == 0
    strips = page.locator(".strips").first
    assert strips.locator(".name").all_inner_texts() == ["token", "+position", "=sum", "→widened"]
    assert [canvas.evaluate("canvas => canvas.width") for canvas in strips.locator("canvas").all()] == [8, 8, 8, 768]
    choose(page, "part", "AB")
    choose(page, "layer", 1)
    largest = traces["narrow"].attention(1, "mean")[
        : traces["narrow"].sides.count(0), traces["narrow"].sides.count(0) :
    ]
    assert weights(page)[0][1] == pytest.approx(float(largest.max()), abs=6e-4)


def test_a_token_is_focused_by_keyboard_and_the_arcs_show_what_it_looks_at(visit, traces):
    page = visit()
    before = html(page, ".arcs")
    page.locator("input[name=token]").first.focus()
    for _ in range(5):  # [CLS] a visually stunning rum
        page.keyboard.press("ArrowRight")
    assert html(page, ".arcs") != before
    assert page.locator(".unit.here").text_content() == "rum"
    row = traces["one"].attention(0, "mean")[4]
    largest = row.sort(descending=True).values[:8].tolist()
    assert [weight for _, weight in weights(page)] == pytest.approx(largest, abs=6e-4)
    best = traces["one"].tokens[int(row.argmax())]
    assert re.sub(r"\s+", " ", page.locator("#said").inner_text()).startswith(f"rum looks at {best} {row.max():.2f},")
    assert page.locator(".strips .of").first.inner_text() == "Vectors of rum"


def test_the_pointer_shows_what_a_token_looks_at_while_it_rests_there(visit):
    page = visit()
    before = html(page, ".arcs")
    page.locator(".arcs .unit").nth(2).hover()
    assert page.locator(".unit.here").text_content() == "visually"
    assert page.locator("#looks").inner_text().startswith("visually looks at ")
    page.locator("#attention h3").hover()
    assert html(page, ".arcs") == before


def test_the_strips_show_the_numbers_of_the_chosen_token(visit, traces):
    page = visit()
    choose(page, "token", 7)
    shown = page.locator(".strips").first.locator(".strip").last
    vector = traces["one"].hidden_states[0][7]
    numbers = re.findall(r"[−\d.]+(?=,)", shown.locator(".numbers").inner_text())[:6]
    assert [float(number.replace("−", "-")) for number in numbers] == pytest.approx(vector[:6].tolist(), abs=0.006)
    assert f"length {vector.norm():.2f}" == shown.locator(".norm").inner_text()


def test_a_switch_of_layer_or_head_changes_the_pictures(visit, traces):
    page = visit()

    def drawn() -> tuple[str, ...]:
        field = picture(page, ".field[data-vectors=output] canvas")
        return picture(page), field, html(page, ".arcs"), html(page, ".norms")

    first = drawn()
    choose(page, "layer", 4)
    second = drawn()
    assert all(one != other for one, other in zip(first, second, strict=True))
    choose(page, "head", 7)
    assert picture(page) != second[0]
    largest = float(traces["one"].attention(4, 7).max())
    assert weights(page)[0][1] == pytest.approx(largest, abs=6e-4)
    choose(page, "head", "rollout")
    assert weights(page)[0][1] == pytest.approx(float(traces["one"].attention(4, "rollout").max()), abs=6e-4)


def test_pieces_joined_to_words_are_summed_and_averaged_as_in_python(visit, traces):
    page = visit()
    page.locator("#merge").check()
    drawn = page.evaluate("() => { const v = trace.view(); return v.rows.map(q => v.columns.map(k => v.at(q, k))) }")
    expected = traces["one"].attention(0, "mean", merge=True)
    assert torch.allclose(torch.tensor(drawn), expected, atol=1e-4)
    assert "rumination" in page.locator(".arcs").text_content()


def test_the_quadrants_of_a_pair_show_a_part_of_it(visit, traces):
    page = visit("pair")
    A = traces["pair"].segments.count(0)
    choose(page, "part", "AB")
    drawn = page.evaluate("() => { const v = trace.view(); return v.rows.map(q => v.columns.map(k => v.at(q, k))) }")
    assert torch.allclose(torch.tensor(drawn), traces["pair"].attention(0, "mean")[:A, A:], atol=1e-4)
    shares = [float(cell.inner_text()) for cell in page.locator(".quadrants tbody td").all()]
    assert shares[0] + shares[1] == pytest.approx(1, abs=0.002)
    choose(page, "token", A + 1)
    assert "is not in the text that looks here" in page.locator("#looks").inner_text()


def cells(page: Any, table: str) -> list[list[str]]:
    """The rows of a drawn table, as they are read."""
    rows = page.locator(f"{table} tbody tr").all()
    return [[cell.strip() for cell in row.locator("th, td").all_inner_texts()] for row in rows]


def number(text: str) -> float:
    return float(text.replace("−", "-").removesuffix("%").strip())


def pair_tables(page: Any) -> tuple[list[list[str]], list[list[str]]]:
    """The products and the softmax of the chosen pair."""
    return cells(page, ".pair .wide >> nth=0 >> table"), cells(page, ".pair .wide >> nth=1 >> table")


def softmax_of_scores(traced: Trace, layer: int, head: int, query: int) -> torch.Tensor:
    return traced.layers[layer]["scores"][head, query].softmax(dim=-1)


def test_the_steps_of_a_pair_are_the_models_own(visit, traces):
    page = visit(where="#layer=1&head=8&pair=4,5")
    products, shares = pair_tables(page)
    one, W = traces["one"].layers[1], 32
    q, k = one["query"][4, 8 * W : 9 * W], one["key"][5, 8 * W : 9 * W]
    order = (q * k).abs().argsort(descending=True)[:6].tolist()
    assert [int(row[0]) for row in products[:6]] == order
    for row, w in zip(products, order, strict=False):
        assert [number(cell) for cell in row[1:4]] == pytest.approx(
            [float(x) for x in (q[w], k[w], q[w] * k[w])], abs=0.0105
        )
    assert sum(number(row[3]) for row in products[:-1]) == pytest.approx(number(products[-1][3]), abs=0.05)
    assert number(products[-1][3]) == pytest.approx(float(q @ k), abs=0.02)
    looked_at = {int(row[0].split()[-1]): row for row in shares[:6]}
    scores, probs = one["scores"][8, 4], softmax_of_scores(traces["one"], 1, 8, 4)
    assert torch.equal(probs, one["probs"][8, 4]) and 5 in looked_at
    for j, row in looked_at.items():
        assert [number(row[1]), number(row[3])] == pytest.approx([float(scores[j]), float(probs[j])], abs=0.0105)
        assert number(row[3]) == pytest.approx(float(probs[j]), abs=0.0011)
    assert sum(number(row[3]) for row in shares[:-1]) == pytest.approx(number(shares[-1][3]), abs=0.004)
    said = page.locator(".pair").inner_text()
    assert f"= {scores[5]:.2f}." in said and f"= {probs[5]:.3f}. (" in said
    # A mistake would be seen: another head, the pair turned round, and scores that were never scaled.
    others = softmax_of_scores(traces["one"], 1, 7, 4), softmax_of_scores(traces["one"], 1, 8, 5)
    assert all(abs(other[5] - number(looked_at[5][3])) > 0.01 for other in (*others, (scores * W**0.5).softmax(-1)))


def test_the_pair_is_chosen_by_lists_and_the_choice_is_said(visit, traces):
    page = visit()
    choose(page, "layer", 2)
    choose(page, "head", 3)
    page.locator("#from").select_option("3")
    page.locator("#to").select_option("7")
    assert page.evaluate("[trace.state.token, ...trace.state.pair]") == [3, 3, 7]
    weight = float(traces["one"].layers[2]["probs"][3, 3, 7])
    assert page.locator("#said").inner_text().endswith(f"weight {weight:.3f}.")
    choose(page, "token", 5)  # the pair follows the token: what it looks at most
    best = int(traces["one"].layers[2]["probs"][3, 5].argmax())
    assert page.locator("#from").input_value() == "5" and page.locator("#to").input_value() == str(best)
    choose(page, "head", "mean")
    assert "the mean has no queries, so head 0 stands in" in page.locator(".pair").inner_text()


def test_of_a_long_text_the_first_tokens_have_steps_and_their_weights_count_all(visit, traces):
    layer = traces["long"].layers[2]
    probs, of_kept = (
        layer["probs"][:, :24, :24],
        layer["scores"][:, :24, :24].softmax(dim=-1),
    )
    head, query, key = map(int, torch.unravel_index((of_kept - probs).argmax(), probs.shape))
    page = visit("long", where=f"#layer=2&head={head}&pair={query},{key}")
    assert len(traces["long"].tokens) > 24 and page.locator("#to option").count() == 24
    chosen = next(row for row in pair_tables(page)[1] if row[0].endswith(f" {key}"))
    assert number(chosen[3]) == pytest.approx(float(probs[head, query, key]), abs=1e-3)
    assert float(of_kept[head, query, key] - probs[head, query, key]) > 0.01
    choose(page, "token", 28)
    assert "Queries and keys are kept of the first 24 tokens" in page.locator(".pair").inner_text()


def test_the_strongest_units_are_those_of_the_token_and_their_shares_add_up(visit, traces):
    page = visit(where="#layer=3&token=2")
    rows = cells(page, ".units table")
    units = traces["one"].units[3]
    assert [int(row[0]) for row in rows[:6]] == units.unit[2].tolist()
    assert [number(row[1]) for row in rows[:6]] == pytest.approx(units.activation[2].tolist(), abs=0.006)
    assert [number(row[2]) for row in rows[:6]] == pytest.approx((100 * units.share[2]).tolist(), abs=0.06)
    assert sum(number(row[2]) for row in rows[:-1]) == pytest.approx(100, abs=0.5)
    assert number(rows[-1][2]) == 100
    choose(page, "token", 3)
    assert cells(page, ".units table")[0] != rows[0]


# -- the state in the address


def state_of(page: Any) -> dict[str, Any]:
    return {name: page.evaluate(f"trace.state.{name}") for name in ("layer", "head", "token", "pair", "merge", "part")}


OPENED = {"layer": 0, "head": "mean", "token": -1, "pair": None, "merge": False, "part": "all"}


def test_a_link_shows_what_it_names_at_its_stop(visit, traces):
    page = visit(where="#layer=1&head=8&token=4&pair=4,5&merge=true")
    assert state_of(page) == OPENED | {"layer": 1, "head": "8", "token": 4, "pair": [4, 5], "merge": True}
    for name, value in (("layer", 1), ("head", 8), ("token", 4)):
        assert page.locator(f'input[name={name}][value="{value}"]').is_checked()
    assert page.locator("#merge").is_checked() and page.locator(".unit.here").text_content() == "rumination"
    assert page.locator("#pair-title").evaluate("e => e.getBoundingClientRect().top") < page.evaluate("innerHeight")
    assert "layer 1, head 8" in page.locator(".weights caption").inner_text()


@pytest.mark.parametrize("width", [390, 1280])
def test_the_stop_of_a_link_is_not_hidden_by_what_stays_on_top(width, visit):
    page = visit(where="#layer=1&head=8", viewport={"width": width, "height": 800}, reduced_motion="reduce")
    title, bar = ("e => e.getBoundingClientRect().top", "e => e.getBoundingClientRect().bottom")
    assert page.locator("#attention-title").evaluate(title) >= page.locator(".pick.layers").evaluate(bar) - 1


def test_each_choice_is_written_into_the_address_and_comes_back_from_it(visit):
    page = visit("pair")
    entries = page.evaluate("history.length")
    choose(page, "layer", 2)
    assert page.evaluate("location.hash") == "#layer=2"
    choose(page, "head", "rollout")
    choose(page, "part", "AB")
    page.locator("#merge").check()
    page.locator("#to").select_option("6")
    assert page.evaluate("location.hash") == "#layer=2&head=rollout&token=0&pair=0,6&merge=true&part=AB"
    chosen = state_of(page)
    page.reload()
    assert state_of(page) == chosen
    assert page.evaluate("history.length") == entries
    for name, value in (("layer", 0), ("head", "mean"), ("part", "all"), ("token", -1)):
        choose(page, name, value)
    page.locator("#merge").uncheck()
    assert page.evaluate("location.href").endswith(".html")


@pytest.mark.parametrize(
    "where",
    [
        "#",
        "#nonsense",
        "#layer=9&head=12&token=99&pair=4",
        "#layer=-1&head=1e1&token=01&pair=4,99",
        "#layer=&head=&token=&pair=,&merge=1&part=AB",
        "#head=<img src=x onerror=alert(1)>&pair=1,2,3&constructor=1&__proto__=2",
        "#token=%E0%A4%A&layer=0x1&pair=-1,2",
    ],
)
def test_nonsense_in_the_address_is_ignored(where, visit):
    page = visit(where=where)
    assert state_of(page) == OPENED
    assert page.evaluate("scrollY") == 0


def test_what_is_sensible_beside_nonsense_is_taken(visit):
    assert state_of(visit(where="#layer=2&head=99&pair=1,2000")) == OPENED | {"layer": 2}


def test_another_link_opened_in_the_page_is_followed_and_one_to_a_stop_changes_nothing(visit):
    page = visit(where="#layer=1&head=8&token=4")
    page.evaluate("location.hash = '#feed-forward'")
    page.wait_for_timeout(50)
    assert state_of(page) == OPENED | {"layer": 1, "head": "8", "token": 4}
    page.evaluate("location.hash = '#layer=3'")
    page.wait_for_function("trace.state.layer === 3")
    assert state_of(page) == OPENED | {"layer": 3}
    assert page.locator('input[name=head][value="mean"]').is_checked()


def test_dark_is_another_picture_by_preference_and_by_button(visit):
    page = visit(color_scheme="light")
    light, drawn = page.evaluate("getComputedStyle(document.body).backgroundColor"), picture(page)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("document.querySelector('#theme').textContent === 'Light'")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    assert picture(page) != drawn
    page.locator("#theme").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == light
    assert picture(page) == drawn


@pytest.mark.parametrize("name", ["one", "pair"])
def test_a_phone_scrolls_down_only_and_a_tap_chooses_a_token(name, visit):
    page = visit(name, viewport={"width": 390, "height": 844}, has_touch=True, reduced_motion="reduce")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert not page.locator("#map").evaluate("map => map.open")
    page.locator(".arcs .unit").nth(3).tap()
    assert page.evaluate("trace.state.token") == 3
    assert page.locator('input[name=token][value="3"]').is_checked()
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_a_link_to_the_source_leads_to_its_line(visit):
    page = visit()
    page.locator("#attention .links a").nth(2).click()
    assert "scores.softmax(dim=-1)" in page.locator(".row:target").inner_text()


def test_what_can_be_pressed_has_a_name_and_headings_go_down_in_steps(visit):
    page = visit("pair")
    unnamed = page.evaluate(
        "[...document.querySelectorAll('input, button, canvas:not([aria-hidden]), svg, nav, section')]"
        ".filter(e => !(e.labels?.[0]?.textContent || e.ariaLabel || e.getAttribute('aria-labelledby')"
        "|| e.textContent).trim()).length"
    )
    assert unnamed == 0
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map(h => Number(h.tagName[1]))")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert page.locator("main").count() == page.locator("nav").count() == page.locator("header").count() == 1


def test_the_frame_of_jupyter_works_in_a_page_of_others(browser, traces, tmp_path):
    file = tmp_path / "notebook.html"
    file.write_text(f"<!doctype html><body>{traces['one']._repr_html_()}", encoding="utf-8")
    page = browser.new_page()
    page.goto(file.as_uri())
    inner = page.frame_locator("iframe")
    inner.locator('input[name=layer][value="3"]').check()
    assert "layer 3" in inner.locator(".weights caption").inner_text()
    page.close()
