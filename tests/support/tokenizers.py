"""Tokenizers of the relatives, small and trained on a few sentences, saved as transformers saves them."""

import inspect
import io
import json
import shutil
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
import transformers
from tokenizers import models, pre_tokenizers, trainers
from transformers import AutoTokenizer

from minibert.text.tokenized import MODEL_INPUTS
from minibert.text.tokenizer import Tokenizer, load_tokenizer
from minibert.text.wordpiece import SPECIAL_TOKENS
from support.models import HARD_TEXTS

SENTENCES = [
    "The cat sat on the mat, and the dog didn't care at all.",
    "She said that they'll come back in 2019 or 2020, but I'm not sure we've met.",
    "unbelievable rumination about naïve cafés and the price of 1,000 euros",
    "J'aime le camembert, les élèves sont déjà là où l'été finit.",
    "中文和English混合 日本語カタカナ 한국어 ภาษาไทย हिन्दी العربية",
    "A visually stunning film; a dull, lifeless mess. Good good bad bad fine awful very lovely.",
]
SPECIAL = ["<s>", "</s>", "<mask>", "[MASK]", "[SEP]", "<unk>", "<pad>"]
# Pieces of texts that are hard to tokenize: words, marks, white space, quotes, parts of special tokens.
FRAGMENTS = [
    *(
        "a",
        "b",
        "word",
        "##ing",
        "don't",
        "'l",
        "'",
        "re",
        "x" * 30,
        "x" * 99,
        "x" * 101,
        "é",
        "e\u0301",
        "\u0301",
        "İ",
        "ß",
    ),
    *(
        "한국",
        "ขไทย",
        "\u0e33",
        "\u0600",
        "ﬁ",
        "ª\u102b",
        "``",
        "''",
        "  ",
        "\n",
        "\t",
        "\0",
        "\0" * 14,
        "\u200b",
        "\x85",
    ),
    *(
        "\x1c",
        "\xa0",
        "\u3000",
        "\ufffd",
        "中",
        "，",
        ",",
        ".",
        "▁",
        "Ġ",
        "1",
        "1,",
        "[",
        "]",
        "<ma",
        "sk>",
        "[SE",
        "P]",
    ),
    *("[UNK]", "[sep]", *SPECIAL, *[" "] * 12),
]
# A vocabulary of BERT.
WORDS = [*SPECIAL_TOKENS, "hello", "world", "the", "cat", "sat", "##s", "f", "##ont", "[", "]"]
# Texts for small vocabularies, with tokens that the files of a tokenizer add.
TEXTS = [
    *(
        "hello [FONT_HIGH] world",
        "the[FONT_HIGH]cat",
        "hello new_tok new_token NEW_TOK",
        "cats [font_high] [CLS] [MASK]",
    ),
    *(
        " the  cat ",
        "the\tcat\nsat",
        "  hello<ent>world  <ent>  ",
        "<s> </s> <mask> cat sat",
        "",
        "sat sat the hello " * 5,
    ),
]
CORPUS = [*SENTENCES * 4, *HARD_TEXTS]
FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
CLASSES = {
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
    "albert": "AlbertTokenizer",
}
# What each needs of SentencePiece's trainer to have the ids of the official files: Camembert's model begins with <unk>.
ALBERTS = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": "[CLS],[SEP],[MASK]"}


@cache
def byte_pairs() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The vocabulary and the merges of a byte-level BPE, RoBERTa's special tokens first."""
    learned = tokenizers.Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = list(FAIRSEQ[:4])
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=sorted(alphabet), special_tokens=special, show_progress=False
    )
    learned.train_from_iterator(CORPUS, trainer)
    model = json.loads(learned.to_str())["model"]
    return model["vocab"] | {"<mask>": len(model["vocab"])}, [(first, second) for first, second in model["merges"]]


