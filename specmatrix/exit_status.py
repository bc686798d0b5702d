"""Standard streams of the command line, exit statuses for failures, and wrong usage in sentences."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from io import TextIOWrapper
from typing import Final, cast

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from specmatrix.errors import nearest, shown, text_of
from specmatrix.plain_text import PlainStream

# Errors of writing to stdout: a full disk, a quota, a file size limit, a closed pipe, or a closed terminal.
UNWRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EPIPE, errno.EIO)
# Resource limits of the system or user.
EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
STREAMS: Final = {"stdin": "r", "stdout": "w", "stderr": "w"}


def empty_word(words: Sequence[str]) -> str:
    """A name for the first empty argument, "" if there is none: an empty path would mean the current folder."""
    for before, word in zip(("", *words), words, strict=False):
        if word.startswith("--") and word.endswith("="):
            return text_of(word[:-1])
        if not word:
            return text_of(before) if before.startswith("--") else "an argument"
    return ""


@contextmanager
def open_streams() -> Iterator[None]:
    """Open the null device for each closed standard stream, because the next opened file would get its descriptor.

    Within the context stdout and stderr are PlainStreams, and characters outside the locale's encoding are escaped.
    """
    for name, mode in STREAMS.items():
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    with redirect_stdout(PlainStream(sys.stdout)), redirect_stderr(PlainStream(sys.stderr)):
        yield


def failed(error: OSError) -> int:
    """Report an OSError and return the exit status; re-raise an unexpected one that names no file, as a defect."""
    if error.errno in EXHAUSTED:
        return wrong(f"the system's limits are reached ({error.strerror}); raise them, see `ulimit -a`")
    if error.filename is not None:
        return wrong(f"cannot use {text_of(os.fsdecode(error.filename))}: {error.strerror}")
    if error.errno not in UNWRITABLE:
        raise error
    return unwritten(error)


def unwritten(error: OSError) -> int:
    # Flushing the rest of the buffer would fail again when Python closes stdout.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno == errno.EPIPE:
        # The status that a shell reports for SIGPIPE, for example in `| head`.
        return 128 + signal.SIGPIPE
    return wrong(f"cannot write the output: {error.strerror}")


def wrong(sentence: str) -> int:
    # If stderr is closed, the exit status still reports it.
    with suppress(OSError):
        print(f"specmatrix: {' '.join(sentence.split())}", file=sys.stderr, flush=True)
    return 2


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
