"""Pages and tables from reports and comparisons.

- `files`: `write_run(report)` and `write_comparison(comparison, directory)` write everything at once
- `terminal`: `print_run` and `print_comparison` say the same on a terminal
- `run_markdown`, `run_page`, `comparison_markdown`, `comparison_page`: the single outputs, as text
"""
