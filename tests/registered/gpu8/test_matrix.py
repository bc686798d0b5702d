"""The cells of the matrix with 8 ranks, each on a GPU of its own; `--stage`, `--cells` and `--limit` pick them."""

import pytest

from specmatrix.matrix.plugin import MatrixCells

pytestmark = pytest.mark.register(est_seconds=60, stage="pr")

cells = MatrixCells(tier="gpu8")
