"""The settings behind start axis values: `adaptive` configurations, session_retract memory sizes, and a corpus."""

import json
from typing import Any, Final, NamedTuple

# The corpus that an n-gram drafter may search besides the requests' texts.
CORPUS: Final = "gsm-mini-train"
# Each slot decides after every round but its first, mostly from that round's own mean. The second differs in both
# hysteresis values; the ceiling of the third makes its depth alternate, whatever the acceptance; the last drafts
# nothing in every second round.
TIERS: Final[dict[str, Any]] = {
    "ema_alpha": 0.75,
    "update_interval": 1,
    "warmup_batches": 1,
    "1": {"candidate_steps": [1, 3]},
    "2": {"candidate_steps": [1, 2, 4], "down_hysteresis": 0.0, "up_hysteresis": 0.25},
    "4": {"candidate_steps": [1, 2, 4], "ceiling_coeff": 0.5},
    "16": {"candidate_steps": [0, 2, 3], "down_hysteresis": 1.5},
}
# The oldest format, without batch sizes. Every field that affects a round differs from the default table.
FLAT: Final[dict[str, Any]] = {
    "candidate_steps": [1, 2, 5],
    "ema_alpha": 0.4,
    "update_interval": 2,
    "warmup_batches": 3,
    "down_hysteresis": -0.5,
}
# Decides after every second round, by the shares of two; the times are near the margin between two depths, so that the
# acceptance moves them. The last slot has no depth in common with the first, so that the batch size moves them too.
THROUGHPUT: Final[dict[str, Any]] = {
    "strategy": "throughput_aware",
    "window_size": 2,
    "update_interval": 2,
    "step_times": {
        "1": {"1": 5.0, "2": 6.1, "3": 7.3, "4": 8.3},
        "4": {"1": 5.3, "2": 6.4, "3": 8.1, "4": 9.7},
        "24": {"1": 6.1, "2": 8.9, "3": 11.7, "4": 15.1},
    },
    "1": {"candidate_steps": [1, 3]},
    "2": {"candidate_steps": [1, 2, 4]},
    "8": {"candidate_steps": [2, 4]},
}
# None: no file is given, so the default table applies.
TEXTS: Final[dict[str, str | None]] = {
    "table": None,
    "tiers": json.dumps(TIERS),
    "flat": json.dumps(FLAT),
    "throughput": json.dumps(THROUGHPUT),
}


class SessionRetract(NamedTuple):
    """Sizes in tokens: of the memory, and of a conversation after its first and its second turn.

    The memory is between one and two conversations, so a retracted turn resumes from the KV that its session kept. The
    second turns of two conversations do not fit with the first ones, so the younger is retracted; the end of the older
    one, with two rounds of the widest tree, fits with the KV that the younger had inherited.
    """

    memory: int
    first: int
    second: int


SMALL_PAGES: Final = SessionRetract(320, 96, 190)
# A second turn must start, with two rounds, within the pages of the first. The slower turn must reach the next page
# while the faster one still runs, so it needs less than a third as many tokens to get there.
PAGES: Final = {64: SessionRetract(384, 82, 222), 256: SessionRetract(768, 208, 380)}
# Sliding-window layers reserve three pages per conversation at page size 64.
WINDOWED_PAGES: Final = {64: SessionRetract(512, 148, 280), 256: SessionRetract(1280, 460, 600)}


def session_retract(windowed: bool, page_size: int) -> SessionRetract:
    """The sizes for pages of `page_size` tokens."""
    return (WINDOWED_PAGES if windowed else PAGES).get(page_size, SMALL_PAGES)


def spares(windowed: bool, page_size: int) -> bool:
    """Whether a second turn's inherited KV survives its retraction: with smaller pages a window has slid past it."""
    return not windowed or page_size == 256
