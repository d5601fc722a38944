"""Every file from outside, damaged in thousands of ways, is read or refused by its name.

A mutation changes bytes (flipped, cut, repeated, replaced by what JSON finds hard), or an entry of the JSON (another
type, another size, gone). The result is a value, or a ValueError, TypeError or FileNotFoundError that names the file or
its folder. An AttributeError, a KeyError, a RecursionError or a library's own error fails the test.
"""

import json
import random
import struct
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from safetensors.numpy import save
from safetensors.torch import load_file
from support.models import assert_equal
from tokenizers.processors import TemplateProcessing

from minibert import Config, Recipe, load_tokenizer
from minibert.prediction import frozen
from minibert.storage.tensor_files import INDEX_FILE, WEIGHTS_FILE, list_tensors, read_weight
from minibert.text.wordpiece import SPECIAL_TOKENS

pytestmark = pytest.mark.filterwarnings("ignore")  # a vocabulary with upper case among them
MUTATIONS = 2000  # of each kind of file
REFUSALS = (ValueError, TypeError, FileNotFoundError)

SIZES = {"vocab_size": 12, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
CONFIG = Config(**SIZES, max_position_embeddings=16).to_dict() | {"architectures": ["BertModel"]}
VOCAB = [*SPECIAL_TOKENS, "a", "b", "##s", "é", "hello"]
BACKEND = tokenizers.BertWordPieceTokenizer({token: id for id, token in enumerate(VOCAB)})
BACKEND.enable_padding()
BACKEND._tokenizer.post_processor = TemplateProcessing(
    single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
)
TOKENIZER_CONFIG = {
    "do_lower_case": True,
    "strip_accents": None,
    "model_max_length": 16,
    "cls_token": {"content": "[CLS]", "lstrip": False},
    "unk_token": "[UNK]",
    "tokenizer_class": "BertTokenizer",
}
ARRAYS = {"mean": np.zeros(3), "scale": np.ones(3), "coef": np.ones((1, 3)), "intercept": np.ones(1)}
RECIPE = {name: value for name, value in asdict(Recipe()).items() if name in frozen.RECIPE}
FOUND = {"labels": ["no", "yes"], "C": 1.0, "rows": 2, "folds": 5, "scores": [{"C": 1.0, "mean": 0.5, "std": 0.1}]}
HASHES = {"weights_sha256": "b" * 64, "tokenizer_fingerprint": "c" * 64}
CLASSIFIER = {"format": 1, "model": "a", "pairs": False, "columns": {}} | HASHES | RECIPE | FOUND
INDEX = {"metadata": {"total_size": 24}, "weight_map": {"a": "shard.safetensors", "b": "shard.safetensors"}}
HEADER = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
    "b": {"dtype": "F16", "shape": [4], "data_offsets": [16, 24]},
}


@dataclass(frozen=True)
class Kind:
    """One kind of file: its name, what it holds when whole, how it is packed and read, and what stands beside it."""

    name: str
    content: Any
    read: Callable[[Path], object]
    pack: Callable[[bytes], bytes] = bytes
    beside: tuple[tuple[str, bytes], ...] = ()


def framed(header: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + bytes(24)


def with_details(text: bytes) -> bytes:
    """The file of a classifier with these details."""
    return save(ARRAYS, {frozen.DETAILS: text.decode("utf-8", "replace")})


def read_weights(folder: Path) -> None:
    """Every tensor, as safetensors reads it; small, whatever the header says, because it must fit the file."""
    ours = {name: read_weight(stored) for name, stored in list_tensors(folder).items()}
    assert_equal(ours, load_file(folder / WEIGHTS_FILE), equal_nan=True)


def read_words(folder: Path) -> object:
    """A tokenizer is read when it tokenizes."""
    tokenizer = load_tokenizer(folder)
    return tokenizer(["hello as [MASK] é x", ""]), tokenizer.decode([2, 9, 3])


SHARD = (("shard.safetensors", framed(json.dumps(HEADER).encode())),)
BESIDE = (("config.json", json.dumps(CONFIG).encode()),)
WORDS = (*BESIDE, ("vocab.txt", "\n".join(VOCAB).encode()))
KINDS = {
    "config": Kind("config.json", CONFIG, lambda folder: Config.from_file(folder / "config.json").to_dict()),
    "header": Kind(WEIGHTS_FILE, HEADER, read_weights, framed),
    "index": Kind(INDEX_FILE, INDEX, list_tensors, beside=SHARD),
    "tokenizer": Kind("tokenizer.json", json.loads(BACKEND.to_str()), read_words, beside=BESIDE),
    "settings": Kind("tokenizer_config.json", TOKENIZER_CONFIG, read_words, beside=WORDS),
    "vocabulary": Kind("vocab.txt", "\n".join(VOCAB), read_words, beside=BESIDE),
    "classifier": Kind(frozen.CLASSIFIER_FILE, CLASSIFIER, frozen.read, with_details),
}
PIECES = [
    *(b"null", b"true", b"{}", b"[]", b'"', b"\\", b"\x00", b"\xff", b"\xed\xa0\x80", b"\\ud800", b"\n", b"\r\n"),
    *(
        b"-1",
        b"0",
        b"1e999",
        b"NaN",
        b"Infinity",
        b"9" * 30,
        b"9" * 5000,
        b"[" * 2000,
        b'{"a":' * 2000,
        b"\xef\xbb\xbf",
    ),
]
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 7, 2**31, 2**62, 2**64, 10**30, 0.5, -0.5, 1e39, float("nan"), float("inf")),
    *("", "a", "[UNK]", "\ud800", "x" * 300, "../a", "BPE", "WordLevel", "F64", "I32", [], {}, [[]], [None]),
    *({"": None}, [1] * 40, {"type": "BPE"}, {"content": 7}, {"id": -1}),
]


