"""The files of a tokenizer, read as untrusted input: the content of a tokenizer.json, or a ValueError with the file.

tokenizer.json            the vocabulary and rules, as the `tokenizers` library writes them
tokenizer_config.json     settings, and the class whose rules count (tokenizer_settings, tokenizer_classes)

Older folders of BERT, ELECTRA and RoBERTa have a vocabulary in place of tokenizer.json, whose content is made from it:

vocab.txt                 WordPiece: one piece per line, its id is the line number
vocab.json, merges.txt    byte-level BPE: ids by piece, and two pieces per line in the order in which they are merged

SentencePiece's files, the older ones of other relatives, are not read: transformers converts them.
"""

import json
import re
import warnings
from collections import ChainMap
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, models, pre_tokenizers

from minibert.config import Config
from minibert.text.tokenized import guarded
from minibert.text.tokenizer_classes import (
    AS_IS,
    CLASSES,
    NOT_USED,
    PARTS,
    as_json,
    class_of,
    with_rules,
)
from minibert.text.tokenizer_settings import (
    NORMALIZER_SETTINGS,
    SPECIAL_TOKENS,
    added_tokens,
    as_token,
    extra_tokens,
    named_tokens,
    special_tokens,
    stated_tokens,
)
from minibert.utils.files import JsonObject, listing, read_json, read_small
from minibert.utils.printing import brief

# ---------------------------------------------------------------------------------------------------------------
# A folder


def read_definition(folder: Path, settings: JsonObject, lowercase: bool | None) -> tuple[dict[str, Any], str]:
    """Return the content of tokenizer.json that gives the ids of transformers 5.23, and the class that reads it so.

    settings: of tokenizer_config.json, with a tokenizer_class. An explicit lowercase overrides them, and they override
    tokenizer.json. Raises ValueError, with the folder, for files that are damaged or of an unknown class.
    """
    source = str(folder)
    old = not (folder / "tokenizer.json").exists()
    name = class_of(settings["tokenizer_class"], source)
    definition = old_definition(folder, name) if old else read_json(folder / "tokenizer.json")
    with guarded(source):
        kind = model_type(definition["model"])
        pieces = vocabulary(definition["model"])
    if CLASSES.get(name, ("" if old else kind,))[0] != kind:
        name = "BertTokenizer" if old else AS_IS  # no class of transformers can read such files
    settings = {**(CLASSES[name][2] if name in CLASSES else {}), **settings}
    with guarded(source, "add the tokens of its files"):
        definition |= {"added_tokens": all_added_tokens(definition, folder, settings, name, pieces)}
    if name == "BertTokenizer":
        settings = with_casing(folder, settings, definition, lowercase)
    elif lowercase is not None:
        definition["normalizer"] = with_lowercase(definition.get("normalizer"), lowercase, source)
    if name == AS_IS:
        return definition, name
    vocab = ChainMap({token["content"]: token["id"] for token in definition["added_tokens"]}, pieces)
    special = special_tokens(settings, source, vocab)
    with guarded(source):
        rules = CLASSES[name][1](settings, definition, special, vocab)
        if old:
            definition |= {part: as_json(rules[part]) for part in PARTS}
            definition["model"] |= rules["model"]
        return with_rules(definition, rules), name


def old_definition(folder: Path, name: str) -> dict[str, Any]:
    """Return the definition of a folder without tokenizer.json. Raises FileNotFoundError if it has none."""
    if name == "RobertaTokenizer" and (folder / "merges.txt").exists():
        merges = [line for line in read_lines(folder / "merges.txt") if not line.startswith("#version")]
        model = {"type": "BPE", "vocab": read_json(folder / "vocab.json"), "merges": merges}
        return {"version": "1.0", "model": model}
    if (folder / "vocab.txt").exists():
        # As in transformers, a piece that is on several lines has the id of the last, and a blank line is a piece too.
        pieces = {piece: id for id, piece in enumerate(read_lines(folder / "vocab.txt"))}
        return {"version": "1.0", "model": {"type": "WordPiece", "vocab": pieces}}
    raise FileNotFoundError(
        f"{folder} has neither tokenizer.json nor vocab.txt; it holds: {listing(folder)}; transformers writes a "
        "tokenizer.json: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
    )


