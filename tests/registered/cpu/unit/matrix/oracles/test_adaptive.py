"""The second implementation of adaptive depth: against numbers worked out by hand, and against the engine's."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmatrix.engine.adaptive_policies import policy_of
from specmatrix.engine.core.config.adaptive_file import DEFAULT_SLOTS, AdaptiveSlot, parse
from specmatrix.engine.core.draft.depth import DraftSteps, Slot
from specmatrix.engine.core.observe.step_counter import Counters
from specmatrix.matrix.cells.cell import ADAPTIVE_TEXTS, Cell
from specmatrix.matrix.conformance.simulated import depths
from specmatrix.matrix.oracles import adaptive
from specmatrix.matrix.subjects.observations import Trace


@pytest.mark.parametrize(
    ("steps", "ema", "more", "target"),
    [
        # Thresholds are inclusive downwards and exclusive upwards.
        (7, 2.25, {}, 3),
        (7, 2.2501, {}, 7),
        (7, 0.25, {}, 1),
        (3, 0.25, {}, 1),
        (3, 0.2501, {}, 3),
        (3, 2.5, {}, 3),
        (3, 2.5001, {}, 7),
        (1, 0.5, {}, 1),
        (1, 0.5001, {}, 3),
        (1, 2.5001, {}, 7),
        # Hysteresis shifts each threshold by itself.
        (3, 0.5, {"down_hysteresis": 0.0}, 1),
        (1, 1.0, {"up_hysteresis": 0.5}, 1),
        (1, 1.01, {"up_hysteresis": 0.5}, 3),
        # A ceiling of ceil(average * coefficient), at least 1, lowers but never holds back a step up.
        (7, 2.4, {"ceiling_coeff": 1.0}, 3),
        (7, 2.4, {"ceiling_coeff": 3.0}, 7),
        (7, 5.0, {"ceiling_coeff": 1.0}, 3),
        (3, 2.6, {"ceiling_coeff": 1.0}, 7),
        (3, 0.3, {"ceiling_coeff": 1.0}, 1),
        (3, 0.3, {"ceiling_coeff": 9.0}, 3),
        (1, 0.0, {"ceiling_coeff": 1.0}, 1),
        (7, 6.9, {"ceiling_coeff": 0.1, "candidate_steps": [3, 7]}, 3),
        (1, 0.5, {"down_hysteresis": 0.0, "candidate_steps": [0, 1]}, 0),
        (1, 0.51, {"down_hysteresis": 0.0, "candidate_steps": [0, 1]}, 1),
        (0, 0.1, {"candidate_steps": [0, 2, 5]}, 2),
    ],
)
def test_decisions_of_both_by_hand(steps, ema, more, target):
    """With an alpha of 1 the engine's average is the mean of its only round."""
    rule = adaptive.DEFAULTS | {"candidate_steps": [1, 3, 7]} | more
    assert adaptive.decide(rule, steps, ema) == target
    at_once = {"ema_alpha": 1.0, "update_interval": 1, "warmup_batches": 0}
    slot = Slot(AdaptiveSlot(1, **rule | at_once | {"candidate_steps": tuple(rule["candidate_steps"])}), steps)
    slot.observe(ema)
    assert slot.steps == target


@pytest.mark.parametrize("name", ADAPTIVE_TEXTS)
def test_the_table_and_the_files_are_read_as_the_engine_reads_them(name):
    slots, settings = adaptive.slots_of(Cell(adaptive=name)), adaptive.priced(Cell(adaptive=name))
    read = DEFAULT_SLOTS if name == "table" else parse(ADAPTIVE_TEXTS[name] or "").slots
    own = {} if settings is None else {"strategy": "throughput_aware"} | settings
    assert [slot.as_dict() for slot in read] == [own | slot | {"batch_from": size} for size, slot in slots.items()]
    assert name == "table" or parse(ADAPTIVE_TEXTS[name] or "").flat == (name == "flat")


def test_the_first_depth_is_the_tables_or_the_cells():
    slots = adaptive.slots_of(Cell(adaptive="table"))
    assert (adaptive.first_depth(Cell(adaptive="table"), slots), adaptive.widest(slots)) == (3, 8)
    assert adaptive.first_depth(Cell(adaptive="table", steps="1"), slots) == 1