def mutated(kind: Kind, pick: random.Random) -> bytes:
    """The file with one to three changes: in its JSON, in the bytes of that, or in those of the whole file."""
    content = kind.content
    for _ in range(pick.choice([0, 1, 1, 2]) if not isinstance(content, str) else 0):
        content = with_another_entry(content, pick)
    raw = text_of(content)
    raw = kind.pack(with_other_bytes(raw, pick) if pick.random() < 0.4 else raw)
    return with_other_bytes(raw, pick) if pick.random() < 0.2 else raw


def text_of(content: Any) -> bytes:
    return content.encode() if isinstance(content, str) else json.dumps(content).encode()


def with_another_entry(content: Any, pick: random.Random) -> Any:
    """A copy of some JSON in which one entry, at any depth, has another value, another name or is gone."""
    place = copy = json.loads(json.dumps(content))
    while keys := list(place) if isinstance(place, dict) else list(range(len(place))):
        key = pick.choice(keys)
        if isinstance(place[key], dict | list) and place[key] and pick.random() < 0.7:
            place = place[key]
            continue
        change, value = pick.randrange(4), pick.choice(VALUES)
        if change == 1 and isinstance(place, dict):
            place[pick.choice(["", "a", "type", "id", "merges", "\ud800", "é"])] = place[key]
        if change >= 2:
            place[key] = value
        else:
            del place[key]
        return copy
    return pick.choice(VALUES)


def with_other_bytes(raw: bytes, pick: random.Random) -> bytes:
    """A copy of some bytes in which a few are flipped, cut off, taken out, repeated, or replaced by a hard piece."""
    place, piece = pick.randrange(len(raw) + 1), pick.choice(PIECES)
    flipped = bytes([raw[place] ^ (1 << pick.randrange(8))]) if place < len(raw) else b""
    after = [
        flipped + raw[place + 1 :],
        b"",
        raw[place + pick.randrange(1, 9) :],
        raw[max(0, place - pick.randrange(1, 30)) :],
        piece + raw[place:],
        piece + raw[place + len(piece) :],
    ]
    return raw[:place] + pick.choice(after)


def check(kind: Kind, content: bytes, folder: Path) -> bool:
    """Read the file: True if it is accepted, False if it is refused by name; any other exception is an error."""
    for name, beside in kind.beside:
        (folder / name).write_bytes(beside)
    (folder / kind.name).write_bytes(content)
    try:
        kind.read(folder)
    except REFUSALS as error:
        assert str(folder) in str(error), f"{error!r} does not name the file"
        return False
    return True


@pytest.mark.parametrize(
    "mutations", [MUTATIONS // 10, pytest.param(MUTATIONS, marks=pytest.mark.slow)], ids=["few", "many"]
)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_damaged_files_are_read_or_refused_by_name(kind, mutations, tmp_path):
    assert check(kind, kind.pack(text_of(kind.content)), tmp_path)
    accepted = 0
    for seed in range(mutations):
        content = mutated(kind, random.Random(seed))
        try:
            accepted += check(kind, content, tmp_path)
        except BaseException as error:
            error.add_note(f"{kind.name}, seed {seed}: {content[:2000]!r}")
            raise
    assert 0 < accepted < mutations, "a mutation that is always accepted, or never, tests nothing"
