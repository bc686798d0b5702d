"""The cells of the matrix with 4 ranks, each on its own GPU; `--stage`, `--cells` and `--limit` select them."""

from specmatrix.matrix.plugin import MatrixCells

cells = MatrixCells(tier="gpu4")
