"""The numbers of gates that readers of a report rely on: how much a gate looked at, and what it must not find."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

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

# How much a gate looked at, by the names of those numbers.
AMOUNTS: Final[Mapping[str, tuple[str, ...]]] = {
    "claims": ("answers", "claims"),
    "oracle": ("oracle_tokens",),
    "identities": ("rounds",),
    "text": ("characters",),
    "ledger": ("pages", "stamps", "verbs"),
    "work": ("steps", "forwards"),
    "rest": ("counts", "sent"),
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
# What a gate that passes found none of.
FAULTS: Final[Mapping[str, tuple[str, ...]]] = {
    "claims": ("broken",),
    "oracle": ("wrong",),
    "identities": ("faults",),
    "text": ("wrong",),
    "ledger": ("leaked", "wrong_stamps", "overwritten"),
    "work": ("needless",),
    "rest": ("left",),
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


class Limit(NamedTuple):
    """A number of a gate that passes, and the header's threshold that it is then at most, or with `least` at least.
    exact: in float32 only."""

    number: str
    threshold: str
    least: bool = False
    exact: bool = False


LIMITS: Final[Mapping[str, tuple[Limit, ...]]] = {
    "lossless": (
        Limit("score_nats", "score_nats", exact=True),
        Limit("oracle_nats", "oracle_nats", exact=True),
    ),
    "distribution": (
        Limit("draws", "least_draws", least=True),
        Limit("p", "alpha", least=True),
        Limit("serial_p", "alpha", least=True),
        Limit("logprob_gap", "logprob_nats"),
    ),
    "precision": (
        Limit("tied_share", "tied_share"),
        Limit("score_rms", "score_rms"),
        Limit("sampled_rms", "sampled_rms"),
    ),
    "acceptance": (Limit("ratio", "moved_low", least=True), Limit("ratio", "moved_high")),
    "resources": (Limit("memory_ratio", "memory_ratio"),),
    "adaptive": (Limit("deviation", "average"),),
}


def _is_anything(value: object) -> bool:
    return True


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 1 / LARGEST <= value <= LARGEST


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _all(good: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and all(map(good, value))


_COUNT: Final = (_is_count, f"an integer from 0 to {LARGEST:,}")
_POSITIVE: Final = f"a number above 0 and at most {LARGEST:,}"
# Of the gate `speed`, with the drafter and without.
FIGURES: Final = frozenset(
    (
        *("speed_up", "tokens_per_second", "baseline_tokens_per_second", "first_token_ms", "baseline_first_token_ms"),
        *("output_token_ms", "baseline_output_token_ms", "work_ms"),
    )
)
_Kinds: TypeAlias = Mapping[str, tuple[Callable[[object], bool], str]]
# Numbers of a gate that are no integers, by gate and name: a predicate and its words.
_OTHER_KINDS: Final[Mapping[str, _Kinds]] = {
    "lossless": {
        "first_divergence": (lambda value: isinstance(value, str), "a text"),
        "ties": _COUNT,
    },
    "acceptance": {
        "length": (lambda value: value == 0 or _is_positive(value), f"0 or {_POSITIVE}"),
        **dict.fromkeys(("reference", "ratio"), (_is_positive, _POSITIVE)),
        "per_position": (_all(_is_share), "a list of numbers from 0 to 1"),
        "emitted": (_all(_is_positive), f"a list with for each prompt {_POSITIVE}"),
        "questions": (_all(_is_count), f"a list of integers from 0 to {LARGEST:,}"),
        "rounds": (
            lambda value: _is_count(value) or _all(_is_positive)(value),
            f"an integer or a list with for each prompt {_POSITIVE}",
        ),
    },
    "accuracy": {
        **dict.fromkeys(("accuracy", "baseline"), (_is_share, "a number from 0 to 1")),
        **dict.fromkeys(("lost", "won"), _COUNT),
        "outcomes": (lambda value: isinstance(value, str) and set(value) <= {"0", "1"}, "a text of 0 and 1"),
    },
    SPEED: {
        "gpus": _COUNT,
        **dict.fromkeys(RATIOS.values(), (_all(_is_positive), f"a list with for each turn {_POSITIVE}")),
        **dict.fromkeys(FIGURES, (_is_positive, _POSITIVE)),
        **dict.fromkeys(("clock", "device"), (lambda value: isinstance(value, str), "a text")),
    },
}

# What is read of a gate's numbers.
_KINDS: Final[Mapping[str, _Kinds]] = {
    gate: {
        **dict.fromkeys(AMOUNTS[gate], _COUNT),
        **dict.fromkeys(FAULTS.get(gate, ()), (_is_integer, "an integer")),
        **{limit.number: (_is_number, "a number") for limit in LIMITS.get(gate, ())},
        **_OTHER_KINDS.get(gate, {}),
    }
    for gate in GATES
}


def check_numbers(gate: str, numbers: Mapping[str, Any]) -> None:
    """ValueError for a number of a gate that is of another kind than its readers expect."""
    kinds = _KINDS.get(gate, {})
    for name, value in numbers.items():
        good, allowed = kinds.get(name, (_is_anything, ""))
        if not good(value):
            raise ValueError(f"{name} of gate {gate} must be {allowed}, got {value!r:.60}")
    lost, won, n = numbers.get("lost", 0), numbers.get("won", 0), numbers.get("n", LARGEST)
    if gate == "accuracy" and lost + won > n:
        raise ValueError(f"lost and won of gate accuracy must be at most n together, got {lost} + {won} of {n}")
    if gate == "accuracy" and numbers.get("outcomes"):
        right, answers = numbers["outcomes"].count("1"), len(numbers["outcomes"])
        if numbers.get("n") != answers or right != round(numbers.get("accuracy", 0) * answers):
            stated = f"{numbers.get('accuracy')!r:.20} of {numbers.get('n')!r:.20}"
            raise ValueError(f"outcomes of gate accuracy are {right} right of {answers}, and its numbers say {stated}")
