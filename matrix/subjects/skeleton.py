"""A template for a subject (an engine under test): fill in each TODO.

`specmatrix subjects check FILE.py:MySubject` runs the contract, `specmatrix run --subject FILE.py:MySubject` cells.
docs/subjects.md explains the classes and their fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specmatrix.matrix.subjects.protocol import (
    Answer,
    Capability,
    EngineCommand,
    Profile,
    RunningEngine,
    Subject,
    SubjectRequest,
    Unsupported,
)
from specmatrix.matrix.workloads.prepared_cell import PreparedCell
from specmatrix.matrix.workloads.questions import prompt_ids
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.zoo.registry import resolve_path

# TODO: the matrix's algorithms, and what your engine calls them.
MODES = {"none": None, "standalone": "draft_model", "eagle3": "eagle3"}
# TODO: axes that `translate` reads; a cell with a non-default value on any other axis is unsupported.
AXES = {"algorithm", "model", "batch", "finish"}
# TODO: fields of a request that `translate` reads, or that only what the profile does not claim would need.
FIELDS = {"name", "prompt", "max_new_tokens", "ignore_eos", "seed", "after", "answer", "logprobs", "top_logprobs"}


class MySubject(Subject):
    name = "mine"
    # TODO: claim what the engine provides. Each claim adds gates; `cannot` may say why others do not apply.
    profile = Profile(
        frozenset({Capability.TOKEN_IDS, Capability.ROUNDS, Capability.READBACK}),
        cannot={Capability.JOURNAL: "its pages have no journal"},
    )

    def version(self) -> str | None:
        """TODO: the engine's version, None if it is not installed."""
        return "0"

    def translate(self, prepared: PreparedCell) -> EngineCommand | Unsupported:
        """Translate the cell into the engine's format: pure, without the engine. Return Unsupported for what cannot be
        translated."""
        cell, plain = prepared.cell, type(prepared.cell)()
        for axis, value in cell.values.items():
            if axis not in AXES and value != getattr(plain, axis):
                return Unsupported(f"it has no {axis} {value}")
        if cell.algorithm not in MODES:
            return Unsupported(f"it has no {cell.algorithm}")
        for request in prepared.requests:
            for name in request.changed:
                if name not in FIELDS:
                    return Unsupported(f"it does not translate {name} of a request")
        models = {"target": cell.target} | ({"draft": cell.draft} if cell.draft else {})
        return EngineCommand({"mode": MODES[cell.algorithm]}, models, tuple(map(ask, prepared.requests)))

    def start(self, command: EngineCommand) -> RunningEngine:
        """Called in a process of its own."""
        return MyEngine(command)


def ask(request: RequestSpec) -> SubjectRequest:
    """Convert a request, its parameters under the engine's names, as JSON."""
    parameters = {"max_tokens": request.max_new_tokens, "ignore_eos": request.ignore_eos, "seed": request.seed}
    return SubjectRequest(request.name, prompt_ids(request), parameters, request.after)


class MyEngine(RunningEngine):
    def __init__(self, command: EngineCommand) -> None:
        self.flags = dict(command.flags)
        self.models = {role: resolve_path(name) for role, name in command.checkpoints.items()}
        raise NotImplementedError("TODO: start the engine with these flags and model folders")

    def generate(self, asks: Sequence[SubjectRequest]) -> list[Answer]:
        """TODO: an Answer for each ask, in order: its id, its prompt's and its output's tokens, the text, how it ended
        ("stop", "length", "abort", "error" or "refused"), the stop token or string that ended it, how many of the
        prompt's tokens were cached, and the tokens of each verify round."""
        return [Answer(ask.id, ask.input_ids, (), "", "stop", None, 0, ()) for ask in asks]

    def readback(self) -> Mapping[str, Any]:
        """TODO: the flags with the values that run."""
        return self.flags

    def close(self) -> None:
        """TODO: release what `generate` does not need any more; called twice, the second call does nothing."""
        self.models.clear()
