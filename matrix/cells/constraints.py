"""The constraints: which cells exist, and the expected outcome of those that do.

Kinds: *impossible*: cannot exist; *redundant*: tests nothing that another cell does not test; *optional*: redundant
where batches run, so it runs only if selected by name, and is locked for subjects without batches; *refused*: the
engine must raise its own error; *rewritten*: the engine must report the rewrite. The last two are derived from
`engine.core.config.rules.table`, so the matrix and the engine cannot disagree, and are tested as negative cells.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Final, Literal, TypeAlias, TypeVar

import msgspec

from specmatrix.engine.core.config.context import Rule, RuleContext
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.engine.core.config.rules.table import RULES
from specmatrix.engine.core.draft.algorithms import tree_pool
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.axes import AXES, INDEX, axis, describe
from specmatrix.matrix.cells.cell import DRAFTS, Cell, asked, parse_assignment, zoo_facts
from specmatrix.matrix.cells.selector import parse_selector

Kind = Literal["impossible", "redundant", "optional", "refused", "rewritten"]
Expect = Literal["runs", "rewritten", "refused"]
# The kinds of cells that the matrix leaves out.
LEFT_OUT: Final[frozenset[Kind]] = frozenset({"impossible", "redundant", "optional"})
ValuesOf: TypeAlias = Callable[[tuple[str, ...]], tuple[str, ...]]
ForbidsValues: TypeAlias = Callable[[tuple[str, ...]], bool]


@dataclass(frozen=True)
class Constraint:
    """One constraint.

    axes: the only axes that `forbids` reads. forbids: whether the constraint applies to a cell.
    """

    name: str
    kind: Kind
    why: str
    axes: tuple[str, ...]
    forbids: Callable[[Cell], bool]

    @cached_property
    def columns(self) -> tuple[int, ...]:
        """Positions of `axes` in a cell."""
        return tuple(INDEX[name] for name in self.axes)

    @cached_property
    def values(self) -> ValuesOf:
        """A function that extracts a cell's values of `axes`."""
        (first, *more) = self.columns
        return itemgetter(first, *more) if more else lambda cell: (cell[first],)

    @cached_property
    def forbids_values(self) -> ForbidsValues:
        """`forbids` for values of `axes`, called once for each combination."""
        return cache(lambda values: self.forbids(Cell(**dict(zip(self.axes, values, strict=True)))))

    @cached_property
    def forbidden(self) -> frozenset[tuple[str, ...]]:
        """All combinations of values of `axes` to which the constraint applies."""
        return frozenset(filter(self.forbids_values, product(*(axis(name).names for name in self.axes))))

    def applies(self, cell: Cell) -> bool:
        """The result of `forbids`."""
        return self.forbids_values(self.values(cell))


@cache
def situation(cell: Cell) -> RuleContext:
    """The input of the engine's configuration rules for this cell; read-only."""
    return RuleContext.of(cell.config(), zoo_facts(cell))


T = TypeVar("T")


def _table(name: str, row: type[T]) -> tuple[T, ...]:
    """The rows of a table beside this file."""
    return msgspec.yaml.decode(Path(__file__).with_name(name).read_bytes(), type=tuple[row, ...])  # type: ignore[valid-type]


