"""Settings of adaptive draft depth: one slot per batch-size range, read from JSON (sglang#24055).

Two formats: by batch size, {"<smallest batch size>": {...}, ...}, where slot keys at the top level are defaults for
every slot; and the older flat format, a single object with `candidate_steps`, which defines one slot for all sizes.
The key `strategy` names the policy. With another than "ema" a slot has only its candidates, and the top level the
policy's settings.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from typing import Any, Final, TypeAlias

from specmatrix.errors import ConfigError, nearest, shown
from specmatrix.json_text import parse_object

# Also the maximum static draft depth.
MAX_STEPS: Final = 255
SOURCE: Final = "speculative_adaptive_config"
EMA: Final = "ema"
THROUGHPUT: Final = "throughput_aware"
# JSON's numbers may be infinite or NaN, and integers too large for a float.
MAX_NUMBER: Final = 1_000_000
# Key to its accepted values, as a predicate and in words.
Keys: TypeAlias = Mapping[str, tuple[Callable[[object], bool], str]]
# Characters of a wrong value that an error shows.
MAX_SHOWN: Final = 80


@dataclass(frozen=True, slots=True)
class AdaptiveSlot:
    """Settings of one slot; `engine.core.draft.depth.Slot` applies them.

    batch_from: the slot's smallest batch size (requests). candidate_steps: draft depths, ascending; 0: no drafts.
    ema_alpha: weight of the newest round in the moving average. update_interval: rounds between decisions.
    warmup_batches: rounds before the first. down_hysteresis, up_hysteresis: threshold shifts, in drafts. ceiling_coeff:
    maximum depth as a multiple of the average, 0 for no maximum. Of another policy than "ema": strategy, and settings,
    which are its own and all slots share, as JSON text.
    """

    batch_from: int
    candidate_steps: tuple[int, ...]
    ema_alpha: float = 0.2
    update_interval: int = 5
    warmup_batches: int = 10
    down_hysteresis: float = -0.25
    up_hysteresis: float = 0.0
    ceiling_coeff: float = 0.0
    strategy: str = EMA
    settings: str = "{}"

    def as_dict(self) -> dict[str, Any]:
        """Values that can be serialised as JSON."""
        values = asdict(self) | {"candidate_steps": list(self.candidate_steps)}
        names = list(values)[:-2] if self.strategy == EMA else ("batch_from", "candidate_steps", "strategy")
        return {name: values[name] for name in names} | dict(json.loads(self.settings))


Slots: TypeAlias = tuple[AdaptiveSlot, ...]


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

    slots: Slots
    flat: bool


def union(slots: Slots) -> tuple[int, ...]:
    """The candidates of all slots, ascending."""
    return tuple(sorted({steps for slot in slots for steps in slot.candidate_steps}))


def middle(candidates: tuple[int, ...]) -> int:
    """The default initial depth: the middle candidate, the deeper of two."""
    return candidates[len(candidates) // 2]


def inline(asked: str) -> bool:
    """True if the requested configuration is JSON text rather than a file path."""
    return asked.lstrip().startswith("{")


def dump(slots: Slots) -> str:
    """The slots as JSON text that `parse` reads back unchanged."""
    first = slots[0]
    shared = {} if first.strategy == EMA else {"strategy": first.strategy, **json.loads(first.settings)}
    table = {str(slot.batch_from): slot.as_dict() for slot in slots}
    for entry in table.values():
        for name in ("batch_from", *shared):
            del entry[name]
    return json.dumps(shared | table)


@lru_cache(maxsize=64)
def read(text: str, installed: tuple[str, ...] = ()) -> AdaptiveConfig | str:
    """Like `parse`, but returns the error message instead of raising it."""
    try:
        return parse(text, installed)
    except ConfigError as error:
        return str(error)


def parse(text: str, installed: tuple[str, ...] = ()) -> AdaptiveConfig:
    """The slots of a configuration text. installed: names of other packages' policies, which check their own settings.

    Raises ConfigError naming the fault, the value and what is allowed.
    """
    table = parse_object(SOURCE, text)
    sizes = [key for key in table if re.fullmatch(r"[+-]?[0-9]+", key)]
    shared = {key: value for key, value in table.items() if key not in sizes}
    strategy = shared.get("strategy", EMA)
    if strategy not in (*STRATEGIES, *installed):
        names = ", ".join(map(repr, (*STRATEGIES, *installed)))
        raise ConfigError(f"{SOURCE}: strategy must be one of {names}, got {_shown(strategy)}")
    if strategy in STRATEGIES:
        _known(shared, "", "a batch size such as '8' or ", STRATEGIES[strategy])
    if not sizes and (strategy != EMA or "candidate_steps" not in shared):
        raise ConfigError(
            f"{SOURCE} has no batch size as a key; it needs at least {{'1': {{'candidate_steps': [...]}}}}"
        )
    if strategy == EMA:
        rows = sorted(_row(key, table[key], shared, KEYS) for key in sizes) or [(1, _slot("", shared, KEYS))]
        return AdaptiveConfig(_drafting(tuple(AdaptiveSlot(size, **values) for size, values in rows)), flat=not sizes)
    rows = sorted(_row(key, table[key], {}, SLOT_KEYS) for key in sizes)
    if strategy in STRATEGIES:
        shared = _priced(shared, sorted({steps for _, values in rows for steps in values["candidate_steps"]}))
    settings = json.dumps({name: value for name, value in shared.items() if name != "strategy"})
    own = {"strategy": strategy, "settings": settings}
    return AdaptiveConfig(_drafting(tuple(AdaptiveSlot(size, **values, **own) for size, values in rows)), flat=False)


def _drafting(slots: Slots) -> Slots:
    if not union(slots)[-1]:
        raise ConfigError(
            f"{SOURCE}: every candidate_steps is [0], so nothing is ever drafted; add a depth of at least 1 or use "
            "speculative_algorithm NONE"
        )
    return slots


def _priced(settings: dict[str, Any], depths: list[int]) -> dict[str, Any]:
    """The settings of "throughput_aware", checked, with its defaults. depths: the candidates of all slots."""
    _check("", settings, THROUGHPUT_KEYS)
    if not depths[0]:
        raise ConfigError(
            f"{SOURCE}: candidate_steps must be at least 1 with strategy 'throughput_aware', got 0: a round without "
            "drafts shows nothing of their acceptance"
        )
    if "step_times" not in settings:
        raise ConfigError(f"{SOURCE}: step_times is missing; it must be {THROUGHPUT_KEYS['step_times'][1]}")
    for size, times in settings["step_times"].items():
        missing = [steps for steps in depths if str(steps) not in times]
        if missing:
            raise ConfigError(f"{SOURCE}: step_times of batch size {size} has no time for a depth of {missing[0]}")
    return THROUGHPUT_DEFAULTS | settings


def _row(key: str, value: object, shared: dict[str, Any], keys: Keys) -> tuple[int, dict[str, Any]]:
    """A slot's smallest batch size and its values."""
    if not re.fullmatch(r"[1-9][0-9]{0,8}", key):
        raise ConfigError(
            f"{SOURCE} has the batch size {shown(key)}; it must be an integer of 1 to 9 digits without sign or leading "
            "zeros"
        )
    where = f"slot {key}: "
    if not isinstance(value, dict):
        raise ConfigError(f"{SOURCE}: {where}a slot must be a JSON object, got {_shown(value)}")
    _known(value, where, "", keys)
    return int(key), _slot(where, shared | value, keys)


