"""What a JSON object must hold: its keys, and the types that each value may have."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from operator import itemgetter
from types import NoneType
from typing import Final

from specmatrix.reports.schema import Json, ReportError

ANY: Final = (dict, list, str, int, float, bool, NoneType)
NUMBER: Final = (int, float)


class Shape:
    """Keys and their types, a tuple where a value may have several. JSON knows exact types only: a switch is no number.

    A sound object passes one look-up of all its types together, for a report has a million of them; only another one
    is gone through key by key, for the sentence that says what is wrong.
    """

    def __init__(self, kinds: Mapping[str, type | tuple[type, ...]]) -> None:
        self._kinds = {key: kind if isinstance(kind, tuple) else (kind,) for key, kind in kinds.items()}
        self._sound = frozenset(product(*self._kinds.values()))
        self._values = itemgetter(*kinds)

    def read(self, body: Json, what: str) -> tuple[Json, ...]:
        """The values in the order of the keys. ReportError, one sentence that names `what`, the key and the value."""
        try:
            values: tuple[Json, ...] = self._values(body)
        except (KeyError, TypeError, IndexError):
            raise self._missing(body, what) from None
        if tuple(map(type, values)) not in self._sound:
            raise self._mistyped(values, what)
        return values

    def _missing(self, body: Json, what: str) -> ReportError:
        if not isinstance(body, dict):
            return ReportError(f"{what} is {body!r:.40}, allowed is a JSON object")
        return ReportError(f"{what} has no {next(key for key in self._kinds if key not in body)!r}")

    def _mistyped(self, values: tuple[Json, ...], what: str) -> ReportError:
        rows = zip(self._kinds.items(), values, strict=True)
        key, kinds, value = next((key, kinds, value) for (key, kinds), value in rows if type(value) not in kinds)
        allowed = " or ".join("null" if kind is NoneType else kind.__name__ for kind in kinds)
        return ReportError(f"{what} has {key} = {value!r:.40}, allowed is {allowed}")
