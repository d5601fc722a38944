"""The source as web pages, with each explanation beside its code: `make annotated`.

    python tutorials/site/annotated.py FOLDER

Docstrings and whole-line comments become prose on the left, with what notes.py adds to them. All other lines are on the
right; each line number is an anchor (model.html#L120).
"""

import argparse
import ast
import inspect
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup, escape
from notes import MODULES, NOTES, TITLES

import minibert
from minibert.utils.files import write_text_atomically
from minibert.utils.outputs import atomic_folder
from minibert.utils.templates import asset, coloured, diagram, templates

FOLDER = Path(__file__).parent
PACKAGE = Path(minibert.__file__).parent
Definition = ast.ClassDef | ast.FunctionDef
COMMENT = re.compile(r"#(?! \S+ {3,}\S)")  # a whole line; one with columns is the header of a table
AXIS = r"(?:(?:[2-9]|k )?[BSEDHWFVLTKCN](?:·C)?(?: \+ 1)?|[0-9]|in|out|outputs)"
SHAPE = re.compile(rf"\((?=[^)]*[A-Z]){AXIS}(?:, ?(?:{AXIS}|\.\.\.))*\)")
CODE = re.compile(r"`([^`]+)`")
# A name that Pygments marked, but not an attribute; and whether it is called.
NAME = re.compile(r'(?<!<span class="o">\.</span>)<span class="n">(\w+)</span>(?=(<span class="p">\()?)')
LEVEL = re.compile(r"`(?P<code>[^`]+)`|(?P<side>[_^])(?:\{(?P<several>[^}]*)\}|(?P<one>\w))")
VARIABLE = re.compile(r"(?<![A-Za-z_^{&])[A-Za-zα-ω]\u0302?(?![A-Za-z;])")  # U+0302: the hat of x̂
LETTER = re.compile(r"(?m)(?<=  )([A-Z]) {2,}(\S.*?)(?= {2,}|$)")  # in the docstring of model.py


@dataclass
class Section:
    """One row of a page: prose and the code that it explains."""

    name: str = ""  # of the definition that begins here: Encoder.forward
    prose: list[str] = field(default_factory=list)
    code: list[tuple[int, Markup]] = field(default_factory=list)  # line numbers from 1, and lines as HTML


def build(folder: Path) -> Path:
    """Write a page for each module and the table of contents; return the path of the contents."""
    sources = {module: (PACKAGE / f"{module}.py").read_text("utf-8") for module in MODULES}
    trees = {module: ast.parse(text) for module, text in sources.items()}
    contents = {
        module: [name for name in definitions(tree).values() if "." not in name] for module, tree in trees.items()
    }
    environment = templates(FOLDER)
    environment.filters |= {
        "formula": formula,
        "diagram": diagram,
        "page": page_name,
        "prose": prose,
        "tutorial": tutorial_link,
    }
    shared = {
        "modules": list(MODULES),
        "contents": contents,
        "letters": LETTER.findall(ast.get_docstring(trees["model"]) or ""),
        "style": asset(FOLDER / "page.css"),
    }
    template = environment.get_template("page.html")
    for module, text in sources.items():
        links = links_of(module, trees[module], contents)
        html = template.render(
            shared,
            module=module,
            sections=sections(text, links),
            links=links,
            notes=NOTES.get(module, {}),
            tutorials=MODULES[module],
        )
        write_text_atomically(folder / page_name(module), html)
    summaries = {module: (ast.get_docstring(tree) or "").split("\n\n")[0] for module, tree in trees.items()}
    write_text_atomically(folder / "index.html", template.render(shared, module="", summaries=summaries))
    return folder / "index.html"


def page_name(module: str) -> str:
    """Return the file of a module: text/wordpiece -> wordpiece.html."""
    return f"{module.rpartition('/')[2]}.html"


def tutorial_link(reference: str) -> tuple[str, str]:
    """Return the title and the address of a tutorial or a part of it (name#heading), from a page in build/annotated."""
    name, _, heading = reference.partition("#")
    anchor = f"#{quote(heading.replace(' ', '-'))}" if heading else ""  # Jupyter's anchor has - for each space
    return TITLES[name] + f": {heading}" * bool(heading), f"../../tutorials/{name}.ipynb{anchor}"


