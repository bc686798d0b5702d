"""Functions of a launch, tabulated over a full product of settings without walking through it.

A function is run on a launch of which nothing is decided; where it reads a setting, it is run again for each value of
it. So a function costs as many runs as it tells cases apart, and the reads are exact: an unread setting has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from specmatrix.engine.core.config.asked import UNASKED, Facts
from specmatrix.engine.core.config.context import RuleContext
from specmatrix.engine.core.draft.algorithms import algorithm
from specmatrix.matrix.policy.knobs import Knob, owners

Indices = npt.NDArray[np.int32]
Variable = int | str  # index of a knob, or a field that an earlier function chose
FACT_DEFAULTS = {name: f.default for name, f in Facts.__dataclass_fields__.items()}


class _Unread(Exception):
    """A function reads a variable whose value is open."""

    def __init__(self, variable: Variable) -> None:
        super().__init__(str(variable))
        self.variable = variable


@dataclass(frozen=True, eq=False, slots=True)
class _Meaningless:
    """What a function made of values of chosen fields that no launch has together."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Table:
    """A function's value on every combination: leaves[index]. index has one axis per knob, of length 1 if unread."""

    leaves: tuple[Hashable, ...]
    index: Indices

    def where(self, wanted: Callable[[Any], bool]) -> npt.NDArray[np.bool_]:
        """True where the value is wanted."""
        return np.array([bool(wanted(leaf)) for leaf in self.leaves])[self.index]

    def map(self, of: Callable[[Any], Hashable]) -> Table:
        """The table of a function of the value."""
        found: dict[Hashable, int] = {}
        number = np.array([found.setdefault(of(leaf), len(found)) for leaf in self.leaves], np.int32)
        return Table(tuple(found), number[self.index])


@dataclass
class Space:
    """The product of the knobs. `chosen` holds the tables of fields that later functions read as `situation.chosen`."""

    knobs: tuple[Knob, ...]
    chosen: dict[str, Table] = field(default_factory=dict)

    @cached_property
    def owners(self) -> dict[tuple[str, str], int]:
        """Kind and name of a field -> the knob that sets it."""
        return owners(self.knobs)

    @property
    def size(self) -> int:
        """Launches in the product."""
        return prod(len(knob.settings) for knob in self.knobs)

    def tabulate(self, function: Callable[[RuleContext], Hashable]) -> Table:
        """The function's table. It must be pure and read nothing but the situation."""
        leaves: dict[Hashable, int] = {}
        index = _squeezed(self._grow(function, {}, leaves))
        used = np.unique(index)
        met = [leaf for number, leaf in enumerate(leaves) if number in used]
        for leaf in met:
            if isinstance(leaf, _Meaningless):
                raise leaf.error
        return Table(tuple(met), np.searchsorted(used, index).astype(np.int32))

    def share(self, name: str) -> None:
        """Tabulate a property of the situation once; functions tabulated later read it as one variable."""
        whole = name == "traits"
        self.chosen[name] = self.tabulate(
            lambda s: algorithm(s.asked.speculative_algorithm) if whole else getattr(s, name)
        )

    def count(self, *parts: npt.NDArray[np.bool_]) -> int:
        """Combinations on which all the parts are true."""
        both = np.ones((1,) * len(self.knobs), bool)
        for part in parts:
            both = both & part
        return int(both.sum()) * self.repeats(both)

    def counts(self, table: Table, among: npt.NDArray[np.bool_]) -> dict[Any, int]:
        """Combinations per value of the table, where `among` is true; values that never occur are left out."""
        unread = tuple(axis for axis, length in enumerate(table.index.shape) if length == 1)
        weights, index = np.broadcast_arrays(among.sum(axis=unread, keepdims=True), table.index)
        # What the sum over an unread axis has not counted yet.
        repeats = self.repeats(np.broadcast_to(False, np.broadcast_shapes(among.shape, table.index.shape)))
        found = np.bincount(index.ravel(), weights.ravel(), len(table.leaves))
        return {leaf: int(n) * repeats for leaf, n in zip(table.leaves, found, strict=True) if n}

    def repeats(self, array: npt.NDArray[Any]) -> int:
        """Combinations that one element of an array stands for."""
        pairs = zip(self.knobs, array.shape, strict=True)
        return prod(len(knob.settings) for knob, length in pairs if length == 1)

    def first(self, among: npt.NDArray[np.bool_]) -> tuple[int, ...]:
        """The first combination on which `among` is true, as one index per knob."""
        return tuple(int(i) for i in np.unravel_index(int(among.argmax()), among.shape))

    def _grow(
        self, function: Callable[[RuleContext], Hashable], known: dict[Variable, int], leaves: dict[Hashable, int]
    ) -> Indices:
        try:
            value = function(self._situation(known))
        except _Unread as open_:
            variable = open_.variable
        except Exception as error:  # raised by `tabulate` if any launch has these values together
            return np.full((1,) * len(self.knobs), leaves.setdefault(_Meaningless(error), len(leaves)), np.int32)
        else:
            shape = (1,) * len(self.knobs)
            return np.full(shape, leaves.setdefault(value, len(leaves)), np.int32)
        values = len(self.chosen[variable].leaves if isinstance(variable, str) else self.knobs[variable].settings)
        cases = [self._grow(function, known | {variable: number}, leaves) for number in range(values)]
        if all(np.array_equal(case, cases[0]) for case in cases):
            return cases[0]
        if isinstance(variable, int):
            # A chosen field may have brought the knob's whole axis into a case, which holds at one of its values only.
            slices = [case.take([n if case.shape[variable] > 1 else 0], variable) for n, case in enumerate(cases)]
            return np.concatenate(np.broadcast_arrays(*slices), axis=variable)
        grown, at = cases[0], self.chosen[variable].index
        for number, case in enumerate(cases[1:], 1):
            grown = np.where(at == number, case, grown)
        return grown

    def _situation(self, known: Mapping[Variable, int]) -> RuleContext:
        asked = _Reader(self, known, "asked", UNASKED)
        facts = _Reader(self, known, "facts", FACT_DEFAULTS)
        chosen = _Chosen(self, known)
        return _Open(cast(Any, asked), cast(Any, facts), cast(Any, _Traits(asked, chosen)), chosen)


