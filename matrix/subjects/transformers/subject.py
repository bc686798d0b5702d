"""Translates cells into transformers' arguments: assistant model, early exit, prompt lookup, plain generation.

Requests with logit rules and stops, one rule per request, some of them specific to transformers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.subjects.limits import AUTO_DEPTH, AxisLimit, chains_only, declared, obstacle
from specmatrix.matrix.subjects.profiles import profile_of
from specmatrix.matrix.subjects.protocol import EngineCommand, RunningEngine, Subject, SubjectRequest, Unsupported
from specmatrix.matrix.workloads.build import DRAWS, workload
from specmatrix.matrix.workloads.questions import prompt_ids, questions, token_id, tokenizer
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.workloads.requirements import COMMON, EARLY_EOS
from specmatrix.matrix.zoo.registry import eos_ids
from specmatrix.matrix.zoo.tokenizer import EOS_ID

if TYPE_CHECKING:
    from specmatrix.matrix.workloads.prepared_cell import PreparedCell

MAX_TOKENS: Final = 48  # tokens: enough rounds for each rule to act at every place within one
GROUP: Final = 3  # tokens of a sequence
LENGTH: Final = 80  # tokens of a text, longer than every prompt
Rule = dict[str, Any]


def _own(**arguments: object) -> Rule:
    """Arguments of generate() that no other engine has."""
    return {"own": json.dumps(arguments)}


def _own_rules(answer: Sequence[int]) -> tuple[Rule, ...]:
    """The logits processors of generate() that assisted generation combines with, for a question whose answer has these
    tokens. The n-th has the n-th stop, in turns, if a cell has both: an exponential decay, which needs EOS, never meets
    a ban of EOS, which it turns into nan.

    Not here: guidance_scale and SynthID's watermarks, whose state drafts damage (docs/findings.md)."""
    groups = [[*answer[at : at + GROUP]] for at in range(0, len(answer) - GROUP + 1, GROUP)]
    return (
        {"repetition_penalty": 2.0},
        {"logit_bias": tuple((token, -25.0) for token in COMMON)},
        {"bad_words_ids": tuple(map(tuple, groups))},
        {"allowed_token_ids": tuple(range(0, 768, 3)) + COMMON, "min_new_tokens": 24},
        _own(sequence_bias=[[group, -20.0] for group in groups]),
        _own(no_repeat_ngram_size=3),
        _own(encoder_repetition_penalty=3.0),
        _own(encoder_no_repeat_ngram_size=3),
        _own(suppress_tokens=COMMON, remove_invalid_values=True),
        {**_own(exponential_decay_length_penalty=(10, 1.2)), "ignore_eos": False},
        _own(forced_eos_token_id=EOS_ID),
        _own(prefix_allowed_tokens_fn=3),
        _own(begin_suppress_tokens=answer[:GROUP]),
        _own(watermarking_config={"bias": 12.0, "context_width": 2}, renormalize_logits=True),
        {**_own(forced_bos_token_id=COMMON[0]), "prompt": ""},
    )


# For sampled requests: sampling parameters, and processors that change the distribution.
SAMPLED: Final[tuple[Rule, ...]] = (
    {"min_p": 0.1},
    _own(typical_p=0.8),
    _own(top_h=0.6),
    _own(epsilon_cutoff=0.02),
    _own(eta_cutoff=0.05),
    {"repetition_penalty": 2.0},
    _own(no_repeat_ngram_size=1),
    _own(watermarking_config={"bias": 3.0}),
)
# EOS lists, stops in spite of an ignored EOS, and lengths of the output and of the whole text before which none counts.
STOPS: Final[tuple[Rule, ...]] = (
    EARLY_EOS,
    {"stop_token_ids": (token_id(">>"), token_id("####"))},
    {"stop_token_ids": (token_id("####"),), "ignore_eos": True},
    {**_own(min_length=LENGTH), "logit_bias": ((EOS_ID, 60.0),)},
)


