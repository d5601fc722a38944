"""The files of a tokenizer, read without trust: what a Tokenizer is made of, or a ValueError with file and key.

tokenizer.json is everything, as the `tokenizers` library writes it; older folders have a vocabulary (vocabularies.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from minibert.checkpoints.tensor_files import listing
from minibert.config import Config
from minibert.files import read_json, shown
from minibert.text.tokenizer_settings import DEFAULT_MAX_LENGTH, NORMALIZER_SETTINGS
from minibert.text.vocabularies import (
    SENTENCEPIECE,
    definition_from_merges,
    definition_from_pieces,
    definition_from_vocab,
)

KINDS = ("WordPiece", "BPE", "Unigram")


def lengths(
    folder: Path, config: Config, definition: Mapping[str, Any], settings: Mapping[str, Any]
) -> tuple[int, int]:
    """The max_length of a checkpoint and the most it can take; checks that the vocabulary fits the model, too."""
    stated = settings.get("model_max_length") or DEFAULT_MAX_LENGTH  # 1e30 where nobody knows
    added = [token["id"] for token in definition["added_tokens"]]
    vocab = definition["model"]["vocab"]
    ids = vocab.values() if isinstance(vocab, dict) else [len(vocab) - 1]
    tokens = 1 + max([*ids, *added])
    if tokens > config.vocab_size:
        raise ValueError(
            f"the tokenizer of {folder} has {tokens} tokens, the model only {config.vocab_size} "
            "(vocab_size in config.json); the files belong to different checkpoints"
        )
    return int(min(DEFAULT_MAX_LENGTH, stated, config.max_tokens)), config.max_tokens


def check_padding(folder: Path, config: Config, pad_id: int) -> None:
    """Raise ValueError where padding is another id for the model, and positions depend on it."""
    if config.first_position and pad_id != config.pad_token_id:
        raise ValueError(
            f"the tokenizer of {folder} fills rows up with id {pad_id}, and the model gives all but id "
            f"{config.pad_token_id} (pad_token_id in config.json) a position; the files belong to different checkpoints"
        )


def relative_of(config: Config, settings: Mapping[str, Any]) -> str:
    """What the tokenizer's class in transformers begins with: as tokenizer_config.json says, or as the model's does."""
    stated = str(settings.get("tokenizer_class")).removesuffix("Fast").removesuffix("Tokenizer")
    return stated if stated in SENTENCEPIECE else config.family.upstream


def flat(part: Any, name: str) -> Iterator[dict[str, Any]]:
    """A part of tokenizer.json, such as its normalizer, step by step; name: that of the steps of a Sequence."""
    steps = part.get(name) if isinstance(part, dict) and part.get("type") == "Sequence" else None
    if isinstance(steps, list):
        for step in steps:
            yield from flat(step, name)
    elif isinstance(part, dict):
        yield part


# ---------------------------------------------------------------------------------------------------------------
# tokenizer.json


def read_definition(
    folder: Path, settings: Mapping[str, Any], lowercase: bool | None, relative: str = "Bert"
) -> dict[str, Any]:
    """The content of tokenizer.json, or what it would be for an older vocabulary, with the casing that counts.

    An explicit lowercase wins over tokenizer_config.json, and that over tokenizer.json, as in transformers. relative:
    whose tokenizer it is, which only SentencePiece's files need, see definition_from_pieces.
    """
    sentencepiece = [folder / name for name in ("sentencepiece.bpe.model", "spiece.model") if (folder / name).exists()]
    if (folder / "tokenizer.json").exists():
        definition = read_json(folder / "tokenizer.json")
        definition["added_tokens"] = definition.get("added_tokens") or []
        check_definition(definition, folder / "tokenizer.json")
    elif (folder / "vocab.txt").exists():
        definition = definition_from_vocab(folder / "vocab.txt", settings, lowercase)
    elif (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
        definition = definition_from_merges(folder / "vocab.json", folder / "merges.txt", settings)
    elif sentencepiece:
        definition = definition_from_pieces(sentencepiece[0], settings, relative)
    else:
        raise FileNotFoundError(
            f"{folder} has neither tokenizer.json nor vocab.txt; it holds: {listing(folder)}; read are also "
            "vocab.json with merges.txt, spiece.model, and sentencepiece.bpe.model"
        )
    return with_settings(definition, settings, lowercase)


def with_settings(definition: dict[str, Any], settings: Mapping[str, Any], lowercase: bool | None) -> dict[str, Any]:
    """The definition with the casing and the prefix space that count."""
    normalizer = definition.get("normalizer") or {}
    steps = list(flat(normalizer, "normalizers"))
    if normalizer.get("type") == "BertNormalizer":
        given = {ours: settings.get(theirs) for ours, theirs in NORMALIZER_SETTINGS.items()}
        if lowercase is not None:
            given["lowercase"] = lowercase
        definition["normalizer"] = normalizer | {ours: value for ours, value in given.items() if value is not None}
    elif kind_of(definition["model"]) == "Unigram" and len(steps) > 1:  # ALBERT's
        lower = settings.get("do_lower_case") if lowercase is None else lowercase
        if lower is not None:
            steps = [step for step in steps if step.get("type") != "Lowercase"]
            at = next((i for i, step in enumerate(steps) if step.get("type") == "Precompiled"), len(steps))
            steps[at:at] = [{"type": "Lowercase"}] * lower
            definition["normalizer"] = {"type": "Sequence", "normalizers": steps}
    elif lowercase is not None:
        raise ValueError(
            f"lowercase={lowercase} is not possible: this tokenizer.json has the normalizer "
            f"{normalizer.get('type')}, not BertNormalizer"
        )
    if (prefix := settings.get("add_prefix_space")) is not None and kind_of(definition["model"]) == "BPE":
        definition = with_prefix_space(definition, prefix)
    return definition


def with_prefix_space(definition: Mapping[str, Any], prefix: bool) -> dict[str, Any]:
    """A byte-level definition in which the first word of a text is, or is not, as one in the middle."""

    def changed(part: Any) -> Any:
        if isinstance(part, list):
            return [changed(step) for step in part]
        if isinstance(part, dict) and part.get("type") in ("ByteLevel", "RobertaProcessing"):
            return part | {"add_prefix_space": prefix}
        return {key: changed(value) for key, value in part.items()} if isinstance(part, dict) else part

    return {**definition, **{part: changed(definition.get(part)) for part in ("pre_tokenizer", "post_processor")}}


def kind_of(model: Mapping[str, Any]) -> str:
    """The kind of a model of tokenizer.json; older files do not name it."""
    kind = "BPE" if "merges" in model else "Unigram" if "unk_id" in model else "WordPiece"
    return str(model.get("type") or kind)


def check_definition(definition: Mapping[str, Any], path: Path) -> None:
    """Raise ValueError, naming the file and the key, for what we read of tokenizer.json; the library reads the rest."""
    model, normalizer, added = definition.get("model"), definition.get("normalizer"), definition["added_tokens"]
    if not isinstance(model, dict):
        raise ValueError(f"{path}: model is {shown(model)}; it must be an object")
    kind, splitters = kind_of(model), flat(definition.get("pre_tokenizer"), "pretokenizers")
    if kind not in KINDS or (kind == "BPE" and all(step.get("type") != "ByteLevel" for step in splitters)):
        raise ValueError(
            f"{path} holds a {kind} model{' that is not byte-level' * (kind == 'BPE')}; minibert reads WordPiece, "
            "byte-level BPE and Unigram models with a vocabulary"
        )
    check_vocab(model, kind, path)
    if not isinstance(normalizer, dict | None):
        raise ValueError(f"{path}: normalizer is {shown(normalizer)}; it must be an object or null")
    if not isinstance(added, list) or not all(
        isinstance(token, dict) and type(token.get("id")) is int for token in added
    ):
        raise ValueError(f"{path}: added_tokens is {shown(added)}; it must be a list of tokens, each with its id")


def check_vocab(model: Mapping[str, Any], kind: str, path: Path) -> None:
    """Raise ValueError for a vocabulary of another form than that of this kind of model."""
    vocab = model.get("vocab")
    if kind != "Unigram":
        if not isinstance(vocab, dict) or not vocab or not all(type(id) is int for id in vocab.values()):
            raise ValueError(f"{path}: model.vocab is {shown(vocab)}; it must give each token its id")
        return
    if not isinstance(vocab, list) or not all(
        isinstance(piece, list) and len(piece) == 2 and isinstance(piece[0], str) and type(piece[1]) in (int, float)
        for piece in vocab
    ):
        raise ValueError(f"{path}: model.vocab is {shown(vocab)}; it must be a list of pieces, each with its score")
    unknown = model.get("unk_id")
    if type(unknown) is not int or not 0 <= unknown < len(vocab):
        raise ValueError(
            f"{path}: model.unk_id is {shown(unknown)}; it must be the id of the piece for what the {len(vocab)} "
            "pieces of model.vocab do not have"
        )
