"""Translates cells into arguments of mlx-lm's generators, samplers and logits processors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from specmatrix.matrix.subjects.environment import MLX, InEnvironment
from specmatrix.matrix.subjects.limits import AxisLimit, chain_depth, chains_only, declared, obstacle, request_fields
from specmatrix.matrix.subjects.profiles import profile_of
from specmatrix.matrix.subjects.protocol import EngineCommand, RunningEngine, SubjectRequest, Unsupported
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.zoo.registry import eos_ids

if TYPE_CHECKING:
    from specmatrix.matrix.cells.cell import Cell
    from specmatrix.matrix.workloads.prepared_cell import PreparedCell

# Tokens of a text that its penalty counts: more than any text has. mlx-lm's default is 20.
EVERY: Final = 1 << 20


class MlxSubject(InEnvironment):
    """mlx-lm on a CPU, float32: a batch of requests, or one at a time with drafts or a seed, as in its server."""

    name = "mlx-lm"
    profile = profile_of("mlx-lm")
    environment = MLX

    def requests(self, cell: Cell, seed: int) -> Sequence[RequestSpec]:
        """The matrix's requests without the rules that mlx-lm has not, and without a bias of EOS where it has no
        minimum length to hold it back. Of top_k and top_p, which it applies in the other order, one by the seed."""
        found = super().requests(cell, seed)
        if cell.sampling == "topk_topp":
            found = [replace(one, **({"top_p": 1.0} if seed % 2 else {"top_k": -1})) for one in found]
        if cell.sampling != "rules" and cell.finish != "stops":
            return found
        late = (replace(one, logit_bias=()) if one.min_new_tokens and cell.finish == "stops" else one for one in found)
        return [one.only(request_fields("mlx-lm")) for one in late]

    def translate(self, prepared: PreparedCell) -> EngineCommand | Unsupported:
        """Flags are those of mlx-lm's generators, and whether the server's prompt cache is used; fields of an ask those
        of its samplers and logits processors, and the rest of what it asks for."""
        if reason := obstacle(prepared, "mlx-lm", self.limits()):
            return Unsupported(reason)
        asks = tuple(_ask(request, prepared.cell) for request in prepared.requests)
        return EngineCommand(_flags(prepared.cell), prepared.checkpoints, asks)

    def start(self, command: EngineCommand) -> RunningEngine:
        """Load the models. ConfigError if mlx-lm refuses them."""
        from specmatrix.matrix.subjects.mlx_lm.engine import MlxEngine

        return MlxEngine(command)

    def limits(self) -> tuple[AxisLimit, ...]:
        return (*declared("mlx-lm"), *chains_only("mlx-lm"))


def _flags(cell: Cell) -> dict[str, Any]:
    """What all requests of a start share."""
    flags: dict[str, Any] = {"prompt_cache": cell.prefix_cache == "on"}
    if cell.prefill_chunk != "off":
        flags["prefill_step_size"] = int(cell.prefill_chunk)
    if cell.slots != "auto":
        flags["completion_batch_size"] = int(cell.slots)
    if cell.algorithm != "none":
        flags["num_draft_tokens"] = chain_depth(cell)
    return flags


def _ask(request: RequestSpec, cell: Cell) -> SubjectRequest:
    """keeps_all: whether a text of drafts is kept under all of its tokens, as in the server (docs/findings.md), and not
    under those whose KV there is: in cells of `gsm` alone, so that what it spoils hides nothing else."""
    from specmatrix.matrix.workloads.questions import prompt_ids

    values: dict[str, Any] = {
        "max_tokens": request.max_new_tokens,
        "eos_token_ids": sorted({*request.stop_token_ids, *(() if request.ignore_eos else eos_ids(cell.target))}),
        "stop_words": list(request.stop),
        "keeps_all": cell.batch == "gsm",
        "stream": request.stream,
        "logprobs": request.logprobs,
        "top_logprobs": request.top_logprobs,
        "sampler": {"temp": request.temperature},
        "logits_processors": {},
    }
    if request.temperature:
        # mlx-lm filters before the temperature, with top_k last.
        values["sampler"] |= {"top_p": request.top_p, "min_p": request.min_p, "top_k": max(0, request.top_k)}
        values["seed"] = request.seed
    if request.repetition_penalty != 1:
        values["logits_processors"]["repetition_penalty"] = request.repetition_penalty
        values["logits_processors"]["repetition_context_size"] = EVERY
    if request.logit_bias:
        values["logits_processors"]["logit_bias"] = [list(pair) for pair in request.logit_bias]
    return SubjectRequest(request.name, prompt_ids(request), values, request.after, request.abort_after)
