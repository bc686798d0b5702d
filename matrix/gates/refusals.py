"""Checks that sessions refuse exactly the requests they must, each with the expected error message."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

from specmatrix.matrix.subjects.protocol import Run
from specmatrix.matrix.workloads.request import Refusal

MESSAGES: Final = msgspec.yaml.decode(Path(__file__).with_suffix(".yaml").read_bytes(), type=dict[Refusal, str])


def refusal_fault(run: Run) -> str:
    """A sentence on the first wrong or missing refusal, or ""."""
    for answer in run.answers:
        if answer.refusal:
            return f"{answer.name} was refused: {answer.refusal}"
    for request, message in run.attempts:
        assert request.session is not None and request.refused is not None
        if not message:
            return f"{request.name} was answered, but must be refused ({request.refused})"
        if not re.fullmatch(MESSAGES[request.refused].format(id=re.escape(request.session.id)), message):
            return f"{request.name} must be refused ({request.refused}), but was refused for another reason: {message}"
    refused = run.evidence.get("session.refused", 0)
    if refused != len(run.attempts):
        return f"the engine counts {refused} refused requests; expected {len(run.attempts)}"
    return ""
