from itertools import product
from pathlib import Path

import pytest

from matrix.axes import axis
from matrix.cell import Cell
from matrix.lockfile import stage_cells
from matrix.resolution import resolution_rows

pytestmark = pytest.mark.register(est_seconds=2, tier="cpu", stage="pr")

SIZES = product(*(axis(name).names for name in ("steps", "topk", "draft_tokens")))
# Each algorithm on a target that has a draft for it.
DRAFTS = [
    Cell(algorithm, "deepseek" if algorithm == "nextn" else "llama", *sizes)
    for algorithm, sizes in product(axis("algorithm").names, SIZES)
]
TIMINGS = [
    Cell.of({"algorithm": "eagle3", "steps": steps, "topk": topk, "spec_version": version, "overlap": overlap})
    for steps, topk in (("3", "1"), ("3", "4"), ("auto", "auto"))
    for version, overlap in product(axis("spec_version").names, axis("overlap").names)
]
GOLDENS = {"drafts": DRAFTS, "timings": TIMINGS, "pr": stage_cells("pr")}


@pytest.mark.parametrize("name", GOLDENS)
def test_resolution_is_golden(name, data_regression, request):
    golden = Path(request.node.path).with_suffix("") / f"resolution_{name}.yml"
    forced = request.config.getoption("force_regen")
    assert golden.is_file() or forced, f"golden {golden.name} is missing; run with --force-regen and review it"
    data_regression.check({"rows": resolution_rows(GOLDENS[name])}, basename=f"resolution_{name}")


def test_rows_hold_every_launch_once():
    launches = [launch for row in resolution_rows(DRAFTS) for launch in row["launches"]]
    assert sorted(launches) == sorted(cell.id for cell in DRAFTS)


def test_request_axes_do_not_split_rows():
    cells = [Cell(), Cell(batch="pair"), Cell(sampling="temperature")]
    (row,) = resolution_rows(cells)
    assert row["launches"] == ["none"] and row["outcome"] == "runs"
