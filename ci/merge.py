"""`specmatrix merge`: the reports of all shards of a run as one report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from specmatrix.errors import ConfigError
from specmatrix.matrix.gates.same_texts import SameTexts
from specmatrix.matrix.run.provenance import merged_host
from specmatrix.reports.render.run import write_run
from specmatrix.reports.render.terminal import show_run
from specmatrix.reports.schema import REPORT_FILE, Header, ShardRecord
from specmatrix.reports.schema import Json as JsonValue
from specmatrix.reports.store import Report, ReportWriter, load

# Header fields in which shards may differ: when and where they ran, and which shard each is.
OWN: Final = ("created", "host", "shard")


def merge(reports: list[Path], out: Path, junit: Path | None = None, json_: bool = False) -> int:
    """Write and print the report of the whole run; the exit status is that of the run.

    ConfigError if the reports are not all shards of one run, or if `out` holds one of them.
    """
    shards = [load(source) for source in reports]
    for report in shards:
        if (out / REPORT_FILE).resolve() == report.path.resolve():
            raise ConfigError(f"--out {out} holds one of the reports that are merged; name another folder")
    header = merged_header(shards)
    texts = SameTexts()
    with ReportWriter(out, header) as writer:
        for report in shards:
            for cell in report:
                writer.write(texts.judged(cell, last=True))
        writer.not_run = [cell for report in shards for cell in report.not_run]
        held = [report.gpu_seconds for report in shards]
        writer.gpu_seconds = None if None in held else sum(filter(None, held))
    with writer.read() as report:
        view = write_run(report)
    show_run(view, out, (), json_, junit)
    return int(view.verdict != "green")


def merged_header(reports: Sequence[Report]) -> Header:
    """The header of the whole run. ConfigError if a shard is missing or there twice, or if the runs differ."""
    first = reports[0]
    for report in reports:
        for name in (name for name in Header.__struct_fields__ if name not in OWN):
            _same(first, report, name, getattr(first.header, name), getattr(report.header, name))
    shards = [_shard(report) for report in reports]
    for report, shard in zip(reports, shards, strict=True):
        _same(first, report, "shards", shards[0].count, shard.count)
        _same(first, report, "selected cells", (shards[0].cells, shards[0].digest), (shard.cells, shard.digest))
    numbers = [shard.number for shard in shards]
    count = shards[0].count
    for number in range(1, count + 1):
        if number not in numbers:
            raise ConfigError(f"shard {number}/{count} is missing; merge takes the reports of all shards")
        if numbers.count(number) > 1:
            paths = [str(report.path) for report, own in zip(reports, numbers, strict=True) if own == number]
            raise ConfigError(f"{paths[0]} and {paths[1]} are both shard {number}/{count}; give one of them")
    _check_cells(reports, shards[0].cells)
    hosts = [report.header.host for report in reports]
    host = hosts[0] if all(one == hosts[0] for one in hosts) else merged_host(hosts)
    return replace(first.header, shard=None, host=host, created=min(report.header.created for report in reports))


def _shard(report: Report) -> ShardRecord:
    if report.header.shard is None:
        raise ConfigError(f"{report.path} is not a shard; run its cells with `specmatrix run --shard`")
    return report.header.shard


def _same(first: Report, other: Report, name: str, value: JsonValue, its: JsonValue) -> None:
    if value != its:
        text = f"{first.path} and {other.path} differ in {name}"
        values = f": {value} and {its}" if isinstance(value, str | int) else ""
        raise ConfigError(f"{text}{values}; merge takes the shards of one run")


def _check_cells(reports: Sequence[Report], expected: int) -> None:
    """ConfigError unless each cell is in exactly one shard; shards planned with different durations violate this."""
    seen: dict[str, Report] = {}
    for report in reports:
        for cell in (*report.lines, *report.not_run):
            if cell in seen:
                where = f"{seen[cell].path} and {report.path}"
                raise ConfigError(f"{where} both have cell {cell!r}; give every shard the same --durations")
            seen[cell] = report
    if len(seen) != expected:
        raise ConfigError(f"the shards have {len(seen)} of {expected} cells; give every shard the same --durations")
