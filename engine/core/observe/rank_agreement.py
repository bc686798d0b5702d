"""Compares what the ranks of an engine do, step by step, from digests that each rank publishes.

A difference must be found before the ranks' next collective, which would hang or combine unrelated tensors: so a rank
publishes its plan before launching it, and a step's results as soon as it has read them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple

PLAN: Final = ("ledger journal", "plan")
RESULT: Final = ("accepted tokens", "draft tokens", "draft errors")


class StepDigest(NamedTuple):
    """One record of a rank: the names of its parts (PLAN or RESULT), and a digest of each."""

    parts: tuple[str, ...]
    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Agreement:
    """The state of the comparison: steps planned and read on all ranks, and one digest of everything per rank.

    divergence: a description of the first difference, None if there is none.
    """

    ranks: int
    planned: int
    read: int
    digests: tuple[str, ...]
    divergence: str | None = None


class RankComparison:
    """Compares the ranks' records in order, each as soon as every rank has published it."""

    def __init__(self, ranks: int) -> None:
        self.received = [0] * ranks
        self._waiting: list[deque[StepDigest]] = [deque() for _ in range(ranks)]
        self._whole = [blake2b(digest_size=8) for _ in range(ranks)]
        self._counts = {PLAN: 0, RESULT: 0}
        self.divergence: str | None = None

    @property
    def agreement(self) -> Agreement:
        digests = tuple(each.hexdigest() for each in self._whole)
        return Agreement(len(self.received), self._counts[PLAN], self._counts[RESULT], digests, self.divergence)

    def add(self, rank: int, record: StepDigest) -> None:
        """Accept a rank's next record."""
        self.received[rank] += 1
        self._whole[rank].update(repr(record).encode())
        self._waiting[rank].append(record)
        while self.divergence is None and all(self._waiting):
            self._compare([queue.popleft() for queue in self._waiting])

    def check_complete(self) -> None:
        """Check, while no step is running, that every rank has published the same number of records."""
        if self.divergence is None and len(set(self.received)) > 1:
            counts = ", ".join(map(str, self.received))
            self.divergence = f"the ranks stopped after different numbers of steps: {counts}"

    def _compare(self, records: Sequence[StepDigest]) -> None:
        first = records[0]
        if first.parts in self._counts:
            self._counts[first.parts] += 1
        for rank, record in enumerate(records[1:], 1):
            if record.parts != first.parts:
                self.divergence = (
                    f"step {self._counts[PLAN]}: rank 0 published its {first.parts[0]} where rank {rank} published its "
                    f"{record.parts[0]}"
                )
                return
            pairs = zip(first.parts, first.digests, record.digests, strict=True)
            if wrong := [part for part, ours, theirs in pairs if ours != theirs]:
                self.divergence = (
                    f"step {self._counts[first.parts]}: the {wrong[0]} of rank {rank} and of rank 0 differ"
                )
                return


def digest(values: object) -> str:
    """16 hex digits over plain values, the same in every process."""
    return blake2b(repr(values).encode(), digest_size=8).hexdigest()
