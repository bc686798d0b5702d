"""The numbers of gates that readers of a report rely on: how much a gate looked at, and what it must not find."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeAlias

from msgspec import Meta, Struct, ValidationError, convert, defstruct

# No number that is summed or divided is larger, so that sums and ratios stay finite.
LARGEST: Final = 10**9

# The gate that measures, and by what a comparison judges it the name of its number with one ratio per turn of each
# engine start.
SPEED: Final = "speed"
RATIOS: Final[Mapping[str, str]] = {
    "speed": "speed_ups",
    "first_token": "first_token_ratios",
    "output_token": "output_token_ratios",
    "own_speed": "own_speeds",
    "plain_speed": "plain_speeds",
}


# How much a gate looked at, and what it found none of if it passes.
AMOUNTS: Final[Mapping[str, tuple[str, ...]]] = {
    "claimed_capabilities": ("answers", "claims"),
    "oracle": ("oracle_tokens",),
    "identities": ("rounds",),
    "text": ("characters",),
    "ledger": ("pages", "stamps", "verbs"),
    "schedule": ("steps", "forwards"),
    "leaks": ("counts", "sent"),
    "resources": ("rounds",),
    "ranks": ("ranks", "planned", "read"),
    "session": ("sessions", "attempts"),
    "adaptive": ("rounds", "observations", "replayed"),
    "lossless": ("tokens", "scored", "oracle_tokens"),
    "precision": ("tokens", "scored"),
    "distribution": ("draws",),
    "finish": ("requests",),
    "acceptance": ("length", "rounds", "emitted"),
    "accuracy": ("n", "outcomes"),
    "config": ("fields",),
    "effective": ("keys", "required"),
    SPEED: ("starts", "turns"),
}
FAULTS: Final[Mapping[str, tuple[str, ...]]] = {
    "claimed_capabilities": ("broken",),
    "oracle": ("wrong",),
    "identities": ("faults",),
    "text": ("wrong",),
    "ledger": ("leaked", "wrong_stamps", "overwritten"),
    "schedule": ("needless",),
    "leaks": ("left",),
    "resources": ("unsteady", "bypassed"),
    "ranks": ("divergent",),
    "session": ("wrong", "apart"),
    "lossless": ("divergent", "first_divergence"),
    "precision": ("beyond",),
    "distribution": ("outside",),
    "finish": ("faults",),
    "acceptance": ("left",),
    "effective": ("differences", "unseen"),
}
GATES: Final = tuple(AMOUNTS)

_Count: TypeAlias = Annotated[int, Meta(ge=0, le=LARGEST)]
_Positive: TypeAlias = Annotated[float, Meta(ge=1 / LARGEST, le=LARGEST)]
_Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
# Of the gate `speed`, with the drafter and without.
FIGURES: Final = frozenset(
    (
        *("speed_up", "tokens_per_second", "baseline_tokens_per_second", "first_token_ms", "baseline_first_token_ms"),
        *("output_token_ms", "baseline_output_token_ms", "work_ms"),
    )
)
# Types of the other numbers that are read, and of amounts and faults that are no integers.
_OTHER_TYPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "lossless": {"first_divergence": str, "ties": _Count},
    "acceptance": {
        "length": Annotated[float, Meta(ge=0, le=LARGEST)],
        **dict.fromkeys(("reference", "ratio"), _Positive),
        "per_position": list[_Share],
        "emitted": list[_Positive],  # of each prompt, as `rounds` and `questions` are
        "questions": list[_Count],
        "rounds": _Count | list[_Positive],
    },
    "accuracy": {
        **dict.fromkeys(("accuracy", "baseline"), _Share),
        **dict.fromkeys(("lost", "won"), _Count),
        "outcomes": Annotated[str, Meta(pattern=r"^[01]*\Z")],
    },
    SPEED: {
        "gpus": _Count,
        **dict.fromkeys(RATIOS.values(), list[_Positive]),
        **dict.fromkeys(FIGURES, _Positive),
        **dict.fromkeys(("clock", "device"), str),
    },
}


def _record(gate: str) -> type[Struct]:
    """The record of a gate's numbers that are read; it may have others."""
    types: dict[str, Any] = {
        **dict.fromkeys(AMOUNTS[gate], _Count),
        **dict.fromkeys(FAULTS.get(gate, ()), int),
        **_OTHER_TYPES.get(gate, {}),
    }
    return defstruct(gate, [(name, kind, None) for name, kind in types.items()])


_RECORDS: Final = {gate: _record(gate) for gate in GATES}


def check_numbers(gate: str, numbers: Mapping[str, Any]) -> None:
    """ValueError, as the rest of a sentence about the cell, for a number of another kind than its readers expect."""
    try:
        convert(numbers, _RECORDS.get(gate, Struct))
    except ValidationError as error:
        raise ValueError(f"has a wrong number of gate {gate}: {error}") from None
    lost, won, n = numbers.get("lost", 0), numbers.get("won", 0), numbers.get("n", LARGEST)
    if gate == "accuracy" and lost + won > n:
        raise ValueError(f"has more lost and won of gate accuracy than n, {lost} + {won} of {n}")
