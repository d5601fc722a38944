"""WordPiece by hand: from text to ids, step by step.

    "Café, rumination 東京"
    clean, space out Chinese, strip accents, lower-case  ->  "cafe, rumination  東  京 "
    split at spaces and punctuation                      ->  cafe | , | rumination | 東 | 京
    longest pieces first                                 ->  cafe | , | rum | ##ination | 東 | 京
    look each piece up in the vocabulary                 ->  7668, 1010, 19379, 12758, 1879, 1755

With some 30,000 pieces nearly every word can be written, rare ones in several pieces: ## marks a piece that continues a
word. A word that cannot be written is [UNK], unknown.

The algorithm is BERT's (Devlin et al. 2018, section 3, and tokenization.py of its release). Where that and the
`tokenizers` library differ, this file does what the library does (tokenizers 0.23 BertNormalizer, BertPreTokenizer,
WordPiece), and a test compares the two on all of Unicode. This file is for reading;
`minibert.text.tokenizer` is the one in use: it is faster and also gives the position of each token in the text.
"""

import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_WORD_LENGTH = 100  # characters; longer strings are rarely words, and matching takes quadratic time


def blocks(text: str) -> list[range]:
    """Return blocks of code points, "0041-0043 0061" as 0x41 to 0x43 and 0x61."""
    parts = (one.partition("-") for one in text.split())
    return [range(int(first, 16), int(last or first, 16) + 1) for first, _, last in parts]


def is_in(character: str, blocks: Sequence[range]) -> bool:
    """Return whether a character is in one of these blocks."""
    return any(ord(character) in block for block in blocks)


# Blocks of Chinese characters, first and last. Japanese kana and Korean hangul are not here: to BERT they are letters.
CHINESE = blocks("3400-4DBF 4E00-9FFF F900-FAFF 20000-2A6DF 2A700-2B73F 2B740-2B81F 2B920-2CEAF 2F800-2FA1F")

# The library has the table of categories of Unicode 8.0. These are all marks (Mn), punctuation (P.) and format
# characters (Cf) that were added up to Unicode 17.0; the library treats them as letters. Other characters in these
# ranges are letters or unassigned in both, so the ranges may be generous.
AFTER_UNICODE_8 = blocks(
    "05C8-05C9 061D 07FD 0890-08E2 09FD-09FE 0A76 0AFA-0AFF 0B53-0B55 0C04-0C3C 0C77 0C84 0D00 0D3B-0D3C 0D81 0EBA "
    "0ECE 180F-1886 1ABF-1AF0 1B4E-1B4F 1B7D-1B7F 1DF6-1DFB 2E43-2E63 A82C A8C5 A8FF A9BD 10D24-10F89 11070-11074 "
    "110C2-110CD 111CF 1123E-11241 1133B 113BB-1145E 11660-1166C 116B9 1182F-11FFF 12FF1-1612F 16D6D-16F4F "
    "16FE2-16FE4 1CF00-1D128 1D25B-1D25C 1E000-1E6F5 1E944-1E95F"
)
# Characters that 8.0 had in another category: Canadian chi sign, Sharada sandhi mark, Hanunoo pamudpod, Ahom medial.
CATEGORY_IN_UNICODE_8 = {"\u166d": "Po", "\U000111c9": "Po", "\u1734": "Mn", "\U0001171e": "Mn"}


@cache
def category(character: str) -> str:
    """Return the general category of the character in Unicode 8.0; "Lo", a letter, for later characters."""
    if is_in(character, AFTER_UNICODE_8):
        return "Lo"
    return CATEGORY_IN_UNICODE_8.get(character) or unicodedata.category(character)


def clean(text: str) -> str:
    """Drop invisible characters (control, format and private use); every white space becomes one space."""
    # \t, \n and \r are control characters by category, but used as white space.
    kept = (c for c in text if c in "\t\n\r" or (c != "\ufffd" and category(c) not in ("Cc", "Cf", "Co")))
    return "".join(" " if c.isspace() else c for c in kept)


def space_out_chinese(text: str) -> str:
    """Put spaces around every Chinese character: there are none between words, so each one is a word."""
    return "".join(f" {c} " if is_in(c, CHINESE) else c for c in text)


