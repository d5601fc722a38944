"""Sentences with invented names, tagged, and passages with questions: what is in them is known, so a test can be fair.

No name and no sentence pattern of the test occurs in training. Some names belong to people and to cities, such as
*paris* and *florence*, so the word by itself does not decide.
"""

from random import Random

from minibert.tasks.answering import Gold, Question, Questions
from minibert.tasks.tagging import Sentences

NAMES = {
    "first": "austin chelsea jordan lincoln paris anna carlos david elena fatima george hannah ivan julia "
    "florence sydney victoria karl laura martin",
    "last": "alvarez costa dubois eriksen fischer garcia hughes ito jansen keller lopez moreau novak okafor petrov "
    "rossi schmidt tanaka vargas weber",
    "city": "austin chelsea jordan lincoln paris athens berlin cairo dublin geneva havana jakarta krakow lisbon "
    "florence sydney victoria madrid nairobi oslo",
}
FIRMS = [
    f"{a} {b}" for a in ("atlas", "northern", "delta", "summit", "pioneer") for b in ("foods", "motors", "steel", "air")
]
PATTERNS = {
    "train": [
        "PERSON moved from CITY to CITY last year .",
        "PERSON has worked for FIRM since may .",
        "the mayor of CITY thanked PERSON .",
        "FIRM opened an office in CITY .",
        "PERSON and PERSON met in CITY .",
        "shares of FIRM fell after PERSON resigned .",
        "according to PERSON , FIRM will leave CITY .",
        "it was raining in CITY when the train left .",
        "nobody answered the phone .",
    ],
    "test": [
        "PERSON was born in CITY .",
        "FIRM hired PERSON on monday .",
        "flights from CITY to CITY are late .",
        "in CITY , PERSON bought shares of FIRM .",
        "we waited for an hour in the rain .",
    ],
}
STATEMENTS = (
    "{person} lives in {city} and works for {firm} .",
    "in {city} , {person} has a job at {firm} .",
    "{firm} has sent {person} to {city} .",
)
QUESTIONS = {
    "city": "where does {person} live ?",
    "firm": "which firm does {person} work for ?",
    "person": "who works for {firm} ?",
}


def some_name(kind: str, part: str, random: Random) -> str:
    """Draw a person, city or firm; no name of the test is one of the training."""
    one = slice(0, 14) if part == "train" else slice(14, 20)
    if kind == "person":
        first, last = (random.choice(NAMES[which].split()[one]) for which in ("first", "last"))
        return random.choice((first, f"{first} {last}"))
    return random.choice((FIRMS if kind == "firm" else NAMES[kind].split())[one])


def tagged(part: str, count: int, seed: int) -> Sentences:
    """Return sentences with a tag for each word."""
    random, words, tags = Random(seed), [], []
    for _ in range(count):
        row = []
        for word in random.choice(PATTERNS[part]).split():
            name = some_name(word.lower(), part, random).split() if word.isupper() else []
            row += [(piece, f"{'I' if n else 'B'}-{word.lower()}") for n, piece in enumerate(name)] or [(word, "O")]
        words.append([word for word, _ in row])
        tags.append([tag for _, tag in row])
    return Sentences(words, tags)


def questions(part: str, count: int, people: int, seed: int) -> tuple[Questions, list[set[str]]]:
    """Return questions on passages about so many people, and for each the answers about the other people."""
    random, rows, of_others = Random(seed), [], []
    while len(rows) < count:
        facts = [{kind: some_name(kind, part, random) for kind in QUESTIONS} for _ in range(people)]
        if all(len({one[kind] for one in facts}) == people for kind in QUESTIONS):
            text = " ".join(random.choice(STATEMENTS).format(**one) for one in facts)
            kind, one = random.choice(list(QUESTIONS)), random.choice(facts)
            rows.append(Question(QUESTIONS[kind].format(**one), text, (Gold(one[kind], text.index(one[kind])),)))
            of_others.append({other[kind] for other in facts} - {one[kind]})
    return Questions(rows), of_others
