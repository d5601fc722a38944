"""The kind of a folder is decided by its files; the registry names each task once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from words import labelled, write_words_checkpoint

from minibert.tasks import TASKS, task_class
from minibert.tasks.folders import REPORT, folder_kind
from minibert.tasks.frozen import train


def test_the_kind_of_a_folder_is_decided_by_its_files(tmp_path: Path) -> None:
    encoder = write_words_checkpoint(tmp_path / "encoder")
    assert folder_kind(encoder) == "encoder"
    assert folder_kind(write_words_checkpoint(tmp_path / "mlm", head="masked-lm")) == "masked-lm"
    train(*labelled(), model=str(encoder), folds=0).save(tmp_path / "frozen")
    assert folder_kind(tmp_path / "frozen") == "frozen"
    for task, kind in (("tag", "task"), ("mask", "encoder"), ("mlm+nsp", "encoder")):
        (encoder / REPORT).write_text(json.dumps({"task": task}))
        assert folder_kind(encoder) == kind
    with pytest.raises(FileNotFoundError, match="no/such"):
        folder_kind("no/such")


def test_the_registry_names_each_task_once() -> None:
    assert {name: task_class(name).name for name in TASKS} == {name: name for name in TASKS}
    with pytest.raises(ValueError, match="task 'sing' is not known; choose from classify, tag, answer, choose, mask"):
        task_class("sing")
