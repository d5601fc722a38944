"""tokenizer_config.json and the older files beside it: the settings of a tokenizer, its special and its added tokens.

    tokenizer_config.json      settings, names of special tokens, tokens that were added
    special_tokens_map.json    older: names of special tokens, unless tokenizer_config.json has added_tokens_decoder
    added_tokens.json          older: tokens that were added, with their ids

A setting that changes ids is applied as transformers 5.23 applies it, or refused (UNSUPPORTED). A test lists all keys
that transformers reads, and for the others why they change no ids.
"""

from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from minibert.utils.files import JsonObject, read_json
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
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")  # as in upstream
# The settings of the library's BertNormalizer, and their names in tokenizer_config.json.
NORMALIZER_SETTINGS = {
    "lowercase": "do_lower_case",
    "strip_accents": "strip_accents",
    "handle_chinese_chars": "tokenize_chinese_chars",
}

# These replace a vocabulary or a rule by a value that only Python code can make, or by another file.
UNSUPPORTED = {
    *("vocab", "merges", "tokenizer_object", "gguf_file", "post_processor", "init_inputs"),
    *("tokenizer_truncation", "_json_truncation", "_spm_precompiled_charsmap", "fast_tokenizer_files"),
}


def read_settings(folder: Path) -> dict[str, Any]:
    """Return tokenizer_config.json, with the special tokens of special_tokens_map.json where transformers reads it.

    Raises ValueError or TypeError, with the file, for a value of another kind and for a key that is not supported.
    """
    settings: dict[str, Any] = {}
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if "added_tokens_decoder" not in settings and (path := folder / name).exists():
            content = read_json(path)
            check_settings(content, str(path))
            settings |= content
            older = "additional_special_tokens" in settings and not settings.get("extra_special_tokens")
            if older and name == "tokenizer_config.json":
                settings["extra_special_tokens"] = settings.pop("additional_special_tokens")
            if isinstance(settings.get("extra_special_tokens"), dict):
                own = settings.get("model_specific_special_tokens") or {}
                settings["model_specific_special_tokens"] = own | settings.pop("extra_special_tokens")
    if "extra_special_tokens" in settings:  # also an empty list counts
        settings.pop("additional_special_tokens", None)
    return settings


def check_settings(settings: JsonObject, source: str) -> None:
    """Raise ValueError or TypeError, naming `source`, for a value of another kind or a key that is not supported."""
    special_tokens(settings, source)
    most = settings.get("model_max_length") or settings.get("max_len") or DEFAULT_MAX_LENGTH
    check_number(f"{source}: model_max_length", most, float, 3, None)  # [CLS], a token of text, [SEP]
    choices = {"truncation_side": ("left", "right"), "split_special_tokens": (True, False)}
    for key, values in choices.items():
        if settings.get(key) not in (None, *values):
            raise ValueError(f"{source}: {key} is {brief(settings[key])}; it must be {' or '.join(map(str, values))}")
    if not isinstance(names := settings.get("model_input_names"), list | None):
        raise ValueError(f"{source}: model_input_names is {brief(names)}; it must be a list of names")
    for key in ("additional_special_tokens", "extra_special_tokens"):
        if not isinstance(settings.get(key), list | dict | None):
            raise ValueError(
                f"{source}: {key} is {brief(settings[key])}; it must be a list of tokens, or tokens by name"
            )
    for key in sorted(UNSUPPORTED & settings.keys()):
        if settings[key] not in (None, []):
            raise ValueError(
                f"{source} has {key}, which changes how texts are tokenized and which minibert does not support; save "
                "the tokenizer with transformers: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
            )


# ---------------------------------------------------------------------------------------------------------------
# Special tokens


def special_tokens(settings: JsonObject, source: str, vocab: Container[str] | None = None) -> dict[str, str]:
    """Return the five special tokens by role; settings have each as a str or as {"content": str, ...}.

    A missing one is the first default name that is in the vocabulary, else BERT's. Raises ValueError, naming
    `source`, for one that is not a str or not in the vocabulary.
    """
    tokens = {}
    for role, names in SPECIAL_TOKENS.items():
        given = settings.get(role)
        default = next((name for name in names if name in (vocab or ())), names[0])
        token = given.get("content") if isinstance(given, dict) else given or default
        if not isinstance(token, str) or (vocab is not None and token not in vocab):
            raise ValueError(f"{source}: {role} is {brief(token)}; it must be a token that the vocabulary has")
        tokens[role] = token
    return tokens


def as_token(value: Any) -> AddedToken:
    """Return a special token of a file: a str, or {"content": str, "lstrip": bool, ...}."""
    if isinstance(value, str):
        return AddedToken(value, special=True)
    return as_added({"special": True} | value)


def named_tokens(settings: JsonObject) -> dict[str, AddedToken]:
    """Return the special tokens that settings name, by role, in the order in which transformers adds them."""
    own = {key: value for key, value in settings.items() if key.endswith("_token") and key not in NAMED}
    extra = settings.get("extra_special_tokens")
    groups = [own, settings.get("model_specific_special_tokens") or {}, extra if isinstance(extra, dict) else {}]
    named = {role: settings[role] for role in NAMED if settings.get(role)}
    for group in groups:
        named |= {role: value for role, value in group.items() if isinstance(value, str | dict)}
    return {role: as_token(value) for role, value in named.items()}


