"""A subset of a cell's requests, or shorter ones, for minimal reproduction of a failure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specmatrix.errors import ConfigError, shown
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.workloads.build import workload
from specmatrix.matrix.workloads.request import RequestSpec


@dataclass(frozen=True, slots=True)
class Subset:
    """A reduced workload. requests: names of those to run, plus those that they wait for or continue; () for all.
    tokens: maximum output tokens of each, None for their own limits."""

    requests: tuple[str, ...] = ()
    tokens: int | None = None

    def __post_init__(self) -> None:
        if self.tokens is not None and self.tokens < 1:
            raise ConfigError(f"tokens must be at least 1, got {self.tokens}")

    @property
    def options(self) -> str:
        """The options of `specmatrix run` that select it, "" for the whole workload."""
        parts = [f"--requests {','.join(self.requests)}"] * bool(self.requests)
        return " ".join(parts + ([] if self.tokens is None else [f"--tokens {self.tokens}"]))

    def __call__(self, cell: Cell, seed: int) -> tuple[RequestSpec, ...]:
        """The requests of a cell for a seed. ConfigError on a name that it does not have."""
        return self.of(workload(cell, seed), cell.id)

    def of(self, requests: Sequence[RequestSpec], cell: str) -> tuple[RequestSpec, ...]:
        """Those of a workload's requests, in its order."""
        known = {request.name: request for request in requests}
        for name in self.requests:
            if name not in known:
                names = ", ".join([*known][:12]) + (", ..." if len(known) > 12 else "")
                raise ConfigError(f"cell {cell} has no request {shown(name)}; it has {names}")
        wanted: dict[str, None] = {}
        left = [*(self.requests or known)]
        while left:
            name = left.pop()
            if name not in wanted:
                wanted[name] = None
                left += needed(known[name])
        return tuple(self._cut(request) for request in requests if request.name in wanted)

    def _cut(self, request: RequestSpec) -> RequestSpec:
        if self.tokens is None:
            return request
        most = min(self.tokens, request.max_new_tokens)
        return replace(request, max_new_tokens=most, min_new_tokens=min(most, request.min_new_tokens))


def needed(request: RequestSpec) -> list[str]:
    """Names of the requests that a request waits for, runs beside or continues."""
    follows = None if request.session is None else request.session.follows
    return [*request.after, *(name for name in (request.beside, follows) if name is not None)]


def subset(requests: str | None, tokens: int | None) -> Subset | None:
    """Parse command-line options: comma-separated names and a token limit; None selects everything. ConfigError on an
    empty name or a limit below 1."""
    if requests is None and tokens is None:
        return None
    names = () if requests is None else tuple(name.strip() for name in requests.split(","))
    if "" in names:
        raise ConfigError(f"requests {shown(requests)} has an empty name; write names with commas, such as q6,q7")
    return Subset(names, tokens)
