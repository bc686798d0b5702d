"""Process-wide state that an algorithm must leave as it is: other code in the user's process depends on it."""

from __future__ import annotations

import os
import pickle
import random
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import numpy as np
import torch

from specmatrix.engine.spec.torch_settings import Setting, read, restore


def _set_environment(variables: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)


def _handlers() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in signal.valid_signals()}


def _set_handlers(handlers: dict[int, Any]) -> None:
    for number, handler in handlers.items():
        # A handler of None was not installed by Python, which cannot restore it.
        if handler is not None and handler is not signal.getsignal(number):
            signal.signal(number, handler)


def _generators() -> dict[str, bytes]:
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": pickle.dumps(np.random.get_state()),
        "random": pickle.dumps(random.getstate()),
    }


def _set_generators(states: dict[str, bytes]) -> None:
    torch.set_rng_state(torch.frombuffer(bytearray(states["torch"]), dtype=torch.uint8))
    np.random.set_state(pickle.loads(states["numpy"]))
    random.setstate(pickle.loads(states["random"]))


def _set_filters(filters: list[Any]) -> None:
    cast(list[Any], warnings.filters)[:] = filters
    with warnings.catch_warnings():  # makes the module read its filters again
        pass


# The settings of torch that change other results are the engine's business (`engine.spec.torch_settings`).
PROCESS_STATE: Final = (
    Setting("the working directory", os.getcwd, os.chdir),
    Setting("the environment variables", lambda: dict(os.environ), _set_environment),
    Setting("the signal handlers of", _handlers, _set_handlers),
    Setting("the random number generators of", _generators, _set_generators),
    Setting("the warnings filters", lambda: list(warnings.filters), _set_filters),
    Setting("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
)


class Spare(NamedTuple):
    """A duplicate `copy` of an open file descriptor, and the device and inode of its file."""

    fd: int
    copy: int
    file: tuple[int, int]
    inheritable: bool


@contextmanager
def restored_process_state() -> Iterator[list[str]]:
    """Restores the state at the end; what had changed is then in the list, such as "changed the working directory from
    /home to /tmp", "closed the file descriptors 1, 2"."""
    found: list[str] = []
    before, spares = read(PROCESS_STATE), _spares()
    try:
        yield found
    finally:
        changed = restore(before, PROCESS_STATE)
        closed = [spare.fd for spare in spares if _file_of(spare.fd) != spare.file]
        for spare in spares:
            # Whoever closed all descriptors closed the duplicates as well.
            if _file_of(spare.copy) == spare.file:
                if spare.fd in closed:
                    os.dup2(spare.copy, spare.fd, spare.inheritable)
                os.close(spare.copy)
        found += [changed] if changed is not None else []
        found += [f"closed the file descriptors {', '.join(map(str, closed))}"] if closed else []


def _spares() -> list[Spare]:
    """A duplicate of each open file descriptor."""
    listed = sorted(int(each.name) for each in Path("/dev/fd").iterdir())
    # Without the descriptor that listed the folder.
    files = {fd: file for fd in listed if (file := _file_of(fd)) is not None}
    return [Spare(fd, os.dup(fd), file, os.get_inheritable(fd)) for fd, file in files.items()]


def _file_of(fd: int) -> tuple[int, int] | None:
    """Device and inode; None if the descriptor is closed."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino
