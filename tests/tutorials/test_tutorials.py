"""The tutorials: each notebook and its solutions run top to bottom without a network, and are kept as they ran.

The figures in their prose are read against the outputs that are kept, so that text and output cannot part. Each word of
the glossary is taught where it says, and each of the fifteen questions of the course page is answered in one place.
"""

import re
from collections.abc import Iterator
from decimal import Decimal
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from support.notebooks import NOTEBOOKS, TUTORIALS, Cell, cells_of, printed, prose_of, reading_minutes

ALL = NOTEBOOKS + [TUTORIALS / "solutions" / path.name for path in NOTEBOOKS]
NAMES = [str(path.relative_to(TUTORIALS)) for path in ALL]
# Runs before the first cell: a cell that opens a connection fails.
NO_NETWORK = """
import socket
def refuse(self, address):
    raise AssertionError(f"the notebook connects to {address}")
socket.socket.connect = socket.socket.connect_ex = refuse
"""

CORE = [1, 2, 6, 7, 9, 10, 12, 13, 15, 16, 17, 18, 19, 20]  # the track that answers why, in order
ENGINEERING = [3, 4, 5, 8, 11, 14]  # after 1 and 2
EACH = sorted(CORE + ENGINEERING)
TWO_AGO = {
    now: ago for track in (CORE, [1, 2, *ENGINEERING]) for ago, now in zip(track[:-2], track[2:], strict=True)
}  # whose quiz is asked again

QUIZ_CELLS = {"two-ago", "two-ago-quiz", "quiz", "quiz-asked"}
QUIZ = [  # notebook, question, answer
    (int(number), question, answer)
    for line in (TUTORIALS / "quiz.tsv").read_text("utf-8").splitlines()
    if not line.startswith("#")
    for number, question, answer in [line.split("\t")]
]

