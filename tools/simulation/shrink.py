"""Shrinks a failing schedule while it still fails: fewer events, then a simpler engine, then smaller events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from tools.simulation.scenario import Abort, ArrivingRequest, Event, Scenario, SimulationSetup

# Simpler values to try per field; a large pool is simpler than a small one.
SIMPLER: Final[dict[str, tuple[int | bool | None, ...]]] = {
    "adaptive": (False,),
    "window": (None,),
    "timeout": (None,),
    "cache": (False,),
    "eos": (False,),
    "chunk": (None, 1),
    "key_span": (0,),
    "spare_window": (0,),
    "rows": (1, 2),
    "lag": (0, 1, 2),
    "steps": (0, 1),
    "page_size": (1, 2),
    "pages": (200, 60),
}


def shrink(scenario: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    """The smallest schedule found for which `fails`; none of its single reductions fails."""
    cut: Scenario | None = scenario
    while cut is not None:
        scenario = cut
        cut = next((smaller for smaller in _cuts(scenario) if fails(smaller)), None)
    return scenario


def _cuts(scenario: Scenario) -> Iterator[Scenario]:
    """Every schedule with one reduction, the largest reductions first."""
    events = scenario.events
    for size in (len(events) // 2, len(events) // 4, 1):
        if size:
            for start in range(0, len(events), size):
                yield replace(scenario, events=_without(events, start, start + size))
    for field, values in SIMPLER.items():
        for setup in _simpler(scenario.setup, field, values):
            yield replace(scenario, setup=setup)
    for index, event in enumerate(events):
        for smaller in _smaller(event, events[index - 1].at if index else 0):
            yield replace(scenario, events=(*events[:index], smaller, *events[index + 1 :]))


def _without(events: tuple[Event, ...], start: int, stop: int) -> tuple[Event, ...]:
    """The other events, with the request numbers of aborts adjusted."""
    asks = [index for index, event in enumerate(events) if isinstance(event, ArrivingRequest)]
    kept = {old: new for new, old in enumerate([index for index in asks if not start <= index < stop])}
    numbers = {number: kept[index] for number, index in enumerate(asks) if index in kept}
    left: list[Event] = []
    for event in (*events[:start], *events[stop:]):
        if not isinstance(event, Abort):
            left.append(event)
        elif event.request in numbers:
            left.append(replace(event, request=numbers[event.request]))
    return tuple(left)


def _simpler(setup: SimulationSetup, field: str, values: tuple[int | bool | None, ...]) -> Iterator[SimulationSetup]:
    now = getattr(setup, field)
    for value in values[: values.index(now) if now in values else None]:
        yield _with(setup, field, value)


def _with(setup: SimulationSetup, field: str, value: int | bool | None) -> SimulationSetup:
    values = {name: getattr(setup, name) for name in SimulationSetup.__slots__}
    return SimulationSetup(**(values | {field: value}))


def _smaller(event: Event, earliest: int) -> Iterator[Event]:
    for at in sorted({earliest, (earliest + event.at) // 2, event.at - 1}):
        if earliest <= at < event.at:
            yield replace(event, at=at)
    if not isinstance(event, ArrivingRequest):
        return
    if event.stop:
        yield replace(event, stop=())
    if event.session is not None:
        yield replace(event, session=None)
    if event.session:
        yield replace(event, session=0)
    for new in sorted({1, event.new // 2, event.new - 1}):
        if 1 <= new < event.new:
            yield replace(event, new=new)
    for length in sorted({1, len(event.tokens) // 2, len(event.tokens) - 1}):
        if 1 <= length < len(event.tokens):
            yield replace(event, tokens=event.tokens[:length])
    if any(event.tokens):
        yield replace(event, tokens=(0,) * len(event.tokens))
