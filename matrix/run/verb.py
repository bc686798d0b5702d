"""The engine's operation that an exception came from, read from its traceback."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from traceback import TracebackException, extract_tb
from typing import Final

from specmatrix import HOME

# Characters kept of a traceback's end, where the cause is.
MAX_TRACEBACK: Final = 20_000
# Path suffix of a file -> function -> verb; the innermost matching frame wins.
VERBS: Final[Mapping[str, Mapping[str, str]]] = {
    "engine/core/memory/ledger.py": {
        name: name
        for name in (
            "open", "reserve", "launch", "settle", "cancel", "donate", "hold", "resume", "close", "evict", "check",
        )
    },
    "engine/core/schedule/scheduler.py": {"plan": "schedule"},
    "engine/loop.py": {"_launch": "launch", "_collect": "collect", "_resolve": "resolve"},
    "engine/device_step.py": {"_prefill": "prefill"},
    "engine/spec/verify.py": {"verify": "verify"},
    "engine/api.py": {"__init__": "start", "add": "add"},
    "matrix/subjects/in_process.py": {"start_engine": "start", "generate": "generate"},
}  # fmt: skip
# Hooks of any drafter, wherever it is defined.
HOOKS: Final = ("prime", "propose", "absorb")


def verb_of(error: BaseException) -> str:
    """The verb at fault, "" if no frame of the traceback is one."""
    for frame in reversed(extract_tb(error.__traceback__)):
        if frame.name in HOOKS:
            return frame.name
        for path, verbs in VERBS.items():
            if Path(frame.filename).as_posix().endswith(path) and frame.name in verbs:
                return verbs[frame.name]
    return ""


def traceback_of(error: BaseException) -> str:
    """The whole traceback with its causes, paths inside the packages from their root on."""
    text = "".join(TracebackException.from_exception(error).format()).replace(f"{HOME}/", "")
    return text if len(text) <= MAX_TRACEBACK else f"…{text[1 - MAX_TRACEBACK :]}"
