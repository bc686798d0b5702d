"""Both file formats, and one error sentence for every mistake: what was wrong, the value, what is allowed."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmatrix.engine.core.config.adaptive_file import DEFAULT_SLOTS, MAX_STEPS, AdaptiveSlot, dump, parse, union
from specmatrix.errors import ConfigError
from specmatrix.json_text import parse_json

KEYS = (
    "candidate_steps, ema_alpha, update_interval, warmup_batches, down_hysteresis, up_hysteresis, ceiling_coeff, "
    "strategy"
)


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


SLOT = {"candidate_steps": [1, 3]}
TIMES = {"1": {"1": 4.5, "3": 6}}
PRICED = {"strategy": "throughput_aware", "step_times": TIMES, "1": SLOT}


def test_step_times_are_a_policys_settings_beside_its_slots():
    read = parse(json.dumps(PRICED | {"switch_hysteresis": 0.2})).slots
    settings = {"window_size": 20, "update_interval": 5, "switch_hysteresis": 0.2, "step_times": TIMES}
    own = {"strategy": "throughput_aware", **settings}
    assert [slot.as_dict() for slot in read] == [{"batch_from": 1, "candidate_steps": [1, 3]} | own]
    assert parse(dump(read)).slots == read


BAD = [
    (PRICED | {"strategy": "mine"}, ": strategy must be one of 'ema', 'throughput_aware', got \"mine\""),
    (PRICED | {"strategy": ["ema"]}, ": strategy must be one of 'ema', 'throughput_aware', got [\"ema\"]"),
    (
        PRICED | {"ema_alpha": 0.5},
        ": unknown key 'ema_alpha'; a key must be a batch size such as '8' or one of strategy, ",
    ),
    (PRICED | {"1": SLOT | {"window_size": 3}}, ": slot 1: unknown key 'window_size'; a key must be candidate_steps"),
    (PRICED | {"1": {"candidate_steps": [0, 1]}}, ": candidate_steps must be at least 1 with strategy 'throughput_awa"),
    (
        {"strategy": "throughput_aware", "1": SLOT},
        ": step_times is missing; it must be milliseconds by batch size and ",
    ),
    ({"strategy": "throughput_aware", "step_times": TIMES}, "has no batch size as a key; it needs at least"),
    (PRICED | {"1": {"candidate_steps": [5]}}, ": step_times of batch size 1 has no time for a depth of 5"),
    *(
        (PRICED | {key: value}, f": {key} must be {allowed}, got {json.dumps(value)}")
        for key, allowed, values in (
            ("window_size", "an integer of at least 1", (0, 1.5, None)),
            ("update_interval", "an integer of at least 1", (0, "5")),
            ("switch_hysteresis", "a number from 0 to 1000000", (-0.1, True, float("inf"))),
            (
                "step_times",
                'milliseconds by batch size and by depth, such as {"1": {"1": 4.5, "3": 6}}',
                ({}, [1], {"1": {}}, {"0": {"1": 1}}, {"1": {"x": 1}}, {"1": {"1": 0}}, {"1": {"1": "4"}}, {"1": 4}),
            ),
        )
        for value in values
    ),
    ("{", "is not JSON: Expecting property name enclosed in double quotes at column 2"),
    ("", "is not JSON: Expecting value at column 1"),
    ([1, 3], "must be a JSON object, got [1, 3]"),
    ({}, "has no batch size as a key; it needs at least {'1': {'candidate_steps': [...]}}"),
    ('{"1": {"candidate_steps": [1]}, "1": {"candidate_steps": [3]}}', "is not JSON: key '1' occurs twice in one"),
    ({"1": SLOT, "default": SLOT}, f": unknown key 'default'; a key must be a batch size such as '8' or one of {KEYS}"),
    ({"ema_alfa": 0.5, "1": SLOT}, ": unknown key 'ema_alfa' (did you mean 'ema_alpha'?); a key must be a batch size"),
    ({"8": SLOT | {"candidates": [1]}}, ": slot 8: unknown key 'candidates' (did you mean 'candidate_steps'?); a key"),
    ({"0": SLOT}, "has the batch size '0'; it must be an integer of 1 to 9 digits without sign or leading zeros"),
    ({"-8": SLOT}, "has the batch size '-8'; it must be an integer of 1 to 9 digits without sign or leading zeros"),
    ({"08": SLOT}, "has the batch size '08'; it must be an integer of 1 to 9 digits without sign or leading zeros"),
    ({"1234567890": SLOT}, "has the batch size '1234567890'; it must be an integer of 1 to 9 digits without sign or"),
    ({"1": SLOT | {"ema_alpha": 10**400}}, ": slot 1: ema_alpha must be a number above 0 and at most 1, got"),
    ({"8": [1, 3]}, ": slot 8: a slot must be a JSON object, got [1, 3]"),
    ({"8": {}}, ": slot 8: candidate_steps is missing; it must be a list of draft depths, such as [1, 3]"),
    *(
        (
            {"8": {"candidate_steps": value}},
            f": slot 8: candidate_steps must be a list of one or more integers from 0 to 255, got {json.dumps(value)}",
        )
        for value in ([], 3, None, "1,3", [-1, 2], [1.0], ["1"], [True], [1, 256], {"1": 1})
    ),
    *(
        ({"1": SLOT | {key: value}}, f": slot 1: {key} must be {allowed}, got {json.dumps(value)}")
        for key, allowed, values in (
            ("ema_alpha", "a number above 0 and at most 1", (0, 1.5, -0.1, "0.2", True, None, float("nan"))),
            ("update_interval", "an integer of at least 1", (0, 2.5, "5", True)),
            ("warmup_batches", "an integer of at least 0", (-1, 1.0, None)),
            ("down_hysteresis", "a number from -1000000 to 1000000", ("low", float("inf"), False, 1e300)),
            ("up_hysteresis", "a number from -1000000 to 1000000", ([0], float("nan"))),
            ("ceiling_coeff", "a number from 0 to 1000000", (-0.5, float("inf"), "2", 1e300)),
            ("strategy", "'ema' in each slot, as it is for all of them", ("throughput_aware", 1)),
        )
        for value in values
    ),
    ({"candidate_steps": [0]}, ": every candidate_steps is [0], so nothing is ever drafted; add a depth of at least 1"),
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
