"""The block diagrams: what they state is so, the written ones are those drawn, and in a browser every text has room."""

from __future__ import annotations

import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import minibert
from minibert.diagrams import DIAGRAMS, example
from minibert.diagrams.__main__ import main
from minibert.diagrams.drawing import PALETTE, Box, Drawing, Point

PICTURES = Path(__file__).parents[2] / "tutorials" / "pictures"
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
SVG = "{http://www.w3.org/2000/svg}"

# What is wrong with the texts of a drawing, as a list of sentences. A text belongs to the box that it was drawn with,
# and must lie in it with a margin; other texts must stay clear of boxes, of each other, of lines, and on the page.
TROUBLES = """svg => {
  const area = node => { const r = node.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom] };
  const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
  const inside = (a, b, by) => a[0] >= b[0] + by && a[1] >= b[1] && a[2] <= b[2] - by && a[3] <= b[3];
  const apart = (a, b) => a[2] <= b[0] || b[2] <= a[0] || a[3] <= b[1] || b[3] <= a[1];
  // The letters, without the room above and below them that every line has.
  const letters = node => { const [l, t, r, b] = area(node), cut = (b - t) * .14; return [l, t + cut, r, b - cut] };
  const texts = [...svg.querySelectorAll("text")], found = [], page = area(svg);
  for (const text of texts) {
    const own = text.parentNode.matches(".box") ? text.parentNode.firstElementChild : null, at = letters(text);
    const say = words => found.push(`"${text.textContent}" ${words}`);
    if (own && !inside(at, area(own), 1)) say("leaves its box");
    if (!inside(at, page, 4)) say("leaves the page");
    for (const other of texts) if (other !== text && !apart(at, letters(other))) say(`is on "${other.textContent}"`);
    for (const box of svg.querySelectorAll(".box > :first-child"))
      if (box !== own && !apart(at, area(box))) say("is on a box");
    for (const frame of svg.querySelectorAll(".frame"))
      if (!apart(at, area(frame)) && !inside(at, area(frame), 1)) say("is on a frame");
    for (const line of svg.querySelectorAll(".arrow polyline")) {
      const points = [...line.points].map(p => p.matrixTransform(svg.getScreenCTM()));
      points.slice(1).forEach((p, i) => {
        const q = points[i], way = [Math.min(p.x, q.x) - .5, Math.min(p.y, q.y) - .5, Math.max(p.x, q.x) + .5,
          Math.max(p.y, q.y) + .5];
        if (!apart(at, way)) say("is on a line");
      });
    }
    if (parseFloat(getComputedStyle(text).fontSize) * scale < 13) say("is smaller than 13 pixels");
  }
  return found;
}"""


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    if BROWSER is None:
        pytest.skip("needs Chromium: apt install chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the extra test")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser.new_page()
        browser.close()


def troubles(page: Any, svg: str, width: int, scheme: str) -> list[str]:
    """What is wrong with a drawing on a page of this width, in this scheme of colours."""
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    page.set_content(f"<style>body {{ margin: 0 12px }} svg {{ max-width: 100%; height: auto }}</style>{svg}")
    found: list[str] = page.locator("svg").evaluate(TROUBLES)
    return found


def drawn(name: str) -> str:
    return str(DIAGRAMS[name]().legend().svg())


@pytest.mark.parametrize("name", DIAGRAMS)
def test_the_written_picture_is_what_the_code_draws(name: str) -> None:
    written = (PICTURES / f"{name}.svg").read_text("utf-8")
    assert written == drawn(name), "python -m minibert.diagrams tutorials/pictures writes them anew"


def test_no_picture_is_left_over() -> None:
    assert {path.stem for path in PICTURES.glob("*.svg")} == set(DIAGRAMS)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("name", DIAGRAMS)
def test_every_text_has_room_and_can_be_read(page: Any, name: str, width: int, scheme: str) -> None:
    assert troubles(page, drawn(name), width, scheme) == []


