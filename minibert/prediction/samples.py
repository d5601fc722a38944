"""Small files of every kind that the commands of README read, made from the data that ships with minibert.

    train.tsv, dev.tsv        columns text and label: reviews, positive or negative
    sentences.txt             one sentence per line
    reviews.jsonl.gz          {"body": review, "label": label} per line
    pairs.tsv                 the beginning of each review, its end, and the number of words in the end
    train.conll, dev.conll    a word and its tag per line, an empty line between sentences
    corpus.txt                a review per line, an empty line after every ten, which count as one document
    small.json                the sizes of a BERT that trains in seconds

They show formats and let every command run. They are too small to train anything good.
"""

import gzip
import json
import os
from importlib import resources
from pathlib import Path

from minibert.prediction.demo import MEANING, SENTENCES
from minibert.utils.files import AnyPath, atomic_write, user_path

SMALL = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
TRAIN_REVIEWS = 360  # of 480
TRAIN_SENTENCES = 40  # of 50, with tags


def write_samples(folder: AnyPath) -> dict[str, bool]:
    """Write the files into a folder. A file that is there stays as it is: return True for each that was written.

    Raises ValueError for a file in place of the folder, OSError if it cannot be written.
    """
    folder = user_path(folder)
    written = {}
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is not a folder, and the sample files need one; name another (--files)")
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in sample_files().items():
        written[name] = not os.path.lexists(folder / name)
        if written[name]:
            with atomic_write(folder / name) as temporary:
                temporary.write_bytes(content)
    return written


def sample_files() -> dict[str, bytes]:
    """Return the content of each file by its name."""
    data = Path(str(resources.files("minibert"))) / "data"
    rows = [line.split("\t") for line in (data / "reviews.tsv").read_text("utf-8").splitlines()]
    reviews = [(text, MEANING[label]) for text, label in rows]
    tagged = (data / "names.conll").read_text("utf-8").strip().split("\n\n")
    documents = ["".join(f"{text}\n" for text, _ in reviews[start : start + 10]) for start in range(0, len(rows), 10)]
    objects = "".join(json.dumps({"body": text, "label": label}) + "\n" for text, label in reviews)
    texts = {
        "train.tsv": labelled(reviews[:TRAIN_REVIEWS]),
        "dev.tsv": labelled(reviews[TRAIN_REVIEWS:]),
        "sentences.txt": "".join(f"{sentence}\n" for sentence in SENTENCES),
        "pairs.tsv": pairs([text.split() for text, _ in reviews]),
        "train.conll": "\n\n".join(tagged[:TRAIN_SENTENCES]) + "\n",
        "dev.conll": "\n\n".join(tagged[TRAIN_SENTENCES:]) + "\n",
        "corpus.txt": "\n".join(documents),
        "small.json": json.dumps(SMALL, indent=2) + "\n",
    }
    files = {name: text.encode() for name, text in texts.items()}
    return files | {"reviews.jsonl.gz": gzip.compress(objects.encode(), mtime=0)}


def pairs(texts: list[list[str]]) -> str:
    """Return a table of texts of words, each cut in the middle, with a header."""
    halves = ((words[: len(words) // 2], words[len(words) // 2 :]) for words in texts)
    return "query\tdocument\twords\n" + "".join(f"{' '.join(a)}\t{' '.join(b)}\t{len(b)}\n" for a, b in halves)


def labelled(rows: list[tuple[str, str]]) -> str:
    """Return a table of texts and labels, with a header."""
    return "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows)
