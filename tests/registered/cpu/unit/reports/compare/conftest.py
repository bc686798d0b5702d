"""Reports on disk that are compared, and cells with one gate."""

import pytest

from specmatrix.reports.compare import compare
from specmatrix.reports.schema import GateResult
from specmatrix.reports.store import load


@pytest.fixture
def against(tmp_path, write_report):
    """Compare two lists of cells; keywords of the headers by `base_header` and `head_header`."""

    def run(base, head, acknowledgements=(), base_header=None, head_header=None):
        sides = (("base", base, base_header), ("head", head, head_header))
        old, new = (load(write_report(tmp_path / name, cells, **(header or {}))) for name, cells, header in sides)
        return compare(old, new, acknowledgements)

    return run


@pytest.fixture
def gated(make_cell):
    """A cell `a` with one gate."""

    def make(name, state="PASS", numbers=None, interval=None, message="", **changes: object):
        gate = GateResult(name, state, numbers or {}, interval, message)
        return make_cell("a", state=state, gates=(gate,), **changes)

    return make
