"""Runs and comparisons on a terminal."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from specmatrix.reports.compare.cell_state import ChangeState, Comparison
from specmatrix.reports.effective import pair_text
from specmatrix.reports.render.console import StdoutConsole, as_called
from specmatrix.reports.render.failing_request import ask_lines
from specmatrix.reports.render.junit import write_junit
from specmatrix.reports.render.markup import tone
from specmatrix.reports.render.run import RunView
from specmatrix.reports.schema import PAGE_FILE, CellResult
from specmatrix.reports.speed import speed_text
from specmatrix.reports.summary import STATE_KEYS
from specmatrix.reports.wording import (
    accepting,
    count,
    duration,
    failure,
    shorten,
    shorten_rewrite,
    tested,
    waiver_text,
)

COLOURS = {"good": "green", "bad": "red", "warn": "yellow", "calm": "cyan"}
MAX_LISTED = 12
# Maximum lines shown of an engine's log.
LOG_LINES = 3
_WORDS = {"PASS": "passed", "FAIL": "failed", "INFRA": "with infrastructure errors"}


def show_run(view: RunView, out: Path, explained: Sequence[Path], json_: bool, junit: Path | None = None) -> None:
    """Print a run, as text or as the JSON of its summary, and write it to `junit`. explained: pages of steps."""
    if junit is not None:
        write_junit(view, junit)
    if json_:
        print(json.dumps(view.summary.to_json(), indent=2))
        return
    console = StdoutConsole()
    print_run(view, console)
    for page in explained:
        console.print(f"explained: {page}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"report: {out / PAGE_FILE}", highlight=False, markup=False, soft_wrap=True)


def print_run(run: RunView, console: Console) -> None:
    """Print a run's verdict, its red cells with one repro command each, and what they have in common."""
    states = [_counted(state, run.summary.states[state]) for state in STATE_KEYS]
    counts = ", ".join([*states, _counted("waived", run.summary.waived)])
    _say(console, f"{counts}[dim]; total cell time {duration(run.summary.seconds)}[/dim]")
    for group in run.groups[:MAX_LISTED]:
        if group.factors or len(group.cells) > 1:
            _say(console, f"[bold]{escape(group.text)}[/bold]")
    for cell in [cell for group in run.groups for cell in group.cells][:MAX_LISTED]:
        _say(console, f"[red]{cell.state}[/red] [bold]{escape(cell.id)}[/bold]: {escape(shorten(failure(cell), 240))}")
        for line in _evidence(cell, run):
            _say(console, f"  [dim]{escape(line)}[/dim]")
        if accepting(cell):
            _say(console, f"  [dim]{escape(accepting(cell))}[/dim]")
        _say(console, f"  {escape(as_called(cell.repro))}")
    _say_left(console, len(run.red), "red cell")
    for cell in run.waived[:MAX_LISTED]:
        why = escape(waiver_text(cell.waived)) if cell.waived else ""
        _say(console, f"[cyan]waived {cell.state}[/cyan] [bold]{escape(cell.id)}[/bold]: {why}")
    _say_left(console, len(run.waived), "waived cell")
    for cell in run.unsupported[:MAX_LISTED]:
        why = escape(shorten(failure(cell), 240))
        _say(console, f"[yellow]{cell.state}[/yellow] [bold]{escape(cell.id)}[/bold]: {why}")
    _say_left(console, len(run.unsupported), "unsupported cell")
    for cell in run.cells:
        if speed := speed_text(cell):
            _say(console, f"[bold]{escape(cell.id)}[/bold]: {escape(speed)}")
    for text in run.lost[:MAX_LISTED]:
        _say(console, f"[yellow]{escape(text)}[/yellow]")
    _say_left(console, len(run.lost), "lost attempt")
    if gates := list(_gates(run)):
        _say(console, f"gates: {', '.join(gates)}")
    counters = run.summary.counters
    colour = {"PASS": "green", "FAIL": "red"}.get(counters.state, "dim")
    _say(console, f"[{colour}]{escape(counters.message)}[/{colour}]")
    for text in (
        run.summary.coverage.message,
        run.summary.cost.message,
        run.summary.cost.saving,
    ):
        if text:
            _say(console, f"[dim]{escape(text)}[/dim]")
    rewritten: Counter[str] = Counter()
    for rewrite in run.rewrites:
        rewritten[shorten_rewrite(rewrite.signature)] += rewrite.cells
    for text, cells in rewritten.items():
        _say(console, f"[dim]rewritten in {count(cells, 'cell')}: {escape(text)}[/dim]")
    colour = "green" if run.verdict == "green" else "red"
    _say(console, f"[bold {colour}]{run.verdict}[/bold {colour}]: {run.outcome}")


