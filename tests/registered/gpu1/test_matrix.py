"""The cells of the matrix on the reference engine on one GPU; `--stage`, `--cells` and `--limit` select them."""

import pytest

from specmatrix.matrix.plugin import MatrixCells

pytestmark = pytest.mark.register(est_seconds=300, stage="pr")

cells = MatrixCells(tier="gpu1")
