import pytest

from specmatrix.engine.core.observe.step_counter import COUNTERS, Counters
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
