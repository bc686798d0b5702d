"""The matrix's smoke cells on the reference engine; `--stage`, `--cells` and `--limit` select others."""

from specmatrix.matrix.plugin import MatrixCells

cells = MatrixCells(tier="cpu")
