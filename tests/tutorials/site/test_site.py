"""The course's site, built once: links lead somewhere, nothing is cut off, and nothing is loaded from elsewhere."""

import html
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from notes import MODULES
from support.notebooks import NOTEBOOKS, TUTORIALS, cells_of

import minibert
from minibert.cli.main import COMMANDS
from minibert.utils.templates import DIAGRAMS

pytestmark = pytest.mark.slow
ROOT = TUTORIALS.parent
BOOKS = [*NOTEBOOKS, *(TUTORIALS / "solutions" / path.name for path in NOTEBOOKS)]
PAGES = [
    "README",
    *(f"tutorials/{name}" for name in ("README", "MANUAL", "GLOSSARY", "CAPSTONE", "TEACHERS")),
    *("tutorials/solutions/README", "tutorials/experiments/README"),
    *(f"tutorials/site/{name}" for name in ("source", "journey", "diagrams", "names", "commands")),
    *("minibert/bench/README", "weights/README", "weights/minibert-novels/README", "minibert/vectors/ray"),
    *(f"minibert/{module}" for module in MODULES),
    *(path.relative_to(ROOT).with_suffix("").as_posix() for path in BOOKS),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make site` does."""
    folder = tmp_path_factory.mktemp("site")
    options = ["-q", "-W", "-c", str(TUTORIALS / "site"), "-d", str(folder / "cache")]
    command = [sys.executable, "-m", "sphinx", *options, str(ROOT), str(folder / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder / "site"


# -- links and content


class Links(HTMLParser):
    """The addresses that a page refers to, those of the links that a reader sees, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attributes if value is not None}
        self.addresses += [found[name] for name in ("href", "src") if name in found]
        self.anchors |= {found["id"]} if "id" in found else set()


def dead_links(folder: Path) -> list[tuple[str, str]]:
    """The links of all pages that lead to no file, or to no anchor in it."""
    pages = {path.resolve(): Links(path.read_text("utf-8")) for path in folder.rglob("*.html")}
    dead = []
    for path, page in pages.items():
        for address in set(page.addresses):
            file, _, anchor = address.partition("#")
            target = (path.parent / unquote(file.partition("?")[0])).resolve() if file else path
            known = not anchor or target not in pages or unquote(anchor) in pages[target].anchors
            outside = re.match(r"\w+:", address)
            # the trace page keeps its state after the #
            if not outside and not (target.is_file() and (known or path.parent.name == "trace")):
                dead.append((path.relative_to(folder.resolve()).as_posix(), address))
    return dead


def test_every_link_leads_to_a_file_and_to_an_anchor_in_it(site: Path) -> None:
    assert dead_links(site) == []
    assert len(list(site.rglob("*.html"))) > 150


@pytest.mark.parametrize("link", ["no_such.html", "README.html#no-such-heading", "tutorials/"])
def test_a_dead_link_would_be_found(link: str, tmp_path: Path) -> None:
    (tmp_path / "README.html").write_text(f'<h2 id="a-heading"></h2><a href="#a-heading"></a><a href="{link}"></a>')
    assert dead_links(tmp_path) == [("README.html", link)]


def test_the_bar_at_the_side_has_every_notebook_once(site: Path) -> None:
    bar = (site / "README.html").read_text("utf-8").partition('class="sidebar-tree"')[2].partition("</aside>")[0]
    linked = Links(bar).addresses
    assert [path.stem for path in NOTEBOOKS if linked.count(f"tutorials/{path.stem}.html") != 1] == []


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.relative_to(TUTORIALS).as_posix())
def test_a_notebook_shows_the_outputs_that_are_stored_in_it(path: Path, site: Path) -> None:
    text = (site / path.relative_to(ROOT)).with_suffix(".html").read_text("utf-8")
    outputs = [output for cell in cells_of(path) if cell["cell_type"] == "code" for output in cell["outputs"]]
    shown = " ".join(html.unescape(re.sub("<[^>]*>", "", text)).split())
    printed = [" ".join("".join(output.get("text", "")).split()) for output in outputs]
    assert [one for one in printed if one not in shown] == []
    assert text.count("<img") >= sum("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.relative_to(TUTORIALS).as_posix())
def test_no_word_of_the_prose_is_lost(path: Path, site: Path) -> None:
    """Such as the rest of a paragraph, whose next line begins with %."""
    source = "\n".join("".join(cell["source"]) for cell in cells_of(path) if cell["cell_type"] == "markdown")
    prose = re.sub(r"\]\([^)]*\)|<[^>]*>|\$+[^$]*\$+", " ", source)
    shown = (site / path.relative_to(ROOT)).with_suffix(".html").read_text("utf-8")
    shown = html.unescape(re.sub("<[^>]*>", "", shown))
    assert words_of(prose) - words_of(shown) == Counter()


def words_of(text: str) -> Counter[str]:
    return Counter(re.findall("[a-z]{3,}", text.lower()))


def test_links_to_the_source_lead_to_annotated_pages_and_every_diagram_is_shown(site: Path) -> None:
    page = (site / "tutorials" / "2_through_the_encoder.html").read_text("utf-8")
    assert 'href="../minibert/model.html"' in page
    for module in MODULES:
        assert '<div class="annotated">' in (site / "minibert" / f"{module}.html").read_text("utf-8")
    shown = (site / "tutorials" / "site" / "diagrams.html").read_text("utf-8")
    assert {path.stem for path in DIAGRAMS.glob("*.svg")} == set(re.findall(r'id="diagram-(\w+)-title"', shown))


def test_the_first_notebook_links_the_annotated_source(site: Path) -> None:
    page = (site / "tutorials" / "1_first_contact.html").read_text("utf-8")
    assert re.search(r'href="site/source\.html"[^>]*><span[^>]*>annotated source<', page)


def test_every_public_name_and_every_command_can_be_looked_up_and_searched(site: Path) -> None:
    names = Links((site / "tutorials/site/names.html").read_text("utf-8")).anchors
    wanted = {f"minibert.{name}" for name in minibert.__all__ if name not in ("stream", "train")}
    assert wanted | {"minibert.train.finetune", "minibert.stream.embed_file", "minibert.Embedder.width"} <= names
    commands = Links((site / "tutorials/site/commands.html").read_text("utf-8")).anchors
    assert {f"minibert-{name.replace(' ', '-')}" for name in COMMANDS} <= commands
    index = (site / "searchindex.js").read_text("utf-8")
    assert "measure_retriev" in index and "no_such_word" not in index


def test_a_notebook_links_the_names_that_it_uses(site: Path) -> None:
    page = (site / "tutorials/1_first_contact.html").read_text("utf-8")
    assert 'href="site/names.html#minibert-embed"' in page and 'names.html#minibert-mine"' not in page


# -- in a browser

# What a reader cannot see and cannot scroll to. Furo keeps its two bars beside the page until they are asked for.
CUT_OFF = """[...document.querySelectorAll("article *")].filter(node => {
    const box = node.getBoundingClientRect();
    if (!box.width || box.right <= document.documentElement.clientWidth + 1 && box.left >= -1) return false;
    for (let parent = node.parentElement; parent && parent.tagName !== "ARTICLE"; parent = parent.parentElement)
        if (["auto", "scroll"].includes(getComputedStyle(parent).overflowX)) return false;
    return true;
}).map(node => node.outerHTML.slice(0, 200))"""
MISSING = "[...document.images].filter(image => image.complete && !image.naturalWidth).map(image => image.src)"


@pytest.fixture
def visit(browser: Any, site: Path) -> Iterator[Any]:
    """Open a page of the site in a window of some width: the page, and what is wrong with it.

    Each visit has a page of its own: a page that is left gives up what it still loads, which is no fault of the next.
    """
    windows: dict[tuple[int, str], Any] = {}

    def call(name: str, width: int, scheme: str) -> tuple[Any, list[str]]:
        if (width, scheme) not in windows:
            viewport = {"width": width, "height": 844}
            windows[width, scheme] = browser.new_context(viewport=viewport, color_scheme=scheme)
        window = windows[width, scheme]
        for left in window.pages:
            left.close()
        page = window.new_page()
        wrong: list[str] = []
        own = (site.as_uri(), "data:", "blob:")
        page.on("request", lambda request: request.url.startswith(own) or wrong.append(request.url))
        page.on("requestfailed", lambda request: wrong.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(f"{site.as_uri()}/{name}.html")
        wide = page.evaluate("document.documentElement.scrollWidth")
        found = [*wrong, *page.evaluate(CUT_OFF), *page.evaluate(MISSING)]
        return page, found + [f"{wide} wide"] * (wide > width)

    yield call
    for window in windows.values():
        window.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_cut_off_and_nothing_comes_from_elsewhere(visit: Any, site: Path, width: int, scheme: str) -> None:
    traced = [f"trace/{path.stem}" for path in (site / "trace").iterdir()]
    assert len(traced) == 4
    wrong = {name: found for name in [*PAGES, *traced] if (found := visit(name, width, scheme)[1])}
    assert wrong == {}


@pytest.mark.parametrize(
    "name", ["README", "tutorials/2_through_the_encoder", "tutorials/3_wordpiece", "minibert/model"]
)
def test_on_a_phone_what_is_printed_keeps_its_columns_and_scrolls(visit: Any, name: str) -> None:
    page, _ = visit(name, 390, "light")
    printed = "[...document.querySelectorAll(':is(.cell_output, .highlight-none, .prose) pre:not(details pre)')]"
    styles = page.evaluate(f"{printed}.map(getComputedStyle).map(one => [one.whiteSpace, one.overflowX])")
    assert styles and {tuple(one) for one in styles} == {("pre", "auto")}


def test_on_a_phone_sixty_columns_of_what_is_printed_fit(visit: Any) -> None:
    page, _ = visit("tutorials/13_ablation", 390, "light")
    columns = "Math.max(...node.textContent.split('\\n').map(line => [...line].length))"
    found = page.evaluate(
        "[...document.querySelectorAll('.cell_output pre')].filter(node => node.offsetParent)"
        f".map(node => [{columns}, node.scrollWidth > node.clientWidth])"
    )
    assert any(columns > 45 and not scrolls for columns, scrolls in found)
    assert [columns for columns, scrolls in found if scrolls and columns <= 60] == []


@pytest.mark.parametrize("name", ["README", "minibert/model"])
def test_light_and_dark_follow_the_system_and_the_switch(visit: Any, name: str) -> None:
    grounds = "[document.body, document.querySelector('svg.diagram .paper')].map(node => getComputedStyle(node))"
    ground = f"{grounds}.map((style, place) => place ? style.fill : style.backgroundColor)"
    light = visit(name, 1280, "light")[0].evaluate(ground)
    page, _ = visit(name, 1280, "dark")
    dark = page.evaluate(ground)
    assert len(set(light)) == len(set(dark)) == 1 and light != dark
    page.locator(".theme-toggle:visible").first.click()
    assert page.evaluate(ground) == light
