"""A pool of idle rank groups: a fresh process takes seconds to import torch, so a finished group is reused."""

from __future__ import annotations

from typing import Final

from specmatrix.engine.parallel.group import PATIENCE, RankGroup
from specmatrix.engine.parallel.worker import Rank
from specmatrix.errors import EngineError

# Idle groups without an engine, by size and device. They end with this process.
_IDLE_GROUP: Final[dict[tuple[int, str], RankGroup]] = {}


class GroupLease:
    """`size` ranks on `device` for one engine, from the pool if available; `close` returns them to the pool.

    patience: as for RankGroup. Raises RankLost if fresh ranks do not start.
    """

    def __init__(self, size: int, device: str, patience: float = PATIENCE) -> None:
        group = _IDLE_GROUP.pop((size, device), None)
        if group is None or not group.alive:
            group = RankGroup(size, device, patience)
        group.patience = patience
        group.begin()
        self._group: RankGroup | None = group

    @property
    def group(self) -> RankGroup:
        """The ranks. Raises EngineError after `close`, because they may serve another engine."""
        if self._group is None:
            raise EngineError("this engine is closed; start another one")
        return self._group

    def close(self) -> None:
        """Return the ranks to the pool, unless they have ended or the pool already has such a group.

        A second call has no effect; raises EngineError while another thread calls the ranks.
        """
        group = self._group
        if group is None:
            return
        with group.exclusive():
            if self._group is None:  # another thread closed it first
                return
            spare = group.alive and (group.size, group.device) not in _IDLE_GROUP
            if spare:
                group.call(_let_go)
            self._group = None
            if spare:
                _IDLE_GROUP[group.size, group.device] = group
            else:
                group.close()


def end_idle_group() -> None:
    """End all idle groups."""
    while _IDLE_GROUP:
        _IDLE_GROUP.popitem()[1].close()


def _let_go(rank: Rank) -> None:
    rank.held = None
