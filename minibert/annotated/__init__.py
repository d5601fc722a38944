"""The source as pages, the explanation beside the code that it explains: `python -m minibert.annotated FOLDER`.

In reading order:

    notes  the modules that have a page, and what their code cannot say: equations, reasons, diagrams, tutorials

__main__.py builds the pages. Docstrings, and comments that have a line to themselves, become prose on the left; all
other lines stand on the right, each with its number as an anchor (model.html#L120).
"""
