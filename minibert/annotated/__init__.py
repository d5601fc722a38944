"""The source as pages, the explanation beside the code that it explains: `python -m minibert.annotated FOLDER`.

In reading order:

    rooms   the rooms that have a page, and the tutorials that belong to them
    notes   what the code cannot say: equations, reasons, pictures
    source  a room taken apart into prose and code
    book    prose, code and links as HTML
    flow    the shapes of the example sentence, line by line, computed
    pages   the pages, from page.html and page.css

Docstrings, and comments that have a line to themselves, become prose on the left; all other lines stand on the right.
Nothing of the source is written twice, and each of its lines is the text of one element of the page, #L1, #L2, ... in
order; marks that a reader of prose does not need (quotes, #, indentation) are hidden in it.
"""
