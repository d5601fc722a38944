"""Causal sentences of the notebooks: each is in tutorials/claims.tsv, with the cell that tests it.

A row is the number of a notebook, the start of a sentence, and its control: the id of a code cell of that notebook, or
a word for a sentence that claims nothing that a cell could test.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from support.notebooks import NOTEBOOKS, TUTORIALS, Cell, cells_of

CAUSAL = re.compile(r"\b(because|so that|therefore|is why|makes|since|the reason)\b", re.IGNORECASE)
SAYS = {  # what a sentence with this word for its control must have
    "perhaps": re.compile(r"\b(perhaps|we think)\b", re.IGNORECASE),
    "source": re.compile(r"\]\(|et al\.|&"),
}
WORDS = {
    "perhaps": "it says perhaps or we think",
    "choice": "why the course or a program does something, or what it does",
    "definition": "it follows from a formula or from what the words mean",
    "source": "it says who found it: a paper, or another notebook",
    "plain": "it says what something does, not why",
}
FENCED = re.compile(r"```.*?```", re.DOTALL)
PARAGRAPH = re.compile(r"\n\s*\n|\n(?=[-|>*\d#])")
END = re.compile(r"""(?<=[.?!:)])\s+(?=[A-Z*`>(\["])""")


class Claim(NamedTuple):
    """A row of claims.tsv."""

    notebook: int
    start: str
    control: str


def read_claims() -> list[Claim]:
    lines = (TUTORIALS / "claims.tsv").read_text("utf-8").splitlines()
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    return [Claim(int(notebook), start, control) for notebook, start, control in rows]


def causal_sentences(cells: list[Cell]) -> Iterator[str]:
    """Yield the sentences of the prose that say why, each on one line."""
    for cell in cells:
        if cell["cell_type"] == "markdown":
            for paragraph in PARAGRAPH.split(FENCED.sub("", cell["source"])):
                yield from filter(CAUSAL.search, END.split(" ".join(paragraph.split())))


def faults(cells: list[Cell], claims: list[Claim]) -> Iterator[str]:
    """Yield what is wrong with the claims of a notebook: unlisted, not in the text, or without a control."""
    code = {cell["id"] for cell in cells if cell["cell_type"] == "code" and cell["source"].strip()}
    sentences = list(causal_sentences(cells))
    for sentence in sentences:
        if sum(sentence.startswith(claim.start) for claim in claims) != 1:
            yield f"not listed once: {sentence}"
    for claim in claims:
        said = [sentence for sentence in sentences if sentence.startswith(claim.start)]
        if not said:
            yield f"not in the notebook: {claim.start}"
        elif claim.control not in code | WORDS.keys():
            yield f"no such cell or word: {claim.control}"
        elif claim.control in SAYS and not SAYS[claim.control].search(said[0]):
            yield f"is no {claim.control}: {said[0]}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_each_causal_sentence_is_listed_with_a_control_in_its_notebook(path: Path) -> None:
    number = int(path.name.partition("_")[0])
    assert list(faults(cells_of(path), [claim for claim in read_claims() if claim.notebook == number])) == []


def test_the_list_is_in_the_order_of_the_notebooks_and_half_of_the_reasons_have_a_cell() -> None:
    claims = read_claims()
    assert [claim.notebook for claim in claims] == sorted(claim.notebook for claim in claims)
    reasons = [claim for claim in claims if claim.control != "plain"]
    assert sum(claim.control not in WORDS for claim in reasons) >= len(reasons) / 2


@pytest.mark.parametrize(
    ("prose", "start", "control", "fault"),
    [
        ("It works because it does.", "It works", "a-cell", ""),
        ("It works.", "It works", "a-cell", "not in the notebook"),
        ("It works because it does.", "It fails", "a-cell", "not listed"),
        ("It works because it does.", "It works", "another-cell", "no such cell"),
        ("It works because it does.", "It works", "prose", "no such cell"),
        ("It works because it does.", "It works", "perhaps", "is no perhaps"),
        ("It works because it does.", "It works", "source", "is no source"),
        ("It works, perhaps because it does.", "It works", "perhaps", ""),
        ("It works because it does (Su et al. 2021).", "It works", "source", ""),
        ("It works.\nThat is\nwhy it\nmakes sense.", "That is why", "a-cell", ""),
    ],
)
def test_a_claim_without_a_control_would_be_found(prose: str, start: str, control: str, fault: str) -> None:
    cells = [
        {"cell_type": "markdown", "id": "prose", "source": prose},
        {"cell_type": "code", "id": "a-cell", "source": "print(1)"},
    ]
    found = list(faults(cells, [Claim(1, start, control)]))
    assert (found == []) == (fault == "") and any(line.startswith(fault) for line in found or [""])