def spoilt() -> dict[str, Drawing]:
    """Drawings with one mistake each."""
    drawings = {
        name: Drawing("x", "t", "d") for name in ("its box", 'on "', "a box", "a frame", "a line", "the page", "13")
    }
    drawings["its box"].box(Box(20, 60, 40, 20), "far too long")
    drawings['on "'].text(Point(40, 30), "over the title")
    drawings["a box"].text(drawings["a box"].box(Box(20, 60, 90, 20)).centre, "free")
    drawings["a frame"].text(drawings["a frame"].frame(Box(20, 60, 90, 60)).top, "free")
    drawings["a line"].arrow(Point(10, 80), Point(200, 80))
    drawings["a line"].text(Point(90, 80), "free")
    drawings["the page"].text(Point(390, 80), "free")
    drawings["13"].text(Point(90, 80), "free", "small")
    return drawings


@pytest.mark.parametrize("mistake", spoilt())
def test_a_text_without_room_would_be_seen(page: Any, mistake: str) -> None:
    svg = str(spoilt()[mistake].svg()).replace("</style>", "svg.diagram text.small { font-size: 12px }</style>")
    assert any(mistake in trouble for trouble in troubles(page, svg, 390, "light"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_file_follows_the_scheme_of_the_reader(page: Any, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    page.goto((PICTURES / "way.svg").as_uri())
    fill = page.locator(".paper").evaluate("paper => getComputedStyle(paper).fill")
    wanted = PALETTE["page"][scheme == "dark"]
    assert fill == f"rgb({', '.join(str(int(wanted[i : i + 2], 16)) for i in (1, 3, 5))})"


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("ground", ["page", "token-fill", "vector-fill", "trained-fill", "frozen-fill"])
def test_text_stands_out_from_whatever_it_stands_on(ground: str, scheme: int) -> None:
    assert contrast(PALETTE["ink"][scheme], PALETTE[ground][scheme]) >= 7
    assert contrast(PALETTE["soft"][scheme], PALETTE["page"][scheme]) >= 4.5


def contrast(one: str, other: str) -> float:
    """The contrast of two colours as WCAG 2 defines it, 1 to 21."""

    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    lighter, darker = sorted((light(one), light(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("name", DIAGRAMS)
def test_a_picture_says_in_words_what_it_shows(name: str) -> None:
    svg = ET.fromstring(drawn(name))
    told = {child.tag.removeprefix(SVG): child for child in svg if child.tag in (f"{SVG}title", f"{SVG}desc")}
    assert svg.get("role") == "img"
    assert (svg.get("aria-labelledby") or "").split() == [told["title"].get("id"), told["desc"].get("id")]
    assert len((told["desc"].text or "").split()) > 20


@pytest.mark.parametrize("name", DIAGRAMS)
def test_a_picture_needs_nothing_from_outside(name: str) -> None:
    svg = drawn(name).replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|url\(|@import|@font-face|<script|<image|<use", svg)


def test_the_tokens_are_those_of_the_tokenizer(minilm: Path) -> None:
    row = minibert.load_tokenizer(minilm)([example.SENTENCE])
    assert tuple(row.tokens[0]) == example.TOKENS
    assert tuple(row.input_ids[0].tolist()) == example.IDS


def test_the_sizes_are_those_of_the_checkpoint(minilm: Path) -> None:
    encoder = minibert.load(minilm)
    assert encoder.config.shared_layers == example.CONFIG.shared_layers
    assert {name: tuple(values.shape) for name, values in encoder.named_parameters()} == {
        name: tuple(values.shape) for name, values in minibert.model.Encoder(example.CONFIG).named_parameters()
    }
    assert encoder.config.num_attention_heads == example.H
    assert sum(values.numel() for values in encoder.parameters()) == example.weights_of_encoder()


def test_the_command_writes_every_picture_and_names_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "new")]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "new" / f"{name}.svg") for name in DIAGRAMS]


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "taken").write_text("")
    assert main([str(tmp_path / "taken")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
