"""The rule of a whole stage: every probe that it demands was hit in some cell, and none that must stay zero was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from specmatrix.reports.schema import Json, ProbeDemand
from specmatrix.reports.wording import count


@dataclass(frozen=True, slots=True)
class ProbeVerdict:
    """What the probes of a run prove: `unhit` were demanded, `broken` must stay zero and were hit; `message` is one
    sentence whatever the state."""

    state: Literal["PASS", "FAIL", "NOT JUDGED"]
    message: str
    unhit: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Json]:
        """The form of `summary.json`."""
        return asdict(self) | {"unhit": list(self.unhit), "broken": list(self.broken)}


@dataclass(frozen=True, slots=True)
class ProbeChange:
    """Probes that one report hits in some cell and the other in none."""

    lost: tuple[str, ...]
    gained: tuple[str, ...]

    def sentences(self) -> tuple[str, ...]:
        """One sentence for each direction that has probes."""
        rows = (("no longer", self.lost), ("now", self.gained))
        return tuple(f"{count(len(names), 'probe')} {word} hit: {', '.join(names)}" for word, names in rows if names)


def judge_probes(demand: ProbeDemand | None, stage: str, cells: int, hits: Mapping[str, int]) -> ProbeVerdict:
    """Judge a run of `cells` supported cells by the sum of their evidence; fewer cells than demanded prove
    nothing."""
    if demand is None:
        return ProbeVerdict("NOT JUDGED", f"probes are not judged: stage {stage} demands none")
    if cells < demand.cells:
        return ProbeVerdict("NOT JUDGED", f"probes are not judged: {cells:,} of the stage's {demand.cells:,} cells ran")
    unhit = tuple(name for name in demand.hit if not hits.get(name, 0))
    broken = tuple(name for name in demand.zero if hits.get(name, 0))
    words = [f"stage {stage} never hit {count(len(unhit), 'probe')}: {', '.join(unhit)}"] if unhit else []
    words += [f"{name} was hit {hits[name]:,} times and must stay zero: {demand.zero[name]}" for name in broken]
    if words:
        return ProbeVerdict("FAIL", "; ".join(words), unhit, broken)
    return ProbeVerdict("PASS", f"{count(len(demand.hit), 'probe')} hit, {len(demand.zero)} at zero as they must be")


def compare_probes(base: Mapping[str, int], head: Mapping[str, int]) -> ProbeChange:
    """What the hits of two reports have gained and lost, by name."""
    old, new = ({name for name, hits in side.items() if hits} for side in (base, head))
    return ProbeChange(tuple(sorted(old - new)), tuple(sorted(new - old)))
