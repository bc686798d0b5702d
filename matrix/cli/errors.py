"""What is wrong with the words of a command line, in one clause."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import typer

from specmatrix.engine.core.config.suggest import nearest
from specmatrix.errors import ConfigError

# What an option takes, by the word that the command line library has for it.
KINDS: Final = {"integer": "a whole number", "number": "a number", "float": "a number"}
# More processes or threads than this for a core only wait for one another.
PER_CORE: Final = 8


def check_parallel(name: str, count: int) -> None:
    """ConfigError on a number of workers or threads that this machine should not start."""
    most = PER_CORE * (os.cpu_count() or 1)
    if not 1 <= count <= most:
        raise ConfigError(f"{name} must be 1 to {most}, {PER_CORE} for each CPU core of this machine, got {count}")


def check_seed(seed: int) -> None:
    """ConfigError on a seed from which no request's could be made: these are a little larger and have 63 bits."""
    if not 0 <= seed < 2**31:
        raise ConfigError(f"seed must be 0 to {2**31 - 1}, got {seed}")


def misuse(error: typer.BadParameter, words: Sequence[str]) -> str:
    """What is wrong with the words of a command line, with the value that was given."""
    unknown = getattr(error, "option_name", None)
    if unknown is not None:
        if not hasattr(error, "possibilities"):
            # A known option that lacks its value, or a switch with one.
            known = f"{unknown} needs a value" if "requires" in error.message else error.message
            return known.rstrip(".")
        close = nearest(
            unknown.lstrip("-"), [option.lstrip("-") for option in getattr(error, "possibilities", None) or ()]
        )
        return f"No such option: {unknown}" + (f"; the closest is --{close}" if close else "")
    parameter = getattr(error, "param", None)
    for option in () if parameter is None else parameter.opts:
        if (value := _given(option, words)) is not None:
            return f"{option} takes {_kind(error.message)}, not {value!r}"
    said, _, close = error.format_message().partition(". Did you mean ")
    return f"{said.rstrip('.')}; the closest is {close.rstrip('?')}" if close else said.rstrip(".")


def _kind(message: str) -> str:
    return next((kind for word, kind in KINDS.items() if word in message), "another kind of value")


def _given(option: str, words: Sequence[str]) -> str | None:
    """The last value of an option among the words of a command line."""
    found = [word.partition("=")[2] for word in words if word.startswith(f"{option}=")]
    found += [value for name, value in pairwise(words) if name == option]
    return found[-1] if found else None
