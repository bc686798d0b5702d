"""Loads plug-ins: files that `--plugin` names, and modules of installed packages by entry point."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

from specmatrix.errors import ConfigError, described, is_interrupt
from specmatrix.matrix.cells.own_values import add_algorithms
from specmatrix.user_file import DEFINED, load_file

GROUP: Final = "specmatrix.plugins"
# Paths of the files, for this process's children.
VARIABLE: Final = "SPECMATRIX_PLUGINS"
HINT: Final = "call register_value, register_gate, register_fault or register_algorithm at its top level"
_LOADED: Final[set[str]] = set()


def load_plugins(files: Sequence[Path] = ()) -> None:
    """Load the files, those that this process inherits, and the installed ones, each once in a process. ConfigError if
    one raises or registers nothing."""
    inherited = [Path(place) for place in os.environ.get(VARIABLE, "").split(os.pathsep) if place]
    for path in (*inherited, *files):
        before = len(DEFINED)
        if str(path.resolve()) in _LOADED:
            continue
        load_file(path, "plug-in", HINT)
        if len(DEFINED) == before:
            raise ConfigError(f"plug-in file {path} registers nothing; it must {HINT}")
        keep(path)
    for point in sorted(entry_points(group=GROUP)):
        if point.value not in _LOADED:
            try:
                import_module(point.value)
            except Exception as error:  # a user's own code
                if is_interrupt(error):
                    raise
                raise ConfigError(
                    f"plug-in {point.name} ({point.value}) cannot be loaded: {described(error)}"
                ) from error
            _LOADED.add(point.value)
    add_algorithms()


def keep(path: Path) -> None:
    """Let this process's children load a file that it has loaded itself."""
    place = str(path.resolve())
    _LOADED.add(place)
    os.environ[VARIABLE] = os.pathsep.join(
        dict.fromkeys((*os.environ.get(VARIABLE, "").split(os.pathsep), place))
    ).strip(os.pathsep)


def load_algorithm_plugin(path: Path) -> list[str]:
    """Load a file of algorithms, for this process's children too; their values on the axis `algorithm`."""
    from specmatrix.engine.plugin import load_algorithms  # imports torch

    names = [traits.name.lower() for traits in load_algorithms(path)]
    keep(path)
    add_algorithms()
    return names
