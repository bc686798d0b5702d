"""Processes of trials, which can be killed all at once."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Final

STDERR_TAIL: Final = 300  # characters
STOPPED: Final = "the trial was stopped"


class Processes:
    """Runs each command in the calling thread; `stop` kills the running ones and prevents new ones."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def run(self, command: list[str], folder: Path, environment: Mapping[str, str], seconds: float) -> str | None:
        """None if the process exits with 0, else its exit status and the end of its stderr."""
        with tempfile.TemporaryFile() as output:
            with self._lock:
                if self._stopped:
                    return STOPPED
                process = subprocess.Popen(
                    command,
                    cwd=folder,
                    env=environment,
                    stdin=subprocess.PIPE,  # it ends with this process (`engine.exit_with_parent`)
                    stdout=subprocess.DEVNULL,
                    stderr=output,
                )
                self._running.add(process)
            try:
                status = process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                return f"the process was still running after {seconds:g} s"
            finally:
                assert process.stdin is not None
                process.stdin.close()
                with self._lock:
                    self._running.discard(process)
            if status == 0:
                return None
            size = output.seek(0, os.SEEK_END)
            output.seek(max(0, size - 4 * STDERR_TAIL))
            words = output.read().decode(errors="replace").strip()[-STDERR_TAIL:]
        return f"exit status {status}: {words}"

    def stop(self) -> None:
        """Kill every running process; its `run` returns."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.kill()
