"""The cells of the matrix on the reference engine; `--stage`, `--cells` and `--limit` pick them."""

import pytest

from specmatrix.matrix.plugin import MatrixCells

pytestmark = pytest.mark.register(est_seconds=120, tier="cpu", stage="pr")

cells = MatrixCells(tier="cpu")
