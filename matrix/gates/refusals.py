"""Checks that sessions refuse exactly the requests they must, each with the expected error message."""

from __future__ import annotations

import re
from typing import Final

from specmatrix.matrix.subjects.protocol import Run
from specmatrix.matrix.workloads.request import Refusal

# Each message names what is wrong, its value and what is allowed. {id}: the session's id.
MESSAGES: Final[dict[Refusal, str]] = {
    Refusal.OFFSET: r"session '{id}' is streaming and offset is \d+; allowed: 0",
    Refusal.REPLACE: r"session '{id}' is streaming and replace is True; allowed: False",
    Refusal.DROP: r"session '{id}' is streaming and drop_previous_output is True; allowed: False",
    Refusal.IN_FLIGHT: r"session '{id}' has request \d+ in flight; a streaming session runs one request at a time",
    Refusal.CLOSED: r"session '{id}' is not open; open it with open_session",
    Refusal.CAPACITY: r"the history and new text of session '{id}' are \d+ characters; allowed: at most .* \d+",
    Refusal.CONTEXT: r"prompt \(\d+\) plus max_new_tokens \(\d+\) is \d+ tokens; allowed: .* context .*",
    Refusal.POOL: r"prompt plus max_new_tokens \(\d+\) and \d+ speculative positions do not fit the KV pool .*",
    Refusal.UNFINISHED: r"request \d+ has not finished; a session continues finished requests only",
    Refusal.RANGE: r"offset is \d+; allowed: 0 to the history's \d+ tokens",
    Refusal.REPLACED: r"session '{id}' has no request \d+; allowed: \[\d+(, \d+)*\]",
}


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
