"""`specmatrix review`: what a pull request's reviewer sees of one or more runs, for any CI."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from specmatrix.errors import ConfigError, shown
from specmatrix.reports.atomic import check_place, write_text
from specmatrix.reports.compare import compare, read_acknowledgements
from specmatrix.reports.render.review import Review, check_run, comment, marked, verdict, workflow_commands
from specmatrix.reports.render.run import view
from specmatrix.reports.store import Report, load

COMMENT_FILE: Final = "comment.md"
CHECK_FILE: Final = "check.json"


def review(
    heads: Sequence[Path], base: Path | None, acknowledged: Path | None, out: Path | None, link: str, annotate: bool
) -> int:
    """Print the verdict of each run, write `comment.md` and `check.json`, and return 1 if one is red.

    base: a report, or a folder of `TIER-STAGE.jsonl.gz`, from which a run that has none is judged alone.
    """
    if link and urlsplit(link).scheme not in ("http", "https"):
        raise ConfigError(f"--link must be an address such as https://github.com/owner/name/actions, got {shown(link)}")
    if out is not None:
        check_place(out, COMMENT_FILE, CHECK_FILE)
    entries = read_acknowledgements(acknowledged) if acknowledged else ()
    reviews = []
    for head in map(load, heads):
        before, missing = base_of(head, base)
        run = view(head)
        reviews.append(Review(run, None if before is None else compare(before, head, entries), missing))
    if out is not None:
        write_text(out / COMMENT_FILE, comment(reviews, link))
        write_text(out / CHECK_FILE, json.dumps(check_run(reviews, link), indent=1) + "\n")
    for each in reviews:
        print(f"{each.name}: {each.verdict}, {each.outcome}{'; ' + each.missing if each.missing else ''}")
    if annotate:
        print(*workflow_commands(marked(reviews)), sep="\n")
    return int(verdict(reviews) != "green")


def base_of(head: Report, base: Path | None) -> tuple[Report | None, str]:
    """The report that a run is compared with, or why there is none."""
    if base is None:
        return None, "not compared: no report of the base was given"
    header = head.header
    if not base.is_dir() or any(base.glob("report.jsonl*")):
        found = load(base)
    else:
        name = f"{header.tier}-{header.stage}.jsonl.gz"
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
