"""The vocabularies that the relatives were released with, made into what tokenizer.json would say.

vocab.txt                                WordPiece: a piece a line, its id the line (BERT, ELECTRA)
vocab.json, merges.txt                   byte-level BPE: the ids of pieces, and pairs as they were learned (RoBERTa)
spiece.model, sentencepiece.bpe.model    unigram: SentencePiece's pieces with scores (ALBERT; XLM-R, CamemBERT)

They are read without trust: a ValueError names the file and the place.
"""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from minibert.extras import install_hint
from minibert.files import parse_json, read_small, shown
from minibert.text.tokenizer_settings import special_tokens

SENTENCEPIECE = ("Albert", "Camembert", "XLMRoberta")  # relatives whose ids of its pieces are known here
UNIGRAM, BYTE = 1, 6  # SentencePiece's numbers for a kind of model, and for a kind of piece
Pieces = list[tuple[str, float]]


def framed(backend: tokenizers.Tokenizer, special: Mapping[str, str], doubled: bool) -> dict[str, Any]:
    """The content of tokenizer.json, with the framing of BERT, or of RoBERTa (`doubled`)."""
    cls, sep = special["cls_token"], special["sep_token"]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} {sep} $B {sep}" if doubled else f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(token, backend.token_to_id(token)) for token in dict.fromkeys((cls, sep))],
    )
    definition: dict[str, Any] = json.loads(backend.to_str())
    return definition


def check_special(path: Path, vocab: Mapping[str, int], special: Mapping[str, str]) -> None:
    """Raise ValueError for a vocabulary without one of the special tokens."""
    for token in special.values():
        if token not in vocab:
            raise ValueError(f"{path} has no {token}; BERT needs {', '.join(special.values())}")


def as_added(settings: Mapping[str, Any], special: Mapping[str, str]) -> list[AddedToken]:
    """The special tokens as the library takes them. The mask takes the space before it along, unless settings say not.

    Pieces hold the space before their word, and so the space before a hidden word is hidden too.
    """
    stated = settings.get("mask_token")
    strip = bool(stated.get("lstrip")) if isinstance(stated, dict) else True
    mask = special["mask_token"]
    names = dict.fromkeys(special.values())
    return [AddedToken(name, lstrip=strip and name == mask, normalized=False, special=True) for name in names]


# ---------------------------------------------------------------------------------------------------------------
# vocab.txt


def definition_from_vocab(path: Path, settings: Mapping[str, Any], lowercase: bool | None) -> dict[str, Any]:
    """What tokenizer.json would say, from the file that BERT was released with: a piece a line, its id the line."""
    vocab = read_vocab(path)
    special = special_tokens(settings, vocab)
    check_special(path, vocab, special)
    if lowercase is None and settings.get("do_lower_case") is None:
        lowercase = guess_lowercase(path, vocab)
    backend = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token=special["unk_token"]))
    backend.add_special_tokens(sorted(special.values(), key=vocab.__getitem__))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase is not False)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return framed(backend, special, doubled=False)


def read_vocab(path: Path) -> dict[str, int]:
    """vocab.txt as piece to id. UTF-8 everywhere; CRLF, a byte order mark and blank lines at the end do no harm."""
    try:
        text = read_small(path).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}") from None
    vocab: dict[str, int] = {}
    for id, piece in enumerate(text.rstrip("\n").split("\n")):
        if piece == "":
            raise ValueError(f"{path}, line {id + 1} is empty; every line must hold one piece")
        if piece in vocab:
            raise ValueError(f"{path}, line {id + 1} repeats {piece!r} of line {vocab[piece] + 1}; pieces must differ")
        vocab[piece] = id
    return vocab


def guess_lowercase(path: Path, vocab: Iterable[str]) -> bool:
    """An uncased vocabulary has no upper-case pieces; [CLS] and [unused1] stand outside of that."""
    cased = any(piece != piece.lower() for piece in vocab if not piece.startswith("["))
    if cased:
        warnings.warn(
            f"{path.parent} does not say do_lower_case, and its vocabulary has upper-case pieces: texts keep "
            "their case; pass lowercase=True or False to decide",
            stacklevel=5,
        )
    return not cased


# ---------------------------------------------------------------------------------------------------------------
# vocab.json, merges.txt


