"""The cells of the matrix on the reference engine on one GPU; `--stage`, `--cells` and `--limit` select them."""

from specmatrix.matrix.plugin import MatrixCells

cells = MatrixCells(tier="gpu1")