# What is not prose, and numbers in prose that are addresses in papers.
NOT_PROSE = re.compile(r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$]*\$|\]\([^)]*\)", re.DOTALL)
PLACE = re.compile(r"(?:[Ss]ections?|figures?|tables?|footnote|et al\.(?: \d{4},?)?) \d+(?:\.\d+)*")
# A figure is a number with decimals, an exponent, a comma for thousands, or a percent sign; not "12 sentences".
FIGURE = re.compile(
    r"(?<![\w.,])(?:\d[\d,]*\.\d+(?:e[+-]?\d+)?|\d+e[+-]?\d+|\d{1,3}(?:,\d{3})+|\d+(?= to \d+ ?%))"
    r"(?![\w,]*\d)(?: ?%)?|(?<![\w.,])\d+ ?%"
)
NUMBER = re.compile(r"\d[\d,_]*(?:\.\d+)?(?:e[+-]?\d+)?")
LONGEST_CELL = 30  # lines of a code cell
NEAR = 6  # cells before and after a paragraph, in which its figures must stand
# Figures that the notebook does not compute near by, by where they are from.
ELSEWHERE = {
    "1_first_contact.ipynb": {
        "the tutorial that the notebook follows": "0.824",
    },
    "2_through_the_encoder.ipynb": {
        "the largest float32": "3.4e38",
        "its logarithm": "88.7",
    },
    "3_wordpiece.ipynb": {
        "Devlin et al. 2018, section 3": "30,000",
    },
    "4_official_weights.ipynb": {
        "PyTorch, release notes": "2.6",
    },
    "5_is_it_right.ipynb": {
        "section 2 of the notebook": "2,000",
        "the root of 32": "5.66",
        "the last cell of section 2, by its power of ten": "1e-8",
    },
    "6_what_is_in_a_vector.ipynb": {
        "Devlin et al. 2018, table 7": "94.9; 95.6; 96.1; 96.4",
        "notebook 10, section 6": "0.64; 0.76",
        "Reimers and Gurevych 2019, tables 1 and 6": "29.2; 54.8; 61.3; 79.8; 80.8",
    },
    "8_making_it_fast.ipynb": {
        "the tutorial's number of sentences": "2,000",
        "minibert/bench/README.md, int8 in detail": "0.8073; 70 %; 54 %",
    },
    "10_fine_tuning.ipynb": {
        "Devlin et al. 2018, appendix A.3": "2e-5; 5e-5",
        "README, minibert classify on all of SST-2": "0.808",
        "Devlin et al. 2018, table 7": "96.1; 96.4",
        "Wang et al. 2018, table 1": "8,500; 67,000; 3,700; 364,000; 393,000; 108,000; 2,500",
    },
    "11_the_family.ipynb": {
        "differences of the table, as shares of BERT-base's errors": "29 %; 31 %",
        "Liu et al. 2019, section 4.3": "8,000",
        "BERT-base, README of ERNIE": "52.1; 93.5; 90.5; 66.4",
        "ERNIE 2.0 base, README of ERNIE": "55.2; 95.0; 89.8; 86.1; 74.8",
        "BERT-base, README of DistilBERT": "56.3",
        "DistilBERT, README of DistilBERT": "51.3",
        "RoBERTa-base, README of RoBERTa": "63.6",
        "ELECTRA-small, README of ELECTRA": "57.0; 91.2; 89.0; 81.3; 88.4; 66.7",
        "ELECTRA-base, README of ELECTRA": "67.7",
        "BERT-base on MNLI, README of ERNIE; ALBERT-base-v2, README of ALBERT": "84.6",
        "ERNIE 2.0 base on QNLI, README of ERNIE; ALBERT-base-v2 on SST-2, README of ALBERT": "92.9",
        "ALBERT-base-v2 on SQuAD 1.1, README of ALBERT": "90.2",
        "DistilBERT on SQuAD 1.1, as BERT-base's 88.5, README of DistilBERT": "86.9",
        "Clark et al. 2020, table 5": "82.2; 82.4; 84.3; 85.0",
        "Wang et al. 2018, table 1": "2,500",
        "Warner et al. 2024, abstract and section 2.2": "30 %; 8,192",
    },
    "12_pretraining.ipynb": {
        "Devlin et al. 2018, appendix A.1": "1.5 %",
        "Devlin et al. 2018, table 5": "88.4; 84.9; 88.5; 87.9; 84.4; 83.9",
        "Devlin et al. 2018, table 8": "84.2; 84.3; 95.4; 94.9; 94.0; 94.6; 94.7",
        "Wettig et al. 2023, abstract": "40 %",
        "section 1 of the notebook": "15 %",
        "the controls of section 4": "90 %; 72 %; 13 %",
    },
    "13_ablation.ipynb": {
        "the long run of section 6": "3.74; 2.11; 2.54; 2.61",
    },
    "14_distillation.ipynb": {
        "Sanh et al. 2019, abstract": "97 %; 40 %; 60 %",
        "Sanh et al. 2019, table 4": "3.69; 2.96; 1.46",
        "the table of section 6": "0.573; 0.597; 0.210",
    },
    "15_what_came_after.ipynb": {
        "the model card of minibert-novels, the longer runs": "3.57; 3.63",
        "Devlin et al. 2018, section 3.1": "15 %",
        "Warner et al. 2024": "30 %; 1,024",
        "notebook 13, section 6": "4.3",
    },
    "solutions/15_what_came_after.ipynb": {"question 2": "5,000"},
    "16_sentence_vectors.ipynb": {
        "the model card of minibert-novels": "0.606; 0.669; 0.792; 0.867; 0.016; 0.015; 0.010; 0.007; 10,536; 5,749",
        "a cosine that a colleague might report": "0.9",
    },
    "19_cheap_tuning.ipynb": {
        "rank 4 for 384 by 384": "3,072",
        "the size of all-MiniLM-L6-v2, in millions": "22.7",
        "the bound of exercise 2; the rate of question 1": "1e-4; 3e-4",
        "notebook 13, section 6": "4.3",
    },
    "solutions/14_distillation.ipynb": {
        "Sanh et al. 2019, abstract": "60 %",
    },
    "solutions/19_cheap_tuning.ipynb": {
        "the rate of question 1": "3e-4",
    },
    "20_evaluation.ipynb": {
        "an answer to choose from": "80 %; 0.60",
        "a score that somebody might report": "0.62",
    },
    "solutions/20_evaluation.ipynb": {
        "a score that somebody might report": "0.62",
    },
}


def run(sources: list[str], folder: Path) -> None:
    """Execute code cells in a kernel of their own that cannot reach the network."""
    import nbclient  # and nbformat: here, because they take seconds to import
    from nbformat import v4

    book = v4.new_notebook(cells=[v4.new_code_cell(source) for source in (NO_NETWORK, *sources)])
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(book, timeout=300, kernel_name="python3", resources=resources).execute()


def numbers(text: str) -> list[Decimal]:
    """All numbers in a text, without their signs; both 0.11 and 0.110, equal but stated to other digits."""
    return [Decimal(number) for number in {re.sub("[,_]", "", number) for number in NUMBER.findall(text)}]


def decimals(number: Decimal) -> int:
    """How many digits stand after the point; below 0 where the last ones are not known, as in 2e5."""
    return -int(number.as_tuple().exponent)


def is_stated(figure: str, said: list[Decimal], written: list[Decimal]) -> bool:
    """Whether an output, rounded as the figure is, or a number in the code, is that figure; 0.83 is 83 % too."""
    value = Decimal(figure.rstrip(" %").replace(",", ""))
    half = Decimal(1).scaleb(-decimals(value)) / 2
    of_share = [share * 100 for share in said] if figure.endswith("%") or value == int(value) else []
    exact = [number for number in said + of_share if decimals(number) >= decimals(value)]
    return value in written or any(abs(number - value) <= half for number in exact)


