"""Process-wide state that changed is restored, and each change is reported."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from specmatrix.engine.spec.torch_settings import read
from specmatrix.matrix.conformance.process_state import PROCESS_STATE, restored_process_state

CHANGES = {
    "the default dtype from torch.float32 to torch.float64": lambda: torch.set_default_dtype(torch.float64),
    "the default device from cpu to meta": lambda: torch.set_default_device("meta"),
    "the number of threads from 1 to 2": lambda: torch.set_num_threads(2),
    "the deterministic debug mode from 0 to 2": lambda: torch.use_deterministic_algorithms(True),
    "the float32 matmul precision from highest to medium": lambda: torch.set_float32_matmul_precision("medium"),
    "the working directory from {here} to /": lambda: os.chdir("/"),
    "torch's random number generator": lambda: torch.rand(1, device="cpu"),
    "numpy's random number generator": np.random.rand,
    "Python's random number generator": random.random,
}


def test_every_state_is_changed():
    assert [change.partition(" from ")[0] for change in CHANGES] == [setting.name for setting in PROCESS_STATE]


@pytest.mark.parametrize(("change", "act"), CHANGES.items(), ids=CHANGES)
def test_a_change_is_reported_and_restored(monkeypatch, tmp_path, change, act):
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    before = read(PROCESS_STATE)
    with restored_process_state() as changes:
        act()
    assert changes == [f"changed {change.format(here=tmp_path)}"]
    assert read(PROCESS_STATE) == before


def test_several_changes_are_one_sentence_and_files_that_are_left_open_are_counted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with restored_process_state() as changes:
        os.chdir("/")
        random.random()
    assert changes == [f"changed the working directory from {tmp_path} to / and Python's random number generator"]
    with restored_process_state() as changes:
        opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]
    assert changes == ["left 20 more files open than before"]
    for fd in opened:
        os.close(fd)


def test_no_change_reports_nothing_and_an_error_propagates(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with restored_process_state() as changes:
        os.close(os.open(os.devnull, os.O_RDONLY))
    assert changes == []
    with pytest.raises(ZeroDivisionError), restored_process_state():
        os.chdir("/")
        _ = 1 / 0
    assert Path.cwd() == tmp_path
