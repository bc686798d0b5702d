"""What a run writes for each of its tiers, and which cells of a division are its own."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from specmatrix.ci.packing import Demand, pack
from specmatrix.ci.planner import Host, Shard, parse_shard, plan, shard_plan
from specmatrix.errors import ConfigError, shown
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.tiers import tier as find_tier
from specmatrix.reports.schema import REPORT_FILE, CellResult, Header, ShardRecord, is_red
from specmatrix.reports.store import PARTIAL_FILE, ReportWriter
from specmatrix.reports.wording import count
from specmatrix.stopping import Stopped


@dataclass(frozen=True, slots=True)
class TierRun:
    """The cells of one tier, and the report that they get in the folder `out`."""

    out: Path
    header: Header
    cells: Sequence[Cell]


def tier_names(text: str) -> list[str]:
    """The tiers of `gpu1,gpu2`. ConfigError if one is unknown or given twice."""
    names = [find_tier(name.strip()).name for name in text.split(",")]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"tier {shown(twice)} is given twice; give it once")
    return names


def divided(
    demands: Mapping[str, Demand], shard: str, hosts: Sequence[Host] | None
) -> dict[str, tuple[ShardRecord | None, list[Cell]]]:
    """As `of_shard`, for each tier of which this host has cells. hosts: those that the tiers are packed on."""
    if hosts is None:
        return {name: of_shard(list(one.cells), one.durations, shard, one.gpus) for name, one in demands.items()}
    made = dict(zip(demands, pack(list(demands.values()), hosts).plans, strict=True))
    _check_host(shard, hosts, [lane for one in made.values() for lane in one.shards])
    found: dict[str, tuple[ShardRecord | None, list[Cell]]] = {}
    for name, one in made.items():
        if shard in (names := _hosts_with_cells(hosts, one.shards)):
            found[name] = _part(demands[name].cells, one.shards, shard, names.index(shard) + 1, len(names))
    return found


def of_shard(
    cells: list[Cell], seconds: Mapping[str, float], shard: str, gpus: int, hosts: Sequence[Host] | None = None
) -> tuple[ShardRecord | None, list[Cell]]:
    """The cells of a shard, and what the header says of it; all cells and None for 1/1. hosts: those that have a shard
    each, by name. ConfigError if it is none."""
    if hosts is not None:
        shards = plan(cells, seconds, hosts, gpus).shards
        _check_host(shard, hosts, shards)
        names = _hosts_with_cells(hosts, shards)
        return _part(cells, shards, shard, names.index(shard) + 1, len(names))
    number, total = parse_shard(shard)
    if total == 1:
        return None, cells
    return _part(cells, shard_plan(cells, seconds, total, gpus).shards, f"{number}/{total}", number, total)


def _part(
    cells: Sequence[Cell], shards: Sequence[Shard], host: str, number: int, total: int
) -> tuple[ShardRecord, list[Cell]]:
    own = {cell for lane in shards if lane.host == host for group in lane.groups for cell in group.cells}
    digest = blake2b("\n".join(sorted(cell.id for cell in cells)).encode(), digest_size=6).hexdigest()
    return ShardRecord(number, total, len(cells), digest), [cell for cell in cells if cell in own]


def _check_host(shard: str, hosts: Sequence[Host], shards: Sequence[Shard]) -> None:
    names = _hosts_with_cells(hosts, shards)
    if shard not in names:
        raise ConfigError(f"--shard must be a host that gets cells, {', '.join(names)}, got {shown(shard)}")


def _hosts_with_cells(hosts: Sequence[Host], shards: Sequence[Shard]) -> list[str]:
    return [row.name for row in hosts if any(lane.groups for lane in shards if lane.host == row.name)]


def alone(records: Generator[CellResult]) -> Generator[tuple[int, CellResult]]:
    """The records of a single part, for `write_reports`."""
    with closing(records):
        for record in records:
            yield 0, record


def write_reports(parts: Sequence[TierRun], records: Generator[tuple[int, CellResult]], fail_fast: bool) -> list[Path]:
    """Write the report of each part; their paths. Stopped is raised again with a message on the partial output.

    records: with the number of their part. fail_fast: end the run at the first red cell that is not waived.
    """
    total, done, red = sum(len(part.cells) for part in parts), 0, 0
    left = [{cell.id for cell in part.cells} for part in parts]
    try:
        # Workers end before an error is reported.
        with ExitStack() as stack:
            writers = [stack.enter_context(ReportWriter(part.out, part.header)) for part in parts]
            stack.enter_context(closing(records))
            for number, record in records:
                writers[number].write(record)
                left[number].discard(record.id)
                done += 1
                red += (worse := is_red(record, parts[number].header.created))
                if fail_fast and worse:
                    for writer, part, ids in zip(writers, parts, left, strict=True):
                        writer.leave_out(cell.id for cell in part.cells if cell.id in ids)
                    break
    except Stopped as stop:
        reports = [part.out / REPORT_FILE for part in parts]
        partial = [part.out / PARTIAL_FILE for part in parts if (part.out / PARTIAL_FILE).exists()]
        if done == total and not partial:
            what = "its summary and pages were" if len(reports) == 1 else "their summaries and pages were"
            names, verb = _listed(reports), "was" if len(reports) == 1 else "were"
            raise stop.saying(f"interrupted after {names} {verb} written; {what} not") from None
        old = [report for report in reports if report.exists()]
        kept = f"; {_listed(old)} {'is' if len(old) == 1 else 'are'} from an earlier run" if old else ""
        text = f"interrupted after {done:,} of {count(total, 'cell')}, {red:,} of them red"
        many = "is not a report" if len(parts) == 1 else "are no reports"
        place = _listed([part.out / PARTIAL_FILE for part in parts])
        raise stop.saying(f"{text}; partial results are in {place}, which {many}{kept}") from None
    return [writer.path for writer in writers]


def _listed(paths: Sequence[Path]) -> str:
    return " and ".join(map(str, paths))