@cache
def pieces(family: str) -> bytes:
    """SentencePiece's file of a unigram model."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text.lower() if family == "albert" else text for text in CORPUS if text]),
        model_writer=written,
        vocab_size=420,
        character_coverage=0.98,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
        **(ALBERTS if family == "albert" else {}),
    )
    return written.getvalue()


def write_config(folder: Path, family: str, vocab_size: int, **values: Any) -> None:
    """A config.json for these many tokens; positions as that family counts them."""
    folder.mkdir(parents=True, exist_ok=True)
    pad = 1 if family in ("roberta", "xlm-roberta", "camembert") else 0
    sizes = {"vocab_size": vocab_size, "max_position_embeddings": 514 if pad else 512, "pad_token_id": pad}
    config = {"model_type": family, "type_vocab_size": 1 if pad else 2} | sizes | values
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def write_vocabulary(folder: Path, family: str) -> Path:
    """The folder that the family was released with: SentencePiece's vocabulary, without a tokenizer.json."""
    write_config(folder, family, 1000)
    name = "spiece.model" if family == "albert" else "sentencepiece.bpe.model"
    (folder / name).write_bytes(pieces(family))
    return folder


def write_saved(folder: Path, family: str, **options: Any) -> Any:
    """A folder with what transformers saves of that family's tokenizer, which is returned.

    The test is skipped with a transformers that leaves out SentencePiece's table of characters, as 5.0.0 does: its ids
    are not those of the official tokenizers.
    """
    theirs: Any = getattr(transformers, CLASSES[family])
    mask = tokenizers.AddedToken(
        "[MASK]" if family == "albert" else "<mask>", lstrip=True, normalized=False, special=True
    )
    if family == "roberta":
        vocab, merges = byte_pairs()
        theirs = theirs(vocab=vocab, merges=merges, mask_token=mask, **options)
    elif "_spm_precompiled_charsmap" in inspect.signature(theirs).parameters:
        source = write_vocabulary(folder.with_name(folder.name + "-released"), family)
        theirs = theirs.from_pretrained(source, mask_token=mask, **options)
    else:
        pytest.skip(f"transformers {transformers.__version__} leaves out SentencePiece's table of characters")
    write_config(folder, family, len(theirs))
    theirs.save_pretrained(folder)
    return theirs


def added(token: str, **flags: bool) -> dict[str, Any]:
    """An added token as files have it."""
    names = ("lstrip", "rstrip", "single_word", "normalized", "special")
    return {"content": token} | dict.fromkeys(names, False) | flags


def differences(
    ours: Tokenizer, theirs: Any, texts: list[str], pairs: list[str] | None = None, max_length: int = 512
) -> list[str]:
    """The texts for which the two differ in ids, mask, segments, offsets, tokens or words."""
    columns = [texts] if pairs is None else [texts, pairs]
    made = ours(*columns, max_length=max_length)
    options = {"padding": True, "truncation": True, "max_length": max_length, "return_token_type_ids": True}
    expected = theirs(*columns, **options, return_offsets_mapping=True)
    tensors = [(made[name].tolist(), expected[name]) for name in MODEL_INPUTS]
    return [
        text
        for row, text in enumerate(texts)
        if any(found[row] != right[row] for found, right in [*tensors, (made.offsets, expected["offset_mapping"])])
        or made.tokens[row] != expected.tokens(row)
        or made.word_ids[row] != expected.word_ids(row)
    ]


def assert_as_transformers(folder: Path, again: Path | None = None) -> Tokenizer:
    """Assert that a folder's tokenizer is AutoTokenizer's, whole and cut, alone and in pairs, also when saved again."""
    with warnings.catch_warnings(action="ignore"):
        ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
        for pairs in (None, TEXTS[::-1]):
            for max_length in (9, 200):
                assert differences(ours, theirs, TEXTS, pairs, max_length) == []
                rows = TEXTS if pairs is None else list(zip(TEXTS, pairs, strict=True))
                lists = theirs(TEXTS, pairs, truncation=True, max_length=max_length)["input_ids"]
                assert ours.encode_texts(rows, max_length=max_length).ids == lists
        if again is None:
            saved = folder.with_name("saved")
            ours.save(saved)
            shutil.copy(folder / "config.json", saved)
            assert assert_as_transformers(saved, folder).fingerprint == ours.fingerprint
            cut = {"truncation": True, "max_length": 9}
            assert AutoTokenizer.from_pretrained(saved)(TEXTS, **cut) == theirs(TEXTS, **cut)
    return ours
