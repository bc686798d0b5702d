"""The controller against numbers worked out by hand from its rule (sglang#21599, #24055)."""

import pytest

from specmatrix.engine.core.config.adaptive_file import DEFAULT_SLOTS, AdaptiveSlot
from specmatrix.engine.core.draft.depth import TRACE_LENGTH, DraftSteps, ObservedRound, Slot
from specmatrix.engine.core.observe.step_counter import Counters


def decisions(slot, means):
    return [(slot.observe(mean), slot.ema, slot.steps) for mean in means]


def test_the_trace_equals_the_one_worked_out_by_hand():
    """alpha 1/2 keeps every average exact in binary; 2 rounds of warm-up, a decision every 2 rounds.

    Thresholds of [1, 3, 7]: 3 -> 7 above 2.5, 7 -> 3 at or below 2.25, 3 -> 1 at or below 0.25, 1 -> 3 above 0.5.
    """
    slot = Slot(AdaptiveSlot(1, (1, 3, 7), ema_alpha=0.5, update_interval=2, warmup_batches=2), 3)
    assert slot.ema == 2.0
    assert decisions(slot, [3, 3, 3, 3, 1, 1.5, 0, 0, 0, 2, 0, 0, 0, 0, 1, 1]) == [
        ("warm-up", 2.5, 3),
        ("warm-up", 2.75, 3),
        ("between", 2.875, 3),
        ("up", 2.9375, 7),
        ("between", 1.96875, 7),
        ("down", 1.734375, 3),
        ("between", 0.8671875, 3),
        ("stay", 0.43359375, 3),
        ("between", 0.216796875, 3),
        ("stay", 1.1083984375, 3),
        ("between", 0.55419921875, 3),
        ("stay", 0.277099609375, 3),
        ("between", 0.1385498046875, 3),
        ("down", 0.06927490234375, 1),
        ("between", 0.534637451171875, 1),
        ("up", 0.7673187255859375, 3),
    ]


def test_a_slot_that_drafts_nothing_keeps_its_average_and_probes():
    """SGLang's step 0: the threshold is 0.5 plus the hysteresis, and after an interval the next candidate is tried."""
    slot = Slot(AdaptiveSlot(1, (0, 1, 3), ema_alpha=0.5, update_interval=2, warmup_batches=0, down_hysteresis=0), 1)
    assert decisions(slot, [1, 0.5]) == [("between", 0.5, 1), ("down", 0.5, 0)]
    assert [slot.observe(0.0, drafted=False) for _ in range(2)] == ["between", "up"]
    assert (slot.ema, slot.steps) == (0.5, 1)
    fresh = Slot(AdaptiveSlot(1, (0, 3), update_interval=1, warmup_batches=0), 0)
    assert fresh.ema == -1.0 and fresh.observe(0.0, drafted=False) == "up"
    assert (fresh.ema, fresh.steps) == (2.0, 3)
    last = Slot(AdaptiveSlot(64, (0,), update_interval=1, warmup_batches=0), 3)
    assert last.observe(0.0, drafted=False) == "stay" and last.steps == 0


def test_a_round_without_drafts_is_counted_by_its_own_width():
    counters = Counters()
    steps = DraftSteps((AdaptiveSlot(1, (0, 2), 1.0, 1, 0, down_hysteresis=1.5),), 2, counters)
    assert steps.activate(1) == 3
    steps.observe(1, 3, [2])
    assert steps.activate(1) == 1 and steps.max_width == 3
    steps.observe(1, 3, [1])  # a wide round in flight when the depth fell
    assert (steps.trace[-1].ema, steps.activate(1)) == (1.0, 3)
    steps.observe(1, 1, [0])
    assert steps.trace[-1].ema == 1.0 and counters.counts["adaptive.undrafted"] == 1


@pytest.mark.parametrize(
    ("candidates", "asked", "first"), [((1, 3, 7), 7, 7), ((1, 3, 7), 5, 3), ((1, 3), 7, 3), ((1,), 3, 1)]
)
def test_a_slot_starts_at_the_requested_depth_or_in_its_middle(candidates, asked, first):
    slot = Slot(AdaptiveSlot(1, candidates), asked)
    assert (slot.steps, slot.ema) == (first, first - 1.0)


def eager(batch_from, candidates):
    """A slot whose depth follows its last round at once."""
    return AdaptiveSlot(batch_from, candidates, ema_alpha=1.0, update_interval=1, warmup_batches=0)


def test_a_batch_below_every_slot_has_the_first():
    steps = DraftSteps((eager(2, (1, 3)), eager(8, (2, 5)), eager(32, (4,))), 3, Counters())
    assert [steps.activate(size) for size in (1, 2, 7, 8, 31, 32, 500)] == [4, 4, 4, 6, 6, 5, 5]


def test_the_batch_size_alone_switches_and_the_counters_show_it():
    counters = Counters()
    steps = DraftSteps((eager(1, (1, 3, 7)), eager(8, (1, 3)), eager(32, (1,))), 3, counters)
    assert [steps.activate(size) for size in (1, 8, 32, 8, 1)] == [4, 4, 2, 4, 4]
    steps.observe(1, 4, [3])
    assert steps.steps == 3 and steps.activate(1) == 8 and steps.steps == 7
    steps.observe(9, 4, [0, 1, 0, 0])
    assert [steps.activate(size) for size in (9, 1)] == [2, 8]
    adaptive = {
        name.removeprefix("adaptive."): n for name, n in counters.counts.items() if name.startswith("adaptive.")
    }
    assert adaptive == {
        "activated": 8,
        "switched_up": 1,
        "switched_down": 1,
        "batch_switch": 4,
        "held": 0,
        "undrafted": 0,
    }
    assert list(steps.trace) == [
        ObservedRound(1, 1, 4, 3.0, 3.0, 7, "up", (3,), 5),
        ObservedRound(8, 9, 4, 0.25, 0.25, 1, "down", (0, 1, 0, 0), 6),
    ]
    assert steps.activated == 8
    assert list(steps.rounds) == [(1, 4), (8, 4), (32, 2), (8, 4), (1, 4), (1, 8), (9, 2), (1, 8)]


def test_the_trace_keeps_the_latest_records():
    steps = DraftSteps(DEFAULT_SLOTS, 3, Counters())
    for _ in range(TRACE_LENGTH + 3):
        steps.activate(1)
        steps.observe(1, 4, [2])
    assert len(steps.trace) == len(steps.rounds) == TRACE_LENGTH
    assert steps.policy.slots[0].rounds == steps.activated == steps.trace[-1].activated == TRACE_LENGTH + 3


@pytest.mark.parametrize(("depth", "width"), [(0, 1), (3, 4), (3, 8)])
def test_static_steps_are_one_slot_of_one_candidate(depth, width):
    counters = Counters()
    steps = DraftSteps.static(depth, width, counters)
    for size in (1, 8, 100):
        assert steps.activate(size) == steps.max_width == width
        steps.observe(size, width, [0] * size)
    assert steps.steps == depth and not steps.trace and not any(counters.counts.values())
