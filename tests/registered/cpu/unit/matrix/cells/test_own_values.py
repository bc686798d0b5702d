"""Values that a plug-in adds to the axes: what they are refused for, what cells they have, and what gates take them
for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from specmatrix.engine.core.draft.algorithms import Topology, Traits, forget_traits, register_traits
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.axes import INDEX, NAMES, OWN_VALUES, axis
from specmatrix.matrix.cells.cell import DRAFTS, GPUS, MEANINGS, RANKS, SECONDS, TOKENS, Cell
from specmatrix.matrix.cells.constraints import LEFT_OUT, explain
from specmatrix.matrix.cells.own_values import add_algorithms, register_value
from specmatrix.matrix.cover.lock import own_cells
from specmatrix.matrix.cover.lockfile import STAGES, stage_cells
from specmatrix.matrix.cover.selection import select
from specmatrix.matrix.gates.session import has_session_baseline
from specmatrix.matrix.run.plugins import load_plugins
from specmatrix.matrix.workloads.prepared_cell import prepare
from tests.support.tables import table


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Forgets the values that a test registers."""
    yield
    for name, value in [*OWN_VALUES]:
        row, place = axis(name), INDEX[name]
        row.values[:] = [one for one in row.values if one.name != value]
        del OWN_VALUES[name, value], MEANINGS[TOKENS[place][value]]
        for names in (TOKENS, SECONDS, GPUS, RANKS):
            del names[place][value]


@pytest.mark.parametrize(
    ("given", "options", "sentence"),
    [
        *table(__file__)["refused"],
        (("page_size", "8", "p8"), {"requests": tuple}, "value '8' of axis page_size: a start axis takes config, not "),
    ],
)
def test_a_value_is_refused_in_one_sentence(given, options, sentence):
    with pytest.raises(ConfigError) as caught:
        register_value(*given, **options)
    assert str(caught.value).startswith(sentence)


def test_a_size_is_configured_by_its_number_and_anything_else_by_its_fields():
    register_value("page_size", "8", "p8")
    register_value("context", "long", "long", config={"context_length": 300})
    cell = Cell.from_id("none.p8.long.pair")
    assert (cell.page_size, cell.id, Cell.of({"page_size": "8"}).id) == ("8", "none.p8.long.pair", "none.p8")
    assert (cell.config().page_size, cell.config().context_length) == (8, 300)
    assert cell.as_like == cell and [*cell.own_values] == ["page_size", "context"]


def test_requests_are_made_from_those_of_the_value_that_gates_take_them_for():
    register_value(
        "sampling", "cold", "cold", like="temperature", requests=lambda all_: [replace(one, top_k=2) for one in all_]
    )
    prepared, like = prepare(Cell.from_id("none.pair.cold")), prepare(Cell.from_id("none.pair.temperature"))
    assert prepared.requests == tuple(replace(one, top_k=2) for one in like.requests)
    assert prepared.as_like.cell == like.cell and prepared.as_like.requests == prepared.requests


@pytest.mark.parametrize(("strength", "stage"), [*enumerate(STAGES)])
def test_a_stage_shows_a_value_with_all_that_its_cells_have(strength, stage):
    register_value("page_size", "8", "p8")
    known = stage_cells(stage)
    found, mine = own_cells(stage, known), {cell for cell in select(stage) if cell.page_size == "8"}
    assert mine == set(found) and not any(rule.kind in LEFT_OUT for cell in found for rule in explain(cell))
    every = {cell._replace(page_size="8") for cell in known}
    may = [cell for cell in every if not any(rule.kind in LEFT_OUT for rule in explain(cell))]
    for places in product(range(len(NAMES)), repeat=strength):
        wanted, shown = ({tuple(cell[at] for at in places) for cell in cells} for cells in (may, found))
        assert shown == wanted
    assert len(found) < len(may) / 2


def test_cells_of_two_own_values_are_among_those_of_a_stage():
    register_value("page_size", "8", "p8")
    register_value("slots", "8", "m8")
    assert any((cell.page_size, cell.slots) == ("8", "8") for cell in own_cells("pr", stage_cells("pr")))


@pytest.mark.parametrize(
    ("name", "takes", "model", "draft"),  # results of constraints are kept by name
    [
        ("first", ("ForCausalLMEagle3",), "qwen3", "qwen3-mini-eagle3"),
        ("second", ("ForCausalLM",), "llama", "llama-mini-standalone"),
        ("third", ("ForCausalLMEagle",), "qwen3", None),
        ("fourth", (), "llama", None),
    ],
)
def test_an_algorithm_is_a_value_with_the_drafts_that_its_traits_take(name, takes, model, draft):
    weights = {"draft_weights": "checkpoint", "draft_architectures": takes} if takes else {}
    register_traits(Traits(name.upper(), "a test's own", Topology.TREE, **weights), None)
    try:
        add_algorithms()
        cell = Cell.of({"algorithm": name, "model": model})
        assert (cell.draft, cell.config().speculative_algorithm) == (draft, name.upper())
        kinds = {rule.kind for rule in explain(cell)}
        assert ("impossible" in kinds) == (bool(takes) and draft is None)
        fixed = Cell.from_id(f"{name}.s3.pair")
        assert has_session_baseline(fixed) and not has_session_baseline(fixed._replace(sampling="temperature"))
    finally:
        forget_traits(name.upper())
        for pair in [pair for pair in DRAFTS if pair[1] == name]:
            del DRAFTS[pair]


def test_without_a_plug_in_no_axis_changes():
    before = {name: axis(name).names for name in NAMES}
    load_plugins()
    assert {name: axis(name).names for name in NAMES} == before
