"""Compares the result of a comparison with the expected one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from specmatrix.matrix.incidents.incident import Expected, PromotedDefault
from specmatrix.reports.compare import CellChange, ChangeState, Comparison
from specmatrix.reports.compare.cell_state import LostPairs, RewriteChange


def differences(expected: Expected, found: Comparison) -> tuple[str, ...]:
    """How the comparison differs from the expected one, a sentence for each difference."""
    return (*_exact(expected, found), *_missing(expected, found))


def _exact(expected: Expected, found: Comparison) -> Iterator[str]:
    factor = " x ".join(found.factors[0].conditions) if found.factors else ""
    for what, word, said in (("verdict", expected.verdict, found.verdict), ("factor", expected.factor, factor)):
        if word != said:
            yield f"the {what} is {said or 'missing'}, expected {word or 'none'}"
    cells = {change.id: cell_text(change) for change in found.changes if change.state is not ChangeState.SAME}
    rewrites = {_known(f"{row.status} {row.signature}", expected.rewrites): _accepted(row) for row in found.rewrites}
    for wanted, got in ((expected.cells, cells), (expected.rewrites, rewrites)):
        for name in sorted(wanted.keys() | got.keys()):
            if wanted.get(name) != got.get(name):
                yield f"{name} is {got.get(name, 'unchanged')}, expected {wanted.get(name, 'no change')}"


def _missing(expected: Expected, found: Comparison) -> Iterator[str]:
    left = {f"{row.axis}={row.value} x {axis}={value}" for row in found.left for axis, value in row.values}
    parts = (
        ("the lost pairs", expected.lost_pairs, _pairs(found.coverage.lost)),
        ("the gained pairs", expected.gained_pairs, _pairs(found.coverage.gained)),
        ("the pairs that no default reaches any longer", expected.by_default, left),
    )
    for where, wanted, got in parts:
        for pair in wanted:
            if pair not in got:
                yield f"{pair} is not among {where}"
    why = "\n".join(change.why for change in found.changes)
    for part in expected.says:
        if part not in why:
            yield f"no cell says {part!r}"


def wrong_promotions(promotions: Sequence[tuple[PromotedDefault, tuple[str, ...]]]) -> Iterator[str]:
    """As `differences`, for the reasons against each promoted default."""
    for each, reasons in promotions:
        if reasons != each.refused:
            got, wanted = ("; ".join(texts) or "accepted" for texts in (reasons, each.refused))
            yield f"the promotion is {got}, expected {wanted}"


def cell_text(change: CellChange) -> str:
    """`REGRESSED: lossless, ledger`, or the state alone where no gate turned red."""
    red = [gate.gate for gate in change.gates if gate.head != "PASS"]
    return f"{change.state}: {', '.join(red)}" if red else str(change.state)


def _known(signature: str, patterns: Iterable[str]) -> str:
    """The pattern that a signature matches, or itself."""
    return next((pattern for pattern in patterns if fnmatchcase(signature, pattern)), signature)


def _accepted(row: RewriteChange) -> str:
    if row.red:
        return "red"
    return "acknowledged" if row.excused else "declared" if row.status in ("new", "moved") else "noted"


def _pairs(rows: Sequence[LostPairs]) -> set[str]:
    return {" x ".join(f"{axis}={value}" for axis, value in pair) for row in rows for pair in row.pairs}
