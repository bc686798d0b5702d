"""A request, its sampling parameters and its phases.

The phase table is data: an illegal transition raises, and tests are parametrised by it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from specmatrix.engine.core.observe.spec_metrics import SpecMetrics
from specmatrix.engine.core.schedule.output_text import OutputText
from specmatrix.errors import LedgerError, RequestError, shown


class Phase(Enum):
    """A request's phase. A finished request is not yet released: see DRAINING."""

    WAITING = "waiting"  # queued, owns nothing
    RUNNING = "running"  # owns a row and pages, is planned into steps
    DRAINING = "draining"  # stopped, aborted or retracted, but some of its steps are still unresolved
    DONE = "done"  # released


MOVES: Final[dict[Phase, frozenset[Phase]]] = {
    Phase.WAITING: frozenset({Phase.RUNNING, Phase.DONE}),
    Phase.RUNNING: frozenset({Phase.DRAINING}),
    Phase.DRAINING: frozenset({Phase.DONE, Phase.WAITING}),
    Phase.DONE: frozenset(),
}


def _ids(tokens: Sequence[object], vocab: int) -> bool:
    return all(type(token) is int and 0 <= token < vocab for token in tokens)


def is_text(value: object) -> bool:
    """Whether a value is a text of whole characters, without half of a surrogate pair."""
    try:
        return type(value) is str and bool(value.encode() or True)
    except UnicodeEncodeError:
        return False


# Each field's types, a predicate over its value and the vocabulary size V, and a description of both. Accepted values
# fit an int64 or a float32 (0 or a normal number for temperatures), the types that the device computes with.
ALLOWED: Final[tuple[tuple[str, tuple[type, ...], Callable[[Any, int], bool], str], ...]] = (
    ("max_new_tokens", (int,), lambda n, _: 1 <= n < 2**63, "an integer in [1, 2**63)"),
    (
        "temperature",
        (int, float),
        lambda t, _: t == 0 or 2.0**-126 <= t <= 2.0**126,
        "0, or a number from 2**-126 to 2**126",
    ),
    ("top_k", (int,), lambda k, _: k == -1 or 1 <= k < 2**63, "-1 (off), or an integer in [1, 2**63)"),
    ("top_p", (int, float), lambda p, _: 0.0 < p <= 1.0, "above 0 and at most 1"),
    ("seed", (int, type(None)), lambda s, _: s is None or 0 <= s < 2**63, "an integer in [0, 2**63)"),
    ("stop", (tuple, list), lambda stop, _: all(is_text(s) and s for s in stop), "a list of texts, none empty"),
    ("stop_token_ids", (tuple, list), _ids, "a list of token ids in [0, {V})"),
    ("ignore_eos", (bool,), lambda *_: True, "true or false"),
    ("return_logprob", (bool,), lambda *_: True, "true or false"),
    ("top_logprobs_num", (int,), lambda n, vocab: 0 <= n <= vocab, "an integer in [0, {V}]"),
)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """A request's sampling parameters, with SGLang's names and meanings.

    temperature 0 is greedy, as the limit of small temperatures. top_k -1 is off, top_p 1.0 is off.
    `seed` None uses the engine's seed. `top_logprobs_num` > 0 implies `return_logprob`.
    """

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_k: int = -1
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    return_logprob: bool = False
    top_logprobs_num: int = 0

    def validate(self, vocab_size: int) -> None:
        """Raise RequestError on the first value with a wrong type or outside its range. vocab_size: the model's."""
        for name, kinds, good, allowed in ALLOWED:
            value = getattr(self, name)
            if type(value) not in kinds or not good(value, vocab_size):
                raise RequestError(f"{name} is {shown(value)}; allowed: {allowed.format(V=vocab_size)}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def wants_logprobs(self) -> bool:
        return self.return_logprob or self.top_logprobs_num > 0


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a request ended.

    matched: the stop token id or stop string that ended it. message: the error message, for an error.
    """

    reason: str  # "stop" | "length" | "abort" | "error"
    matched: int | str | None = None
    message: str | None = None


@dataclass(eq=False, slots=True)
class Request:
    """One generation. Written by the scheduler (row, phase, prefilled) and by the loop's resolve (output, finish).

    `output` holds only tokens that are shown; tokens accepted past the finish are dropped.
    `account` is its ledger account: its own id, or that of its session's first turn.
    """

    rid: int
    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    phase: Phase = Phase.WAITING
    row: int = 0
    output: list[int] = field(default_factory=list)
    transcript: OutputText | None = None  # the output's text, set by the loop
    prefilled: int = 0  # positions covered by prefill launches since admission, cached prefix included
    prefill_target: int = 0  # positions that prefill must cover before decode rounds start
    retracting: bool = False
    retractions: int = 0
    cached_tokens: int = 0  # prompt positions whose KV the first admission reused
    account: int = 0
    holds: bool = False  # its account outlives it: it is a streaming session's turn
    inherited: int = 0  # positions of its account at the start of this residence
    finish: Finish | None = None
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    metrics: SpecMetrics = field(default_factory=SpecMetrics)

    def __post_init__(self) -> None:
        self.account = self.account or self.rid

    def move(self, to: Phase) -> None:
        """Change phase; a transition that MOVES does not list raises LedgerError."""
        if to not in MOVES[self.phase]:
            raise LedgerError(f"request {self.rid} cannot move from {self.phase.value} to {to.value}")
        self.phase = to

    @property
    def text(self) -> str:
        """The shown output: its text without the stop token, cut before a stop string."""
        return "" if self.transcript is None else self.transcript.read()

    @property
    def tokens(self) -> list[int]:
        """Prompt and shown output: every token that the host knows."""
        return [*self.prompt, *self.output]

    @property
    def num_tokens(self) -> int:
        """The number of `tokens`."""
        return len(self.prompt) + len(self.output)

    @property
    def decoding(self) -> bool:
        """Running with all its prefill launched, so that verify rounds may be planned."""
        return self.phase is Phase.RUNNING and self.prefilled == self.prefill_target
