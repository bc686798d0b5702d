"""Translates cells into OpenVINO GenAI's SchedulerConfig and GenerationConfig."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from specmatrix.errors import ConfigError
from specmatrix.matrix.subjects.environment import OPENVINO, InEnvironment
from specmatrix.matrix.subjects.limits import AxisLimit, chain_depth, chains_only, declared, obstacle, request_fields
from specmatrix.matrix.subjects.profiles import profile_of
from specmatrix.matrix.subjects.protocol import EngineCommand, RunningEngine, SubjectRequest, Unsupported
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.workloads.requirements import LATE
from specmatrix.matrix.zoo.registry import eos_ids

if TYPE_CHECKING:
    from specmatrix.matrix.cells.cell import Cell
    from specmatrix.matrix.workloads.prepared_cell import PreparedCell

COMPLETIONS: Final = "OpenVINO GenAI draws several completions of a request only without drafts"
SHALLOW: Final = "OpenVINO GenAI takes no tree with fewer drafts than it is deep"
TREES: Final = (2026, 3)
TREELESS: Final = "OpenVINO GenAI has no trees before 2026.3"
BLOCK: Final = 32
# A prompt of the matrix fits in one step of this size.
WHOLE: Final = 8192
LOOKUP: Final = 2
# OpenVINO's names of the kinds of grammars, in StructuredOutputConfig.
GRAMMARS: Final = {"json_schema": "json_schema", "regex": "regex", "ebnf": "grammar"}
# Fields that are sent if they differ from their default, under OpenVINO's names.
EQUAL: Final[Mapping[str, str]] = {
    "stop": "stop_strings",
    "min_new_tokens": "min_new_tokens",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repetition_penalty",
    "min_p": "min_p",
    "top_p": "top_p",
    "n": "num_return_sequences",
}


class OpenVinoSubject(InEnvironment):
    """OpenVINO GenAI's continuous batching, on one thread of a CPU, float32."""

    name = "openvino"
    profile = profile_of("openvino")
    environment = OPENVINO

    def requests(self, cell: Cell, seed: int) -> Sequence[RequestSpec]:
        """The matrix's requests without reasoning and the rules that OpenVINO GenAI has not, with one completion beside
        drafts, and greedy ones of trees. Where the matrix makes EOS likely as soon as it is allowed, it is banned until
        behind the answer."""
        found = [replace(one, reasoning_end_ids=()) for one in super().requests(cell, seed)]
        if cell.sampling != "rules" and cell.finish != "stops":
            return found
        return [
            replace(
                one.only(request_fields("openvino")),
                n=one.n if one.temperature and cell.algorithm == "none" else 1,
                min_new_tokens=min(LATE, one.max_new_tokens) if one.min_new_tokens else 0,
                temperature=0.0 if _tree(cell) else one.temperature,
                min_p=0.0 if _tree(cell) else one.min_p,
            )
            for one in found
        ]

    def translate(self, prepared: PreparedCell) -> EngineCommand | Unsupported:
        """Flags are those of SchedulerConfig, and what drafts need of GenerationConfig; fields of an ask are
        GenerationConfig's, less `stream` and `no_stop_trim`."""
        cell = prepared.cell
        if reason := obstacle(prepared, "openvino", self.limits(), _unread(prepared, self.version())):
            return Unsupported(reason)
        asks = tuple(_ask(request, cell) for request in prepared.requests)
        return EngineCommand(_flags(prepared), prepared.checkpoints, asks)

    def start(self, command: EngineCommand) -> RunningEngine:
        """Convert the checkpoints and start the pipeline. ConfigError if it refuses them."""
        from specmatrix.matrix.subjects.openvino.engine import OpenVinoEngine

        return OpenVinoEngine(command)

    def limits(self) -> tuple[AxisLimit, ...]:
        _, whole = chains_only("OpenVINO GenAI")
        of_chains = AxisLimit(whole.why, (*whole.axes, "topk"), lambda cell: not _tree(cell) and whole.forbids(cell))
        return (*declared("openvino"), of_chains, AxisLimit(SHALLOW, (*whole.axes, "topk"), _too_deep))


def _tree(cell: Cell) -> bool:
    return cell.topk not in ("auto", "1")


def _too_deep(cell: Cell) -> bool:
    return _tree(cell) and "auto" not in (cell.steps, cell.draft_tokens) and int(cell.draft_tokens) <= int(cell.steps)


def _flags(prepared: PreparedCell) -> dict[str, Any]:
    """What all requests of a start share."""
    cell = prepared.cell
    flags: dict[str, Any] = {
        "enable_prefix_caching": cell.prefix_cache == "on",
        "max_num_batched_tokens": WHOLE if cell.prefill_chunk == "off" else int(cell.prefill_chunk),
    }
    if cell.slots != "auto":
        flags["max_num_seqs"] = int(cell.slots)
    if cell.memory != "ample":
        flags["num_kv_blocks"] = -(-cell.memory_tokens // BLOCK)
    if _tree(cell):
        shape = prepared.predicted
        assert not isinstance(shape, ConfigError)  # such a cell is UNSUPPORTED
        flags |= {"num_assistant_tokens": shape.num_draft_tokens - 1, "tree_depth": shape.num_steps}
        flags["branching_factor"] = shape.topk
    elif cell.algorithm != "none":
        flags["num_assistant_tokens"] = chain_depth(cell)
    if cell.algorithm == "ngram":
        flags["max_ngram_size"] = LOOKUP
    return flags


def _unread(prepared: PreparedCell, version: str | None) -> Iterator[str]:
    """Yield a reason for a tree in a version without them, and for each request that cannot be translated."""
    from packaging.version import Version  # not in the engine's own process, which imports this file

    if version is not None and _tree(prepared.cell) and Version(version).release < TREES:
        yield TREELESS
    for request in prepared.requests:
        if request.n > 1 and (prepared.cell.algorithm != "none" or not request.temperature):
            yield COMPLETIONS


def _ask(request: RequestSpec, cell: Cell) -> SubjectRequest:
    from specmatrix.matrix.workloads.questions import prompt_ids

    # An EOS that is ignored beside stop tokens is none of them, as OpenVINO's ignore_eos ignores all.
    ends = sorted({*request.stop_token_ids, *(() if request.ignore_eos else eos_ids(cell.target))})
    stops = ends or sorted(eos_ids(cell.target))
    values: dict[str, Any] = {
        "max_new_tokens": request.max_new_tokens,
        "stop_token_ids": stops,
        "eos_token_id": stops[0],
        "ignore_eos": not ends,
        "do_sample": request.temperature > 0,
        "stream": request.stream,
        "no_stop_trim": request.no_stop_trim,
    }
    if request.stop:  # the adapter cuts the text, and the tokens keep the stop
        values["include_stop_str_in_output"] = True
    if request.seed is not None:
        values["rng_seed"] = request.seed
    if request.temperature:
        values["temperature"] = request.temperature
        if request.top_k > 0:
            values["top_k"] = request.top_k
    elif not (request.ruled or _tree(cell)):  # a tree with log-probabilities ends the pipeline (docs/findings.md)
        values["logprobs"] = 1
    if request.grammar is not None:
        values["structured_output_config"] = {GRAMMARS[request.grammar[0]]: request.grammar[1]}
    for name, value in request.changed.items():
        if name in EQUAL:
            values[EQUAL[name]] = list(value) if isinstance(value, tuple) else value
    return SubjectRequest(request.name, prompt_ids(request), values, request.after, request.abort_after)
