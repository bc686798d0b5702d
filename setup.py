"""What pyproject.toml cannot say: which packages there are. Each is in a folder of the repository's top level and is
installed below `specmatrix` (`tool.setuptools.package-dir`)."""

import tomllib
from pathlib import Path

from setuptools import find_packages, setup

PROJECT = tomllib.loads(Path(__file__).with_name("pyproject.toml").read_text(encoding="utf-8"))
FOLDERS = PROJECT["tool"]["setuptools"]["package-dir"].values()
found = find_packages(include=[pattern for folder in FOLDERS for pattern in (folder, f"{folder}.*")])
setup(packages=["specmatrix", *(f"specmatrix.{name}" for name in found)])
