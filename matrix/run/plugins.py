"""Loads plug-ins: files that `--plugin` names, and modules of installed packages by entry point."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from hashlib import sha256
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Final

from specmatrix.errors import ConfigError, described, is_interrupt
from specmatrix.matrix.cells.own_values import add_algorithms
from specmatrix.user_file import DEFINED, load_file, loaded, named_files

GROUP: Final = "specmatrix.plugins"
HINT: Final = "call register_value, register_gate, register_fault or register_algorithm at its top level"


def load_plugins(files: Sequence[Path] = ()) -> None:
    """Load the files, those that this process inherits, and the installed ones, each once in a process. ConfigError if
    one raises, or if one of `files` registers nothing."""
    for path in (*named_files(), *files):
        before = len(DEFINED)
        if loaded(path):
            continue
        load_file(path, "plug-in", HINT)
        if path in files and len(DEFINED) == before:
            raise ConfigError(f"plug-in file {path} registers nothing; it must {HINT}")
    for point in _installed():
        try:
            import_module(point.value)
        except Exception as error:  # a user's own code
            if is_interrupt(error):
                raise
            raise ConfigError(f"plug-in {point.name} ({point.value}) cannot be loaded: {described(error)}") from error
    add_algorithms()


def files_of_user() -> tuple[str, ...]:
    """Each file of the user's and each installed plug-in that this process loaded, with 12 digits of its digest."""
    modules = (sys.modules.get(point.value) for point in _installed())
    found = [*named_files(), *(Path(module.__file__) for module in modules if module and module.__file__)]
    return tuple(sorted(f"{path.name} {sha256(path.read_bytes()).hexdigest()[:12]}" for path in found))


def _installed() -> list[EntryPoint]:
    return sorted(entry_points(group=GROUP))


def load_algorithm_plugin(path: Path) -> list[str]:
    """Load a file of algorithms; returns their values on the axis `algorithm`."""
    from specmatrix.engine.plugin import load_algorithms  # imports torch

    names = [traits.name.lower() for traits in load_algorithms(path)]
    add_algorithms()
    return names
