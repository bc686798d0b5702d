"""Error messages for invalid command lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, cast

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from specmatrix.engine.core.config.suggest import nearest
from specmatrix.errors import shown

# The base class of typer's usage errors, which typer itself does not export.
UsageError = cast(type[typer.BadParameter], typer.BadParameter.__mro__[1])
# An option's type as the error names it, by the word in typer's message.
KINDS: Final = {"integer": "a whole number", "number": "a number", "float": "a number"}


def misuse(error: typer.BadParameter, words: Sequence[str]) -> str:
    """The error message for an invalid command line, with the given value."""
    unknown = getattr(error, "option_name", None)
    if unknown is not None:
        if not hasattr(error, "possibilities"):
            # A known option without its value, or a switch with one.
            known = f"{unknown} needs a value" if "requires" in error.message else error.message
            return known.rstrip(".")
        close = nearest(
            unknown.lstrip("-"), [option.lstrip("-") for option in getattr(error, "possibilities", None) or ()]
        )
        return f"No such option: {unknown}" + (f"; the closest is --{close}" if close else "")
    parameter = getattr(error, "param", None)
    for option in () if parameter is None else parameter.opts:
        if (value := _given(option, words)) is not None:
            kind = next((kind for word, kind in KINDS.items() if word in error.message), None)
            return (
                f"{option}: {error.message}".rstrip(".")
                if kind is None
                else f"{option} takes {kind}, not {shown(value)}"
            )
    said, _, hint = error.format_message().partition(". Did you mean ")
    quoted = re.findall("'([^']+)'", error.format_message())
    close = nearest(quoted[0], quoted[1:]) if hint else ""
    return f"{said.rstrip('.')}; the closest is {close!r}" if close else said.rstrip(".")


def repeated_option(command: TyperCommand | TyperGroup, words: Sequence[str]) -> str:
    """The first option of a single value that the words after a command's name give twice, "" if none is: the parser
    would keep the last value alone."""
    context = typer.Context(command, **command.context_settings)
    try:
        given = command.make_parser(context).parse_args(list(words))[2]
    except UsageError:
        return ""  # misused, as the command itself will say
    single = [one for one in given if isinstance(one, TyperOption) and not (one.multiple or one.is_flag)]
    return next((one.opts[0] for place, one in enumerate(single) if one in single[:place]), "")


def _given(option: str, words: Sequence[str]) -> str | None:
    """The last value of an option among the words of a command line."""
    found = [word.partition("=")[2] for word in words if word.startswith(f"{option}=")]
    found += [value for name, value in pairwise(words) if name == option]
    return found[-1] if found else None
