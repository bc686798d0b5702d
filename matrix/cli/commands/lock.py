"""`specmatrix lock`: verify the lock file, or append missing cells."""

from __future__ import annotations

from specmatrix.errors import ConfigError
from specmatrix.matrix.cli.progress import waiting
from specmatrix.matrix.cover.lock import check, extend


def lock(check_only: bool, extend_it: bool, full: bool) -> int:
    """Print the result and return the exit status: 0 if the lock file is complete.

    ConfigError if both options are given.
    """
    if check_only and extend_it:
        raise ConfigError("--check and --extend are mutually exclusive")
    if extend_it:
        with waiting("covering every pair and triple"):
            dropped, added = extend()
        print(f"dropped {dropped} cells, added {added}")
    with waiting("verifying the cover"):
        report = check(full=full)
    print(report.text())
    return int(not report.ok)
