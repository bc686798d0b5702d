"""Is the resolved configuration the reviewed one, and every departure from what was asked the predicted one?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from engine.core.errors import ConfigError
from engine.core.resolve import resolve
from matrix.cell import Cell
from matrix.constraints import expect, explain, situation
from matrix.gates.gate import Number, Outcome, State
from matrix.gates.golden import (
    GOLDEN_FILE,
    golden_row,
    golden_rows,
    golden_table,
    launch_id,
    locked_launches,
    placed,
)
from matrix.gates.threshold import Threshold, values
from matrix.subjects.protocol import Capability, Run
from matrix.zoo_facts import zoo_facts

THRESHOLDS: Final = {
    "differences": Threshold(0, "a configuration changes by a reviewed diff of matrix/golden/resolved.yaml only"),
}
REVIEW: Final = "python -m pytest tests/registered/cpu/matrix/gates/test_config.py --force-regen"
UNREVIEWED: Final = "outside the lock: compared with what the rules predict, not with a reviewed row"
# Resolved name of an asked value, where the two differ; None: read another way or not a value of the resolution.
RESOLVED_NAME: Final[dict[str, str]] = {
    "speculative_num_steps": "num_steps",
    "speculative_eagle_topk": "topk",
    "speculative_num_draft_tokens": "num_draft_tokens",
    "page_size": "page_size",
    "spec_version": "spec_version",
    "max_total_tokens": "max_total_tokens",
    "max_running_requests": "max_running_requests",
}


@dataclass
class ConfigGate:
    """Compares with the golden of the launch; explicit asks must run unless a rewrite says otherwise.

    A launch of no cell of the lock file has no golden. It is compared with what the rules predict, which sees an engine
    that leaves its own rules and not a rule that changed; the numbers say so (`unreviewed`). `locked`: the launches
    of the lock file, which never pass without a golden.
    """

    name: str = "config"
    needs: frozenset[Capability] = frozenset({Capability.READBACK})
    thresholds: Mapping[str, float] = field(default_factory=lambda: values(THRESHOLDS))
    golden: Mapping[str, Any] = field(default_factory=golden_table)
    locked: Callable[[], frozenset[str]] = locked_launches

    def applies(self, cell: Cell) -> bool:
        """Every cell has a launch."""
        return True

    def judge(self, cell: Cell, run: Run, baseline: Run) -> Outcome:
        """NOT MEASURED where a launch of the lock file has no golden."""
        row = golden_row(run.resolved)
        numbers: dict[str, Number] = {"values": len(row["values"]), "rewrites": len(row["rewrites"])}
        fault = _dishonoured(cell, run) or _rewrites(cell, run)
        if fault:
            return Outcome(self.name, State.FAIL, numbers, message=fault)
        golden = self._golden(cell, numbers)
        if golden is None:
            return Outcome(self.name, State.NOT_MEASURED, numbers, message=_unproven(cell))
        golden = placed(golden, run.resolved)
        if golden != row:
            return Outcome(self.name, State.FAIL, numbers, message=_difference(golden, row))
        return Outcome(self.name, State.PASS, numbers)

    def judge_refusal(self, cell: Cell, error: ConfigError | None) -> Outcome:
        """A cell that the constraints refuse: `error` is what the launch raised, None if it ran."""
        rules = [constraint.name for constraint in explain(cell) if constraint.kind == "refused"]
        predicted = predicted_refusal(cell)
        numbers: dict[str, Number] = {"rules": ", ".join(rules), "predicted": predicted}
        if not rules or not predicted:
            text = "no constraint refuses this cell" + (f", but the engine says: {error}" if error else "")
            return Outcome(self.name, State.FAIL, numbers, message=text)
        if error is None:
            return Outcome(self.name, State.FAIL, numbers, message=f"the engine ran it; {rules[0]} predicts a refusal")
        if str(error) != predicted:
            text = f"the engine refused with {str(error)!r}, {rules[0]} predicts {predicted!r}"
            return Outcome(self.name, State.FAIL, numbers, message=text)
        golden = self._golden(cell, numbers)
        if golden is None:
            return Outcome(self.name, State.NOT_MEASURED, numbers, message=_unproven(cell))
        if golden != {"refused": predicted}:
            text = f"the sentence of refusal is not the golden one: {predicted!r}"
            return Outcome(self.name, State.FAIL, numbers, message=text)
        return Outcome(self.name, State.PASS, numbers)

    def _golden(self, cell: Cell, numbers: dict[str, Number]) -> Mapping[str, Any] | None:
        """The row to compare with; None where there should be one. `numbers` learn that a row was not reviewed."""
        launch = launch_id(cell)
        if launch in self.golden or launch in self.locked():
            return self.golden.get(launch)
        numbers["unreviewed"] = UNREVIEWED
        return golden_rows([cell])[launch]


def _unproven(cell: Cell) -> str:
    file = GOLDEN_FILE.relative_to(GOLDEN_FILE.parents[2])
    return f"launch {launch_id(cell)} of the lock file has no golden in {file}; run `{REVIEW}` and review its diff"


def predicted_refusal(cell: Cell) -> str:
    """The sentence of the first rule that refuses the cell, "" if none does."""
    try:
        resolve(cell.config(), zoo_facts(cell))
    except ConfigError as error:
        return str(error)
    return ""


def _dishonoured(cell: Cell, run: Run) -> str:
    """An explicit ask that does not run and that no rewrite names, or ""."""
    asked = situation(cell).asked
    rewritten = {rewrite["field"] for rewrite in run.resolved["rewrites"]}
    for name, key in RESOLVED_NAME.items():
        wish = getattr(asked, name)
        if wish != "auto" and name not in rewritten and run.resolved.get(key) != wish:
            return f"{name} {wish} was asked, {run.resolved.get(key)} runs, and no rewrite says so"
    uncached = asked.disable_radix_cache or "disable_radix_cache" in rewritten
    if uncached == run.resolved.get("radix_cache"):
        return f"disable_radix_cache is {asked.disable_radix_cache}, but radix_cache {run.resolved['radix_cache']} runs"
    chunk = None if asked.chunked_prefill_size == -1 else asked.chunked_prefill_size
    if run.resolved.get("chunked_prefill_size") != chunk:
        return f"chunked_prefill_size {chunk} was asked, {run.resolved.get('chunked_prefill_size')} runs"
    return ""


def _rewrites(cell: Cell, run: Run) -> str:
    """Rewrites must be exactly the predicted ones."""
    predicted = resolve(cell.config(), zoo_facts(cell)).as_dict()["rewrites"]
    reported = list(run.resolved["rewrites"])
    if predicted != reported:
        return f"the rewrites are {reported}, predicted were {predicted}"
    if bool(reported) != (expect(cell) == "rewritten"):
        return f"the cell is expected to be {expect(cell)}, but the engine reports {len(reported)} rewrites"
    return ""


def _difference(golden: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    if "values" not in golden:
        return f"the golden says the launch is refused ({golden.get('refused')!r}), but it runs"
    for key in sorted({*golden["values"], *row["values"]}):
        old, new = golden["values"].get(key), row["values"].get(key)
        if old != new:
            return f"{key} resolves to {new!r}, the golden says {old!r}"
    part = "reasons" if golden["reasons"] != row["reasons"] else "rewrites"
    return f"the {part} are {row[part]}, the golden says {golden[part]}"
