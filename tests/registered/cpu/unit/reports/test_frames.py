"""What `specmatrix.load` accepts and refuses, and what it imports."""

import subprocess
import sys

import pytest

import specmatrix
from specmatrix.errors import ConfigError
from specmatrix.reports.schema import GateResult, ReportError


def test_what_was_loaded_says_what_is_in_it_and_makes_each_frame_once(tmp_path, make_cell, write_report):
    cells = [make_cell("a"), make_cell("b", state="FAIL")]
    runs = specmatrix.load(write_report(tmp_path / "x", cells))
    report, frames = repr(runs).splitlines()
    assert "2 cells, 1 red; cpu / pr, seed 0, 0f3c2a9d41b7" in report
    assert all(runs.__dict__.get(name) is None for name in frames.removeprefix("frames: ").split(", "))
    assert all(len(getattr(runs, name)) for name in frames.removeprefix("frames: ").split(", "))
    assert runs.cells is runs.cells


def test_runs_differ_by_their_path(tmp_path, make_cell, write_report):
    paths = [write_report(tmp_path / name, [make_cell("a", seconds=float(order))]) for order, name in enumerate("xy")]
    for runs in (specmatrix.load(*paths), specmatrix.load(paths), specmatrix.load(str(paths[0]), paths[1])):
        assert dict(zip(runs.cells["run"], runs.cells["seconds"], strict=True)) == {
            str(paths[0]): 0.0, str(paths[1]): 1.0,
        }  # fmt: skip
    assert runs.starts["start"].nunique() == 1


def test_effective_values_stand_beside_requested_ones_or_are_missing_if_nothing_ran(tmp_path, make_cell, write_report):
    cells = [make_cell("ran"), make_cell("again"), make_cell("refused", resolved=None, resolved_hash=None)]
    runs = specmatrix.load(write_report(tmp_path, cells))
    frame = runs.cells.set_index("id")
    assert frame["spec_version"].tolist() == ["auto"] * 3
    assert runs.starts.set_index("start")["cells"][frame["start"]].tolist() == [2, 2, 1]
    assert frame["effective_spec_version"]["ran"] == "v2"
    assert frame["effective_spec_version"].isna()["refused"]


def test_gates_keep_their_numbers_and_interval(tmp_path, make_cell, write_report):
    gates = (
        GateResult("ledger", "PASS", {"verbs": 3}),
        GateResult("acceptance", "FAIL", {"length": 2.5}, (2, 3), "low"),
    )
    frame = specmatrix.load(write_report(tmp_path, [make_cell("a", gates=gates)])).gates.set_index("gate")
    assert frame["length"]["acceptance"] == 2.5 and frame["verbs"]["ledger"] == 3
    assert frame[["verdict", "low", "high", "message"]].loc["acceptance"].tolist() == ["FAIL", 2.0, 3.0, "low"]


def test_a_report_without_cells_gives_frames_without_rows(tmp_path, write_report):
    runs = specmatrix.load(write_report(tmp_path, []))
    assert [len(frame) for frame in (runs.cells, runs.gates, runs.evidence, runs.starts)] == [0, 0, 0, 0]
    assert "verdict" in runs.gates and len(runs.headers) == 1


def test_what_cannot_be_read_is_refused_in_one_sentence(tmp_path, make_cell, write_report):
    report = write_report(tmp_path / "run", [make_cell("a")])
    for paths, sentence in (
        ((), "got the paths none; allowed are one or more, each once"),
        ((report, str(report)), "allowed are one or more, each once"),
        ((tmp_path / "nowhere",), "cannot read .*nowhere: No such file"),
        (("x" * 5_000,), r"^cannot read x+…: File name too long$"),
    ):
        with pytest.raises(ReportError, match=sentence):
            specmatrix.load(*paths)


def test_a_frame_without_pandas_names_the_extra_that_has_it(tmp_path, make_cell, write_report, monkeypatch):
    monkeypatch.setattr("specmatrix.extras.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^pandas is not installed; install the extra: .*specmatrix\[pandas\]"):
        _ = specmatrix.load(write_report(tmp_path, [make_cell("a")])).cells


def test_neither_import_nor_comparison_nor_collection_waits_for_pandas_or_torch(tmp_path, make_cell, write_report):
    """Reports are compared and rendered in jobs without the engine's dependencies."""
    report = write_report(tmp_path, [make_cell("a")])
    code = (
        "import sys, specmatrix\n"
        "loaded = lambda *names: sorted({*names} & {*sys.modules})\n"
        "from specmatrix.reports.compare import compare\n"
        "from specmatrix.reports.store import load\n"
        "assert not loaded('numpy', 'scipy', 'pandas', 'torch'), loaded('numpy', 'scipy', 'pandas', 'torch')\n"
        f"compare(load({str(report)!r}), load({str(report)!r}))\n"
        "import specmatrix.matrix.plugin, specmatrix.matrix.plugin.items\n"
        "import specmatrix.reports.render.run, specmatrix.reports.render.comparison\n"
        f"runs = specmatrix.load({str(report)!r})\n"
        "assert not loaded('torch', 'transformers', 'pandas', 'scipy', 'jinja2')\n"
        "runs.cells\n"
        "assert loaded('pandas', 'torch') == ['pandas']\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
