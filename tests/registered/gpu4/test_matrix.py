"""The cells of the matrix with 4 ranks, each on its own GPU; `--stage`, `--cells` and `--limit` select them."""

import pytest

from specmatrix.matrix.plugin import MatrixCells

pytestmark = pytest.mark.register(est_seconds=30, stage="pr")

cells = MatrixCells(tier="gpu4")
