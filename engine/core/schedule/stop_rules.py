"""The finish state machine, token by token.

A verify round may deliver several tokens at once; each is checked as if it had been decoded alone, so a stop within
tokens that also cross the length limit ends as "stop" (the defect of sglang#33758, where length was tested first).
"""

from __future__ import annotations

from dataclasses import dataclass

from specmatrix.engine.core.schedule.request import Finish, OutputText, Request, SamplingParams


@dataclass(frozen=True, slots=True)
class StopRules:
    """When one request ends. Precedence at one token: stop token, stop string, length.

    Of several stop strings that the same token completes, the one that starts first counts, and of those the longest:
    the text never keeps a part of any. keeps: the text keeps the stop token or string.
    """

    stop_ids: frozenset[int]
    stop_strings: tuple[str, ...]
    max_new_tokens: int
    keeps: bool = False

    @classmethod
    def of(cls, params: SamplingParams, eos_ids: frozenset[int]) -> StopRules:
        """The rules of one request; `eos_ids` are the model's and apply unless the request ignores them."""
        # A grammar that has ended with EOS allows no token after it.
        eos = frozenset() if params.ignore_eos and params.constraint is None else eos_ids
        return cls(
            eos | frozenset(params.stop_token_ids), tuple(params.stop), params.max_new_tokens, params.no_stop_trim
        )

    def judge(self, token: int, count: int, transcript: OutputText) -> Finish | None:
        """Check one token, the `count`th of the output, and add it to the transcript.

        Returns the finish or None. A stop token adds no text; a stop string is cut off, with what follows it. If the
        rules keep them, only what follows is cut off.
        """
        if token in self.stop_ids:
            if self.keeps:
                transcript.take(token)
            return Finish("stop", token)
        before = transcript.read() if self.stop_strings else ""
        transcript.take(token)
        cut = self._first_stop_string(before, transcript.read()) if self.stop_strings else None
        if cut is not None:
            start, matched = cut
            if self.keeps:
                start += len(matched)
            transcript.cut(start)
            return Finish("stop", matched)
        if count >= self.max_new_tokens:
            return Finish("length")
        return None

    def _first_stop_string(self, before: str, text: str) -> tuple[int, str] | None:
        hits = []
        for stop in self.stop_strings:
            # A match must end in the new text, so it cannot start before this.
            start = text.find(stop, max(0, len(before) - len(stop) + 1))
            if start >= 0:
                hits.append((start, -len(stop), stop))
        if not hits:
            return None
        start, _, stop = min(hits)
        return start, stop


def readable(request: Request) -> str:
    """A request's text that stays, whatever follows: all of it once the request has finished."""
    text = request.text
    return text if request.finish else text[: stable_text_length(text, tuple(request.params.stop))]


def stable_text_length(text: str, stop_strings: tuple[str, ...]) -> int:
    """Length of the prefix of a running request's text that no stop string can still remove.

    The rest is a tail that may turn out to be the start of a stop string.
    """
    held = 0
    for stop in stop_strings:
        sizes = range(min(len(stop) - 1, len(text)), held, -1)
        held = next((size for size in sizes if text.endswith(stop[:size])), held)
    return len(text) - held