def _slot(where: str, values: dict[str, Any], keys: Keys) -> dict[str, Any]:
    if "candidate_steps" not in values:
        raise ConfigError(
            f"{SOURCE}: {where}candidate_steps is missing; it must be a list of draft depths, such as [1, 3]"
        )
    _check(where, values, keys)
    rest = {name: value for name, value in values.items() if name != "strategy"}
    return rest | {"candidate_steps": tuple(sorted(set(values["candidate_steps"])))}


def _check(where: str, values: dict[str, Any], keys: Keys) -> None:
    for name, value in values.items():
        good, allowed = keys[name]
        if not good(value):
            raise ConfigError(f"{SOURCE}: {where}{name} must be {allowed}, got {_shown(value)}")


def _known(values: dict[str, Any], where: str, choices: str, keys: Keys) -> None:
    for name in values:
        if name not in keys:
            close = nearest(name, keys)
            hint = f" (did you mean {close!r}?)" if close else ""
            one = "one of " if len(keys) > 1 else ""
            raise ConfigError(
                f"{SOURCE}: {where}unknown key {shown(name)}{hint}; a key must be {choices}{one}{', '.join(keys)}"
            )


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _depths(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(v) is int and 0 <= v <= MAX_STEPS for v in value)


def _number(value: object, low: float = -MAX_NUMBER) -> bool:
    return type(value) in (int, float) and low <= value <= MAX_NUMBER  # type: ignore[operator]  # type checked above


def _share(value: object) -> bool:
    return _number(value) and 0 < value <= 1  # type: ignore[operator]  # a number


def _whole(low: int) -> Callable[[object], bool]:
    return lambda value: type(value) is int and value >= low


def _size_keys(table: object) -> bool:
    """A JSON object with positive integers as keys."""
    return isinstance(table, dict) and bool(table) and all(re.fullmatch(r"[1-9][0-9]{0,8}", key) for key in table)


def _times(value: object) -> bool:
    if not isinstance(value, dict) or not all(map(_size_keys, (value, *value.values()))):
        return False
    return all(_number(time) and time > 0 for row in value.values() for time in row.values())


NUMBER: Final = f"a number from -{MAX_NUMBER} to {MAX_NUMBER}"
# Keys of a slot, of "ema" (shared or in a slot), and of "throughput_aware" beside its slots. SGLang measures step times
# at each start, as its keys profile_run_* say; here they are in the file.
SLOT_KEYS: Final[Keys] = {"candidate_steps": (_depths, f"a list of one or more integers from 0 to {MAX_STEPS}")}
KEYS: Final[Keys] = {
    **SLOT_KEYS,
    "ema_alpha": (_share, "a number above 0 and at most 1"),
    "update_interval": (_whole(1), "an integer of at least 1"),
    "warmup_batches": (_whole(0), "an integer of at least 0"),
    "down_hysteresis": (_number, NUMBER),
    "up_hysteresis": (_number, NUMBER),
    "ceiling_coeff": (partial(_number, low=0), f"a number from 0 to {MAX_NUMBER}"),
    "strategy": (lambda value: value == EMA, f"'{EMA}' in each slot, as it is for all of them"),
}
THROUGHPUT_KEYS: Final[Keys] = {
    "strategy": (lambda value: value == THROUGHPUT, f"'{THROUGHPUT}'"),
    "window_size": (_whole(1), "an integer of at least 1"),
    "update_interval": (_whole(1), "an integer of at least 1"),
    "switch_hysteresis": (partial(_number, low=0), f"a number from 0 to {MAX_NUMBER}"),
    "step_times": (_times, """milliseconds by batch size and by depth, such as {"1": {"1": 4.5, "3": 6}}"""),
}
THROUGHPUT_DEFAULTS: Final[dict[str, Any]] = {"window_size": 20, "update_interval": 5, "switch_hysteresis": 0.1}
STRATEGIES: Final[dict[str, Keys]] = {EMA: KEYS, THROUGHPUT: THROUGHPUT_KEYS}
