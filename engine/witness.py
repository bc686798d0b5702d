"""What a rank tells of itself, so that somebody can see that all ranks do the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.core.agreement import PLAN, RESULT, JournalDigest, Told, digest
from engine.core.plan import StepPlan, StepResult
from engine.core.probes import Probes


class Witness:
    """Tells digests of every plan before its launch and of every result as it is read. journal: the ledger's."""

    def __init__(self, journal: Sequence[object], tell: Callable[[Told], None], probes: Probes) -> None:
        self._journal, self._tell, self._probes = journal, tell, probes
        self._entries = JournalDigest()

    def planned(self, plan: StepPlan) -> None:
        """Before the launch of a plan."""
        self._probes.hit("rank.step")
        self._tell(Told(PLAN, (self._entries.of(self._journal), digest(plan))))

    def read(self, result: StepResult, drafts: Sequence[Sequence[int]]) -> None:
        """drafts: the tokens of each request's proposed tree, empty behind a prefill step."""
        tokens = [row[:count] for row, count in zip(result.tokens, result.counts, strict=True)]
        self._tell(Told(RESULT, (digest(tokens), digest(drafts), digest(result.lies))))
