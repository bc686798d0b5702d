"""A cell prepared for a run: everything derived from its axes, computed once for runner, gates and report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from specmatrix.engine.core.config.asked import EngineConfig, Facts, Resolved
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell, instrumented, zoo_facts
from specmatrix.matrix.cells.constraints import Constraint, Expect, expectation, explain
from specmatrix.matrix.cells.tiers import tier as find_tier
from specmatrix.matrix.workloads.build import workload
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.reports.schema import REFERENCE

# The requests of a cell for a seed.
Workload = Callable[[Cell, int], Sequence[RequestSpec]]


@dataclass(frozen=True)
class PreparedCell:
    """A cell with its configuration, facts and requests, each computed at most once, on first access.

    tier, seed, subject: of the run. constraints: those that apply to the cell. expectation: the expected outcome.
    plain: whether it is a cell's baseline.
    """

    cell: Cell
    tier: str
    seed: int
    constraints: tuple[Constraint, ...]
    expectation: Expect
    workload: Workload
    subject: str = REFERENCE
    plain: bool = False

    @property
    def gpus(self) -> int:
        """Number of GPUs per cell of the tier."""
        return find_tier(self.tier).gpus

    @property
    def checkpoints(self) -> dict[str, str]:
        """The zoo's name of the target, and of the draft if there is one, by role."""
        return {"target": self.cell.target} | ({} if self.cell.draft is None else {"draft": self.cell.draft})

    @cached_property
    def asked(self) -> EngineConfig:
        """The configuration that the axes request."""
        return self.cell.config()

    @cached_property
    def configuration(self) -> EngineConfig:
        """The configuration that the engine starts with: `asked`, instrumented for the gates, on the tier's device."""
        return instrumented(self.asked, self.cell.numerics, self.gpus)

    @cached_property
    def facts(self) -> Facts:
        """The facts of the target and the draft, on a CPU."""
        return zoo_facts(self.cell)

    @cached_property
    def predicted(self) -> Resolved | ConfigError:
        """The resolution of `asked` on a CPU, or the error that refuses it."""
        try:
            return resolve(self.asked, self.facts)
        except ConfigError as error:
            return error

    @cached_property
    def as_like(self) -> PreparedCell:
        """The cell as this package's gates judge it, see `Cell.as_like`."""
        like = self.cell.as_like
        return self if like == self.cell else replace(self, cell=like, workload=lambda *_: self.requests)

    @property
    def predicted_refusal(self) -> str:
        """The message of the error that refuses the cell, or ""."""
        return str(self.predicted) if isinstance(self.predicted, ConfigError) else ""

    @cached_property
    def requests(self) -> tuple[RequestSpec, ...]:
        """The requests of the cell, for subjects other than the reference engine without forced retractions, renewals
        of memory or weights, and requests that are for that engine only."""
        found = tuple(self.workload(self.cell, self.seed))
        if self.subject == REFERENCE:
            return found
        kept = {request.name: request for request in found if not request.ours}
        return tuple(
            replace(one, renewal="", retract_after=None, after=tuple(name for name in one.after if name in kept))
            for one in kept.values()
        )

    @cached_property
    def baseline(self) -> PreparedCell:
        """The same requests with plain decoding."""
        return self._plain(self.cell.canonical)

    @cached_property
    def default_baseline(self) -> PreparedCell:
        """The same requests with plain decoding on an engine with default settings, for other subjects."""
        return self._plain(Cell(model=self.cell.model, context=self.cell.context))

    @cached_property
    def session_baseline(self) -> PreparedCell:
        """The same requests with the cell's drafter, every turn prefilling its whole history instead of inheriting."""
        return self._plain(self.cell.session_baseline)

    @cached_property
    def _plain_requests(self) -> tuple[RequestSpec, ...]:
        return as_baseline(self.requests, self.asked.random_seed)

    def _plain(self, start: Cell) -> PreparedCell:
        """The baseline requests on another engine start, which must run whether or not it is in the matrix."""
        return replace(
            self, cell=start, constraints=(), expectation="runs", workload=lambda *_: self._plain_requests, plain=True
        )


def prepare(
    cell: Cell, tier: str = "cpu", seed: int = 0, workload: Workload = workload, subject: str = REFERENCE
) -> PreparedCell:
    """Prepare a cell. ConfigError if it is impossible or redundant."""
    constraints = explain(cell)
    return PreparedCell(cell, tier, seed, constraints, expectation(cell, constraints), workload, subject)


def as_baseline(requests: Sequence[RequestSpec], engine_seed: int) -> tuple[RequestSpec, ...]:
    """The workload of a baseline: no aborted or refused requests, full histories in place of sessions, one request per
    completion, seeds instead of None, and at least two top_logprobs for every greedy token, to detect ties."""
    refused = {request.name for request in requests if request.refused is not None}
    plain: list[RequestSpec] = []
    for request in requests:
        if request.name in refused:
            continue
        shown = request.top_logprobs if request.temperature else max(2, request.top_logprobs)
        session = None if request.session is None else replace(request.session, resend=True)
        history = request.session and request.session.follows
        after = ([history] if history else []) if request.loose else request.after
        request = replace(
            request,
            abort_after=None,
            closes_after=None,
            top_logprobs=shown,
            session=session,
            after=tuple(name for name in after if name not in refused),
            seed=engine_seed if request.seed is None else request.seed,
            renewal="",
            retract_after=None,
        )
        plain += request.completions()
    return tuple(plain)
