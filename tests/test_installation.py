"""The package as it is installed."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_a_script_in_the_parent_folder_of_a_clone_called_minibert_imports_the_package(tmp_path: Path) -> None:
    (tmp_path / "minibert").symlink_to(ROOT)  # on sys.path, this folder has no __init__.py
    (tmp_path / "script.py").write_text("import minibert; print(minibert.load)")
    without_path = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=without_path, capture_output=True, text=True)
    assert "<function load" in run.stdout, run.stderr
