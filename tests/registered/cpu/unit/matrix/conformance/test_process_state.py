"""Process-wide state that changed is restored, and each change is reported."""

from __future__ import annotations

import builtins
import colorsys  # noqa: F401 - a module that is forgotten
import gc
import io
import json  # noqa: F401 - a module that is replaced
import locale
import logging
import os
import random
import resource
import signal
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from specmatrix.engine.spec.torch_settings import read
from specmatrix.matrix.conformance.process_state import import_state, process_state, restored_process_state


def _environment() -> None:
    os.environ["SPECMATRIX_NEW"] = "1"
    del os.environ["SPECMATRIX_OLD"]


def _generators() -> None:
    torch.rand(1)
    np.random.rand()
    random.random()


def _modules() -> None:
    del sys.modules["colorsys"]
    sys.modules["json"] = None


def _hooks() -> None:
    sys.excepthook = threading.excepthook = lambda *raised: None


CHANGES = {
    "the working directory from {here} to /": lambda: os.chdir("/"),
    "the environment variables SPECMATRIX_NEW, SPECMATRIX_OLD": _environment,
    "the signal handlers of SIGALRM, SIGUSR1": lambda: [
        signal.signal(number, signal.SIG_IGN) for number in (signal.SIGUSR1, signal.SIGALRM)
    ],
    "the blocked signals": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]),
    "the timers ITIMER_REAL, ITIMER_VIRTUAL": lambda: [
        signal.alarm(1000),
        signal.setitimer(signal.ITIMER_VIRTUAL, 1000),
    ],
    "the umask from {umask} to 7": lambda: os.umask(0o7),
    "the resource limits RLIMIT_NOFILE": lambda: resource.setrlimit(
        resource.RLIMIT_NOFILE, (128, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    ),
    "the random number generators of numpy, random, torch": _generators,
    "the warnings filters": lambda: warnings.simplefilter("error"),
    "the recursion limit from {limit} to 5000": lambda: sys.setrecursionlimit(5000),
    "the niceness from {niceness} to {nicer}": lambda: os.nice(1),
    "the processors that it may use": lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
    "the standard streams stdin, stdout": lambda: [setattr(sys, "stdout", io.StringIO()), sys.stdin.close()],
    "the modules of sys.modules colorsys, json": _modules,
    "the builtins len": lambda: setattr(builtins, "len", lambda values: 3),
    "sys.path": lambda: sys.path.clear(),
    "sys.argv": lambda: sys.argv.append("more"),
    "the hooks sys.excepthook, threading.excepthook": _hooks,
    "what is called by setprofile, settrace": lambda: [
        sys.settrace(lambda *event: None),
        sys.setprofile(lambda *event: None),
    ],
    "the switch interval from {interval} to 10.0": lambda: sys.setswitchinterval(10),
    "the most digits of an integer from {digits} to 640": lambda: sys.set_int_max_str_digits(640),
    "the garbage collector's enabled, threshold": lambda: [gc.disable(), gc.set_threshold(1)],
    "the level of logging.disable from 0 to 50": lambda: logging.disable(50),
    "the locale from": lambda: locale.setlocale(
        locale.LC_CTYPE, "C" if locale.setlocale(locale.LC_CTYPE) != "C" else "C.UTF-8"
    ),
    "torch's print options precision": lambda: torch.set_printoptions(precision=1),
    "torch's autocast of the CPU from False to True": lambda: torch.set_autocast_enabled("cpu", True),
}


def open_descriptors() -> list[int]:
    listed = [int(each.name) for each in Path("/dev/fd").iterdir()]
    return [fd for fd in listed if Path(f"/dev/fd/{fd}").is_symlink()]


def test_every_state_is_changed():
    assert all(change.startswith(setting.name) for change, setting in zip(CHANGES, process_state(), strict=True))


