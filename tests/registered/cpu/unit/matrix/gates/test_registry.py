"""The gates that apply to a subject, by what its profile claims and excludes."""

import pytest

from specmatrix.errors import ConfigError
from specmatrix.matrix.cover.selection import select
from specmatrix.matrix.gates.gate import FALSE_ALARMS
from specmatrix.matrix.gates.registry import GATES, applied_gates
from specmatrix.matrix.subjects.protocol import Capability, Profile

# For each threshold that is a false-alarm probability, the number of tests that its gate makes in a cell.
RANDOM = {
    "distribution": {"alpha": 2, "joint_alpha": 1},
    "rejection": {"alpha": 1},
    "accuracy": {"alpha": 2, "collapse": 1},
}
TOKENS = frozenset({Capability.TOKEN_IDS, Capability.LOGPROBS})


def test_every_gate_judges_the_reference_engine():
    assert applied_gates(Profile(frozenset({Capability.RESOLUTION}))) == (GATES, {})


def test_a_gate_that_does_not_apply_has_its_reason():
    lacks, excludes = {Capability.JOURNAL: "its pages are its own"}, {"accuracy": "it has no exam"}
    found = applied_gates(Profile(TOKENS, lacks, excludes))
    names = " ".join(gate.name for gate in found.gates)
    assert names == "claimed_capabilities oracle lossless grammar finish distribution"
    assert found.excluded["accuracy"] == "it has no exam"
    assert found.excluded["leaks"] == "the subject does not show work"
    assert found.excluded["ledger"] == "the subject does not show journal: its pages are its own"
    every = {"identities", *(gate.name for gate in GATES)}
    assert found.excluded.keys() == every - {gate.name for gate in found.gates}


def test_an_unknown_gate_is_refused():
    known = ", ".join(("claimed_capabilities", "oracle", "identities", *(gate.name for gate in GATES)))
    text = rf"^the profile excludes gate 'tokens', which is unknown; known are {known}$"
    with pytest.raises(ConfigError, match=text):
        applied_gates(Profile(TOKENS, excluded={"tokens": "why not"}))


@pytest.mark.parametrize(("tie_nats", "score_nats"), [(0.5, 0.5), (0.0, 1e-4)])
def test_a_foreign_engine_may_round_in_its_own_way(tie_nats, score_nats):
    profile = Profile(TOKENS, tie_nats=tie_nats)
    gates = {gate.name: gate for gate in applied_gates(profile).gates}
    assert gates["oracle"].thresholds["tie_nats"] == gates["lossless"].thresholds["past_tie_nats"] == tie_nats
    assert gates["lossless"].thresholds["score_nats"] == score_nats and gates["lossless"].oracle is None
    assert not gates["lossless"].sampled and gates["lossless"].is_oracle_tie == gates["oracle"].is_tie


def test_sampled_drafts_are_judged_by_rounds_or_by_their_number_alone():
    for shown in (Capability.ROUNDS, Capability.HISTOGRAM):
        assert {"acceptance", "rejection"} <= {gate.name for gate in applied_gates(Profile(TOKENS | {shown})).gates}


def test_texts_are_compared_where_there_are_no_token_ids():
    gates = {gate.name: gate for gate in applied_gates(Profile(frozenset())).gates}
    assert gates.keys() == {"claimed_capabilities", "text", "grammar"} and gates["text"].target_oracle is not None
    alone = applied_gates(Profile(frozenset(), excluded={"oracle": "its prompts are other tokens"}))
    assert next(gate for gate in alone.gates if gate.name == "text").target_oracle is None


@pytest.mark.parametrize("stage", list(FALSE_ALARMS))
def test_the_locked_cells_keep_to_the_budget_of_false_alarms(stage):
    """Whatever else a gate measures is exact on an engine without a defect."""
    cells, gates = select(stage), {gate.name: gate for gate in GATES}
    spent = sum(
        sum(gates[name].applies(cell) for cell in cells) * tests * gates[name].thresholds[limit]
        for name, rows in RANDOM.items()
        for limit, tests in rows.items()
    )
    assert 0 < spent <= FALSE_ALARMS[stage]
