"""The numbers and words of gsm-mini's problems, which set their difficulty.

A problem has a level 0..5; each class letter has a range of whole numbers (both ends included) per level.
"""

from pathlib import Path
from typing import Final

import msgspec

LEVELS = 6

RANGES: dict[str, tuple[tuple[int, int], ...]] = {
    "G": ((2, 4), (2, 4), (2, 5), (2, 6), (2, 7), (2, 9)),
    "S": ((2, 5), (2, 9), (3, 12), (6, 19), (12, 49), (21, 99)),
    "T": ((5, 30), (11, 99), (21, 199), (101, 499), (201, 999), (1001, 4999)),
    "H": ((30, 120), (100, 499), (200, 999), (1000, 4999), (2001, 9999), (10001, 49999)),
}
PERCENT: tuple[int, ...] = (5, 10, 15, 20, 25, 30, 40, 50, 60, 75)

_FILE: Final = Path(__file__).parent / "data" / "words.yaml"
_WORDS: Final = msgspec.yaml.decode(_FILE.read_bytes(), type=dict[str, tuple[str, ...]])
MEN, WOMEN, THINGS = (_WORDS[name] for name in ("men", "women", "things"))
