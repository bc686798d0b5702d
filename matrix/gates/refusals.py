"""Was each request that a session must refuse refused, with the sentence of its class, and no other?"""

from __future__ import annotations

import re
from typing import Final

from specmatrix.matrix.subjects.protocol import Refusal, Run

# The sentence names what was wrong, its value and what is allowed. {id}: the session's.
SENTENCES: Final[dict[Refusal, str]] = {
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
    """What is wrong with the refusals of a run in one sentence, or ""."""
    for answer in run.answers:
        if answer.refusal:
            return f"{answer.name} was refused: {answer.refusal}"
    for ask, sentence in run.attempts:
        assert ask.session is not None and ask.refused is not None
        if not sentence:
            return f"{ask.name} was answered, and had to be refused ({ask.refused})"
        if not re.fullmatch(SENTENCES[ask.refused].format(id=re.escape(ask.session.id)), sentence):
            return f"{ask.name} had to be refused ({ask.refused}), but was for another reason: {sentence}"
    refused = run.evidence.get("session.refused", 0)
    if refused != len(run.attempts):
        return f"{refused} turns were refused, {len(run.attempts)} had to be"
    return ""
