"""lm-eval's generation arguments as sampling parameters, and a model's answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.errors import RequestError, shown

# The supported generation arguments of lm-eval 0.4.13; any other is an error.
KNOWN: Final = frozenset({"until", "do_sample", "temperature", "max_gen_toks"})


class Answered(NamedTuple):
    """One answer of an engine."""

    text: str
    by_length: bool
    tokens: int
    rounds: int
    retractions: int


def parameters(wanted: Mapping[str, Any]) -> SamplingParams:
    """lm-eval's generation arguments as SamplingParams. RequestError on an unknown or missing argument."""
    if unknown := sorted(wanted.keys() - KNOWN):
        known = ", ".join(sorted(KNOWN))
        raise RequestError(f"generation argument {shown(unknown[0])} is unknown; it must be one of {known}")
    if "max_gen_toks" not in wanted:
        raise RequestError("generation argument max_gen_toks is missing; the number of new tokens must be explicit")
    until = wanted.get("until", ())
    temperature = float(wanted.get("temperature", 0.0)) if wanted.get("do_sample", False) else 0.0
    return SamplingParams(
        max_new_tokens=int(wanted["max_gen_toks"]),
        temperature=temperature,
        stop=(until,) if isinstance(until, str) else tuple(until),
    )
