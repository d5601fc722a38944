"""The files of a tokenizer, read as untrusted input: the content of a tokenizer.json, or a ValueError with the file.

tokenizer.json            all of it, as the `tokenizers` library writes it
tokenizer_config.json     names of special tokens, casing, maximum length; it overrides tokenizer.json

Older folders of BERT and ELECTRA have a vocabulary in place of tokenizer.json, whose content is made from it:

vocab.txt                 WordPiece: one piece per line, its id is the line number

Those of relatives (vocab.json and merges.txt, or SentencePiece's own files) are not read: transformers converts them.
"""

import json
import re
import warnings
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from minibert.utils.files import listing, read_json, read_small
from minibert.utils.printing import brief
from minibert.utils.settings import check_number

DEFAULT_MAX_LENGTH = 512
# The special tokens by role, and their default names: BERT's, RoBERTa's.
SPECIAL_TOKENS = {
    "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"),
    "pad_token": ("[PAD]", "<pad>"),
    "mask_token": ("[MASK]", "<mask>"),
    "unk_token": ("[UNK]", "<unk>"),
}
# The settings of the library's BertNormalizer, and their names in tokenizer_config.json.
NORMALIZER_SETTINGS = {
    "lowercase": "do_lower_case",
    "strip_accents": "strip_accents",
    "handle_chinese_chars": "tokenize_chinese_chars",
}


# ---------------------------------------------------------------------------------------------------------------
# tokenizer_config.json


