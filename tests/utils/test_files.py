"""Untrusted files are read within limits, and output is written atomically."""

import errno
import glob
import json
import os
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

import minibert
from minibert.prediction.reader import open_reader
from minibert.storage.hub import locate
from minibert.tables.formats import format_by_name
from minibert.utils.files import (
    MOST_BYTES,
    atomic_write,
    final_name,
    inside,
    lock_file,
    matching_files,
    read_json,
    temporary_path,
    user_path,
    write_text_atomically,
)
from minibert.vectors.features import DiskRows


def embed(name: str) -> object:
    return minibert.embed(["a"], name)


def test_json_may_be_a_hundred_deep_and_have_any_number_of_brackets(tmp_path):
    for content in (b'{"a": ' + b"[" * 99 + b"]" * 99 + b"}", b'{"a": ["' + b"[{" * 500 + b'"]}', b'{"a": {%s}}'):
        content = content.replace(b"%s", b", ".join(b'"%d": [{}]' % number for number in range(200)))
        (tmp_path / "a.json").write_bytes(content)
        assert read_json(tmp_path / "a.json") == json.loads(content)


@pytest.mark.parametrize("use", [user_path, locate, format_by_name, embed, open_reader, DiskRows])
def test_an_empty_name_is_not_the_current_folder(use):
    with pytest.raises(ValueError, match="name is empty"):
        use("")


