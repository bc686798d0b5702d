"""Both file formats, and one error sentence for every mistake: what was wrong, the value, what is allowed."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmatrix.engine.core.config.adaptive_file import DEFAULT_SLOTS, MAX_STEPS, AdaptiveSlot, dump, parse, union
from specmatrix.errors import ConfigError
from specmatrix.json_text import parse_json
from tests.support.tables import table as cases

KEYS = "candidate_steps, ema_alpha, update_interval, warmup_batches, down_hysteresis, up_hysteresis, ceiling_coeff, "


def slots(table):
    return parse(json.dumps(table)).slots


def test_the_default_table():
    assert [(s.batch_from, s.candidate_steps, s.down_hysteresis) for s in DEFAULT_SLOTS] == [
        (1, (1, 3, 5, 7), -0.25),
        (8, (0, 1, 3), 0.0),
        (32, (0, 1), 0.0),
        (64, (0,), 0.0),
    ]
    first = DEFAULT_SLOTS[0]
    assert (first.ema_alpha, first.update_interval, first.warmup_batches) == (0.2, 5, 10)
    assert (first.up_hysteresis, first.ceiling_coeff) == (0.0, 0.0)
    assert union(DEFAULT_SLOTS) == (0, 1, 3, 5, 7)


def test_slots_by_batch_size_are_sorted_and_their_candidates_distinct():
    assert slots({"32": {"candidate_steps": [1]}, "1": {"candidate_steps": [7, 1, 3, 3]}}) == (
        AdaptiveSlot(1, (1, 3, 7)),
        AdaptiveSlot(32, (1,)),
    )
    assert not parse('{"4": {"candidate_steps": [2]}}').flat


def test_known_keys_beside_the_sizes_are_shared_defaults():
    table = {
        "ema_alpha": 0.5,
        "candidate_steps": [1, 2],
        "1": {"ema_alpha": 1, "strategy": "ema"},
        "8": {"candidate_steps": [1], "warmup_batches": 0},
    }
    assert slots(table) == (
        AdaptiveSlot(1, (1, 2), ema_alpha=1),
        AdaptiveSlot(8, (1,), ema_alpha=0.5, warmup_batches=0),
    )


def test_the_flat_format_is_one_slot():
    read = parse('{"candidate_steps": [3, 1], "up_hysteresis": 0.5}')
    assert read.flat and read.slots == (AdaptiveSlot(1, (1, 3), up_hysteresis=0.5),)


CASES = cases(__file__)
SLOT, TIMES, PRICED = CASES["slot"], CASES["times"], CASES["priced"]


def test_step_times_are_a_policys_settings_beside_its_slots():
    read = parse(json.dumps(PRICED | {"switch_hysteresis": 0.2})).slots
    settings = {"window_size": 20, "update_interval": 5, "switch_hysteresis": 0.2, "step_times": TIMES}
    own = {"strategy": "throughput_aware", **settings}
    assert [slot.as_dict() for slot in read] == [{"batch_from": 1, "candidate_steps": [1, 3]} | own]
    assert parse(dump(read)).slots == read


def wrong(group, where, made):
    """The cases of a group: a table with each wrong value, and what is said of it."""
    for key, (allowed, *values) in CASES[group].items():
        for value in values:
            yield made({key: value}), f": {where}{key} must be {allowed}, got {json.dumps(value)}"


BAD = [
    *CASES["files"],
    *wrong("beside", "", lambda one: PRICED | one),
    *wrong("within", "slot 1: ", lambda one: {"1": SLOT | one}),
    ({"1": SLOT, "default": SLOT}, f": unknown key 'default'; a key must be a batch size such as '8' or one of {KEYS}"),
    ({"1": SLOT | {"ema_alpha": 10**400}}, ": slot 1: ema_alpha must be a number above 0 and at most 1, got"),
]


@pytest.mark.parametrize(("table", "sentence"), BAD)
def test_every_mistake_is_one_sentence(table, sentence):
    text = table if isinstance(table, str) else json.dumps(table)
    with pytest.raises(ConfigError, match=f"^speculative_adaptive_config ?{re.escape(sentence)}"):
        parse(text)


NUMBER = st.floats(-2, 2)
SLOTS = st.dictionaries(
    st.integers(1, 64),
    st.tuples(
        st.sets(st.integers(1, MAX_STEPS), min_size=1, max_size=5).map(lambda s: tuple(sorted(s))),
        st.floats(0.001, 1),
        st.integers(1, 50),
        st.integers(0, 50),
        NUMBER,
        NUMBER,
        st.floats(0, 4),
    ),
    min_size=1,
    max_size=4,
).map(lambda table: tuple(AdaptiveSlot(size, *values) for size, values in sorted(table.items())))


@settings(max_examples=50, deadline=None, derandomize=True)
@given(SLOTS)
def test_dumped_slots_read_back_unchanged(table):
    read = parse(dump(table))
    assert read.slots == table and not read.flat


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-3, 9) | st.floats() | st.sampled_from(["1", "ema", ""]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["1", "8", "-1", "x", "candidate_steps", "ema_alpha"]), inner, max_size=4)
        ),
        max_leaves=8,
    )
)
def test_any_json_is_read_or_refused_in_one_sentence(table):
    try:
        assert parse(json.dumps(table)).slots
    except ConfigError as error:
        assert "\n" not in str(error)


def test_a_byte_order_mark_is_named():
    with pytest.raises(ValueError, match=r"^it begins with a byte order mark; save it as UTF-8 without one$"):
        parse_json("\ufeff{}")
