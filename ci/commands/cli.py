"""The commands for CI: the options of each. Their code is imported when they are called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specmatrix.matrix.cli.options import Durations, Hosts, Json, Junit, Seed, Stage
from specmatrix.reports.schema import REFERENCE


def plan(
    tier: Annotated[str, typer.Option(help="tiers, such as gpu1,gpu2")] = "cpu",
    stage: Annotated[str, typer.Option(help="cells of the lock file: smoke, pr or nightly")] = "pr",
    cells: Annotated[str | None, typer.Option(help="select cells, as `run` does")] = None,
    shards: Annotated[int | None, typer.Option(help="number of shards, those of `run --shard`")] = None,
    hosts: Hosts = None,
    durations: Durations = None,
    max_gpu_minutes: Annotated[
        int | None, typer.Option(help="refuse a plan that needs more GPU minutes, and divide these over the shards")
    ] = None,
    matrix: Annotated[
        str | None,
        typer.Option(metavar="RUNNERS", help="print a job matrix for GitHub Actions, on these: cpu=LABEL,gpu1=LABEL"),
    ] = None,
    json_: Json = False,
) -> int:
    """Divide the cells of tiers over hosts."""
    from specmatrix.ci.commands.plan import print_plan

    return print_plan(tier, stage, cells, shards, hosts, durations, json_, max_gpu_minutes, matrix)


def merge(
    reports: Annotated[list[Path], typer.Argument(metavar="OUT", help="the reports of all shards of a run")],
    out: Annotated[Path, typer.Option(help="folder for the report of the whole run")],
    junit: Junit = None,
    json_: Json = False,
) -> int:
    """Merge the reports of shards into that of the whole run."""
    from specmatrix.ci.commands.merge import merge as merge_reports

    return merge_reports(reports, out, json_, junit)


def review(
    reports: Annotated[list[Path], typer.Argument(metavar="OUT", help="the runs of a change, one per tier and stage")],
    base: Annotated[
        Path | None, typer.Option(help="a report of the base, or a folder of TIER-STAGE.jsonl.gz to choose from")
    ] = None,
    acknowledge: Annotated[Path | None, typer.Option(help="JSON file of accepted rewrites and lost cells")] = None,
    out: Annotated[Path | None, typer.Option(help="write comment.md and check.json here")] = None,
    link: Annotated[str, typer.Option(help="address of the CI run, for the comment")] = "",
    diff: Annotated[
        Path | None,
        typer.Option(help="`git diff -U0` of the change: annotate its lines that only failing cells execute"),
    ] = None,
    annotate: Annotated[bool, typer.Option("--annotate", help="print annotations for GitHub Actions")] = False,
) -> int:
    """Write what the reviewer of a pull request sees.

    Red now and not before, red already, improved, coverage lost: as a comment, annotations and a check run.
    """
    from specmatrix.ci.commands.review import review as review_runs

    return review_runs(reports, base, acknowledge, out, link, annotate, diff)


def bisect(
    good: Annotated[str, typer.Argument(metavar="GOOD", help="a commit at which the cells pass")],
    bad: Annotated[str, typer.Argument(metavar="BAD", help="a later commit at which one is red")],
    cells: Annotated[str, typer.Option(help="the cells, by id or selector")],
    tier: Annotated[str, typer.Option(help="hardware of the cells: cpu, gpu1, gpu2, gpu4 or gpu8")] = "cpu",
    stage: Stage = "pr",
    seed: Seed = 0,
    subject: Annotated[str, typer.Option(help="the engine under test")] = REFERENCE,
) -> int:
    """Find the first commit at which a cell is red.

    The commits are run in a worktree of their own.
    """
    from specmatrix.ci.commands.bisect import main_bisect

    return main_bisect(good, bad, cells, tier, stage, seed, subject)
