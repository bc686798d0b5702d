"""The verify rounds and the end of a request, as the oracle's text and rounds imply them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final, NamedTuple

from specmatrix.engine.core.config.asked import Resolved
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell, zoo_facts
from specmatrix.matrix.workloads.finish import Ending, ending, text_of
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.workloads.stored_oracle import oracle_index, oracle_of

# A draft's shape, as a resolved configuration names it.
RESOLVED_SHAPE: Final = ("num_steps", "topk", "num_draft_tokens")


class Prediction(NamedTuple):
    """rounds: tokens of each verify round up to the request's end, the last one uncut. end: how it ends, "open" behind
    the oracle's text. deepest: tokens of a round that accepts every draft. split: whether the stop string that ends it
    begins in the round before the last."""

    rounds: tuple[int, ...]
    end: Ending
    deepest: int
    split: bool

    @property
    def ends_inside(self) -> bool:
        """Whether its last token is not the last one of a verify round."""
        return self.end.reason != "open" and 1 + sum(self.rounds) > self.end.tokens

    @property
    def accepts_fully(self) -> bool:
        """Whether a whole round accepts every draft."""
        return self.deepest in self.rounds[:-1]

    @property
    def rejects(self) -> bool:
        """Whether a whole round rejects a draft."""
        return any(length < self.deepest for length in self.rounds[:-1])


@cache
def shape_of(cell: Cell) -> Resolved | None:
    """What a cell resolves to on a CPU; None if it is refused."""
    try:
        return resolve(cell.config(), zoo_facts(cell))
    except ConfigError:
        return None


def deepest_round(num_steps: int, topk: int, num_draft_tokens: int) -> int:
    """Tokens of a round that accepts every draft, bonus included."""
    return num_draft_tokens if topk <= 1 else num_steps + 1


def predict(cell: Cell, shape: Resolved, request: RequestSpec) -> Prediction | None:
    """The rounds of a request, ignoring its abort; None if it is sampled or ruled, has several completions or a
    history, or if the oracle has no rounds for this drafter and shape."""
    index, oracle = oracle_index(request), oracle_of(cell.target)
    if index is None or oracle is None or request.temperature > 0 or request.n > 1 or cell.adapts:
        return None
    widths = shape.num_steps, shape.topk, shape.num_draft_tokens
    rounds = oracle.rounds.get((cell.drafter, *widths))
    if rounds is None:
        return None
    ids = oracle.continuations[index]
    end = ending(request, ids, cell.target)
    kept = tuple(_until(rounds[index], end.tokens))
    return Prediction(kept, end, deepest_round(*widths), splits_stop(ids[: end.tokens], kept, end.matched))


def splits_stop(output: tuple[int, ...], rounds: Sequence[int], matched: int | str | None) -> bool:
    """Whether the stop string that ended an output begins before its last verify round."""
    if not isinstance(matched, str) or not rounds:
        return False
    return text_of(output).find(matched) < len(text_of(output[: 1 + sum(rounds[:-1])]))


def _until(rounds: Sequence[int], tokens: int) -> Iterator[int]:
    """Rounds up to the one that holds the last token; a continuation's first token belongs to none."""
    passed = 1
    for length in rounds:
        if passed >= tokens:
            return
        yield length
        passed += length
