"""The known word that a mistyped one most likely meant."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

# Share of equal letters below which a suggestion is a guess: `bogus` and `out` have 0.5.
ALIKE: Final = 0.6


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that is most like `word`, "" if none is."""
    close = get_close_matches(word, list(known), n=1, cutoff=ALIKE)
    return close[0] if close else ""
