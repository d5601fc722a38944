"""The annotated source: nothing of the source is lost, links lead somewhere, pages need nothing from outside."""

from __future__ import annotations

import ast
import html
import json
import re
from pathlib import Path
from urllib.parse import unquote

import pytest
import torch

import minibert.model
from minibert.annotated.__main__ import PACKAGE, build, formula, linked, main, page_name, prose, sections
from minibert.annotated.notes import MODULES, NOTES, TITLES, Note, Tutorial
from minibert.templates import DIAGRAMS
from minibert.tracing.page import coloured

TUTORIALS = Path(__file__).parents[2] / "tutorials"
SAMPLE = '"""Doc of `f`."""\n\n# why (B,S)\nx = {"a": 1}  # (B,S)\n\n\ndef f(y):\n    """What <b>."""\n    return y\n'


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = build(tmp_path_factory.mktemp("annotated")).parent
    return {path.name: path.read_text("utf-8") for path in folder.iterdir()}


def plain(markup: str) -> str:
    """What a browser shows of HTML."""
    return html.unescape(re.sub("<.*?>", "", markup, flags=re.DOTALL))


def code_of(page: str) -> dict[int, str]:
    """The lines of code of a page, by their numbers."""
    return {int(n): plain(line) for n, line in re.findall(r'<span id="L(\d+)">(.*?)</span>(?=<span id|</pre)', page)}


def words(text: str) -> str:
    return " ".join(re.findall(r"\w+", text))


@pytest.mark.parametrize("module", MODULES)
def test_every_line_of_the_source_is_on_its_page_as_code_or_as_prose(pages: dict[str, str], module: str) -> None:
    page, text = pages[page_name(module)], (PACKAGE / f"{module}.py").read_text("utf-8")
    code, shown = code_of(page), words(plain(page))
    for number, line in enumerate(text.splitlines(), start=1):
        if number in code:
            assert code[number] == line
        else:
            assert words(line) in shown, line
    statements = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
    is_docstring = [isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant) for n in statements]
    assert {n.lineno for n, prose in zip(statements, is_docstring, strict=True) if not prose} <= code.keys()


def test_docstrings_and_comments_are_prose_beside_the_code_that_they_explain() -> None:
    found = [(s.name, s.prose, [plain(line) for _, line in s.code]) for s in sections(SAMPLE, {})]
    assert found == [
        ("", ["Doc of `f`."], []),
        ("", ["why (B,S)"], ['x = {"a": 1}  # (B,S)']),
        ("f", ["What <b>."], ["def f(y):", "    return y"]),
    ]


def test_prose_is_escaped_and_its_code_links_and_shapes_stand_out() -> None:
    assert prose("See `f` <b>, (B,S).\n\n  a  table", {"f": "#f"}) == (
        '<p>See <a href="#f"><code>f</code></a> &lt;b&gt;, <code class="shape">(B,S)</code>.</p>\n<pre>  a  table</pre>'
    )


def test_a_class_or_a_call_leads_to_its_definition_and_an_attribute_does_not() -> None:
    (line,) = coloured("Layer(pool(pool), x.pool())  # (B,S)")
    html = linked(line, {"Layer": "#Layer", "pool": "pooling.html#pool"})
    assert re.findall(r'<a href="(.*?)">', html) == ["#Layer", "pooling.html#pool"]
    assert '<code class="shape">(B,S)</code>' in html
    assert plain(html) == plain(line)


def test_a_comment_with_columns_stays_above_its_table() -> None:
    assert not sections('"""Doc."""\n\n# ours      theirs\nT = (("a",     "b"),)\n', {})[1].prose


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x_s", "x<sub>s</sub>"),
        ("x^{l+1} = 1", "x<sup>l+1</sup> = 1"),
        ("W^Q_h < 1", "W<sup>Q</sup><sub>h</sub> &lt; 1"),
        ("`a_b` x", "<code>a_b</code> x"),
    ],
)
def test_indices_stand_low_and_high(text: str, expected: str) -> None:
    assert formula(text) == expected


def test_variables_are_slanted_and_names_are_not() -> None:
    assert formula("x_s = LN(γ_{d} < E[id_s])", equation=True) == (
        "<var>x</var><sub>s</sub> = LN(<var>γ</var><sub>d</sub> &lt; <var>E</var>[id<sub>s</sub>])"
    )


