"""What a rank tells of itself, so that somebody can see that all ranks do the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b

from specmatrix.engine.core.memory.ledger import Ledger
from specmatrix.engine.core.observe.counters import Probes
from specmatrix.engine.core.observe.rank_agreement import PLAN, RESULT, StepDigest, digest
from specmatrix.engine.core.schedule.step import StepPlan, StepResult


class RankDigest:
    """Tells digests of the ledger's journal and of every plan before its launch, and of every result as it is read."""

    def __init__(self, ledger: Ledger, tell: Callable[[StepDigest], None], probes: Probes) -> None:
        self._tell, self._probes = tell, probes
        self._journal = blake2b(digest_size=8)
        ledger.subscribe(lambda entry: self._journal.update(repr(entry).encode()))

    def planned(self, plan: StepPlan) -> None:
        """Before the launch of a plan."""
        self._probes.hit("rank.step")
        self._tell(StepDigest(PLAN, (self._journal.hexdigest(), digest(plan))))

    def read(self, result: StepResult, drafts: Sequence[Sequence[int]]) -> None:
        """drafts: the tokens of each request's proposed tree, empty behind a prefill step."""
        tokens = [row[:count] for row, count in zip(result.tokens, result.counts, strict=True)]
        self._tell(StepDigest(RESULT, (digest(tokens), digest(drafts), digest(result.lies))))
