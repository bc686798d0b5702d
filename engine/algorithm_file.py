"""Loads a user's algorithm from a Python file: running the file registers it, as importing an SGLang plugin does."""

from __future__ import annotations

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from traceback import walk_tb
from typing import Final

from specmatrix.engine.core.draft.algorithms import Traits, known_algorithms
from specmatrix.engine.plugin import forget_algorithm
from specmatrix.engine.spec.torch_settings import read, restore
from specmatrix.errors import ConfigError, described, is_interrupt

# Prefix of the module name in sys.modules, so that a file named `torch.py` replaces no real module.
PREFIX: Final = "specmatrix_algorithm_"
HINT: Final = "call register_algorithm(traits, drafter) at its top level"


def load_algorithms(path: Path) -> tuple[Traits, ...]:
    """Run a Python file and return the traits of the algorithms that it registers, in registration order. Modules in
    the file's folder can be imported and take precedence over installed ones, as when Python runs a script.

    Raises ConfigError with the file's name if it cannot be read, raises (with the line), changes torch's settings, or
    registers nothing. In these cases none of its registrations remain.
    """
    if not path.is_file():
        raise ConfigError(f"algorithm file {path} does not exist; pass a Python file that must {HINT}")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    before = known_algorithms()
    name = f"{PREFIX}{path.stem}"
    spec = spec_from_loader(name, SourceFileLoader(name, str(path)))
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    settings = read()
    try:
        try:
            spec.loader.exec_module(module)
        finally:
            changed = restore(settings)
        if changed is not None:
            raise ConfigError(f"it {changed}; it must leave torch's settings alone")
    except BaseException as error:  # user code may raise anything
        for traits in _since(before):
            forget_algorithm(traits.name)
        del sys.modules[name]
        if is_interrupt(error):
            raise
        said = str(error) if isinstance(error, ConfigError) else _message(error)
        raise ConfigError(f"algorithm file {path}{_line(path, error)} cannot be loaded: {said}") from error
    found = _since(before)
    if not found:
        raise ConfigError(f"algorithm file {path} registers no algorithm; it must {HINT}")
    return found


def _since(before: tuple[Traits, ...]) -> tuple[Traits, ...]:
    return known_algorithms()[len(before) :]


def _message(error: BaseException) -> str:
    return f"{type(error).__name__}: {error.msg}" if isinstance(error, SyntaxError) else described(error)


def _line(path: Path, error: BaseException) -> str:
    """`, line 7`: the last line of the file itself on the traceback."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f", line {error.lineno}"
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == str(path)]
    return f", line {lines[-1]}" if lines else ""
