"""The README's table of modes, which apply to any algorithm; generated from the traits and the axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from specmatrix.engine.core.draft.algorithms import ALGORITHMS, Traits
from specmatrix.matrix.cells.axes import axis

HEAD: Final = ("mode", "requested with", "what it does", "algorithms", "shape", "timings", "in cells", "gates")


class Mode(NamedTuple):
    """One row. runs: whether an algorithm supports the mode; axis and values: of its cells; gates: names."""

    name: str
    asked: str
    does: str
    runs: Callable[[Traits], bool]
    shape: str
    axis: str
    values: tuple[str, ...]
    gates: tuple[str, ...]


def _any(traits: Traits) -> bool:
    return True


MODES: Final = (
    Mode(
        "spec v1",
        "`--spec-version v1`",
        "each step is read before the next is launched",
        _any,
        "any",
        "spec_version",
        ("v1",),
        ("lossless", "effective"),
    ),
    Mode(
        "spec v2",
        "`--spec-version v2`",
        "the next step is launched before the last one is read",
        lambda traits: traits.max_lag > 0,
        "any",
        "spec_version",
        ("v2",),
        ("lossless", "effective"),
    ),
    Mode(
        "adaptive steps",
        "`--speculative-adaptive`, `--speculative-adaptive-config FILE`",
        "the depth of a round follows what was accepted and how many requests run",
        lambda traits: traits.adaptive,
        "chains",
        "adaptive",
        tuple(value for value in axis("adaptive").names if value != "off"),
        ("adaptive", "acceptance"),
    ),
    Mode(
        "streaming session",
        "`--enable-streaming-session`, `open_session(..., streaming=True)`",
        "a turn inherits the KV of all that the user saw before",
        _any,
        "any",
        "session",
        ("streaming",),
        ("session", "ledger"),
    ),
    Mode(
        "ordinary session",
        "`open_session(...)`, `SessionParams(session, rid=...)`",
        "a tree of requests: each continues any finished one",
        _any,
        "any",
        "session",
        ("branching",),
        ("session", "ledger"),
    ),
    Mode(
        "tensor parallelism",
        "`--tp-size N`; in Python `RankedLLM(EngineConfig(..., tp_size=N))` from `engine/parallel/client.py`",
        "N processes hold a share of the target each and take the same steps",
        _any,
        "any",
        "tp",
        tuple(value for value in axis("tp").names if value != "1"),
        ("ranks", "lossless"),
    ),
)


def mode_table() -> str:
    """Markdown, one row per mode, without a trailing newline."""
    rows = [HEAD, ("---",) * len(HEAD), *map(_row, MODES)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(mode: Mode) -> tuple[str, ...]:
    runs = [traits for traits in ALGORITHMS if mode.runs(traits)]
    lacking = [traits.name for traits in ALGORITHMS if not mode.runs(traits)]
    names = ", ".join(traits.name for traits in runs)
    if not lacking:
        names = "all"
    elif len(lacking) < len(runs):
        names = f"all but {', '.join(lacking)}"
    timings = "v1 and v2" if any(traits.max_lag for traits in runs) else "v1"
    if mode.axis == "spec_version":
        timings = mode.values[0]
    cells = f"`{mode.axis}={'`, `'.join(mode.values)}`"
    return (mode.name, mode.asked, mode.does, names, mode.shape, timings, cells, ", ".join(mode.gates))
