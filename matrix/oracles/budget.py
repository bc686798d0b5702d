"""The budgets and lengths that DSPARK's rounds should have, from the confidences that the engine shows, by trying every
budget and every threshold. Shares no code with the engine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod

from specmatrix.matrix.subjects.protocol import Budgeted

# float32's products of confidences, and their order, may differ from those of float64 by so much.
NEAR = 1e-6
LEAST = 1e-6


def survivals(confidences: Sequence[float]) -> list[float]:
    """Of a row: how likely each draft and all before it are right."""
    return [prod(confidences[: place + 1]) for place in range(len(confidences))]


def worth(rows: Sequence[Sequence[float]], table: str) -> list[float]:
    """Tokens per second of each budget 0, 1, .. for rows of survivals."""
    costs = json.loads(table)
    tokens, rates = costs["sample_batch_tokens"], costs["sample_steps_per_sec"]
    every = sorted((one for row in rows for one in row if one >= LEAST), reverse=True)
    found = []
    for budget in range(len(every) + 1):
        at = max([place for place, least in enumerate(tokens) if least <= len(rows) + budget], default=0)
        found.append((len(rows) + sum(every[:budget])) * rates[at])
    return found


def wrong_lengths(event: Budgeted, budget: int) -> str:
    """A sentence if a result's rows verify other drafts than the `budget` likeliest, or what is left of a length, else
    ""."""
    held = [survivals(row) for row in event.confidences]
    places = [(-one, draft, row) for row, line in enumerate(held) for draft, one in enumerate(line) if one >= LEAST]
    chosen = sorted(places)[:budget]
    edge = -chosen[-1][0] if chosen else 2.0
    for row, (line, length, room) in enumerate(zip(held, event.lengths, event.rooms, strict=True)):
        due = 1 + sum(place[2] == row for place in chosen)
        near = sum(abs(one - edge) < NEAR or abs(one - LEAST) < NEAR for one in line)
        least, most = due - near, due + near
        if room and not min(least, room) <= length <= min(most, room):
            text = f"request {event.rows[row]} verifies {length} nodes of {[round(one, 4) for one in line]}"
            return f"{text} with {room} tokens left; of a budget of {budget} drafts it has {due}"
    return ""


def wrong_budgets(events: Sequence[Budgeted], table: str, drafts: int) -> str:
    """A sentence on the first round whose budget or lengths are not due, else "". drafts: of a whole block."""
    known: dict[int, list[float]] = {}
    waiting: list[Budgeted] = []
    for number, event in enumerate(events):
        if event.budget is not None:
            values = worth([known.get(row, [1.0] * drafts) for row in event.rows], table)
            best = max(values)
            if event.budget >= len(values) or values[event.budget] < best * (1 - NEAR):
                due = values.index(best)
                return (
                    f"event {number}: {len(event.rows)} requests get a budget of {event.budget} drafts; {due} are due"
                )
            waiting.append(event)
            continue
        launch = next((one for one in waiting if one.rows == event.rows), None)
        if launch is None or launch.budget is None:
            return f"event {number}: a result of the requests {event.rows} without a launch"
        waiting = waiting[waiting.index(launch) + 1 :]
        if fault := wrong_lengths(event, launch.budget):
            return f"event {number}: {fault}"
        shown = zip(event.rows, event.confidences, event.rooms, strict=True)
        known |= {row: survivals(line) for row, line, room in shown if room}
    return ""
