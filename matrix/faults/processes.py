"""Processes of trials, which can be killed all at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Final

from specmatrix.child_process import ChildProcess

OUTPUT_TAIL: Final = 300  # characters
STOPPED: Final = "the trial was stopped"
HUNG: Final = "the process was still running"


class Processes:
    """Runs each command in the calling thread; `stop` kills the running ones and prevents new ones."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: set[ChildProcess] = set()
        self._stopped = False

    def run(
        self,
        command: list[str],
        folder: Path,
        environment: Mapping[str, str],
        seconds: float,
        results: Path | None = None,
    ) -> str | None:
        """None if the process exits with 0, else its exit status and the end of its output.

        It is killed after `seconds`, or with `results`, a file that it writes, once that has not grown for this long.
        """
        with self._lock:
            if self._stopped:
                return STOPPED
            process = ChildProcess(command, folder, environment)
            self._running.add(process)
        try:
            written = 0
            while (status := process.wait(seconds)) is None and (size := _size(results)) > written:
                written = size
        finally:
            process.stop()
            with self._lock:
                self._running.discard(process)
        if status is None:
            return f"{HUNG} after {seconds:g} s" + " without a result" * (results is not None)
        return None if status == 0 else f"exit status {status}: {process.output_end(OUTPUT_TAIL)}"

    def stop(self) -> None:
        """Kill every running process; its `run` returns."""
        with self._lock:
            self._stopped = True
            running = [*self._running]
        for process in running:
            process.stop()


def _size(file: Path | None) -> int:
    return file.stat().st_size if file is not None and file.is_file() else 0
