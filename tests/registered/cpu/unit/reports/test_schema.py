import subprocess
import sys

import pytest

from specmatrix.reports.schema import GateResult, Waiver, is_waived

pytestmark = pytest.mark.register(est_seconds=1, stage="pr")


def test_gate_finds_by_name(make_cell):
    assert make_cell().gate("lossless") == GateResult("lossless", "PASS", {"tokens": 256})
    assert make_cell().gate("accuracy") is None


@pytest.mark.parametrize(
    ("today", "waived"), [("2026-12-30", True), ("2026-12-31T23:59:59+00:00", True), ("2027-01-01", False)]
)
def test_a_waiver_holds_until_the_end_of_its_day(make_cell, today, waived):
    assert is_waived(make_cell(waived=Waiver("known", "2026-12-31")), today) is waived


def test_a_cell_without_waiver_is_not_waived(make_cell):
    assert not is_waived(make_cell(), "2026-01-01")


def test_reports_import_no_heavy_library():
    """Rendering and comparing happen in jobs without the engine's dependencies."""
    code = (
        "import sys, specmatrix.reports.render.run, specmatrix.reports.render.comparison\n"
        "from specmatrix.reports import compare, schema, store\n"
        "bad = {'torch', 'transformers', 'pandas', 'scipy', 'jinja2'} & set(sys.modules)\n"
        "sys.exit(f'imported {sorted(bad)}' if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