def further_controls(cells: list[Cell]) -> list[Cell]:
    """The cells of a solutions notebook from the heading of its further controls to the next heading of that rank."""
    ranks = [place for place, cell in enumerate(cells) if cell["source"].startswith("## ")]
    starts = [place for place in ranks if cells[place]["source"].startswith("## Further controls\n")]
    return [cell for start in starts for cell in cells[start : min(place for place in ranks if place > start)]]


def unstated_figures(cells: list[Cell], further: list[Cell]) -> Iterator[tuple[str, str]]:
    """The figures in the prose that neither an output nor the code near by has, each with its cell.

    A cell that links to the further controls has those near by too.
    """
    for place, cell in enumerate(cells):
        if cell["cell_type"] == "markdown":
            cited = further if "#Further-controls)" in cell["source"] else []
            near = [c for c in cells[max(0, place - NEAR) : place + NEAR + 1] + cited if c["cell_type"] == "code"]
            said = numbers("\n".join(map(printed, near)))
            written = numbers("\n".join(c["source"] for c in near))
            for figure in FIGURE.findall(PLACE.sub("", NOT_PROSE.sub("", cell["source"]))):
                if not is_stated(figure, said, written):
                    yield figure, cell["id"]


def test_each_notebook_is_on_a_track_and_has_its_solutions() -> None:
    assert [int(path.name.partition("_")[0]) for path in NOTEBOOKS] == EACH
    assert set((TUTORIALS / "solutions").glob("*.ipynb")) == set(ALL[len(NOTEBOOKS) :])


STATED = {  # on the course page, by notebook: minutes
    int(number): int(minutes)
    for number, minutes in re.findall(
        r"(?m)^\| (\d+) \| \[.+?\) \| (\d+) \|", (TUTORIALS / "README.md").read_text("utf-8")
    )
}
LONGEST_SESSION = 90  # minutes of a session


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES[: len(NOTEBOOKS)])
def test_a_notebook_takes_the_minutes_that_the_course_page_states(path: Path) -> None:
    minutes = reading_minutes([cell for cell in cells_of(path) if cell["id"] not in QUIZ_CELLS])
    assert STATED[int(path.name.partition("_")[0])] == 5 * round(minutes / 5) and minutes < LONGEST_SESSION, minutes


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES[: len(NOTEBOOKS)])
def test_a_notebook_of_the_core_track_asks_for_three_predictions(path: Path) -> None:
    cells = [cell for cell in cells_of(path) if cell["id"] not in QUIZ_CELLS]
    predicted = [place for place, cell in enumerate(cells) if "**Predict.** " in cell["source"]]
    assert len(predicted) >= 3 * (int(path.name.partition("_")[0]) in CORE)
    assert all("?" in cells[place]["source"] and "reveal(" in cells[place + 1]["source"] for place in predicted)


@pytest.mark.slow
@pytest.mark.parametrize("path", ALL, ids=NAMES)
def test_a_notebook_runs_from_top_to_bottom_without_a_network(path: Path) -> None:
    import nbformat

    nbformat.validate(nbformat.read(path, as_version=4))
    run([cell["source"] for cell in cells_of(path) if cell["cell_type"] == "code"], path.parent)


@pytest.mark.slow
@pytest.mark.parametrize("code", ["1 / 0", "import urllib.request as r; r.urlopen('http://127.0.0.1:9')"])
def test_a_cell_that_fails_or_connects_would_be_caught(code: str, tmp_path: Path) -> None:
    from nbclient.exceptions import CellExecutionError

    with pytest.raises(CellExecutionError, match=r"ZeroDivisionError|notebook connects"):
        run([code], tmp_path)


