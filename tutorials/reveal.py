"""Predict, then reveal: a folded answer, without a widget, in Jupyter, on GitHub and on the course's site."""

import html

from IPython.display import display


def reveal(answer: str) -> None:
    """Show an answer folded, so that the reader can predict it first; line breaks are kept."""
    folded = f"<details><summary>Show the answer</summary><pre>{html.escape(answer)}</pre></details>"
    display({"text/plain": answer, "text/html": folded}, raw=True)
