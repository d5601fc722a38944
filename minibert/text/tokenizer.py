"""Text to ids with the `tokenizers` library, and statistics of what was cut off or unknown.

    texts -> as_texts (checked row by row) -> tokens (the library) -> truncated to max_length, counted
          -> [CLS] a [SEP] b [SEP] -> padded to the longest row: Batch; or left as they are: Tokenized

`wordpiece`, `byte_pairs` and `unigram` write out how the library finds the tokens, `tokenized` has what comes after
that: special tokens, cutting, padding.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import Encoding
from torch import Tensor

from minibert.checkpoints.checkpoint import Checkpoint
from minibert.tables.texts import TextOrPair, are_pairs, as_texts, as_texts_or_pairs, chunked
from minibert.text.tokenized import (
    Batch,
    Tokenized,
    TokenStats,
    TruncationWarning,
    UnknownTokensWarning,
    as_long,
    guarded,
    in_windows,
    pad,
    read_template,
    shares,
    token_stats,
)
from minibert.text.tokenizer_classes import NOT_USED, stated_class
from minibert.text.tokenizer_files import build, check_fits, check_literal, read_definition, with_prefix_space
from minibert.text.tokenizer_names import TransformersNames
from minibert.text.tokenizer_settings import (
    DEFAULT_MAX_LENGTH,
    read_settings,
    saved_settings,
    special_tokens,
    with_side,
)
from minibert.utils.files import AnyPath, user_path, write_text_atomically
from minibert.utils.habits import refuse_unknown
from minibert.utils.printing import brief
from minibert.utils.settings import check_number, with_settings

__all__ = ["Batch", "TokenStats", "Tokenizer", "TruncationWarning", "UnknownTokensWarning", "load_tokenizer"]

TOKENIZE = "tokenize this text by the tokenizer.json"
BEGINNING = 2**16  # characters of a text that will be cut; 512 tokens of text take some 3,000


# ---------------------------------------------------------------------------------------------------------------
# The tokenizer


class Tokenizer(TransformersNames):
    """The tokenizer of BERT and its relatives: texts in, ids out, equal to transformers 5.23.

    definition: the content of a tokenizer.json. limit: the number of positions of the model. max_length: texts are cut
    to this unless a call sets another. special_tokens_in_text: "parse" reads a typed "[SEP]" as that token, as
    transformers does without split_special_tokens; "literal" reads it as five characters. settings: the
    content of tokenizer_config.json. source: the name of the definition in errors.
    """

    @with_settings()
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
        # A saved tokenizer.json may cut and pad by itself; here both are done, and reported, by this class.
        self._definition = {"added_tokens": []} | dict(definition) | {"truncation": None, "padding": None}
        self._settings = with_side(settings or {}, definition)
        self._source = source
        self.truncates_left = self._settings.get("truncation_side") == "left"  # long texts keep their ends
        self.special_tokens_in_text = special_tokens_in_text
        literal = special_tokens_in_text == "literal"
        split = bool(self._settings.get("split_special_tokens"))
        self._build = partial(build, literal=literal, split=split, source=source)
        self._backend = self._build(self._definition)
        # What tokens that begin a word begin with, a space; "" for WordPiece, where ## marks the others.
        self.mark = {"BPE": "Ġ", "Unigram": "▁"}.get(type(self._backend.model).__name__, "")
        self.vocab: dict[str, int] = self._backend.get_vocab()  # token to id, added tokens included
        self._pieces = {id: token for token, id in self.vocab.items()}
        self._special = special_tokens(self._settings, source, self.vocab)
        special = [(token, self.vocab[token]) for token in self._special.values()]
        self.cls_id, self.sep_id, self.pad_id, self.mask_id, self.unk_id = (id for _, id in special)
        template = read_template(self._backend, special[0], special[1], source)
        segments = "token_type_ids" in (self._settings.get("model_input_names") or ["token_type_ids"])
        self.template = template if segments else replace(template, segment=0)
        added = {id for id, token in self._backend.get_added_tokens_decoder().items() if token.special}
        # [UNK] represents a word of the text, so it does not count as special in special_tokens_mask.
        self.control_ids = (added | {id for _, id in special}) - {self.unk_id}
        self.limit = limit
        self.max_length = min(DEFAULT_MAX_LENGTH, limit)
        self.max_length = self.resolve_max_length(max_length, pairs=False)
        if literal:
            check_literal(self._backend, self._special.values(), self.control_ids, source)

    # -- texts to ids

    def __call__(
        self,
        texts: object,
        pairs: object = None,
        *,
        padding: bool | str = True,
        max_length: int | None = None,
        truncation: str | bool = "warn",
        missing: str = "error",
        return_tensors: str = "pt",
        **others: object,
    ) -> Batch:
        """Tokenize texts, or pairs of texts, into a padded Batch; a single str makes a batch of one row.

        padding: True or "longest", to the longest row, or "max_length".
        max_length: tokens per row with special tokens, at most the model's positions; the longer text of a pair is cut
        first. truncation: "warn" or True cuts and warns once, "error" or False raises ValueError.
        missing: see as_texts. Raises TypeError for other arguments of transformers, naming what is here in their place.
        """
        refuse_unknown("a tokenizer", others, ("pairs", "padding", "max_length", "truncation", "missing"))
        if return_tensors != "pt":
            raise ValueError(f"return_tensors is {brief(return_tensors)}; it must be 'pt', and `ids` returns lists")
        if padding not in (True, "longest", "max_length"):
            raise ValueError(f"padding is {brief(padding)}; choose True, 'longest' or 'max_length'; `ids` does not pad")
        rows = as_texts_or_pairs(texts, pairs, missing=missing)
        encoded = self.encode_texts(rows, long=as_long(truncation), max_length=max_length, details=True)
        max_length = max_length or self.max_length
        self.warn(encoded.stats, max_length)
        least = max_length if padding == "max_length" else 0
        return pad(encoded, self.control_ids, self.pad_id, self._pieces[self.pad_id], least)

    def ids(
        self, texts: object, *, max_length: int | None = None, truncation: str | bool = "warn", missing: str = "error"
    ) -> list[list[int]]:
        """Return the ids of each text, [CLS] and [SEP] included, cut but not padded: the fast way for many texts."""
        rows = self.encode_texts(as_texts(texts, missing=missing), long=as_long(truncation), max_length=max_length)
        self.warn(rows.stats, max_length or self.max_length)
        return rows.ids

    def encode_texts(
        self,
        texts: Sequence[TextOrPair],
        *,
        long: str = "cut",
        stride: int | None = None,
        max_length: int | None = None,
        first_row: int = 0,
        details: bool = False,
    ) -> Tokenized:
        """Return the rows of texts or pairs, with stats in place of warnings; a call and `ids` are views of these.

        long, stride: as in a Recipe. first_row: the row of the first text in the ValueError of long="error".
        details: with the tokens, offsets and word_ids of each row.
        Raises ValueError for windows of pairs, and for a stride longer than a window.
        """
        pairs = are_pairs(texts)
        max_length = self.resolve_max_length(max_length, pairs)
        specials = self.template.specials(pairs)
        room = max_length - specials
        if pairs and long == "windows":
            raise ValueError("long is 'windows', and windows are of single texts; for pairs use long='cut' or 'error'")
        enough = None if pairs or details or long == "windows" or self.truncates_left else room + 1
        fields: dict[str, Callable[[int], Any]] = {"ids": int}  # with the value for a special token
        if details:
            fields |= {"tokens": self.id_to_token, "offsets": lambda id: (0, 0), "word_ids": lambda id: None}
        rows: dict[str, list[list[Any]]] = {field: [] for field in fields}
        starts, windows, lengths = [], [], []
        columns = zip(*texts, strict=True) if pairs else [texts]
        encodings = [self.encode_each(column, details=details, enough=enough) for column in columns]
        for text, a, *b in zip(texts, *encodings, strict=True):
            total = len(a) + sum(map(len, b))
            n, m = shares(len(a), total - len(a), room)
            parts = in_windows(range(len(a)), room, stride) if long == "windows" else [self.truncate(range(len(a)), n)]
            for field, special in fields.items():
                first, *others = (getattr(encoding, field) for encoding in (a, *b))
                second = self.truncate(others[0], m) if pairs else None
                rows[field] += [self.template.row(first[part.start : part.stop], second, special) for part in parts]
            starts.append(self.template.second(n))
            windows.append(len(parts))
            lengths.append((total, enough is None or len(text) <= BEGINNING))
        ids = rows.pop("ids")
        stats = token_stats(lengths, ids, self.unk_id, specials, max_length, long, windows, first_row)
        second_begins = starts if pairs and self.template.segment else None
        return Tokenized(ids, stats, second_begins, windows if long == "windows" else None, rows)

    def encode_each(
        self, texts: Iterable[Any], *, words: bool = False, details: bool = True, enough: int | None = None
    ) -> Iterator[Encoding]:
        """Yield the ids, tokens, offsets and word_ids of each text, without special tokens and without truncation.

        words: each text is a list of its words; word_ids count these, offsets are into the word. Each word is tokenized
        as in the middle of a text, with a space before it if the vocabulary has words with spaces.
        details: False leaves all but the ids out, and is faster. enough: of a very long text so many tokens suffice.
        """
        backend = self._words_backend if words else self._backend
        encode = backend.encode_batch if details else backend.encode_batch_fast
        for chunk in chunked(texts):
            # The library takes a hundred bytes per character, so of a long text only the beginning is tokenized. That
            # must have twice as many tokens as are needed, because the last ones depend on what follows.
            beginnings = chunk if enough is None else [text[:BEGINNING] for text in chunk]
            with guarded(self._source, TOKENIZE):
                encodings = encode(beginnings, is_pretokenized=words, add_special_tokens=False)
            for text, encoding in zip(chunk, encodings, strict=True):
                if enough is None or len(text) <= BEGINNING or len(encoding) >= 2 * enough:
                    yield encoding
                else:
                    yield from self.encode_each([text], words=words, details=details)

    def truncate(self, values: Sequence[Any], count: int) -> Any:
        """Return the values of a text's tokens that a row keeps: the first `count`, or the last if truncates_left."""
        return values[max(0, len(values) - count) :] if self.truncates_left else values[:count]

    def warn(self, stats: TokenStats, max_length: int) -> None:
        """Warn of truncated texts and of unknown tokens, once each, at the line of the caller's caller."""
        stats.warn(max_length, self._pieces[self.unk_id], 4, self.truncates_left)

    def resolve_max_length(self, max_length: int | None, pairs: bool) -> int:
        """Return `max_length`, or the default for None. Raises ValueError if no token of text fits, or too many."""
        max_length = self.max_length if max_length is None else max_length
        minimum = self.template.specials(pairs) + 1  # the special tokens and one token of text
        name = "max_length for pairs" if pairs else "max_length"
        return check_number(name, max_length, int, minimum, self.limit)  # type: ignore[no-any-return]  # an int

    # -- ids to text, and the vocabulary

    @with_settings()
    def decode(self, ids: Sequence[int] | Tensor, *, skip_special_tokens: bool = False) -> str:
        """Return the text of one row of ids, approximately: case, accents and some spaces are lost."""
        ids = ids.tolist() if isinstance(ids, Tensor) else list(ids)
        with guarded(self._source, "decode these ids"):
            return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)

    @property
    def vocab_size(self) -> int:
        """V: the number of tokens, added ones included."""
        return len(self.vocab)

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token, None if the vocabulary does not have it."""
        return self.vocab.get(token)

    def id_to_token(self, id: int) -> str | None:
        """Return the token of an id, None if the vocabulary does not have it."""
        return self._pieces.get(id)

    def token_text(self, id: int) -> str:
        """Return a token for display: without Ġ and ▁, bytes decoded to the letters they encode; ## stays."""
        token = self.id_to_token(id) or f"[id {id}]"
        if not self.mark or id in self.control_ids or id not in self._pieces:
            return token
        text = self.decode([id]).strip()
        return text if text and "\ufffd" not in text else token  # a part of a letter has no text

    def joins(self, sign: str) -> bool:
        """Return whether transformers decodes this sign without a space before it (clean_up_tokenization_spaces)."""
        return sign in ".,!?" and self.mark != "Ġ" and bool(self._settings.get("clean_up_tokenization_spaces"))

    @property
    def continues(self) -> NDArray[np.bool_]:
        """Which tokens continue the word before them, by id, (V); special tokens do not.

        WordPiece marks these (##), byte-level BPE and unigram vocabularies mark those that begin a word (Ġ, ▁).
        """
        continuing = np.zeros(max(self._pieces) + 1, dtype=bool)
        prefix = self._definition["model"].get("continuing_subword_prefix") or "##"
        for token, id in self.vocab.items():
            continuing[id] = not token.startswith(self.mark) if self.mark else token.startswith(prefix)
        continuing[[*self.control_ids, self.unk_id]] = False
        return continuing

    # -- identity, files, pickles

    @cached_property
    def fingerprint(self) -> str:
        """sha256 (hexadecimal) of everything that determines ids: vocabulary, rules, special tokens, max_length."""
        parts: list[Any] = [self._definition, self._special, self.special_tokens_in_text, self.max_length]
        switches = {"truncation_side": "left", "split_special_tokens": True}
        parts += [name for name, value in switches.items() if self._settings.get(name) == value]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def save(self, folder: AnyPath) -> None:
        """Write tokenizer.json and tokenizer_config.json, which transformers and minibert load as this tokenizer."""
        folder = user_path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        settings = saved_settings(self._settings, self._definition)
        settings |= {**self._special, "model_max_length": self.max_length}
        for name, content in (("tokenizer.json", self._definition), ("tokenizer_config.json", settings)):
            write_text_atomically(folder / name, json.dumps(content, ensure_ascii=False, indent=2) + "\n")

    def __reduce__(self) -> tuple[Callable[[], Any], tuple[()]]:
        """Pickle the definition, because the library's own pickle loses encode_special_tokens."""
        make = partial(
            Tokenizer,
            self._definition,
            limit=self.limit,
            max_length=self.max_length,
            special_tokens_in_text=self.special_tokens_in_text,
            settings=self._settings,
            source=self._source,
        )
        return make, ()

    @cached_property
    def _words_backend(self) -> tokenizers.Tokenizer:
        """The backend for texts given as lists of words."""
        if self.mark != "Ġ":
            return self._backend
        return self._build(with_prefix_space(self._definition, True))


