"""Reports: what a run of the matrix found, and how two runs differ.

JSON Lines is the truth; everything else is derived from it.

- `schema`: the typed records of `report.jsonl` (header, cell, gate) and their JSON form
- `writer`: `ReportWriter` streams cells to disk; a file that was not finished never reads as whole
- `load`: `load(path)` reads a report back, lazily, with one clear sentence for each way it can be wrong
- `summary`: the counts of `summary.json`
- `stats`: intervals and tests behind the gates and the comparison
- `compare`: `compare(base, head)`, the states of cells, effective coverage, ledgers and common factors
- `render`: Markdown for a pull request, self-contained HTML, terminal output
- `log/`: measured results that are kept in the repository

No module here imports torch.
"""
