"""The hints of what to install name what pip finds, from the folder where the user is."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

from minibert import printing

REQUIRES = ["torch>=2.10", 'alpha<3,>=2; extra == "test"', 'numpy; extra == "test"', 'beta; extra == "bench"']
PIP = f"{sys.executable} -m pip install"


def test_in_a_checkout_the_hint_installs_the_extra_of_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(printing.CHECKOUT)
    assert f'name = "{printing.DISTRIBUTION}"' in Path("pyproject.toml").read_text("utf-8")
    assert printing.install_hint("test") == f'{PIP} -e ".[test]"'
    monkeypatch.chdir(tmp_path)
    assert printing.install_hint("test") == f'cd {printing.CHECKOUT} && {PIP} -e ".[test]"'


def test_elsewhere_the_hint_names_the_packages_of_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printing, "CHECKOUT", tmp_path)
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: REQUIRES)
    assert printing.install_hint("test") == f'{PIP} "alpha<3,>=2" numpy'
