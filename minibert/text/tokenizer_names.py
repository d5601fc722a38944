"""What a tokenizer has under the names of transformers: short forms for one text, and its special tokens.

ids = tokenizer.encode("a fine film")
tokenizer.convert_ids_to_tokens(ids), tokenizer.decode(ids), tokenizer.mask_token
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from torch import Tensor

from minibert.tables.texts import as_texts
from minibert.utils.habits import Habits, refuse_unknown


class TransformersNames(Habits):
    """The part of Tokenizer that transformers has under the same names; equal to transformers 5.23."""

    if TYPE_CHECKING:  # Tokenizer has these
        vocab: dict[str, int]
        cls_id: int
        sep_id: int
        pad_id: int
        mask_id: int
        unk_id: int
        max_length: int
        control_ids: set[int]
        _pieces: dict[int, str]
        __call__: Callable[..., Any]
        encode_each: Callable[..., Iterator[Any]]
        truncate: Callable[..., Any]
        decode: Callable[..., str]

    cls_token_id, sep_token_id, pad_token_id, mask_token_id, unk_token_id = (
        property(attrgetter(f"{name}_id")) for name in ("cls", "sep", "pad", "mask", "unk")
    )
    cls_token = property(lambda self: self._pieces[self.cls_id])
    sep_token = property(lambda self: self._pieces[self.sep_id])
    pad_token = property(lambda self: self._pieces[self.pad_id])
    mask_token = property(lambda self: self._pieces[self.mask_id])
    unk_token = property(lambda self: self._pieces[self.unk_id])
    model_max_length = property(attrgetter("max_length"))

    @property
    def all_special_ids(self) -> list[int]:
        """The ids of the special tokens, sorted."""
        return sorted({*self.control_ids, self.unk_id})

    @property
    def all_special_tokens(self) -> list[str]:
        """The special tokens, in the order of their ids."""
        return [self._pieces[id] for id in self.all_special_ids]

    def __len__(self) -> int:
        return len(self.vocab)

    def get_vocab(self) -> dict[str, int]:
        """Return token to id, added tokens included."""
        return dict(self.vocab)

    def tokenize(self, text: str) -> list[str]:
        """Return the tokens of a text, without special tokens and without truncation."""
        return list(next(self.encode_each(as_texts([text]))).tokens)

    def encode(self, text: str, pair: str | None = None, *, add_special_tokens: bool = True, **how: Any) -> Any:
        """Return the ids of a text or a pair with special tokens, truncated with a warning.

        how: max_length, truncation, ... of a call; with return_tensors="pt" the ids are a tensor, (1, S). Without
        special tokens nothing is truncated unless they say so. Raises ValueError for a pair without special tokens.
        """
        if add_special_tokens:
            ids = self(text, pair, **how).input_ids
            return ids if "return_tensors" in how else ids[0].tolist()
        if pair is not None:
            raise ValueError("add_special_tokens is False, and without [SEP] a pair would be one text")
        refuse_unknown("encode without special tokens", how, ("max_length", "truncation"))
        ids = next(self.encode_each(as_texts([text]))).ids
        truncates = how.get("truncation", "max_length" in how)
        return self.truncate(ids, how.get("max_length") or self.max_length) if truncates else ids

    def convert_tokens_to_ids(self, tokens: str | Iterable[str]) -> Any:
        """Return the id of each token, or of one; the id of [UNK] for a token that is not in the vocabulary."""
        if isinstance(tokens, str):
            return self.vocab.get(tokens, self.unk_id)
        return [self.vocab.get(token, self.unk_id) for token in tokens]

    def convert_ids_to_tokens(self, ids: int | Iterable[int] | Tensor) -> Any:
        """Return the token of each id, or of one. Raises KeyError for an id that is not in the vocabulary."""
        return self._pieces[ids] if isinstance(ids, int) else [self._pieces[int(id)] for id in ids]

    def batch_decode(self, rows: Sequence[Sequence[int]] | Tensor, *, skip_special_tokens: bool = False) -> list[str]:
        """Return the text of each row of ids; see decode."""
        return [self.decode(row, skip_special_tokens=skip_special_tokens) for row in rows]
