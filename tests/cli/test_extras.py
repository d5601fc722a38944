"""The hints of what to install name what pip finds, where the user stands."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

from minibert import extras

REQUIRES = ["torch>=2.10", 'alpha<3,>=2; extra == "test"', 'numpy; extra == "test"', 'beta; extra == "bench"']


@pytest.fixture
def from_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if minibert were installed from an index, with two packages in its extra `test`."""
    monkeypatch.setattr(extras, "CHECKOUT", tmp_path)
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: REQUIRES)


def test_in_a_checkout_the_hint_installs_the_extra_of_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(extras.CHECKOUT)
    hint = extras.install_hint("test")
    assert hint.endswith(' -m pip install -e ".[test]"')
    assert not hint.startswith("cd ")


def test_from_another_folder_the_hint_begins_with_the_way_to_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert extras.install_hint("test").startswith(f"cd {extras.CHECKOUT} && ")


def test_the_interpreter_is_the_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir("/")
    assert extras.pip_install("x") == f"{sys.executable} -m pip install x"
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert extras.pip_install("x") == "python -m pip install x"


@pytest.mark.usefixtures("from_an_index")
def test_elsewhere_the_hint_names_the_packages_of_the_extra() -> None:
    hint = extras.install_hint("test")
    assert hint.endswith(' -m pip install "alpha<3,>=2" numpy')
    assert "minibert" not in hint.rpartition(" -m pip ")[2]


def test_the_name_of_the_project_is_the_one_in_its_metadata() -> None:
    text = (extras.CHECKOUT / "pyproject.toml").read_text("utf-8")
    assert f'name = "{extras.DISTRIBUTION}"' in text
