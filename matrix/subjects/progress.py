"""The maximum number of steps of a workload, and the request without progress when it is exceeded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from specmatrix.matrix.subjects.protocol import Stalled

# The oldest request always proceeds, so concurrent requests take fewer steps than sequential ones, although younger
# ones are prefilled again after a retraction; a single request without drafts takes all of its steps.
SPARE: Final = 2


class Progress:
    """Counts an engine's steps, and the tokens of every request. chunk: tokens of a prefill step, None for whole
    prompts; lag: steps that may be unread.

    limit: maximum steps of the requests sent so far. patience: maximum steps without a token for any of them, as all
    may be in prefill.
    """

    def __init__(self, chunk: int | None, lag: int) -> None:
        self._chunk, self._lag = chunk, lag
        self.steps = self.limit = self.patience = 0
        self._latest = 0  # the last step after which some request had another number of tokens
        self._seen: dict[str, tuple[int, int]] = {}  # by name: number of tokens, and the step at which it last changed

    def sent(self, prompt: int, new_tokens: int) -> None:
        """A request was sent, or one of several completions."""
        chunks = 1 if self._chunk is None else -(-(prompt + new_tokens) // self._chunk)
        self.patience += SPARE * (chunks + self._lag + 1)
        self.limit += SPARE * (chunks + self._lag + 1 + new_tokens)

    def step(self, tokens: Mapping[str, int]) -> None:
        """Count a step that is about to run. tokens: of the unfinished requests. Stalled if there were too many
        steps."""
        self.steps += 1
        for name, count in tokens.items():
            if name not in self._seen or self._seen[name][0] != count:
                self._seen[name] = count, self.steps
                self._latest = self.steps
        idle = self.steps - self._latest
        if self.steps > self.limit or idle > self.patience:
            stuck = min(tokens, key=lambda name: self._seen[name][1], default="")
            count, since = self._seen.get(stuck, (0, 0))
            raise Stalled(self.steps, self.limit, idle, stuck, count, since)
