"""Pages and tables from reports and comparisons.

- `run`: `write_run(report)` writes everything about one run: summary, Markdown, HTML page
- `comparison`: `write_comparison(comparison, directory)` does the same for two runs
- `terminal`: `print_run` and `print_comparison` for a terminal
- `plots`: SVG plots
- `markup`: the Jinja2 environments of `templates/`, with every value escaped
"""
