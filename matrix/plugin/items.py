"""Cells as pytest items, and their hooks: a plugin that is registered when a file collects cells."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Final

import pluggy
import pytest
from msgspec.structs import replace

from specmatrix.errors import EngineError
from specmatrix.matrix.cells.cell import Cell, order
from specmatrix.matrix.cells.tiers import TIERS, TIMED, VISIBLE, check_seed, repro, visible_gpus
from specmatrix.matrix.cells.tiers import tier as find_tier
from specmatrix.matrix.cover.selection import PRODUCT, of_gpus, select
from specmatrix.matrix.run.plugins import load_plugins
from specmatrix.matrix.run.running_cells import listing
from specmatrix.matrix.run.waivers import file_option, load_waivers
from specmatrix.matrix.subjects.http.endpoint import Endpoint, endpoint_of
from specmatrix.matrix.subjects.registry import foreign_subject
from specmatrix.matrix.zoo.registry import verify_cells
from specmatrix.plain_text import inert
from specmatrix.reports.render.console import as_called
from specmatrix.reports.schema import RED_STATES, CellResult, WaiverRule, is_red
from specmatrix.reports.wording import failure, waiver_text

if TYPE_CHECKING:
    from specmatrix.matrix.run.runner import Runner


CPU: Final = TIERS[0].name


class CellFailed(Exception):
    """A cell did not pass."""

    def __init__(self, record: CellResult) -> None:
        super().__init__(failure(record))
        self.record = record


class CellGroup(pytest.Collector):
    """The cells of a tier that the command line selects."""

    def __init__(self, name: str, parent: pytest.Collector, tier: str) -> None:
        super().__init__(name, parent)
        self.tier = tier
        # pytest would look up the file's conftests once per cell.
        self.hooks: Final = super().ihook

    def collect(self) -> Iterator[CellItem]:
        """One item per cell, grouped by engine start."""
        config = self.config
        try:
            load_plugins([Path(place) for place in config.option.specmatrix_plugin])
            visible_gpus(self.tier)
            check_seed(config.option.specmatrix_seed)
            engine = foreign_subject(config.option.specmatrix_subject, endpoint_from(config))
            waivers_of(config)
            stage, text = config.option.specmatrix_stage, config.option.specmatrix_cells
            listed = listing(engine, self.tier, None if text is None else [text])
            chosen = select(stage, text, config.option.specmatrix_limit, listed)
            cells = of_gpus(chosen, find_tier(self.tier).gpus)
            verify_cells(cells)
        except EngineError as error:
            raise pytest.UsageError(str(error)) from None
        if config.option.specmatrix_stage != PRODUCT:
            cells = order(cells)
        grouped = config.getoption("dist", "no") == "loadgroup"
        for cell in cells:
            item = CellItem.from_parent(self, name=cell.id, cell=cell, tier=self.tier)
            if grouped:
                item.add_marker(pytest.mark.xdist_group("-".join(cell.start_key)))
            yield item


class CellItem(pytest.Item):
    """One cell; its failure shows the messages of its red gates and a repro command."""

    def __init__(self, name: str, parent: CellGroup, cell: Cell, tier: str) -> None:
        super().__init__(name, parent)
        self.cell = cell
        self.tier = tier
        self._group = parent

    @property
    def ihook(self) -> pluggy.HookRelay:
        """The hooks of the file, including conftests."""
        return self._group.hooks

    def runtest(self) -> None:
        """Run the cell, on the previous item's engine if both share a start."""
        record = runner_for(self.config, self.tier).run_cell(self.cell)
        option, endpoint = self.config.option, endpoint_from(self.config)
        options = [] if endpoint is None else [endpoint.options]
        options += [f"--plugin {quote(place)}" for place in option.specmatrix_plugin]
        options += [file_option(Path(option.specmatrix_waivers))] if option.specmatrix_waivers else []
        if options:
            names = record.id, self.tier, option.specmatrix_seed, option.specmatrix_subject
            record = replace(record, repro=repro(*names, options=" ".join(options)))
        today = datetime.now(UTC).date().isoformat()
        if is_red(record, today):
            raise CellFailed(record)
        if record.state in RED_STATES and record.waived is not None:
            pytest.xfail(waiver_text(record.waived))
        if record.state == "UNSUPPORTED":
            pytest.skip(failure(record))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:
        """The red gates' messages and the repro command; other exceptions as pytest formats them."""
        if not isinstance(excinfo.value, CellFailed):
            return str(super().repr_failure(excinfo))
        record = excinfo.value.record
        lines = [f"{record.state} {record.id}", *([record.error] if record.error else [])]
        lines += [f"{g.name}: {g.state}: {g.message}" for g in record.gates if g.state != "PASS"]
        return inert("\n".join([*lines, as_called(record.repro)]))

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The file that collects the cell, without a line number."""
        return self.path, None, self.cell.id


def runner_for(config: pytest.Config, tier: str) -> Runner:
    """This process's runner for a tier, created for its first item."""
    runners = config.stash.setdefault(_RUNNERS, {})
    if tier not in runners:
        if tier == CPU:
            # The CPU tier must not see a GPU.
            os.environ[VISIBLE] = ""
        import torch

        from specmatrix.matrix.run.runner import subject_runner

        torch.set_num_threads(1)
        option = config.option
        runners[tier] = subject_runner(
            option.specmatrix_subject, option.specmatrix_seed, tier, waivers_of(config), endpoint=endpoint_from(config)
        )
        runners[tier].timed = option.specmatrix_stage == TIMED
        config.add_cleanup(runners[tier].shut_down)
    return runners[tier]


def waivers_of(config: pytest.Config) -> tuple[WaiverRule, ...]:
    """The waivers that the command line names, or those of the current folder. ConfigError on a bad file."""
    named = config.option.specmatrix_waivers
    return load_waivers(None if named is None else Path(named))


def endpoint_from(config: pytest.Config) -> Endpoint | None:
    """The server that the command line names. ConfigError if it is named only in part."""
    option = config.option
    return endpoint_of(
        option.specmatrix_url, option.specmatrix_baseline_url, option.specmatrix_launch, option.specmatrix_api_key
    )


_RUNNERS: Final = pytest.StashKey["dict[str, Runner]"]()
_COLLECTS: Final = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    """Disable garbage collection during collection, which would traverse the many items repeatedly."""
    config.stash[_COLLECTS] = gc.isenabled()
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Freeze the items, as they live as long as the session, and enable garbage collection again."""
    gc.freeze()
    if session.config.stash[_COLLECTS]:
        gc.enable()
