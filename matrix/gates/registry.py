"""The gates, in evaluation order."""

from __future__ import annotations

from typing import Final

from specmatrix.matrix.gates.acceptance import AcceptanceGate
from specmatrix.matrix.gates.accuracy import AccuracyGate
from specmatrix.matrix.gates.adaptive import AdaptiveGate
from specmatrix.matrix.gates.config import ConfigGate
from specmatrix.matrix.gates.distribution import DistributionGate
from specmatrix.matrix.gates.effective import EffectiveGate
from specmatrix.matrix.gates.finish import FinishGate
from specmatrix.matrix.gates.gate import Gate
from specmatrix.matrix.gates.ledger import LedgerGate
from specmatrix.matrix.gates.lossless import LosslessGate
from specmatrix.matrix.gates.ranks import RanksGate
from specmatrix.matrix.gates.session import SessionGate

GATES: Final[tuple[Gate, ...]] = (
    ConfigGate(),
    EffectiveGate(),
    LedgerGate(),
    RanksGate(),
    SessionGate(),
    AdaptiveGate(),
    LosslessGate(),
    FinishGate(),
    AcceptanceGate(),
    DistributionGate(),
    AccuracyGate(),
)
