"""The cells of the matrix with 8 ranks, each on its own GPU; `--stage`, `--cells` and `--limit` select them."""

import pytest

from specmatrix.matrix.plugin import MatrixCells

pytestmark = pytest.mark.register(est_seconds=60, stage="pr")

cells = MatrixCells(tier="gpu8")
