"""The gates, in evaluation order, and those that apply to a subject."""

from __future__ import annotations

from types import MethodType
from typing import Final, NamedTuple

from specmatrix.errors import ConfigError, shown
from specmatrix.matrix.gates.acceptance import AcceptanceGate
from specmatrix.matrix.gates.accuracy import AccuracyGate
from specmatrix.matrix.gates.adaptive import AdaptiveGate
from specmatrix.matrix.gates.chances import ChancesGate
from specmatrix.matrix.gates.claimed_capabilities import ClaimedCapabilitiesGate
from specmatrix.matrix.gates.config import ConfigGate, EffectiveGate
from specmatrix.matrix.gates.distribution import DistributionGate
from specmatrix.matrix.gates.finish import FinishGate
from specmatrix.matrix.gates.gate import Gate, OwnGate
from specmatrix.matrix.gates.grammar import GrammarGate
from specmatrix.matrix.gates.identities import IdentitiesGate
from specmatrix.matrix.gates.leaks import LeaksGate
from specmatrix.matrix.gates.ledger import LedgerGate
from specmatrix.matrix.gates.lossless import LosslessGate
from specmatrix.matrix.gates.oracle import OracleGate
from specmatrix.matrix.gates.precision import PrecisionGate
from specmatrix.matrix.gates.ranks import RanksGate
from specmatrix.matrix.gates.rejection import RejectionGate
from specmatrix.matrix.gates.resources import ResourcesGate
from specmatrix.matrix.gates.schedule import ScheduleGate
from specmatrix.matrix.gates.session import SessionGate
from specmatrix.matrix.gates.text import TextGate
from specmatrix.matrix.subjects.protocol import Capability, Profile
from specmatrix.reports.schema import GATES as NAMES
from specmatrix.user_file import DEFINED

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
    GrammarGate(),
    PrecisionGate(),
    FinishGate(),
    AcceptanceGate(),
    RejectionGate(),
    DistributionGate(),
    AccuracyGate(),
)


# Gates of plug-ins, in order of registration.
OWN_GATES: Final[list[OwnGate]] = []


def register_gate(gate: Gate) -> None:
    """Add a gate, evaluated after this package's. ConfigError if its name is taken or it lacks a part of the
    protocol."""
    name = getattr(gate, "name", None)
    if not isinstance(name, str) or not name:
        raise ConfigError(f"a gate must have a name, got {shown(name)}")
    parts = {"needs": frozenset, "thresholds": dict, "applies": MethodType, "judge": MethodType}
    for part, kind in parts.items():
        if not isinstance(getattr(gate, part, None), kind):
            raise ConfigError(f"gate {shown(name)} has no {part}; it needs name, needs, thresholds, applies and judge")
    if name in gate_names():
        raise ConfigError(f"gate {shown(name)} exists already; choose another name")
    OWN_GATES.append(OwnGate(gate))
    DEFINED.append(f"gate {name}")


def all_gates() -> tuple[Gate, ...]:
    """The gates that judge the reference engine."""
    return (*GATES, *OWN_GATES)


def own_names() -> tuple[str, ...]:
    """The names of plug-ins' gates."""
    return tuple(gate.name for gate in OWN_GATES)


def gate_names() -> tuple[str, ...]:
    """The names of all gates of any subject."""
    return (*NAMES, *own_names())


class Applied(NamedTuple):
    """The gates that judge a subject, and for each of the others one sentence on why it does not."""

    gates: tuple[Gate, ...]
    excluded: dict[str, str]


def applied_gates(profile: Profile) -> Applied:
    """All gates for the reference engine; for another subject those whose needs it claims and does not exclude, with
    `claimed_capabilities` and `oracle`, which proves its baseline. ConfigError on an unknown gate."""
    if Capability.RESOLUTION in profile.capabilities:
        return Applied(all_gates(), {})
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
    """Every gate, configured for an engine with different rounding and without the reference engine's internals."""
    oracle = OracleGate()
    oracle.thresholds = {**oracle.thresholds, "tie_nats": profile.tie_nats}
    lossless = LosslessGate(oracle=None, is_oracle_tie=oracle.is_tie)
    lossless.thresholds = {
        **lossless.thresholds,
        "score_nats": max(profile.tie_nats, lossless.thresholds["score_nats"]),
        "past_tie_nats": profile.tie_nats,
    }
    lossless.sampled = Capability.SAMPLED_IDENTITY in profile.capabilities
    shown = Capability.ROUNDS if Capability.ROUNDS in profile.capabilities else Capability.HISTOGRAM
    acceptance = AcceptanceGate(needs=frozenset({shown}), exact=False, replays=Capability.ORDER in profile.capabilities)
    distribution = DistributionGate(accepts=profile.rule_of)
    if Capability.LOGPROBS not in profile.capabilities:
        distribution.needs = frozenset({Capability.TOKEN_IDS})
    rejection = ChancesGate(needs=frozenset({Capability.TOKEN_IDS, shown}), accepts=profile.rule_of)
    own: dict[str, Gate] = {gate.name: gate for gate in (lossless, acceptance, distribution, rejection)}
    text = TextGate(target_oracle=None if "oracle" in profile.excluded else oracle)
    more: tuple[Gate, ...] = (IdentitiesGate(),)
    if Capability.TOKEN_IDS not in profile.capabilities:
        more = (*more, text)
    return (ClaimedCapabilitiesGate(), oracle, *more, *(own.get(gate.name, gate) for gate in all_gates()))
