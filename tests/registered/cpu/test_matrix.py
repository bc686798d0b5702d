"""The matrix's smoke cells on the reference engine; `--stage`, `--cells` and `--limit` select others."""

import pytest

from specmatrix.matrix.plugin import MatrixCells

pytestmark = pytest.mark.register(est_seconds=19, stage="pr")

cells = MatrixCells(tier="cpu")
