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

# Blocks of Chinese characters, first and last. Japanese kana and Korean hangul are not here: to BERT they are letters.
CHINESE = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)

# The library has the table of categories of Unicode 8.0. These are all marks (Mn), punctuation (P.) and format
# characters (Cf) that were added up to Unicode 17.0; the library treats them as letters. Other characters in these
# ranges are letters or unassigned in both, so the ranges may be generous.
AFTER_UNICODE_8 = (
    (0x05C8, 0x05C9),
    (0x061D, 0x061D),
    (0x07FD, 0x07FD),
    (0x0890, 0x08E2),
    (0x09FD, 0x09FE),
    (0x0A76, 0x0A76),
    (0x0AFA, 0x0AFF),
    (0x0B53, 0x0B55),
    (0x0C04, 0x0C3C),
    (0x0C77, 0x0C77),
    (0x0C84, 0x0C84),
    (0x0D00, 0x0D00),
    (0x0D3B, 0x0D3C),
    (0x0D81, 0x0D81),
    (0x0EBA, 0x0EBA),
    (0x0ECE, 0x0ECE),
    (0x180F, 0x1886),
    (0x1ABF, 0x1AF0),
    (0x1B4E, 0x1B4F),
    (0x1B7D, 0x1B7F),
    (0x1DF6, 0x1DFB),
    (0x2E43, 0x2E63),
    (0xA82C, 0xA82C),
    (0xA8C5, 0xA8C5),
    (0xA8FF, 0xA8FF),
    (0xA9BD, 0xA9BD),
    (0x10D24, 0x10F89),
    (0x11070, 0x11074),
    (0x110C2, 0x110CD),
    (0x111CF, 0x111CF),
    (0x1123E, 0x11241),
    (0x1133B, 0x1133B),
    (0x113BB, 0x1145E),
    (0x11660, 0x1166C),
    (0x116B9, 0x116B9),
    (0x1182F, 0x11FFF),
    (0x12FF1, 0x1612F),
    (0x16D6D, 0x16F4F),
    (0x16FE2, 0x16FE4),
    (0x1CF00, 0x1D128),
    (0x1D25B, 0x1D25C),
    (0x1E000, 0x1E6F5),
    (0x1E944, 0x1E95F),
)
# Characters that 8.0 had in another category: Canadian chi sign, Sharada sandhi mark, Hanunoo pamudpod, Ahom medial.
CATEGORY_IN_UNICODE_8 = {"\u166d": "Po", "\U000111c9": "Po", "\u1734": "Mn", "\U0001171e": "Mn"}


@cache
def category(character: str) -> str:
    """Return the general category of the character in Unicode 8.0; "Lo", a letter, for later characters."""
    code = ord(character)
    if any(first <= code <= last for first, last in AFTER_UNICODE_8):
        return "Lo"
    return CATEGORY_IN_UNICODE_8.get(character) or unicodedata.category(character)


def clean(text: str) -> str:
    """Drop invisible characters (control, format and private use); every white space becomes one space."""
    # \t, \n and \r are control characters by category, but used as white space.
    kept = (c for c in text if c in "\t\n\r" or (c != "\ufffd" and category(c) not in ("Cc", "Cf", "Co")))
    return "".join(" " if c.isspace() else c for c in kept)


def space_out_chinese(text: str) -> str:
    """Put spaces around every Chinese character: there are none between words, so each one is a word."""
    return "".join(f" {c} " if any(a <= ord(c) <= z for a, z in CHINESE) else c for c in text)


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
