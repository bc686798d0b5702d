"""Pull-request output: one comment that each run updates, annotations, a check run.

With a report of the base commit the verdict is the comparison's, so cells that were red before do not count; without
one it is the run's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import quote

from markupsafe import Markup

from specmatrix.plain_text import inert
from specmatrix.reports.compare.cell_state import CellChange, ChangeState, Comparison
from specmatrix.reports.render.markup import markdown
from specmatrix.reports.render.run import RunView
from specmatrix.reports.schema import REFERENCE, Json
from specmatrix.reports.wording import count, failure, shorten

# The comment's first line, which identifies it to the next run.
MARKER: Final = "<!-- specmatrix review -->"
# GitHub shows ten annotations per step and accepts fifty per request for a check run.
MAX_ANNOTATIONS: Final = 10
_MAX_MESSAGE: Final = 500


class RedLine(NamedTuple):
    """A red cell's text and its repro command."""

    cell: str
    why: str
    repro: str


@dataclass(frozen=True, slots=True)
class Review:
    """A run and its comparison with the base commit's. missing: why there is none."""

    run: RunView
    comparison: Comparison | None
    missing: str = ""

    @property
    def verdict(self) -> str:
        """ "green" or "red"."""
        return self.run.verdict if self.comparison is None else self.comparison.verdict

    @property
    def name(self) -> str:
        """Tier and stage, and the subject unless it is the reference engine."""
        header = self.run.header
        subject = "" if header.subject.name == REFERENCE else f"{header.subject.name}, "
        return f"{subject}{header.tier} / {header.stage}"

    @property
    def new(self) -> tuple[RedLine, ...]:
        """Newly red cells; all red cells if there is no comparison."""
        if self.comparison is None:
            return tuple(RedLine(cell.id, failure(cell), cell.repro) for cell in self.run.red)
        return tuple(RedLine(each.id, each.why, each.repro) for each in self.comparison.changes if each.red)

    @property
    def old(self) -> tuple[str, ...]:
        """Already red in base."""
        new = {row.cell for row in self.new}
        return () if self.comparison is None else tuple(c for c in self.comparison.still_red if c not in new)

    @property
    def improved(self) -> tuple[CellChange, ...]:
        """Better than in base."""
        changes = () if self.comparison is None else self.comparison.changes
        return tuple(change for change in changes if change.state is ChangeState.IMPROVED)

    @property
    def outcome(self) -> str:
        """A short verdict."""
        if self.comparison is None:
            return self.run.outcome
        words = [(len(self.new), "red now and not before"), (len(self.old), "red on the base already")]
        words += [(len(self.improved), "improved")]
        found = [f"{number:,} {text}" for number, text in words if number]
        if not found:
            found = [self.comparison.outcome[0]]
        return ", ".join(found)


class LostRun(NamedTuple):
    """A run that left no report, and why; always red."""

    name: str
    why: str


class Annotation(NamedTuple):
    """A check run's message at lines of a file; without a file, at the workflow's."""

    title: str
    message: str
    path: str = ""
    line: int = 0
    last: int = 0


def comment(reviews: Sequence[Review], link: str = "", lost: Sequence[LostRun] = ()) -> str:
    """The comment, within GitHub's size limit. link: address of the CI run that holds the reports."""
    # A URL could close a Markdown link or open HTML.
    safe = Markup(quote(link, safe="%/:?#&=+~"))
    found = verdict(reviews, lost)
    return f"{MARKER}\n" + markdown("review.md.j2", reviews=reviews, lost=lost, link=safe, verdict=found)


def verdict(reviews: Sequence[Review], lost: Sequence[LostRun] = ()) -> str:
    """ "red" if any review is, or a run was lost."""
    return "red" if lost or any(review.verdict == "red" for review in reviews) else "green"


def marked(runs: Sequence[Review], lines: Sequence[Annotation] = (), lost: Sequence[LostRun] = ()) -> list[Annotation]:
    """The first annotations: lost runs, `lines` of the change, then red cells."""
    gone = [Annotation(shorten(f"no report of {name}", _MAX_MESSAGE), shorten(why, _MAX_MESSAGE)) for name, why in lost]
    rows = [(review, row) for review in runs for row in review.new]
    red = [(f"{row.cell} ({review.name})", f"{row.why}; rerun: {row.repro}") for review, row in rows[:MAX_ANNOTATIONS]]
    found = [Annotation(shorten(title, _MAX_MESSAGE), shorten(text, _MAX_MESSAGE)) for title, text in red]
    return [*gone, *lines, *found][:MAX_ANNOTATIONS]


def workflow_commands(found: Sequence[Annotation]) -> Iterator[str]:
    """Workflow commands for GitHub Actions, escaped so that no value can end its line or start a command."""
    for each in found:
        place = f"file={_property(each.path)},line={each.line},endLine={each.last}," if each.path else ""
        yield f"::error {place}title={_property(each.title)}::{_data(each.message)}"


def check_run(
    reviews: Sequence[Review], link: str = "", lines: Sequence[Annotation] = (), lost: Sequence[LostRun] = ()
) -> dict[str, Json]:
    """The body of a check run in GitHub's API, without the commit. lines: annotated lines of the change."""
    red, found = sum(len(review.new) for review in reviews), verdict(reviews, lost)
    title = f"{count(red, 'cell')} red now" if red else reviews[0].outcome if len(reviews) == 1 else found
    if lost:
        title = f"no report of {', '.join(each.name for each in lost)}"
    return {
        "name": "specmatrix",
        "status": "completed",
        "conclusion": "failure" if found == "red" else "success",
        **({"details_url": link} if link else {}),
        "output": {
            "title": shorten(title, _MAX_MESSAGE),
            "summary": comment(reviews, link, lost),
            "annotations": [
                {
                    "path": each.path or ".github", "start_line": each.line or 1, "end_line": each.last or 1,
                    "annotation_level": "failure", "title": each.title, "message": each.message,
                }
                for each in marked(reviews, lines, lost)
            ],
        },
    }  # fmt: skip


def _data(text: str) -> str:
    return inert(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
