"""The package as it is installed."""

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest

ROOT = Path(__file__).parents[1]
BUILT = ("minibert", "weights", "tutorials/build")  # read by setuptools
FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
BUILD = """
import os, sys, tarfile
from setuptools import build_meta
with tarfile.open("../source/" + build_meta.build_sdist("../source")) as source:
    source.extractall("../source", filter="data")
os.chdir("../source/" + next(name for name in os.listdir("../source") if os.path.isdir("../source/" + name)))
build_meta.build_wheel("../../wheel")
"""


def test_a_script_in_the_parent_folder_of_a_clone_called_minibert_imports_the_package(tmp_path):
    (tmp_path / "minibert").symlink_to(ROOT)  # on sys.path, this folder has no __init__.py
    (tmp_path / "script.py").write_text("import minibert; print(minibert.load)")
    without_path = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=without_path, capture_output=True, text=True)
    assert "<function load" in run.stdout, run.stderr


# -- from a wheel, outside a checkout

OUTSIDE = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "MINIBERT", "HF_"))}
OUTSIDE |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with `env`, an environment with the wheel of the source distribution, and the packages of this one."""
    place = tmp_path_factory.mktemp("place")
    for folder in ("source", "wheel", "home"):
        (place / folder).mkdir()
    for name in BUILT:
        copytree(ROOT / name, place / "checkout" / name, ignore=ignore_patterns("__pycache__"))
    for name in FILES:
        (place / "checkout" / name).write_bytes((ROOT / name).read_bytes())
    call([sys.executable, "-c", BUILD], place / "checkout")
    venv.create(place / "env", symlinks=os.name == "posix")
    packages = next((place / "env").glob("lib/*/site-packages"), place / "env" / "Lib" / "site-packages")
    (packages / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")  # it has torch, and no .pth of it counts
    (wheel,) = (place / "wheel").glob("*.whl")
    how = ["--no-deps", "--no-index", "--no-compile", "--quiet", "--target", str(packages)]
    call([sys.executable, "-m", "pip", "install", *how, str(wheel)], place)
    yield place


def call(command: list[str], folder: Path) -> str:
    """What a command prints that is run in a folder, outside the checkout."""
    home = {"HOME": str(folder), "USERPROFILE": str(folder)}
    run = subprocess.run(command, cwd=folder, env=OUTSIDE | home, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("minibert fill-mask the_[MASK]_was_dark.", "sun"),
        ("minibert score the_night_was_dark.", "the night was dark."),
        ("minibert check {reference} --stage gelu", "gelu"),
        ("minibert trace the_night_was_dark. --model minibert-novels --out page.html", "page.html"),
        ("minibert.reference guess the_[MASK]_was_dark.", "sun"),
    ],
)
def test_commands_run_from_an_empty_folder_with_what_the_wheel_has(command, found, place, tmp_path):
    (program,) = (place / "env").glob("bin/python" if os.name == "posix" else "Scripts/python.exe")
    (reference,) = (place / "env").rglob("minibert/reference.py")
    parts = [part.replace("_", " ") if part.startswith("the_") else part for part in command.split()]
    assert found in call([str(program), "-m", *(part.format(reference=reference) for part in parts)], tmp_path)