def _evidence(cell: CellResult, run: RunView) -> list[str]:
    """A red cell's first red request, at most eight lines, in full for the first red cells only; if the engine exited,
    the end of its log."""
    if log := (cell.error or "").splitlines()[1:]:
        return [shorten(line, 240) for line in log[-LOG_LINES:]]
    raised = [f"raised in {cell.verb}; the whole traceback is in the report"] * bool(cell.verb and cell.traceback)
    if cell.first_red is None or cell.id not in run.examples:
        return raised
    return raised + ask_lines(cell.first_red)


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print a comparison: differing inputs, changed cells, coverage, rewrites, and last the verdict."""
    sides = f"{tested(comparison.base.header)} → {tested(comparison.head.header)}"
    _say(console, f"[dim]{escape(sides)}[/dim]  " + ", ".join(_counted(s, comparison.counts[s]) for s in ChangeState))
    for mismatch in comparison.mismatches:
        if mismatch.gates:
            _say(console, f"[yellow]{escape(mismatch.name)} differs: {escape(mismatch.why)}[/yellow]")
    for factor in comparison.factors:
        _say(console, f"[bold red]{escape(factor.text)}[/bold red]")
    _print_changes(comparison, console)
    if comparison.still_red:
        _say(console, f"[dim]{count(len(comparison.still_red), 'cell')} red in base too[/dim]")
    for word, rows in (("lost", comparison.coverage.lost), ("gained", comparison.coverage.gained)):
        for row in rows[:8]:
            shown = ", ".join(pair_text(pair) for pair in row.pairs[:4]) + (" …" if len(row.pairs) > 4 else "")
            _say(console, f"{count(len(row.pairs), 'pair')} {word}, {escape(row.cause)}: [dim]{escape(shown)}[/dim]")
    for sentence in comparison.counters.sentences():
        _say(console, f"[cyan]{escape(sentence)}[/cyan]")
    for rewrite in comparison.rewrites:
        colour = "red" if rewrite.red else "dim"
        what = shorten_rewrite(rewrite.signature)
        accepted = f"; acknowledged: {rewrite.excused}" if rewrite.excused else ""
        text = f"{rewrite.status} rewrite {what} in {count(len(rewrite.cells), 'cell')}: {rewrite.reason}"
        _say(console, f"[{colour}]{escape(text + accepted)}[/{colour}]")
    for left in comparison.left:
        _say(console, f"[yellow]{escape(shorten(left.sentence, 400))}[/yellow]")
    for rule in (*comparison.thresholds, *comparison.waivers):
        _say(console, f"rule {escape(rule.name)}: {escape(rule.base or 'none')} → {escape(rule.head or 'none')}")
    colour = "green" if comparison.verdict == "green" else "red"
    reasons = "; ".join(comparison.outcome)
    _say(console, f"[bold {colour}]{comparison.verdict}[/bold {colour}]: {escape(reasons)}")


def _print_changes(comparison: Comparison, console: Console) -> None:
    for state in ChangeState:
        changes = [change for change in comparison.changes if change.state is state]
        colour = COLOURS[tone(state)]
        for change, after in zip_longest(changes[:MAX_LISTED], changes[1:MAX_LISTED]):
            text = escape("; ".join(filter(None, (shorten(change.why, 240), change.accepted))))
            _say(console, f"[{colour}]{state}[/{colour}] [bold]{escape(change.id)}[/bold]: {text}")
            if after is None or after.repro != change.repro:
                _say(console, f"  [dim]{escape(as_called(change.repro))}[/dim]")
        if len(changes) > MAX_LISTED:
            _say(console, f"… and {count(len(changes) - MAX_LISTED, 'more cell')} {state}")


def _gates(run: RunView) -> Iterator[str]:
    """Each gate with its counts of red and waived results, or ok."""
    for gate, (red, waived) in run.red_gates.items():
        words = [f"[red]{red} red[/red]"] * bool(red) + [f"[cyan]{waived} waived[/cyan]"] * bool(waived)
        yield f"{escape(gate)} {' and '.join(words) or '[green]ok[/green]'}"


def _say_left(console: Console, number: int, noun: str) -> None:
    if number > MAX_LISTED:
        _say(console, f"… and {count(number - MAX_LISTED, f'more {noun}')} in the report")


def _say(console: Console, text: str) -> None:
    # One unwrapped, uncoloured line, so that a command can be copied.
    console.print(text.replace("\n", " "), highlight=False, soft_wrap=True)


def _counted(state: str, number: int) -> str:
    colour = COLOURS[tone(state)] if number else "dim"
    return f"[{colour}]{number:,} {_WORDS.get(state, state.lower())}[/{colour}]"
