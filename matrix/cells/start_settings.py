"""The settings behind start axis values: `adaptive` configurations and session_retract memory sizes."""

import json
from pathlib import Path
from typing import Any, Final

import msgspec


class SessionRetract(msgspec.Struct, frozen=True):
    """Sizes in tokens: of the memory, and of a conversation after its first and its second turn.

    The memory is between one and two conversations, so a retracted turn resumes from the KV that its session kept. The
    second turns of two conversations do not fit with the first ones, so the younger is retracted; the end of the older
    one, with two rounds of the widest tree, fits with the KV that the younger had inherited.
    """

    memory: int
    first: int
    second: int


class StartSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of start_settings.yaml, which explains it."""

    adaptive: dict[str, dict[str, Any]]
    pages: dict[int, SessionRetract]
    windowed_pages: dict[int, SessionRetract]


_TABLE: Final = msgspec.yaml.decode(Path(__file__).with_suffix(".yaml").read_bytes(), type=StartSettings)
# None: no file is given, so the default table applies.
TEXTS: Final[dict[str, str | None]] = {"table": None} | {name: json.dumps(it) for name, it in _TABLE.adaptive.items()}


def session_retract(windowed: bool, page_size: int) -> SessionRetract:
    """The sizes for pages of `page_size` tokens."""
    sizes = _TABLE.windowed_pages if windowed else _TABLE.pages
    return sizes.get(page_size, sizes[0])


def spares(windowed: bool, page_size: int) -> bool:
    """Whether a second turn's inherited KV survives its retraction: with smaller pages a window has slid past it."""
    return not windowed or page_size == 256
