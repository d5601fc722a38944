"""A checkpoint of a few words, with its tokenizer, and labelled texts that are easy to tell apart."""

import json
from pathlib import Path
from typing import Any

from minibert.text.wordpiece import SPECIAL_TOKENS
from support.models import write_checkpoint

GOOD, BAD, OTHER = ["good", "fine", "lovely"], ["bad", "dull", "awful"], ["film", "book", "play", "meal", "very", "the"]
WORDS = GOOD + BAD + OTHER


def write_words_checkpoint(folder: Path, family: str = "bert", head: str | None = None, **sizes: Any) -> Path:
    """A random checkpoint whose vocabulary is WORDS and the letters."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    vocabulary = [*SPECIAL_TOKENS, *WORDS, *letters, *("##" + letter for letter in letters)]
    write_checkpoint(folder, family, head, **{"vocab_size": len(vocabulary), "num_labels": 2} | sizes)
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    return folder


def labelled(rows: int = 24) -> tuple[list[str], list[str]]:
    """Texts with a good or a bad word, in turn, and the label "pos" or "neg"."""
    texts = []
    for row in range(rows):
        words = BAD if row % 2 else GOOD
        texts.append(f"the {OTHER[row % 4]} very {words[row % 3]} {OTHER[row // 4 % 4]}")
    return texts, ["neg" if row % 2 else "pos" for row in range(rows)]


def write_tsv(path: Path, rows: int = 24) -> Path:
    texts, labels = labelled(rows)
    lines = [f"{text}\t{label}\n" for text, label in zip(texts, labels, strict=True)]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def as_before_2021(folder: Path, inner: str = "0_BERT", module: str = "BERT") -> Path:
    """The same folder as sentence-transformers wrote it then, with the Transformer in a folder of its own."""
    apart = folder / inner
    apart.mkdir()
    modules = json.loads((folder / "modules.json").read_text())
    modules[0] |= {"path": inner, "type": f"sentence_transformers.models.{module}"}
    for path in [path for path in folder.iterdir() if path.is_file() and not path.name.startswith("config_sentence")]:
        path.rename(apart / path.name)
    (apart / "modules.json").unlink()
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "config.json").write_text('{"__version__": "0.2.0"}')
    return folder


def state_vectors(
    folder: Path, pooling: str | None = "mean", normalize: bool = True, max_length: int = 12, newer: bool = False
) -> Path:
    """Files beside a checkpoint that state how its vectors are made, as sentence-transformers 2.0 or 6.2 writes them.

    pooling: None names none.
    """
    package = "sentence_transformers"
    types = {
        "": (f"{package}.models.Transformer", f"{package}.base.modules.transformer.Transformer"),
        "1_Pooling": (f"{package}.models.Pooling", f"{package}.sentence_transformer.modules.pooling.Pooling"),
        "2_Normalize": (f"{package}.models.Normalize", f"{package}.base.modules.normalize.Normalize"),
    }
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": names[newer]}
        for number, (path, names) in enumerate(types.items())
    ]
    older = {f"pooling_mode_{mode}": pooling and mode.startswith(pooling) for mode in ("cls_token", "mean_tokens")}
    older |= {"pooling_mode_max_tokens": pooling == "max", "word_embedding_dimension": 24}
    files = {
        "modules.json": modules if normalize else modules[:2],
        "1_Pooling/config.json": {"pooling_mode": pooling, "embedding_dimension": 24} if newer else older,
        "sentence_bert_config.json": {} if newer else {"max_seq_length": max_length, "do_lower_case": False},
        "tokenizer_config.json": {"model_max_length": max_length if newer else 20, "do_lower_case": True},
        "config_sentence_transformers.json": {"prompts": {"query": ""}, "default_prompt_name": None} if newer else {},
    }
    (folder / "1_Pooling").mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder
