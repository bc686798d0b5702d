"""Ranks between two engines: a fresh process takes seconds to import torch, so a group that is done serves the next."""

from __future__ import annotations

from typing import Final

from engine.ranks.group import PATIENCE, RankGroup
from engine.ranks.process import Rank

# By size and device, those that hold no engine. They end with this process.
_SPARE: Final[dict[tuple[int, str], RankGroup]] = {}


def lend(size: int, device: str, patience: float = PATIENCE) -> RankGroup:
    """A group without an engine, a spare one where one lives. RankLost if a fresh one does not come up."""
    group = _SPARE.pop((size, device), None)
    if group is None or not group.alive:
        group = RankGroup(size, device)
    group.patience = patience
    group.begin()
    return group


def give_back(group: RankGroup) -> None:
    """Keep a group for the next engine, unless it has ended or one like it is kept already."""
    if not group.alive:
        return
    if (group.size, group.device) in _SPARE:
        group.close()
        return
    group.call(_let_go)
    _SPARE[group.size, group.device] = group


def end_spare() -> None:
    """End the groups that are kept."""
    while _SPARE:
        _SPARE.popitem()[1].close()


def _let_go(rank: Rank) -> None:
    rank.held = None