def read_settings(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json, with names of special tokens from special_tokens_map.json if it has none."""
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (path := folder / name).exists():
            settings |= read_json(path)
            special_tokens(settings, str(path))
            most = settings.get("model_max_length") or DEFAULT_MAX_LENGTH
            check_number(f"{path}: model_max_length", most, float, 3, None)  # [CLS], a token of text, [SEP]
    return settings


def special_tokens(settings: Mapping[str, Any], source: str, vocab: Container[str] | None = None) -> dict[str, str]:
    """The five special tokens by role; settings have each as a str or as {"content": str, ...}.

    One that is missing there is the first default name that the vocabulary has, or BERT's. Raises ValueError, naming
    `source`, for one that is not a str or not in the vocabulary.
    """
    found = {}
    for role, names in SPECIAL_TOKENS.items():
        given = settings.get(role)
        default = next((name for name in names if name in (vocab or ())), names[0])
        token = given.get("content") if isinstance(given, dict) else given or default
        if not isinstance(token, str) or (vocab is not None and token not in vocab):
            raise ValueError(f"{source}: {role} is {brief(token)}; it must be a token that the vocabulary has")
        found[role] = token
    return found


# ---------------------------------------------------------------------------------------------------------------
# tokenizer.json


def read_definition(folder: Path, settings: Mapping[str, Any], lowercase: bool | None) -> dict[str, Any]:
    """The content of tokenizer.json, or its equivalent for an older vocabulary, with the settings applied.

    An explicit lowercase overrides tokenizer_config.json, which overrides tokenizer.json, as in transformers.
    """
    if (folder / "tokenizer.json").exists():
        definition = read_json(folder / "tokenizer.json")
    elif (folder / "vocab.txt").exists():
        definition = definition_from_vocab(folder / "vocab.txt", settings, lowercase)
    else:
        raise FileNotFoundError(
            f"{folder} has neither tokenizer.json nor vocab.txt; it holds: {listing(folder)}; transformers writes a "
            "tokenizer.json: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    normalizer = definition.get("normalizer")
    if isinstance(normalizer, dict) and normalizer.get("type") == "BertNormalizer":
        given = {ours: settings.get(theirs) for ours, theirs in NORMALIZER_SETTINGS.items()}
        given["lowercase"] = given["lowercase"] if lowercase is None else lowercase
        definition["normalizer"] = normalizer | {ours: value for ours, value in given.items() if value is not None}
    elif lowercase is not None:
        raise ValueError(
            f"lowercase={lowercase} is not possible: the tokenizer of {folder} has no BertNormalizer to change"
        )
    prefix, byte_level = settings.get("add_prefix_space"), '"ByteLevel"' in json.dumps(definition.get("pre_tokenizer"))
    return with_prefix_space(definition, prefix) if byte_level and prefix is not None else definition


def with_prefix_space(definition: dict[str, Any], prefix: bool) -> dict[str, Any]:
    """A byte-level definition that puts a space before the first word of a text, or does not."""
    switch = '"add_prefix_space": '
    parts = json.dumps({name: definition.get(name) for name in ("pre_tokenizer", "post_processor")})
    changed = re.sub(f"{switch}(true|false)", switch + json.dumps(prefix), parts)
    return {**definition, **json.loads(changed)}


def build(definition: Mapping[str, Any], literal: bool, source: str) -> tokenizers.Tokenizer:
    """The library's tokenizer; literal: special tokens typed in a text are read as characters.

    Raises ValueError, naming `source`, for a definition that the library cannot use, or that no relative of BERT has.
    """
    try:
        backend = tokenizers.Tokenizer.from_str(json.dumps(definition))
        backend.encode("\U0001f71a", add_special_tokens=False)  # a rare sign: without an unknown token, this fails
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(
            f"{source}: tokenizers {tokenizers.__version__} cannot read this tokenizer.json: {error}"
        ) from None
    model = backend.model
    byte_level = '"ByteLevel"' in json.dumps(definition.get("pre_tokenizer"))
    if not ((isinstance(model, models.BPE) and byte_level) or isinstance(model, models.WordPiece | models.Unigram)):
        raise ValueError(
            f"{source} holds a {type(model).__name__} model{'' if byte_level else ' that is not byte-level'}; minibert "
            "supports WordPiece, byte-level BPE and Unigram models"
        )
    if isinstance(model, models.BPE):
        model.dropout = None  # merges are left out at random only in training
    processor = definition.get("post_processor") or {}
    for one in processor.get("processors") or [processor]:
        used = {item.get("SpecialToken", {}).get("id") for part in ("single", "pair") for item in one.get(part) or ()}
        if unknown := used - {None, *(one.get("special_tokens") or ())}:  # the library would panic
            raise ValueError(f"{source}: post_processor uses {', '.join(sorted(unknown))} without defining it")
    backend.encode_special_tokens = literal
    names = sorted(token.content for token in backend.get_added_tokens_decoder().values() if token.special)
    if literal and names and isinstance(model, models.Unigram):  # which has them as pieces: split a typed one
        patterns = "|".join(f"{re.escape(name[0])}(?={re.escape(name[1:])})" for name in names)
        apart = pre_tokenizers.Split(Regex(patterns), "merged_with_previous")
        steps = [step for step in (backend.pre_tokenizer, apart) if step is not None]
        backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return backend


# ---------------------------------------------------------------------------------------------------------------
# vocab.txt


def definition_from_vocab(path: Path, settings: Mapping[str, Any], lowercase: bool | None) -> dict[str, Any]:
    """The equivalent of tokenizer.json for BERT's original file: one piece per line, its id is the line number."""
    try:
        text = read_small(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}") from None
    vocab: dict[str, int] = {}
    for id, piece in enumerate(text.replace("\r\n", "\n").rstrip("\n").split("\n")):
        if piece == "" or piece in vocab:
            before = f" as on line {vocab[piece] + 1}" if piece else ""
            raise ValueError(f"{path}, line {id + 1} is {piece!r}{before}; every line must hold a different piece")
        vocab[piece] = id
    special = special_tokens(settings, str(path), vocab)
    # An uncased vocabulary has no upper-case pieces, apart from [CLS], [unused1] and the like.
    cased = any(piece != piece.lower() for piece in vocab if not piece.startswith("["))
    unset = lowercase is None and settings.get("do_lower_case") is None
    if unset and cased:
        warnings.warn(
            f"{path.parent} does not set do_lower_case, and its vocabulary has upper-case pieces: texts keep "
            "their case; pass lowercase=True or False to decide",
            stacklevel=4,
        )
    cls, sep = special["cls_token"], special["sep_token"]
    backend = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token=special["unk_token"]))
    names = dict.fromkeys(special.values())
    backend.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in names])
    backend.normalizer = normalizers.BertNormalizer(lowercase=not (unset and cased))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(token, vocab[token]) for token in dict.fromkeys((cls, sep))],
    )
    return dict(json.loads(backend.to_str()))
