"""The source as web pages, with each explanation beside its code: `python -m minibert.annotated FOLDER`.

In reading order:

    notes  the modules that have a page, and what their code cannot say: equations, reasons, diagrams, tutorials

__main__.py builds the pages. Docstrings and whole-line comments become prose on the left. All other lines are on the
right; each line number is an anchor (model.html#L120).
"""
