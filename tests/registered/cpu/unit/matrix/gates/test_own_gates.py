"""A plug-in's gate: what it is refused for, and what it raises."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Outcome, OwnGate, State
from specmatrix.matrix.gates.registry import OWN_GATES, all_gates, applied_gates, gate_names, register_gate
from specmatrix.matrix.run.runner import Runner
from specmatrix.matrix.subjects.protocol import Capability, Profile
from specmatrix.matrix.subjects.registry import load_subject


class Mine:
    """A gate that does what a test wants."""

    name = "mine"
    needs: frozenset[Capability] = frozenset({Capability.TOKEN_IDS})
    thresholds: Mapping[str, float] = {}

    def applies(self, cell):
        return True

    def judge(self, prepared, run, baseline):
        return Outcome("mine", State.PASS)


@pytest.fixture
def registered():
    register_gate(Mine())
    yield
    OWN_GATES.clear()


def changed(**parts: object):
    return type("Changed", (Mine,), {**parts})()


@pytest.mark.parametrize(
    ("gate", "sentence"),
    [
        (changed(name=None), "a gate must have a name, got None"),
        (changed(name="ledger"), "gate 'ledger' exists already; choose another name"),
        (changed(name="oracle"), "gate 'oracle' exists already"),
        (changed(judge=None), "gate 'mine' has no judge; it needs name, needs, thresholds, applies and judge"),
        (changed(needs=None), "gate 'mine' has no needs"),
        (Mine, "gate 'mine' has no applies"),
        (7, "a gate must have a name, got None"),
    ],
)
def test_a_gate_is_refused_in_one_sentence(gate, sentence):
    with pytest.raises(ConfigError) as caught:
        register_gate(gate)
    assert str(caught.value).startswith(sentence) and not OWN_GATES


def test_a_gate_judges_last_and_wherever_what_it_needs_is_shown(registered):
    assert all_gates()[-1].name == gate_names()[-1] == "mine"
    assert Runner(load_subject("reference"), 0).gates[-1].name == "mine"
    assert "mine" in [gate.name for gate in applied_gates(Profile(frozenset({Capability.TOKEN_IDS}))).gates]
    assert "mine" in applied_gates(Profile(frozenset())).excluded
    with pytest.raises(ConfigError, match=r"^gate 'mine' exists already"):
        register_gate(Mine())


def fails(*_: object):
    raise ValueError("a wire came loose")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"judge": fails}, "the gate raised ValueError: a wire came loose ("),
        ({"applies": fails}, "the gate raised ValueError: a wire came loose ("),
        ({"judge": lambda *_: None}, "the gate must return an Outcome under its name, got None"),
        ({"judge": lambda *_: Outcome("other", State.PASS)}, "the gate must return an Outcome under its name, got "),
    ],
)
def test_what_a_gate_raises_or_returns_instead_fails_the_cell(parts, message):
    gate = OwnGate(changed(**parts))
    assert gate.applies(Cell())
    run = SimpleNamespace()
    outcome = gate.judge(SimpleNamespace(cell=Cell()), run, run)
    assert outcome.state is State.FAIL and outcome.message.startswith(message)


def test_an_interrupt_in_a_gate_stays_one():
    def interrupted(*_: object):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        OwnGate(changed(judge=interrupted)).judge(SimpleNamespace(cell=Cell()), None, None)
