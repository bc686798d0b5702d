"""The documentation's tables of algorithms, modes and gates agree with the traits, the axes and the gates."""

from __future__ import annotations

import re
from dataclasses import fields

from specmatrix.engine.core.draft.algorithms import ALGORITHMS, Traits
from specmatrix.matrix.cells.axes import axis
from specmatrix.matrix.gates.registry import GATES
from specmatrix.matrix.subjects.protocol import Answer
from tests.support.sources import source

WEIGHTS = {"none": "none", "checkpoint": "its own checkpoint", "bundled": "in the target's checkpoint"}
# Modes that only some algorithms have.
LIMITED = {
    "spec v2": lambda traits: traits.max_lag > 0,
    "adaptive steps": lambda traits: traits.adaptive,
    "depths by step times": lambda traits: traits.adaptive,
    "shortened rows": lambda traits: traits.drafts,
    "parallel drafting": lambda traits: traits.parallel,
    "convolved blocks": lambda traits: "DFlash2DraftModel" in traits.draft_architectures,
    "budget of drafts": lambda traits: traits.budgets,
    "Markov heads": lambda traits: traits.budgets,
    "confident rows": lambda traits: traits.confident,
    "mixed steps": lambda traits: not traits.reads_host,
    "rejection sampling": lambda traits: traits.drafts,
}
MODE_AXES = ("session", "adaptive", "acceptance", "verify", "drafting", "mixed_chunk", "spec_version", "tp")


def rows(page: str, head: str) -> list[dict[str, str]]:
    """The rows of the table of a page whose first line begins with these columns, by column."""
    first, _, *lines = source(page).partition(f"| {head} |")[1:][1].splitlines()
    columns = [*head.split(" | "), *filter(None, first.strip(" |").split(" | "))]
    cells = [line.strip("| ").split(" | ") for line in lines[: lines.index("")]]
    return [dict(zip(columns, row, strict=True)) for row in cells]


def shape(traits: Traits) -> str:
    if not traits.drafts:
        return "root only"
    if traits.block:
        return "chain, one block"
    return "chains" if traits.topology == "chain" else "trees of any shape" if traits.irregular else "chains and trees"


def test_the_page_describes_each_algorithm_by_its_traits():
    expected = [
        {
            "algorithm": traits.name,
            "drafts with": traits.summary,
            "shape": shape(traits),
            "weights": WEIGHTS[traits.draft_weights],
            "draft KV": "in the target's slots" if traits.own_kv else "none",
            "timings": "v1 and v2" if traits.max_lag else "v1",
            "adaptive steps": "yes" if traits.adaptive else "no",
        }
        for traits in ALGORITHMS
    ]
    assert rows("docs/engine.md", "algorithm | drafts with") == expected


def test_the_page_names_the_algorithms_of_each_mode():
    for row in rows("docs/engine.md", "mode | requested with"):
        runs = [traits for traits in ALGORITHMS if LIMITED.get(row["mode"], bool)(traits)]
        others = [traits.name for traits in ALGORITHMS if traits not in runs]
        names = ", ".join(traits.name for traits in runs)
        allowed = {names, f"all but {', '.join(others)}"} if others else {"all"}
        assert row["algorithms"] in allowed, row["mode"]


def test_the_modes_have_cells_and_gates_that_exist():
    modes = rows("docs/engine.md", "mode | requested with")
    shown: dict[str, set[str]] = {}
    for row in modes:
        first, *more = re.findall(r"`([^`]+)`", row["in cells"])
        name, value = first.split("=")
        shown.setdefault(name, set()).update((value, *more))
        assert set(row["gates"].split(", ")) <= {gate.name for gate in GATES}
    assert shown == {name: set(axis(name).names) - {axis(name).default} for name in MODE_AXES}


def test_the_page_says_what_each_gate_proves():
    gates = [row["gate"] for row in rows("docs/matrix.md", "gate | what it proves")]
    assert sorted(gates) == sorted(gate.name for gate in GATES)


def test_the_page_describes_every_field_of_an_answer_in_its_order():
    named = [name for row in rows("docs/subjects.md", "field | holds") for name in re.findall(r"`(\w+)`", row["field"])]
    assert set(named) == {field.name for field in fields(Answer)}
    required = [field.name for field in fields(Answer)][:8]
    assert named[:8] == required