class FewValues(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A restriction of some cells to few axis values, from few_values.yaml, which explains its fields."""

    name: str
    axis: str
    values: tuple[str, ...]
    why: str
    kept: dict[str, tuple[str, ...]]
    fewer: dict[str, dict[str, tuple[str, ...]]] = {}
    optional: tuple[str, ...] = ()

    def constraint(self, name: str) -> Constraint:
        """The restriction of one axis."""

        def forbids(cell: Cell) -> bool:
            value = cell.values[self.axis]
            kept = self.fewer.get(value, {}).get(name, self.kept[name])
            return value in self.values and cell.values[name] not in kept

        kind: Kind = "optional" if name in self.optional else "redundant"
        return Constraint(f"few-{self.name}-{name.replace('_', '-')}", kind, self.why, (name, self.axis), forbids)


RESTRICTIONS: Final = _table("few_values.yaml", FewValues)


def _equal_widths(cell: Cell) -> bool:
    """Whether a tree has as many nodes as a chain of the same depth: steps + 1."""
    explicit = "auto" not in (cell.steps, cell.topk, cell.draft_tokens)
    if not explicit or cell.algorithm in ("none", "dflash", "dspark") or int(cell.topk) == 1:
        return False
    width = int(cell.draft_tokens)
    return width == int(cell.steps) + 1 and width - 1 <= tree_pool(int(cell.steps), int(cell.topk))


# What the constraints of constraints.yaml without a selector forbid.
FORBIDS: Final[dict[str, Callable[[Cell], bool]]] = {
    "no-draft-trained": lambda cell: (
        cell.draft is None
        and (cell.drafting != "stepwise" or cell.algorithm in {name.partition(".")[0] for _, name in DRAFTS})
    ),
    "equal-widths": _equal_widths,
    "chain-of-its-own-width": lambda cell: cell.adapts and (cell.topk, cell.draft_tokens) != ("auto", "auto"),
    "table-of-one-drafter": lambda cell: (
        cell.adapts
        and cell.adaptive == "table"
        and (cell.algorithm, cell.model, cell.steps) != ("eagle3", "llama", "auto")
    ),
}


class ConstraintRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A constraint of constraints.yaml, which explains its fields."""

    name: str
    axes: tuple[str, ...]
    kind: Kind | None = None
    why: str = ""
    cells: str = ""

    def constraint(self) -> Constraint:
        """The constraint, lifted from the engine's rules if it has no kind."""
        if self.kind is None:
            rule: Rule = next(rule for rule in RULES if rule.name == self.name)
            return Constraint(self.name, rule.kind, rule.why, self.axes, lambda cell: rule.broken(situation(cell)))
        forbids = parse_selector(self.cells) if self.cells else FORBIDS[self.name]
        return Constraint(self.name, self.kind, self.why, self.axes, forbids)


CONSTRAINTS: Final[tuple[Constraint, ...]] = (
    *(row.constraint() for row in _table("constraints.yaml", ConstraintRow)),
    *(few.constraint(name) for few in RESTRICTIONS for name in few.kept),
)


def explain(cell: Cell) -> tuple[Constraint, ...]:
    """The constraints that apply to a cell; cover, runner and report all use this function."""
    return tuple([constraint for constraint, values, forbids in _judges() if forbids(values(cell))])


@cache
def _judges() -> tuple[tuple[Constraint, ValuesOf, ForbidsValues], ...]:
    """Each constraint with its two functions: `explain` calls them hundreds of times for each of a million cells."""
    return tuple((each, each.values, each.forbids_values) for each in CONSTRAINTS)


def expect(cell: Cell) -> Expect:
    """The expected outcome of a cell. ConfigError if it is impossible or redundant."""
    return expectation(cell, explain(cell))


def expectation(cell: Cell, found: Sequence[Constraint]) -> Expect:
    """`expect` for a cell with the constraints `found`."""
    kinds = {constraint.kind: constraint for constraint in reversed(found)}
    for kind in ("impossible", "redundant"):
        if kind in kinds:
            raise ConfigError(f"cell {cell.id} is {kind} ({kinds[kind].name}): {kinds[kind].why}")
    return "refused" if "refused" in kinds else "rewritten" if "rewritten" in kinds else "runs"


def explain_text(which: str | Cell) -> str:
    """The text of `specmatrix explain` for a cell, an id or an assignment (`algorithm=eagle3 topk=4`).

    The constraints that apply, then the resolved configuration with its rewrites, and with its reasons and the gates
    that must pass for them.
    """
    cell = which if isinstance(which, Cell) else read_cell(which)
    lines = [cell.id, describe(cell.values.items()), *_verdict(cell)]
    try:
        resolved = resolve(asked(cell), zoo_facts(cell))
    except ConfigError as error:
        return "\n".join([*lines, f"engine error: {error}"])
    lines += [f"  {name}: {value}" for name, value in resolved.as_dict().items() if name not in ("reasons", "rewrites")]
    for r in resolved.reasons:
        gates = f" (guarded by the gates {', '.join(r.evidence)})" if r.evidence else ""
        lines.append(f"because {r.field} = {r.value}: {r.because}{gates}")
    lines += [f"rewritten {r.field}: {r.asked} -> {r.got}: {r.reason}" for r in resolved.rewrites]
    return "\n".join(lines)


def read_cell(text: str) -> Cell:
    """Parse an id or an assignment. ConfigError on anything else."""
    return Cell.of(parse_assignment(text)) if "=" in text else Cell.from_id(text.strip())


def _verdict(cell: Cell) -> list[str]:
    found = explain(cell)
    return [f"{c.kind} by {c.name}: {c.why}" for c in found] or ["runs"]


def tables_hash(limits: Sequence[Constraint] = ()) -> str:
    """12 hex digits over axes (names, values, tokens) and constraints (names, kinds, forbidden combinations).

    limits: a subject's, in addition to the constraints.
    """
    axes = [[a.name, a.scope, [[value.name, value.token] for value in a.values]] for a in AXES]
    rows = [[c.name, c.kind, list(c.axes), sorted(c.forbidden)] for c in (*CONSTRAINTS, *limits)]
    return hashlib.sha256(json.dumps([axes, rows]).encode()).hexdigest()[:12]
