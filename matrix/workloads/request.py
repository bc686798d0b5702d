"""A request of a workload. Imports the standard library only, as `subjects/protocol.py`."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, Final

# The kinds of grammars, at most one of which a request has.
GRAMMARS: Final = ("json_schema", "regex", "ebnf", "structural_tag")
# Fields that change which tokens are likely.
RULES: Final = (
    *("bad_words_ids", "allowed_token_ids", "min_new_tokens", "logit_bias", "min_p", "own"),
    *("reasoning_end_ids", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *GRAMMARS,
)


class Refusal(StrEnum):
    """Why a session must refuse a request; each reason has its own error message."""

    OFFSET = "offset"  # a streaming session always continues its whole history
    REPLACE = "replace"  # a streaming session keeps all of its turns
    DROP = "drop_previous_output"  # a streaming session keeps all of its outputs
    IN_FLIGHT = "in flight"  # a streaming session runs one turn at a time
    CLOSED = "closed"  # the session was never opened, or is closed
    CAPACITY = "capacity"  # the text is longer than the session may hold
    CONTEXT = "context"  # the text is longer than the model's context
    POOL = "pool"  # the text does not fit the KV pool
    UNFINISHED = "unfinished"  # the request to continue is still running
    RANGE = "range"  # the offset is beyond the history
    REPLACED = "replaced"  # the request to continue was cleared by a replace


@dataclass(frozen=True, slots=True)
class Continuation:
    """How a request continues a session; offset, replace and drop_previous_output as in SGLang's session parameters.

    id: the session, opened with its first request and closed after its last. follows: name of the request whose tokens
    are the history (in a streaming session, of the last turn that was not aborted), None for a first turn. resend: use
    no session, but send the history before the prompt, as a baseline does. capacity: characters that the session may
    hold. timeout: idle seconds after which it is closed, None for never.
    """

    id: str
    streaming: bool
    follows: str | None = None
    offset: int = 0
    replace: bool = False
    drop_previous_output: bool = False
    resend: bool = False
    capacity: int = 100_000
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """One request of a workload.

    `prompt` is text; `name` identifies it across runs (for pairing). `after`: names of requests that must have ended
    before this one is sent. `abort_after`: abort after that many output tokens (0: while queued or before the first
    token). `retract_after`: retract it, whatever memory is free, once it has that many output tokens; None: never.
    `closes_after`: close its session after that many output tokens. `refused`: the reason for which it must be
    refused, None if it must not. `beside`: name of a request during which this one is sent. `clock`: seconds to wait
    before it is sent; the engine is idle meanwhile, except with `beside`. `logprobs`: return log-probabilities of the
    output tokens, as `top_logprobs` > 0 (number of alternatives) also does. `prompt_logprobs`: index of the first
    prompt token with log-probabilities, -1 for none. `n`: completions, whose seeds count up from `seed`; `seed` None is
    the engine's own. Sampling fields as in SGLang.
    """

    name: str
    prompt: str
    max_new_tokens: int
    temperature: float = 0.0
    top_k: int = -1
    top_p: float = 1.0
    seed: int | None = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    top_logprobs: int = 0
    abort_after: int | None = None
    answer: str | None = None  # the reference answer, for the accuracy gate
    after: tuple[str, ...] = ()
    session: Continuation | None = None
    closes_after: int | None = None
    refused: Refusal | None = None
    beside: str | None = None
    clock: float = 0.0
    logprobs: bool = False
    min_new_tokens: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # pairs of token id and bias
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    no_stop_trim: bool = False
    stream: bool = False  # read its text while it runs
    n: int = 1
    prompt_logprobs: int = -1
    replaced: bool = False  # a session's `replace` ends it while it runs
    own: str = ""  # a subject's own parameters under its names, as a JSON object; set only in a subject's own requests
    json_schema: str | None = None  # a grammar of the output, as are the next three; at most one is given
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    reasoning_end_ids: tuple[int, ...] = ()  # the grammar holds behind these tokens only
    retract_after: int | None = None
    stuck: bool = False  # its bans leave its grammar no token, and it ends with an error
    ours: bool = False  # only the reference engine is sent it
    loose: bool = False  # in a baseline it waits for its session's history alone
    renewal: str = ""  # what the engine, while idle, renews before it is sent: "memory", "weights" or "" for nothing

    def completions(self) -> tuple[RequestSpec, ...]:
        """Each completion as a request of its own, named NAME, NAME#1, NAME#2, ..."""
        if self.n == 1:
            return (self,)
        names = [f"{self.name}#{i}" if i else self.name for i in range(self.n)]
        seeds = [None if self.seed is None else self.seed + i for i in range(self.n)]
        return tuple(replace(self, n=1, name=name, seed=seed) for name, seed in zip(names, seeds, strict=True))

    @property
    def changed(self) -> dict[str, Any]:
        """The fields that differ from their default."""
        values = ((name, default, getattr(self, name)) for name, default in DEFAULTS)
        return {name: value for name, default, value in values if value != default}

    def only(self, read: Set[str]) -> RequestSpec:
        """The request with the default of every field that is not in `read`."""
        defaults: dict[str, Any] = {field.name: field.default for field in fields(self) if field.name not in read}
        return replace(self, **defaults)

    @property
    def rules(self) -> tuple[str, ...]:
        """The logit rules that it sets; without them the same request has another continuation."""
        return tuple(name for name, default in RULE_DEFAULTS if getattr(self, name) != default)

    @property
    def grammar(self) -> tuple[str, str] | None:
        """Kind and text of its grammar; None if its output is free."""
        return next(((kind, text) for kind in GRAMMARS if (text := getattr(self, kind)) is not None), None)

    @property
    def untruncated(self) -> bool:
        """Whether neither top_k nor top_p leaves out tokens."""
        return self.top_k <= 0 and self.top_p >= 1

    @property
    def ruled(self) -> bool:
        """Whether it sets any logit rule."""
        return bool(self.rules)


DEFAULTS: Final = tuple((field.name, field.default) for field in fields(RequestSpec))
RULE_DEFAULTS: Final = tuple((name, default) for name, default in DEFAULTS if name in RULES)
