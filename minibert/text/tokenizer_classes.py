"""The rules of transformers' tokenizer classes, 5.23: what each builds around a vocabulary.

    BertTokenizer          clean, lower-case, split at white space and punctuation      WordPiece
    RobertaTokenizer       split as GPT-2, bytes as characters                          byte-level BPE
    XLMRobertaTokenizer    SentencePiece's table, split at white space, ▁ before words  Unigram
    CamembertTokenizer     the same                                                     Unigram
    AlbertTokenizer        the same after lower-casing and dropping accents             Unigram

These classes use the vocabulary, the merges and SentencePiece's table of a tokenizer.json, and ignore its other rules.
PreTrainedTokenizerFast uses all of tokenizer.json as it is.
"""

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers, processors

from minibert.config import Config
from minibert.text.tokenizer_settings import NORMALIZER_SETTINGS, as_token
from minibert.utils.files import JsonObject
from minibert.utils.printing import brief

AS_IS = "PreTrainedTokenizerFast"
# Other names that transformers has for these classes, without "Fast" at the end.
ALIASES = {
    **dict.fromkeys(("DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer"), "BertTokenizer"),
    **dict.fromkeys(("SqueezeBertTokenizer", "LxmertTokenizer"), "BertTokenizer"),
    **dict.fromkeys(("LongformerTokenizer", "BartTokenizer"), "RobertaTokenizer"),
    **dict.fromkeys(("PreTrainedTokenizer", "TokenizersBackend", "PythonBackend"), AS_IS),
}
PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
# Part of a tokenizer.json -> component of the library; "model" -> settings of the model.
Rules = dict[str, Any]


def bert(settings: JsonObject, file: JsonObject, special: Mapping[str, str], vocab: Any) -> Rules:
    """Return the rules of BertTokenizer (transformers.models.bert.tokenization_bert)."""
    cls, sep = special["cls_token"], special["sep_token"]
    given = {ours: settings.get(theirs) for ours, theirs in NORMALIZER_SETTINGS.items()}
    unknown = special["unk_token"]
    return {
        "model": {"unk_token": unknown, "continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
        "normalizer": normalizers.BertNormalizer(**{name: one for name, one in given.items() if one is not None}),
        "pre_tokenizer": pre_tokenizers.BertPreTokenizer(),
        "post_processor": processors.TemplateProcessing(
            single=f"{cls} $A {sep}",
            pair=f"{cls} $A {sep} $B:1 {sep}:1",
            special_tokens=[(token, vocab[token]) for token in dict.fromkeys((cls, sep))],
        ),
        "decoder": decoders.WordPiece(),
    }


def roberta(settings: JsonObject, file: JsonObject, special: Mapping[str, str], vocab: Any) -> Rules:
    """Return the rules of RobertaTokenizer (transformers.models.roberta.tokenization_roberta)."""
    sep, cls = ((special[role], vocab[special[role]]) for role in ("sep_token", "cls_token"))
    prefix = settings.get("add_prefix_space", False)
    return {
        "model": {
            **dict.fromkeys(("unk_token", "dropout", "continuing_subword_prefix", "end_of_word_suffix")),
            **dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), False),
        },
        "normalizer": None,
        "pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=prefix),
        "post_processor": processors.RobertaProcessing(sep, cls, settings.get("trim_offsets", True), prefix),
        "decoder": decoders.ByteLevel(),
    }


def xlm_roberta(settings: JsonObject, file: JsonObject, special: Mapping[str, str], vocab: Any) -> Rules:
    """Return the rules of XLMRobertaTokenizer (transformers.models.xlm_roberta.tokenization_xlm_roberta)."""
    bos, eos = (as_token(settings[role]).content for role in ("bos_token", "eos_token"))
    scheme = "always" if settings.get("add_prefix_space", True) else "never"
    spaces = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    table = charsmap(file)
    return {
        "model": {"unk_id": 3, "byte_fallback": False},
        "normalizer": table and normalizers.Precompiled(table),
        "pre_tokenizer": pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces]),
        "post_processor": processors.TemplateProcessing(
            single=[bos, "$A", eos],
            pair=[bos, "$A", eos, eos, "$B", eos],
            special_tokens=[(token, vocab[token]) for token in dict.fromkeys((bos, eos))],
        ),
        "decoder": decoders.Metaspace(prepend_scheme=scheme),
    }