def model_type(model: JsonObject) -> str:
    """Return the type of a tokenizer.json's model, which old files leave out."""
    implied = "BPE" if "merges" in model else "Unigram" if isinstance(model.get("vocab"), list) else "WordPiece"
    return str(model.get("type") or implied)


def vocabulary(model: JsonObject) -> dict[str, int]:
    """Return the pieces of a tokenizer.json's model with their ids."""
    pieces = model["vocab"]
    return dict(pieces) if isinstance(pieces, dict) else {piece: id for id, (piece, _) in enumerate(pieces)}


def with_casing(folder: Path, settings: JsonObject, definition: JsonObject, lowercase: bool | None) -> dict[str, Any]:
    """Return the settings of BertTokenizer; what they leave open follows tokenizer.json, or the vocabulary.

    transformers would lower-case texts, strip accents and split Chinese whatever these files say, so a difference
    gives a warning.
    """
    normalizer = definition.get("normalizer")
    bert = isinstance(normalizer, dict) and normalizer.get("type") == "BertNormalizer"
    stated: dict[str, Any] = dict(normalizer or {}) if bert else {}
    if "normalizer" not in definition:  # vocab.txt: uncased without upper case, apart from [CLS], [unused1] and such
        pieces = [piece for piece in vocabulary(definition["model"]) if not piece.startswith("[")]
        stated = {"lowercase": all(piece == piece.lower() for piece in pieces)}
    upstream = {"lowercase": True, "strip_accents": None, "handle_chinese_chars": True}
    given = {theirs: settings.get(theirs) for theirs in NORMALIZER_SETTINGS.values()}
    given["do_lower_case"] = given["do_lower_case"] if lowercase is None else lowercase
    for ours, theirs in NORMALIZER_SETTINGS.items():
        if given[theirs] is not None or stated.get(ours, upstream[ours]) == upstream[ours]:
            continue
        given[theirs] = stated[ours]
        where = f"its tokenizer.json has {ours}={stated[ours]}" if bert else "its vocabulary has upper-case pieces"
        kept = "texts keep their case; pass lowercase=True or False to decide" if ours == "lowercase" else "that counts"
        warnings.warn(f"{folder} does not set {theirs}, and {where}: {kept}", stacklevel=5)
    return {**settings, **given}


def with_lowercase(normalizer: Any, lowercase: bool, source: str) -> dict[str, Any]:
    """Return a BertNormalizer with this casing. Raises ValueError for any other normalizer."""
    if isinstance(normalizer, dict) and normalizer.get("type") == "BertNormalizer":
        return normalizer | {"lowercase": lowercase}
    raise ValueError(
        f"lowercase={lowercase} is not possible: the tokenizer of {source} has no BertNormalizer to change"
    )