@pytest.mark.parametrize(("change", "act"), CHANGES.items(), ids=CHANGES)
def test_a_change_is_reported_and_restored(monkeypatch, tmp_path, change, act):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECMATRIX_OLD", "1")
    os.umask(umask := os.umask(0))
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    # Only root may take niceness back.
    watched = [each for each in process_state() if os.geteuid() == 0 or each.name != "the niceness"]
    niceness, before = os.getpriority(os.PRIO_PROCESS, 0), read(watched)
    with restored_process_state() as changes:
        act()
    words = change.format(
        here=tmp_path, limit=sys.getrecursionlimit(), umask=umask, niceness=niceness, nicer=niceness + 1,
        interval=sys.getswitchinterval(), digits=sys.get_int_max_str_digits(),
    )  # fmt: skip
    assert changes == [f"changed {words}"] or (change.endswith("from") and changes[0].startswith(f"changed {words}"))
    assert not sys.stdin.closed
    if "stdin" in change:  # a closed stream is another one on the same descriptor
        assert sys.stdin.name == 0
        sys.stdin = before[[each.name for each in watched].index("the standard streams")]["stdin"][0]
    assert [each.name for each, old, new in zip(watched, before, read(watched), strict=True) if old != new] == (
        ["the standard streams"] if "stdin" in change else []
    )


def test_several_changes_are_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with restored_process_state() as changes:
        os.chdir("/")
        random.random()
    assert changes == [f"changed the working directory from {tmp_path} to / and the random number generators of random"]


def test_closed_and_replaced_descriptors_come_back(tmp_path):
    path = tmp_path / "file"
    path.write_text("text")
    closed, replaced = os.open(path, os.O_RDONLY), os.open(path, os.O_RDONLY)
    os.set_inheritable(replaced, True)
    null = os.open(os.devnull, os.O_RDONLY)
    with restored_process_state() as changes:
        os.close(closed)
        os.dup2(null, replaced)
        os.open(os.devnull, os.O_RDONLY)
    assert changes == [f"closed the file descriptors {closed}, {replaced}"]
    assert os.read(closed, 9) == b"text" and os.read(replaced, 9) == b"text"
    assert os.get_inheritable(replaced) and not os.get_inheritable(closed)


def test_closed_duplicates_are_no_error(tmp_path):
    path = tmp_path / "file"
    path.write_text("text")
    with path.open() as file:
        mine, fd = file.fileno(), os.dup(file.fileno())
        with restored_process_state() as changes:
            same = [other for other in open_descriptors() if os.path.sameopenfile(other, mine)]
            for other in same:
                if other != mine:
                    os.close(other)
    duplicates = sorted({*same} - {fd, mine})
    assert changes == [f"closed the file descriptors {', '.join(map(str, [fd, *duplicates]))}"]


def test_descriptors_that_are_left_open_are_counted():
    with restored_process_state() as changes:
        opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]
    assert changes == ["left 20 more file descriptors open than before"]
    for fd in opened:
        os.close(fd)


def test_descriptors_of_objects_that_nobody_holds_any_more_are_nobodys_loss(tmp_path):
    class Cycle:
        def __init__(self) -> None:
            self.file, self.me = (tmp_path / "file").open("w"), self

    gc.disable()
    try:
        Cycle()
        with warnings.catch_warnings(action="ignore", category=ResourceWarning), restored_process_state([]) as changes:
            gc.collect()
    finally:
        gc.enable()
    assert changes == []


def test_descriptors_that_only_the_restoring_has_count():
    with restored_process_state() as changes:
        opened = open_descriptors()
        os.closerange(opened[-1], opened[-1] + 1)
    assert changes == [f"closed the file descriptors {opened[-1]}"]


def test_an_import_may_add_variables_and_filters_only(monkeypatch):
    monkeypatch.setenv("SPECMATRIX_OLD", "1")
    monkeypatch.delenv("SPECMATRIX_NEW", raising=False)
    with warnings.catch_warnings(), restored_process_state(import_state()) as changes:
        warnings.simplefilter("error")
        os.environ["SPECMATRIX_NEW"] = "1"
    assert (changes, os.environ["SPECMATRIX_NEW"]) == ([], "1")
    with restored_process_state(import_state()) as changes:
        os.environ.clear()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert len(changes) == 1 and changes[0].endswith("and the signal handlers of SIGTERM")
    assert "SPECMATRIX_OLD" in changes[0] and os.environ["SPECMATRIX_OLD"] == "1"
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN


def test_no_change_reports_nothing_and_an_error_propagates(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with restored_process_state() as changes:
        os.close(os.open(os.devnull, os.O_RDONLY))
    assert changes == []
    with pytest.raises(ZeroDivisionError), restored_process_state():
        os.chdir("/")
        _ = 1 / 0
    assert Path.cwd() == tmp_path
