"""Ranks between two engines: a fresh process takes seconds to import torch, so a group that is done serves the next."""

from __future__ import annotations

from typing import Final

from specmatrix.engine.parallel.group import PATIENCE, RankGroup
from specmatrix.engine.parallel.worker import Rank
from specmatrix.errors import EngineError

# By size and device, those that hold no engine. They end with this process.
_SPARE: Final[dict[tuple[int, str], RankGroup]] = {}


class Lease:
    """`size` ranks on `device` for one engine, spare ones where they live; `close` makes them spare again.

    patience: as for RankGroup. RankLost if fresh ranks do not come up.
    """

    def __init__(self, size: int, device: str, patience: float = PATIENCE) -> None:
        group = _SPARE.pop((size, device), None)
        if group is None or not group.alive:
            group = RankGroup(size, device, patience)
        group.patience = patience
        group.begin()
        self._group: RankGroup | None = group

    @property
    def group(self) -> RankGroup:
        """The ranks. EngineError once they were given back, as they may serve another engine then."""
        if self._group is None:
            raise EngineError("this engine is closed; start another one")
        return self._group

    def close(self) -> None:
        """Let the engine go. Its ranks are spare then, unless they have ended or others like them are spare already.

        A second time does nothing; EngineError while another thread calls the ranks.
        """
        group = self._group
        if group is None:
            return
        with group.exclusive():
            if self._group is None:  # another thread was quicker
                return
            spare = group.alive and (group.size, group.device) not in _SPARE
            if spare:
                group.call(_let_go)
            self._group = None
            if spare:
                _SPARE[group.size, group.device] = group
            else:
                group.close()


def end_spare() -> None:
    """End the ranks that are spare."""
    while _SPARE:
        _SPARE.popitem()[1].close()


def _let_go(rank: Rank) -> None:
    rank.held = None
