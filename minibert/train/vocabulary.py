"""A WordPiece vocabulary learned from text.

    corpus                    the old boat . the older boats .
    words, counted            the 2   . 2   old 1   older 1   boat 1   boats 1
    letters first             . a b d e h l o r s t ##a ##d ##e ##h ##l ##o ##r ##s ##t
    then frequent pairs       b ##o -> bo, o ##l -> ol, t ##h -> th, ##a ##t -> ##at: twice each
    up to the size            bo ##at -> boat, ol ##d -> old, th ##e -> the, ...

A ## marks a piece inside a word. Of pairs with the same count the one with the smaller ids is joined first. So does the
`tokenizers` library (0.23, WordPieceTrainer), and this is how today's vocabularies are made: byte-pair encoding
(Sennrich et al. 2016, section 3.2) with another notation of pieces. BERT's own was made by a program that was not
released, which compared the count of a pair with those of its parts (Schuster and Nakajima 2012). Here is the procedure
by hand, for reading, and by the library, for work; both give the same pieces.
"""

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

from minibert.text.formats import FileSettings
from minibert.text.tables import DEFAULT, Column, Table
from minibert.text.tokenizer import load_tokenizer
from minibert.text.wordpiece import MAX_WORD_LENGTH, SPECIAL_TOKENS
from minibert.train.settings import VocabularySettings
from minibert.utils.files import user_path, write_text_atomically
from minibert.utils.outputs import atomic_folder
from minibert.utils.printing import progress_bar

FILES = ("vocab.txt", "config.json", "tokenizer.json", "tokenizer_config.json")  # that `save` writes
MOST_WORDS = 5_000_000  # different ones in memory, about 600 MB; beyond that the rarest are dropped
CHARACTERS = 10_000  # of a text for the library


@dataclass(frozen=True)
class Vocabulary:
    """The tokens, and statistics of the corpus."""

    tokens: list[str]  # in the order of their ids
    lowercase: bool
    words: int  # of the corpus, including punctuation marks; of a huge corpus without the rarest
    different_words: int
    letters: int  # different characters of these
    whole: float  # fraction of the corpus' words that are one token

    def save(self, out: str | Path, overwrite: bool = False) -> None:
        """Write a new folder: vocab.txt, tokenizer.json, tokenizer_config.json, and a config.json with the size.

        minibert.load_tokenizer and AutoTokenizer of transformers load it. overwrite: replace what minibert wrote there.
        Raises ValueError for a folder that holds something.
        """
        with atomic_folder(user_path(out), overwrite) as folder:
            write_text_atomically(folder / "vocab.txt", "".join(f"{token}\n" for token in self.tokens))
            config = {"model_type": "bert", "vocab_size": len(self.tokens)}
            write_text_atomically(folder / "config.json", json.dumps(config, indent=2) + "\n")
            load_tokenizer(folder, lowercase=self.lowercase).save(folder)


def learn_vocabulary(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    size: int = VocabularySettings.size,
    *,
    lowercase: bool = True,
    min_frequency: int = VocabularySettings.min_frequency,
    by: str = VocabularySettings.by,
    **reading: Any,
) -> Vocabulary:
    """Learn a vocabulary of `size` tokens, special tokens included, from files of text.

    paths: plain text, or any file that text/tables.py reads, each also as .gz. lowercase: without case and accents, as
    in "uncased". min_frequency: the count that a pair needs to be joined; where too few pairs have it, the vocabulary
    stays smaller. by: "library", or "hand", which is slower and gives the same tokens. reading: format, delimiter,
    encoding and missing of the files, see text.formats.FileSettings.
    Raises FileNotFoundError for a missing file, ValueError for a file that is not text or has no words, and for a size
    too small for the letters.
    """
    settings = VocabularySettings(size=size, min_frequency=min_frequency, by=by, **reading)
    paths = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    counted = count_words(paths, lowercase, settings)
    words = {word: count for word, count in counted.items() if len(word) <= MAX_WORD_LENGTH}  # longer ones are [UNK]
    if not words:
        raise ValueError(f"{' and '.join(map(str, paths))}: no word to learn from; a corpus is text, line by line")
    needed, characters = len(SPECIAL_TOKENS) + len(letters(words)), len(set().union(*words))
    if size < needed:
        raise ValueError(
            f"size is {size:,}, and {needed:,} tokens are needed to write all {characters:,} characters of the corpus, "
            f"at the beginning of a word and inside; choose {needed:,} or more (--size), or remove rare characters"
        )
    tokens = (learn_by_hand if by == "hand" else learn_by_library)(words, size, min_frequency)
    whole = sum(words.get(token, 0) for token in tokens) / counted.total()
    return Vocabulary(tokens, lowercase, counted.total(), len(counted), characters, whole)