def own_requests(cell: Cell, seed: int, draws: int = DRAWS) -> Sequence[RequestSpec]:
    """The requests of a cell for a seed: the matrix's, but one for each rule where a cell has rules, and one for each
    stop where it has several; if it has both, each rule with a stop. They ask the questions of a batch in turns."""
    ruled, stopped = cell.sampling == "rules", cell.finish == "stops"
    every = workload(cell, seed, draws)
    if not (ruled or stopped):
        return every
    drawn = [request for request in every if request.name.startswith("d")]
    asked = workload(Cell(batch="mixed_lengths", finish="eos" if stopped else cell.finish), seed)[: len(STOPS)]
    rules = [_own_rules(_answer(request)) if ruled else ({},) for request in asked]
    if ruled and cell.algorithm == "nextn":
        # MTP with two layers may crash after a prompt of one token, which the last rule needs (docs/findings.md).
        rules = [one[:-1] for one in rules]
    stops = STOPS if stopped else ({},)
    texts = [
        _with(asked[n % len(asked)], rules[n % len(asked)][n % len(rules[0])], stops[n % len(stops)])
        for n in range(max(len(rules[0]), len(stops)))
    ]
    return [*texts, *(replace(draw, **{"min_p": 0.0, **SAMPLED[n % len(SAMPLED)]}) for n, draw in enumerate(drawn))]


def _answer(request: RequestSpec) -> list[int]:
    """The tokens of the reference answer to a request's question."""
    _, answer = questions()[int(request.name.removeprefix("q"))]
    return [int(token) for token in tokenizer().encode(" " + answer, add_special_tokens=False).ids]


def _with(plain: RequestSpec, rule: Rule, stop: Rule) -> RequestSpec:
    """A request with a rule (part of its name if given) and a stop; their biases are joined."""
    own = {name: value for one in (rule, stop) for name, value in json.loads(one.get("own", "{}")).items()}
    found = {**rule, **stop, "own": json.dumps(own) if own else "", "logprobs": True}
    if "logit_bias" in found:
        found["logit_bias"] = rule.get("logit_bias", ()) + stop.get("logit_bias", ())
    named = {**rule, **json.loads(rule.get("own", "{}"))}
    names = [name for name in named if name not in ("own", "ignore_eos", "prompt")]
    longest = min(MAX_TOKENS, plain.max_new_tokens)
    return replace(plain, name=".".join([plain.name, *names]), max_new_tokens=longest, **found)


# transformers' defaults for depth and confidence.
DEPTH: Final = 20
THRESHOLD: Final = 0.4
LOOKED_UP: Final = 10
# Layers of the zoo's targets, of which early exit runs half.
EXIT_LAYER: Final = 2
# Rules of generate() over ids of the target that end an assistant with another vocabulary.
TARGET_IDS: Final = ("sequence_bias", "watermarking_config")
OWN_DEPTHS: Final = dict.fromkeys(
    ("acceptance", "rejection"), "the depth of its drafts is not the cell's, so the oracle has no rounds for it"
)


class TransformersSubject(Subject):
    """transformers' assisted generation and prompt lookup, one request at a time, float32 on one thread.

    schedule: how the number of draft tokens changes, "" for the cell's own depth in every round. exit_layer: number of
    the target's layers that draft instead of a draft model. variant: of the draft.
    """

    name = "transformers"
    schedule = ""
    exit_layer: int | None = None
    variant = ""
    profile = profile_of("transformers")

    def version(self) -> str | None:
        try:
            return version("transformers")
        except PackageNotFoundError:
            return None

    def requests(self, cell: Cell, seed: int) -> Sequence[RequestSpec]:
        return own_requests(cell, seed, self.profile.draws_of(cell))

    def translate(self, prepared: PreparedCell) -> EngineCommand | Unsupported:
        """Use transformers' names: flags are arguments of generate() and of the assistant's generation_config, fields
        of an ask are arguments of generate(), less `seed`, `logprobs` and `top_logprobs`."""
        cell = prepared.cell
        if reason := obstacle(prepared, "transformers", self.limits(), _unseeded(prepared.requests)):
            return Unsupported(reason)
        checkpoints = {"target": cell.target}
        if cell.algorithm == "standalone" and self.exit_layer is None:
            checkpoints["draft"] = str(cell.draft)
        asks = tuple(_ask(request, cell.target, prepared.facts.vocab_size) for request in prepared.requests)
        variant = self.variant if "draft" in checkpoints else ""
        return EngineCommand(self._flags(cell), checkpoints, asks, variant, environment={"OMP_NUM_THREADS": "1"})

    def start(self, command: EngineCommand) -> RunningEngine:
        """Load the checkpoints. ConfigError if transformers refuses one."""
        from specmatrix.matrix.subjects.transformers.engine import TransformersEngine

        return TransformersEngine(command)

    def limits(self) -> tuple[AxisLimit, ...]:
        variant = declared("transformers variants") if self.schedule else ()
        return (*declared("transformers"), *variant, *chains_only("transformers"))

    def _flags(self, cell: Cell) -> dict[str, Any]:
        """Arguments that all requests of a start share."""
        depth = cell.steps if cell.steps != "auto" else cell.draft_tokens
        drafts = None if depth == "auto" else int(depth) - (cell.steps == "auto")
        flags: dict[str, Any] = {"dtype": "float32"}
        if cell.prefill_chunk != "off":
            flags["prefill_chunk_size"] = int(cell.prefill_chunk)
        if cell.algorithm == "ngram":
            flags |= {"prompt_lookup_num_tokens": drafts or LOOKED_UP, "max_matching_ngram_size": 2}
        elif cell.algorithm == "standalone":
            # Below the threshold's confidence the assistant stops drafting.
            flags["num_assistant_tokens"] = drafts or (DEPTH if self.schedule else AUTO_DEPTH)
            flags["assistant_confidence_threshold"] = THRESHOLD if self.schedule else 0.0
            flags["num_assistant_tokens_schedule"] = self.schedule or "constant"
            if self.exit_layer is not None:
                flags["assistant_early_exit"] = self.exit_layer
        elif cell.algorithm == "nextn":
            flags["use_mtp"] = True
        return flags


