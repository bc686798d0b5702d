import re

import pytest

from specmatrix.engine.core.observe.counters import PROBES, Probes
from specmatrix.errors import LedgerError

pytestmark = pytest.mark.register(est_seconds=1, stage="pr")


def test_every_probe_starts_at_zero_and_counts():
    probes = Probes()
    assert probes.counts == dict.fromkeys(PROBES, 0)
    probes.hit("decode.round")
    probes.hit("decode.round", 4)
    probes.hit("spec.rejected", False)
    assert probes.counts["decode.round"] == 5 and sum(probes.counts.values()) == 5


def test_an_unknown_probe_is_a_bug():
    with pytest.raises(LedgerError, match=r"^unknown probe 'decode\.rounds'$"):
        Probes().hit("decode.rounds")


def test_counters_are_not_shared():
    first, second = Probes(), Probes()
    first.hit("retract.done")
    assert second.counts["retract.done"] == 0


def test_every_probe_has_a_dotted_name_and_a_sentence():
    for name, meaning in PROBES.items():
        assert re.fullmatch(r"[a-z]+\.[a-z_]+", name) and len(meaning) > 10