def links_of(module: str, tree: ast.Module, contents: dict[str, list[str]]) -> dict[str, str]:
    """Return the address of each name that a module defines, or imports from another module with a page."""
    found = {name: f"#{name}" for name in contents[module]}
    for node in [node for node in tree.body if isinstance(node, ast.ImportFrom)]:
        other = (node.module or "").removeprefix("minibert.").replace(".", "/")
        names = [alias.name for alias in node.names if alias.name in contents.get(other, ())]
        found |= {name: f"{page_name(other)}#{name}" for name in names}
    return found


def sections(text: str, links: dict[str, str]) -> list[Section]:
    """Split a module into rows: one for each definition with a docstring and for each whole-line comment."""
    tree = ast.parse(text)
    numbered = enumerate(map(str.strip, text.splitlines()), 1)
    explained = {number: line[2:].strip("-") for number, line in numbered if COMMENT.match(line)}
    starts = {1: "", (tree.body[0].end_lineno or 0) + 1: ""}  # the module's docstring is a row
    starts |= {line: "" for line in explained if line - 1 not in explained} | definitions(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | Definition) and (docstring := ast.get_docstring(node)):
            lines = range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
            explained |= dict.fromkeys(lines, "") | {lines[0]: inspect.cleandoc(docstring)}
    found: list[Section] = []
    for number, line in enumerate(coloured(text), start=1):
        if number in starts:
            found.append(Section(starts[number]))
        if number in explained:
            found[-1].prose.append(explained[number])
        else:
            found[-1].code.append((number, linked(line, links)))
    for section in found:
        while section.code and not section.code[-1][1]:
            section.code.pop()
    return [section for section in found if section.prose or section.code]


def definitions(parent: ast.Module | ast.ClassDef, prefix: str = "") -> dict[int, str]:
    """Return the name of each definition that has a docstring, by its first line. The others continue a row."""
    found: dict[int, str] = {}
    for node in [node for node in parent.body if isinstance(node, Definition)]:
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        if ast.get_docstring(node):
            found[first] = f"{prefix}{node.name}"
        if isinstance(node, ast.ClassDef):
            found |= definitions(node, f"{node.name}.")
    return found


def linked(line: Markup, links: dict[str, str]) -> Markup:
    """Return a coloured line in which classes and called functions link to their definitions, and shapes are marked."""

    def link(found: re.Match[str]) -> str:
        name = found[1]
        known = name in links and (name[0].isupper() or found[2])
        return f'<a href="{links[name]}">{name}</a>' if known else found[0]

    return Markup(SHAPE.sub(r'<code class="shape">\g<0></code>', NAME.sub(link, line)))


def prose(text: str, links: dict[str, str]) -> Markup:
    """Return paragraphs in which `code` and shapes are marked; indented text keeps its layout, in fixed width."""

    def code(found: re.Match[str]) -> str:
        name = found[1]
        return f'<a href="{links[name]}"><code>{name}</code></a>' if name in links else f"<code>{name}</code>"

    parts = []
    for block in filter(str.strip, re.split(r"\n\s*\n", text)):
        shown = str(escape(block.strip("\n")))
        marked = SHAPE.sub(r'<code class="shape">\g<0></code>', CODE.sub(code, shown))
        parts.append(f"<pre>{shown}</pre>" if block.startswith("  ") else f"<p>{marked}</p>")
    return Markup("\n".join(parts))


def formula(text: str, equation: bool = False) -> Markup:
    """Return `code` as code, and x_s and x^{l+1} as sub- and superscripts; in an equation, letters are italic."""

    def mark(found: re.Match[str]) -> str:
        if found["code"]:
            return f"<code>{found['code']}</code>"
        tag = "sub" if found["side"] == "_" else "sup"
        return f"<{tag}>{found['several'] or found['one']}</{tag}>"

    text = str(escape(text))
    return Markup(LEVEL.sub(mark, VARIABLE.sub(r"<var>\g<0></var>", text) if equation else text))


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the pages and print the path of the contents; exit status 1 if they cannot be written."""
    parser = argparse.ArgumentParser(description="Write the annotated source as web pages.")
    parser.add_argument("folder", type=Path, help="folder of the pages, such as build/annotated")
    folder: Path = parser.parse_args(arguments).folder
    try:
        with atomic_folder(folder, overwrite=True) as temporary:
            index = build(temporary)
        print(folder / index.name)
    except (OSError, ValueError) as error:
        sys.exit(f"cannot write the pages: {error}")


if __name__ == "__main__":
    main()
