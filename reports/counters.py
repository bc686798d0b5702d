"""Counter coverage of a whole stage: every required counter is hit by some cell, forbidden ones stay at zero."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from specmatrix.reports.schema import CounterDemand
from specmatrix.reports.store import Report
from specmatrix.reports.wording import count


@dataclass(frozen=True, slots=True)
class CounterVerdict:
    """Counter coverage of a run: `unhit` counters were required, `broken` ones must stay at zero and were hit.

    `message` is one sentence, whatever the state.
    """

    state: Literal["PASS", "FAIL", "NOT JUDGED"]
    message: str
    unhit: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CounterChange:
    """Counters that some cell of one report hits and no cell of the other."""

    lost: tuple[str, ...]
    gained: tuple[str, ...]

    def sentences(self) -> tuple[str, ...]:
        """One sentence for each direction that has counters."""
        rows = (("no longer", self.lost), ("newly", self.gained))
        return tuple(f"{count(len(names), 'counter')} {word} hit: {', '.join(names)}" for word, names in rows if names)


def judge_counters(demand: CounterDemand | None, stage: str, cells: int, hits: Mapping[str, int]) -> CounterVerdict:
    """Check a run of `cells` supported cells by the sum of their counters; runs with fewer cells than `demand` requires
    are not checked."""
    if demand is None:
        only = "counter coverage is checked in nightly runs only"
        return CounterVerdict("NOT JUDGED", "this tier checks no counter coverage" if stage == "nightly" else only)
    if cells < demand.cells:
        return CounterVerdict(
            "NOT JUDGED", f"counter coverage is not checked: only {cells:,} of the stage's {demand.cells:,} cells ran"
        )
    unhit = tuple(name for name in demand.hit if not hits.get(name, 0))
    broken = tuple(name for name in demand.zero if hits.get(name, 0))
    words = [f"no cell hit {count(len(unhit), 'required counter')}: {', '.join(unhit)}"] if unhit else []
    words += [
        f"counter {name} must stay at zero but was hit {hits[name]:,} times: {demand.zero[name]}" for name in broken
    ]
    if words:
        return CounterVerdict("FAIL", "; ".join(words), unhit, broken)
    return CounterVerdict(
        "PASS", f"all {count(len(demand.hit), 'required counter')} hit, {len(demand.zero)} at zero as required"
    )


def counters_of(report: Report) -> CounterVerdict:
    """The verdict on a report's counters."""
    ran = sum(cell.state != "UNSUPPORTED" for cell in report.lines.values())
    return judge_counters(report.header.counters, report.header.stage, ran, report.evidence)


def worse_counters(base: Report, head: Report) -> tuple[str, ...]:
    """Reasons for which the counters make a comparison red: one in head's demand turned wrong, or coverage that base
    met is not judged in head, although both ran the same stage and tier."""
    old, new = counters_of(base), counters_of(head)
    if {*new.unhit, *new.broken} - {*old.unhit, *old.broken}:
        return (new.message,)
    alike = all(getattr(base.header, name) == getattr(head.header, name) for name in ("stage", "tier"))
    if old.state == "PASS" and new.state == "NOT JUDGED" and alike:
        return (f"base meets its counter coverage, and in head {new.message}",)
    return ()


def compare_counters(base: Mapping[str, int], head: Mapping[str, int]) -> CounterChange:
    """Counters that head gained and lost, by name."""
    old, new = ({name for name, hits in side.items() if hits} for side in (base, head))
    return CounterChange(tuple(sorted(old - new)), tuple(sorted(new - old)))
