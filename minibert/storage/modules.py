"""The steps of a sentence-transformers checkpoint: modules.json has the type and the folder of each.

Before 2021 the Transformer, with its config.json, had its own folder: 0_Transformer, 0_BERT.
"""

from pathlib import Path

from minibert.utils.files import inside, parse_json, read_small
from minibert.utils.wording import advice

PATTERNS = ("modules.json", "*_Pooling/config.json", "sentence_*_config.json", "config_sentence_transformers.json")
TYPES = "sentence_transformers."  # the package that the types of steps are in
TRANSFORMERS = ("BERT", "DistilBERT", "RoBERTa", "XLMRoBERTa", "CamemBERT", "ALBERT")  # names from before 2020


def read_modules(path: Path) -> list[tuple[str, Path]]:
    """Return the steps in a modules.json, each with its type and its folder.

    Raises ValueError if the file is damaged or names a folder outside.
    """
    try:
        modules = [(module["type"], module["path"]) for module in parse_json(read_small(path).decode("utf-8-sig"))]
        if not all(isinstance(text, str) for module in modules for text in module):
            raise TypeError
    except (ValueError, TypeError, KeyError):
        raise refusal(path, "it is not a list of modules, each with a type and a path") from None
    steps = [name.rpartition(".")[2] if name.startswith(TYPES) else name for name, _ in modules]
    steps = ["Transformer" if name in TRANSFORMERS else name for name in steps]
    return [(step, inside(path.parent, name, path)) for step, (_, name) in zip(steps, modules, strict=True)]


def transformer_folder(folder: Path) -> Path:
    """Return the folder of the Transformer that modules.json names, such as 0_BERT; `folder` if it names none."""
    try:
        modules = read_modules(folder / "modules.json")
    except (ValueError, OSError):
        return folder
    return next((path for step, path in modules if step == "Transformer"), folder)


def home_of(folder: Path) -> Path:
    """Return the folder of the modules.json whose Transformer is in `folder`: the one around it, or `folder` itself."""
    around = folder.parent
    return around if transformer_folder(around) == folder and not (folder / "modules.json").exists() else folder


def refusal(path: Path, problem: str) -> ValueError:
    """Return the error for files that cannot be followed; it says what to do."""
    choose = advice("; choose {} and {}", pooling=..., normalize=...)
    return ValueError(f"pooling 'auto' cannot follow {path}: {problem}" + choose)
