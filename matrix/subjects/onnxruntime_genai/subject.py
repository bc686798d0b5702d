"""Translates cells into ONNX Runtime GenAI's search and speculative options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from specmatrix.matrix.subjects.environment import GENAI, InEnvironment
from specmatrix.matrix.subjects.limits import AxisLimit, chain_depth, chains_only, declared, obstacle, request_fields
from specmatrix.matrix.subjects.profiles import profile_of
from specmatrix.matrix.subjects.protocol import EngineCommand, RunningEngine, SubjectRequest, Unsupported
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.workloads.requirements import LATE
from specmatrix.matrix.zoo.registry import eos_ids

if TYPE_CHECKING:
    from specmatrix.matrix.cells.cell import Cell
    from specmatrix.matrix.workloads.prepared_cell import PreparedCell

# Of its lookup: the tokens that it looks up, and the first of those that it drafts.
NGRAM: Final = 3


class GenaiSubject(InEnvironment):
    """ONNX Runtime GenAI's generators, which take turns, on one thread of a CPU, float32."""

    name = "onnxruntime-genai"
    profile = profile_of("onnxruntime-genai")
    environment = GENAI

    def requests(self, cell: Cell, seed: int) -> Sequence[RequestSpec]:
        """The matrix's requests without the rules and stop strings that ONNX Runtime GenAI has not. Where the matrix
        makes EOS likely as soon as it is allowed, it is banned until behind the answer. Its logits are before all
        rules, so that requests with one have no log-probabilities."""
        found = super().requests(cell, seed)
        if cell.sampling != "rules" and cell.finish != "stops":
            return found
        known = [one.only(request_fields("onnxruntime-genai")) for one in found]
        late = [
            replace(
                one, min_new_tokens=0 if one.ignore_eos else min(LATE, one.max_new_tokens, LATE * one.min_new_tokens)
            )
            for one in known
        ]
        return [replace(one, logprobs=False, top_logprobs=0) if one.ruled else one for one in late]

    def translate(self, prepared: PreparedCell) -> EngineCommand | Unsupported:
        """Flags are speculative options, `chunk_size` of the search, and whether requests continue generators; fields
        of an ask are search options, and the rest of what it asks for."""
        if reason := obstacle(prepared, "onnxruntime-genai", self.limits()):
            return Unsupported(reason)
        asks = tuple(_ask(request, prepared.cell.target) for request in prepared.requests)
        return EngineCommand(_flags(prepared.cell), prepared.checkpoints, asks)

    def start(self, command: EngineCommand) -> RunningEngine:
        """Convert the checkpoints and load the model. ConfigError if it refuses them."""
        from specmatrix.matrix.subjects.onnxruntime_genai.engine import GenaiEngine

        return GenaiEngine(command)

    def limits(self) -> tuple[AxisLimit, ...]:
        return (*declared("onnxruntime-genai"), *chains_only("ONNX Runtime GenAI"))


def _flags(cell: Cell) -> dict[str, Any]:
    """What all requests of a start share."""
    flags: dict[str, Any] = {"rewind_to": cell.prefix_cache == "on"}
    if cell.prefill_chunk != "off":
        flags["chunk_size"] = int(cell.prefill_chunk)
    if cell.algorithm != "none":
        flags["max_draft_tokens"] = chain_depth(cell)
    if cell.algorithm == "ngram":
        flags["ngram_size"] = NGRAM
    return flags


def _ask(request: RequestSpec, target: str) -> SubjectRequest:
    from specmatrix.matrix.workloads.questions import prompt_ids

    values: dict[str, Any] = {
        "max_new_tokens": request.max_new_tokens,
        "min_new_tokens": request.min_new_tokens,
        "eos_token_id": sorted({*request.stop_token_ids, *(() if request.ignore_eos else eos_ids(target))}),
        "do_sample": request.temperature > 0,
        "stream": request.stream,
        "no_stop_trim": request.no_stop_trim,
        "logprobs": request.logprobs and not request.ruled,
        "top_logprobs": 0 if request.ruled else request.top_logprobs,
    }
    if request.temperature:
        # 0 is off: its own default is 50.
        values |= {"temperature": request.temperature, "top_k": max(0, request.top_k), "top_p": request.top_p}
        values["random_seed"] = -1 if request.seed is None else request.seed
    if request.repetition_penalty != 1:
        values["repetition_penalty"] = request.repetition_penalty
    return SubjectRequest(request.name, prompt_ids(request), values, request.after, request.abort_after)
