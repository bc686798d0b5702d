"""`specmatrix review`: the review comment and check of one or more runs of a pull request, for any CI."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from specmatrix.errors import ConfigError, shown, text_of
from specmatrix.files import read_text
from specmatrix.matrix.cover.selection import base_name
from specmatrix.matrix.run.executed_lines import changed_lines, suspects
from specmatrix.plain_text import as_given
from specmatrix.reports.compare import compare, read_acknowledgements
from specmatrix.reports.render import review as rendered
from specmatrix.reports.render.review import Annotation, LostRun, Review
from specmatrix.reports.render.run import view
from specmatrix.reports.schema import REFERENCE, ReportError
from specmatrix.reports.store import Report, check_place, held, load, write_text
from specmatrix.reports.summary import CPU_TIER
from specmatrix.reports.wording import count, ranges

COMMENT_FILE: Final = "comment.md"
CHECK_FILE: Final = "check.json"


def review(
    reports: list[Path],
    base: Path | None = None,
    acknowledge: Path | None = None,
    out: Path | None = None,
    link: str = "",
    diff: Path | None = None,
    annotate: bool = False,
) -> int:
    """Print the verdict of each run, write `comment.md` and `check.json`, and return 1 if one is red.

    A path that exists and holds no whole report is red too: a run that was lost must not look green.
    A run without a report in `base` is judged alone.
    """
    if link and urlsplit(link).scheme not in ("http", "https"):
        raise ConfigError(f"--link must be an address such as https://github.com/owner/name/actions, got {shown(link)}")
    if out is not None:
        check_place(out, COMMENT_FILE, CHECK_FILE)
    entries = read_acknowledgements(acknowledge) if acknowledge else ()
    reviews, lost = [], []
    for path in reports:
        try:
            head = load(path)
            base_name(head.header)
        except ReportError as error:
            if not path.exists():
                raise
            lost.append(LostRun(text_of(path.name or path), text_of(error)))
            continue
        before, missing = base_of(head, base)
        run = view(head)
        reviews.append(Review(run, None if before is None else compare(before, head, entries), missing))
    lines = () if diff is None else lines_of(reviews, diff)
    if out is not None:
        with held(out):
            write_text(out / COMMENT_FILE, rendered.comment(reviews, link, lost))
            write_text(out / CHECK_FILE, json.dumps(rendered.check_run(reviews, link, lines, lost), indent=1) + "\n")
    for run_name, why in lost:
        print(f"{run_name}: red, no report: {why}")
    for each in reviews:
        said = f"{each.name}: {each.verdict}, {each.outcome}{'; ' + each.missing if each.missing else ''}"
        print(said.replace("\n", " "))
    for line in lines:
        print(f"{line.path}:{line.line}: {line.message}")
    for command in rendered.workflow_commands(rendered.marked(reviews, lines, lost)) if annotate else ():
        print(command, file=as_given(sys.stdout))
    return int(rendered.verdict(reviews, lost) != "green")


def lines_of(reviews: Sequence[Review], diff: Path) -> list[Annotation]:
    """The changed lines that only failing cells execute, found on the CPU tier by running a few cells again.
    ConfigError if the diff cannot be read."""
    try:
        changed = changed_lines(read_text(diff))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the diff {shown(str(diff))}: {error}") from error
    found = []
    for each in reviews:
        header = each.run.header
        if not changed or header.tier != CPU_TIER or header.subject.name != REFERENCE:
            continue
        new = {row.cell for row in each.new}
        red = [cell for cell in each.run.red if cell.id in new]
        lines_by_path, names, green = suspects(red, each.run.cells, changed, header.tier, header.seed)
        for path, lines in lines_by_path.items():
            title = "only failing cells execute this"
            others = count(len(green), "passing cell")
            text = f"executed by {', '.join(names)}, and by none of {others} that were traced too"
            found += [Annotation(title, text, path, first, last) for first, last in ranges(sorted(lines))]
    return found


def base_of(head: Report, base: Path | None) -> tuple[Report | None, str]:
    """The report that a run is compared with, or why there is none."""
    if base is None:
        return None, "not compared: no report of the base was given"
    header = head.header
    if not base.is_dir() or any(base.glob("report.jsonl*")):
        found = load(base)
    else:
        name = base_name(header)
        if not (base / name).is_file():
            return None, f"not compared: {base} has no {name}"
        found = load(base / name)
    for what, mine, its in (
        ("tier", header.tier, found.header.tier),
        ("stage", header.stage, found.header.stage),
        ("subject", header.subject.name, found.header.subject.name),
    ):
        if mine != its:
            raise ConfigError(f"{found.path} is of {what} {its}, and {head.path} of {mine}; compare like with like")
    return found, ""
