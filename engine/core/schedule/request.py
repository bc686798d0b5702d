"""A request, its sampling parameters and its phases.

The phase table is data: an illegal transition raises, and tests are parametrised by it.

The finish state machine, token by token.

A verify round may deliver several tokens at once; each is checked as if it had been decoded alone, so a stop within
tokens that also cross the length limit ends as "stop" (the defect of sglang#33758, where length was tested first).

Per-request speculative metrics with SGLang's keys (`meta_info`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, Protocol

from specmatrix.engine.core.schedule.grammar import KINDS, Constraint
from specmatrix.errors import LedgerError, RequestError, shown


@dataclass(slots=True)
class SpecMetrics:
    """Counts over processed verify rounds; a round still in flight at the finish is not counted.

    `correct` excludes the bonus token, `emitted` includes it. `histogram[d]` counts rounds with d accepted drafts.
    `lengths` and `widths` hold each round's tokens, bonus included, and the nodes that it verified. `outside`: indices
    of the output tokens that no round emitted, but prefill steps.
    """

    verify_ct: int = 0
    correct: int = 0
    proposed: int = 0
    emitted: int = 0
    histogram: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    outside: list[int] = field(default_factory=list)

    def count(self, accepted: int, width: int) -> None:
        """One verify round: `accepted` tokens including the bonus, `width` verified nodes including the root."""
        drafts = accepted - 1
        self.verify_ct += 1
        self.correct += drafts
        self.proposed += width - 1
        self.emitted += accepted
        if drafts >= len(self.histogram):
            self.histogram.extend([0] * (drafts + 1 - len(self.histogram)))
        self.histogram[drafts] += 1
        self.lengths.append(accepted)
        self.widths.append(width)

    def meta_info(self, completion_tokens: int) -> dict[str, object]:
        """SGLang's keys. Empty without verify rounds that proposed drafts.

        spec_accept_length = completion_tokens / spec_verify_ct (the token from prefill counts, so it is slightly above
        the mean acceptance length); spec_accept_rate = correct drafts / verified drafts. The histograms count rounds by
        accepted and by verified drafts: a chain's draft j was verified in the rounds of the latter from j on.
        """
        if not self.proposed:
            return {}
        return {
            "spec_verify_ct": self.verify_ct,
            "spec_accept_length": completion_tokens / self.verify_ct,
            "spec_accept_rate": self.correct / self.proposed,
            "spec_num_correct_drafts": self.correct,
            "spec_num_proposed_drafts": self.proposed,
            "spec_correct_drafts_histogram": list(self.histogram),
            "spec_verified_drafts_histogram": [self.widths.count(nodes) for nodes in range(1, max(self.widths) + 1)],
        }


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


def _sequences(words: Sequence[Any], vocab: int) -> bool:
    return all(type(ids) in (tuple, list) and ids and _ids(ids, vocab) for ids in words)


def _biases(bias: Mapping[Any, Any] | None, vocab: int) -> bool:
    values = [] if bias is None else [*bias.values()]
    return _ids([*(bias or ())], vocab) and all(type(x) in (int, float) and -100 <= x <= 100 for x in values)


def is_text(value: object) -> bool:
    """Whether a value is a string without lone surrogates."""
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
    ("min_new_tokens", (int,), lambda n, _: 0 <= n < 2**63, "an integer in [0, 2**63)"),
    ("min_p", (int, float), lambda p, _: 0.0 <= p <= 1.0, "a number from 0 to 1"),
    ("presence_penalty", (int, float), lambda p, _: -2.0 <= p <= 2.0, "a number from -2 to 2"),
    ("frequency_penalty", (int, float), lambda p, _: -2.0 <= p <= 2.0, "a number from -2 to 2"),
    ("repetition_penalty", (int, float), lambda p, _: 0.01 <= p <= 2.0, "a number from 0.01 to 2"),
    ("logit_bias", (dict, type(None)), _biases, "a dict from token ids in [0, {V}) to numbers from -100 to 100"),
    ("bad_words_ids", (tuple, list), _sequences, "a list of lists of token ids in [0, {V}), none empty"),
    (
        "allowed_token_ids",
        (tuple, list, type(None)),
        lambda ids, vocab: ids is None or (0 < len(ids) <= vocab and _ids(ids, vocab)),
        "a list of 1 to {V} token ids in [0, {V})",
    ),
    ("n", (int,), lambda n, _: 1 <= n <= 1024, "an integer in [1, 1024]"),
    ("no_stop_trim", (bool,), lambda *_: True, "true or false"),
    ("logprob_start_len", (int,), lambda n, _: -1 <= n < 2**63, "-1 (off), or an integer in [0, 2**63)"),
    *((kind, (str, type(None)), lambda text, _: text is None or is_text(text), "a text, or None") for kind in KINDS),
    ("reasoning_end_ids", (tuple, list), lambda ids, v: len(ids) <= 32 and _ids(ids, v), "up to 32 ids in [0, {V})"),
)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """A request's sampling parameters, with SGLang's names and meanings.

    temperature 0 is greedy, as the limit of small temperatures. top_k -1 is off, top_p 1.0 is off.
    `seed` None uses the engine's seed. `top_logprobs_num` > 0 implies `return_logprob`.

    n: completions of the prompt; the i-th, from 0, has the seed plus i, modulo 2**63. no_stop_trim: the text keeps the
    stop token or stop string that ended it, and nothing after it. logprob_start_len: 0 or more also returns the
    log-probabilities of the prompt's tokens from this index on, untouched by temperature and logit rules; -1 is off. It
    implies `return_logprob`, and `top_logprobs_num` holds for the prompt too.

    min_new_tokens: EOS (even with `ignore_eos`) and `stop_token_ids` are banned until the output has this many tokens;
    stop strings still end it. min_p: tokens whose probability is below min_p times that of the most likely token are
    not sampled; 0 is off. presence_penalty is subtracted once from the logit of each token in the output,
    frequency_penalty once per occurrence there; repetition_penalty divides positive logits and multiplies negative ones
    of tokens in the prompt or output. logit_bias is added to the logits of the given tokens. bad_words_ids: as in
    transformers, the last token of each sequence is banned where the preceding ones precede it, in prompt and output.
    allowed_token_ids: all other tokens are banned, including EOS unless it is listed. `engine.device.logit_rules`
    states their order and which logits log-probabilities refer to.

    json_schema, regex, ebnf, structural_tag: the output's grammar, at most one (`core.schedule.grammar`). EOS ends such
    a request even with `ignore_eos`; a request for which no token is legal any more ends with an error.
    reasoning_end_ids: the grammar holds only after these tokens, which end the output's reasoning.
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
    min_new_tokens: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | None = None
    bad_words_ids: Sequence[Sequence[int]] = ()
    allowed_token_ids: Sequence[int] | None = None
    n: int = 1
    no_stop_trim: bool = False
    logprob_start_len: int = -1
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    reasoning_end_ids: Sequence[int] = ()

    def validate(self, vocab_size: int, eos_ids: frozenset[int] = frozenset()) -> None:
        """Raise RequestError on the first value with a wrong type or outside its range, or if every token could be
        banned at once. vocab_size, eos_ids: the model's."""
        for name, kinds, good, allowed in ALLOWED:
            value = getattr(self, name)
            if type(value) not in kinds or not good(value, vocab_size):
                raise RequestError(f"{name} is {shown(value)}; allowed: {allowed.format(V=vocab_size)}")
        if self.min_new_tokens > self.max_new_tokens:
            raise RequestError(
                f"min_new_tokens is {self.min_new_tokens}; allowed: at most max_new_tokens, {self.max_new_tokens}"
            )
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) > 1:
            raise RequestError(f"{' and '.join(given)} are given; allowed: one of {', '.join(KINDS)}")
        if self.reasoning_end_ids and not given:
            raise RequestError(
                f"reasoning_end_ids is {shown(self.reasoning_end_ids)} without a grammar; allowed: with one of "
                f"{', '.join(KINDS)}"
            )
        if self.constraint is not None:
            self.constraint.check()
            if not eos_ids:
                raise RequestError(f"{given[0]} is given; allowed: none, as the model has no token that ends a text")
        banned = {ids[-1] for ids in self.bad_words_ids} | (self.stops(eos_ids) if self.min_new_tokens else set())
        kept = range(vocab_size) if self.allowed_token_ids is None else frozenset(self.allowed_token_ids)
        if len(banned) >= len(kept) and banned.issuperset(kept):
            raise RequestError(
                "bad_words_ids and the stop tokens before min_new_tokens could ban every allowed token at once; "
                "allowed: at least one token that they never ban"
            )

    def completions(self, engine_seed: int) -> list[SamplingParams]:
        """The parameters of each of the `n` completions."""
        if self.n == 1:
            return [self]
        first = engine_seed if self.seed is None else self.seed
        return [replace(self, n=1, seed=(first + place) % 2**63) for place in range(self.n)]

    def stops(self, eos_ids: frozenset[int]) -> frozenset[int]:
        """The tokens banned before `min_new_tokens`. eos_ids: the model's."""
        return eos_ids | frozenset(self.stop_token_ids)

    @property
    def constraint(self) -> Constraint | None:
        """The output's grammar; None if it is free."""
        given = ((kind, getattr(self, kind)) for kind in KINDS)
        return next((Constraint(kind, text) for kind, text in given if text is not None), None)

    @property
    def penalises(self) -> bool:
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0, 0, 1)

    @property
    def adjusts(self) -> bool:
        """Whether the logits need more than temperature, top_k and top_p."""
        bans = self.bad_words_ids or self.allowed_token_ids is not None or self.min_new_tokens
        return bool(self.penalises or self.logit_bias or bans or self.min_p)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def wants_logprobs(self) -> bool:
        return self.return_logprob or self.top_logprobs_num > 0 or self.logprob_start_len >= 0


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a request ended.

    matched: the stop token id or stop string that ended it; "grammar" if no token was legal. message: the error
    message, for an error.
    """

    reason: str  # "stop" | "length" | "abort" | "error"
    matched: int | str | None = None
    message: str | None = None


class TextStream(Protocol):
    """Incremental detokenizer. `push` takes tokens in groups of any size and returns the whole text so far."""

    def push(self, tokens: Sequence[int]) -> str: ...


class OutputText:
    """Decodes tokens lazily, when the text is read: most texts are read once, at the end.

    failure: why the text cannot be continued, None if it can.
    """

    __slots__ = ("_stream", "_text", "_waiting", "failure")

    def __init__(self, stream: TextStream) -> None:
        self._stream = stream
        self._waiting: list[int] = []
        self._text = ""
        self.failure: RequestError | None = None

    def take(self, token: int) -> None:
        """Add the next token."""
        self._waiting.append(token)

    def read(self) -> str:
        """The text of all added tokens."""
        if self._waiting:
            try:
                self._text = self._stream.push(self._waiting)
            except RequestError as error:  # raised by the tokenizer
                self.failure = error
            self._waiting = []
        return self._text

    def cut(self, length: int) -> None:
        """Keep the first `length` characters; no token may follow."""
        self._text = self.read()[:length]


@dataclass(eq=False, slots=True, weakref_slot=True)
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
    holds: bool = False  # a turn of a streaming session, whose account outlives the request
    inherited: int = 0  # positions of its account at the start of this residence
    finish: Finish | None = None
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    # Of the prompt tokens from `logprob_start_len` on; None for the first token of the prompt.
    prompt_logprobs: list[float | None] = field(default_factory=list)
    prompt_top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    metrics: SpecMetrics = field(default_factory=SpecMetrics)
    # That each draft of its last resolved round and all before it were right, () before the first or without a budget.
    survivals: tuple[float, ...] = ()
    grammar: object = None  # keeps the compiled grammar of `constraint` alive
    adjusts: bool = field(init=False)  # SamplingParams.adjusts
    constraint: Constraint | None = field(init=False)  # SamplingParams.constraint

    def __post_init__(self) -> None:
        self.account = self.account or self.rid
        self.adjusts, self.constraint = self.params.adjusts, self.params.constraint

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
    def limit(self) -> int:
        """The most tokens that prompt and output may have; at most the context length."""
        return len(self.prompt) + self.params.max_new_tokens

    @property
    def unscored(self) -> int:
        """Index of the first prompt token that still needs a log-probability; the prompt's length if none does."""
        if self.params.logprob_start_len < 0:
            return len(self.prompt)
        return min(len(self.prompt), self.params.logprob_start_len + len(self.prompt_logprobs))

    @property
    def reusable(self) -> list[int]:
        """Tokens whose KV, except the last one's, may be cached: an unscored token needs the step before it."""
        first = self.unscored
        return self.tokens if first == len(self.prompt) else [*self.prompt[: max(first, 1)]]

    @property
    def decoding(self) -> bool:
        """Running with all its prefill launched, so that verify rounds may be planned."""
        return self.phase is Phase.RUNNING and self.prefilled == self.prefill_target
