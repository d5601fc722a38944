"""A WordPiece vocabulary of one's own, learned from text.

    corpus                    the old boat . the older boats .
    words, counted            the 2   . 2   old 1   older 1   boat 1   boats 1
    letters to begin with     . a b d e h l o r s t ##a ##d ##e ##h ##l ##o ##r ##s ##t
    the pair that is met most b ##o -> bo, o ##l -> ol, t ##h -> th, ##a ##t -> ##at: twice each
    until the size is reached bo ##at -> boat, ol ##d -> old, th ##e -> the, ...

A ## says that a piece goes on with a word. Of pairs that are met as often, the one with the smaller ids is joined
first. That is what the `tokenizers` library does (0.23, WordPieceTrainer), and what the vocabularies of today are made
with: byte-pair encoding (Sennrich et al. 2016, section 3.2) with another way to write the pieces. BERT's own was made
by a program that was not released, and that weighed a pair against its parts (Schuster and Nakajima 2012). Here is the
procedure by hand, for reading, and by the library, for work; the same pieces come out.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers
from tqdm import tqdm

from minibert.checkpoints.convert import check_out
from minibert.files import atomic_folder, write_text_atomically
from minibert.text.tables import Column, Table
from minibert.text.tokenizer import load_tokenizer
from minibert.text.wordpiece import MAX_WORD_LENGTH, SPECIAL_TOKENS
from minibert.train.corpus import LONGEST_LINE

FILES = ("vocab.txt", "config.json", "tokenizer.json", "tokenizer_config.json")  # of the folder that `save` writes
MIN_FREQUENCY = 2  # a pair that is met less often is not joined
MOST_WORDS = 5_000_000  # different ones that are held, some 600 MB; then the rarest are dropped
WAYS = ("library", "hand")
CHARACTERS = 10_000  # of text that the library is given at once


@dataclass(frozen=True)
class Vocabulary:
    """What was learned, and from how much text."""

    tokens: list[str]  # the id of each is its place
    lowercase: bool
    size: int  # that was asked for
    words: int  # of the corpus, punctuation marks among them
    different_words: int
    letters: int  # different characters of these
    whole: float  # the share of the corpus' words that are one token
    dropped: int  # words of the corpus that were too rare to be held; 0 but for a huge one

    def save(self, out: str | Path, overwrite: bool = False) -> None:
        """Write a new folder: vocab.txt, tokenizer.json, tokenizer_config.json, and a config.json that says the size.

        minibert.load_tokenizer and AutoTokenizer of transformers load it. overwrite: replace what minibert wrote there.
        Raises ValueError for a folder that holds something.
        """
        out = Path(out)
        check_out(out, overwrite, FILES)
        with atomic_folder(out, overwrite) as folder:
            write_text_atomically(folder / "vocab.txt", "".join(f"{token}\n" for token in self.tokens))
            config = {"model_type": "bert", "vocab_size": len(self.tokens)}
            write_text_atomically(folder / "config.json", json.dumps(config, indent=2) + "\n")
            load_tokenizer(folder, lowercase=self.lowercase).save(folder)


def learn_vocabulary(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    size: int,
    *,
    lowercase: bool = True,
    min_frequency: int = MIN_FREQUENCY,
    by: str = "library",
) -> Vocabulary:
    """Learn a vocabulary of `size` tokens, special ones included, from files of text.

    paths: plain text, or whatever text/tables.py reads, each also as .gz. lowercase: without case and accents, as in
    "uncased". min_frequency: how often a pair must be met to be joined; where too few are, the vocabulary stays
    smaller. by: "library", or "hand", which takes longer and makes the same of it. The same files give the same tokens.
    Raises FileNotFoundError for a missing file, ValueError for what is no text or has none, for a line of megabytes,
    and for a size with no room for the letters.
    """
    paths = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if size <= len(SPECIAL_TOKENS):
        raise ValueError(f"size is {size}; {len(SPECIAL_TOKENS)} special tokens and all letters must have room in it")
    if min_frequency < 1:
        raise ValueError(f"min_frequency is {min_frequency}; a pair that is joined is met once at least")
    if by not in WAYS:
        raise ValueError(f"by is {by!r}; it must be 'library' or 'hand'")
    counted, dropped = count_words(paths, lowercase)
    words = {word: count for word, count in counted.items() if len(word) <= MAX_WORD_LENGTH}  # longer ones are [UNK]
    if not words:
        raise ValueError(f"{' and '.join(map(str, paths))}: no word to learn from; a corpus is text, line by line")
    beginning, characters = [*SPECIAL_TOKENS, *letters(words)], len(set().union(*words))
    if size < len(beginning):
        raise ValueError(
            f"size is {size:,}, and {len(beginning):,} tokens are needed to write all {characters:,} characters of the "
            f"corpus, at the beginning of a word and inside; ask for {len(beginning):,} or more (--size), or take rare "
            "characters out of the corpus"
        )
    learn = learn_by_hand if by == "hand" else learn_by_library
    tokens = learn(words, size, min_frequency)
    known, total = set(tokens), counted.total() + dropped
    whole = sum(count for word, count in words.items() if word in known) / total
    return Vocabulary(tokens, lowercase, size, total, len(counted), characters, whole, dropped)


# ---------------------------------------------------------------------------------------------------------------
# Words


def count_words(paths: Sequence[str | os.PathLike[str]], lowercase: bool) -> tuple[Counter[str], int]:
    """How often each word is met, split as BERT splits text; and how many were dropped since too many differ."""
    normalizer, splitter = normalizers.BertNormalizer(lowercase=lowercase), pre_tokenizers.BertPreTokenizer()
    chunks: Counter[str] = Counter()  # between spaces, punctuation with them; only the different ones are split further
    dropped = 0
    for line in lines(paths):
        chunks.update(normalizer.normalize_str(line).split(" "))  # any white space is a space by now
        if len(chunks) > MOST_WORDS:
            before, rarest = chunks.total(), 0
            while len(chunks) > MOST_WORDS // 2:
                rarest += 1
                chunks = Counter({chunk: count for chunk, count in chunks.items() if count > rarest})
            dropped += before - chunks.total()
    words: Counter[str] = Counter()
    for chunk, count in chunks.items():
        for word, _ in splitter.pre_tokenize_str(chunk):
            words[word] += count
    return words, dropped


def lines(paths: Sequence[str | os.PathLike[str]]) -> Iterator[str]:
    """The lines of all files, with a progress bar. Raises ValueError, naming the place, for what is no text."""
    for path in paths:
        with Table(path, [Column("text")]) as file, progress("reading", file.size, "B") as bar:
            for number, (line,) in enumerate(file.rows(), 1):
                if "\0" in line:
                    raise ValueError(f"{file.name} is a binary file (or UTF-16), not text; save it as UTF-8")
                if len(line) > LONGEST_LINE:
                    raise ValueError(
                        f"{file.name}, row {number}, has {len(line):,} characters, and no line of text has more than "
                        f"{LONGEST_LINE:,}; write one sentence or paragraph a line"
                    )
                bar.update(file.position - bar.n)
                yield line


def letters(words: Mapping[str, int]) -> list[str]:
    """What every word can be written with: each character, and with ## each that goes on with a word."""
    first = {character for word in words for character in word}
    inside = {character for word in words for character in word[1:]}
    return [*sorted(first), *(f"##{character}" for character in sorted(inside))]


