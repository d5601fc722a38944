"""The annotated source: nothing of the source is lost, links lead somewhere, pages need nothing from outside."""

from __future__ import annotations

import ast
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import torch

import minibert.model
from minibert.annotated.__main__ import main
from minibert.annotated.book import Book, end_of_equation
from minibert.annotated.flow import Step, flow, watched, weights
from minibert.annotated.notes import NOTES, Note
from minibert.annotated.pages import PACKAGE, build, equation, formula
from minibert.annotated.pages import page as page_html
from minibert.annotated.rooms import NAMES, ROOMS, TITLES, Tutorial
from minibert.annotated.source import Source
from minibert.diagrams import DIAGRAMS
from minibert.extras import install_hint

VOID = {"meta", "link", "img", "br", "input"}


class Page(HTMLParser):
    """What a browser would make of a page: the text of each line's element, ids in order, links, tags."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.lines: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.outside: list[str] = []
        self.open: list[tuple[str, bool]] = []  # tag, and whether it is the element of a line
        self.feed(html)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        name = values.get("id") or ""
        if name:
            self.ids.append(name)
        if tag == "a":
            self.links.append(values["href"] or "")
        if tag in ("script", "img", "iframe", "link", "object") or "src" in values:
            self.outside.append(tag)
        is_line = re.fullmatch(r"L\d+", name) is not None
        if is_line:
            self.lines.append((name, ""))
        if tag not in VOID:
            self.open.append((tag, is_line))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1][0] == tag, f"</{tag}> closes {self.open[-1][0]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if any(is_line for _, is_line in self.open):
            name, text = self.lines[-1]
            self.lines[-1] = name, text + data


class Loose(Page):
    """A page that was spoilt on purpose, whose tags may be out of balance."""

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1][0] == tag:
            self.open.pop()

    def close(self) -> None:
        super().close()
        self.open = []


def source_of(page: Page) -> str:
    """The source, put together from a page."""
    return "".join(f"{text}\n" for _, text in page.lines)


def page_of(text: str, room: str = "config") -> str:
    source = Source(room, text)
    return page_html(Book([source]), source)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("annotated")).parent


@pytest.fixture(scope="module")
def pages(folder: Path) -> dict[str, Page]:
    return {path.name: Page(path.read_text(encoding="utf-8")) for path in folder.iterdir()}


@pytest.mark.parametrize("name", NAMES)
def test_the_text_of_a_page_is_the_source_line_by_line(pages: dict[str, Page], name: str) -> None:
    page = pages[f"{name}.html"]
    text = (PACKAGE / f"{NAMES[name]}.py").read_text(encoding="utf-8")
    assert [name for name, _ in page.lines] == [f"L{i + 1}" for i in range(len(text.splitlines()))]
    assert source_of(page) == text


SAMPLE = '"""Doc of `x`, whole."""\n\n# why (B,S)\nx = f(1)  # (B,S)\n\n\ndef f(y: int) -> int:\n    return y\n'


@pytest.mark.parametrize(
    ("pattern", "replacement"),
    [
        ("return", "retrun"),  # a character changed in code
        (", whole", ""),  # words left out of prose
        ("<i hidden>`</i>", ""),  # marks that only the source has
        (r'<span id="L4">.*?</span></span>', ""),  # a line lost
        (r'(<span id="L7">.*</span>)(<span id="L8">.*</span>)', r"\2\1"),  # two lines exchanged
    ],
)
def test_a_line_that_is_lost_moved_or_changed_would_be_seen(pattern: str, replacement: str) -> None:
    html = page_of(SAMPLE)
    assert source_of(Page(html)) == SAMPLE
    spoilt, count = re.subn(pattern, replacement, html, count=1)
    assert count == 1
    assert source_of(Loose(spoilt)) != SAMPLE


@pytest.mark.parametrize("name", NAMES)
def test_every_definition_has_an_anchor(pages: dict[str, Page], name: str) -> None:
    tree = ast.parse((PACKAGE / f"{NAMES[name]}.py").read_text(encoding="utf-8"))
    expected = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            expected.append(node.name)
        if isinstance(node, ast.ClassDef):
            expected += [f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)]
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            expected.append(ast.unparse(node.targets[0]))
    assert expected
    assert set(expected) <= set(pages[f"{name}.html"].ids)


def test_the_anchor_of_a_definition_stands_in_its_line(pages: dict[str, Page]) -> None:
    ids = pages["model.html"].ids
    line = minibert.model.Encoder.forward.__code__.co_firstlineno
    assert ids.index(f"L{line}") < ids.index("Encoder.forward") < ids.index(f"L{line + 1}")


def test_no_id_is_given_twice(pages: dict[str, Page]) -> None:
    for page in pages.values():
        assert len(page.ids) == len(set(page.ids))


def test_every_link_between_the_pages_leads_somewhere(pages: dict[str, Page]) -> None:
    followed = 0
    for name, page in pages.items():
        for link in page.links:
            if not link.startswith("../"):
                target, _, anchor = link.partition("#")
                assert not anchor or anchor in pages[target or name].ids, link
                assert (target or name) in pages, link
                followed += 1
    assert followed > 2000


TUTORIALS = Path(__file__).parents[2] / "tutorials"


def headings(notebook: Path) -> set[str]:
    """The anchors that Jupyter gives the headings of a notebook."""
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    prose = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return {heading.replace(" ", "-") for heading in re.findall(r"(?m)^#+ (.+?)\s*$", prose)}


def is_there(link: str) -> bool:
    """Whether a link out of the folder leads to a tutorial, and to a heading that it has."""
    if link == "../../tutorials/GLOSSARY.md":
        return (TUTORIALS / "GLOSSARY.md").is_file()
    found = re.fullmatch(r"\.\./\.\./tutorials/(\w+\.ipynb)(?:#(.+))?", link)
    if found is None or not (TUTORIALS / found[1]).is_file():
        return False
    return found[2] is None or unquote(found[2]) in headings(TUTORIALS / found[1])


def test_every_link_out_of_the_folder_leads_to_a_tutorial_and_a_heading_in_it(pages: dict[str, Page]) -> None:
    links = {link for page in pages.values() for link in page.links if link.startswith("../")}
    assert [link for link in sorted(links) if not is_there(link)] == []
    assert len(links) > 20


def test_a_heading_that_is_gone_would_be_seen() -> None:
    assert is_there(Tutorial("2_through_the_encoder", "All heads").address)
    assert not is_there(Tutorial("2_through_the_encoder", "No such heading").address)
    assert not is_there(Tutorial("2_no_such_notebook").address)


def test_every_room_has_a_tutorial_and_every_tutorial_a_room() -> None:
    assert all(ROOMS.values())
    given = {tutorial.name for tutorials in ROOMS.values() for tutorial in tutorials}
    assert given == {path.stem for path in TUTORIALS.glob("*.ipynb")}


def test_tutorials_are_called_what_they_call_themselves() -> None:
    firsts = {path.stem: json.loads(path.read_text("utf-8"))["cells"][0] for path in TUTORIALS.glob("*.ipynb")}
    assert {name: "".join(cell["source"]).split("\n")[0].removeprefix("# ") for name, cell in firsts.items()} == TITLES


@pytest.mark.parametrize("room", NOTES)
def test_every_note_stands_beside_a_definition_and_shows_diagrams_that_exist(room: str) -> None:
    source = Source(room, (PACKAGE / f"{room}.py").read_text("utf-8"))
    for name, note in NOTES[room].items():
        assert not name or name in source.starts.values()
        assert set(note.diagrams) <= set(DIAGRAMS)
        assert note != Note()


def test_every_class_of_the_model_has_an_equation_a_diagram_its_weights_and_a_tutorial() -> None:
    space = vars(minibert.model).items()
    classes = {name for name, kind in space if isinstance(kind, type) and issubclass(kind, torch.nn.Module)}
    assert classes == set(weights())
    for name in classes:
        note = NOTES["model"][name]
        assert note.equations and note.words and note.diagrams and note.tutorials


def test_every_diagram_stands_on_one_page(folder: Path) -> None:
    places: dict[str, list[str]] = {name: [] for name in DIAGRAMS}
    for path in folder.iterdir():
        for name in re.findall(r'<title id="diagram-(\w+)-title">', path.read_text("utf-8")):
            places[name].append(path.name)
    assert {name: len(found) for name, found in places.items()} == dict.fromkeys(DIAGRAMS, 1)


# ---------------------------------------------------------------------------------------------------------------
# The shapes


def test_the_shapes_of_each_line_are_computed() -> None:
    attention = {step.name: step.shape for step in flow()["eager_attention"]}
    assert attention == {
        "query": (1, 12, 9, 32),
        "key": (1, 12, 9, 32),
        "value": (1, 12, 9, 32),
        "keep": (1, 1, 1, 9),
        "scores": (1, 12, 9, 9),
        "probs": (1, 12, 9, 9),
        "context": (1, 12, 9, 32),
    }
    assert [step.shape for step in flow()["Pooler.forward"]] == [(1, 9, 384), (1, 384)]
    assert flow()["Encoder.forward"][0].shape == (1, 9)


def test_each_shape_stands_beside_the_line_that_makes_it() -> None:
    lines = Path(minibert.model.__file__).read_text("utf-8").splitlines()
    for name, steps in flow().items():
        for step in steps:
            line = lines[step.line - 1]
            assert re.search(rf"\b{'return' if step.name == 'returned' else step.name}\b|def ", line), (name, step)


def test_a_line_that_is_run_twice_counts_once_and_another_file_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "steps.py"
    file.write_text("def double(x):\n    for _ in range(3):\n        x = x.repeat(2)[:4]\n    return x.sum()\n")
    space: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), space)
    found = watched(lambda: space["double"](torch.ones(2)), str(file))
    assert found == {"double": [Step(1, "x", (2,)), Step(3, "x", (4,)), Step(4, "returned", ())]}


def test_watching_leaves_another_tracer_as_it_was() -> None:
    before = sys.gettrace()

    def fails() -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        watched(fails, __file__)
    assert sys.gettrace() is before


def test_the_shapes_and_weights_stand_on_the_page(folder: Path) -> None:
    html = (folder / "model.html").read_text("utf-8")
    assert "shapes, with B = 1 and S = 9" in html
    assert '<th scope="row">scores</th><td><code>(1, 12, 9, 9)</code></td>' in html
    assert "591,360 weights, 2.6 % of the encoder's" in html  # 4 (384 x 384 + 384)


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("x_s", "x<sub>s</sub>"),
        ("x^{l+1} = 1", "x<sup>l+1</sup> = 1"),
        ("W^Q_h < 1", "W<sup>Q</sup><sub>h</sub> &lt; 1"),
        ("`a_b` x", "<code>a_b</code> x"),
    ],
)
def test_letters_stand_low_and_high(text: str, html: str) -> None:
    assert formula(text) == html


def test_variables_are_slanted_and_names_are_not() -> None:
    assert equation("x_s = LN(γ_{d} < E[id_s])") == (
        "<var>x</var><sub>s</sub> = LN(<var>γ</var><sub>d</sub> &lt; <var>E</var>[id<sub>s</sub>])"
    )


def test_the_pages_need_nothing_from_outside(folder: Path, pages: dict[str, Page]) -> None:
    for path in folder.iterdir():
        assert pages[path.name].outside == []
        style = path.read_text(encoding="utf-8").split("<style>")[1].split("</style>")[0]
        assert "url(" not in style
        assert "@import" not in style


def test_the_contents_lead_through_the_rooms_in_reading_order(pages: dict[str, Page]) -> None:
    firsts = [link for link in pages["index.html"].links if re.fullmatch(r"\w+\.html", link)]
    rooms = [link for link in dict.fromkeys(firsts[firsts.index("config.html") :])]
    assert sorted(rooms) == sorted(f"{name}.html" for name in NAMES)
    assert "model.html#Encoder" in pages["index.html"].links
    assert pages["model.html"].links[:3] == ["index.html", "config.html", "objectives.html"]
    assert pages["distillation.html"].links[-2:] == ["index.html", "student.html"]


def test_markup_in_the_source_is_text_on_the_page() -> None:
    text = '"""<b> & `<i>`."""\n\n# </span><script>\nx = "</pre><script>alert(1)</script> &amp;"  # <u>\n'
    page = Page(page_of(text))
    assert source_of(page) == text
    assert page.outside == []


def test_strings_over_several_lines_and_f_strings_keep_every_character() -> None:
    in_code = 'x = """a\n  {b}\n"""\ny = f"{x!r:>{3}} {{literal}} {x[0]} é東"\n'
    in_prose = '    """One.\n\n        indented  <  block\n\n    Two.\n    """\n'
    text = f'"""Doc."""\n\n{in_code}\n\ndef f() -> None:\n{in_prose}'
    assert source_of(Page(page_of(text))) == text


def test_docstrings_and_comments_are_prose_and_the_rest_is_code() -> None:
    function = 'def f() -> int:\n    """What."""\n    return 1\n'
    html = page_of(f'"""Doc."""\n\n# why\nx = 1  # (B,S) -> (B,S,D)\n\n\n{function}')
    prose = "".join(re.findall(r'<div class="prose">.*?</div>', html, re.DOTALL))
    assert all(words in prose for words in ("Doc.", "why", "What."))
    assert "return" not in prose
    assert "(B,S)" not in prose
    assert '<code class="shape">' in html


def test_a_comment_with_columns_stays_above_its_table() -> None:
    html = page_of('"""Doc."""\n\n# ours      theirs\nTABLE = (("a",     "b"),)\n')
    assert '<span class="c"># ours      theirs</span>' in html


def test_letters_in_shapes_say_what_they_mean(folder: Path) -> None:
    for name in ("model.html", "engine.html"):
        assert '<abbr title="B: texts in the batch">B</abbr>' in (folder / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "equation"),
    [
        ("x = LayerNorm(a + b). Mirrors BertEmbeddings.", "x = LayerNorm(a + b)"),
        ("Attention(Q, K, V) = softmax(Q Kᵀ / √W) V, written out", "Attention(Q, K, V) = softmax(Q Kᵀ / √W) V"),
        ("p(label) = softmax(c W + b) (section 4.1). Mirrors", "p(label) = softmax(c W + b)"),
        ("The vectors, of which x = 1.", ""),
        ("Both on one encoder; loss = one + other.", ""),
    ],
)
def test_an_equation_ends_before_the_words(text: str, equation: str) -> None:
    assert text[: end_of_equation(text)] == equation


def test_the_command_writes_the_pages_and_names_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "pages")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'pages' / 'index.html'}\n"
    assert sorted(path.stem for path in (tmp_path / "pages").iterdir()) == sorted([*NAMES, "index"])


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "taken").write_text("")
    assert main([str(tmp_path / "taken")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_without_pygments_the_command_says_how_to_get_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pygments.lexers", None)
    assert main([str(tmp_path / "pages")]) == 1
    assert capsys.readouterr().err.endswith(f"the annotated source needs Pygments: {install_hint('tutorials')}\n")
    assert not list(tmp_path.iterdir())


def test_a_title_between_dashes_is_shown_without_them() -> None:
    text = f'"""Doc."""\n\n# {"-" * 60}\n# The title\n\n\nx = 1\n'
    html = page_of(text)
    assert source_of(Page(html)) == text
    assert re.search(r'class="banner">.*The title', html, re.DOTALL)
    assert "--" not in re.sub(r"<i hidden>.*?</i>|<style>.*?</style>", "", html, flags=re.DOTALL)
