"""Text to ids: the `tokenizers` library does the work, this file decides what goes in and says what was lost.

    texts -> as_texts (what is no text is refused, by row) -> tokens (the library) -> cut to max_length, counted
          -> [CLS] a [SEP] b [SEP] -> padded to the longest row of the batch: Batch; or left as it is: Tokenized

How the tokens come about is written out in `wordpiece`, `byte_pairs` and `unigram`, what stands around them in
`framing`, all in this folder. [CLS] and [SEP] are RoBERTa's <s> and </s>.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from torch import Tensor

from minibert.checkpoints import hub
from minibert.config import Config
from minibert.files import shown, write_text_atomically
from minibert.text.backend import build, take_apart
from minibert.text.batch import Batch, BatchRow, padded
from minibert.text.framing import read_framing
from minibert.text.piecewise import PIECE, piecewise
from minibert.text.texts import Row, are_pairs, as_columns, as_texts, portions
from minibert.text.tokenized import (
    Account,
    Lengths,
    Tokenized,
    TruncationWarning,
    UnknownTokensWarning,
    as_long,
    in_windows,
    shares,
)
from minibert.text.tokenizer_files import (
    check_padding,
    kind_of,
    lengths,
    read_definition,
    relative_of,
    with_prefix_space,
)
from minibert.text.tokenizer_settings import (
    DEFAULT_MAX_LENGTH,
    NORMALIZER_SETTINGS,
    read_settings,
    special_tokens,
)

__all__ = ["Account", "Batch", "Tokenizer", "TruncationWarning", "UnknownTokensWarning", "load_tokenizer"]

BACKENDS = ("_backend", "_words_backend", "_piecewise")  # what a pickle leaves out
CHUNK = 4096  # texts handed to the library at once: bounds what its intermediate results take


# ---------------------------------------------------------------------------------------------------------------
# The tokenizer


class Tokenizer:
    """BERT's tokenizer and those of its relatives: texts in, ids out, equal to transformers 5.23.

    definition: the content of a tokenizer.json. limit: how many positions the model has. max_length: what a text
    is cut to unless a call says otherwise. special_tokens_in_text: "parse" reads a typed "[SEP]" as that token, as
    transformers does; "literal" reads it as five characters. settings: the content of tokenizer_config.json. source:
    what errors call the definition.
    """

    def __init__(
        self,
        definition: Mapping[str, Any],
        *,
        limit: int = DEFAULT_MAX_LENGTH,
        max_length: int | None = None,
        special_tokens_in_text: str = "parse",
        settings: Mapping[str, Any] | None = None,
        source: str = "the definition",
    ) -> None:
        if special_tokens_in_text not in ("parse", "literal"):
            raise ValueError(f"special_tokens_in_text is {special_tokens_in_text!r}; it must be 'parse' or 'literal'")
        # A saved tokenizer.json may cut and pad on its own: cutting unseen is what this class is here to prevent.
        self._definition = dict(definition) | {"truncation": None, "padding": None}
        self._settings = dict(settings or {})
        self.special_tokens_in_text = special_tokens_in_text
        self._backend = build(self._definition, special_tokens_in_text == "literal", source)
        self.vocab: dict[str, int] = self._backend.get_vocab()  # token to id, added tokens included
        self._special = special_tokens(self._settings, self.vocab, source)
        for token in self._special.values():
            if token not in self.vocab:
                needed = ", ".join(self._special.values())
                raise ValueError(f"{source}: the vocabulary has no {token}; BERT needs {needed}")
        special = [(token, self.vocab[token]) for token in self._special.values()]
        self.cls_id, self.sep_id, self.pad_id, self.mask_id, self.unk_id = (id for _, id in special)
        self.framing = read_framing(self._backend, special[0], special[1], source)
        added = {id for id, token in self._backend.get_added_tokens_decoder().items() if token.special}
        # [UNK] stands for a word of the text, so it does not count as special in special_tokens_mask.
        self.control_ids = (added | {id for _, id in special}) - {self.unk_id}
        self._prepare()
        self.limit = limit
        self.max_length = min(DEFAULT_MAX_LENGTH, limit)
        self.max_length = self.checked_length(max_length, pairs=False)
        if special_tokens_in_text == "literal":
            self._check_literal()

    # -- texts to ids

    def __call__(
        self,
        texts: object,
        pairs: object = None,
        *,
        max_length: int | None = None,
        truncation: str = "warn",
        missing: str = "error",
    ) -> Batch:
        """Tokenize texts, or pairs of texts, into a padded Batch; one str makes a batch of one row.

        max_length: tokens per row with special tokens, at most the model's positions; of a pair the longer text is
        cut first. truncation: "warn" cuts and warns once, "error" raises ValueError. missing: see as_texts.
        """
        long = as_long(truncation)
        max_length = self.checked_length(max_length, pairs=pairs is not None)
        first, second = as_columns(texts, pairs, missing=missing)
        specials = self.framing.specials(pairs=second is not None)
        room = max_length - specials
        partners = repeat((None, 0, True)) if second is None else self._encode(second, room, count=True)
        rows: list[BatchRow] = []
        counted = Lengths(max_length, long)
        encoded = self._encode(first, room, count=second is not None)
        for (a, n, whole), (b, m, _) in zip(encoded, partners, strict=False):  # repeat has no end
            counted.add(n + m + specials, whole)
            rows.append(self._row(a, b, *shares(n, m, room)))
        account = counted.account([row.ids for row in rows], self.unk_id, specials)
        self.warn(account, max_length)
        return padded(rows, self.pad_id, self._pieces[self.pad_id], account)

    def ids(
        self,
        texts: object,
        *,
        max_length: int | None = None,
        truncation: str = "warn",
        missing: str = "error",
    ) -> list[list[int]]:
        """The ids of each text, [CLS] and [SEP] included, cut but not padded: the fast way for many texts."""
        max_length = self.checked_length(max_length, pairs=False)
        made = self.counted(as_texts(texts, missing=missing), long=as_long(truncation), max_length=max_length)
        self.warn(made.account, max_length)
        return made.ids

    def counted(
        self,
        rows: Sequence[Row],
        *,
        long: str = "cut",
        stride: int | None = None,
        max_length: int | None = None,
        first_row: int = 0,
    ) -> Tokenized:
        """The ids of texts or pairs, and in place of warnings their account: for texts that come in portions.

        long, stride: as in a Recipe. first_row: what the first text is called in the ValueError of long="error".
        Raises ValueError for windows of pairs, and for a stride beyond a window.
        """
        pairs = are_pairs(rows)
        max_length = self.checked_length(max_length, pairs=pairs)
        specials = self.framing.specials(pairs)
        room = max_length - specials
        lengths = Lengths(max_length, long, first_row)
        if pairs and long == "windows":
            raise ValueError("long is 'windows', and windows are of single texts; for pairs use long='cut' or 'error'")
        if pairs:
            return self._pairs([row[0] for row in rows], [row[1] for row in rows], room, lengths)
        stride = max(1, room // 2) if stride is None else stride
        if stride > room:
            raise ValueError(f"stride is {stride}, and a window of max_length {max_length} has {room} tokens of text")
        ids, windows = [], []
        for text, whole in self._ids([str(row) for row in rows], None if long == "windows" else room + 1):
            lengths.add(len(text) + specials, whole)
            parts = in_windows(text, room, stride) if long == "windows" else [text[:room]]
            ids += [self.framing.row(part) for part in parts]
            windows.append(len(parts))
        account = lengths.account(ids, self.unk_id, specials, windows)
        return Tokenized(ids, account, windows=windows if long == "windows" else None)

    def _pairs(self, first: list[str], second: list[str], room: int, lengths: Lengths) -> Tokenized:
        """[CLS] a [SEP] b [SEP] of each pair, the longer text cut first."""
        ids, starts, specials = [], [], self.framing.specials(pairs=True)
        for (a, _), (b, _) in zip(self._ids(first), self._ids(second), strict=True):
            lengths.add(len(a) + len(b) + specials)
            n, m = shares(len(a), len(b), room)
            ids.append(self.framing.row(a[:n], b[:m]))
            starts.append(self.framing.second(n))
        account = lengths.account(ids, self.unk_id, specials)
        return Tokenized(ids, account, second=starts if self.framing.segment else None)

    def pieces(self, texts: Sequence[str | Sequence[str]], *, words: bool = False) -> Iterator[tokenizers.Encoding]:
        """Each text by itself: its ids, tokens, offsets and word_ids, without [CLS] and [SEP], nothing cut.

        words: a text is given as the list of its words; word_ids count those, and offsets are into the word. Each is as
        in the middle of a text, with a space before it where the vocabulary has words so.
        """
        backend = self._words_backend if words else self._backend
        for start in range(0, len(texts), CHUNK):
            chunk = list(texts[start : start + CHUNK])
            yield from backend.encode_batch(chunk, is_pretokenized=words, add_special_tokens=False)

    def _encode(self, texts: list[str], room: int, count: bool) -> Iterator[tuple[tokenizers.Encoding, int, bool]]:
        """Each text with at least `room` of its tokens, how many there are, and whether that number is certain.

        count: make it certain. Of a text beyond PIECE characters the first piece is taken, where that is enough.
        """
        beginnings = [text if len(text) <= PIECE else self._piecewise.beginning(text) for text in texts]
        for text, beginning, made in zip(texts, beginnings, self.pieces(beginnings), strict=True):
            certain = self._piecewise.certain(made, len(beginning)) if len(text) > PIECE else len(made)
            if len(text) > PIECE and certain <= room:
                made = self._backend.encode(text, add_special_tokens=False)
                yield made, len(made), True
            elif len(text) > PIECE and count:
                yield made, len(self._piecewise.ids(text)[0]), True
            else:
                yield made, certain, len(text) <= PIECE

    def warn(self, account: Account, max_length: int) -> None:
        """Warn of cut ends and of unknown tokens, once each, in the name of the caller's caller."""
        account.warn(max_length, str(self._pieces[self.unk_id]), stacklevel=4)

    def _ids(self, texts: list[str], enough: int | None = None) -> Iterator[tuple[list[int], bool]]:
        """The ids of each text and whether these are all: of millions of characters `enough` of them will do."""
        for portion in portions(texts):
            short = [text if len(text) <= PIECE else "" for text in portion]
            made = self._backend.encode_batch_fast(short, add_special_tokens=False)
            for text, encoding in zip(portion, made, strict=True):
                yield (encoding.ids, True) if len(text) <= PIECE else self._piecewise.ids(text, enough)

    def _row(self, a: tokenizers.Encoding, b: tokenizers.Encoding | None, n: int, m: int) -> BatchRow:
        """n tokens of a and m of b with the special ones around (Devlin et al. 2018, figure 2)."""

        def around(field: str, special: Callable[[int], Any]) -> list[Any]:
            second = None if b is None else getattr(b, field)[:m]
            return self.framing.around(getattr(a, field)[:n], second, special)

        ids = around("ids", lambda id: id)
        return BatchRow(
            ids=ids,
            segments=self.framing.segments(n, None if b is None else m),
            special=[int(id in self.control_ids) for id in ids],
            tokens=around("tokens", self._pieces.__getitem__),
            offsets=around("offsets", lambda id: (0, 0)),
            word_ids=around("word_ids", lambda id: None),
        )

    def checked_length(self, max_length: int | None, pairs: bool) -> int:
        """The max_length that counts. Raises ValueError where no token of text would fit, or too many for the model."""
        max_length = self.max_length if max_length is None else max_length
        if not isinstance(max_length, int) or isinstance(max_length, bool):
            raise TypeError(f"max_length is of type {type(max_length).__name__}; it must be an int")
        minimum = self.framing.specials(pairs) + 1  # the special tokens and one token of text
        if not minimum <= max_length <= self.limit:
            raise ValueError(
                f"max_length is {max_length}; {'for pairs ' if pairs else ''}it must be at least "
                f"{minimum} and at most {self.limit}, the number of positions of the model"
            )
        return max_length

    # -- one text, as in transformers

    def tokenize(self, text: str) -> list[str]:
        """The tokens of a text, without [CLS] and [SEP], nothing cut."""
        return list(next(self.pieces(as_texts([text]))).tokens)

    def encode(self, text: str, pair: str | None = None, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text or a pair, [CLS] to [SEP], cut with a warning as in a call; or of one text, bare and whole.

        Raises ValueError for a pair without special tokens.
        """
        if add_special_tokens:
            ids: list[int] = self(text, pair).input_ids[0].tolist()
            return ids
        if pair is not None:
            raise ValueError("add_special_tokens is False, and without [SEP] a pair would be one text")
        return list(next(self.pieces(as_texts([text]))).ids)

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """The id of each token; that of [UNK] where the vocabulary has no such token."""
        return [self.vocab.get(token, self.unk_id) for token in tokens]

    def convert_ids_to_tokens(self, ids: Iterable[int] | Tensor) -> list[str]:
        """The token of each id. Raises ValueError for an id that the vocabulary does not have."""
        ids = ids.tolist() if isinstance(ids, Tensor) else list(ids)
        if unknown := [id for id in ids if id not in self._pieces]:
            raise ValueError(f"id {shown(unknown[0])} is not in the vocabulary, which has {self.vocab_size:,} tokens")
        return [self._pieces[id] for id in ids]

    # -- ids to text, and the vocabulary

    def decode(self, ids: Sequence[int] | Tensor, *, skip_special_tokens: bool = False) -> str:
        """The text of one row of ids, as close as pieces allow: case, accents and some spaces do not come back."""
        ids = ids.tolist() if isinstance(ids, Tensor) else list(ids)
        return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)

    @property
    def vocab_size(self) -> int:
        """V: how many tokens there are, added ones included."""
        return len(self.vocab)

    def token_to_id(self, token: str) -> int | None:
        """The id of a token; None where the vocabulary has no such token."""
        return self.vocab.get(token)

    def id_to_token(self, id: int) -> str | None:
        """The token of an id; None where the vocabulary has no such id."""
        return self._pieces.get(id)

    def token_text(self, id: int) -> str:
        """A token as one writes it: without Ġ and ▁, bytes as the letters that they make; ## of WordPiece stays."""
        token = self.id_to_token(id) or f"[id {id}]"
        if kind_of(self._definition["model"]) == "WordPiece" or id in self.control_ids or id not in self._pieces:
            return token
        text = self.decode([id]).strip()
        return text if text and "\ufffd" not in text else token  # a part of a letter has no text

    @property
    def continues(self) -> NDArray[np.bool_]:
        """Which tokens go on with the word before them, by id, (V); no special token does.

        WordPiece marks these (##), byte-level BPE and unigram vocabularies mark those that begin a word (Ġ, ▁).
        """
        found = np.zeros(max(self.vocab.values()) + 1, dtype=bool)
        model = self._definition["model"]
        mark = {"BPE": "Ġ", "Unigram": "▁"}.get(kind_of(model))
        prefix = model.get("continuing_subword_prefix") or "##"
        for token, id in self.vocab.items():
            found[id] = token.startswith(prefix) if mark is None else not token.startswith(mark)
        found[[*self.control_ids, self.unk_id]] = False
        return found

    @cached_property
    def _pieces(self) -> dict[int, str]:
        return {id: token for token, id in self.vocab.items()}

    # -- identity, files, pickles

    @cached_property
    def fingerprint(self) -> str:
        """sha256 (hexadecimal) of all that determines ids: vocabulary, rules, special tokens, max_length."""
        parts = [self._definition, self._special, self.special_tokens_in_text, self.max_length]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json and tokenizer_config.json, which transformers and minibert load as this tokenizer."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        normalizer = self._definition.get("normalizer") or {}
        casing = {theirs: normalizer[ours] for ours, theirs in NORMALIZER_SETTINGS.items() if ours in normalizer}
        settings = {"tokenizer_class": "BertTokenizer"} | self._settings | self._special | casing
        settings |= {"model_max_length": self.max_length}
        for name, content in (("tokenizer.json", self._definition), ("tokenizer_config.json", settings)):
            write_text_atomically(folder / name, json.dumps(content, ensure_ascii=False, indent=2) + "\n")

    def __getstate__(self) -> dict[str, Any]:
        # The library's own pickle forgets encode_special_tokens, so the backend is built again from its definition.
        return {name: value for name, value in self.__dict__.items() if name not in BACKENDS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._backend = build(self._definition, self.special_tokens_in_text == "literal", "the definition")
        self._prepare()

    def _prepare(self) -> None:
        if self.special_tokens_in_text == "literal":
            take_apart(self._backend, self._special_names)
        self._piecewise = piecewise(self._backend, self._definition)

    @property
    def _special_names(self) -> list[str]:
        return [self._pieces[id] for id in sorted(self.control_ids | {self.unk_id})]

    @cached_property
    def _words_backend(self) -> tokenizers.Tokenizer:
        """The backend for texts that are given word by word."""
        if kind_of(self._definition["model"]) != "BPE":
            return self._backend
        return build(with_prefix_space(self._definition, True), self.special_tokens_in_text == "literal", "")

    def _check_literal(self) -> None:
        """Special tokens without punctuation, such as "CLS", could be words of a text: then literal cannot be kept."""
        for token in self._special.values():
            if self.control_ids.intersection(self._backend.encode(token, add_special_tokens=False).ids):
                raise ValueError(
                    f"special_tokens_in_text='literal' is not possible with this vocabulary: "
                    f"the word {token!r} itself is a special token; use 'parse'"
                )


def load_tokenizer(
    name: str | Path,
    *,
    lowercase: bool | None = None,
    max_length: int | None = None,
    special_tokens_in_text: str = "parse",
) -> Tokenizer:
    """The tokenizer of a checkpoint, by Hub name or folder, from tokenizer.json or else from its vocabulary.

    lowercase: None takes what the files say. max_length: None takes the smallest of 512, model_max_length and the
    model's positions. special_tokens_in_text: see Tokenizer. Raises FileNotFoundError where a folder has neither
    file, ValueError where a file is broken or the vocabulary is larger than the model's.
    """
    folder = hub.locate(name).folder
    settings = read_settings(folder)
    config = Config.from_file(folder / "config.json")
    relative = relative_of(config, settings)
    definition = read_definition(folder, settings, lowercase, relative)
    if kind_of(definition["model"]) != "WordPiece":
        settings.setdefault("tokenizer_class", f"{relative}Tokenizer")  # what transformers is to load a saved one as
    default, limit = lengths(folder, config, definition, settings)
    tokenizer = Tokenizer(
        definition,
        limit=limit,
        max_length=default if max_length is None else max_length,
        special_tokens_in_text=special_tokens_in_text,
        settings=settings,
        source=str(folder),
    )
    check_padding(folder, config, tokenizer.pad_id)
    return tokenizer
