"""The processes of trials: started one by one, ended all at once where nobody waits for them any more."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Final

LAST_WORDS: Final = 300
STOPPED: Final = "it was stopped"


class Processes:
    """Runs commands, each in the thread that asks for it; `stop` kills what runs and lets nothing start after it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def run(self, command: list[str], folder: Path, environment: Mapping[str, str], seconds: float) -> str | None:
        """None if the process ended well, else its last words."""
        with tempfile.TemporaryFile() as said:
            with self._lock:
                if self._stopped:
                    return STOPPED
                process = subprocess.Popen(
                    command,
                    cwd=folder,
                    env=environment,
                    stdin=subprocess.PIPE,  # it ends with this process (`engine.exit_with_parent`)
                    stdout=subprocess.DEVNULL,
                    stderr=said,
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
            size = said.seek(0, os.SEEK_END)
            said.seek(max(0, size - 4 * LAST_WORDS))
            words = said.read().decode(errors="replace").strip()[-LAST_WORDS:]
        return f"exit status {status}: {words}"

    def stop(self) -> None:
        """Kill every process that runs; whoever waits for one sees it end."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.kill()