def progress(what: str, total: int | None, unit: str) -> tqdm[Any]:
    """A progress bar, where this takes over two seconds and somebody looks."""
    return tqdm(desc=what, total=total, unit=unit, unit_scale=True, leave=False, delay=2, disable=None)


# ---------------------------------------------------------------------------------------------------------------
# Pieces


def learn_by_hand(words: Mapping[str, int], size: int, min_frequency: int = MIN_FREQUENCY) -> list[str]:
    """Tokens in the order in which they are learned: special ones, letters, then pairs that were joined."""
    tokens = [*SPECIAL_TOKENS, *letters(words)]
    ids = {token: id for id, token in enumerate(tokens)}
    counts = list(words.values())
    written = [[ids[word[0]], *(ids[f"##{character}"] for character in word[1:])] for word in words]

    met: Counter[tuple[int, int]] = Counter()  # how often each pair is met
    inside: dict[tuple[int, int], set[int]] = defaultdict(set)  # in which words it is, or was
    for word, pieces in enumerate(written):
        for pair in pairwise(pieces):
            met[pair] += counts[word]
            inside[pair].add(word)

    queue = [(-count, pair) for pair, count in met.items()]  # the first is met most, and of these has the smallest ids
    heapify(queue)
    with progress("joining", size - len(tokens), "token") as bar:
        while queue and len(tokens) < size:
            count, pair = heappop(queue)
            if met[pair] != -count:  # an older count; the one of today is in the queue too
                continue
            if -count < min_frequency:
                break
            token = tokens[pair[0]] + tokens[pair[1]].removeprefix("##")
            if token not in ids:  # two pairs can make the same: ##aa ##a, ##a ##aa
                ids[token] = len(tokens)
                tokens.append(token)
                bar.update()
            changed: set[tuple[int, int]] = set()
            for word in inside.pop(pair):
                before, written[word] = written[word], joined(written[word], pair, ids[token])
                for old in pairwise(before):
                    met[old] -= counts[word]
                for new in pairwise(written[word]):
                    met[new] += counts[word]
                    inside[new].add(word)
                changed.update(pairwise(before), pairwise(written[word]))
            for other in changed:
                if met[other] > 0:
                    heappush(queue, (-met[other], other))
    return tokens


def joined(pieces: Sequence[int], pair: tuple[int, int], token: int) -> list[int]:
    """A word in which the pair has become one token, wherever it is, from the left."""
    found: list[int] = []
    place = 0
    while place < len(pieces):
        is_pair = tuple(pieces[place : place + 2]) == pair
        found.append(token if is_pair else pieces[place])
        place += 2 if is_pair else 1
    return found


def learn_by_library(words: Mapping[str, int], size: int, min_frequency: int = MIN_FREQUENCY) -> list[str]:
    """The same by the `tokenizers` library.

    It gives letters their ids in the order of a hash map, which is another one in each process, and ids decide between
    pairs that are met as often. So the letters are given to it beforehand, as special tokens, which have fixed ids.
    """
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=min_frequency,
        special_tokens=[*SPECIAL_TOKENS, *letters(words)],
        show_progress=False,
    )
    with progress("counting", sum(words.values()), "word") as bar:
        backend.train_from_iterator(as_often_as_counted(words, bar), trainer=trainer)
    ids = backend.get_vocab(with_added_tokens=False)
    return sorted(ids, key=ids.__getitem__)


def as_often_as_counted(words: Mapping[str, int], bar: tqdm[Any]) -> Iterator[str]:
    """Text that has each word as often as the corpus: the library counts words itself."""
    for word, count in words.items():
        at_once = max(1, CHARACTERS // (len(word) + 1))
        for done in range(0, count, at_once):
            times = min(at_once, count - done)
            yield f"{word} " * times
            bar.update(times)