class DynamicSubject(TransformersSubject):
    """Assisted generation with transformers' defaults: 20 drafts, fewer where the assistant is not confident."""

    name = "transformers-dynamic"
    schedule = "constant"
    profile = replace(TransformersSubject.profile, excluded=OWN_DEPTHS)


class HeuristicSubject(DynamicSubject):
    """Assisted generation with the heuristic schedule, which changes the number of draft tokens after every round."""

    name = "transformers-heuristic"
    schedule = "heuristic"


class EarlyExitSubject(DynamicSubject):
    """Drafts with the target's own first layers instead of a draft model."""

    name = "transformers-early-exit"
    schedule = "constant"
    exit_layer = EXIT_LAYER


class UniversalSubject(DynamicSubject):
    """Universal assisted decoding: with a draft model that has another tokenizer and vocabulary."""

    name = "transformers-universal"
    variant = "other vocabulary"

    def requests(self, cell: Cell, seed: int) -> Sequence[RequestSpec]:
        """The requests without rules that fail with another vocabulary: the assistant applies the target's ids to its
        own (docs/findings.md)."""
        found = super().requests(cell, seed)
        return [
            one
            for one in found
            if not (one.logit_bias or one.bad_words_ids or any(name in one.own for name in TARGET_IDS))
        ]


def _unseeded(requests: tuple[RequestSpec, ...]) -> Iterator[str]:
    if any(request.seed is None for request in requests):
        yield "transformers' generate() has no seed of its own"


def _ask(request: RequestSpec, target: str, vocabulary: int) -> SubjectRequest:
    stops = sorted({*request.stop_token_ids, *(() if request.ignore_eos else eos_ids(target))})
    values: dict[str, Any] = {
        "max_new_tokens": request.max_new_tokens,
        "do_sample": request.temperature > 0,
        "eos_token_id": stops or None,
        "seed": request.seed,
        "logprobs": request.logprobs,
        "top_logprobs": request.top_logprobs,
        **_rules(request, vocabulary),
    }
    if request.stop:
        values["stop_strings"] = list(request.stop)
    if request.temperature:
        # 0 is off: transformers' own default is 50.
        values |= {"temperature": request.temperature, "top_k": max(0, request.top_k), "top_p": request.top_p}
    return SubjectRequest(request.name, prompt_ids(request), values, request.after)


def _rules(request: RequestSpec, vocabulary: int) -> dict[str, Any]:
    """Arguments for the rules that change logits, where a request has any; vocabulary: token ids of the target."""
    same = ("min_new_tokens", "min_p", "repetition_penalty")
    values: dict[str, Any] = {name: value for name, value in request.changed.items() if name in same}
    if request.logit_bias:
        values["sequence_bias"] = [[[token], bias] for token, bias in sorted(request.logit_bias)]
    if request.bad_words_ids:
        values["bad_words_ids"] = [list(word) for word in request.bad_words_ids]
    if request.allowed_token_ids is not None:
        allowed = frozenset(request.allowed_token_ids)
        values["suppress_tokens"] = [token for token in range(vocabulary) if token not in allowed]
    return {**values, **json.loads(request.own or "{}")}
