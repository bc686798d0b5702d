"""Absolute acceptance by position of each target's drafts, which a regenerated oracle must reach.

The oracle's rounds are recomputed from the checkpoints, so they agree with a draft that is wrong in both. These figures
are written once, when a target has none. Imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import msgspec

from specmatrix.errors import ConfigError
from specmatrix.matrix.zoo.registry import HERE, oracle_file
from specmatrix.reports.stats import wilson

FILE: Final = HERE / "data" / "absolute.json"


class Positions(msgspec.Struct, frozen=True):
    """Of the chains of one shape (steps/topk/draft tokens): the share of rounds whose draft at each position is
    accepted, of those that accepted all before it, and its 95 % Wilson interval."""

    shape: str
    rate: tuple[float, ...]
    wilson95: tuple[tuple[float, float], ...]

    @property
    def pairs(self) -> tuple[tuple[float, tuple[float, float]], ...]:
        """Rate and interval of each position."""
        return tuple(zip(self.rate, self.wilson95, strict=True))


# Target, then algorithm.
Figures = dict[str, dict[str, Positions]]


def positions(shape: str, prompts: Sequence[Sequence[int]]) -> Positions:
    """The figures of rounds (tokens, bonus included) by prompt; a last round ends with the text and does not count."""
    depth = int(shape.rsplit("/", 1)[1]) - 1
    drafts = [length - 1 for rounds in prompts for length in rounds[:-1]]
    counts = [(sum(n > at for n in drafts), sum(n >= at for n in drafts)) for at in range(depth)]
    rate = tuple(round(passed / max(1, reached), 4) for passed, reached in counts)
    intervals = tuple(wilson(passed, reached) if reached else (0.0, 1.0) for passed, reached in counts)
    return Positions(shape, rate, tuple((round(low, 4), round(high, 4)) for low, high in intervals))


def of_oracle(body: Mapping[str, Any]) -> dict[str, Positions]:
    """By algorithm, the figures of its deepest chain in the content of an oracle file."""
    found = {}
    for algorithm, shapes in body["acceptance"].items():
        chains = [shape for shape in shapes if shape.split("/")[1] == "1"]
        deepest = max(chains, key=lambda shape: int(shape.rsplit("/", 1)[1]))
        found[algorithm] = positions(deepest, shapes[deepest])
    return found


def stored() -> Figures:
    """The stored figures. ConfigError if their file is missing or damaged."""
    try:
        return msgspec.json.decode(FILE.read_bytes(), type=Figures)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(
            f"the zoo's figures {FILE} cannot be read ({error}); restore it from the repository"
        ) from None


def require(target: str, body: Mapping[str, Any], known: Figures) -> None:
    """ConfigError names the first position at which an oracle's content accepts less than the interval of the stored
    figures, or an algorithm that it lacks."""
    found = of_oracle(body)
    for algorithm, due in known.get(target, {}).items():
        mine = found.get(algorithm)
        if mine is None or mine.shape != due.shape:
            raise ConfigError(
                f"the oracle of {target} has no rounds of {algorithm} with {due.shape}; it must have them"
            )
        for at, (rate, (before, (low, _))) in enumerate(zip(mine.rate, due.pairs, strict=True), start=1):
            if rate < low:
                raise ConfigError(
                    f"the oracle of {target} accepts {rate:.1%} of the drafts of {algorithm} at position {at}; it must "
                    f"accept at least {low:.1%} (absolute.json: {before:.1%}), so a draft is wrong"
                )


def write(target: str, body: Mapping[str, Any]) -> None:
    """Refuse an oracle's content as `require` does, and store the figures that it adds."""
    known = stored()
    require(target, body, known)
    found = of_oracle(body)
    if found.keys() - known.get(target, {}).keys():
        text = json.dumps(msgspec.to_builtins({**known, target: {**found, **known.get(target, {})}}), indent=1)
        FILE.write_text(f"{text}\n", encoding="utf-8")


@cache
def _body(target: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(oracle_file(target).read_text(encoding="utf-8"))
    return found


def verify(target: str) -> None:
    """Compare a target's stored oracle with the figures. ConfigError as `require`, or if there are none."""
    known = stored()
    if target not in known:
        raise ConfigError(f"{FILE.name} has no figures of {target}; rewrite its oracle: {__package__}.oracle {target}")
    require(target, _body(target), known)


def lengths(shapes: Mapping[str, Sequence[Sequence[int]]]) -> dict[int, float]:
    """Tokens per round (bonus included) of an algorithm's chains in an oracle file, by their drafts."""
    rounds = {
        int(shape.rsplit("/", 1)[1]) - 1: [tokens for prompt in prompts for tokens in prompt]
        for shape, prompts in shapes.items()
        if shape.split("/")[1] == "1"
    }
    return {drafts: sum(each) / len(each) for drafts, each in sorted(rounds.items())}


def lines(target: str) -> list[str]:
    """A target's figures as text for `zoo list`."""
    out = []
    for algorithm, one in stored().get(target, {}).items():
        by_drafts = lengths(_body(target)["acceptance"][algorithm]).items()
        means = ", ".join(f"{drafts}: {mean:.2f}" for drafts, mean in by_drafts)
        out.append(f"  {algorithm}, tokens per round by drafts: {means}")
        rates = ", ".join(f"{rate:.1%} [{low:.1%}, {high:.1%}]" for rate, (low, high) in one.pairs)
        out.append(f"  {algorithm} {one.shape}, accepted by position: {rates}")
    return out
