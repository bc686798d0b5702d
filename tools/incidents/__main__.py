"""`python -m tools.incidents [NAME...]`: replays incidents and shows what their reviewers would have seen; without a
name, lists them. Exit status 1 if a verdict is not the expected one."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from specmatrix.errors import ConfigError
from specmatrix.reports.render.comparison import COMPARISON_NAME
from specmatrix.reports.render.console import StdoutConsole
from specmatrix.reports.render.terminal import print_comparison
from specmatrix.reports.wording import count, duration
from specmatrix.temp_dir import TempDir
from tools.incidents.incident import NAMES, ComparedStep, incident
from tools.incidents.replay import JudgedStep, replay


def main(words: Sequence[str] | None = None) -> int:
    """Replay the incidents that are named."""
    parser = ArgumentParser(prog="python -m tools.incidents", description="Replay real incidents.")
    parser.add_argument("names", metavar="NAME", nargs="*", help="all, or names of the list; default: list them")
    parser.add_argument("--out", type=Path, help="also keep the reports and the rendered comparisons here")
    asked = parser.parse_args(words)
    if unknown := {*asked.names} - {*NAMES, "all"}:
        parser.error(f"{', '.join(unknown)}: must be all or one of {', '.join(NAMES)}")
    if not asked.names:
        for each in map(incident, NAMES):
            print(f"{each.name}: {each.question} ({', '.join(each.origins)})")
        return 0
    console = StdoutConsole(soft_wrap=True, highlight=False)
    wrong = total = 0
    with TempDir("incident") as folder:
        for each in map(incident, NAMES if "all" in asked.names else asked.names):
            console.print(f"[bold]{each.name}[/bold] ({', '.join(each.origins)}): {each.question}")
            for judged in replay(each, (asked.out or folder) / each.name):
                show(judged, console)
                if asked.out is not None and judged.comparison is not None:
                    page = asked.out / each.name / judged.step.name / f"{COMPARISON_NAME}.html"
                    console.print(f"page: {page}", markup=False)
                wrong, total = wrong + bool(judged.wrong), total + 1
            console.print()
    console.print(f"{total - wrong} of {count(total, 'verdict')} as expected")
    return int(wrong > 0)


def show(judged: JudgedStep, console: Console) -> None:
    """Print a step as its reviewer would have seen it."""
    console.print(f"\n[bold]{judged.step.name}[/bold]: {judged.step.story}")
    if isinstance(judged.step, ComparedStep) and judged.comparison is not None:
        console.print(f"base: {judged.step.base.name}; head: {judged.step.head.name}", markup=False)
        print_comparison(judged.comparison, console)
    for line in (*judged.lines, *(f"NOT AS EXPECTED: {sentence}" for sentence in judged.wrong)):
        console.print(line, markup=False)
    console.print(f"from change to verdict: {duration(judged.seconds)}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ConfigError as error:
        sys.exit(f"{error}")
