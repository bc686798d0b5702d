"""Standard streams of the command line, and exit statuses for failures."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from io import TextIOWrapper
from typing import Final

from specmatrix.errors import text_of
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