# ---------------------------------------------------------------------------------------------------------------
# Words


def count_words(
    paths: Sequence[str | os.PathLike[str]], lowercase: bool, reading: FileSettings = DEFAULT
) -> Counter[str]:
    """The count of each word, split as BERT splits text; of more than MOST_WORDS different ones the rarest are dropped.

    Raises ValueError for a binary file.
    """
    normalizer, splitter = normalizers.BertNormalizer(lowercase=lowercase), pre_tokenizers.BertPreTokenizer()
    chunks: Counter[str] = Counter()  # between spaces, with punctuation; only different ones are split further
    for path in paths:
        with (
            Table(path, [Column("text")], reading) as file,
            progress_bar(name="reading", total=file.size, unit="B", unit_scale=True) as bar,
        ):
            for (line,) in file.rows():
                if "\0" in line:
                    raise ValueError(f"{file.name} is a binary file (or UTF-16), not text; save it as UTF-8")
                chunks.update(normalizer.normalize_str(line).split(" "))  # all white space is a space by now
                if len(chunks) > MOST_WORDS:
                    chunks = Counter(dict(chunks.most_common(MOST_WORDS // 2)))
                bar.update(file.position - bar.n)
    words: Counter[str] = Counter()
    for chunk, count in chunks.items():
        for word, _ in splitter.pre_tokenize_str(chunk):
            words[word] += count
    return words


def letters(words: Mapping[str, int]) -> list[str]:
    """The tokens that can write every word: each character, and with ## each one inside a word."""
    first, inside = ({character for word in words for character in word[start:]} for start in (0, 1))
    return [*sorted(first), *(f"##{character}" for character in sorted(inside))]


# ---------------------------------------------------------------------------------------------------------------
# Pieces


def learn_by_hand(
    words: Mapping[str, int], size: int, min_frequency: int = VocabularySettings.min_frequency
) -> list[str]:
    """Tokens in the order in which they are learned: special tokens, letters, then joined pairs."""
    tokens = [*SPECIAL_TOKENS, *letters(words)]
    ids = {token: id for id, token in enumerate(tokens)}
    counts = list(words.values())
    written = [[ids[word[0]], *(ids[f"##{character}"] for character in word[1:])] for word in words]

    counted: Counter[tuple[int, int]] = Counter()  # the count of each pair
    inside: dict[tuple[int, int], set[int]] = defaultdict(set)  # the words that it is, or was, in
    for word, pieces in enumerate(written):
        for pair in pairwise(pieces):
            counted[pair] += counts[word]
            inside[pair].add(word)

    queue = [(-count, pair) for pair, count in counted.items()]  # the most frequent first, of these the smallest ids
    heapify(queue)
    with progress_bar(name="joining", total=size - len(tokens), unit="token") as bar:
        while queue and len(tokens) < size:
            count, pair = heappop(queue)
            if counted[pair] != -count:  # an old count; the current one is in the queue too
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
                    counted[old] -= counts[word]
                for new in pairwise(written[word]):
                    counted[new] += counts[word]
                    inside[new].add(word)
                changed.update(pairwise(before), pairwise(written[word]))
            for other in changed:
                if counted[other] > 0:
                    heappush(queue, (-counted[other], other))
    return tokens


def joined(pieces: Sequence[int], pair: tuple[int, int], token: int) -> list[int]:
    """A word in which the pair has become one token, wherever it is, from the left."""
    found: list[int] = []
    for piece in pieces:
        found.append(piece)
        if tuple(found[-2:]) == pair:
            found[-2:] = [token]
    return found


def learn_by_library(
    words: Mapping[str, int], size: int, min_frequency: int = VocabularySettings.min_frequency
) -> list[str]:
    """The same by the `tokenizers` library.

    It gives letters their ids in the order of a hash map, which differs between processes, and ids decide between pairs
    with the same count. So it gets the letters as special tokens, which have fixed ids.
    """
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=min_frequency,
        special_tokens=[*SPECIAL_TOKENS, *letters(words)],
        show_progress=False,
    )
    backend.train_from_iterator(repeated(words), trainer=trainer)
    ids = backend.get_vocab(with_added_tokens=False)
    return sorted(ids, key=ids.__getitem__)


def repeated(words: Mapping[str, int]) -> Iterator[str]:
    """Texts that have each word as often as the corpus: the library counts words itself."""
    for word, count in words.items():
        at_once = max(1, CHARACTERS // (len(word) + 1))
        for done in range(0, count, at_once):
            yield f"{word} " * min(at_once, count - done)
