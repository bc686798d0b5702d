"""The gates, in the order in which they judge."""

from __future__ import annotations

from typing import Final

from matrix.gates.acceptance import AcceptanceGate
from matrix.gates.accuracy import AccuracyGate
from matrix.gates.adaptive import AdaptiveGate
from matrix.gates.config import ConfigGate
from matrix.gates.distribution import DistributionGate
from matrix.gates.effective import EffectiveGate
from matrix.gates.finish import FinishGate
from matrix.gates.gate import Gate
from matrix.gates.ledger import LedgerGate
from matrix.gates.lossless import LosslessGate
from matrix.gates.ranks import RanksGate
from matrix.gates.session import SessionGate

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
