"""Suggests the known word that a mistyped one most likely meant."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

# Minimum similarity of a suggestion: one letter of four may differ. `nonsense` and `none` have 0.67.
ALIKE: Final = 0.75


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word most similar to `word`, "" if none is similar enough."""
    close = get_close_matches(word, list(known), n=1, cutoff=ALIKE)
    return close[0] if close else ""
