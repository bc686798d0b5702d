"""What an accuracy run compares: engines with and without a drafter, in this process or as servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from specmatrix.engine.core.config.asked import AUTO, UNASKED, EngineConfig
from specmatrix.errors import ConfigError, shown
from specmatrix.matrix.cells.axes import AXES, describe
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.subjects.http.endpoint import Endpoint
from specmatrix.matrix.subjects.http.openai import served_models
from specmatrix.matrix.zoo.published.pairs import ModelPair
from specmatrix.matrix.zoo.registry import resolve_path, verify_cells

# Axes that the task decides: it has its own questions, sampling parameters and stop strings.
FIXED: Final = ("sampling", "finish", "abort")
PATHS: Final = ("model_path", "speculative_draft_model_path", "speculative_ngram_external_corpus_path")
# A server that loads real weights takes minutes.
START_SECONDS: Final = 1800.0


@dataclass(frozen=True, slots=True)
class ComparedEngine:
    """An engine of the comparison: its name in the report and its configuration."""

    name: str
    config: EngineConfig


@dataclass(frozen=True, slots=True)
class ComparedServer:
    """A server of the comparison. model: the model's name on the server. running: the configuration that it reports.

    flags: substituted for `{flags}` in the command `launch`; `url` is empty until that command has started it.
    """

    name: str
    url: str = ""
    key: str | None = None
    model: str = ""
    running: Mapping[str, Any] = field(default_factory=dict)
    launch: str = ""
    flags: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Compared:
    """algorithm: the cell's, in lower case, "" if a server does not report it. folders: of each model that either
    engine loads, the target first."""

    algorithm: str
    baseline: ComparedEngine | ComparedServer
    cell: ComparedEngine | ComparedServer
    folders: Mapping[str, Path]

    @property
    def run(self) -> bool:
        """Whether both are running servers, which can answer in alternation. Other engines run one after the other: a
        GPU has no room for two."""
        return isinstance(self.cell, ComparedServer) and bool(self.cell.url)

    def locate(self, name: str) -> Path:
        """The folder of a model, or the file of the zoo's corpus."""
        return self.folders[name] if name in self.folders else resolve_path(name)


def of_cell(text: str) -> Compared:
    """A zoo cell by its id. ConfigError if it is unknown or sets an axis that the task decides."""
    cell = Cell.from_id(text)
    asked = [(axis.name, cell.values[axis.name]) for axis in AXES if axis.name in FIXED]
    own = [(name, value) for name, value in asked if value != Cell._field_defaults[name]]
    if own:
        raise ConfigError(f"cell {text} sets {describe(own)}, which the task decides; omit it")
    if cell.ranks > 1:
        raise ConfigError(f"cell {text} must have 1 rank for accuracy, got {cell.ranks}; omit tp{cell.tp}")
    names = [name for name in (cell.target, cell.draft) if name is not None]
    baseline, start = (ComparedEngine(each.id, _ample(each)) for each in (cell.canonical, cell))
    verify_cells([cell])
    return Compared(cell.algorithm, baseline, start, {name: resolve_path(name) for name in names})


def of_pair(pair: ModelPair, folders: Mapping[str, Path]) -> Compared:
    """A pair of published checkpoints in `folders`."""
    baseline = ComparedEngine(f"{pair.target}.none", _deterministic(pair.baseline))
    return Compared(pair.algorithm.lower(), baseline, ComparedEngine(pair.name, _deterministic(pair.config)), folders)


def of_servers(endpoint: Endpoint) -> Compared:
    """Two running servers. ConfigError if one is missing, or if the baseline speculates."""
    if endpoint.url is None or endpoint.baseline_url is None:
        raise ConfigError("--url needs --baseline-url, the same server without speculation: answers are compared")
    urls = [url.rstrip("/") for url in (endpoint.baseline_url, endpoint.url)]
    baseline, cell = (ComparedServer(url, url, endpoint.key, *described(url, endpoint.key)) for url in urls)
    if baseline.model != cell.model:
        raise ConfigError(f"{cell.url} serves {shown(cell.model)} and {baseline.url} {shown(baseline.model)}")
    if (drafter := baseline.running.get("speculative_algorithm")) is not None:
        raise ConfigError(f"--baseline-url runs {drafter}; allowed: no speculation")
    said = cell.running.get("speculative_algorithm")
    if cell.running and said is None:
        raise ConfigError(f"--url runs no speculation; there is nothing to compare at {cell.url}")
    return Compared(str(said or "").lower(), baseline, cell, {})


def of_launch(compared: Compared, endpoint: Endpoint) -> Compared:
    """The engines of a comparison as servers that a command starts, one after the other."""
    assert endpoint.launch is not None
    servers = []
    for one in (compared.baseline, compared.cell):
        assert isinstance(one, ComparedEngine)
        asked = {name: value for name, value in asdict(one.config).items() if value != UNASKED[name]}
        # SGLang's only flag for the version; None leaves it to the server.
        runs = {"v1": True, "v2": False}.get(asked.pop("spec_version", AUTO))
        asked["disable_overlap_schedule"] = one.config.disable_overlap_schedule or runs
        for name in {*PATHS} & {*asked}:
            asked[name] = str(compared.locate(asked[name]))
        servers.append(ComparedServer(one.name, key=endpoint.key, launch=endpoint.launch, flags=asked))
    return replace(compared, baseline=servers[0], cell=servers[1])


@contextmanager
def served(server: ComparedServer) -> Iterator[ComparedServer]:
    """Yield the server, started and stopped here if it is not running yet. ConfigError if it does not start."""
    from specmatrix.matrix.subjects.http.connection import launched

    if server.url:
        yield server
        return
    connection, process = launched(Endpoint(launch=server.launch, key=server.key), server.flags, START_SECONDS)
    try:
        model, running = described(connection.url, server.key)
        yield replace(server, url=connection.url, model=model, running=running)
    finally:
        process.stop()
        connection.close()


def described(url: str, key: str | None) -> tuple[str, Mapping[str, Any]]:
    """The first model of a server and the configuration that it reports, empty if none. ConfigError if no server is
    reachable."""
    (first, *_), running, *_ = served_models(url, key)
    return str(first["id"]), running


def _ample(cell: Cell) -> EngineConfig:
    """The cell's configuration, with ample memory sized for the task's questions instead of the cell's workload."""
    config = _deterministic(cell.config())
    return config if cell.memory != "ample" else replace(config, max_total_tokens=AUTO)


def _deterministic(config: EngineConfig) -> EngineConfig:
    """Deterministic inference, so that a difference between the runs is a fault and not rounding."""
    return replace(config, enable_deterministic_inference=True)
