"""The course as static pages: Sphinx reads README, tutorials, solutions and the source where they stand (`make site`).

Notebooks keep the outputs that are stored in them. A module with annotations shows its annotated page, any other file
of Python its source, so that links to files in the repository lead somewhere. Pages load nothing from other hosts.
"""

import ast
import json
import re
import sys
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from posixpath import dirname, relpath
from tempfile import TemporaryDirectory
from typing import Any

from docutils import nodes
from docutils.parsers import Parser
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

sys.path.insert(0, str(Path(__file__).parent))  # Sphinx runs this file from another folder
from annotated import FOLDER, PACKAGE, build, page_name
from notes import MODULES
from reference import commands, reference

import minibert
from minibert.cli.main import main
from minibert.utils.templates import DIAGRAMS, diagram

ROOT = Path(__file__).parents[2]
MODEL = "all-MiniLM-L6-v2"
TRACED = {
    "sentence": ("a visually stunning rumination on love",),
    "two-banks": ("He sat on the bank of the river and counted the money of the bank.",),
    "pair": ("A man is eating food.", "Someone is having a meal."),
}
# The notebooks with a link to the page that computes.
TRIED = ("2_through_the_encoder", "6_what_is_in_a_vector", "7_reading_attention", "18_inside_the_model")
TRY = "type a sentence of your own and watch BERT compute it in the page"
WRITTEN = {"tutorials/site/names": reference, "tutorials/site/commands": commands}
# The page of `minibert trace` stands by itself: it gets a link to the course, and the course's choice of light or dark.
BACK = """<body>
<script>
const chosen = localStorage.getItem("theme");
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
</script>
<p style="margin: 0; padding: .5rem 1rem"><a href="../tutorials/site/journey.html">← The course</a></p>"""

project = html_title = "minibert"
root_doc = "README"
extensions = ["myst_nb"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb", ".py": "python"}
include_patterns = ["README.md", "tutorials/**", "minibert/**", "weights/**", "tests/support/*.py"]
exclude_patterns = [".*", "build", "tutorials/site/conf.py", "**/.ipynb_checkpoints"]
suppress_warnings = ["toc.not_included", "myst.header", "misc.highlighting_failure"]
nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = ["dollarmath", "html_image"]
myst_heading_anchors = 4
myst_disable_syntax = ["myst_line_comment", "myst_block_break", "myst_target"]  # a line may begin with "% of"
highlight_language = "none"
html_show_copyright = False
smartquotes = False  # the text is the one that GitHub shows
pygments_dark_style = "github-dark"
html_theme = "furo"
html_static_path = ["style.css"]
html_css_files = ["style.css", "colours.css"]
html_extra_path = ["index.html"]
html_copy_source = False
html_math_renderer = "mathml"
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#1259b0",
        "color-brand-content": "#1259b0",
        "color-brand-visited": "#1259b0",
        "mystnb-source-border-color": "var(--color-background-border)",
        "mystnb-source-margin-color": "var(--color-brand-primary)",
        "sidebar-item-spacing-vertical": ".3rem",  # so that most of the list fits a screen
    },
    "dark_css_variables": {
        "color-brand-primary": "#7db8ff",
        "color-brand-content": "#7db8ff",
        "color-brand-visited": "#7db8ff",
        "color-background-primary": "#14181d",  # as the diagrams have it
        "color-background-secondary": "#1a2027",
    },
}

# What the bar at the side shows. On GitHub a README has no such list, so it is added to the one of the repository.
NAVIGATION = {
    "README": """
```{toctree}
:hidden:
The course <tutorials/README>
```
```{toctree}
:hidden:
:glob:
:caption: Core track
tutorials/[12679]_*
tutorials/1[02356789]_*
tutorials/2[0-9]_*
```
```{toctree}
:hidden:
:glob:
:caption: Engineering track
tutorials/[3458]_*
tutorials/1[14]_*
```
```{toctree}
:hidden:
:caption: Reference
tutorials/site/names
tutorials/site/commands
tutorials/MANUAL
tutorials/GLOSSARY
tutorials/build/README
tutorials/build/HINTS
tutorials/CAPSTONE
tutorials/experiments/README
tutorials/TEACHERS
tutorials/solutions/README
tutorials/site/source
tutorials/site/journey
tutorials/site/diagrams
Speed <minibert/bench/README>
Weights <weights/README>
```
""",
    "tutorials/solutions/README": """
```{toctree}
:glob:
[1-9]_*
[12][0-9]_*
```
""",
    "weights/README": """
```{toctree}
:hidden:
minibert-novels/README
```
""",
}


