"""If stdout cannot be written: one sentence and status 2, for every command; if its reader has exited, 141."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from specmatrix.reports.render.console import StdoutConsole

COMMAND = [sys.executable, "-c", "import sys; from specmatrix.cli import main; sys.exit(main())"]


def test_a_reader_that_went_away_is_an_error_and_no_exit():
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.raises(BrokenPipeError), os.fdopen(writer, "w") as file:
        StdoutConsole(file=file).print("x\n" * 10_000)


def test_a_command_whose_reader_went_away_ends_in_silence():
    reader, writer = os.pipe()
    os.close(reader)
    words = [*COMMAND, "faults", "--list"]
    done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_output_beyond_the_largest_file_is_one_sentence(tmp_path: Path):
    """`ulimit -f 1` allows a kibibyte or half of one."""
    words = ["bash", "-c", 'ulimit -f 1; exec "$@" > "$0"', str(tmp_path / "list"), *COMMAND, "faults", "--list"]
    done = subprocess.run(words, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "specmatrix: cannot write the output: File too large\n")