@pytest.mark.parametrize("path", ALL, ids=NAMES)
def test_a_notebook_is_small_and_kept_with_the_outputs_of_one_run_in_order(path: Path) -> None:
    cells = [cell for cell in cells_of(path) if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {output["output_type"] for cell in cells for output in cell["outputs"]}
    assert "stream" in kinds and "error" not in kinds
    text = path.read_text("utf-8")
    assert len(text) < 1e6
    assert not re.search(r"/(work|tmp|root|home|Users)/", text), "a folder of the machine on which it ran"


@pytest.mark.parametrize("path", ALL, ids=NAMES)
def test_no_cell_is_longer_than_thirty_lines(path: Path) -> None:
    code = [cell for cell in cells_of(path) if cell["cell_type"] == "code"]
    assert [cell["id"] for cell in code if len(cell["source"].splitlines()) > LONGEST_CELL] == []


@pytest.mark.parametrize("path", ALL, ids=NAMES)
def test_every_figure_in_the_prose_stands_in_an_output_near_by(path: Path) -> None:
    known = {
        figure
        for said in ELSEWHERE.get(path.relative_to(TUTORIALS).as_posix(), {}).values()
        for figure in said.split("; ")
    }
    further = further_controls(cells_of(TUTORIALS / "solutions" / path.name))
    unstated = list(unstated_figures(cells_of(path), further))
    assert [one for one in unstated if one[0] not in known] == []
    assert {figure for figure, _ in unstated} == known, "ELSEWHERE names figures that stand in the notebook"


@pytest.mark.parametrize(
    ("prose", "output", "missing"),
    [
        ("It is 0.69 in the end.", "0.6941", []),
        ("It is 0.70 in the end.", "0.6941", ["0.70"]),
        ("It is 0.6941 in the end.", "0.69", ["0.6941"]),  # not known so exactly
        ("It is 0.110 in the end.", "0.11%, 0.110", []),
        ("Half: 83.4 % and 17 %.", "shares 0.834, 0.171", []),
        ("Half: 83.5 % and 18 %.", "shares 0.834, 0.171", ["83.5 %", "18 %"]),
        ("From 93 to 99 % of it.", "92.7%  98.9%", []),
        ("From 92 to 99 % of it.", "92.7%  98.9%", ["92"]),
        ("A difference of 3.6e-06.", "3.55e-06", []),
        ("A difference of 3.7e-06.", "3.55e-06", ["3.7e-06"]),
        ("There are 6,920 rows.", "6920", []),
        ("There are 6,921 rows.", "6920", ["6,921"]),
        ("A bound of 0.25.", "", []),  # in the code
        ("See section 3.2 and Vaswani et al. 2017, 3.1, `0.5`, $0.7$ and 12 others.", "", []),
    ],
)
def test_a_wrong_figure_would_be_found(prose: str, output: str, missing: list[str]) -> None:
    code = {"cell_type": "code", "source": "print(0.25)", "outputs": [{"text": [output]}]}
    cells = [{"cell_type": "markdown", "source": prose, "id": "a"}, code]
    assert [figure for figure, _ in unstated_figures(cells, [])] == missing


@pytest.mark.parametrize(
    ("link", "missing"), [("solutions/1.ipynb#Further-controls", []), ("solutions/1.ipynb", ["0.69"])]
)
def test_a_figure_of_a_further_control_stands_where_the_link_leads(link: str, missing: list[str]) -> None:
    solutions = [
        {"cell_type": "markdown", "source": "## Further controls\n\nOf section 2.", "id": "b"},
        {"cell_type": "code", "source": "print(loss)", "outputs": [{"text": ["0.6941"]}], "id": "c"},
        {"cell_type": "markdown", "source": "## Answers to the questions", "id": "d"},
        {"cell_type": "code", "source": "", "outputs": [{"text": ["0.25"]}], "id": "e"},
    ]
    cells = [{"cell_type": "markdown", "source": f"It is 0.69, not 0.25 ([control]({link})).", "id": "a"}]
    found = unstated_figures(cells, further_controls(solutions))
    assert [figure for figure, _ in found] == [*missing, "0.25"]


@pytest.mark.parametrize("path", ALL, ids=NAMES)
def test_no_figure_is_of_a_run_that_nobody_can_repeat(path: Path) -> None:
    assert re.findall(r"outside (?:this|the) notebook|runs? outside", prose_of(path)) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES[: len(NOTEBOOKS)])
def test_a_notebook_asks_three_questions_and_its_solutions_answer_them(path: Path) -> None:
    asked = re.findall(r"(?m)^\d\. (.+)$", prose_of(path).partition("## Questions")[2])
    answers = cells_of(TUTORIALS / "solutions" / path.name)[-1]["source"]
    assert answers.startswith("## Answers to the questions")
    answered = re.findall(r"(?m)^\*\*\d\. (.+?)\*\* (.+)$", answers)
    assert [question for question, _ in answered] == asked and len(asked) == 3
    assert all(len(answer.split()) >= 20 for _, answer in answered)


