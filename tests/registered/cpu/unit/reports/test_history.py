"""What the history keeps of a report, which files it refuses, and which cells are flaky."""

import sys

import pandas as pd
import pytest

from specmatrix.errors import ConfigError
from specmatrix.reports.history import NEWEST, add, flaky, median_seconds, read
from specmatrix.reports.schema import GateResult, ReportError, ShardRecord, SubjectRecord, Waiver, WaiverRule


@pytest.fixture
def gated(make_cell):
    """A cell with an acceptance gate and one red gate or none."""

    def make(name="eagle3", length=3.0, red="", seconds=1.0, **changes: object):
        gates = [GateResult("acceptance", "PASS", {"length": length})]
        gates += [GateResult(red, "FAIL", message=f"{red} is broken")] if red else []
        return make_cell(name, gates=tuple(gates), seconds=seconds, **changes)

    return make


@pytest.fixture
def history(tmp_path, write_report):
    """The history of rows (cells, changes of the header), an hour apart from each other."""

    def build(*rows: tuple):
        for number, (cells, changes) in enumerate(rows):
            created = {"created": f"2026-09-{number // 24 + 1:02}T{number % 24:02}:00:00+00:00"}
            add(write_report(tmp_path / f"run{number}", cells, **{**created, **changes}), tmp_path / "history")
        return read(tmp_path / "history")

    return build


def test_every_run_says_of_every_cell_what_it_was_and_measured(history, gated):
    whole = [gated("a", 3.5), gated("b", red="lossless", waived=Waiver("known", "2026-12-31"))]
    waivers = {"waivers": (WaiverRule("b", "known", "2026-12-31", "lossless"),)}
    found = history((whole, waivers), ([gated("a", 3.25, seconds=2.0)], {"commit": "1" * 40}))
    names = ["cell", "state", "red", "waived", "message", "acceptance", "seconds"]
    assert found[names].to_numpy().tolist() == [
        ["a", "PASS", "", False, "", 3.5, 1.0],
        ["b", "FAIL", "lossless", True, "lossless: lossless is broken", 3.0, 1.0],
        ["a", "PASS", "", False, "", 3.25, 2.0],
    ]
    assert found["commit"].tolist() == ["0f3c2a9d41b7"] * 2 + ["1" * 40] and found["accuracy"].isna().all()


def test_runs_stand_in_order_of_time_whatever_their_zone(history, gated):
    times = {"third": "2026-09-01T01:30:00-06:00", "second": "2026-09-01T07:00:00Z", "first": "2026-09-01T11:00+05:00"}
    rows = [([gated()], {"commit": name, "created": created}) for name, created in times.items()]
    assert history(*rows)["commit"].tolist() == ["first", "second", "third"]


def test_a_report_is_added_once(tmp_path, write_report, gated):
    out = write_report(tmp_path / "run", [gated()])
    name, new = add(out, tmp_path / "history")
    assert new and add(out, tmp_path / "history") == (name, False)
    assert [path.name for path in (tmp_path / "history").iterdir()] == [f"{name}.parquet"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"shard": ShardRecord(2, 4, 1, "0" * 12)}, r"is shard 2/4 of a run; merge all shards first"),
        ({"fault": "bonus-stride"}, r"is of the planted fault bonus-stride; a history holds runs without one"),
    ],
)
def test_what_is_no_whole_run_of_the_code_is_refused(tmp_path, write_report, gated, changes, why):
    with pytest.raises(ReportError, match=why):
        add(write_report(tmp_path / "run", [gated()], **changes), tmp_path / "history")
    assert not (tmp_path / "history").exists()


def test_folders_and_files_that_are_no_history_are_named(tmp_path, write_report, gated):
    with pytest.raises(ReportError, match="nothing holds no run; add one: specmatrix history add OUT"):
        read(tmp_path / "nothing")
    folder = tmp_path / "history"
    add(write_report(tmp_path / "run", [gated()]), folder)
    whole = read(folder).drop(columns="time")
    broken = folder / "zz.parquet"
    broken.write_bytes(b"PAR1 and no more")
    with pytest.raises(ReportError, match=r"zz\.parquet cannot be read"):
        read(folder)
    for frame, why in (
        (pd.DataFrame({"cell": ["a"]}), "has no column run; it was not written by specmatrix"),
        (whole.assign(created="soon"), "cannot be read"),
        (whole.assign(seconds="long"), "cannot be read"),
    ):
        frame.to_parquet(broken)
        with pytest.raises(ReportError, match=rf"zz\.parquet {why}"):
            read(folder)


