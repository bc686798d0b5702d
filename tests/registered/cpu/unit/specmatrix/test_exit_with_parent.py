"""A process ends with its parent."""

from __future__ import annotations

import os
import subprocess
import sys

CHILD = """
import sys
from specmatrix.exit_with_parent import exit_with_parent
exit_with_parent()
with open(sys.argv[1], "w") as fifo:
    print("up", file=fifo, flush=True)
    while True:
        pass
"""
STARTER = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", *sys.argv[1:]], stdin=subprocess.PIPE).wait()
"""


def test_a_killed_starter_ends_a_process_that_loops_for_ever(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    starter = subprocess.Popen([sys.executable, "-c", STARTER, CHILD, str(fifo)])
    with fifo.open() as reader:
        assert reader.readline() == "up\n"
        starter.kill()
        assert reader.read() == "", "the end of the text is the end of the process"
    starter.wait()
