"""Questions first, answers folded, without a widget, in Jupyter, on GitHub and on the course's site."""

import html
from pathlib import Path

from IPython.display import display


def reveal(answer: str) -> None:
    """Show an answer folded, so that the reader can predict it first; line breaks are kept."""
    folded = f"<details><summary>Show the answer</summary><pre>{html.escape(answer)}</pre></details>"
    display({"text/plain": answer, "text/html": folded}, raw=True)


def quiz(number: int) -> None:
    """Show the five questions of a notebook, each with its answer folded; as plain text, the answers come last."""
    lines = Path(__file__).with_name("quiz.tsv").read_text("utf-8").splitlines()
    rows = [line.split("\t")[1:] for line in lines if line.startswith(f"{number}\t")]
    numbered = ["\n".join(f"{n}. {text}" for n, text in enumerate(texts, 1)) for texts in zip(*rows, strict=True)]
    item = "<li>{}<details><summary>Show the answer</summary><p>{}</p></details></li>"
    items = "".join(item.format(*map(html.escape, row)) for row in rows)
    display({"text/plain": "\n\nAnswers\n".join(numbered), "text/html": f"<ol>{items}</ol>"}, raw=True)
