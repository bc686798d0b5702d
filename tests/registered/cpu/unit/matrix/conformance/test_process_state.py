"""Process-wide state that changed is restored, and each change is reported."""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from specmatrix.matrix.conformance.process_state import PROCESS_STATE, import_state, restored_process_state

pytestmark = pytest.mark.register(est_seconds=1, stage="pr")


def _environment() -> None:
    os.environ["SPECMATRIX_NEW"] = "1"
    del os.environ["SPECMATRIX_OLD"]


def _generators() -> None:
    torch.rand(1)
    np.random.rand()
    random.random()


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
}


def state() -> list[object]:
    return [setting.read() for setting in PROCESS_STATE]


def open_descriptors() -> list[int]:
    listed = [int(each.name) for each in Path("/dev/fd").iterdir()]
    return [fd for fd in listed if Path(f"/dev/fd/{fd}").is_symlink()]


def test_every_state_is_changed():
    assert all(change.startswith(setting.name) for change, setting in zip(CHANGES, PROCESS_STATE, strict=True))


@pytest.mark.parametrize(("change", "act"), CHANGES.items(), ids=CHANGES)
def test_a_change_is_reported_and_restored(monkeypatch, tmp_path, change, act):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECMATRIX_OLD", "1")
    os.umask(umask := os.umask(0))
    before = state()
    with restored_process_state() as changes:
        act()
    assert changes == [f"changed {change.format(here=tmp_path, limit=sys.getrecursionlimit(), umask=umask)}"]
    assert state() == before


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
