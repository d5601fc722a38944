"""A WordPiece vocabulary learned from text.

    corpus                    the old boat . the older boats .
    words, counted            the 2   . 2   old 1   older 1   boat 1   boats 1
    letters first             . a b d e h l o r s t ##a ##d ##e ##h ##l ##o ##r ##s ##t
    then frequent pairs       b ##o -> bo, o ##l -> ol, t ##h -> th, ##a ##t -> ##at: twice each
    up to the size            bo ##at -> boat, ol ##d -> old, th ##e -> the, ...

A ## marks a piece inside a word. Of pairs with the same count the one with the smaller ids is joined first. The
`tokenizers` library does the same (0.23, WordPieceTrainer); this is how today's vocabularies are made: byte-pair
encoding (Sennrich et al. 2016, section 3.2) with another notation of pieces. BERT's own was made by a program that was
not released, which compared the count of a pair with the counts of its parts (Schuster and Nakajima 2012). Notebook 3
does it by hand.
"""

import json
import os
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from minibert.tables.columns import Column
from minibert.tables.formats import FileSettings
from minibert.tables.reading import DEFAULT, Table
from minibert.text.tokenizer import load_tokenizer
from minibert.text.wordpiece import MAX_WORD_LENGTH, SPECIAL_TOKENS, strip_accents
from minibert.train.settings import VocabularySettings
from minibert.utils.files import AnyPath, user_path, write_text_atomically
from minibert.utils.outputs import atomic_folder
from minibert.utils.printing import progress_bar

MOST_WORDS = 5_000_000  # different ones in memory, about 600 MB; beyond that the rarest are dropped
CHARACTERS = 10_000  # of a text for the library


@dataclass(frozen=True)
class Vocabulary:
    """The tokens, and statistics of the corpus."""

    tokens: list[str]  # in the order of their ids
    lowercase: bool
    strip_accents: bool  # as the setting of transformers' BertTokenizer
    words: int  # of the corpus, including punctuation marks; of a huge corpus without the rarest
    different_words: int
    letters: int  # different characters of these
    whole: float  # fraction of the corpus' words that are one token
    stripped: float  # fraction of the strings between spaces that lose accents or vowel signs
    too_long: int  # words of over MAX_WORD_LENGTH characters, each of which becomes [UNK]
    unknown: float  # fraction of the corpus' characters that are in these

    def save(self, out: AnyPath, overwrite: bool = False) -> None:
        """Write a new folder: vocab.txt, tokenizer.json, tokenizer_config.json, and a config.json with the size.

        minibert.load_tokenizer and AutoTokenizer of transformers load it. overwrite: replace what minibert wrote there.
        Raises ValueError for a folder that holds something.
        """
        with atomic_folder(user_path(out), overwrite) as folder:
            write_text_atomically(folder / "vocab.txt", "".join(f"{token}\n" for token in self.tokens))
            config = {"model_type": "bert", "vocab_size": len(self.tokens)}
            write_text_atomically(folder / "config.json", json.dumps(config, indent=2) + "\n")
            settings = {"do_lower_case": self.lowercase, "strip_accents": self.strip_accents}
            write_text_atomically(folder / "tokenizer_config.json", json.dumps(settings))
            load_tokenizer(folder).save(folder)


def learn_vocabulary(
    paths: AnyPath | Sequence[AnyPath],
    size: int = VocabularySettings.size,
    *,
    lowercase: bool = True,
    strip_accents: bool | None = VocabularySettings.strip_accents,
    min_frequency: int = VocabularySettings.min_frequency,
    **reading: Any,
) -> Vocabulary:
    """Learn a vocabulary of `size` tokens, special tokens included, from files of text.

    paths: plain text, or any file that tables/reading.py reads, each also compressed. lowercase: without case, as in
    "uncased". strip_accents: also without accents and vowel signs; None: if lowercase, as in BERT. Hindi, Thai,
    Vietnamese and Japanese need False. min_frequency: the count that a pair needs to be joined; if too few pairs
    have it, the vocabulary stays smaller. reading: format, delimiter, encoding and missing of the files, see
    tables.formats.FileSettings.
    Raises FileNotFoundError for a missing file, ValueError for a file that is not text or has no words, and for a size
    too small for the letters.
    """
    settings = VocabularySettings(size=size, strip_accents=strip_accents, min_frequency=min_frequency, **reading)
    paths = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    strip = lowercase if strip_accents is None else strip_accents
    strings = count_strings(paths, settings)
    counted = count_words(strings, lowercase, strip)
    words = {word: count for word, count in counted.items() if len(word) <= MAX_WORD_LENGTH}
    check_words(words, counted, size, " and ".join(map(str, paths)))
    tokens = learn_by_library(words, size, min_frequency)
    marked = sum(count for string, count in strings.items() if has_marks(string)) if strip else 0
    return Vocabulary(
        tokens=tokens,
        lowercase=lowercase,
        strip_accents=strip,
        words=counted.total(),
        different_words=len(counted),
        letters=len(set().union(*words)),
        whole=sum(words.get(token, 0) for token in tokens) / counted.total(),
        stripped=marked / strings.total(),
        too_long=counted.total() - sum(words.values()),
        unknown=1 - characters(words) / characters(counted),
    )


