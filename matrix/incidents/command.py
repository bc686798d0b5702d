"""`specmatrix incident`: replays real incidents and shows what their reviewers would have seen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from specmatrix.matrix.incidents.catalogue import INCIDENTS, incidents
from specmatrix.matrix.incidents.incident import ComparedStep, Incident
from specmatrix.matrix.incidents.replay import JudgedStep, replay
from specmatrix.options import Json
from specmatrix.reports.atomic import check_place
from specmatrix.reports.compare import comparison_json
from specmatrix.reports.render.comparison import COMPARISON_NAME
from specmatrix.reports.render.console import StdoutConsole, print_text
from specmatrix.reports.render.progress import waiting
from specmatrix.reports.render.terminal import print_comparison
from specmatrix.reports.wording import count, duration
from specmatrix.temp_dir import TempDir


def list_incidents(json_: Json = False) -> int:
    """List the incidents, a line each or as JSON, without running any."""
    if json_:
        rows = [
            {
                "name": each.name,
                "origins": each.origins,
                "question": each.question,
                "steps": [s.name for s in each.steps],
            }
            for each in INCIDENTS
        ]
        print(json.dumps({"schema": 1, "incidents": rows}, indent=2))
    else:
        print_text("\n".join(f"{each.name}: {each.question} ({', '.join(each.origins)})" for each in INCIDENTS))
    return 0


Out = Annotated[Path | None, typer.Option(help="also keep the reports and the rendered comparisons here")]


def run_all(out: Out = None, json_: Json = False) -> int:
    """As `run all`."""
    return run("all", out, json_)


def run(
    name: Annotated[str, typer.Argument(metavar="NAME", help="a name of the list, or all")],
    out: Out = None,
    json_: Json = False,
) -> int:
    """Replay an incident, or all; 0 if every verdict is the expected one. ConfigError for an unknown name, ReportError
    if `out` cannot be written."""
    chosen = incidents(name)
    if out is not None:
        check_place(out)
    console = StdoutConsole(quiet=json_, soft_wrap=True, highlight=False)
    replayed = []
    with _folder(out) as folder:
        for incident in chosen:
            console.print(f"[bold]{incident.name}[/bold] ({', '.join(incident.origins)}): {incident.question}")
            steps = []
            for judged in _waited(replay(incident, folder / incident.name), incident.name):
                _show(judged, console)
                if out is not None and judged.comparison is not None:
                    page = folder / incident.name / judged.step.name / f"{COMPARISON_NAME}.html"
                    console.print(f"page: {page}", markup=False)
                steps.append(judged)
            console.print()
            replayed.append((incident, steps))
    wrong = sum(bool(step.wrong) for _, steps in replayed for step in steps)
    number = sum(len(steps) for _, steps in replayed)
    if json_:
        rows = [_record(incident, steps) for incident, steps in replayed]
        print(json.dumps({"schema": 1, "as_expected": not wrong, "incidents": rows}, indent=2))
    console.print(f"{number - wrong} of {count(number, 'verdict')} as expected")
    if out is not None:
        console.print(f"reports: {out}", markup=False)
    return int(wrong > 0)


@contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    if out is not None:
        yield out
        return
    with TempDir("incident") as folder:
        yield folder


def _waited(steps: Iterator[JudgedStep], name: str) -> Iterator[JudgedStep]:
    """The same steps, with a progress display while the next one is awaited."""
    while True:
        with waiting(f"replaying {name}"):
            judged = next(steps, None)
        if judged is None:
            return
        yield judged


def _show(judged: JudgedStep, console: Console) -> None:
    console.print()
    console.print(f"[bold]{judged.step.name}[/bold]: {judged.step.story}")
    if isinstance(judged.step, ComparedStep) and judged.comparison is not None:
        console.print(f"base: {judged.step.base.name}; head: {judged.step.head.name}", markup=False)
        print_comparison(judged.comparison, console)
    for line in judged.lines:
        console.print(line, markup=False)
    for sentence in judged.wrong:
        console.print(f"NOT AS EXPECTED: {sentence}", markup=False)
    console.print(f"from change to verdict: {duration(judged.seconds)}")


def _record(incident: Incident, steps: list[JudgedStep]) -> dict[str, Any]:
    rows = [
        {
            "name": judged.step.name,
            "story": judged.step.story,
            "as_expected": not judged.wrong,
            "differences": judged.wrong,
            "seconds": round(judged.seconds, 2),
            "said": judged.lines,
            "comparison": None if judged.comparison is None else comparison_json(judged.comparison),
        }
        for judged in steps
    ]
    return {"name": incident.name, "origins": incident.origins, "question": incident.question, "steps": rows}
