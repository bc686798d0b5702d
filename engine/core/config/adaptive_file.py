"""Settings of adaptive draft depth: one slot per batch-size range, read from JSON (sglang#24055).

Two formats: by batch size, {"<smallest batch size>": {...}, ...}, where slot keys at the top level are defaults for
every slot; and the older flat format, a single object with `candidate_steps`, which defines one slot for all sizes.
"""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Final

from specmatrix.errors import ConfigError, nearest, shown
from specmatrix.json_text import parse_object

# Also the maximum static draft depth.
MAX_STEPS: Final = 255
SOURCE: Final = "speculative_adaptive_config"
# JSON's numbers may be infinite or NaN, and integers too large for a float.
MAX_NUMBER: Final = 1e300
# Characters of a wrong value that an error shows.
MAX_SHOWN: Final = 80


@dataclass(frozen=True, slots=True)
class AdaptiveSlot:
    """Settings of one slot; `engine.core.draft.depth.Slot` applies them.

    batch_from: the slot's smallest batch size (requests). candidate_steps: draft depths, ascending; 0: no drafts.
    ema_alpha: weight
    of the newest round in the moving average. update_interval: rounds between decisions. warmup_batches: rounds before
    the first. down_hysteresis, up_hysteresis: threshold shifts, in drafts. ceiling_coeff: maximum depth as a multiple
    of the average, 0 for no maximum.
    """

    batch_from: int
    candidate_steps: tuple[int, ...]
    ema_alpha: float = 0.2
    update_interval: int = 5
    warmup_batches: int = 10
    down_hysteresis: float = -0.25
    up_hysteresis: float = 0.0
    ceiling_coeff: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Values that can be serialised as JSON."""
        return asdict(self) | {"candidate_steps": list(self.candidate_steps)}


# SGLang's: deep drafts pay off while a small batch leaves the device underused, and in large batches none does.
DEFAULT_SLOTS: Final = (
    AdaptiveSlot(1, (1, 3, 5, 7)),
    AdaptiveSlot(8, (0, 1, 3), down_hysteresis=0.0),
    AdaptiveSlot(32, (0, 1), down_hysteresis=0.0),
    AdaptiveSlot(64, (0,), down_hysteresis=0.0),
)


@dataclass(frozen=True, slots=True)
class AdaptiveConfig:
    """A parsed file. flat: it was in the older format."""

    slots: tuple[AdaptiveSlot, ...]
    flat: bool


def union(slots: tuple[AdaptiveSlot, ...]) -> tuple[int, ...]:
    """The candidates of all slots, ascending."""
    return tuple(sorted({steps for slot in slots for steps in slot.candidate_steps}))


def middle(candidates: tuple[int, ...]) -> int:
    """The default initial depth: the middle candidate, the deeper of two."""
    return candidates[len(candidates) // 2]


def inline(asked: str) -> bool:
    """True if the requested configuration is JSON text rather than a file path."""
    return asked.lstrip().startswith("{")


def dump(slots: tuple[AdaptiveSlot, ...]) -> str:
    """The slots as JSON text that `parse` reads back unchanged."""
    table = {str(slot.batch_from): slot.as_dict() for slot in slots}
    for entry in table.values():
        del entry["batch_from"]
    return json.dumps(table)


@lru_cache(maxsize=64)
def read(text: str) -> AdaptiveConfig | str:
    """Like `parse`, but returns the error message instead of raising it."""
    try:
        return parse(text)
    except ConfigError as error:
        return str(error)


def parse(text: str) -> AdaptiveConfig:
    """The slots of a configuration text. Raises ConfigError naming the fault, the value and what is allowed."""
    table = parse_object(SOURCE, text)
    sizes = [key for key in table if re.fullmatch(r"[+-]?[0-9]+", key)]
    shared = {key: value for key, value in table.items() if key not in sizes}
    _known(shared, "", "a batch size such as '8' or one of ")
    if not sizes:
        if "candidate_steps" not in shared:
            raise ConfigError(
                f"{SOURCE} has no batch size as a key; it needs at least {{'1': {{'candidate_steps': [...]}}}}"
            )
        return AdaptiveConfig(_drafting((_slot("", 1, shared),)), flat=True)
    slots = [_entry(key, table[key], shared) for key in sizes]
    return AdaptiveConfig(_drafting(tuple(sorted(slots, key=lambda slot: slot.batch_from))), flat=False)


def _drafting(slots: tuple[AdaptiveSlot, ...]) -> tuple[AdaptiveSlot, ...]:
    if not union(slots)[-1]:
        raise ConfigError(
            f"{SOURCE}: every candidate_steps is [0], so nothing is ever drafted; add a depth of at least 1 or use "
            "speculative_algorithm NONE"
        )
    return slots


def _entry(key: str, value: object, shared: dict[str, Any]) -> AdaptiveSlot:
    if not re.fullmatch(r"[1-9][0-9]{0,8}", key):
        raise ConfigError(
            f"{SOURCE} has the batch size {shown(key)}; it must be an integer of 1 to 9 digits without sign or leading "
            "zeros"
        )
    where = f"slot {key}: "
    if not isinstance(value, dict):
        raise ConfigError(f"{SOURCE}: {where}a slot must be a JSON object, got {_shown(value)}")
    _known(value, where, "one of ")
    return _slot(where, int(key), shared | value)


def _slot(where: str, batch_from: int, values: dict[str, Any]) -> AdaptiveSlot:
    if "candidate_steps" not in values:
        raise ConfigError(
            f"{SOURCE}: {where}candidate_steps is missing; it must be a list of draft depths, such as [1, 3]"
        )
    for name, value in values.items():
        good, allowed = KEYS[name]
        if not good(value):
            raise ConfigError(f"{SOURCE}: {where}{name} must be {allowed}, got {_shown(value)}")
    steps = tuple(sorted(set(values["candidate_steps"])))
    rest = {name: value for name, value in values.items() if name not in ("candidate_steps", "strategy")}
    return AdaptiveSlot(batch_from, steps, **rest)


def _known(values: dict[str, Any], where: str, choices: str) -> None:
    for name in values:
        if name not in KEYS:
            close = nearest(name, KEYS)
            hint = f" (did you mean {close!r}?)" if close else ""
            allowed = f"{choices}{', '.join(KEYS)}"
            raise ConfigError(f"{SOURCE}: {where}unknown key {shown(name)}{hint}; a key must be {allowed}")


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _depths(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(v) is int and 0 <= v <= MAX_STEPS for v in value)


def _number(value: object) -> bool:
    return type(value) in (int, float) and abs(value) < MAX_NUMBER  # type: ignore[arg-type]  # type checked above


def _share(value: object) -> bool:
    return _number(value) and 0 < value <= 1  # type: ignore[operator]  # a number


def _whole(low: int) -> Callable[[object], bool]:
    return lambda value: type(value) is int and value >= low


# The values that each slot key accepts, as a predicate and in words.
KEYS: Final[dict[str, tuple[Callable[[object], bool], str]]] = {
    "candidate_steps": (_depths, f"a list of one or more integers from 0 to {MAX_STEPS}"),
    "ema_alpha": (_share, "a number above 0 and at most 1"),
    "update_interval": (_whole(1), "an integer of at least 1"),
    "warmup_batches": (_whole(0), "an integer of at least 0"),
    "down_hysteresis": (_number, "a finite number"),
    "up_hysteresis": (_number, "a finite number"),
    "ceiling_coeff": (lambda value: _number(value) and value >= 0, "a finite number of at least 0"),  # type: ignore[operator]  # a number
    "strategy": (lambda value: value == "ema", "'ema', the only supported strategy"),
}
