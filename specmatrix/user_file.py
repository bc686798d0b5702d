"""Loads Python files that users name, each as a module with a unique name.

Child processes find the files through the environment variable VARIABLE; workers run them first.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import Any, Final
from zlib import crc32

from specmatrix.errors import ConfigError, described, is_interrupt, text_of

# Paths of the files that this process loaded, for its children.
VARIABLE: Final = "SPECMATRIX_FILES"
# Prefix of the module names, so that a file named `torch.py` replaces no real module.
PREFIX: Final = "specmatrix_file_"
# Names registered so far, to detect a file that registers nothing.
DEFINED: Final[list[str]] = []


def named_files() -> list[Path]:
    """The files listed in VARIABLE."""
    return [Path(place) for place in os.environ.get(VARIABLE, "").split(os.pathsep) if place]


def loaded(path: Path) -> ModuleType | None:
    """The module of a file, None if this process has not loaded it."""
    return sys.modules.get(_name(path))


def load_file(path: Path, kind: str, hint: str) -> ModuleType:
    """Run a Python file as a module. It can import modules from its folder; installed ones take precedence.

    ConfigError with the file's name if it does not exist or raises (with the line), in which case no module remains.
    """
    if not os.path.isfile(path):  # noqa: PTH113 - raises nothing for a name that is too long
        raise ConfigError(f"{kind} file {text_of(path)} does not exist; pass a Python file that must {hint}")
    spec = _spec(path)
    assert spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # user code may raise anything
        del sys.modules[spec.name]
        if is_interrupt(error):
            raise
        said = str(error) if isinstance(error, ConfigError) else _message(error)
        raise ConfigError(f"{kind} file {path}{_line(path, error)} cannot be loaded: {said}") from error
    if path.resolve() not in named_files():
        os.environ[VARIABLE] = os.pathsep.join(map(str, (*named_files(), path.resolve())))
    return module


def load_name(place: str, kind: str, hint: str) -> Any:  # noqa: ANN401 - whatever has that name
    """Resolve `path.py:Name` or `package.module:Name`, importing the module if necessary.

    ConfigError as `load_file`, and if the file has no such name; errors of a `package.module` propagate.
    """
    module, _, name = place.rpartition(":")
    if not module.endswith(".py"):
        return getattr(import_module(module), name)
    path = Path(module)
    found = loaded(path) or load_file(path, kind, hint)
    if not hasattr(found, name):
        raise ConfigError(f"{kind} file {path} has no {text_of(name)}; it must {hint}")
    return getattr(found, name)


class _FileFinder:
    """Finds the modules of a parent's files, so that a child can unpickle what they define."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith(PREFIX):
            return None
        return next((_spec(file) for file in named_files() if _name(file) == name), None)


sys.meta_path.append(_FileFinder)


def _name(path: Path) -> str:
    return f"{PREFIX}{path.stem}_{crc32(os.fsencode(path.resolve())):08x}"


def _spec(path: Path) -> ModuleSpec:
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    name = _name(path)
    found = spec_from_loader(name, SourceFileLoader(name, str(path)))
    assert found is not None
    return found


def _message(error: BaseException) -> str:
    return f"{type(error).__name__}: {error.msg}" if isinstance(error, SyntaxError) else described(error)


def _line(path: Path, error: BaseException) -> str:
    """The last line of the file in the traceback, as `, line 7`; "" if there is none."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f", line {error.lineno}"
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == str(path)]
    return f", line {lines[-1]}" if lines else ""