def test_a_missing_library_names_the_extra(tmp_path, write_report, gated, monkeypatch):
    out = write_report(tmp_path / "run", [gated()])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pyarrow is not installed.*specmatrix\[history\]"):
        add(out, tmp_path / "history")


def test_a_cell_that_flips_at_one_commit_is_flaky_and_one_that_a_commit_broke_is_not(history, gated):
    good, bad = [gated("flips"), gated("broken")], [gated("flips", red="lossless"), gated("broken")]
    after = [gated("flips"), gated("broken", red="ledger")]
    (row,) = flaky(
        history((good, {}), (bad, {}), (good, {}), (after, {"commit": "b" * 40}), (after, {"commit": "b" * 40}))
    )
    assert (row.cell, row.gate, row.red, row.runs) == ("flips", "lossless", 1, 3)
    assert row.first_red.startswith("20260901T01") and row.first_green.startswith("20260901T00")
    assert row.sentence == "lossless is red in 1 of 3 runs of 0f3c2a9d41b7"


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
    (found,) = flaky(history(([gated()], {}), ([crash], {"host": {"cpu": "other", "gpus": []}})))
    assert found.gate == "crash" and found.machines == 2
    assert found.sentence == "crashes in 1 of 2 runs of 0f3c2a9d41b7 on 2 machines"


def test_a_cell_is_flaky_once_a_gate_with_its_newest_commit(history, gated):
    mine = {"subject": SubjectRecord("mine", "1.2.3")}
    flips = [([gated()], {"commit": name * 12, **mine}) for name in "ab"]
    flips += [
        ([gated(red=gate)], {"commit": name * 12, **mine}) for name, gate in (("a", "lossless"), ("b", "lossless"))
    ]
    flips.append(([gated(red="ledger")], {"commit": "b" * 12, **mine}))
    found = {row.gate: row for row in flaky(history(*flips))}
    assert found["lossless"].commits == 2 and found["lossless"].build == f"1.2.3 at {'b' * 12}"
    assert found["ledger"].commits == 1 and found["ledger"].runs == 3
    assert found["lossless"].sentence.endswith("and flips at 1 more commit")


def test_an_unsupported_or_absent_cell_says_nothing(history, gated, make_cell):
    unsupported = make_cell("eagle3", state="UNSUPPORTED", gates=(), error="no trees")
    assert flaky(history(([unsupported], {}), ([gated(red="lossless")], {}), ([gated("other")], {}))) == []


@pytest.fixture
def timed(history, make_cell, tmp_path):
    """The folder with runs of one cell with these seconds, in order; a negative number is a run that was not judged."""

    def make(*seconds: float, tier: str = "cpu"):
        judged = {True: {"gates": (GateResult("ledger", "PASS"),)}, False: {"state": "INFRA", "error": "lost"}}
        history(*(([make_cell("a", seconds=abs(each), **judged[each > 0])], {"tier": tier}) for each in seconds))
        return tmp_path / "history"

    return make


def test_the_median_of_the_newest_runs(timed):
    found = timed(*[100.0] * NEWEST, *map(float, range(1, NEWEST + 1)))
    assert median_seconds(found, "cpu") == {"a": (NEWEST + 1) / 2}


def test_a_run_without_a_verdict_does_not_count(timed):
    assert median_seconds(timed(2.0, -50.0, 4.0), "cpu") == {"a": 3.0}
    assert median_seconds(timed(-1.0, -2.0, -3.0, tier="gpu1"), "gpu1") == {}


def test_another_tiers_runs_are_no_runs(timed):
    with pytest.raises(ReportError, match=r"history has no run of tier gpu2$"):
        median_seconds(timed(1.0), "gpu2")
