"""Add to the wheel what commands read outside the package; everything else about the project is in pyproject.toml."""

from pathlib import Path
from shutil import copytree

from setuptools import setup
from setuptools.command.build_py import build_py

FOLDERS = ("weights/minibert-novels", "tutorials/build")  # in the wheel they are in minibert/


class BuildWithFolders(build_py):
    """The package with these folders; an editable install finds them where they are."""

    def run(self) -> None:
        """Copy the package, and then the folders."""
        super().run()
        for folder in () if self.editable_mode else FOLDERS:
            copytree(folder, Path(self.build_lib, "minibert", folder), dirs_exist_ok=True)


setup(cmdclass={"build_py": BuildWithFolders})
