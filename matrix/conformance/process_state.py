"""Process-wide state that an algorithm must leave as it is: other code in the user's process depends on it."""

from __future__ import annotations

import gc
import os
import pickle
import random
import resource
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import numpy as np
import torch

from specmatrix.engine.spec.torch_settings import Setting, read, restore
from specmatrix.matrix.conformance.interpreter_state import interpreter_state


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


def _blocked() -> list[int]:
    return sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ()))


def _timers() -> dict[str, bool]:
    """Whether each is armed; the time that is left always changes."""
    return {name: signal.getitimer(which)[0] > 0 for name, which in TIMERS.items()}


def _set_timers(armed: dict[str, bool]) -> None:
    for name, which in TIMERS.items():
        if not armed[name]:
            signal.setitimer(which, 0)


def _umask() -> int:
    mask = os.umask(0o77)
    os.umask(mask)
    return mask


def _limits() -> dict[str, tuple[int, int]]:
    return {name: resource.getrlimit(getattr(resource, name)) for name in LIMITS}


def _set_limits(limits: dict[str, tuple[int, int]]) -> None:
    for name, limit in limits.items():
        with suppress(ValueError, OSError):  # only root may raise a hard limit again
            resource.setrlimit(getattr(resource, name), limit)


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


def _priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)


def _set_priority(niceness: int) -> None:
    with suppress(OSError):  # only root may lower it again
        os.setpriority(os.PRIO_PROCESS, 0, niceness)


def _processors() -> list[int]:
    """Those that this process may run on; macOS cannot say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def _set_processors(numbers: list[int]) -> None:
    os.sched_setaffinity(0, numbers)


def _set_filters(filters: list[Any]) -> None:
    cast(list[Any], warnings.filters)[:] = filters
    with warnings.catch_warnings():  # makes the module read its filters again
        pass


TIMERS: Final = {name: getattr(signal, name) for name in ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF")}
LIMITS: Final = sorted(name for name in dir(resource) if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE")
# The settings of torch that change other results are the engine's business (`engine.spec.torch_settings`).
SYSTEM_STATE: Final = (
    Setting("the working directory", os.getcwd, os.chdir),
    Setting("the environment variables", lambda: dict(os.environ), _set_environment),
    Setting("the signal handlers of", _handlers, _set_handlers),
    Setting("the blocked signals", _blocked, lambda mask: signal.pthread_sigmask(signal.SIG_SETMASK, mask)),
    Setting("the timers", _timers, _set_timers),
    Setting("the umask", _umask, os.umask),
    Setting("the resource limits", _limits, _set_limits),
    Setting("the random number generators of", _generators, _set_generators),
    Setting("the warnings filters", lambda: list(warnings.filters), _set_filters),
    Setting("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    Setting("the niceness", _priority, _set_priority),
    Setting("the processors that it may use", _processors, _set_processors),
)
# The driver of a device and a library may keep some open after their first use.
LEAKED: Final = 8
# What libraries change in good order when they are imported.
AT_IMPORT: Final = ("the warnings filters", "sys.path")


class Spare(NamedTuple):
    """A duplicate `copy` of an open file descriptor, and the device and inode of its file."""

    fd: int
    copy: int
    file: tuple[int, int]
    inheritable: bool


def process_state() -> tuple[Setting, ...]:
    """What an algorithm must leave as it is, as it is now."""
    return (*SYSTEM_STATE, *interpreter_state())


def import_state() -> tuple[Setting, ...]:
    """What an import must leave as it is. Libraries add warnings filters, environment variables and places of modules
    when they are imported; only variables that are there already count."""
    known = set(os.environ)
    variables = Setting(
        "the environment variables",
        lambda: {name: value for name, value in os.environ.items() if name in known},
        os.environ.update,
    )
    kept = [each for each in process_state() if each.name not in AT_IMPORT]
    return tuple(variables if each.name == variables.name else each for each in kept)


@contextmanager
def restored_process_state(settings: Sequence[Setting] | None = None) -> Iterator[list[str]]:
    """Restores the state, by default all of `process_state`, at the end; what had changed is then in the list, such as
    "changed the working directory from /home to /tmp", "closed the file descriptors 1, 2", "left 24 more file
    descriptors open than before". The duplicates that restore descriptors count as open ones, as whoever closes
    descriptors that it did not open may close anyone's; without them the null device takes their place."""
    found: list[str] = []
    gc.collect()  # files of earlier objects would be closed in between
    watched = process_state() if settings is None else settings
    before, spares = read(watched), _spares()
    try:
        yield found
    finally:
        leaked = len(_open_descriptors()) - 2 * len(spares)
        closed = _reopened(spares)
        changed = restore(before, watched)
        found += [changed] if changed is not None else []
        found += [f"closed the file descriptors {', '.join(map(str, closed))}"] if closed else []
        found += [f"left {leaked} more file descriptors open than before"] if leaked > LEAKED else []


def _open_descriptors() -> dict[int, tuple[int, int]]:
    listed = sorted(int(each.name) for each in Path("/dev/fd").iterdir())
    # Without the descriptor that listed the folder.
    return {fd: file for fd in listed if (file := _file_of(fd)) is not None}


def _spares() -> list[Spare]:
    """A duplicate of each open file descriptor."""
    return [Spare(fd, os.dup(fd), file, os.get_inheritable(fd)) for fd, file in _open_descriptors().items()]


def _reopened(spares: Sequence[Spare]) -> list[int]:
    """Restore what was closed or replaced, and close the duplicates; the descriptors that were."""
    closed = [spare.fd for spare in spares if _file_of(spare.fd) != spare.file]
    lost = []
    for spare in spares:
        if _file_of(spare.copy) != spare.file:
            closed.append(spare.copy)
            lost += [spare.fd] if spare.fd in closed else []
            continue
        if spare.fd in closed:
            os.dup2(spare.copy, spare.fd, spare.inheritable)
        os.close(spare.copy)
    if lost:
        null = os.open(os.devnull, os.O_RDWR)
        for fd in lost:
            if fd != null:
                os.dup2(null, fd)
        if null not in lost:
            os.close(null)
    return closed


def _file_of(fd: int) -> tuple[int, int] | None:
    """Device and inode; None if the descriptor is closed."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino
