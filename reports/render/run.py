"""Output for one run: `summary.json`, `report.md` for a pull-request comment, and the searchable `report.html`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import to_builtins
from msgspec.structs import asdict

from specmatrix.reports import schema
from specmatrix.reports.compare.rewrites import signature
from specmatrix.reports.effective import effective
from specmatrix.reports.groups import RedGroup, failure_name, red_groups
from specmatrix.reports.lengths import number, positive
from specmatrix.reports.render import plots
from specmatrix.reports.render.markup import html, markdown
from specmatrix.reports.render.plots import Point, acceptance_plot, glyph
from specmatrix.reports.schema import GATE_STATES, GATES, PAGE_FILE, RED_STATES, CellResult, Header, Json, is_red
from specmatrix.reports.speed import speed_text
from specmatrix.reports.store import Report, write_text
from specmatrix.reports.summary import STATE_KEYS, Summary, summarise, write_summary
from specmatrix.reports.wording import build, count, failure, shorten

# Row limit of the page, for its loading time; passing cells are dropped before red ones.
MAX_ROWS: Final = 4000
MAX_RED: Final = 200
_MAX_NOTE: Final = 300
_MAX_LOST: Final = 8
# Folder of traced cells' pages, and their maximum number; each embeds its whole trace.
FOLDER: Final = "explain"
MAX_PAGES: Final = 20
# Red cells shown in full on a terminal.
MAX_EXAMPLES: Final = 4


class RewriteRow(NamedTuple):
    """A rewrite, and the number of cells that declare it (`expect` is "rewritten")."""

    signature: str
    cells: int
    declared: int
    reason: str


class ChoiceRow(NamedTuple):
    """An automatic choice with its reason, made in `cells` cells."""

    field: str
    value: str
    cells: int
    because: str


@dataclass(frozen=True, slots=True)
class RunView:
    """Everything the outputs of one run show, computed once. `cells` lists red cells, then waived, then unsupported
    ones, then the rest in file order. `groups` are red cells by equal failure; `examples`, the first cells of the
    largest groups, are shown in full on a terminal.
    """

    header: Header
    summary: Summary
    cells: tuple[CellResult, ...]
    red: tuple[CellResult, ...]
    waived: tuple[CellResult, ...]
    unsupported: tuple[CellResult, ...]
    rewrites: tuple[RewriteRow, ...]
    choices: tuple[ChoiceRow, ...]
    groups: tuple[RedGroup, ...]
    examples: frozenset[str]

    @property
    def verdict(self) -> str:
        """ "green" if at least one cell ran, all selected ones did, none is red, and counter coverage passed; else
        "red".
        """
        whole = self.summary.ran and not self.summary.not_run
        return "green" if not self.red and whole and self.summary.counters.state != "FAIL" else "red"

    @property
    def traced(self) -> list[CellResult]:
        """Cells with a page of their steps, red ones first."""
        return [cell for cell in self.cells if cell.timeline is not None][:MAX_PAGES]

    @property
    def red_gates(self) -> dict[str, tuple[int, int]]:
        """For each gate, its red results in unwaived and in waived cells."""
        waived = Counter(gate.name for cell in self.waived for gate in cell.gates if gate.state != "PASS")
        rows = self.summary.by_gate.items()
        return {gate: (sum(row.values()) - row.get("PASS", 0) - waived[gate], waived[gate]) for gate, row in rows}

    @property
    def lost(self) -> list[str]:
        """One sentence per lost worker or cluster node, with the cells that were rerun."""
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for cell in self.cells:
            for loss in cell.losses:
                found[loss][cell.id] += 1
        lines = []
        for loss, cells in found.items():
            names = [name + f" ({times} times)" * (times > 1) for name, times in cells.items()]
            lines.append(f"ran again, as {loss}: {', '.join(names[:_MAX_LOST])}" + ", …" * (len(names) > _MAX_LOST))
        return lines

    @property
    def headline(self) -> str:
        """The verdict, the most frequent failure with what its cells have in common, and the code tested."""
        if not self.groups:
            return f"{self.header.tier} / {self.header.stage}: {self.verdict}, {self.outcome}"
        first = self.groups[0]
        where = f" at {' x '.join(first.factors[0])}" if first.factors else ""
        return f"{failure_name(first.cells[0])}{where}, {build(self.header)}"

    @property
    def outcome(self) -> str:
        """A short verdict: `16 of 80 cells did not pass`."""
        summary = self.summary
        if not summary.ran:
            return "no cell ran"
        total = count(summary.cells, "cell")
        left = f", and {count(summary.not_run, 'more cell')} did not run" * bool(summary.not_run)
        if self.red:
            return f"{len(self.red):,} of {total} did not pass{left}"
        passed = f"{summary.states['PASS']:,} of {total} passed"
        passed += f", {summary.waived:,} waived" * bool(summary.waived)
        passed += f", {len(self.unsupported):,} unsupported" * bool(self.unsupported)
        return f"{passed}, but counter coverage failed" if summary.counters.state == "FAIL" else passed + left


class _TableRow(NamedTuple):
    """A row of the table of all cells."""

    cell: CellResult
    axes: str
    waiver: str
    gates: list[tuple[str, str]]
    point: Point | None
    glyph: str
    note: str


def view(report: Report) -> RunView:
    """Computes the view of a report. Raises ReportError if a line is malformed."""
    cells = list(report)
    red = [cell for cell in cells if is_red(cell, report.header.created)]
    names = {cell.id for cell in red}
    waived = [cell for cell in cells if cell.state in RED_STATES and cell.id not in names]
    unsupported = [cell for cell in cells if cell.state == "UNSUPPORTED"]
    passing = [cell for cell in cells if cell.state == "PASS"]
    groups = red_groups(red, passing, report.causes)
    return RunView(
        header=report.header,
        summary=summarise(report),
        cells=(*red, *waived, *unsupported, *passing),
        red=tuple(red),
        waived=tuple(waived),
        unsupported=tuple(unsupported),
        rewrites=_rewrites(cells),
        choices=_choices(cells),
        groups=groups,
        examples=frozenset(group.cells[0].id for group in groups[:MAX_EXAMPLES]),
    )


def write_run(report: Report) -> RunView:
    """Write `summary.json`, `report.md` and `report.html` beside the report and return their view. Raises ReportError
    if the directory is not writable.
    """
    run = view(report)
    directory = report.path.parent
    texts = {schema.MARKDOWN_FILE: run_markdown(run), PAGE_FILE: run_page(run)}
    write_summary(run.summary, directory)
    for name, text in texts.items():
        write_text(directory / name, text)
    return run


def run_markdown(run: RunView) -> str:
    """The report as Markdown within the size of a pull-request comment."""
    return markdown("run.md.j2", run=run, states=STATE_KEYS, gate_states=GATE_STATES)


def run_page(run: RunView) -> str:
    """The report as one self-contained HTML file."""
    shown = run.cells[:MAX_ROWS]
    gates = [gate for gate in dict.fromkeys((*GATES, *run.summary.by_gate)) if gate in run.summary.by_gate]
    values = [_values(cell) for cell in shown]
    return html(
        "run.html.j2",
        run=run,
        states=STATE_KEYS,
        gate_states=GATE_STATES,
        most_red=MAX_RED,
        explained={cell.id: f"{FOLDER}/{cell.id}.html" for cell in run.traced},
        gates=gates,
        rows=_rows(shown, values, gates, run.header.created),
        axes=_axes(values),
        plot=acceptance_plot(run.cells, _allowed(run)),
        data={"cells": [_details(cell, row, run.header) for cell, row in zip(shown, values, strict=True)]},
    )


def _values(cell: CellResult) -> dict[str, str]:
    return effective(cell.axes, cell.start.resolved)


def _rewrites(cells: Sequence[CellResult]) -> tuple[RewriteRow, ...]:
    groups: dict[tuple[str, str], list[CellResult]] = defaultdict(list)
    for cell in cells:
        for rewrite in cell.start.rewrites:
            groups[signature(rewrite), rewrite.reason].append(cell)
    return tuple(
        RewriteRow(name, len(group), sum(cell.expect == "rewritten" for cell in group), reason)
        for (name, reason), group in sorted(groups.items())
    )


def _choices(cells: Sequence[CellResult]) -> tuple[ChoiceRow, ...]:
    found = Counter((r.field, str(r.value), r.because) for cell in cells for r in cell.start.reasons)
    return tuple(ChoiceRow(name, value, number, because) for (name, value, because), number in sorted(found.items()))


def _allowed(run: RunView) -> tuple[float, float] | None:
    """Lower and upper ratio to the reference allowed by this run's acceptance gate."""
    thresholds = run.header.thresholds.get("acceptance", {})
    low, high = positive(thresholds.get("low")), positive(thresholds.get("high"))
    return None if low is None or high is None else (low, high)