def engines(name: str, steps: int, rounds, lag: int, graph_batch: int = 0) -> tuple[Trace, Counters]:
    """The decisions of the engine's controller for rounds (batch size, accepted share of each live request)."""
    counters = Counters()
    slots = DEFAULT_SLOTS if name == "table" else parse(ADAPTIVE_TEXTS[name] or "").slots
    made = DraftSteps(slots, steps, counters, policy=policy_of(slots, steps), graph_batch=graph_batch)
    return depths(made, rounds, lag), counters


ROUNDS = st.lists(st.tuples(st.integers(1, 40), st.lists(st.floats(0, 0.99), max_size=5)), max_size=80)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.sampled_from(["table", "tiers", "flat", "throughput"]),
    st.sampled_from([1, 2, 3]),
    ROUNDS,
    st.integers(0, 2),
    st.sampled_from([0, 6, 160]),
)
def test_both_implementations_agree_on_every_entry(name, steps, rounds, lag, graph_batch):
    trace, counters = engines(name, steps, rounds, lag, graph_batch)
    cell = Cell(adaptive=name, steps=str(steps))
    replay = adaptive.AdaptiveReplay(cell, lag, 1e-9, graph_batch=graph_batch)
    replay.walk(trace)
    known = {n: replay.counts[n] for n in counters.counts}
    assert {n: count for n, count in counters.counts.items() if n.startswith("adaptive.")}.items() <= known.items()


def test_what_is_skipped_is_replayed_but_not_counted():
    trace, _ = engines("tiers", 3, [(4, [0.9]), (4, [0.9]), (4, [0.9]), (1, [0.9])], 0)
    cell = Cell(adaptive="tiers")
    whole, rest = adaptive.AdaptiveReplay(cell, 0, 1e-9), adaptive.AdaptiveReplay(cell, 0, 1e-9, (3, 3))
    whole.walk(trace)
    rest.walk(trace)
    assert rest.counts["adaptive.activated"] == 1 and whole.counts["adaptive.activated"] == 4
    assert (
        rest.rule.states == whole.rule.states
        and rest.counts["adaptive.switched_up"] < whole.counts["adaptive.switched_up"]
    )


def mismatch(trace: Trace, lag: int = 0) -> str:
    with pytest.raises(adaptive.AdaptiveMismatch) as caught:
        adaptive.AdaptiveReplay(Cell(adaptive="tiers"), lag, 1e-9).walk(trace)
    return str(caught.value)


def test_a_late_observation_and_a_round_of_another_width_are_named():
    """Lag 1 in the trace of an engine that reports lag 0."""
    trace, _ = engines("tiers", 3, [(4, [0.9]), (1, [0.9]), (4, [0.9])], 1)
    text = "observation 0 (4 requests, width 3) matches no round that may have been read at this point"
    assert mismatch(trace) == text
    trace, _ = engines("tiers", 3, [(4, [0.5]), (4, [0.5])], 0)
    wrong = replace(trace, rounds=(trace.rounds[0], (4, 7)))
    assert mismatch(wrong) == "round 1 of 4 requests has width 7; slot 4 is at 2 steps"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"ema": 9.0}, "gives the average 9; expected 1.75 from the slot's rounds"),
        ({"correct": (9, 1)}, "has impossible accepted drafts [9, 1]"),
        ({"correct": ()}, "has impossible accepted drafts []"),
        ({"slot": 1}, "is counted for slot 1 (smallest batch size); it belongs to slot 4"),
        ({"decision": "up"}, "decided 'up', 2 steps; expected 'warm-up', 2 steps"),
        ({"steps": 1}, "decided 'warm-up', 1 steps; expected 'warm-up', 2 steps"),
        ({"width": 5}, "matches no round that may have been read at this point"),
    ],
)
def test_an_observation_that_the_rule_does_not_give_is_named(change, text):
    trace, _ = engines("tiers", 3, [(4, [0.9]), (4, [0.9])], 0)
    first, *others = trace.observations
    wrong = replace(trace, observations=(replace(first, **change), *others))
    assert mismatch(wrong) == f"observation 0 (4 requests, width {change.get('width', first.width)}) {text}"


def test_a_round_whose_requests_all_ended_is_not_missed():
    trace, _ = engines("tiers", 3, [(1, [0.9]), (1, []), (1, [0.9]), (1, [0.9])], 1)
    assert len(trace.observations) == 3 and len(trace.rounds) == 4
    adaptive.AdaptiveReplay(Cell(adaptive="tiers"), 1, 1e-9).walk(trace)
