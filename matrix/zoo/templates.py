"""The problem templates of gsm-mini, from data/templates.yaml, which explains their notation."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec


@dataclass(frozen=True, slots=True)
class Template:
    """One kind of problem: its numbers, phrasings and worked steps."""

    name: str
    numbers: str
    questions: tuple[str, ...]
    work: tuple[str, ...]
    given: str = ""


_FILE: Final = Path(__file__).parent / "data" / "templates.yaml"
_TABLE: Final = msgspec.yaml.decode(_FILE.read_bytes(), type=dict[str, tuple[Template, ...]])
TRAINED: Final = _TABLE["trained"]
HELDOUT: Final = _TABLE["heldout"]