def extra_tokens(settings: JsonObject) -> list[AddedToken]:
    """Return the special tokens without a role: additional_special_tokens, in transformers 5 extra_special_tokens."""
    tokens = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []
    return [] if isinstance(tokens, dict) else [as_token(value) for value in tokens]


def with_side(settings: JsonObject, definition: JsonObject) -> dict[str, Any]:
    """Return the settings with the truncation_side of a tokenizer.json, unless they have their own."""
    truncation = definition.get("truncation")
    left = isinstance(truncation, dict) and truncation.get("direction") == "Left"
    return {**settings, "truncation_side": "left"} if left and not settings.get("truncation_side") else dict(settings)


def saved_settings(settings: JsonObject, definition: JsonObject) -> dict[str, Any]:
    """Return the settings as tokenizer_config.json has them beside this tokenizer.json, which has the added tokens."""
    saved: dict[str, Any] = {"tokenizer_class": "BertTokenizer"} | dict(settings)
    for key, value in saved.items():
        if key.endswith("_token") and isinstance(value, dict):
            saved[key] = value["content"]
    if extra := extra_tokens(saved):  # the older name is read by transformers 4, too
        saved.pop("extra_special_tokens", None)
        saved["additional_special_tokens"] = [token.content for token in extra]
    if "added_tokens_decoder" in saved:
        tokens = definition["added_tokens"]
        keys = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
        saved["added_tokens_decoder"] = {str(one["id"]): {key: one[key] for key in keys} for one in tokens}
    normalizer = definition.get("normalizer") or {}
    return saved | {theirs: normalizer[ours] for ours, theirs in NORMALIZER_SETTINGS.items() if ours in normalizer}


# ---------------------------------------------------------------------------------------------------------------
# Added tokens


def as_added(entry: JsonObject) -> AddedToken:
    """Return an added token of a file, {"content": str, "lstrip": bool, ...}, with or without its id."""
    return AddedToken(entry["content"], **{key: entry[key] for key in entry if key not in ("id", "content", "__type")})


def stated_tokens(folder: Path, settings: JsonObject, content: Iterable[JsonObject]) -> dict[int, AddedToken]:
    """Return the added tokens that files state with an id; content: the added_tokens of tokenizer.json.

    They come from added_tokens_decoder, or without it from added_tokens.json and tokenizer.json, as in transformers.
    """
    if "added_tokens_decoder" in settings:
        return {int(id): as_added(token) for id, token in settings["added_tokens_decoder"].items()}
    by_id: dict[int, AddedToken] = {}
    if (path := folder / "added_tokens.json").exists():
        extra = settings.get("extra_special_tokens")
        extra = extra if isinstance(extra, list) else []
        roles = {role: settings[role] for role in NAMED if settings.get(role)}
        special = {token.content for token in named_tokens(roles).values()}
        special |= {token for token in extra if isinstance(token, str)}  # as upstream, which overlooks the others
        for token, id in read_json(path).items():
            by_id[id] = AddedToken(token, normalized=token not in special, special=token in special)
    for entry in content:
        by_id[entry["id"]] = as_added(entry)
    return by_id


def added_tokens(
    vocab: Mapping[str, int],
    present: Iterable[JsonObject],
    stated: Mapping[int, AddedToken],
    named: Mapping[str, AddedToken],
    extra: Iterable[AddedToken],
) -> list[dict[str, Any]]:
    """Return the added_tokens of a tokenizer.json: what transformers 5.23 makes of the tokens that files state or name.

    vocab: the pieces of the model. present: the tokens that are added already. A token that is a piece keeps its id;
    any other gets the next free one, whatever id the file states. (TokenizersBackend.__init__)
    """
    by_id = numbered(vocab, {}, [as_added(entry) for entry in present])
    by_content = {token.content: token for token in stated.values()}
    named = {role: by_content.get(token.content, token) for role, token in named.items()}
    known = {repr(token) for token in by_id.values()}
    new = [token for _, token in sorted(stated.items()) if repr(token) not in known]
    contents = {token.content for token in [*by_id.values(), *new]}
    for token in [*named.values(), *extra]:
        if token.content not in contents:  # one that has a role and is listed as well has the flags of the list
            new.append(token)
    roles = {token.content for token in named.values()}
    for token in new:
        token.special = token.special or token.content in roles
    return [{"id": id, **token.__getstate__()} for id, token in sorted(numbered(vocab, by_id, new).items())]


def numbered(
    vocab: Mapping[str, int], known: Mapping[int, AddedToken], new: Iterable[AddedToken]
) -> dict[int, AddedToken]:
    """Return added tokens by id, known and new ones, as the library numbers them (AddedVocabulary.add_tokens)."""
    by_id = dict(known)
    ids = {token.content: id for id, token in known.items()}
    free = max([len(vocab), *(id + 1 for id in known)])
    for token in new:
        if token.content:
            id = ids.setdefault(token.content, vocab.get(token.content, free))
            by_id[id] = token
            free = max(free, id + 1)
    return by_id
