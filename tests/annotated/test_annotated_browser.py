"""The annotated source in a real browser: nothing is cut off, on a phone too, and the pictures can be read."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minibert.annotated.__main__ import build

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="needs Chromium: apt install chromium"),
]
sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the extra test")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("annotated")).parent


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser.new_page()
        browser.close()


@pytest.mark.parametrize("width", [390, 960, 1200])
@pytest.mark.parametrize("name", ["index", "model", "heads", "distillation"])
def test_a_page_is_no_wider_than_the_window(page: Any, folder: Path, name: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto((folder / f"{name}.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == width
    cut = """() => [...document.querySelectorAll(".plate *, .prose p")].filter(node =>
      node.getBoundingClientRect().right > document.documentElement.clientWidth).map(node => node.outerHTML)"""
    assert page.evaluate(cut) == []


@pytest.mark.parametrize("width", [390, 960, 1200])
def test_no_letter_of_a_picture_is_below_13_pixels(page: Any, folder: Path, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto((folder / "model.html").as_uri())
    scales = page.evaluate(
        """() => [...document.querySelectorAll("svg.diagram")].map(svg => svg.getScreenCTM().a *
        Math.min(...[...svg.querySelectorAll("text")].map(text => parseFloat(getComputedStyle(text).fontSize))))"""
    )
    assert len(scales) == 7
    assert min(scales) >= 13


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_and_page_have_one_ground(page: Any, folder: Path, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    page.goto((folder / "model.html").as_uri())
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    papers = page.evaluate("""[...document.querySelectorAll(".paper")].map(paper => getComputedStyle(paper).fill)""")
    assert set(papers) == {ground}
