"""Flaky cells: red and green although nothing changed."""

import pytest

from specmatrix.reports.history.flaky import flaky, sentence


def test_a_cell_that_flips_at_one_commit_is_flaky_and_one_that_a_commit_broke_is_not(history, gated):
    good, bad = [gated("flips"), gated("broken")], [gated("flips", red="lossless"), gated("broken")]
    after = [gated("flips"), gated("broken", red="ledger")]
    found = flaky(
        history((good, {}), (bad, {}), (good, {}), (after, {"commit": "b" * 40}), (after, {"commit": "b" * 40}))
    )
    assert [(row.cell, row.gate, row.red, row.runs, row.first_red, row.first_green) for row in found] == [
        ("flips", "lossless", 1, 3, 1, 0)
    ]
    assert sentence(found[0]) == "lossless is red in 1 of 3 runs of 0f3c2a9d41b7"


@pytest.mark.parametrize(
    "changes",
    [{"commit": "b" * 40}, {"versions": {"torch": "2.11.0"}}, {"data_hash": "other"}, {"seed": 1}, {"tier": "gpu1"}],
    ids=lambda changes: next(iter(changes)),
)
def test_another_run_of_something_else_is_no_flip(history, gated, changes):
    assert flaky(history(([gated()], {}), ([gated(red="lossless")], changes))) == []


@pytest.mark.parametrize("changes", [{"dirty": True}, {"commit": "unknown"}], ids=lambda changes: next(iter(changes)))
def test_what_nobody_knows_the_code_of_does_not_count(history, gated, changes):
    assert flaky(history(([gated()], changes), ([gated(red="lossless")], changes))) == []


def test_a_crash_now_and_then_is_flaky_on_the_machines_where_it_happened(history, gated, make_cell):
    crash = make_cell("eagle3", state="INFRA", gates=(), error="out of memory")
    rows = ([gated()], {}), ([crash], {"host": {"cpu": "other", "gpus": []}})
    (found,) = flaky(history(*rows))
    assert found.gate == "crash" and found.machines == 2
    assert sentence(found) == "crashes in 1 of 2 runs of 0f3c2a9d41b7 on 2 machines"


def test_a_cell_is_flaky_once_a_gate_with_its_newest_commit(history, gated):
    flips = [([gated()], {"commit": name * 12}) for name in "ab"]
    flips += [([gated(red=gate)], {"commit": name * 12}) for name, gate in (("a", "lossless"), ("b", "lossless"))]
    flips.append(([gated(red="ledger")], {"commit": "b" * 12}))
    found = {row.gate: row for row in flaky(history(*flips))}
    assert found["lossless"].commits == 2 and found["lossless"].build == "b" * 12
    assert found["ledger"].commits == 1 and found["ledger"].runs == 3
    assert sentence(found["lossless"]).endswith("and flips at 1 more commit")


def test_an_unsupported_or_absent_cell_says_nothing(history, gated, make_cell):
    unsupported = make_cell("eagle3", state="UNSUPPORTED", gates=(), error="no trees")
    assert flaky(history(([unsupported], {}), ([gated(red="lossless")], {}), ([gated("other")], {}))) == []
