"""Translates cells into the flags of llama.cpp's server and the fields of its /completion."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.subjects.environment import LLAMACPP
from specmatrix.matrix.subjects.limits import AxisLimit, chain_depth, chains_only, declared, obstacle
from specmatrix.matrix.subjects.profiles import profile_of
from specmatrix.matrix.subjects.protocol import EngineCommand, RunningEngine, Subject, SubjectRequest, Unsupported
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.workloads.requirements import BEGUN, COMMON, OVERLAPPING

if TYPE_CHECKING:
    from specmatrix.matrix.workloads.prepared_cell import PreparedCell

# llama.cpp's name of each drafter.
TYPES: Final[Mapping[str, str]] = {
    "none": "none",
    "standalone": "draft-simple",
    "eagle3": "draft-eagle3",
    "dflash": "draft-dflash",
    "ngram": "ngram-simple",
}
STOPS: Final = "llama.cpp has no stop tokens"
IGNORED: Final = "llama.cpp bans an ignored EOS, so that the text is another one"
QUEUED: Final = "HTTP does not show when a request is queued"
LOOKUP: Final = 2
SLOTS: Final = 8
# Tokens that a penalty counts: more than any text has.
EVERY: Final = 1 << 20
# A prompt of the matrix fits in one batch of this size.
WHOLE: Final = 2048
# llama.cpp takes contexts in multiples of this, and cuts each slot's to its limit.
CONTEXT_UNIT: Final = 256
# llama.cpp's own order filters before the temperature; the matrix's is that of SGLang, vLLM and transformers.
SAMPLERS: Final = ("penalties", "temperature", "top_k", "top_p", "min_p")
# By place, in turns; odd places are sampled. Penalties of presence and frequency count the prompt too, unlike others'.
OWN_RULES: Final[tuple[dict[str, Any], ...]] = (
    {"logit_bias": tuple((token, -25.0) for token in COMMON)},
    {"min_p": 0.2, "n": 2},
    {"allowed_token_ids": tuple(range(0, 768, 3)) + COMMON},
    {"repetition_penalty": 1.1, "n": 2},
    {"repetition_penalty": 1.3},
)
# Streamed ones have one completion.
OWN_STOPS: Final[tuple[dict[str, Any], ...]] = ({"stop": (">>", *BEGUN), "stream": True}, {"stop": OVERLAPPING})
# The last large wave, and one more of its prompts and longer texts, after the slots were saved, erased and restored.
WAVE, RESTORED, RESTORED_TOKENS = "w3.", "w5.", 64
WORDS: Final = "llama.cpp bans single tokens only"


class LlamaCppSubject(Subject):
    """llama.cpp's server on one thread of a CPU, float32."""

    name = "llamacpp"
    profile = profile_of("llamacpp")

    def version(self) -> str | None:
        return LLAMACPP.version()

    def translate(self, prepared: PreparedCell) -> EngineCommand | Unsupported:
        """Flags are those of the server, fields of an ask those of /completion."""
        cell = prepared.cell
        if reason := obstacle(prepared, "llamacpp", self.limits(), _unread(prepared.requests)):
            return Unsupported(reason)
        asks = tuple(_ask(request, cell, prepared.facts.vocab_size) for request in prepared.requests)
        return EngineCommand(_flags(prepared), prepared.checkpoints, asks)

    def start(self, command: EngineCommand) -> RunningEngine:
        """Convert the checkpoints and start the server. ConfigError if either fails."""
        from specmatrix.matrix.subjects.llamacpp.engine import LlamaCppEngine

        return LlamaCppEngine(command, self.profile.start_seconds)

    def requests(self, cell: Cell, seed: int) -> Sequence[RequestSpec]:
        """The matrix's requests without reasoning and grammars behind it, ended by EOS too, as llama.cpp bans one that
        is ignored; in cells of rules and stops with those that llama.cpp has, one for each. Behind waves, some prompts
        once more on slots that were saved and restored."""
        found, plain = super().requests(cell, seed), cell
        if cell.sampling == "rules":
            plain = plain._replace(sampling="mixed")
        if cell.finish == "stops":
            plain = plain._replace(finish="stop_string")
        if plain != cell:
            asked = [one for one in super().requests(plain, seed) if not one.name.startswith("d")]
            rules = OWN_RULES if cell.sampling == "rules" else ({},)
            stops = OWN_STOPS if cell.finish == "stops" else ({},)
            texts = (
                replace(one, **rules[place % len(rules)], **stops[place % len(stops)])
                for place, one in enumerate(asked)
            )
            found = [*texts, *(one for one in found if one.name.startswith("d"))]
        if cell.batch == "ramp" and cell.prefix_cache == "on":
            before = tuple(one.name for one in found)
            more: dict[str, Any] = {"max_new_tokens": RESTORED_TOKENS, "after": before}
            again = (replace(one, name=one.name.replace(WAVE, RESTORED), **more) for one in found if WAVE in one.name)
            found = [*found, *again]
        free = ((replace(one, json_schema=None, ebnf=None) if one.reasoning_end_ids else one) for one in found)
        return [replace(one, ignore_eos=False, reasoning_end_ids=()) for one in free]

    def limits(self) -> tuple[AxisLimit, ...]:
        return (
            *declared("llamacpp"),
            *chains_only("llama.cpp"),
            AxisLimit(STOPS, ("finish",), lambda cell: cell.finish == "stop_token"),
            AxisLimit(QUEUED, ("abort",), lambda cell: cell.abort == "queued"),
        )


