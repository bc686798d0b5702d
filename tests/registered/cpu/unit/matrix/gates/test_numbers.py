"""The numbers of every gate by name, which reports are read by."""

import re
from dataclasses import replace

import pytest

from specmatrix.matrix.gates.claimed_capabilities import ClaimedCapabilitiesGate
from specmatrix.matrix.gates.gate import Outcome, State
from specmatrix.matrix.gates.identities import IdentitiesGate
from specmatrix.matrix.gates.oracle import OracleGate
from specmatrix.matrix.gates.registry import GATES
from specmatrix.matrix.gates.resources import ResourcesGate

# Always there, and in some cells only.
TEXT = """\
claimed_capabilities: answers broken claims |
oracle: oracle_tokens tied_at ties wrong |
identities: faults rounds |
config: fields rewrites |
effective: differences keys required unseen workers |
ledger: leaked overwritten pages stamps verbs watched wrong_stamps |
schedule: budgets computed dropped evicted forwards needless overlapped peak_pages read retracted reused steps |
leaks: counts left sent |
session: apart attempts sessions |
adaptive: by_batch deviation down held observations replayed rounds slots up widths |
lossless: divergent first_divergence past_ties proving score_nats scored tied_at ties tokens | oracle_nats
  oracle_tokens prompt_nats rule_nats ruled_tokens scored_prompts
grammar: accepted begun changed complete ended_inside forbade illegal mixed rejected tokens unreadable |
precision: beyond far_draws routed sampled_rms score_rms scored tied_at tied_share ties tokens worst_drawn worst_nats
  |
finish: faults requests | abort length stop
acceptance: length rounds | by_context emitted left mixed naive_reach naive_rounds per_position per_round prompts
  questions ratio reference retracted same_texts series
rejection: due_per_position left p per_position q q_rounds rounds ties |
distribution: bins detectable draws joint_p logprob_gap outside p serial_p statistic variation |
accuracy: accuracy accuracy_flexible baseline baseline_flexible card_test_share lost lost_flexible n outcomes won
  won_flexible |
"""
NAMES = dict(line.split(": ", 1) for line in re.split(r"\n(?! )", TEXT.strip()))
CELLS = (
    "eagle3.s3.k4.n8.v2.p16.mixed_lengths.rules.stops",
    "eagle3.s3.v2.tight.pair.stream.abort_running",
    "eagle3.table.p64.gsm.temperature",
    "eagle.s3.k4.n8.v2.fast.pair.mixed",
    "eagle.tiers.v2.p64.ctx.pair.length",
    "ngram.v2.pair",
    "standalone.reject.pair.mixed",
    "eagle3.s3.v2.mixed_lengths.regex",
)


@pytest.fixture(scope="module")
def outcomes(measured):
    """By gate, its outcomes on the cells that it applies to. The gates of other subjects judge the reference too."""
    found = {}
    for name in CELLS:
        prepared, run, baseline = measured(name)
        for gate in (ClaimedCapabilitiesGate(), OracleGate(), IdentitiesGate(), *GATES):
            if gate.applies(prepared.cell) and not isinstance(gate, ResourcesGate):
                found.setdefault(gate.name, []).append(gate.judge(prepared, run, baseline))
    return found


class KeysRead(dict[str, int]):
    """Notes which of its keys are read with a default."""

    def __init__(self, items: dict[str, int]) -> None:
        super().__init__(items)
        self.read: set[str] = set()

    def get(self, key: str, default: int | None = None) -> int | None:
        self.read.add(key)
        return super().get(key, default)


@pytest.mark.parametrize("cell", [cell for cell in CELLS if "gsm" not in cell])
def test_a_counter_that_a_subject_does_not_report_counts_as_zero(measured, cell):
    prepared, run, baseline = measured(cell)
    found = set()
    for gate in (gate for gate in (ClaimedCapabilitiesGate(), IdentitiesGate(), *GATES) if gate.applies(prepared.cell)):
        for name, kept in (("evidence", None), ("readback", {"pages_watched", "pages_overwritten"})):
            reads = KeysRead(getattr(run, name))
            gate.judge(prepared, replace(run, **{name: reads}), baseline)
            for counter in reads.read if kept is None else reads.read & kept:
                absent = {key: value for key, value in reads.items() if key != counter}
                zero, none = (replace(run, **{name: each}) for each in ({**absent, counter: 0}, absent))
                same = gate.judge(prepared, zero, baseline) == gate.judge(prepared, none, baseline)
                assert same, (gate.name, counter)
                found.add(counter)
    assert found > {"decode.round", "stamp.checked", "stamp.wrong", "pages_overwritten"}


@pytest.mark.parametrize("cell", [cell for cell in CELLS if "gsm" not in cell])
def test_a_number_that_is_just_its_bound_passes(measured, cell):
    prepared, run, baseline = measured(cell)
    found = set()
    for gate in (ClaimedCapabilitiesGate(), OracleGate(), IdentitiesGate(), *GATES):
        names = [name for name in gate.thresholds if name in NAMES.get(gate.name, "").partition("|")[0].split()]
        for name in names if gate.applies(prepared.cell) else ():
            number = gate.judge(prepared, run, baseline).numbers[name]
            just = replace(gate, thresholds={**gate.thresholds, name: number})
            assert just.judge(prepared, run, baseline).state is State.PASS, (gate.name, name)
            found.add(name)
    assert found > {"divergent", "wrong_stamps"}


def test_every_gate_that_a_cpu_has_judges_here(outcomes):
    foreign = {"claimed_capabilities", "oracle", "identities"}
    assert set(outcomes) == set(NAMES) == {gate.name for gate in GATES} - {"ranks", "resources"} | foreign


@pytest.mark.parametrize("gate", NAMES)
def test_a_gate_has_its_numbers(outcomes, gate):
    always, sometimes = (set(names.split()) for names in NAMES[gate].split("|"))
    found = [set(outcome.numbers) for outcome in outcomes[gate]]
    assert {outcome.state for outcome in outcomes[gate]} == {State.PASS}
    assert (set.intersection(*found), set.union(*found)) == (always, always | sometimes)


@pytest.mark.parametrize("field", ["gate", "state", "numbers", "message", "accept"])
def test_an_outcome_that_no_report_can_hold_is_an_error(field):
    with pytest.raises(TypeError, match=rf"^{field} of an outcome is None; allowed: a "):
        Outcome(**{"gate": "mine", "state": State.FAIL, field: None})