def _squeezed(index: Indices) -> Indices:
    """The same values without the axes along which nothing changes."""
    for axis in range(index.ndim):
        start = index.take([0], axis)
        if index.shape[axis] > 1 and bool((index == start).all()):
            index = start
    return index


def _shared(name: str) -> Any:  # noqa: ANN401 - a property of any type
    """A property of Situation that is read from its table where there is one."""
    own: Any = getattr(RuleContext, name)

    def read(s: RuleContext) -> Any:  # noqa: ANN401 - as the property
        return s.chosen[name] if name in s.chosen else own.fget(s)

    return property(read)


class _Open(RuleContext):
    """A situation whose costliest properties are tabulated first."""

    adaptive = _shared("adaptive")
    asked_steps = _shared("asked_steps")
    asked_topk = _shared("asked_topk")
    widest = _shared("widest")


class _Reader:
    """An EngineConfig or Facts of which only the settings in `known` are decided."""

    def __init__(self, space: Space, known: Mapping[Variable, int], kind: str, defaults: Mapping[str, Any]) -> None:
        self._of = (space, known, kind, defaults)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as the field that it stands for
        space, known, kind, defaults = self._of
        knob = space.owners.get((kind, name))
        if knob is None:
            return defaults[name]
        if knob not in known:
            raise _Unread(knob)
        setting = space.knobs[knob].settings[known[knob]]
        return getattr(setting, kind).get(name, defaults[name])


class _Traits:
    """The traits of the algorithm, which is read only when one of them is."""

    def __init__(self, asked: _Reader, chosen: _Chosen) -> None:
        self._of = (asked, chosen)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as the trait that it stands for
        asked, chosen = self._of
        whole = chosen["traits"] if "traits" in chosen else algorithm(asked.speculative_algorithm)
        return getattr(whole, name)


class _Chosen(dict[str, Any]):
    """The fields that were chosen before."""

    def __init__(self, space: Space, known: Mapping[Variable, int]) -> None:
        super().__init__()
        self._of = (space, known)

    def __contains__(self, name: object) -> bool:
        return name in self._of[0].chosen

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - as the field that it stands for
        space, known = self._of
        if name not in known:
            raise _Unread(name)
        return space.chosen[name].leaves[known[name]]