def strip_accents(text: str) -> str:
    """Take the accents off the letters, so that café finds cafe: decompose (NFD), then drop the marks."""
    return "".join(c for c in unicodedata.normalize("NFD", text) if category(c) != "Mn")


def lower(text: str) -> str:
    """Lower-case each character by itself; str.lower() on the whole text would choose Greek ς or σ by position."""
    return "".join(c.lower() for c in text)


def is_punctuation(character: str) -> bool:
    """Return whether this is punctuation in Unicode, or one of the signs of ASCII: $ + < = > ^ ` | ~ as well."""
    return character in "$+<=>^`|~" or category(character).startswith("P")


def split_words(text: str) -> list[str]:
    """Split at spaces, and make every punctuation mark a word of its own."""
    return "".join(f" {c} " if is_punctuation(c) else c for c in text).split(" ")


# White space according to Unicode; Python's str.isspace includes U+001C to U+001F as well.
WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"


class Subwords(ABC):
    """What the tokenizers written by hand share: a text is split into words, and each word into pieces.

    vocab: piece to id. special_tokens: recognised if typed in a text; () reads such text literally. taking_space:
    special tokens that include the white space before them, so that "a <mask>" has no piece for the space.
    """

    def __init__(
        self, vocab: Mapping[str, int], special_tokens: Sequence[str], taking_space: Sequence[str] = ()
    ) -> None:
        self.vocab = vocab
        self.special_tokens = special_tokens
        self.taking_space = taking_space

    @abstractmethod
    def split(self, text: str) -> list[str]:
        """Return the words of a text, normalized: all steps before the vocabulary is used."""

    @abstractmethod
    def pieces(self, word: str) -> list[str]:
        """Return the pieces of a word."""

    def tokens(self, text: str) -> list[str]:
        """Return the pieces of all words of a text; a typed special token stays whole."""
        longest_first = sorted(self.special_tokens, reverse=True)
        spaced = (f"[{WHITE_SPACE}]*" * (token in self.taking_space) + re.escape(token) for token in longest_first)
        tokens = []
        for part in re.split(f"({'|'.join(spaced)})", text) if longest_first else [text]:
            if (token := part.lstrip()) in self.special_tokens:
                tokens.append(token)
            else:
                tokens.extend(piece for word in self.split(part) for piece in self.pieces(word))
        return tokens

    def ids(self, text: str) -> list[int]:
        """Return the ids of the tokens of a text."""
        return [self.vocab[token] for token in self.tokens(text)]


class WordPiece(Subwords):
    """A vocabulary and the rules that turn text into its ids, without [CLS] and [SEP] around it.

    vocab: piece to id; a piece that continues a word starts with "##". strip_accents: None means as lowercase.
    special_tokens: see Subwords.
    """

    def __init__(
        self,
        vocab: Mapping[str, int],
        lowercase: bool = True,
        strip_accents: bool | None = None,
        split_chinese: bool = True,
        special_tokens: Sequence[str] = SPECIAL_TOKENS,
    ) -> None:
        super().__init__(vocab, special_tokens)
        self.lowercase = lowercase
        self.split_chinese = split_chinese
        self.strip_accents = lowercase if strip_accents is None else strip_accents

    def split(self, text: str) -> list[str]:
        """Return the words of a text, normalized: all steps before the vocabulary is used."""
        text = clean(text)
        if self.split_chinese:
            text = space_out_chinese(text)
        if self.strip_accents:
            text = strip_accents(text)
        if self.lowercase:
            text = lower(text)
        return [word for word in split_words(text) if word]

    def pieces(self, word: str) -> list[str]:
        """Cut a word, from its start, into the longest pieces that the vocabulary has; ["[UNK]"] if that fails."""
        if len(word) > MAX_WORD_LENGTH:
            return ["[UNK]"]
        pieces = []
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            ends = range(len(word), start, -1)  # the longest candidate first
            end = next((end for end in ends if prefix + word[start:end] in self.vocab), None)
            if end is None:
                return ["[UNK]"]
            pieces.append(prefix + word[start:end])
            start = end
        return pieces