def quiz_shown(number: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What quiz() shows."""
    monkeypatch.syspath_prepend(TUTORIALS)
    import reveal

    shown: list[dict[str, str]] = []
    monkeypatch.setattr(reveal, "display", lambda data, raw: shown.append(data))
    reveal.quiz(number)
    return shown[0]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES[: len(NOTEBOOKS)])
def test_a_notebook_shows_its_quiz_at_its_end_and_near_its_beginning_that_of_two_before(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number, cells = int(path.name.partition("_")[0]), cells_of(path)
    asked = {place: cell for place, cell in enumerate(cells) if cell["source"].startswith("quiz(")}
    wanted = {len(cells) - 2: number} | ({3: TWO_AGO[number]} if number in TWO_AGO else {})
    assert {place: cell["source"] for place, cell in asked.items()} == {n: f"quiz({of})" for n, of in wanted.items()}
    for place, of in wanted.items():
        (output,) = asked[place]["outputs"]
        assert {kind: "".join(text) for kind, text in output["data"].items()} == quiz_shown(of, monkeypatch)


def test_each_notebook_has_five_quiz_questions_and_none_is_asked_twice() -> None:
    assert [number for number, *_ in QUIZ] == [number for number in EACH for _ in range(5)]
    assert len({question for _, question, _ in QUIZ}) == len(QUIZ)
    assert all("?" in question and len(answer.split()) >= 10 for _, question, answer in QUIZ)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES[: len(NOTEBOOKS)])
def test_the_figures_of_a_quiz_answer_are_printed_or_set_in_its_notebook(path: Path) -> None:
    cells = [cell for cell in cells_of(path) if cell["cell_type"] == "code" and cell["id"] not in QUIZ_CELLS]
    said, written = numbers("\n".join(map(printed, cells))), numbers("\n".join(cell["source"] for cell in cells))
    answers = [answer for number, _, answer in QUIZ if path.name.startswith(f"{number}_")]
    assert [f for answer in answers for f in FIGURE.findall(answer) if not is_stated(f, said, written)] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES[: len(NOTEBOOKS)])
def test_each_of_the_three_exercises_has_a_cell_that_can_refuse_an_answer(path: Path) -> None:
    judges = [judge for cell in cells_of(path) for judge in cell["source"].split("\nif ")[1:] if "globals()" in judge]
    assert len(judges) == 3 and all(re.search(r"\n +assert ", judge) for judge in judges)


@pytest.mark.parametrize("track", [CORE, ENGINEERING], ids=["core", "engineering"])
def test_the_last_line_of_a_notebook_leads_to_the_next_of_its_track(track: list[int]) -> None:
    names = {int(path.name.partition("_")[0]): path.name for path in NOTEBOOKS}
    assert sorted(CORE + ENGINEERING) == sorted(names)
    for number, after in pairwise(track):
        last = cells_of(TUTORIALS / names[number])[-1]["source"].splitlines()[-1]
        assert LINK.findall(last)[0] == names[after], last


PAGES = [TUTORIALS / name for name in ("README.md", "CAPSTONE.md", "TEACHERS.md")]


@pytest.mark.parametrize("path", [*ALL, *PAGES], ids=[*NAMES, *(path.name for path in PAGES)])
def test_links_lead_to_files_that_exist(path: Path) -> None:
    lost = broken(prose_of(path), path.parent)
    assert [one for one in lost if not one.startswith("#")] == []


# -- the glossary, and the questions of the course page

WORDS = (TUTORIALS / "GLOSSARY.md").read_text("utf-8")
QUESTIONS = (TUTORIALS / "README.md").read_text("utf-8").partition("## Fifteen questions")[2]

HEADING = re.compile(r"(?m)^#{1,4} (.+)$")
LINK = re.compile(r"\]\(([^)\s]+)\)")
ENTRY = re.compile(r"(?m)^\*\*(.+?)\.\*\* ((?:.+\n)+?)(\[.+\]\(\S+\))$")  # the word, what it is, where it is taught
QUESTION = re.compile(r"(?m)^\d+\. \[(.+\?)\]\((\S+)\)$")
CODE = re.compile(r"(?ms)^```.*?^```")
ENTRIES = {word: said for word, said, _ in ENTRY.findall(WORDS)}
ASKED = dict(QUESTION.findall(QUESTIONS))


class Section(NamedTuple):
    """What stands in a notebook's prose from one heading to the next."""

    place: str  # file#anchor, as a link of the glossary says it
    prose: str


def sections(name: str, prose: str) -> list[Section]:
    """The sections of a notebook; its anchors are headings with - for spaces, as Jupyter makes them."""
    text = CODE.sub("", prose)
    parts = HEADING.split(text)[1:]  # heading, text, heading, text, ...
    return [
        Section(f"{name}#{heading.replace(' ', '-')}", part)
        for heading, part in zip(parts[::2], parts[1::2], strict=True)
    ]


@cache
def taught() -> tuple[Section, ...]:
    return tuple(section for path in NOTEBOOKS for section in sections(path.name, prose_of(path)))


@cache
def further_places() -> set[str]:
    """Where the further controls of the solutions stand."""
    return {
        f"{path.relative_to(TUTORIALS).as_posix()}#Further-controls"
        for path in ALL[len(NOTEBOOKS) :]
        if further_controls(cells_of(path))
    }


def broken(page: str, folder: Path = TUTORIALS) -> list[str]:
    """The links of a page in this folder that lead nowhere: no such file, or no such heading in it."""
    known = {section.place for section in taught()} | further_places()
    own = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(page)}

    def leads(target: str) -> bool:
        file, _, anchor = target.partition("#")
        if not file:
            return anchor in own
        if not anchor or not file.endswith(".ipynb"):
            return (folder / file).exists()
        return f"{(folder / file).resolve().relative_to(TUTORIALS)}#{anchor}" in known

    return [target for target in LINK.findall(page) if not target.startswith("http") and not leads(target)]


def answers(question: str, found: tuple[Section, ...]) -> list[str]:
    """Where a question stands in bold, with its answer behind it."""
    return [section.place for section in found if f"**{question}**" in " ".join(section.prose.split())]