def definition_from_merges(vocab_path: Path, merges_path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What tokenizer.json would say, from the two files that RoBERTa was released with."""
    vocab = read_vocab_json(vocab_path)
    merges = read_merges(merges_path, vocab)
    special = special_tokens(settings, vocab)
    check_special(vocab_path, vocab, special)
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    prefix = settings.get("add_prefix_space") or False
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(as_added(settings, special))
    sep, cls = ((special[role], vocab[special[role]]) for role in ("sep_token", "cls_token"))
    backend.post_processor = processors.RobertaProcessing(sep, cls, trim_offsets=True, add_prefix_space=prefix)
    definition: dict[str, Any] = json.loads(backend.to_str())
    return definition


def read_vocab_json(path: Path) -> dict[str, int]:
    """vocab.json: every id from 0 on, each with one piece."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(found := dict(pairs)) < len(pairs):
            names = [name for name, _ in pairs]
            raise ValueError(f"{next(name for name in found if names.count(name) > 1)!r} stands in it twice")
        return found

    try:
        vocab = parse_json(read_small(path).decode("utf-8-sig"), once)
    except ValueError as error:
        raise ValueError(f"{path} is not a vocabulary in JSON: {error}") from None
    if not isinstance(vocab, dict) or not vocab or not all(type(id) is int for id in vocab.values()):
        raise ValueError(f"{path} is {shown(vocab)}; it must give each piece its id")
    pieces: dict[int, str] = {}
    for piece, id in vocab.items():
        if (other := pieces.setdefault(id, piece)) != piece:
            raise ValueError(f"{path} gives {other!r} and {piece!r} the same id, {id}; each id must have one piece")
    if hole := next((id for id in range(len(vocab)) if id not in pieces), None):
        raise ValueError(f"{path} has {len(vocab)} pieces and none with id {hole}; every id from 0 on must have one")
    if 0 not in pieces:
        raise ValueError(f"{path} has no piece with id 0; every id from 0 on must have one")
    return vocab


def read_merges(path: Path, vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    """merges.txt: two pieces a line, in the order in which their merges were learned, below a line with the version."""
    try:
        lines = read_small(path).decode("utf-8-sig").replace("\r\n", "\n").rstrip("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}") from None
    merges = []
    for number, line in enumerate(lines, 1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        pair = line.split(" ")
        if len(pair) != 2:
            raise ValueError(f"{path}, line {number} is {shown(line)}; it must be two pieces with a space between")
        for piece in (*pair, "".join(pair)):
            if piece not in vocab:
                raise ValueError(f"{path}, line {number} has {piece!r}, which is not in the vocabulary beside it")
        merges.append((pair[0], pair[1]))
    if not merges:
        raise ValueError(f"{path} has no merges, and every word would be read byte by byte; fetch it again")
    return merges


# ---------------------------------------------------------------------------------------------------------------
# spiece.model, sentencepiece.bpe.model


def definition_from_pieces(path: Path, settings: Mapping[str, Any], relative: str) -> dict[str, Any]:
    """What tokenizer.json would say, from the file that SentencePiece wrote.

    relative: whose tokenizer it is, as its class in transformers begins, which says what the ids are. Raises
    ImportError, with the way to install it, without the package sentencepiece.
    """
    model = read_pieces(path)
    pieces: Pieces = [(piece.piece, piece.score) for piece in model.pieces]
    doubled = relative in ("XLMRoberta", "Camembert")
    if relative == "XLMRoberta":  # fairseq's ids: its own four first, then the model's without <unk>, <s> and </s>
        pieces = [(name, 0.0) for name in ("<s>", "<pad>", "</s>", "<unk>")] + pieces[3:] + [("<mask>", 0.0)]
    elif relative == "Camembert":  # the same, and <s> and </s> of the model are the ones that count
        first = [("<s>NOTUSED", 0.0), ("<pad>", 0.0), ("</s>NOTUSED", 0.0), ("<unk>", 0.0), ("<unk>NOTUSED", -100.0)]
        pieces = first + pieces[1:] + [("<mask>", 0.0)]
    elif relative == "Albert":  # the model's own ids; "1," is read as "1" and ","
        pieces = [
            (piece, score - 100 if piece[-1] == "," and piece[-2:-1].isdigit() else score) for piece, score in pieces
        ]
    else:
        raise ValueError(
            f"{path} is SentencePiece's, and which ids its pieces have is known for {', '.join(SENTENCEPIECE)}, not "
            f"for {relative}; save a tokenizer.json with transformers"
        )
    vocab = {piece: id for id, (piece, _) in enumerate(pieces)}
    special = special_tokens(settings, vocab)
    check_special(path, vocab, special)
    backend = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=vocab[special["unk_token"]], byte_fallback=False))
    steps: list[normalizers.Normalizer] = [] if doubled else albert_steps(settings)
    if charsmap := model.normalizer_spec.precompiled_charsmap:
        try:
            steps.append(normalizers.Precompiled(charsmap))
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"{path} is damaged: its table of characters cannot be read ({error})") from None
    backend.normalizer = steps[0] if len(steps) == 1 else normalizers.Sequence(steps)
    spaced = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaced])
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    backend.add_special_tokens(as_added(settings, special))
    return framed(backend, special, doubled)


def albert_steps(settings: Mapping[str, Any]) -> list[normalizers.Normalizer]:
    """What ALBERT does to a text first; settings may keep accents or case."""
    steps: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not settings.get("keep_accents"):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if settings.get("do_lower_case") is not False:
        steps.append(normalizers.Lowercase())
    return steps


def read_pieces(path: Path) -> Any:
    """SentencePiece's ModelProto. Raises ImportError without the package, ValueError for a file that is damaged."""
    content = read_small(path)
    try:
        sentencepiece = importlib.import_module("sentencepiece")
        protocol = importlib.import_module("sentencepiece.sentencepiece_model_pb2")
    except ImportError:
        raise ImportError(
            f"{path} is read with the packages sentencepiece and protobuf, which are not installed: "
            f"{install_hint('sentencepiece')}; or save a tokenizer.json with transformers"
        ) from None
    model = protocol.ModelProto()
    try:
        model.ParseFromString(content)
        sentencepiece.SentencePieceProcessor().LoadFromSerializedProto(content)
    except Exception as error:  # DecodeError of protobuf, or RuntimeError of the package
        raise ValueError(f"{path} is damaged, or not SentencePiece's: {str(error)[:200]}; fetch it again") from None
    if not model.pieces or not model.HasField("trainer_spec") or not model.HasField("normalizer_spec"):
        raise ValueError(f"{path} is cut off: it has {len(model.pieces)} pieces and no settings; fetch it again")
    kind = model.trainer_spec.model_type
    if kind != UNIGRAM or any(piece.type == BYTE for piece in model.pieces):
        what = "pieces for bytes" if kind == UNIGRAM else f"a model of kind {kind}"
        raise ValueError(f"{path} has {what}; the relatives of BERT have a unigram model (kind 1) without")
    return model
