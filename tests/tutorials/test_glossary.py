"""The glossary: each word is taught where it says, and each of its twelve questions is answered in one place."""

import re
from functools import cache
from typing import NamedTuple

import pytest
from notebooks import NOTEBOOKS, TUTORIALS, prose_of

PAGE = (TUTORIALS / "GLOSSARY.md").read_text("utf-8")
WORDS, _, QUESTIONS = PAGE.partition("## Twelve questions")

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


def broken(page: str) -> list[str]:
    """The links of a page in tutorials/ that lead nowhere: no such file, or no such heading in it."""
    known = {section.place for section in taught()}
    own = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(page)}

    def leads(target: str) -> bool:
        file, _, anchor = target.partition("#")
        if not file:
            return anchor in own
        return target in known if anchor and file.endswith(".ipynb") else (TUTORIALS / file).exists()

    return [target for target in LINK.findall(page) if not target.startswith("http") and not leads(target)]


def answers(question: str, found: tuple[Section, ...]) -> list[str]:
    """Where a question stands in bold, with its answer behind it."""
    return [section.place for section in found if f"**{question}**" in " ".join(section.prose.split())]


def test_sixty_words_in_the_order_of_the_alphabet_twelve_questions_and_no_link_that_leads_nowhere() -> None:
    words = [re.sub(r"\W", "", word).lower() for word in ENTRIES]
    assert 60 <= len(words) == len(re.findall(r"(?m)^\*\*", WORDS)) and words == sorted(words)
    assert len(ASKED) == 12 and broken(PAGE) == []


@pytest.mark.parametrize(
    "link", ["13_nothing.ipynb", "2_through_the_encoder.ipynb#Poolers", "../minibert/modal.py", "#thirteen-questions"]
)
def test_a_link_that_leads_nowhere_would_be_found(link: str) -> None:
    assert broken(f"[a word]({link})") == [link]


@pytest.mark.parametrize("question", list(ASKED))
def test_a_question_is_answered_in_one_place_and_the_glossary_links_it(question: str) -> None:
    assert answers(question, taught()) == [ASKED[question]]


def test_a_question_that_is_answered_twice_or_never_would_be_found() -> None:
    prose = "## One\n\n**Why?** So.\n\n## Two\n\n**Why?** Otherwise.\n\n```sh\n# no heading\n```"
    found = tuple(sections("a.ipynb", prose))
    assert answers("Why?", found) == [section.place for section in found] == ["a.ipynb#One", "a.ipynb#Two"]
    assert answers("How?", found) == []
