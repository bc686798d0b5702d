import re

import pytest

from specmatrix.engine.core.observe.counters import COUNTERS, Counters
from specmatrix.errors import LedgerError


def test_every_counter_starts_at_zero_and_counts():
    counters = Counters()
    assert counters.counts == dict.fromkeys(COUNTERS, 0)
    counters.hit("decode.round")
    counters.hit("decode.round", 4)
    counters.hit("spec.rejected", False)
    assert counters.counts["decode.round"] == 5 and sum(counters.counts.values()) == 5


def test_an_unknown_counter_is_a_bug():
    with pytest.raises(LedgerError, match=r"^unknown counter 'decode\.rounds'$"):
        Counters().hit("decode.rounds")


def test_counters_are_not_shared():
    first, second = Counters(), Counters()
    first.hit("retract.done")
    assert second.counts["retract.done"] == 0


def test_every_counter_has_a_dotted_name_and_a_sentence():
    for name, meaning in COUNTERS.items():
        assert re.fullmatch(r"[a-z]+\.[a-z_]+", name) and len(meaning) > 10
