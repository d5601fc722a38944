"""Masked LM goes on: a checkpoint reads texts of a field of its own, and guesses words that are hidden in them.

    lines      A line of text.        tokens   a line of text . and the next one . a new     document .
               And the next one.
                                      rows     [CLS] a line of text . and [SEP]
               A new document.                 [CLS] the next one . [SEP]
                                               [CLS] a new document . [SEP]

The task that BERT was pretrained with (Devlin et al. 2018, section 3.1), on raw text. The lines of a document follow
each other in rows that are as full as can be, so that the model sees what stands before and behind a line, and nothing
is cut off; a new document begins a new row. What is hidden is drawn afresh in each epoch (text/masking.py). To measure,
it is always the same draw: that of the examples as they are encoded.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from minibert.losses import IGNORED
from minibert.printing import block
from minibert.settings import check, setting
from minibert.tasks.base import Augmentation, Encoded, Example, Logits, Measure, Task
from minibert.tasks.classification import one_line
from minibert.tasks.fill_mask import Guess, mask_places
from minibert.tasks.metrics import standard_error
from minibert.text.masking import RATE, Masking, check_rate, unmasked
from minibert.text.tables import Column, Table
from minibert.text.texts import as_texts, portions
from minibert.text.tokenized import TokenStats
from minibert.text.tokenizer import Tokenizer

# ---------------------------------------------------------------------------------------------------------------
# Texts


@dataclass(frozen=True)
class Corpus:
    """Raw text: documents of lines, none of which is blank."""

    documents: Sequence[Sequence[str]]
    name: str = "the corpus"

    def __len__(self) -> int:
        """How many lines there are."""
        return sum(map(len, self.documents))

    @classmethod
    def of(cls, texts: Iterable[str], name: str = "the corpus") -> Corpus:
        """Of lines; one with nothing but white space ends a document."""
        groups = groupby(as_texts(texts), key=lambda line: bool(line.strip()))
        return cls([list(lines) for is_text, lines in groups if is_text], name)


@dataclass(frozen=True)
class Blanks:
    """Texts with [MASK]s in them, to be filled."""

    texts: Sequence[str]

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class Recovered:
    """What a model made of the hidden tokens of a row."""

    tokens: int  # that were hidden
    right: int  # of these, where the best guess is what stood there
    loss: float  # the sum of -log p(what stood there), in nats


@dataclass(frozen=True)
class Filled:
    """A text with the best guess in place of each [MASK]."""

    text: str
    guesses: tuple[Guess, ...]


# ---------------------------------------------------------------------------------------------------------------
# The task


@dataclass(frozen=True)
class MaskedText(Task):
    """Hidden tokens of raw text.

    mask_rate: the fraction of tokens to predict. whole_words: all tokens of a word together. text, format: the
    column of a table, and its format where the file name does not give it.
    """

    mask_rate: float = setting(RATE, "fraction of the tokens to predict")
    whole_words: bool = setting(False, "mask all tokens of a word together")
    text: str | None = setting(
        None, "of a table: name or number of the text column (default: sentence or text)", metavar="COLUMN"
    )
    format: str | None = setting(
        None, "txt, tsv, csv, jsonl, json or parquet (default: by the file name)", metavar="TYPE"
    )

    name = "mask"
    head = "masked-lm"
    data_help = "raw text: one text a line, an empty line between documents; or a table"
    main = "log_likelihood"
    fresh_head = "the checkpoint has no head that guesses words ('masked-lm'): a fresh one learns from the beginning"

    def __post_init__(self) -> None:
        check(self)
        check_rate(self.mask_rate)

    def read(self, path: str | Path) -> Corpus:
        """The texts of a file: of plain text one a line, an empty line between documents; in a table a document a row.

        Raises ValueError for what is no text, before the rest of it is read.
        """
        with Table(path, [Column("text", self.text)], self.format) as file:
            texts: list[str] = []
            for (text,) in tqdm(file.rows(), "reading", leave=False, unit="text", delay=2, disable=None):
                if "\0" in text:
                    raise ValueError(f"{file.name} is a binary file (or UTF-16), not text; save it as UTF-8")
                texts.append(text)
        if file.format == "txt":
            return Corpus.of(texts, file.name)
        return Corpus([[text] for text in texts if text.strip()], file.name)

    def from_texts(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Blanks:
        """Texts to be filled."""
        if pairs is not None:
            raise ValueError("[MASK] is filled in one text at a time; leave the second texts out")
        return Blanks(as_texts(texts))

    def labels_of(self, data: Corpus) -> list[str]:
        """None: what is guessed are tokens. Raises ValueError for a corpus of nothing or of a single line."""
        if not isinstance(data, Corpus):
            raise TypeError(f"data is of type {type(data).__name__}; a file is wanted, or Corpus.of(lines)")
        if len(data) < 2:
            what = "one line of text" if len(data) else "no text"
            raise ValueError(
                f"{data.name} holds {what}; to learn from, one sentence or paragraph is wanted on each line, and an "
                "empty line between documents"
            )
        return []

    def encode(self, data: Corpus | Blanks, tokenizer: Tokenizer, labels: Sequence[str], max_length: int) -> Encoded:
        """Rows of a corpus, filled to max_length, with tokens hidden; or a row for each text with [MASK]s."""
        if isinstance(data, Blanks):
            return blanks(data, tokenizer, max_length)
        masking = self.masking(tokenizer, seed=0)
        examples: list[Example] = []
        tokens = unknown = 0
        for document in tqdm(data.documents, "encoding", leave=False, unit="document", delay=2, disable=None):
            for row in rows_of(document, tokenizer, max_length):
                tokens, unknown = tokens + len(row), unknown + row.count(tokenizer.unk_id)
                examples.append(hidden(tokenizer.template.row(row), masking, 0, len(examples)))
        if unknown == tokens:
            what = f"all {tokens:,} tokens of {data.name} are {tokenizer.id_to_token(tokenizer.unk_id)}"
            raise ValueError(
                f"{what if tokens else f'{data.name} has no token that can be seen'}: nothing can be learned from it; "
                "choose a checkpoint whose vocabulary knows this language and script"
            )
        tokenizer.warn(TokenStats(len(data), tokens, unknown), max_length)
        note = (
            f"{len(data):,} lines of {len(data.documents):,} documents, {tokens:,} tokens, stand in {len(examples):,} "
            f"rows of up to {max_length}: the lines of a document follow each other, and nothing is cut off"
        )
        return Encoded(examples, notes=(note,))

    def augment(self, tokenizer: Tokenizer, seed: int) -> Augmentation:
        """In each epoch other tokens are hidden."""
        masking = self.masking(tokenizer, seed)

        def afresh(example: Example, epoch: int, row: int) -> Example:
            return hidden(unmasked(example.ids, example.labels["labels"]), masking, epoch, row)

        return afresh

    def masking(self, tokenizer: Tokenizer, seed: int) -> Masking:
        """With these settings."""
        return Masking.of(tokenizer, self.mask_rate, self.whole_words, seed)

    def reduce(self, logits: Tensor, example: Example) -> Tensor:
        """Of the N hidden tokens, (N, V) -> (N, 3): the best token, log p of it, and log p of the label.

        A row of 128 tokens would otherwise keep 2 MB of logits. float32 holds ids of up to 16 million.
        """
        true = torch.tensor([id for id in example.labels["labels"] if id != IGNORED], dtype=torch.long)
        p = logits.log_softmax(dim=-1)  # (N,V)
        best = p.max(dim=-1)
        of_label = p.gather(1, true.to(p.device)[:, None])[:, 0]
        return torch.stack([best.indices.float(), best.values, of_label], dim=1)

    def decode(
        self, logits: Sequence[Logits], encoded: Encoded, data: Corpus | Blanks, labels: Sequence[str]
    ) -> list[Any]:
        """A Recovered for each row of a corpus, or a Filled for each text with [MASK]s; from what `reduce` kept."""
        if isinstance(data, Blanks):
            tokenizer, continues = encoded.back, encoded.back.continues
            return [filled(text, row, tokenizer, continues) for text, row in zip(data.texts, logits, strict=True)]
        found = []
        for row, example in zip(logits, encoded.examples, strict=True):
            true = [id for id in example.labels["labels"] if id != IGNORED]
            found.append(Recovered(len(row), int((row[:, 0] == true).sum()), -float(row[:, 2].sum(dtype="float64"))))
        return found

    def measure(self, answers: Sequence[Recovered], data: Corpus, labels: Sequence[str]) -> Measure:
        """Mean loss and perplexity of a hidden token, and how many are guessed right."""
        tokens = sum(one.tokens for one in answers)
        if not tokens:
            raise ValueError(f"{data.name} is too short to be measured by: none of its tokens was hidden")
        loss = sum(one.loss for one in answers) / tokens
        if not math.isfinite(loss):
            raise ValueError(f"the loss on {data.name} is {loss}; the weights of the model are damaged")
        accuracy = sum(one.right for one in answers) / tokens
        figures: dict[str, Any] = {
            "perplexity": math.exp(min(loss, 700.0)),  # e^710 is no float any more
            "loss": loss,
            "log_likelihood": -loss,  # more is better
            "accuracy": accuracy,
            "standard_error": standard_error(accuracy, tokens),
            "masked_tokens": tokens,
            "rows": len(answers),
        }
        perplexity = "{perplexity:,.2f} of a masked token, e to the loss, which is {loss:.4f}".format(**figures)
        right = "{accuracy:.4f} ± {standard_error:.4f} (standard error), {masked_tokens:,} masked tokens"
        told = [block("perplexity", perplexity), block("accuracy", right.format(**figures))]
        return Measure(figures, self.main, "\n".join(told))

    def format_predictions(self, answers: Sequence[Filled], data: Blanks) -> list[str]:
        """The guesses, their probabilities, and the text that they make."""
        return [
            one_line(
                " ".join(guess.token for guess in one.guesses),
                " ".join(f"{guess.probability:.4f}" for guess in one.guesses),
                one.text,
            )
            for one in answers
        ]


def rows_of(document: Iterable[str], tokenizer: Tokenizer, max_length: int) -> Iterator[list[int]]:
    """The ids of the lines, one after the other, in rows with room for [CLS] and [SEP]; the last may be shorter."""
    framing = tokenizer.template
    room = tokenizer.resolve_max_length(max_length, pairs=False) - framing.specials(pairs=False)
    left: list[int] = []
    for portion in portions(document):
        windows = tokenizer.encode_texts(portion, long="windows", stride=room, max_length=max_length).ids
        left += [id for window in windows for id in window[len(framing.before) : -len(framing.after)]]
        full = len(left) - len(left) % room
        yield from (left[start : start + room] for start in range(0, full, room))
        left = left[full:]
    if left:
        yield left


def hidden(ids: Sequence[int], masking: Masking, epoch: int, row: int) -> Example:
    """An example with some of its tokens hidden; four bytes a number, as a corpus has many."""
    seen, labels = masking(ids, epoch, row)
    return Example(array("i", seen), array("i", [0]) * len(seen), {"labels": array("i", labels)})


# ---------------------------------------------------------------------------------------------------------------
# [MASK]s to be filled


def blanks(data: Blanks, tokenizer: Tokenizer, max_length: int) -> Encoded:
    """A row for each text. What is to be guessed is said by labels: [MASK] itself, for want of the truth.

    Raises ValueError, with the row, for a text without [MASK], or with one beyond max_length.
    """
    examples = []
    for row, text in enumerate(data.texts):
        batch = tokenizer(text, max_length=max_length)
        try:
            places = mask_places(text, batch, tokenizer)
        except ValueError as error:
            raise ValueError(f"row {row}: {error}") from None
        labels = [IGNORED] * batch.longest
        for place in places:
            labels[place] = tokenizer.mask_id
        ids = batch.input_ids[0].tolist()
        examples.append(Example(ids, [0] * len(ids), {"labels": labels[: len(ids)]}))
    return Encoded(examples, back=tokenizer)


def filled(text: str, row: Logits, tokenizer: Tokenizer, continues: NDArray[np.bool_]) -> Filled:
    """The text with the best token at each [MASK]; one that goes on with a word (##s) joins what stands before it."""
    whole, *behind = text.split(tokenizer.id_to_token(tokenizer.mask_id) or "[MASK]")
    guesses = []
    for (best, log_p, _), rest in zip(row.tolist(), behind, strict=True):
        id = int(best)
        token = tokenizer.id_to_token(id)  # None where the model has more rows than the vocabulary
        guesses.append(Guess(token or f"[id {id}]", math.exp(log_p)))
        word = tokenizer.decode([id]).strip().removeprefix("##") if token else f"[id {id}]"
        whole = (whole.rstrip() if token and continues[id] else whole) + word + rest
    return Filled(whole, tuple(guesses))