# -- links


def links_of(page: str) -> list[str]:
    return [html.unescape(link) for link in re.findall(r'href="(.*?)"', page)]


def test_every_link_between_the_pages_leads_somewhere(pages: dict[str, str]) -> None:
    ids = {name: re.findall(r'id="(.*?)"', page) for name, page in pages.items()}
    links = [(name, link) for name, page in pages.items() for link in links_of(page) if not link.startswith("../")]
    for name, link in links:
        target, _, anchor = link.partition("#")
        assert not anchor or anchor in ids[target or name], link
        assert (target or name) in pages, link
    assert len(links) > 2000
    assert all(len(found) == len(set(found)) for found in ids.values())
    assert "Encoder.forward" in ids["model.html"]


def is_there(link: str) -> bool:
    """Whether a link out of the folder leads to a tutorial, and to a heading that it has."""
    path, _, anchor = link.removeprefix("../../tutorials/").partition("#")
    if not (TUTORIALS / path).is_file():
        return False
    cells = json.loads((TUTORIALS / path).read_text("utf-8"))["cells"] if anchor else []
    text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return not anchor or unquote(anchor) in [h.replace(" ", "-") for h in re.findall(r"(?m)^#+ (.+?)\s*$", text)]


def test_every_link_out_of_the_folder_leads_to_a_tutorial_and_a_heading_in_it(pages: dict[str, str]) -> None:
    links = {link for page in pages.values() for link in links_of(page) if link.startswith("../")}
    assert [link for link in sorted(links) if not is_there(link)] == []
    assert len(links) > 20
    assert not is_there(Tutorial("2_through_the_encoder", "No such heading").address)
    assert not is_there(Tutorial("2_no_such_notebook").address)


def test_every_tutorial_belongs_to_a_module_and_is_called_what_it_calls_itself() -> None:
    notebooks = {path.stem: json.loads(path.read_text("utf-8")) for path in TUTORIALS.glob("*.ipynb")}
    titles = {name: "".join(book["cells"][0]["source"]).split("\n")[0] for name, book in notebooks.items()}
    assert {name: title.removeprefix("# ") for name, title in titles.items()} == TITLES
    assert all(MODULES.values())
    assert {tutorial.name for tutorials in MODULES.values() for tutorial in tutorials} == notebooks.keys()


def test_the_contents_lead_through_the_modules_in_reading_order(pages: dict[str, str]) -> None:
    links = [link for link in links_of(pages["index.html"]) if "#" not in link]
    assert list(dict.fromkeys(links)) == [page_name(module) for module in MODULES]
    assert "model.html#Encoder" in links_of(pages["index.html"])
    assert links_of(pages["model.html"])[:3] == ["index.html", "config.html", "pretraining_heads.html"]


# -- notes


@pytest.mark.parametrize("module", NOTES)
def test_every_note_stands_beside_a_definition(module: str) -> None:
    names = [section.name for section in sections((PACKAGE / f"{module}.py").read_text("utf-8"), {})]
    assert NOTES[module].keys() <= set(names) and Note() not in NOTES[module].values()


def test_every_class_of_the_model_has_an_equation_a_diagram_and_a_tutorial() -> None:
    space = vars(minibert.model).items()
    for name in (name for name, kind in space if isinstance(kind, type) and issubclass(kind, torch.nn.Module)):
        note = NOTES["model"][name]
        assert note.equations and note.text and note.diagrams and note.tutorials


def test_every_diagram_stands_on_one_page(pages: dict[str, str]) -> None:
    found = [name for page in pages.values() for name in re.findall(r'<title id="diagram-(\w+)-title">', page)]
    assert sorted(found) == sorted(path.stem for path in DIAGRAMS.glob("*.svg"))


# -- pages and command


def test_the_pages_need_nothing_from_outside(pages: dict[str, str]) -> None:
    for page in pages.values():
        assert not re.search(r"<(script|img|iframe|link|object)\b| src=|url\(|@import", page)


def test_the_command_writes_the_pages_and_fails_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "pages")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'pages' / 'index.html'}\n"
    (tmp_path / "taken").write_text("")
    assert main([str(tmp_path / "taken")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
