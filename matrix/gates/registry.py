"""The gates, in evaluation order, and those that apply to a subject."""

from __future__ import annotations

from typing import Final, NamedTuple

from specmatrix.errors import ConfigError
from specmatrix.matrix.gates.acceptance import AcceptanceGate
from specmatrix.matrix.gates.accuracy import AccuracyGate
from specmatrix.matrix.gates.adaptive import AdaptiveGate
from specmatrix.matrix.gates.claimed_capabilities import ClaimedCapabilitiesGate
from specmatrix.matrix.gates.config import ConfigGate
from specmatrix.matrix.gates.distribution import DistributionGate
from specmatrix.matrix.gates.effective import EffectiveGate
from specmatrix.matrix.gates.finish import FinishGate
from specmatrix.matrix.gates.gate import Gate
from specmatrix.matrix.gates.identities import IdentitiesGate
from specmatrix.matrix.gates.leaks import LeaksGate
from specmatrix.matrix.gates.ledger import LedgerGate
from specmatrix.matrix.gates.lossless import LosslessGate
from specmatrix.matrix.gates.oracle import OracleGate
from specmatrix.matrix.gates.precision import PrecisionGate
from specmatrix.matrix.gates.ranks import RanksGate
from specmatrix.matrix.gates.resources import ResourcesGate
from specmatrix.matrix.gates.schedule import ScheduleGate
from specmatrix.matrix.gates.session import SessionGate
from specmatrix.matrix.gates.text import TextGate
from specmatrix.matrix.subjects.protocol import Capability, Profile

GATES: Final[tuple[Gate, ...]] = (
    ConfigGate(),
    EffectiveGate(),
    LedgerGate(),
    ScheduleGate(),
    LeaksGate(),
    ResourcesGate(),
    RanksGate(),
    SessionGate(),
    AdaptiveGate(),
    LosslessGate(),
    PrecisionGate(),
    FinishGate(),
    AcceptanceGate(),
    DistributionGate(),
    AccuracyGate(),
)


class Applied(NamedTuple):
    """The gates that judge a subject, and for each of the others one sentence on why it does not."""

    gates: tuple[Gate, ...]
    excluded: dict[str, str]


def applied_gates(profile: Profile) -> Applied:
    """All gates for the reference engine; for another subject those whose needs it claims and does not exclude, with
    `claimed_capabilities` and `oracle`, which proves its baseline. ConfigError on an unknown gate."""
    if Capability.RESOLUTION in profile.capabilities:
        return Applied(GATES, {})
    gates, excluded = [], {}
    every = _foreign(profile)
    for name in profile.excluded:
        if name not in (known := [gate.name for gate in every]):
            raise ConfigError(f"the profile excludes gate {name!r}, which is unknown; known are {', '.join(known)}")
    for gate in every:
        lacking = [capability for capability in Capability if capability in gate.needs - profile.capabilities]
        if gate.name in profile.excluded:
            excluded[gate.name] = profile.excluded[gate.name]
        elif lacking:
            first = next((capability for capability in lacking if capability in profile.cannot), lacking[0])
            why = f": {profile.cannot[first]}" if first in profile.cannot else ""
            excluded[gate.name] = f"the subject does not show {first}{why}"
        else:
            gates.append(gate)
    return Applied(tuple(gates), excluded)


def _foreign(profile: Profile) -> tuple[Gate, ...]:
    """Every gate, set for an engine that rounds in its own way and has none of the reference engine's internals."""
    oracle = OracleGate()
    oracle.thresholds = {**oracle.thresholds, "tie_nats": profile.tie_nats}
    lossless = LosslessGate(oracle=None, is_oracle_tie=oracle.is_tie)
    lossless.thresholds = {
        **lossless.thresholds,
        "score_nats": max(profile.tie_nats, lossless.thresholds["score_nats"]),
        "past_tie_nats": profile.tie_nats,
    }
    lossless.sampled = Capability.SAMPLED_IDENTITY in profile.capabilities
    own: dict[str, Gate] = {"lossless": lossless, "acceptance": AcceptanceGate(exact=False)}
    text = TextGate(target_oracle=None if "oracle" in profile.excluded else oracle)
    more: tuple[Gate, ...] = (IdentitiesGate(),)
    if Capability.TOKEN_IDS not in profile.capabilities:
        more = (*more, text)
    return (ClaimedCapabilitiesGate(), oracle, *more, *(own.get(gate.name, gate) for gate in GATES))
