"""Cells that flip although nothing changed: red in one run and green in another of the same code on the same inputs."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final, NamedTuple

from specmatrix.reports.history.store import ABSENT, LETTERS, History
from specmatrix.reports.schema import CRASH, UNKNOWN
from specmatrix.reports.wording import count

# Runs that must give equal results if equal in all of these.
SAME: Final = ["commit", "tier", "seed", "subject", "version", "inputs"]


class Flaky(NamedTuple):
    """A gate (`CRASH`: none, but the run) that is red for a cell in `red` of `runs` runs of `build`, the newest commit
    at which it flips, one of `commits`. first_red, first_green: runs that show it, as indices of the history."""

    cell: str
    gate: str
    subject: str
    build: str
    red: int
    runs: int
    first_red: int
    first_green: int
    machines: int
    commits: int


def flaky(history: History) -> list[Flaky]:
    """All flaky cells and gates, by cell. Runs of a checkout with changes or of an unknown commit do not count."""
    import numpy as np

    clean = history.runs[~history.runs["dirty"] & (history.runs["commit"] != UNKNOWN)]
    reasons = {(red.run, red.cell): red.gates for red in history.red}
    found: dict[tuple[str, str, str], list[Flaky]] = defaultdict(list)
    green, unjudged = ord(LETTERS["PASS"]), [ord(ABSENT), ord(LETTERS["UNSUPPORTED"])]
    for rows in clean.groupby(SAME, sort=False).groups.values():
        runs = np.asarray(rows)
        states = history.states[runs]
        passed, judged = (states == green), ~np.isin(states, unjudged)
        for cell in np.flatnonzero((passed & judged).any(axis=0) & (~passed & judged).any(axis=0)):
            own = runs[judged[:, cell]]
            red = [int(run) for run in own if (int(run), int(cell)) in reasons]
            first_green = next(int(run) for run in own if int(run) not in red)
            newest = history.runs.loc[own[-1]]
            gates = Counter(gate for run in red for gate in reasons[run, int(cell)])
            machines = history.runs.loc[own, "machine"].nunique()
            for gate, number in gates.items():
                first = next(run for run in red if gate in reasons[run, int(cell)])
                name, subject = history.cells[cell], str(newest["subject"])
                key, build = (name, gate, subject), history.builds[int(own[-1])]
                row = Flaky(name, gate, subject, build, number, len(own), first, first_green, machines, 0)
                found[key].append(row)
    return [
        max(several, key=lambda row: max(row.first_red, row.first_green))._replace(commits=len(several))
        for _, several in sorted(found.items())
    ]


def sentence(row: Flaky) -> str:
    """A flaky cell's behaviour in one sentence."""
    what = "crashes" if row.gate == CRASH else f"{row.gate} is red"
    where = f" on {row.machines} machines" if row.machines > 1 else ""
    more = f", and flips at {count(row.commits - 1, 'more commit')}" if row.commits > 1 else ""
    return f"{what} in {row.red} of {row.runs} runs of {row.build}{where}{more}"