@with_settings()
def load_tokenizer(
    name: AnyPath,
    *,
    lowercase: bool | None = None,
    max_length: int | None = None,
    special_tokens_in_text: str = "parse",
) -> Tokenizer:
    """Return the tokenizer of a checkpoint, by Hub name or folder, from tokenizer.json or else from its vocabulary.

    lowercase: None uses the setting in the files. max_length: None uses the smallest of 512, model_max_length and
    the model's positions. special_tokens_in_text: see Tokenizer. Raises FileNotFoundError if the folder has neither
    file, ValueError if a file is damaged or belongs to another model.
    """
    checkpoint = Checkpoint.open(name)
    folder, config = checkpoint.folder, checkpoint.config
    settings = read_settings(folder)
    settings["tokenizer_class"] = stated_class(settings, config)
    definition, settings["tokenizer_class"] = read_definition(folder, settings, lowercase)
    definition["added_tokens"] = [
        one for one in definition["added_tokens"] if one["id"] < config.vocab_size or one["content"] not in NOT_USED
    ]
    stated = settings.get("model_max_length") or settings.get("max_len") or DEFAULT_MAX_LENGTH
    longest = min(DEFAULT_MAX_LENGTH, stated, config.max_tokens)
    tokenizer = Tokenizer(
        definition,
        limit=config.max_tokens,
        max_length=int(longest) if max_length is None else max_length,
        special_tokens_in_text=special_tokens_in_text,
        settings=settings,
        source=str(folder),
    )
    check_fits(definition, tokenizer.vocab, tokenizer.pad_id, config, str(folder))
    return tokenizer
