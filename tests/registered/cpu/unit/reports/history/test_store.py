"""What the history keeps of a report, and which files it refuses."""

import json
import math
import sys

import pandas as pd
import pytest

from specmatrix.cli import main
from specmatrix.errors import ConfigError
from specmatrix.reports.history import store
from specmatrix.reports.history.store import NEWEST, add, median_seconds, read
from specmatrix.reports.schema import GateResult, ReportError, ShardRecord, SubjectRecord, Waiver, WaiverRule


def test_every_run_says_of_every_cell_what_it_was_and_measured(history, gated):
    whole = [gated("a", 3.5), gated("b", red="lossless", waived=Waiver("known", "2026-12-31"))]
    waivers = {"waivers": (WaiverRule("b", "known", "2026-12-31", "lossless"),)}
    found = history((whole, waivers), ([gated("a", 3.25, seconds=2.0)], {"commit": "1" * 40}))
    assert found.cells == ("a", "b")
    assert [row.tobytes().decode() for row in found.states] == ["PF", "P-"]
    assert found.measures["acceptance"][:, 0].tolist() == [3.5, 3.25]
    assert found.measures["seconds"][1, 0] == 2.0 and math.isnan(found.measures["acceptance"][1, 1])
    assert [row[:4] for row in found.red] == [(0, 1, ("lossless",), True)]
    assert found.red[0].message == "lossless: lossless is broken"
    assert found.builds == ["0f3c2a9d41b7", "1" * 12]
    assert found.counts(1)["PASS"] == 1 and found.counts(1)["FAIL"] == 0


def test_runs_stand_in_order_of_time_whatever_their_zone(tmp_path, write_report, gated):
    times = {
        "third": "2026-09-01T01:30:00-06:00",
        "second": "2026-09-01T07:00:00+00:00",
        "first": "2026-09-01T11:00:00+05:00",
    }
    for name, created in times.items():
        add(write_report(tmp_path / name, [gated()], commit=name, created=created), tmp_path / "history")
    assert read(tmp_path / "history").runs["commit"].tolist() == ["first", "second", "third"]


def test_a_report_is_added_once(tmp_path, write_report, gated):
    out = write_report(tmp_path / "run", [gated()])
    name, new = add(out, tmp_path / "history")
    assert new and add(out, tmp_path / "history") == (name, False)
    assert len(read(tmp_path / "history").runs) == 1 and not list((tmp_path / "history").glob("*.partial"))


def test_the_page_of_a_run_is_kept_with_it(tmp_path, write_report, gated):
    out = write_report(tmp_path / "run", [gated()])
    (out / "report.html").write_text("the page")
    add(out, tmp_path / "history")
    page = read(tmp_path / "history").page(0)
    assert page is not None and page.read_text() == "the page"


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
    (folder / "zz.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(ReportError, match=r"zz\.parquet cannot be read"):
        read(folder)
    pd.DataFrame({"cell": ["a"]}).to_parquet(folder / "zz.parquet")
    with pytest.raises(ReportError, match=r"zz\.parquet has no column run; it was not written by specmatrix"):
        read(folder)


@pytest.mark.parametrize(("column", "value"), [("created", "soon"), ("red", None), ("cell", 3), ("waived", "yes")])
def test_values_of_another_type_are_one_sentence(tmp_path, write_report, gated, column, value):
    for name in ("x", "y"):
        add(write_report(tmp_path / name, [gated(red="lossless")], commit=name), tmp_path / "history")
    file = next((tmp_path / "history").glob("*.parquet"))
    pd.read_parquet(file).assign(**{column: value}).to_parquet(file)
    with pytest.raises(ReportError, match="history has a file with values of another type: "):
        read(tmp_path / "history")


def test_a_cell_in_an_unknown_state_is_named(tmp_path, write_report, gated):
    add(write_report(tmp_path / "run", [gated()]), tmp_path)
    file = next(tmp_path.glob("*.parquet"))
    pd.read_parquet(file).assign(state="GREEN").to_parquet(file)
    with pytest.raises(ReportError, match="a cell in the unknown state 'GREEN'"):
        read(tmp_path)


def test_a_missing_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pyarrow is not installed.*specmatrix\[history\]"):
        store.library("pyarrow.parquet")


def test_a_run_of_another_engine_is_named_by_its_version(history, gated, tmp_path, capsys):
    mine = SubjectRecord("mine", "1.2.3")
    found = history(
        ([gated()], {"subject": mine, "commit": "v0.1.0"}), ([gated()], {"subject": SubjectRecord("reference", "9")})
    )
    assert found.builds == ["1.2.3 at v0.1.0", "0f3c2a9d41b7"]
    assert main(["history", "show", "--history", str(tmp_path / "history")]) == 0
    assert "  1.2.3 at v0.1.0  mine cpu pr seed 0  " in capsys.readouterr().out
    assert main(["history", "show", "--history", str(tmp_path / "history"), "--json"]) == 0
    newest, oldest = json.loads(capsys.readouterr().out)["runs"]
    assert (oldest["commit"], oldest["version"], newest["commit"]) == ("v0.1.0", "1.2.3", "0f3c2a9d41b7")


@pytest.fixture
def timed(tmp_path, write_report, make_cell):
    """Runs of one cell with these seconds, in order; a negative number is a run that was not judged."""

    def make(*seconds: float, tier: str = "cpu"):
        for number, taken in enumerate(seconds):
            error = None if taken > 0 else "lost"
            gates = (GateResult("ledger", "PASS"),) if taken > 0 else ()
            cell = make_cell("a", seconds=abs(taken), error=error, gates=gates, state="PASS" if taken > 0 else "INFRA")
            created = f"2026-09-{number + 1:02}T00:00:00+00:00"
            add(write_report(tmp_path / f"run{number}", [cell], created=created, tier=tier), tmp_path / "history")
        return read(tmp_path / "history")

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
