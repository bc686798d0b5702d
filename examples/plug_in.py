"""A plug-in in one file: two axis values, a gate, and a fault that the gate must see.

    specmatrix axes --plugin examples/plug_in.py
    specmatrix run --plugin examples/plug_in.py --stage pr --cells 'page_size=8 or sampling=cold'
    specmatrix faults two-too-many --plugin examples/plug_in.py

Calls at its top level take effect wherever the file is loaded as a plug-in, in worker processes too. An algorithm that
it registers (`copy_the_prompt.py`) becomes a value of the axis `algorithm`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.own_values import register_value
from specmatrix.matrix.faults.fault import Edit, Fault, register_fault
from specmatrix.matrix.gates.gate import Blame, Outcome, State
from specmatrix.matrix.gates.registry import register_gate
from specmatrix.matrix.subjects.protocol import Capability, Run
from specmatrix.matrix.workloads.prepared_cell import PreparedCell
from specmatrix.matrix.workloads.request import RequestSpec


def cold(requests: tuple[RequestSpec, ...]) -> Iterable[RequestSpec]:
    """Every request is sampled, at a temperature that rarely leaves the greedy text."""
    return [replace(request, temperature=0.1) for request in requests]


# A size: the engine gets the number. Its cells are `none.p8.pair`.
register_value("page_size", "8", token="p8")
# Requests: made from those of `temperature`; the other gates judge the cell as that value.
register_value("sampling", "cold", token="cold", like="temperature", requests=cold)


class LimitsGate:
    """No answer is longer than its request allows."""

    name = "limits"
    needs: frozenset[Capability] = frozenset({Capability.TOKEN_IDS})
    thresholds: Mapping[str, float] = {}

    def applies(self, cell: Cell) -> bool:
        return True

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        most = {request.name: request.max_new_tokens for request in run.requests}
        long = [answer for answer in run.answers if len(answer.output_ids) > most[answer.name]]
        numbers = {"answers": len(run.answers), "long": len(long)}
        if not run.answers:
            return Outcome(self.name, State.NOT_MEASURED, numbers, message="there is no answer")
        if not long:
            return Outcome(self.name, State.PASS, numbers)
        name = long[0].name
        text = f"{len(long)} answers are too long, first {name}: {len(long[0].output_ids)} tokens, {most[name]} allowed"
        return Outcome(self.name, State.FAIL, numbers, message=text, blame=Blame(name, most[name]))


register_gate(LimitsGate())
register_fault(
    Fault(
        id="two-too-many",
        why="two tokens more than max_new_tokens are generated",
        category="stop / EOS / length-cap handling",
        origin="rule: max_new_tokens is a limit",
        within="StopRules.judge",
        old="        if count >= self.max_new_tokens:\n",
        new="        if count >= self.max_new_tokens + 2:\n",
        # Else no step is planned for a request at its limit.
        also=(Edit("Request.limit", "self.params.max_new_tokens", "self.params.max_new_tokens + 2"),),
        expected=("limits",),
        cells=("none.v1.pair.length",),
    )
)
