"""Error messages for invalid command lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from specmatrix.errors import nearest, shown

# The base class of typer's usage errors, which typer itself does not export.
UsageError = cast(type[typer.BadParameter], typer.BadParameter.__mro__[1])


def misuse(error: typer.BadParameter) -> str:
    """Format a usage error: typer's message, the given value, and at most one suggestion."""
    if hasattr(error, "possibilities"):
        unknown: str = getattr(error, "option_name", "")
        close = nearest(unknown.lstrip("-"), [option.lstrip("-") for option in error.possibilities or ()])
        return f"No such option: {unknown}" + (f"; the closest is --{close}" if close else "")
    # typer validates values with pydantic, whose error contains the value.
    value = getattr(error.__cause__, "errors", None)
    got = "" if value is None else f", got {shown(value()[0]['input'])}"
    option = getattr(error, "param", None)
    if error.message and isinstance(option, TyperOption):
        return f"{option.opts[0]}: {error.message.rstrip('.')}{got}"
    return error.format_message().rstrip(".?").replace(". Did you mean ", "; perhaps ")


def repeated_option(command: TyperCommand | TyperGroup, words: Sequence[str]) -> str:
    """The first single-value option that occurs twice in a command's arguments, "" if none does.

    The parser would silently keep only the last value.
    """
    context = typer.Context(command, **command.context_settings)
    try:
        given = command.make_parser(context).parse_args(list(words))[2]
    except UsageError:
        return ""  # the command itself will report the error
    single = [one for one in given if isinstance(one, TyperOption) and not (one.multiple or one.is_flag)]
    return next((one.opts[0] for place, one in enumerate(single) if one in single[:place]), "")
