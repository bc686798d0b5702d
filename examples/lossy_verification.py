"""A subject that loses on purpose, and says how much: transformers with an `assistant_ensemble_weight`.

    specmatrix run --subject ./examples/lossy_verification.py:Ensemble --stage product --cells standalone.topk_topp

With a weight w it accepts and draws by w p + (1 - w) q in place of p (arXiv 2604.07622): more drafts are accepted, and
tokens that the assistant prefers come more often. LOSS bounds the total variation between its outputs of three tokens
after the prompt of the draws and those of p. It is 0.10 to 0.16 for the zoo's drafts, by their laws.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.subjects.limits import AxisLimit
from specmatrix.matrix.subjects.protocol import AcceptanceRule
from specmatrix.matrix.subjects.transformers.subject import TransformersSubject

WEIGHT = 0.9
LOSS = 0.2
MIXED = "tokens are those of a mixture of target and assistant, greedy ones too"


class Ensemble(TransformersSubject):
    """Assisted generation that verifies by a mixture of the target's and the assistant's distributions."""

    name = "transformers-ensemble"
    weight = WEIGHT
    profile = replace(
        TransformersSubject.profile,
        excluded={"lossless": MIXED, "acceptance": MIXED},
        acceptance={"": AcceptanceRule("lossy", f"assistant_ensemble_weight={WEIGHT}", LOSS)},
    )

    def limits(self) -> tuple[AxisLimit, ...]:
        other = AxisLimit(MIXED, ("algorithm",), lambda cell: cell.algorithm not in ("none", "standalone"))
        return (*super().limits(), other)

    def _flags(self, cell: Cell) -> dict[str, Any]:
        more = {"assistant_ensemble_weight": self.weight} if cell.algorithm == "standalone" else {}
        return super()._flags(cell) | more