def check_words(words: Mapping[str, int], counted: Counter[str], size: int, source: str) -> None:
    """Raise ValueError, naming the source, if no word is short enough to learn from, or size is too small."""
    if not counted:
        raise ValueError(f"{source}: no word to learn from; a corpus is text, line by line")
    if not words:
        raise ValueError(
            f"{source}: every word has over {MAX_WORD_LENGTH} characters, and WordPiece turns such a word into [UNK]; "
            "if the language has no spaces between words, split its texts into words first"
        )
    needed = len(SPECIAL_TOKENS) + len(letters(words))
    different = len(set().union(*words))
    if size < needed:
        raise ValueError(
            f"size is {size:,}, and {needed:,} tokens are needed to write all {different:,} characters of the corpus, "
            f"at the beginning of a word and inside; choose {needed:,} or more, or remove rare characters"
        )


# ---------------------------------------------------------------------------------------------------------------
# Words


def count_strings(paths: Sequence[AnyPath], reading: FileSettings = DEFAULT) -> Counter[str]:
    """Return the count of each string between spaces; beyond MOST_WORDS different ones the rarest are dropped.

    Raises ValueError for a binary file.
    """
    cleaner = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    strings: Counter[str] = Counter()
    for path in paths:
        with (
            Table(path, [Column("text")], reading) as file,
            progress_bar(name="reading", total=file.size, unit="B", unit_scale=True) as bar,
        ):
            for (line,) in file.rows():
                if "\0" in line:
                    raise ValueError(f"{file.name} is a binary file (or UTF-16), not text; save it as UTF-8")
                strings.update(cleaner.normalize_str(line).split())  # all white space is a space by now
                if len(strings) > MOST_WORDS:
                    strings = Counter(dict(strings.most_common(MOST_WORDS // 2)))
                bar.update(file.position - bar.n)
    return strings


def count_words(strings: Mapping[str, int], lowercase: bool, strip: bool) -> Counter[str]:
    """Return the count of each word, split as BERT splits text. strip: without accents and vowel signs."""
    normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip)
    splitter = pre_tokenizers.BertPreTokenizer()
    words: Counter[str] = Counter()
    for string, count in strings.items():
        for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(string)):
            words[word] += count
    return words


def has_marks(string: str) -> bool:
    """Return whether a string has accents or vowel signs: marks that do not take space (Unicode category Mn)."""
    return not string.isascii() and strip_accents(string) != unicodedata.normalize("NFD", string)


def characters(words: Mapping[str, int]) -> int:
    """Return the number of characters of all words."""
    return sum(len(word) * count for word, count in words.items())


def letters(words: Mapping[str, int]) -> list[str]:
    """Return the tokens that can write every word: each character, and with ## each one inside a word."""
    first, inside = ({character for word in words for character in word[start:]} for start in (0, 1))
    return [*sorted(first), *(f"##{character}" for character in sorted(inside))]


# ---------------------------------------------------------------------------------------------------------------
# Pieces


def learn_by_library(
    words: Mapping[str, int], size: int, min_frequency: int = VocabularySettings.min_frequency
) -> list[str]:
    """Return tokens in the order in which they are learned: special tokens, letters, then joined pairs.

    The library gives letters their ids in the order of a hash map, which differs between processes, and ids decide
    between pairs with the same count. So it gets the letters as special tokens, which have fixed ids.
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
    """Yield texts that have each word as often as the corpus: the library counts words itself."""
    for word, count in words.items():
        at_once = max(1, CHARACTERS // (len(word) + 1))
        for done in range(0, count, at_once):
            yield f"{word} " * min(at_once, count - done)
