"""The values that a cell really exercised: one per axis, from the resolved configuration where it has one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from specmatrix.reports.schema import Json

Value: TypeAlias = tuple[str, str]
Pair: TypeAlias = tuple[Value, Value]

# Axis -> field of the resolved configuration, where the two names differ; an axis named like a field needs no row.
RESOLVED_FIELD: Final = {
    "steps": "num_steps",
    "draft_tokens": "num_draft_tokens",
    "prefix_cache": "radix_cache",
    "prefill_chunk": "chunked_prefill_size",
    "mixed_chunk": "enable_mixed_chunk",
    "context": "context_length",
    "slots": "max_running_requests",
    "acceptance": "speculative_acceptance",
}
# Field of the resolved configuration -> fields of the request whose reason or rewrite explains it.
ASKED_FIELDS: Final = {
    "algorithm": ("speculative_algorithm",),
    "num_steps": ("speculative_num_steps",),
    "topk": ("speculative_eagle_topk",),
    "num_draft_tokens": ("speculative_num_draft_tokens",),
    "radix_cache": ("disable_radix_cache",),
}
# Field of the resolved configuration -> the field of the request that holds it in another form.
WRITTEN_AS: Final = {"adaptive_slots": ("speculative_adaptive_config",)}
# Fields that follow from others, say where files lie, or are listed elsewhere in a cell: no choice of their own.
DERIVED: Final = frozenset(
    {"lag", "num_pages", "model_path", "draft_path", "random_seed", "strict_memory", "kv_stamps", "reasons", "rewrites"}
)


def effective(axes: Mapping[str, Json], resolved: Mapping[str, Json] | None) -> dict[str, str]:
    """Axis -> effective value as text, for every axis of the cell.

    A start axis takes the resolved value, whatever was requested; a request axis (batch, sampling, abort) is not in the
    resolved configuration and keeps its own, which the cell's evidence has proved.
    """
    return EffectiveValues(resolved or {}, {}).of(axes)


class EffectiveValues:
    """Effective axis values under one resolved configuration. usual: the values of axes that a cell does not name."""

    def __init__(self, resolved: Mapping[str, Json], usual: Mapping[str, Json]) -> None:
        words = {field: word(value) for field, value in resolved.items()}
        self._words = words | {axis: words[field] for axis, field in RESOLVED_FIELD.items() if field in words}
        self._usual: dict[str, str] = {}
        self._usual = self.of(usual)

    def of(self, axes: Mapping[str, Json]) -> dict[str, str]:
        """Axis -> the resolved value as text where the configuration decides it, else the cell's own."""
        decided = self._words
        return self._usual | {axis: decided[axis] if axis in decided else word(own) for axis, own in axes.items()}


def word(value: Json) -> str:
    """A configuration value as lower-case text; switches read on and off, and an absent size is off."""
    if isinstance(value, str):
        return value.lower()
    if value is None or value is False:
        return "off"
    return "on" if value is True else str(value).lower()


def pair_text(pair: Pair) -> str:
    """A pair as text: `(spec_version=v2, topk=4)`."""
    return f"({', '.join(f'{axis}={value}' for axis, value in pair)})"


def explaining_fields(field: str) -> tuple[str, ...]:
    """Field names under which a reason or rewrite may refer to the resolved field `field`."""
    return (field, *ASKED_FIELDS.get(field, ()), *WRITTEN_AS.get(field, ()))