class Source(Parser):
    """Reads a file of Python: its annotated page if it has one, else its source."""

    supported = ("python",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        """Fill the document."""
        docname = document.settings.env.docname
        page = annotated().get(docname)
        if page:
            content = nodes.raw("", page, format="html")
        else:
            content = nodes.literal_block(inputstring, inputstring, language="python", linenos=True)
        title = nodes.title(text=f"{docname.removeprefix('minibert/')}.py")
        document += nodes.section("", title, content, ids=[nodes.make_id(docname)])


@cache
def annotated() -> dict[str, str]:
    """The annotated pages by document: what stands between their bars, with links between the pages of the site."""
    documents = {page_name(module): f"minibert/{module}" for module in MODULES}
    found = {}
    with TemporaryDirectory() as folder:
        build(Path(folder))
        for page, document in documents.items():

            def address(link: re.Match[str], here: str = dirname(document)) -> str:
                file = link["file"].removeprefix("../../")
                return f'href="{relpath(documents.get(file, file.rpartition(".")[0]), here)}.html'

            text = (Path(folder) / page).read_text("utf-8")
            bar, content = re.split(r"</nav>|<nav class=.foot", text)[:2]
            letters = "<details>" + bar.partition("<details>")[2]
            content = re.sub("<h1>.*</h1>", "", letters + content)
            content = re.sub(r'href="(?P<file>[^"#:]+\.(?:html|ipynb|md))', address, content)
            found[document] = f'<div class="annotated">{content}</div>'
    return found


class Anchors(SphinxTransform):
    """Headings have Jupyter's anchors too: spaces are -, all else stays."""

    default_priority = 100  # before links to headings are resolved

    def apply(self, **_: Any) -> None:
        """Add an anchor to each heading."""
        slugs = getattr(self.document, "myst_slugs", {})
        for section in self.document.findall(nodes.section):
            title = section[0].astext()
            anchor = title.replace(" ", "-")
            slugs.setdefault(anchor, (section.line, section["ids"][0], title))
            if anchor not in section["ids"]:
                section["ids"].append(anchor)


class Diagrams(SphinxTransform):
    """A diagram is part of its page, so that it follows the switch of light and dark."""

    default_priority = 100

    def apply(self, **_: Any) -> None:
        """Replace each picture of a diagram."""
        for image in list(self.document.findall(nodes.image)):
            path = Path(image["uri"])
            if path.parent.name == DIAGRAMS.name and path.suffix == ".svg":
                image.replace_self(nodes.raw("", diagram(path.stem), format="html"))


def complete(_: Sphinx, docname: str, source: list[str]) -> None:
    """Add what only the site needs: navigation, the list of the source; links to a folder lead to its README."""
    if docname == "tutorials/site/source":
        source[0] += contents()
    if docname in WRITTEN:
        source[0] += WRITTEN[docname]()
    if docname == "tutorials/site/journey":
        links = (f'<a href="../../trace/{name}.html">{" / ".join(texts)}</a>' for name, texts in TRACED.items())
        source[0] += f'- <a href="../../trace/try.html">Try it: {TRY}</a>\n' + "".join(f"- {link}\n" for link in links)
    if docname == "README":
        source[0] = source[0].replace("\n", f'\n\n**<a href="trace/try.html">Try it</a>**: {TRY}.\n', 1)
    if re.fullmatch(r"tutorials/(solutions/)?\d+_\w+", docname):
        source[0] = as_page(source[0], docname)
    elif not docname.startswith("minibert/"):
        source[0] = re.sub(r"(\]\((?:[\w.-]+/)+)\)", r"\1README.md)", source[0]) + NAVIGATION.get(docname, "")


def as_page(text: str, docname: str) -> str:
    """A notebook with a link to its file after the title; cells that only import or draw are folded."""
    book = json.loads(text.replace("the annotated source (", "the [annotated source](site/source.md) ("))
    first, *lines = "".join(book["cells"][0]["source"]).split("\n")
    link = f"{{download}}`This page as a notebook <{docname.rpartition('/')[2]}.ipynb>`, to run and change."
    if docname.removeprefix("tutorials/") in TRIED:
        link += f' Beside it, <a href="../trace/try.html">{TRY}</a>.'
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    used = sorted(set(re.findall(r"\bminibert\.(\w+)", "".join("".join(cell["source"]) for cell in code))))
    above = "../" * docname.count("/")
    names = [
        f"[minibert.{name}]({above}tutorials/site/names.md#minibert.{name})"
        for name in used
        if name in minibert.__all__
    ]
    link += f" Names that it uses: {', '.join(names)}." * bool(names)
    book["cells"][0]["source"] = "\n".join([first, "", link, *lines])
    for cell in code:
        if cell is code[0] or "plt.show()" in "".join(cell["source"]):
            cell["metadata"]["tags"] = ["hide-input"]
    return json.dumps(book)


def contents() -> str:
    """The modules that are annotated, each with the first sentence of its docstring, and all other files."""

    def link(path: Path, folder: Path = PACKAGE) -> str:
        name = path.relative_to(folder).as_posix().replace("_", r"\_")
        return f"[{name}](../../{path.relative_to(ROOT).as_posix()})"

    paths = [PACKAGE / f"{module}.py" for module in MODULES]
    lines = [f"1. {link(path)}: {summary(path)}" for path in paths]
    bar = "\n".join(f"../../minibert/{module}" for module in MODULES)
    lines += [f"\n```{{toctree}}\n:hidden:\n{bar}\n```\n", "## All files"]
    for package in sorted(path.parent for path in PACKAGE.rglob("__init__.py")):
        files = " · ".join(link(path, package) for path in sorted(package.glob("*.py")))
        lines.append(f"\n**{package.relative_to(ROOT).as_posix()}/** {summary(package / '__init__.py')}\n{files}")
    return "\n".join(lines)


def summary(path: Path) -> str:
    """The first paragraph of a module's docstring, in one line."""
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return " ".join(docstring.partition("\n\n")[0].split())


def finish(app: Sphinx, error: Exception | None) -> None:
    """Write the pages of `minibert trace`, and the colours of diagrams and annotated pages."""
    if error:
        return
    light, dark = re.findall(r"svg\.diagram (\{ --page.*?\})", diagram("way"))
    style = (FOLDER / "page.css").read_text("utf-8").replace(":root", "&")
    rules = [
        f"body[data-theme=light] svg.diagram {light}",
        f"body[data-theme=dark] svg.diagram {dark}",
        f".annotated {{\n{style}\n}}\n",
    ]
    (Path(app.outdir) / "_static" / "colours.css").write_text("\n".join(rules), "utf-8")
    folder = Path(app.outdir) / "trace"
    folder.mkdir(exist_ok=True)
    with redirect_stdout(StringIO()):
        main(["trace", "--live", "--model", "minibert-novels", "--out", str(folder / "try.html"), "--overwrite"])
    encoder, tokenizer = minibert.load(MODEL), minibert.load_tokenizer(MODEL)
    for name, texts in TRACED.items():
        page = folder / f"{name}.html"
        minibert.trace(encoder, tokenizer, *texts, model=MODEL).save(page, annotated="../minibert")
    for page in folder.iterdir():
        page.write_text(page.read_text("utf-8").replace("<body>", BACK, 1), "utf-8")


def mathml(block: bool) -> Any:
    """What writes a formula as MathML, which browsers draw without a script."""

    def visit(self: Any, node: Any) -> None:
        formula = convert(node.astext(), display="block" if block else "inline")
        self.body.append(f'<div class="formula-box">{formula}</div>' if block else formula)
        raise nodes.SkipNode

    return visit, None


def setup(app: Sphinx) -> None:
    """What Sphinx calls."""
    app.add_source_parser(Source)
    app.add_transform(Anchors)
    app.add_transform(Diagrams)
    app.add_html_math_renderer("mathml", mathml(False), mathml(True))
    app.connect("source-read", complete)
    app.connect("build-finished", finish)
