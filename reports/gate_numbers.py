"""The numbers of gates that readers of a report rely on: how much a gate looked at, and what it must not find."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

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


class Limit(NamedTuple):
    """A number of a gate that passes, and the header's threshold that it is then at most, or with `least` at least.
    exact: in float32 only."""

    number: str
    threshold: str
    least: bool = False
    exact: bool = False


class _Numbers(NamedTuple):
    """Names of a gate's numbers: how much it looked at, what it found none of if it passes, and their limits."""

    amounts: str
    faults: str = ""
    limits: tuple[Limit, ...] = ()


_NUMBERS: Final[Mapping[str, _Numbers]] = {
    "claimed_capabilities": _Numbers("answers claims", "broken"),
    "oracle": _Numbers("oracle_tokens", "wrong"),
    "identities": _Numbers("rounds", "faults"),
    "text": _Numbers("characters", "wrong"),
    "ledger": _Numbers("pages stamps verbs", "leaked wrong_stamps overwritten"),
    "schedule": _Numbers("steps forwards", "needless"),
    "leaks": _Numbers("counts sent", "left"),
    "resources": _Numbers("rounds", "unsteady bypassed", (Limit("memory_ratio", "memory_ratio"),)),
    "ranks": _Numbers("ranks planned read", "divergent"),
    "session": _Numbers("sessions attempts", "wrong apart"),
    "adaptive": _Numbers("rounds observations replayed", limits=(Limit("deviation", "average"),)),
    "lossless": _Numbers(
        "tokens scored oracle_tokens",
        "divergent first_divergence",
        (Limit("score_nats", "score_nats", exact=True), Limit("oracle_nats", "oracle_nats", exact=True)),
    ),
    "precision": _Numbers(
        "tokens scored", "beyond", tuple(Limit(name, name) for name in ("tied_share", "score_rms", "sampled_rms"))
    ),
    "distribution": _Numbers(
        "draws",
        "outside",
        (
            Limit("draws", "least_draws", least=True),
            Limit("p", "alpha", least=True),
            Limit("serial_p", "alpha", least=True),
            Limit("logprob_gap", "logprob_nats"),
        ),
    ),
    "finish": _Numbers("requests", "faults"),
    "acceptance": _Numbers(
        "length rounds emitted", "left", (Limit("ratio", "moved_low", least=True), Limit("ratio", "moved_high"))
    ),
    "accuracy": _Numbers("n outcomes"),
    "config": _Numbers("fields"),
    "effective": _Numbers("keys required", "differences unseen"),
    SPEED: _Numbers("starts turns"),
}
GATES: Final = tuple(_NUMBERS)
AMOUNTS: Final = {gate: tuple(row.amounts.split()) for gate, row in _NUMBERS.items()}
FAULTS: Final = {gate: tuple(row.faults.split()) for gate, row in _NUMBERS.items()}
LIMITS: Final = {gate: row.limits for gate, row in _NUMBERS.items()}

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
# Types of the numbers of a gate that are no amounts, faults or limits, or not of their type.
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
        **dict.fromkeys(FAULTS[gate], int),
        **{limit.number: float for limit in LIMITS[gate]},
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
    if gate != "accuracy":
        return
    lost, won, n = numbers.get("lost", 0), numbers.get("won", 0), numbers.get("n", LARGEST)
    if lost + won > n:
        raise ValueError(f"has more lost and won of gate accuracy than n, {lost} + {won} of {n}")
    if outcomes := numbers.get("outcomes"):
        right, answers = outcomes.count("1"), len(outcomes)
        if numbers.get("n") != answers or right != round(numbers.get("accuracy", 0) * answers):
            stated = f"{numbers.get('accuracy')!r:.20} of {numbers.get('n')!r:.20}"
            raise ValueError(f"has outcomes of gate accuracy, {right} right of {answers}, and its numbers say {stated}")
