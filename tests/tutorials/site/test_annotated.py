"""The annotated source: nothing of the source is lost, links lead somewhere, pages need nothing from outside."""

import ast
import html
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import torch
from annotated import PACKAGE, build, formula, linked, main, page_name, prose, sections, tutorial_link
from notes import MODULES, NOTES, TITLES, Note
from support.notebooks import NOTEBOOKS, TUTORIALS

import minibert.model
from minibert.utils.templates import DIAGRAMS, coloured


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("annotated")).parent


@pytest.fixture(scope="module")
def pages(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text("utf-8") for path in folder.iterdir()}


def plain(markup: str) -> str:
    return html.unescape(re.sub("<.*?>", "", markup, flags=re.DOTALL))


def links_of(page: str) -> list[str]:
    return [html.unescape(link) for link in re.findall(r'href="(.*?)"', page)]


def words(text: str) -> str:
    return " ".join(re.findall(r"\w+", text))


def test_every_line_of_the_source_is_on_its_page_as_code_or_as_prose(pages: dict[str, str]) -> None:
    for module in MODULES:
        page, text = pages[page_name(module)], (PACKAGE / f"{module}.py").read_text("utf-8")
        rows = re.findall(r'<span id="L(\d+)"[^>]*>(.*?)</span>(?=<span id|</pre)', page)
        code, shown = {int(number): plain(line) for number, line in rows}, words(plain(page))
        for number, line in enumerate(text.splitlines(), start=1):
            assert code[number] == line if number in code else words(line) in shown, (module, line)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.stmt) and not isinstance(getattr(node, "value", None), ast.Constant):
                assert node.lineno in code, (module, node.lineno)


def test_docstrings_and_comments_are_prose_beside_the_code_that_they_explain() -> None:
    source = """
# why (B,S)
x = {"a": 1}  # (B,S)
# ours      theirs
T = (("a",     "b"),)


def f(y):
    '''What <b>.'''
    return y
def g(y):
    return y
"""
    shown = sections("'Doc of `f`.'\n" + source, {})
    assert [(one.name, one.prose, [plain(line) for _, line in one.code]) for one in shown] == [
        ("", ["Doc of `f`."], []),
        ("", ["why (B,S)"], ['x = {"a": 1}  # (B,S)', "# ours      theirs", 'T = (("a",     "b"),)']),
        ("f", ["What <b>."], ["def f(y):", "    return y", "def g(y):", "    return y"]),
    ]


def test_prose_is_escaped_and_its_code_links_and_shapes_stand_out() -> None:
    assert prose("See `f` <b>, (B,S).\n\n  a  table", {"f": "#f"}) == (
        '<p>See <a href="#f"><code>f</code></a> &lt;b&gt;, <code class="shape">(B,S)</code>.</p>\n<pre>  a  table</pre>'
    )


def test_a_class_or_a_call_leads_to_its_definition_and_an_attribute_does_not() -> None:
    (line,) = coloured("Layer(pool(pool), x.pool())  # (B,S)")
    html = linked(line, {"Layer": "#Layer", "pool": "pooling.html#pool"})
    assert links_of(html) == ["#Layer", "pooling.html#pool"] and plain(html) == plain(line)
    assert '<code class="shape">(B,S)</code>' in html


@pytest.mark.parametrize(
    ("text", "equation", "expected"),
    [
        ("x^{l+1} = 1", False, "x<sup>l+1</sup> = 1"),
        ("W^Q_h < 1", False, "W<sup>Q</sup><sub>h</sub> &lt; 1"),
        ("`a_b` x", False, "<code>a_b</code> x"),
        ("x_{d} < E[id_s]", True, "<var>x</var><sub>d</sub> &lt; <var>E</var>[id<sub>s</sub>]"),
    ],
)
def test_indices_stand_low_and_high_and_variables_are_slanted(text: str, equation: bool, expected: str) -> None:
    assert formula(text, equation) == expected


# -- links


def test_every_link_between_the_pages_leads_somewhere(pages: dict[str, str]) -> None:
    ids = {name: re.findall(r'id="(.*?)"', page) for name, page in pages.items()}
    links = [(name, link) for name, page in pages.items() for link in links_of(page) if not link.startswith("../")]
    assert len(links) > 2000 and all(len(found) == len(set(found)) for found in ids.values())
    for name, link in links:
        target, _, anchor = link.partition("#")
        assert (target or name) in pages and (not anchor or anchor in ids[target or name]), link