def _flags(prepared: PreparedCell) -> dict[str, Any]:
    """Flags that all requests of a start share."""
    cell = prepared.cell
    slots = SLOTS if cell.slots == "auto" else int(cell.slots)
    # A server ends where a batch cannot hold the last tokens and drafts of all slots (docs/findings.md).
    room = slots * (1 + (chain_depth(cell) if cell.algorithm != "none" else 0))
    batch = WHOLE if cell.prefill_chunk == "off" else max(int(cell.prefill_chunk), room)
    context = int(prepared.facts.context_length if cell.context == "model" else prepared.asked.context_length)
    flags: dict[str, Any] = {
        "parallel": slots,
        "ctx-size": slots * -(-context // CONTEXT_UNIT) * CONTEXT_UNIT,
        "batch-size": batch,
        "ubatch-size": batch,
        "spec-type": TYPES[cell.algorithm],
    }
    if cell.context != "model":  # builds before 10867 lack the flag
        flags["kv-unified-per-slot"] = context
    if cell.algorithm == "ngram":
        # It drafts no fewer tokens than it looks up.
        depth = chain_depth(cell)
        flags |= {"spec-ngram-simple-size-n": min(LOOKUP, depth), "spec-ngram-simple-size-m": depth}
    elif cell.algorithm != "none":
        flags |= {"spec-draft-n-max": chain_depth(cell), "spec-draft-p-min": 0.0}
    if cell.acceptance == "reject":
        flags["spec-draft-sampling"] = "probabilistic"
    return flags


def _unread(requests: Sequence[RequestSpec]) -> Iterator[str]:
    """Yield a reason for each request that cannot be translated."""
    for request in requests:
        if request.ignore_eos:
            yield IGNORED
        if request.stop_token_ids:
            yield STOPS
        if request.abort_after == 0:
            yield QUEUED
        if any(len(word) > 1 for word in request.bad_words_ids):
            yield WORDS


def _ask(request: RequestSpec, cell: Cell, vocabulary: int) -> SubjectRequest:
    """vocabulary: token ids of the target."""
    from specmatrix.matrix.workloads.questions import prompt_ids

    allowed = frozenset(range(vocabulary) if request.allowed_token_ids is None else request.allowed_token_ids)
    allowed -= {token for (token,) in request.bad_words_ids}
    banned = [[token, False] for token in range(vocabulary) if token not in allowed]
    # Log-probabilities are before rules, and of tokens of rounds without drafts: for ties of plain greedy decoding.
    plain = cell.algorithm == "none" and request.temperature == 0 and not request.ruled
    shown = request.top_logprobs if plain else 0
    values: dict[str, Any] = {
        "n_predict": request.max_new_tokens,
        "temperature": request.temperature,
        "top_k": max(0, request.top_k),
        "top_p": request.top_p,
        "min_p": request.min_p,
        "samplers": list(SAMPLERS),
        "repeat_penalty": request.repetition_penalty,
        "repeat_last_n": EVERY,
        "stop": list(request.stop),
        "logit_bias": [*([token, bias] for token, bias in request.logit_bias), *banned],
        "n_probs": shown,
        "cache_prompt": cell.prefix_cache == "on",
        "return_tokens": True,
        # Sums of drafts beside every token show the rounds.
        "stream": request.stream or request.abort_after is not None or cell.algorithm != "none",
    }
    if request.json_schema is not None:
        values["json_schema"] = json.loads(request.json_schema)
    if request.ebnf is not None:
        values["grammar"] = request.ebnf
    if request.name.startswith(RESTORED):
        values["restore"] = True
    if request.n > 1:
        values["n_cmpl"] = request.n
    if request.seed is not None:
        values["seed"] = request.seed
    return SubjectRequest(request.name, prompt_ids(request), values, request.after, request.abort_after)
