"""The steps that a workload may take at most, and which request stopped making progress when it takes more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from specmatrix.matrix.subjects.protocol import Stalled

# The oldest request always proceeds, so several requests take fewer steps together than one after another, although
# younger ones are prefilled again after a retraction; a single request without drafts takes all of them.
SPARE: Final = 2


def sequential_steps(prompt: int, new_tokens: int, chunk: int | None, lag: int) -> int:
    """The steps of one request that runs alone and accepts no draft: prompt chunks, a round per token, unread steps."""
    chunks = 1 if chunk is None else -(-(prompt + new_tokens) // chunk)
    return chunks + new_tokens + lag + 1


class Progress:
    """Counts an engine's steps, and the tokens of every request. chunk: tokens of a prefill step, None for whole
    prompts; lag: steps that may be unread."""

    def __init__(self, chunk: int | None, lag: int) -> None:
        self._chunk, self._lag = chunk, lag
        self.steps = 0
        self.limit = 0
        self._seen: dict[str, tuple[int, int]] = {}  # by name: number of tokens, and the step at which it last changed

    def sent(self, prompt: int, new_tokens: int) -> None:
        """A request was sent, or one of several completions."""
        self.limit += SPARE * sequential_steps(prompt, new_tokens, self._chunk, self._lag)

    def step(self, tokens: Mapping[str, int]) -> None:
        """One step was run. tokens: of the requests that have not ended. Stalled if there were too many steps."""
        self.steps += 1
        for name, count in tokens.items():
            if name not in self._seen or self._seen[name][0] != count:
                self._seen[name] = count, self.steps
        if self.steps > self.limit:
            stuck = min(tokens, key=lambda name: self._seen[name][1], default="")
            count, since = self._seen.get(stuck, (0, 0))
            raise Stalled(self.steps, self.limit, stuck, count, since)
