"""A task's generation arguments in the engine's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.errors import RequestError

# What lm-eval 0.4.13 may ask of a generation; anything else would be dropped silently.
KNOWN: Final = frozenset({"until", "do_sample", "temperature", "max_gen_toks"})


def parameters(wanted: Mapping[str, Any]) -> SamplingParams:
    """lm-eval's generation arguments in the engine's words. RequestError on one that is unknown or missing."""
    unknown = sorted(wanted.keys() - KNOWN)
    if unknown:
        raise RequestError(f"the task sets {unknown[0]!r}, which the engine lacks; it knows {', '.join(sorted(KNOWN))}")
    if "max_gen_toks" not in wanted:
        raise RequestError("the task sets no max_gen_toks; the number of new tokens must be explicit")
    until = wanted.get("until", ())
    temperature = float(wanted.get("temperature", 0.0)) if wanted.get("do_sample", False) else 0.0
    return SamplingParams(
        max_new_tokens=int(wanted["max_gen_toks"]),
        temperature=temperature,
        stop=(until,) if isinstance(until, str) else tuple(until),
    )