def all_added_tokens(
    definition: JsonObject, folder: Path, settings: JsonObject, name: str, pieces: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Return the added tokens of a tokenizer: from tokenizer.json, from the other files, and from its class."""
    present = definition.get("added_tokens") or []
    stated = stated_tokens(folder, settings, present)
    contents = {token.content for token in stated.values()}
    named = named_tokens(settings)
    if name != AS_IS:
        defaults = {
            role: [one for one in names if one in pieces or one in contents] for role, names in SPECIAL_TOKENS.items()
        }
        if name == "BertTokenizer":  # which adds its special tokens where a vocabulary lacks them
            defaults = {role: found or [SPECIAL_TOKENS[role][0]] for role, found in defaults.items()}
        named = named_tokens({role: names[0] for role, names in defaults.items() if names} | dict(settings))
    unknown = named["unk_token"].content if "unk_token" in named else ""
    if unknown and unknown not in pieces and unknown not in contents:
        del named["unk_token"]  # no token that is added can be the model's unknown one
    extra = extra_tokens(settings)
    if name == "CamembertTokenizer" and not isinstance(settings.get("extra_special_tokens"), list) and not extra:
        extra = [as_token(token) for token in NOT_USED]
    if name == "CamembertTokenizer" and isinstance(mask := settings.get("mask_token", "<mask>"), str):
        named["mask_token"] = as_token({"content": mask, "lstrip": True, "normalized": False})
    found = added_tokens(pieces, present if name == AS_IS else [], stated, named, extra)
    return present if found == sorted(present, key=lambda token: token["id"]) else found


def with_prefix_space(definition: dict[str, Any], prefix: bool) -> dict[str, Any]:
    """Return a byte-level definition that puts a space before the first word of a text, or does not."""
    switch = '"add_prefix_space": '
    parts = json.dumps({name: definition.get(name) for name in ("pre_tokenizer", "post_processor")})
    changed = re.sub(f"{switch}(true|false)", switch + json.dumps(prefix), parts)
    return {**definition, **json.loads(changed)}


def build(definition: JsonObject, literal: bool, split: bool, source: str) -> tokenizers.Tokenizer:
    """Return the library's tokenizer; literal: special tokens typed in a text are read as characters.

    split: the same as transformers' split_special_tokens, which still finds them as pieces of a Unigram model.

    Raises ValueError, naming `source`, for a definition that the library cannot use, or that no relative of BERT has.
    """
    with guarded(source):
        backend = tokenizers.Tokenizer.from_str(json.dumps(definition))
        backend.encode("\U0001f71a", add_special_tokens=False)  # a rare sign: without an unknown token, this fails
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
    backend.encode_special_tokens = literal or split
    names = sorted(token.content for token in backend.get_added_tokens_decoder().values() if token.special)
    if literal and names and isinstance(model, models.Unigram):  # which has them as pieces: split a typed one
        patterns = "|".join(f"{re.escape(name[0])}(?={re.escape(name[1:])})" for name in names)
        apart = pre_tokenizers.Split(Regex(patterns), "merged_with_previous")
        steps = [step for step in (backend.pre_tokenizer, apart) if step is not None]
        backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return backend


def check_literal(backend: tokenizers.Tokenizer, special: Iterable[str], control: Container[int], source: str) -> None:
    """Raise ValueError if the text of a special token becomes a control token even if it is read literally."""
    with guarded(source):
        encodings = backend.encode_batch(list(special), add_special_tokens=False)
    for one in encodings:
        if control_tokens := [token for token, id in zip(one.tokens, one.ids, strict=True) if id in control]:
            raise ValueError(
                "special_tokens_in_text='literal' is not possible with this vocabulary: "
                f"the word {brief(control_tokens[0])} itself is a special token; use 'parse'"
            )


def check_fits(definition: JsonObject, vocab: Mapping[str, int], pads: int, config: Config, source: str) -> None:
    """Raise ValueError, naming `source`, for a tokenizer with more tokens than the model has, or another padding."""
    tokens = 1 + max(id for token, id in vocab.items() if token)  # a blank line of vocab.txt needs no row
    if tokens <= config.vocab_size and (not config.architecture.first_position or pads == config.pad_token_id):
        return
    beyond = [token["content"] for token in definition["added_tokens"] if token["id"] >= config.vocab_size]
    added = f", or the model has no rows for the added tokens {brief(beyond)}" if beyond else ""
    if "[MASK]" in beyond:
        added += '; where nothing is to be masked, "mask_token": "[UNK]" in tokenizer_config.json makes it unnecessary'
    raise ValueError(
        f"the tokenizer of {source} has {tokens} tokens and pads with id {pads}, by config.json the model has "
        f"{config.vocab_size} (vocab_size) and pads with id {config.pad_token_id} (pad_token_id); the files belong "
        f"to different checkpoints{added}"
    )


# ---------------------------------------------------------------------------------------------------------------
# Vocabularies in lines


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file, which ends with a line break or without. Raises ValueError if it is not UTF-8."""
    try:
        text = read_small(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}") from None
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")