def _rows(
    shown: Sequence[CellResult], values: Sequence[dict[str, str]], gates: Sequence[str], today: str
) -> list[_TableRow]:
    points = [plots.acceptance_point(cell) for cell in shown]
    measured = [point for point in points if point is not None]
    low, high = min((p.low for p in measured), default=0.0), max((p.high for p in measured), default=1.0)
    rows = []
    for cell, effective_values, point in zip(shown, values, points, strict=True):
        found = {gate.name: gate for gate in cell.gates}
        reference = positive(found["acceptance"].numbers.get("reference")) if point else None
        rows.append(
            _TableRow(
                cell=cell,
                axes=" ".join(f"{axis}={value}" for axis, value in effective_values.items()),
                waiver=_waiver(cell, today),
                gates=[(name, found[name].state if name in found else "did not run") for name in gates],
                point=point,
                glyph="" if point is None else glyph(point, low, high, reference),
                note=_note(cell),
            )
        )
    return rows


def _waiver(cell: CellResult, today: str) -> str:
    if cell.state not in RED_STATES or cell.waived is None:
        return ""
    return "waived" if schema.is_waived(cell, today) else "waiver expired"


def _note(cell: CellResult) -> str:
    """A row's text: failure, rewrites, lost attempts, accuracy and speed."""
    texts = [] if cell.state == "PASS" else [shorten(failure(cell), _MAX_NOTE)]
    texts += [f"rewritten {signature(rewrite)}" for rewrite in cell.start.rewrites]
    texts += [f"ran again: {loss}" for loss in cell.losses]
    texts += filter(None, (accuracy_text(cell), speed_text(cell)))
    return "; ".join(texts)