def test_sixty_words_in_the_order_of_the_alphabet_fifteen_questions_and_no_link_that_leads_nowhere() -> None:
    words = [re.sub(r"\W", "", word).lower() for word in ENTRIES]
    assert 60 <= len(words) == len(re.findall(r"(?m)^\*\*", WORDS)) and words == sorted(words)
    assert len(ASKED) == 15 and broken(WORDS + QUESTIONS) == []


@pytest.mark.parametrize(
    "link", ["15_nothing.ipynb", "2_through_the_encoder.ipynb#Poolers", "../minibert/modal.py", "#sixteen-questions"]
)
def test_a_link_that_leads_nowhere_would_be_found(link: str) -> None:
    assert broken(f"[a word]({link})") == [link]


@pytest.mark.parametrize("question", list(ASKED))
def test_a_question_is_answered_in_one_place_and_the_course_page_links_it(question: str) -> None:
    assert answers(question, taught()) == [ASKED[question]]


# -- verdicts: what the prose concludes, and the line of an output that says so


class Verdict(NamedTuple):
    """A conclusion of a notebook, and what its outputs must print for it to hold."""

    notebook: int
    prose: str
    printed: str  # a regular expression


NUMBERS = r"[+-]\d\.\d+ ± \d\.\d+ +"
FIVE_SHARES = r"moved / sum\n(48 reviews.* 0\.[0-3]\d\n){5}"  # of the sum of the rates: below two fifths
HELD = [
    Verdict(2, "no longer brings it back to 1", r"(?m)^ +1 +32 +8\.\d+ +1\.4\d"),
    Verdict(6, "the\nmean wins by several hundredths", rf"mean minus \[CLS\] +{NUMBERS}better"),
    Verdict(
        6, "the words, as the control, hardly change", r"(?s)cosine  words +(0[^\n]+)\n.*cosine  words without 99 +\1"
    ),
    Verdict(1, "two to three times as likely", r"with barking, .*dog 2\.\d[\s\S]*with barked, .*dog 2\.\d"),
    Verdict(2, "exactly the five guesses for about one word in four", r"the five nearest rows in 2\d%"),
    Verdict(
        6,
        "its kurtosis lies where it was, partly below 3",
        r"after 60 steps, .* biases at 0 0%,\n +kurtosis 2\.\d+ to 3\.[0-3]",
    ),
    Verdict(
        7,
        "rollout and the list cannot be told apart",
        r"rollout without \[CLS\] .*[+-]0\.0[0-4] ± .*no difference",
    ),
    Verdict(
        7,
        "it takes both",
        r"attention, last layer +0\.5\d[\s\S]*length, last .* \+0\.[12]\d[\s\S]*even .* \+0\.0",
    ),
    Verdict(
        7, "but much\nof it is that column", r"all keys +0\.\d\d 0\.[7-9].*\n.*without \[CLS\] +0\.[012]\d 0\.[0-4]"
    ),
    Verdict(6, "at the end it has lost some of that", r"accuracy, test rows: +0\.7[34]\d at epoch 9, 0\.7[01]"),
    Verdict(9, "they have no effect", r"biases of the key +mean size 0\.1\d, 0 of 1024 .* at most \de-0[4-9]"),
    Verdict(
        9,
        "it is their disagreement that shortens the steps",
        r"without +warm-up: .* step 8 0\.[34][\s\S]*the same batch at every step: step 8 0\.[89]",
    ),
    Verdict(9, "gives a step of more than two rates", r"then once 1, then 0 +largest step 2\.[1-9]"),
    Verdict(9, "two fifths of it at most", FIVE_SHARES),
    Verdict(
        10,
        "the pretrained one is ahead by two to four hundredths at each of the four sizes",
        r"160 +20 .*\+0\.03\d ± 0\.015\n +640 .*\+0\.02.*\n +2560 .*\+0\.02.*\n +6920 .*\+0\.03\d ± 0\.010",
    ),
    Verdict(
        12,
        "Only the kept words do it",
        r"100 % \[MASK\] .* 1\d\.\d% .*\n.*10 % kept .* [67]\d\.\d% .*\n.*10 % random .* 1\d\.\d%",
    ),
    Verdict(12, "the model names 72 % of the words that it sees", r"10 % kept .* 7[12]\.\d% ±"),
    Verdict(12, "the rule is right for four verbs", r"the verb follows the nearest phrase in 9\d\.\d%"),
    Verdict(
        12,
        "The determiner decides",
        r"(?s)determiner exchanged: the old number in \d\.\d%.*noun +exchanged: the old number in 8\d",
    ),
    Verdict(12, "silenced everywhere else, hardly any", r"everywhere but at \[MASK\]: the nearest phrase in (9\d|100)"),
    Verdict(
        12,
        "the narrower model that read twice as much is better",
        r"width 128 .* 4\.[34]\d\nwidth 256 .* 4\.[56]\d +\d\.\d\d\n[\s\S]*1,200 steps 29; width 256, 600 steps 47",
    ),
    Verdict(13, "nine tenths of the damage is gone", r"(?s)nobody +\+6\.\d.*\[CLS\] and \[SEP\] +\+0\.[0-6]"),
    Verdict(13, "ten seeds see what three could not", rf"(?m)^one head +{NUMBERS}worse"),
    Verdict(13, "learns *nothing* at this rate", r"whole, loss +2\.\d+ +3\.7\d"),
    Verdict(
        13,
        "it gives all [MASK] tokens of a row the same guess",
        r"(?s)whole +two .* [4-9]\d\.\d%.*residual +two .* 0\.0%",
    ),
    Verdict(13, "Pre-norm learns", rf"(?m)^pre-norm +{NUMBERS}worse +{NUMBERS}better"),
    Verdict(13, "a little higher, by two and a half errors", r"two layers 2\.0\d+, difference \+0\.041 ± 0\.016"),
    Verdict(15, "ModernBERT is ahead", r"ModernBERT less BERT: -0\.3\d+ ± 0\.0\d+"),
    Verdict(15, "three seeds can no longer tell the two apart", rf"400 steps: table .* {NUMBERS}cannot tell"),
    Verdict(15, "breaks where its training ended", rf"32 tokens, none less table: {NUMBERS}better"),
    Verdict(15, "no better than with no positions at all", rf"128 tokens, rotary less none: {NUMBERS}cannot tell"),
    Verdict(15, "read the same 128 tokens nearly as well as 16", r"a window of 112 +2\.1\d+ .* 2\.1\d+\n"),
    Verdict(15, "With 64 tokens in sight they fail", r"a window of 128 +2\.1\d+ .* 3\.[67]\d+\n"),
    Verdict(15, "the loss on 128 tokens falls by one nat", r"pair 1 .* 128 tokens 2\.9\d+\n"),
    Verdict(
        15, "slow down a slower one, and it does not", r"pair 2 .* 128 tokens 3\.[89]\d+\npair 3 .* 128 tokens 3\.9"
    ),
    Verdict(15, "three seeds see no change", r"(scores +\d+ times as large: .*cannot tell\n+){4}"),
    Verdict(
        15,
        "nothing is gained, and the loss is rather higher",
        rf"40% masked, 1\.1 questions per row: .* less 15%: {NUMBERS}cannot tell",
    ),
    Verdict(15, "Three seeds cannot tell the two apart here", rf"gated less BERT: {NUMBERS}cannot tell"),
    Verdict(15, "the model that learned with 40 % is better", rf"40% masked, 2\.9 .* less 15%: {NUMBERS}better"),
    Verdict(15, "For 30 %, three seeds cannot tell", rf"30% masked, .* less 15%: {NUMBERS}cannot tell"),
    Verdict(15, "parts together are *worse* than BERT here", rf"120 steps: {NUMBERS}worse"),
    Verdict(15, "With 400 steps the two cannot be told apart", rf"parts \d\.\d+ +{NUMBERS}cannot tell"),
    Verdict(16, "From nearly never to always", r"(?s)untrained .* +\d\.\d%\n.*with hard negatives .* 100\.0%"),
    Verdict(16, "the second column is no better than before", r"in-batch negatives +\d+\.\d% +[0-9]\.\d%"),
    Verdict(
        16, "More negatives of the ordinary kind do not teach the roles", r"more random negatives +\d+\.\d% +\d\.\d%"
    ),
    Verdict(
        16,
        "Nearly all mistakes of the first two models are exchanged roles",
        r"untrained +216 mistakes, 20\d with [\s\S]*hard negatives +\d mistakes, +0 with",
    ),
    Verdict(
        16, "counting equal words is enough to win", r"the right one of 32 by the number of equal words: (9[5-9]|100)"
    ),
    Verdict(16, "Without it their cosine is near 0", r"less the mean of all: -?0\.0[0-2]"),
    Verdict(16, "Nor does subtracting the mean", r"untrained +0\.69\d +0\.09.*\n.*\n.*centred +-?0\.0\d+ +0\.0[5-9]"),
    Verdict(16, "no trick about passives alone", r"    with hard negatives +100\.0%"),
    Verdict(17, "BM25 and the bi-encoder cannot be told apart", r"(?m)^bi-encoder .* \+0\.00\d ± 0\.01"),
    Verdict(
        17,
        "With many shared words BM25 leads, with few the vectors do",
        r"(?s)few.*\nbi.* \+0\.0[5-9].*many.*\nbi.* -0\.0[4-9]",
    ),
    Verdict(
        17, "divided by the cosine it is the other way round", r"(?s)low cosine.*\nbi.* -0\.0.*high.*\nbi.* \+0\.0[3-6]"
    ),
    Verdict(
        17, "BM25 loses about as much by either word", r"(?s)near word +BM25 +-0\.1[4-8].*random word +BM25 +-0\.1[4-8]"
    ),
    Verdict(
        17,
        "a head of random numbers finds it at least as often",
        r"added words only +0\.5\d .*\nadded, random head +0\.[56]",
    ),
    Verdict(17, "With an exact query the signs lose hardly more", r"binary, exact query .* -0\.01\d ± 0\.00\d"),
    Verdict(17, "MaxSim is far above the bi-encoder", r"MaxSim .* \+0\.0[6-9]\d ± 0\.0[01]"),
    Verdict(17, "Adding BM25 no longer helps", r"(?s)MaxSim .* \+0\.07.*MaxSim and BM25 .* \+0\.0[4-6]"),
    Verdict(17, "The words that this head adds do harm", r"SPLADE's formula .* -0\.[12]"),
    Verdict(17, "it is much worse than the order that it was given", r"cross-encoder +0\.\d\d .* -0\.[2-4]\d+ ±"),
    Verdict(17, "*many rough* numbers are better", r"(?s)binary  .* -0\.0[2-5].*the first 12 numbers .* -0\.[3-6]"),
    Verdict(18, "the subject counts for little", r"subject: \+0\.[6-9].*\na plural nearest noun: \+3\.[5-9]"),
    Verdict(18, "even the coins, even without training", r"untrained +9\d% +9\d%"),
    Verdict(18, "Without training the probe is at chance or below", r"untrained +[45]\d% +[45]\d% +[45]\d% +[45]\d% "),
    Verdict(18, "after layer 2 nearly all of it is at [MASK]", r"after layer 2 +\d% +8\d%"),
    Verdict(18, "a singular one does nothing", r"that noun singular +[+-]0\.[01]\d ± 0\.[12]"),
    Verdict(18, "The two heads take three quarters of the effect away", r"2 heads +0\.[89]\d"),
    Verdict(18, "head 1.0 takes nearly all of its attention from the token before", r"(?m)^1\.0 .* 9\d%$"),
    Verdict(18, "One feature of 512 has more than half of the effect", r"(?m)^real states +\+(0\.9|1\.)"),
    Verdict(18, "found again with another (none by chance)", r"of the random vectors: 0%"),
    Verdict(19, "If both are 0, neither gets a gradient", r"both 0 +0\.0000 +0\.000 +0\.000"),
    Verdict(
        19, "LoRA keeps four fifths of what all layers keep", r"LoRA 4 +4[56]\d\.\d MB[\s\S]*all layers +5[67]\d\.\d MB"
    ),
    Verdict(19, "All layers are ahead of it with each seed", r"(?m)^LoRA 4 .* -0\.0[1-3]\d ± 0\.00"),
    Verdict(19, "have hardly begun", r"(?m)^0\.0003 .* 0\.67\d .* 0\.64\d .* 0\.8\d+$"),
    Verdict(20, "the ECE falls to a sixth", r"as fitted, C = 1 .* 0\.1[45]\d\nT from dev .* 0\.02\d"),
    Verdict(20, "The temperature of the training rows is below 1 and does harm", r"training rows: T = 0\.[89]"),
    Verdict(20, "the theory costs a fifth more", r"theory, as fitted +0\.5\d+ +\+0\.\d+ ± 0\.02"),
    Verdict(20, "flattered by one and a half standard errors", r"best of 60: .* flattered by \+0\.03"),
    Verdict(20, "here it changes no answer", r"scaler fitted on the test rows too: 0 of"),
    Verdict(20, "the accuracy is no better than a coin toss", r"in each fold anew +0\.[45]\d\d ± 0\.0[01]"),
]


