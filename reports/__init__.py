"""Reports: the results of a run of the matrix, and the differences between two runs.

The JSON Lines file is the source of truth; everything else is derived from it.

- `schema`: the typed records of `report.jsonl` (header, start, cell, end)
- `store`: `ReportWriter` streams cells to disk, `load(path)` reads them back, with one clear sentence for each way in
  which a file can be wrong; one that was not finished never reads as whole
- `frames`: the same as pandas frames (`specmatrix.load`)
- `summary`: the counts of `summary.json`
- `stats`: the intervals and tests of the gates and the comparison
- `compare`: `compare(base, head)`, the states of cells, effective coverage, ledgers and common factors
- `history`: many runs in a folder of Parquet files, and their flaky cells
- `render`: Markdown for a pull request, self-contained HTML, terminal output
- `log/`: measured results that are kept in the repository

No module here imports torch.
"""
