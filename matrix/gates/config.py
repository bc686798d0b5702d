"""Checks the resolved configuration against the golden table, and rewrites and refusals against the predicted ones.

Checks that the configuration took effect: the engine reports it, and counters show that its code paths ran.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from specmatrix.engine.core.config.adaptive_file import dump
from specmatrix.engine.core.config.asked import AUTO, EngineConfig, Resolved
from specmatrix.engine.core.config.defaults import SHAPE
from specmatrix.engine.core.config.resolve import SAME, resolve
from specmatrix.engine.core.config.rules import suffix
from specmatrix.engine.core.config.rules.ngram import FLAGS, PREFIX
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.evidence import EVIDENCE, GPU_EVIDENCE, Evidence
from specmatrix.matrix.gates.gate import Number, Outcome, PackageGate, State
from specmatrix.matrix.golden.outcomes import (
    FIELDS,
    GOLDEN_FILE,
    REFUSED,
    FlagOutcomes,
    Golden,
    changed_flag,
    expected,
    flags_of,
    golden_flags,
    golden_table,
    outcomes,
    ran,
    start_id,
)
from specmatrix.matrix.subjects.protocol import Capability, Run
from specmatrix.matrix.workloads.prepared_cell import PreparedCell

REVIEW: Final = "python -m pytest -m '' tests/registered/cpu/unit/matrix/golden --force-regen"


@dataclass
class ConfigGate(PackageGate):
    """Compares every field with the golden table; explicitly set values must run unless a rewrite is reported. The
    resolved values, all set by flags, must resolve to themselves, and flags that a start refuses or rewrites must do so
    as reviewed."""

    name: str = "config"
    needs: frozenset[Capability] = frozenset({Capability.READBACK, Capability.RESOLUTION})
    golden: Golden = field(default_factory=golden_table)
    flags: FlagOutcomes = field(default_factory=golden_flags)

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """NOT MEASURED if the golden table lacks a field."""
        found = outcomes(prepared.configuration, run.resolved)
        numbers: dict[str, Number] = {"fields": len(found), "rewrites": len(run.resolved["rewrites"])}
        fault = (
            _ignored_setting(prepared.configuration, run)
            or _rewrites(prepared, run)
            or _inconsistent(run)
            or _unrepeatable(prepared)
        )
        if fault:
            return Outcome(self.name, State.FAIL, numbers, message=fault)
        golden, own = expected(self.golden, prepared.cell, prepared.gpus > 0), prepared.cell.own_values
        if REFUSED in golden:
            text = f"the golden table expects a refusal ({golden[REFUSED]!r}), but the engine started"
            return Outcome(self.name, State.FAIL, numbers, message=text, accept=REVIEW)
        for name in found:
            if own and (name not in golden or any(own.keys() & axes for axes in FIELDS.depends[name])):
                continue  # a plug-in's value has no reviewed outcome
            if name in FIELDS.depends and name not in golden:
                return self.not_measured(_not_reviewed(prepared.cell, name), numbers, REVIEW)
            if found[name] != golden.get(name):
                text = f"{name} is {found[name]!r}; the golden table expects {golden.get(name)!r}"
                return Outcome(self.name, State.FAIL, numbers, message=text, accept=REVIEW)
        if text := changed_flag(self.flags, prepared.cell):
            return Outcome(self.name, State.FAIL, numbers, message=text, accept=REVIEW)
        return Outcome(self.name, State.PASS, numbers)

    def judge_refusal(self, prepared: PreparedCell, error: ConfigError | None) -> Outcome:
        """Check a cell that the constraints refuse; `error`: what the start raised, None if the engine started."""
        rules = [constraint.name for constraint in prepared.constraints if constraint.kind == "refused"]
        predicted = prepared.predicted_refusal
        numbers: dict[str, Number] = {"rules": ", ".join(rules), "predicted": predicted}
        if not rules or not predicted:
            text = "no constraint predicts a refusal" + (f", but the engine refused to start: {error}" if error else "")
            return Outcome(self.name, State.FAIL, numbers, message=text)
        if error is None:
            return Outcome(self.name, State.FAIL, numbers, message=f"the engine started; {rules[0]} predicts a refusal")
        if str(error) != predicted:
            text = f"the engine refused with {str(error)!r}; {rules[0]} predicts {predicted!r}"
            return Outcome(self.name, State.FAIL, numbers, message=text)
        golden = expected(self.golden, prepared.cell)
        if prepared.cell.own_values:
            return Outcome(self.name, State.PASS, numbers)
        if not golden:
            return self.not_measured(_not_reviewed(prepared.cell, REFUSED), numbers, REVIEW)
        if golden.get(REFUSED) != predicted:
            text = f"the refusal {predicted!r} differs from the golden table's {golden.get(REFUSED)!r}"
            return Outcome(self.name, State.FAIL, numbers, message=text, accept=REVIEW)
        return Outcome(self.name, State.PASS, numbers)


def _not_reviewed(cell: Cell, name: str) -> str:
    file = GOLDEN_FILE.relative_to(GOLDEN_FILE.parents[2])
    return f"{file} has no entry for {name} in start {start_id(cell)}; run `{REVIEW}` and review its diff"


def _ignored_setting(config: EngineConfig, run: Run) -> str:
    """An explicitly set value that does not run although no rewrite names it, or ""."""
    rewritten = {rewrite["field"] for rewrite in run.resolved["rewrites"]}
    # A switch that is off was not asked for, so that a reason may turn it on.
    switched = {reason["field"] for reason in run.resolved["reasons"] if reason["value"] is True}
    for name in FIELDS.depends:
        wish = getattr(config, name, AUTO)
        if (wish is False and name in switched) or wish in (AUTO, None):
            continue
        if name not in rewritten and ran(run.resolved, name) != wish:
            return f"{name} was set to {wish}, but the engine runs {ran(run.resolved, name)} and reports no rewrite"
    return ""


def _inconsistent(run: Run) -> str:
    """A derived value that disagrees with the values it derives from, or ""."""
    now = run.resolved
    derived = {
        "lag": int(now["spec_version"] == "v2"),
        "num_pages": now["max_total_tokens"] // now["page_size"],
        "window_pages": _window_pages(now) if now["window"] else 0,
    }
    for name, value in derived.items():
        if now[name] != value:
            return f"{name} is {now[name]}, but the rest of the configuration implies {value}"
    return ""


def _unrepeatable(prepared: PreparedCell) -> str:
    """A sentence if the resolved values, all passed as textual flags, do not resolve to themselves, or ""."""
    first = prepared.predicted
    assert isinstance(first, Resolved)
    try:
        again = resolve(EngineConfig.from_flags(flags_of(explicit(first))), prepared.facts)
    except ConfigError as error:
        return f"the resolved values are refused when they are set by flags: {error}"
    old, new = ({**each.as_dict(), "reasons": None} for each in (first, again))
    for name, value in {**old, "rewrites": []}.items():
        if new[name] != value:
            return f"{name} is {value}, but {new[name]} when the resolved values are set by flags"
    return ""


def explicit(resolved: Resolved) -> EngineConfig:
    """The configuration that requests exactly these values; it resolves to them without reasons or rewrites.

    Without a drafter the three draft sizes stay `auto`, the only values that NONE accepts.
    """
    flags: dict[str, Any] = {name: getattr(resolved, name) for name in SAME}
    if resolved.num_steps > 0:
        flags |= zip(SHAPE, (resolved.num_steps, resolved.topk, resolved.num_draft_tokens), strict=True)
    if resolved.adaptive_slots:
        flags |= {"speculative_adaptive": True, "speculative_adaptive_config": dump(resolved.adaptive_slots)}
    if resolved.ngram is not None:
        flags |= {name: getattr(resolved.ngram, name.removeprefix(PREFIX)) for name in FLAGS}
    if resolved.suffix is not None:
        flags |= {name: getattr(resolved.suffix, name.removeprefix(suffix.PREFIX)) for name in suffix.FLAGS}
    return EngineConfig(
        **flags,
        speculative_algorithm=resolved.algorithm,
        speculative_draft_model_path=resolved.draft_path,
        enable_multi_layer_eagle=resolved.enable_multi_layer_eagle,
        disable_radix_cache=not resolved.radix_cache,
        chunked_prefill_size=-1 if resolved.chunked_prefill_size is None else resolved.chunked_prefill_size,
    )


def _window_pages(now: Mapping[str, Any]) -> int:
    """Pages for every running request's window, rollback and in-flight positions, at most the share
    `swa_full_tokens_ratio` of `num_pages`."""
    widest = max([now["num_draft_tokens"], *(max(s["candidate_steps"]) + 1 for s in now["adaptive_slots"])])
    chunk = now["chunked_prefill_size"] or now["context_length"]
    reach = now["window"] + (now["lag"] + 1) * (widest + max(widest, chunk))
    pages: int = now["max_running_requests"] * (1 + math.ceil(reach / now["page_size"]))
    shared: int = math.ceil(now["num_pages"] * now["swa_full_tokens_ratio"])
    return max(1, min(pages, shared))


def _rewrites(prepared: PreparedCell, run: Run) -> str:
    """A difference between the reported and the predicted rewrites, or ""."""
    if isinstance(prepared.predicted, ConfigError):
        return f"the engine started, but was predicted to refuse with {str(prepared.predicted)!r}"
    predicted = prepared.predicted.as_dict()["rewrites"]
    reported = list(run.resolved["rewrites"])
    if predicted != reported:
        return f"the engine reports the rewrites {reported}; predicted: {predicted}"
    if bool(reported) != (prepared.expectation == "rewritten"):
        return f"the cell is expected to be {prepared.expectation}, but the engine reports {len(reported)} rewrites"
    return ""


# Start of the message on a counter that is wrongly zero or non-zero.
COUNTER: Final = "counter "
# Readback values without which the running engine is unknown.
REQUIRED: Final = (
    "algorithm", "num_steps", "topk", "num_draft_tokens", "lag", "page_size", "num_pages", "radix_cache",
    "chunked_prefill_size", "max_running_requests",
)  # fmt: skip


@dataclass
class EffectiveGate(PackageGate):
    """The running values equal the resolved ones, the drafter kept its protocol, all evidence that applies holds."""

    name: str = "effective"
    needs: frozenset[Capability] = frozenset({Capability.READBACK, Capability.COUNTERS, Capability.RESOLUTION})
    evidence: tuple[Evidence, ...] = (*EVIDENCE, *GPU_EVIDENCE)

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """NOT MEASURED if a required value is not reported, or if all counters are zero."""
        missing = [key for key in REQUIRED if key not in run.readback or key not in run.resolved]
        if missing:
            return self.not_measured(f"the subject does not report {missing[0]} of the running engine")
        if not any(run.evidence.values()):
            return self.not_measured("all counters are zero, so there is no evidence of what ran")
        common = [key for key in run.readback if key in run.resolved]
        differing = [key for key in common if run.readback[key] != run.resolved[key]]
        required = [row for row in self.evidence if row.applies(prepared.cell, run)]
        unseen = [row for row in required if not row.holds(run)]
        numbers: dict[str, Number] = {
            "keys": len(common),
            "differences": len(differing),
            "workers": len(run.readback.get("workers", ())) + len(run.readback.get("ranks", ())),
            "required": len(required),
            "unseen": len(unseen),
        }
        if error := run.readback.get("drafter_error"):
            return Outcome(self.name, State.FAIL, numbers, message=str(error))
        if strays := list(_strays(run)):
            return Outcome(self.name, State.FAIL, {**numbers, "differences": len(strays)}, message=strays[0])
        if differing:
            key = differing[0]
            text = f"{key} was resolved to {run.resolved[key]!r}, but the engine runs {run.readback[key]!r}"
            return self.verdict(numbers, text)
        return self.verdict(numbers, _unseen(unseen[0], run) if unseen else "")


def nearest_first(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Reorder the outcomes so that a missing counter comes last: it mostly follows from another gate's finding."""
    return sorted(outcomes, key=lambda one: one.gate == EffectiveGate.name and one.message.startswith(COUNTER))


def _strays(run: Run) -> Iterator[str]:
    """Yield a sentence for each option whose running value in a worker or rank differs from the resolved one."""
    for worker, options in run.readback.get("workers", {}).items():
        for name, value in options.items():
            if value != run.resolved[name]:
                yield f"{name} was resolved to {run.resolved[name]!r}, but the {worker} runs {value!r}"
    for number, rank in enumerate(run.readback.get("ranks", ())):
        for name in rank:
            if name in run.resolved and rank[name] != run.resolved[name]:
                yield f"{name} was resolved to {run.resolved[name]!r}, but rank {number} runs {rank[name]!r}"
        if rank.get("workers") != run.readback.get("workers"):
            yield f"the workers of rank {number} are {rank.get('workers')!r}, of rank 0 {run.readback['workers']!r}"


def _unseen(row: Evidence, run: Run) -> str:
    wanted = "0" if row.zero else "more than 0"
    return f"{COUNTER}{row.counter.replace('|', ' or ')} is {row.hits(run)}, expected {wanted}: {row.why}"
