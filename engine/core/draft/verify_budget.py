"""DSPARK's budget (arXiv 2607.05147): how many drafts of a round are worth verifying, over all of its rows together.

A survival is the probability that a draft and all before it in its row are right. The B drafts with the largest ones
add their sum to the tokens of a round; the best B makes the most tokens per second, by measured rates of steps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import isfinite
from operator import mul
from typing import Any, Final, NamedTuple

from specmatrix.errors import ConfigError, shown
from specmatrix.json_text import parse_object

# Less likely drafts are never verified, as in SGLang.
LEAST: Final = 1e-6
COSTS: Final = "speculative_dspark_sps_table_path"
TEMPERATURES: Final = "speculative_dspark_confidence_sts_path"


class VerifyBudget(NamedTuple):
    """Steps per second, `rates`, that verify this many tokens or up to the next of `tokens`, which ascend."""

    tokens: tuple[int, ...]
    rates: tuple[float, ...]

    @classmethod
    def parse(cls, text: str) -> VerifyBudget:
        """SGLang's table: {"sample_batch_tokens": [..], "sample_steps_per_sec": [..]}. ConfigError for another."""
        table = parse_object(COSTS, text)
        tokens = _numbers(COSTS, table, "sample_batch_tokens", int)
        rates = _numbers(COSTS, table, "sample_steps_per_sec", float)
        if list(tokens) != sorted(set(tokens)) or len(tokens) != len(rates):
            raise ConfigError(
                f"{COSTS}: sample_batch_tokens must ascend and be as many as sample_steps_per_sec, got {shown(tokens)} "
                f"and {len(rates)} rates"
            )
        return cls(tuple(map(int, tokens)), rates)

    def of(self, survivals: Sequence[Sequence[float]]) -> int:
        """The best B, the smallest of equally good ones, by the survivals of each row of a round."""
        rows = len(survivals)
        falling = sorted((each for row in survivals for each in row if each >= LEAST), reverse=True)
        gains = [*accumulate(falling, initial=float(rows))]
        return max(range(len(gains)), key=lambda extra: gains[extra] * self._rate(rows + extra))

    def _rate(self, tokens: int) -> float:
        return self.rates[max(0, bisect_right(self.tokens, tokens) - 1)]


def survivals(confidences: Sequence[float]) -> tuple[float, ...]:
    """The survivals of a row's drafts, from their confidences."""
    return tuple(accumulate(confidences, mul))


def temperatures(text: str) -> tuple[float, ...]:
    """SGLang's calibration of confidences: {"temperatures": [one for each draft]}. ConfigError for another."""
    return _numbers(TEMPERATURES, parse_object(TEMPERATURES, text), "temperatures", float)


def _numbers(source: str, table: dict[str, Any], name: str, kind: type[int] | type[float]) -> tuple[float, ...]:
    values, kinds = table.get(name), (int,) if kind is int else (int, float)
    if not (isinstance(values, list) and values and all(type(v) in kinds and v > 0 and isfinite(v) for v in values)):
        words = "integers" if kind is int else "numbers"
        raise ConfigError(f"{source}: {name} must be a list of positive {words}, got {shown(values)}")
    return tuple(values)
