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
    """typer's message, with the value that was given, and at most one suggestion."""
    if hasattr(error, "possibilities"):
        unknown: str = getattr(error, "option_name", "")
        close = nearest(unknown.lstrip("-"), [option.lstrip("-") for option in error.possibilities or ()])
        return f"No such option: {unknown}" + (f"; the closest is --{close}" if close else "")
    # typer checks values with pydantic, whose error has the value.
    value = getattr(error.__cause__, "errors", None)
    got = "" if value is None else f", got {shown(value()[0]['input'])}"
    option = getattr(error, "param", None)
    if error.message and isinstance(option, TyperOption):
        return f"{option.opts[0]}: {error.message.rstrip('.')}{got}"
    return error.format_message().rstrip(".?").replace(". Did you mean ", "; perhaps ")


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