def camembert(settings: JsonObject, file: JsonObject, special: Mapping[str, str], vocab: Any) -> Rules:
    """Return the rules of CamembertTokenizer (transformers.models.camembert.tokenization_camembert)."""
    rules = xlm_roberta(settings, file, special, vocab)
    first = next((id for id, (piece, _) in enumerate(file["model"]["vocab"]) if piece == special["unk_token"]), 0)
    return rules | {"model": {"unk_id": first, "byte_fallback": False}}


def albert(settings: JsonObject, file: JsonObject, special: Mapping[str, str], vocab: Any) -> Rules:
    """Return the rules of AlbertTokenizer (transformers.models.albert.tokenization_albert)."""
    rules = xlm_roberta(settings, file, special, vocab)
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not settings.get("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if settings.get("do_lower_case", True):
        steps.append(normalizers.Lowercase())
    if rules["normalizer"] is not None:
        steps.append(rules["normalizer"])
    del rules["post_processor"]  # the one in the file counts
    return rules | {"model": {"unk_id": 1, "byte_fallback": False}, "normalizer": normalizers.Sequence(steps)}


# The type of the class's model, its rules, and the special tokens that it has unless settings name others.
FAIRSEQ = {"bos_token": "<s>", "eos_token": "</s>"}
NOT_USED = ["<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"]  # of CamembertTokenizer
CLASSES: dict[str, tuple[str, Callable[..., Rules], dict[str, Any]]] = {
    "BertTokenizer": ("WordPiece", bert, {}),
    "RobertaTokenizer": ("BPE", roberta, FAIRSEQ),
    "XLMRobertaTokenizer": ("Unigram", xlm_roberta, FAIRSEQ),
    "CamembertTokenizer": ("Unigram", camembert, FAIRSEQ),
    "AlbertTokenizer": ("Unigram", albert, {"bos_token": "[CLS]", "eos_token": "[SEP]"}),
}


def stated_class(settings: JsonObject, config: Config) -> str:
    """Return the tokenizer_class of a checkpoint, from tokenizer_config.json, config.json or the model_type."""
    own = f"{config.family.upstream}Tokenizer"
    default = own if own in [*CLASSES, *ALIASES] else "BertTokenizer"
    return settings.get("tokenizer_class") or config.extra.get("tokenizer_class") or default


def class_of(name: object, source: str) -> str:
    """Return the class that transformers 5.23 has under this name. Raises ValueError for a name it does not know."""
    known = [*CLASSES, *ALIASES, AS_IS]
    short = name if name == AS_IS else str(name).removesuffix("Fast")
    if short not in known:
        raise ValueError(
            f"{source} has tokenizer_class {brief(name)}, whose rules minibert does not have; it has "
            f"{', '.join(known)}; if tokenizer.json holds all of its rules, set tokenizer_class to {AS_IS!r}"
        )
    return ALIASES.get(short, short)


def charsmap(file: JsonObject) -> bytes | None:
    """Return SentencePiece's table of characters in the normalizer of a tokenizer.json, None if it has none."""
    normalizer = file.get("normalizer") or {}
    steps = normalizer["normalizers"] if normalizer.get("type") == "Sequence" else [normalizer]
    tables = [one["precompiled_charsmap"] for one in steps if one.get("type") == "Precompiled"]
    return base64.b64decode(tables[0]) if tables else None


def as_json(component: Any) -> Any:
    """Return a component of the library as tokenizer.json has it."""
    return None if component is None else json.loads(component.__getstate__())


def with_rules(definition: JsonObject, rules: Rules) -> dict[str, Any]:
    """Return the definition with the rules of its class; what says the same in other words stays as it is."""
    stub = {"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "vocab": {}, "unk_token": ""}}
    given = {name: definition.get(name) for name in PARTS}
    parsed = tokenizers.Tokenizer.from_str(json.dumps(stub | given))
    changed = dict(definition)
    for name in PARTS:
        # Without a post_processor texts have the template of their class anyway (tokenized.read_template).
        trims = isinstance(rules.get(name), processors.RobertaProcessing)
        implied = name == "post_processor" and given[name] is None and not trims
        if name in rules and not implied and as_json(getattr(parsed, name)) != as_json(rules[name]):
            changed[name] = as_json(rules[name])
    model = definition["model"]
    other = {key: value for key, value in rules["model"].items() if (model.get(key, value) or None) != (value or None)}
    return changed | ({"model": model | other} if other else {})