def accuracy_text(cell: CellResult) -> str:
    """`12 lost, 2 won of 100, accuracy 70.0 %`, against plain decoding on the same questions; "" if not measured."""
    gate = cell.gate("accuracy")
    names = ("lost", "won", "n", "accuracy")
    found = [] if gate is None else [one for name in names if (one := number(gate.numbers.get(name))) is not None]
    if len(found) < len(names):
        return ""
    lost, won, n, accuracy = found
    return f"{lost:g} lost, {won:g} won of {n:g}, accuracy {100 * accuracy:.1f} %"


def _axes(values: Sequence[dict[str, str]]) -> dict[str, list[str]]:
    """Effective values of every axis with more than one, numbers first."""
    found: dict[str, set[str]] = {}
    for row in values:
        for axis, value in row.items():
            found.setdefault(axis, set()).add(value)
    return {
        axis: sorted(several, key=lambda value: (not value.isdigit(), value.zfill(8)))
        for axis, several in found.items()
        if len(several) > 1
    }


def _details(cell: CellResult, values: dict[str, str], header: Header) -> Json:
    """Cell data for the page's script: record, start and effective values."""
    return {
        **{name: getattr(cell, name) for name in ("id", "axes", "repro", "evidence", "error")},
        **{name: getattr(cell.start, name) for name in ("requested", "resolved")},
        "waived": None if cell.waived is None else asdict(cell.waived),
        **{name: [asdict(row) for row in getattr(cell.start, name)] for name in ("reasons", "rewrites")},
        "gates": [asdict(gate) for gate in cell.gates],
        "effective": values,
    }


def write_explained(run: RunView, directory: Path) -> list[Path]:
    """Write `explain/ID.html` for each cell of `run.traced`, and remove pages of earlier runs. Raises ReportError."""
    folder = directory / FOLDER
    for stale in folder.glob("*.html"):
        stale.unlink()
    written = []
    for cell in run.traced:
        folder.mkdir(exist_ok=True)
        path = folder / f"{cell.id}.html"
        write_text(path, explain_page(run, cell))
        written.append(path)
    return written


def explain_page(run: RunView, cell: CellResult) -> str:
    """The page of one cell."""
    return html("explain.html.j2", run=run, cell=cell, page=PAGE_FILE, data=_data(cell))


def _data(cell: CellResult) -> Json:
    """Data for the page's script: events, and the request and token to open first, or whether to open the last step."""
    ask = cell.first_red
    at = None if ask is None or ask.token is None else {"request": ask.request, "token": ask.token}
    events = [] if cell.timeline is None else to_builtins(cell.timeline.events)
    return {"events": events, "at": at, "crashed": bool(cell.traceback)}
