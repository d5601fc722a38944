"""Masked tokens: their prediction in a text, and continued pretraining on texts of your own domain.

    lines      A line of text.        tokens   a line of text . and the next one . a new     document .
               And the next one.
                                      rows     [CLS] a line of text . and [SEP]
               A new document.                 [CLS] the next one . [SEP]
                                               [CLS] a new document . [SEP]

The pretraining task of BERT (Devlin et al. 2018, section 3.1), on raw text. The lines of a document are concatenated
and split into full rows, so that a line keeps its context and nothing is truncated; a new document begins a new row.
Masks are drawn again in each epoch (text/masking.py); evaluation always uses the masks drawn by `encode`.
"""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from minibert.checkpoints.checkpoint import Checkpoint
from minibert.checkpoints.load import load
from minibert.heads import MaskedLM
from minibert.inputs import IGNORED
from minibert.storage import hub
from minibert.tables.columns import Column
from minibert.tables.reading import Table
from minibert.tables.texts import RowError, as_texts
from minibert.tables.writing import one_line
from minibert.tasks.base import Augmentation, Encoded, Example, Logits, Measure, Prediction, Task
from minibert.tasks.metrics import standard_error
from minibert.tasks.settings import MaskedTextSettings
from minibert.text.masking import Masking, unmasked
from minibert.text.tokenizer import Tokenizer, TokenStats, load_tokenizer
from minibert.utils.device import move
from minibert.utils.files import AnyPath
from minibert.utils.inference import inference
from minibert.utils.printing import Figures, block, counted, progress_bar
from minibert.utils.wording import named

# ---------------------------------------------------------------------------------------------------------------
# Filling masks


class Guess(NamedTuple):
    """A token predicted at a mask, and its probability."""

    token: str
    probability: float


def fill_mask(
    text: str, model: AnyPath | MaskedLM, top_k: int = 5, *, tokenizer: Tokenizer | None = None
) -> list[list[Guess]]:
    """Return the `top_k` most probable tokens at each [MASK] of the text, in order.

    model: a checkpoint's name or folder, or a loaded MaskedLM with its tokenizer. Each mask is predicted while the
    others stay masked. Raises ValueError for a text without a mask or with one beyond the longest row of the model, for
    top_k outside 1 .. V, and for a head that was never trained.
    """
    if isinstance(model, str | os.PathLike):
        model = Checkpoint.open(model)
        tokenizer = tokenizer or load_tokenizer(model)
        model = load_masked_lm(model)
    if not isinstance(text, str) or not isinstance(model, MaskedLM) or tokenizer is None:
        raise TypeError("fill_mask takes one str, and a checkpoint or a loaded MaskedLM with tokenizer=")
    if not model.head_is_trained:
        raise ValueError("the head 'masked-lm' was never trained, so its guesses would mean nothing; train it first")
    if not 1 <= top_k <= model.config.vocab_size:
        size = model.config.vocab_size
        raise ValueError(named("top_k") + f" is {top_k}; it must be 1 to {size}, the size of the vocabulary")
    tokens = tokenizer.encode_texts(as_texts([text]))
    tokenizer.warn(tokens.stats, tokenizer.max_length)
    return guesses_in(text, tokens.ids[0], model, tokenizer, top_k, "the text")[0]


def load_masked_lm(name: AnyPath, device: str = "cpu") -> MaskedLM:
    """Load a checkpoint with its masked-LM head. Raises ValueError, naming one that has it, if it has none."""
    checkpoint = Checkpoint.open(name)
    if not checkpoint.has_head(MaskedLM.name):
        raise ValueError(f"{name} has no head {MaskedLM.name!r}, which predicts tokens; {hub.find_masked_lm()} has one")
    model: Any = load(checkpoint, head=MaskedLM.name, device=device)
    return model  # type: ignore[no-any-return]  # a MaskedLM


def guesses_in(
    text: str, ids: Sequence[int], model: MaskedLM, tokenizer: Tokenizer, top_k: int, row: int | str
) -> tuple[list[list[Guess]], list[int]]:
    """Return the guesses at each [MASK] of a text with these ids, and the ids of the likeliest.

    row: the text's, or its place. Raises RowError if it has no mask, or one that is not in the ids.
    """
    mask: str = tokenizer.mask_token
    places = [place for place, id in enumerate(ids) if id == tokenizer.mask_id]
    if not places or len(places) < text.count(mask):
        raise RowError(
            row,
            f"has {text.count(mask)} {mask}, {len(places)} of them in the {len(ids)} tokens that are read; "
            f"write {mask} for each token to predict, within this length",
        )
    batch = move(torch.tensor([ids], dtype=torch.long), model.device)  # (1,S)
    with inference(model):
        logits = model(batch, attention_mask=torch.ones_like(batch), token_type_ids=torch.zeros_like(batch)).logits
    of_masks = torch.stack([logits[0, place] for place in places]).cpu()  # (masks, V)
    return best_tokens(of_masks, tokenizer, top_k), of_masks.argmax(dim=-1).tolist()


