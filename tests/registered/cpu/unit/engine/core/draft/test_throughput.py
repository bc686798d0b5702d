"""The policy "throughput_aware" against scores worked out by hand, and slots by padded batch size."""

import json

import pytest

from specmatrix.engine.core.config.adaptive_file import AdaptiveSlot, parse
from specmatrix.engine.core.draft.depth import DraftSteps
from specmatrix.engine.core.draft.throughput import Decision, ThroughputAware
from specmatrix.engine.core.observe.step_counter import Counters
from specmatrix.errors import EngineBug

TIMES = {"1": {"1": 2, "2": 2.5, "4": 3.5}, "4": {"1": 2, "2": 4, "4": 9}}
SLOTS = {"1": {"candidate_steps": [1, 2, 4]}, "4": {"candidate_steps": [1, 2]}}


def policy(steps=2, settings=()):
    own = {"window_size": 2, "update_interval": 1, "switch_hysteresis": 0.1, "step_times": TIMES} | dict(settings)
    text = json.dumps({"strategy": "throughput_aware", **own, **SLOTS})
    return ThroughputAware(parse(text).slots, own, steps)


def controlled(steps=2, settings=()):
    made, counters = policy(steps, settings), Counters()
    slots = tuple(AdaptiveSlot(int(size), tuple(slot["candidate_steps"])) for size, slot in SLOTS.items())
    return DraftSteps(slots, steps, counters, policy=made), counters


def counts(counters):
    return {n.removeprefix("adaptive."): c for n, c in counters.counts.items() if n.startswith("adaptive.") and c}


def test_the_decisions_equal_those_worked_out_by_hand():
    """Windows of two rounds, a decision at the start of each round whose drafts were all seen twice."""
    steps, counters = controlled()
    assert steps.activate(1) == 3
    steps.observe(1, 3, [2])
    assert steps.activate(1) == 3  # seen once
    steps.observe(1, 3, [2])
    # Rates 1, 1, and the same further on: (1 + 1) / 2 = 1, 3 / 2.5 = 1.2, and 5 / 3.5 = 1.43 > 1.2 * 1.1.
    assert steps.activate(1) == 5
    steps.observe(1, 5, [1])
    assert steps.activate(1) == 5  # the last two positions were seen once
    steps.observe(1, 5, [0])
    # Rates 1/2 and 0: 0.75, 0.6, and 1.5 / 3.5 = 0.43.
    assert steps.activate(1) == 2
    # What a deeper round in flight shows of the positions counts.
    steps.observe(1, 5, [4])
    assert [list(window) for window in steps.policy.windows] == [[0.0, 1.0], [1.0], [1.0], [1.0]]
    # Rates 1/2, 1, 1, 1: 0.75, 1, and 4.5 / 3.5.
    assert steps.activate(1) == 5
    assert counts(counters) == {"activated": 6, "switched_up": 2, "switched_down": 1}
    assert [(seen.ema, seen.steps, seen.decision) for seen in steps.trace] == [
        (4.0, 2, "between"),
        (4.0, 2, "between"),
        (1.5, 4, "between"),
        (0.5, 4, "between"),
        (3.5, 1, "between"),
    ]


def test_the_margin_holds_a_depth_that_is_nearly_as_good():
    """5 / 3.8 = 1.316 is less than 1.1 times 3 / 2.5 = 1.2, and 5 / 3.7 = 1.351 is more."""
    for time, width in ((3.8, 3), (3.7, 5)):
        steps, counters = controlled(settings={"step_times": {"1": {"1": 2, "2": 2.5, "4": time}}})
        for _ in range(2):
            steps.activate(1)
            steps.observe(1, 3, [2])
        assert steps.activate(1) == width
        assert ("held" in counts(counters), "switched_up" in counts(counters)) == (width == 3, width == 5)


def test_a_batch_reads_the_times_of_the_next_measured_size():
    """Rates of 1: at 4 requests (1 + 1) / 2 = 1 is better than 3 / 4, and beyond the last size its times hold."""
    for size, width in ((1, 5), (3, 2), (4, 2), (99, 2)):
        steps, _ = controlled(settings={"update_interval": 2})
        for _ in range(2):
            steps.activate(size)
            steps.observe(size, 3, [2] * size)
        assert steps.activate(size) == width


def test_a_slot_without_the_depth_takes_its_best_at_once():
    steps, counters = controlled(4, settings={"update_interval": 9})
    assert steps.activate(4) == 3  # nothing is known: the middle
    assert steps.activate(1) == 3
    steps, counters = controlled(4, settings={"update_interval": 9})
    assert steps.activate(1) == 5
    steps.observe(1, 5, [4])
    # 2 / 2 is better than 3 / 4, whatever the margin.
    assert steps.activate(5) == 2 and counts(counters) == {"activated": 2, "batch_switch": 1}
    assert [len(window) for window in steps.policy.windows] == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([[4, 2, 2, 2, 0]], [0.8, 0.8, 0.2, 0.2]),
        ([[1, 1, 0, 0]], [0.5, 0.0, 0.0, 0.0]),
        ([[0, 0]], [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_rates_are_shares_of_requests(seen, expected):
    made = policy(4)
    for correct in seen:
        made.observe(0, 5, correct)
    assert made.observe(0, 1, [0]).average == pytest.approx(sum(expected))


def test_rates_beyond_the_last_known_one_fall_on_in_proportion():
    """0.8, 0.4, then 0.2 and 0.1; a rate that rose stays where it is."""
    made = policy(4)
    assert made.observe(0, 3, [2, 2, 1, 1, 0]) == Decision(4, "between", pytest.approx(0.8 + 0.4 + 0.2 + 0.1))
    made = policy(4)
    made.observe(0, 2, [0])
    assert made.observe(0, 3, [2]).average == pytest.approx(0.5 + 1 + 1 + 1)
    made = policy(4)
    assert made.observe(0, 2, [1, 0]).average == pytest.approx(4 * 0.5)


def test_the_slot_is_that_of_the_graphs_batch_size():
    """As SGLang: 5 to 7 requests run in the graph of 8, and beyond the largest graph nothing is padded."""
    slots = (AdaptiveSlot(1, (3,)), AdaptiveSlot(8, (2,)), AdaptiveSlot(16, (1,)))
    sizes = (4, 5, 8, 9, 12, 13, 16)
    padded, raw = (DraftSteps(slots, 3, Counters(), graph_batch=most) for most in (12, 0))
    assert [padded.activate(size) for size in sizes] == [4, 3, 3, 2, 2, 3, 2]
    assert [raw.activate(size) for size in sizes] == [4, 4, 3, 3, 3, 3, 2]
    padded.observe(5, 3, [1])
    assert padded.trace[-1].slot == 8


def test_a_policy_that_leaves_its_slot_is_an_error():
    class Deep:
        def choose(self, slot, batch_size):
            return Decision(9)

        def observe(self, slot, width, correct):
            return Decision(9)

    steps = DraftSteps((AdaptiveSlot(1, (1, 3)),), 3, Counters(), policy=Deep())
    with pytest.raises(EngineBug, match=r"^the adaptive policy chose depth 9 for 2 requests of \(1, 3\)$"):
        steps.activate(2)
