"""A process ends with the one that started it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.register(est_seconds=1, stage="pr")

CHILD = """
import sys
from specmatrix.engine.exit_with_parent import exit_with_parent
exit_with_parent()
with open(sys.argv[1], "w") as told:
    print("up", file=told, flush=True)
    while True:
        pass
"""
STARTER = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", *sys.argv[1:]], stdin=subprocess.PIPE).wait()
"""


def test_a_killed_starter_ends_a_process_that_loops_for_ever(tmp_path):
    told = tmp_path / "told"
    os.mkfifo(told)
    starter = subprocess.Popen([sys.executable, "-c", STARTER, CHILD, str(told)])
    with told.open() as reader:
        assert reader.readline() == "up\n"
        starter.kill()
        assert reader.read() == "", "the end of the text is the end of the process"
    starter.wait()