def best_tokens(logits: Tensor, tokenizer: Tokenizer, top_k: int) -> list[list[Guess]]:
    """Return the `top_k` most probable tokens of each row of logits, (masks, V)."""
    best = logits.float().softmax(dim=-1).topk(top_k)  # (masks, top_k)
    return [
        [Guess(tokenizer.token_text(id), p) for id, p in zip(ids, row, strict=True)]
        for ids, row in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def fill_text(text: str, ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """Return the text with a token in place of each [MASK]; a token that continues a word (##s) is joined to it.

    With Ġ or ▁ in its tokens, a tokenizer has the spaces of transformers (FillMaskPipeline): the token brings its own,
    the mask takes those before it along, and a sign that was read as the beginning of a word is set apart.
    """
    encoding = next(tokenizer.encode_each([text]))
    continues = tokenizer.continues
    mark = tokenizer.mark
    places = [place for place, id in enumerate(encoding.ids) if id == tokenizer.mask_id]
    whole = ""
    end = 0
    for place, id in zip(places, ids, strict=True):
        start, stop = encoding.offsets[place]
        whole += text[end:start]
        token = tokenizer.id_to_token(id) or ""  # a model may have more rows than there are tokens
        takes_space = encoding.tokens[place][:1].isspace()  # the mask has lstrip
        if takes_space or mark == "▁" or (token and not mark and continues[id]):
            whole = whole.rstrip()
        if mark and token.startswith(mark) and (whole or mark == "Ġ"):
            whole += " "
        whole += tokenizer.token_text(id).removeprefix(mark or "##")
        following = "".join(encoding.tokens[place + 1 : place + 2])
        sign = text[stop : stop + 1]
        if mark and following.startswith(mark) and not sign.isspace() and not tokenizer.joins(sign):
            whole += " "
        end = stop
    return whole + text[end:]


def filled(texts: Sequence[str], model: MaskedLM, tokenizer: Tokenizer) -> Iterator[Prediction]:
    """Yield five guesses at each [MASK] of each text, the likeliest first, and the text with the likeliest in place.

    Warns once of texts that were cut. Raises what fill_mask raises.
    """
    tokens = tokenizer.encode_texts(texts)
    top_k = min(5, model.config.vocab_size)
    tokenizer.warn(tokens.stats, tokenizer.max_length)
    for row, (text, ids) in enumerate(zip(texts, tokens.ids, strict=True)):
        guesses_of_masks, best = guesses_in(text, ids, model, tokenizer, top_k, row)
        masks = [[guess._asdict() for guess in guesses] for guesses in guesses_of_masks]
        yield {"masks": masks, "filled": fill_text(text, best, tokenizer)}


# ---------------------------------------------------------------------------------------------------------------
# Data


@dataclass(frozen=True)
class Corpus:
    """Raw text: documents of lines, none of which is blank."""

    documents: Sequence[Sequence[str]]
    name: str = "the corpus"

    def __len__(self) -> int:
        """Return the number of lines."""
        return sum(map(len, self.documents))

    @classmethod
    def of(cls, texts: Iterable[str], name: str = "the corpus") -> Corpus:
        """Return the corpus of these lines; a blank line ends a document."""
        groups = groupby(as_texts(texts), key=lambda line: bool(line.strip()))
        return cls([list(lines) for is_text, lines in groups if is_text], name)


# ---------------------------------------------------------------------------------------------------------------
# The task


@dataclass(frozen=True)
class MaskedText(MaskedTextSettings, Task):
    """Masked tokens of raw text."""

    name = "mask"
    head = "masked-lm"
    main = "log_likelihood"
    served_at = "/fill-mask"
    fresh_head = "the checkpoint has no trained head 'masked-lm'; training starts with a new one"

    def read(self, path: Any) -> Corpus:
        """Read plain text, one text per line and an empty line between documents, or a table, one document per row.

        Raises ValueError for a binary file.
        """
        with Table(path, [Column("text", self.text)], self) as file:
            texts = [text for (text,) in progress_bar(file.rows(), "reading", unit="text")]
        if any("\0" in text for text in texts):
            raise ValueError(f"{file.name} is a binary file (or UTF-16), not text; save it as UTF-8")
        if file.format == "txt":
            return Corpus.of(texts, file.name)
        return Corpus([[text] for text in texts if text.strip()], file.name)

    def labels_of(self, data: Corpus) -> list[str]:
        """Return []: predictions are tokens. Raises ValueError for a corpus of fewer than two lines."""
        if not isinstance(data, Corpus) or len(data) < 2:
            raise ValueError(
                f"{getattr(data, 'name', type(data))} is not a corpus of at least two lines; give a file with a "
                "sentence or paragraph per line and an empty line between documents, or Corpus.of(lines)"
            )
        return []

    def encode(self, data: Corpus, tokenizer: Tokenizer, labels: Sequence[str], max_length: int) -> Encoded:
        """Return the rows of a corpus, filled to max_length, with masks drawn."""
        masking = Masking.of(tokenizer, self.mask_rate, self.whole_words, seed=0)
        examples: list[Example] = []
        tokens = unknown = 0
        for document in progress_bar(data.documents, "encoding", unit="document"):
            for row in rows_of_document(document, tokenizer, max_length):
                tokens += len(row)
                unknown += row.count(tokenizer.unk_id)
                examples.append(masked(tokenizer.template.row(row), masking, 0, len(examples)))
        if not tokens:
            raise ValueError(f"{data.name} has no tokens: it is empty, or its characters are invisible")
        if unknown == tokens:
            raise ValueError(
                f"all {tokens:,} tokens of {data.name} are {tokenizer.id_to_token(tokenizer.unk_id)}; choose a "
                "checkpoint whose vocabulary knows this language and script"
            )
        tokenizer.warn(TokenStats(len(data), tokens, unknown), max_length)
        note = (
            f"{counted(len(data), 'line')} of {counted(len(data.documents), 'document')}, {tokens:,} tokens, "
            f"fill {counted(len(examples), 'row')} of up to {max_length}; nothing is truncated"
        )
        return Encoded(examples, notes=(note,))

    def augment(self, tokenizer: Tokenizer, seed: int) -> Augmentation:
        """Return a function that draws other masks in each epoch."""
        masking = Masking.of(tokenizer, self.mask_rate, self.whole_words, seed)
        return lambda example, epoch, row: masked(unmasked(example.ids, example.labels["labels"]), masking, epoch, row)

    def reduce(self, logits: Tensor, example: Example) -> Tensor:
        """Return N, right predictions and the sum of -log p, in nats, for the N masked tokens: (N, V) -> (3).

        A row of 128 tokens would otherwise keep 2 MB of logits.
        """
        masked = torch.tensor([id for id in example.labels["labels"] if id != IGNORED], dtype=torch.long)
        labels = move(masked, logits.device)
        p = logits.log_softmax(dim=-1)  # (N,V)
        right = (p.argmax(dim=-1) == labels).sum()
        loss = -p.gather(1, labels[:, None]).sum()
        return torch.stack([torch.full_like(loss, len(labels)), right.to(loss), loss])

    def answer(self, data: Sequence[str], reader: Any) -> list[Prediction]:
        """Return the guesses at each [MASK] of each text."""
        return list(filled(data, reader.model, reader.tokenizer))

    def decode(self, logits: Sequence[Logits], encoded: Encoded, data: Corpus, labels: Sequence[str]) -> list[Any]:
        """Return the reduced logits of each row, (3)."""
        return list(logits)

    def measure(self, answers: Sequence[Any], data: Corpus, labels: Sequence[str]) -> Measure:
        """Return mean loss and perplexity over the masked tokens, and the accuracy of their predictions."""
        tokens, right, loss = np.sum(answers, axis=0).tolist()
        if not tokens or not math.isfinite(loss):
            raise ValueError(
                f"the loss on {data.name} is {loss}, over {tokens:.0f} masked tokens: too little text, or NaN"
            )
        loss /= tokens
        accuracy = right / tokens
        figures: Figures = {
            "perplexity": math.exp(min(loss, 700.0)),  # e^710 overflows
            "loss": loss,
            "log_likelihood": -loss,  # higher is better
            "accuracy": accuracy,
            "standard_error": standard_error(accuracy, tokens),
            "masked_tokens": int(tokens),
            "rows": len(answers),
        }
        right = f"{accuracy:.4f} ± {figures['standard_error']:.4f} (standard error), {tokens:,.0f} masked tokens"
        text = block("perplexity", f"{figures['perplexity']:,.2f}, of a loss of {loss:.4f}")
        return Measure(figures, self.main, f"{text}\n{block('accuracy', right)}")

    def from_texts(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[str]:
        """Return texts with masks to fill; there are no pairs."""
        return as_texts(texts)

    def format_predictions(self, answers: Sequence[Prediction], data: Sequence[str]) -> list[str]:
        """Return the likeliest token of each mask, their probabilities, and the filled text."""
        lines = []
        for answer in answers:
            best = [guesses[0] for guesses in answer["masks"]]
            probabilities = " ".join(f"{guess['probability']:.4f}" for guess in best)
            lines.append(one_line(" ".join(guess["token"] for guess in best), probabilities, answer["filled"]))
        return lines


def rows_of_document(document: Iterable[str], tokenizer: Tokenizer, max_length: int) -> Iterator[list[int]]:
    """Yield the ids of the lines, concatenated, in rows with room for [CLS] and [SEP]; the last may be shorter."""
    room = tokenizer.resolve_max_length(max_length, pairs=False) - tokenizer.template.specials(pairs=False)
    left: list[int] = []
    for encoding in tokenizer.encode_each(document, details=False):
        left += encoding.ids
        full = len(left) - len(left) % room
        yield from (left[start : start + room] for start in range(0, full, room))
        left = left[full:]
    if left:
        yield left


def masked(ids: Sequence[int], masking: Masking, epoch: int, row: int) -> Example:
    """Return an example with masks drawn; arrays of four bytes per number, because a corpus has many."""
    seen, labels = masking(ids, epoch, row)
    return Example(array("i", seen), array("i", [0]) * len(seen), {"labels": array("i", labels)})