def leads_to_a_heading(link: str) -> bool:
    path, _, anchor = link.removeprefix("../../tutorials/").partition("#")
    text = (TUTORIALS / path).read_text("utf-8").replace(" ", "-") if (TUTORIALS / path).is_file() else ""
    return bool(re.search(rf'"#+-{re.escape(unquote(anchor))}(\\n)?"' if anchor else "#", text))


def test_every_link_out_of_the_folder_leads_to_a_tutorial_or_to_a_part_of_it(pages: dict[str, str]) -> None:
    links = {link for page in pages.values() for link in links_of(page) if link.startswith("../")}
    assert [link for link in sorted(links) if not leads_to_a_heading(link)] == [] and len(links) > 20
    assert not leads_to_a_heading(tutorial_link("2_through_the_encoder#No such heading")[1])
    assert not leads_to_a_heading("../../tutorials/2_no_such_notebook.ipynb")


def test_every_tutorial_belongs_to_a_module_and_is_called_what_it_calls_itself() -> None:
    notebooks = {path.stem: json.loads(path.read_text("utf-8")) for path in NOTEBOOKS}
    titles = {name: "".join(book["cells"][0]["source"]).split("\n")[0] for name, book in notebooks.items()}
    assert {name: title.removeprefix("# ") for name, title in titles.items()} == TITLES
    assert {name.partition("#")[0] for names in MODULES.values() for name in names} == notebooks.keys()


def test_the_contents_lead_through_the_modules_in_reading_order(pages: dict[str, str]) -> None:
    contents = pages["index.html"].partition("<main")[2].partition("</main>")[0]
    links = [link for link in links_of(contents) if "#" not in link]
    assert links == [page_name(module) for module in MODULES] and links[0] == "reference.html"
    assert links_of(pages["model.html"])[:3] == ["index.html", "config.html", "pretraining_heads.html"]


# -- notes


def test_every_note_stands_beside_a_definition() -> None:
    for module, notes in NOTES.items():
        text = (PACKAGE / f"{module}.py").read_text("utf-8")
        assert notes.keys() <= {section.name for section in sections(text, {})} and Note() not in notes.values()


def test_every_class_of_the_model_has_an_equation_a_diagram_and_a_tutorial() -> None:
    for name, kind in vars(minibert.model).items():
        if isinstance(kind, type) and issubclass(kind, torch.nn.Module) and kind.__module__ == "minibert.model":
            without = ["diagrams"] if name in ("Residual",) else []  # see that of Layer
            assert [part for part, value in NOTES["model"][name]._asdict().items() if not value] == without, name


def test_every_diagram_stands_on_one_page_and_pages_need_nothing_from_outside(pages: dict[str, str]) -> None:
    every = "".join(pages.values())
    found = re.findall(r'<title id="diagram-(\w+)-title">', every)
    assert sorted(found) == sorted(path.stem for path in DIAGRAMS.glob("*.svg"))
    assert not re.search(r"<(script|img|iframe|link|object)\b| src=|url\(|@import", every)


def test_the_command_fails_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "pages"
    file.touch()
    with pytest.raises(SystemExit, match=f"cannot write the pages: .*{file.name}"):
        main([str(file)])


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (960, "dark"), (1200, "light")])
def test_nothing_is_cut_off_and_the_pictures_can_be_read(browser: Any, folder: Path, width: int, scheme: str) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    for name in ("index", "heads", "distillation", "model"):
        page.goto((folder / f"{name}.html").as_uri())
        cut_off = page.evaluate(
            """[...document.querySelectorAll(".plate *, .prose p, section > pre *")].filter(node =>
            node.getBoundingClientRect().right > document.documentElement.clientWidth).map(node => node.outerHTML)"""
        )
        assert (page.evaluate("document.documentElement.scrollWidth"), cut_off) == (width, [])
    sizes = page.evaluate(
        """[...document.querySelectorAll("svg.diagram")].map(svg => svg.getScreenCTM().a *
        Math.min(...[...svg.querySelectorAll("text")].map(text => parseFloat(getComputedStyle(text).fontSize))))"""
    )
    grounds = page.evaluate(
        """[getComputedStyle(document.body).backgroundColor,
        ...[...document.querySelectorAll(".paper")].map(paper => getComputedStyle(paper).fill)]"""
    )
    assert len(sizes) == 7 and min(sizes) >= 13 and len(set(grounds)) == 1


def test_a_page_that_someone_else_wrote_is_kept(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("mine")
    with pytest.raises(SystemExit, match=r"index\.html"):
        main([str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == ["index.html"]