def test_an_object_is_read_with_and_without_a_byte_order_mark(tmp_path):
    for start in (b"", b"\xef\xbb\xbf"):
        (tmp_path / "a.json").write_bytes(start + '{"a": ["ä", 1e30, "\\ud83d\\ude00"]}'.encode())
        assert read_json(tmp_path / "a.json") == {"a": ["ä", 1e30, "😀"]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Expecting value: line 1"),
        (b'{"a": 1,\n "b" 2}', "line 2"),
        (b"\xff\xfe", "can't decode"),
        (b"[1]", "list"),
        (b"7", r"\bint\b"),
        (b'{"a":' * 100_000, "nested"),
        (b'{"a":' * 900 + b"1" + b"}" * 900, "nested more than 100"),
        (b'{"b": {"[": "{"}, "a": ' + b"[" * 100 + b"]" * 100 + b"}", "nested more than 100"),
        (b'{"a": ' + b"9" * 400_000 + b"}", "integer string"),
        (b'{"a": "\\ud800"}', "surrogates not allowed"),
    ],
)
def test_anything_but_a_json_object_is_refused_with_the_name_of_the_file(content, message, tmp_path):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        read_json(tmp_path / "a.json")
    assert str(tmp_path / "a.json") in str(error.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no pipes in its file system")
def test_only_a_regular_file_of_moderate_size_is_opened(tmp_path):
    with (tmp_path / "long").open("wb") as file:
        file.truncate(MOST_BYTES + 1)  # a sparse file, which takes no space
    os.mkfifo(tmp_path / "pipe")
    for path, error, message in (
        (tmp_path / "long", ValueError, "100,000,001 bytes"),
        (tmp_path / "pipe", ValueError, "is a pipe, not a file"),  # opening it would wait forever
        (tmp_path, ValueError, "is a folder, not a file"),
        (Path(os.devnull), ValueError, "is a device, not a file"),
        (tmp_path / "missing", FileNotFoundError, "missing"),
    ):
        with pytest.raises(error, match=message):
            read_json(path)


# patterns of names


def make_files(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


PATTERNS = ["**", "**/*", "**/*.txt", "a/**", "*/**/x.txt", "**/a/**/*.txt", "**/**/x.txt", "a**/*.txt", "**/c[[]1]/*"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_without_links_a_pattern_matches_what_glob_matches(pattern, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_files(
        tmp_path, "x.txt", ".x.txt", "a/x.txt", "a/a/x.txt", "a/b/a/y.txt", "ab/x.txt", ".h/x.txt", "b/c[1]/x.txt"
    )
    expected = {path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)}
    assert matching_files(pattern) == sorted(expected)
    assert matching_files(f"{tmp_path}/{pattern}") == sorted(f"{tmp_path}/{path}" for path in expected)
    assert expected and matching_files("") == []


@pytest.mark.parametrize("links", [1, 2, 3])
def test_links_to_folders_around_them_repeat_no_file_and_end(links, tmp_path):
    make_files(tmp_path, "a/b/x.txt", "y.txt")
    for number in range(links):
        (tmp_path / "a" / f"link{number}").symlink_to(tmp_path)
    assert matching_files(f"{tmp_path}/**/*.txt") == [f"{tmp_path}/a/b/x.txt", f"{tmp_path}/y.txt"]


def test_a_linked_folder_is_followed_once_and_a_file_has_the_name_that_is_no_link(tmp_path):
    make_files(tmp_path, "corpus/z.txt", "corpus/real/x.txt", "elsewhere/deep/w.txt")
    for link, target in (
        ("a.txt", "corpus/z.txt"),
        ("also", "corpus/real"),
        ("one", "elsewhere"),
        ("two", "elsewhere"),
        ("self", "corpus/self"),
    ):
        (tmp_path / "corpus" / link).symlink_to(tmp_path / target)
    expected = [f"{tmp_path}/corpus/{name}" for name in ("one/deep/w.txt", "real/x.txt", "z.txt")]
    assert matching_files(f"{tmp_path}/corpus/**/*.txt") == expected
    assert matching_files(f"{tmp_path}/corpus/**/also/*.txt") == [f"{tmp_path}/corpus/also/x.txt"]
    assert matching_files(f"{tmp_path}/corpus/?.txt") == [f"{tmp_path}/corpus/z.txt"]
    assert matching_files(f"{tmp_path}/corpus/a.*") == [f"{tmp_path}/corpus/a.txt"]


# names in files


@pytest.mark.parametrize("name", ["", ".", "1_Pooling", "a/b", "a/./b", "..a", "a.."])
def test_a_name_inside_a_folder_is_followed(name, tmp_path):
    assert inside(tmp_path, name, tmp_path / "modules.json") == tmp_path / name


@pytest.mark.parametrize(
    "name",
    ["..", "../a", "a/../../b", "/etc", "C:/a", "C:a", "\\a", "a\\..\\b", "\\\\host\\a", "a\0b", "link", "link/a"],
)
def test_a_name_that_leads_out_of_its_folder_is_refused(name, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").mkdir()
    (folder / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(ValueError, match=r"modules\.json"):
        inside(folder, name, folder / "modules.json")


def test_a_file_whose_writing_fails_is_named_and_the_old_one_stays(tmp_path):
    write_text_atomically(tmp_path / "a.txt", "before")
    with pytest.raises(OSError, match=r"/a\.txt") as error, atomic_write(tmp_path / "a.txt") as temporary:
        temporary.write_text("aft")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert error.value.filename == str(tmp_path / "a.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "before"
    with pytest.raises(FileNotFoundError) as missing:
        write_text_atomically(tmp_path / "missing" / "a.txt", "a")
    assert missing.value.filename == str(tmp_path / "missing" / "a.txt")  # and not the temporary one


def test_a_file_has_the_permissions_of_the_umask_whatever_wrote_it(tmp_path):
    (tmp_path / "plain").touch()
    with atomic_write(tmp_path / "a.bin") as temporary:
        temporary.unlink()
        os.close(os.open(temporary, os.O_CREAT | os.O_WRONLY, 0o600))  # as the writer of safetensors does
    assert stat.S_IMODE((tmp_path / "a.bin").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_many_threads_write_one_file_at_once_and_it_is_whole(tmp_path):
    """All have the number of one process."""
    together = Barrier(4)

    def write(text):
        with atomic_write(tmp_path / "a.txt") as temporary:
            together.wait()
            temporary.write_text(text)

    texts = [letter * 1000 for letter in "abcd"]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, texts))
    assert (tmp_path / "a.txt").read_text() in texts
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such locks")
@pytest.mark.parametrize("replaced", [False, True])
def test_a_lock_that_its_holder_removes_at_the_same_moment_is_not_held(replaced, tmp_path, monkeypatch):
    """Else two processes could each hold a lock, on an old and on a new file of this name."""

    def removed(*given):
        (tmp_path / "lock").unlink()
        if replaced:
            (tmp_path / "lock").touch()

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match=rf"{tmp_path}"):
        patch.setattr("fcntl.flock", removed)
        lock_file(tmp_path / "lock")
    lock_file(tmp_path / "lock").close()


def test_a_file_is_on_the_disk_before_its_name_and_its_name_before_it_counts_as_written(tmp_path, monkeypatch):
    done, replace, fsync = list[str](), os.replace, os.fsync

    def named_fsync(descriptor):
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", named_fsync)
    monkeypatch.setattr(os, "replace", lambda old, new: (done.append("renamed"), replace(old, new)))
    write_text_atomically(tmp_path / "a.txt", "a")
    assert done == ["file", "renamed", "folder"]


@pytest.mark.parametrize(
    ("name", "final"),
    [
        (".a.txt.0123abcd", "a.txt"),
        (".a.txt.4711", ".a.txt.4711"),
        (".a.txt.bak", ".a.txt.bak"),
        (".a.txt.beef", ".a.txt.beef"),
        ("a.txt", "a.txt"),
        (".hidden", ".hidden"),
    ],
)
def test_a_temporary_name_tells_the_final_one(name, final):
    assert final_name(Path("folder") / name) == final
    assert final_name(temporary_path(Path("folder") / name)) == name