def of_number(number: int) -> Path:
    return next(path for path in NOTEBOOKS if path.name.startswith(f"{number}_"))


def holds(verdict: Verdict, prose: str, outputs: str) -> bool:
    """Whether the prose draws this conclusion and the outputs support it."""
    return " ".join(verdict.prose.split()) in " ".join(prose.split()) and bool(re.search(verdict.printed, outputs))


def outputs_of(path: Path) -> str:
    return "\n".join(printed(cell) for cell in cells_of(path) if cell["cell_type"] == "code")


@pytest.mark.parametrize("verdict", HELD, ids=lambda verdict: f"{verdict.notebook}: {verdict.prose[:40]}")
def test_what_a_notebook_concludes_is_what_it_printed(verdict: Verdict) -> None:
    path = of_number(verdict.notebook)
    assert holds(verdict, prose_of(path), outputs_of(path))


@pytest.mark.parametrize(
    ("before", "after"), [("better", "cannot tell"), ("worse", "cannot tell"), ("cannot tell", "worse"), ("±", "+")]
)
def test_another_outcome_would_refute_a_conclusion(before: str, after: str) -> None:
    decided = [one for one in HELD if one.printed.endswith(before) or (before == "±" and NUMBERS in one.printed)]
    assert len(decided) > 1
    for verdict in decided:
        path = of_number(verdict.notebook)
        assert not holds(verdict, prose_of(path), outputs_of(path).replace(before, after)), verdict
