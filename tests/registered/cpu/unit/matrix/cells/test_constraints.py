import random
from itertools import product

import pytest

from specmatrix.engine.core.config.defaults import DEFAULTS
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.engine.core.config.rules.table import RULES
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells import constraints
from specmatrix.matrix.cells.axes import AXES, START_AXES, axis
from specmatrix.matrix.cells.cell import Cell, zoo_facts
from specmatrix.matrix.gates.registry import GATES
from tests.support.refusals import refusal
from tests.support.tables import table

SHAPE = [name for name in START_AXES[: START_AXES.index("page_size")] if name not in ("tp", "verify", "drafting")]
ROOMS = ({}, {"page_size": "64", "prefix_cache": "off", "memory": "tight"})
MASKED = {"batch": "mixed_lengths", "grammar": "json"}
MIXED = {"mixed_chunk": "on", "prefill_chunk": "7", "spec_version": "v1", "batch": "mixed_lengths", "sampling": "mixed"}
DASHED = {"algorithm": "dflash"} | MASKED
STEPS = {"algorithm": "eagle3", "steps": "3"}
MIXES = tuple(MIXED | one for one in ({}, {"spec_version": "v2"}, {"model": "qwen35"}, {"algorithm": "eagle3"}, STEPS))
MIXES += MIXED | STEPS | {"topk": "4"}, MIXED | STEPS | {"grammar": "json"}
MIXES += (MIXED | {"session": "streaming", "finish": "length"},)
STATED = {"model": "qwen35", "batch": "pair"}
# The same of cells with checkpoints.
CHECKED = (STATED | {"algorithm": "eagle3", "sampling": "mixed"}, {"model": "qwen3next", "batch": "mixed_lengths"})
RANKED = product(axis("algorithm").names, axis("model").names, ("2", "4", "8"), axis("prefix_cache").names)
# Starts with an acceptance rule that the engine refuses, as cells that nothing else forbids.
REFUSED = [
    {"algorithm": name, "steps": steps, "topk": topk, "batch": "pair", "sampling": "mixed"}
    for name, steps, topk in (("none", "auto", "auto"), ("eagle3", "2", "4"), ("standalone", "5", "2"))
]
# The same of starts that verify a part of their drafts.
SHORT = [
    {"algorithm": "none", "batch": "pair", "verify": "room"},
    {"algorithm": "eagle3", "batch": "pair", "adaptive": "tiers", "verify": "room"},
    {"algorithm": "nextn", "model": "deepseek", "batch": "pair", "verify": "confident"},
    {"algorithm": "eagle3", "batch": "pair", "steps": "3", "topk": "4", "verify": "confident"},
    {"algorithm": "eagle3", "batch": "pair", "steps": "3", "verify": "confident"},
    {"batch": "pair", "state_interval": "16"},
    STATED | {"page_size": "16", "state_interval": "24"},
    {"algorithm": "ngram", "constrained_drafts": "on"} | MASKED,
    {"algorithm": "ngram"} | MIXED,
    MIXED | {"prefill_chunk": "off"},
    {"algorithm": "eagle3", "batch": "pair", "steps": "3", "topk": "4", "drafting": "parallel"},
    {"algorithm": "standalone", "batch": "pair", "drafting": "parallel"},
    {"algorithm": "dflash", "batch": "pair", "verify": "budget"},
]
# Starts that one set of constraints forbids are alike to the engine: so many of them are resolved, spread evenly.
ALIKE = 60


# What several ranks, and requests with logit rules or mixed stops, may run: one more value is the only fault.
SEVERAL = (
    {"batch": "pair", "session": "streaming", "finish": "length"},
    {"batch": "mixed_lengths"},
    {"algorithm": "eagle3", "batch": "pair"},
    {"algorithm": "eagle3", "batch": "pair", "steps": "3"},
    {"algorithm": "eagle3", "batch": "pair", "steps": "3", "topk": "4"},
    {"algorithm": "eagle3", "batch": "pair", "session": "streaming", "finish": "length"},
    {"algorithm": "eagle3", "batch": "mixed_lengths", "steps": "3"},
    {"algorithm": "eagle3", "batch": "mixed_lengths", "steps": "3", "topk": "4"},
)
# The same for Mistral's and hybrids' cells.
WINDOWS = tuple(
    {"prefix_cache": "off"} | beside
    for beside in (
        {"batch": "mixed_lengths"},
        {"batch": "pair", "finish": "length"},
        {"batch": "pair", "finish": "length", "session": "streaming"},
        {"algorithm": "nextn", "batch": "pair", "sampling": "mixed"},
        *({"algorithm": name, "batch": "pair"} for name in ("none", "standalone", "ngram")),
    )
)
# The same for cells whose drafts are drawn.
DRAWN = (
    {"algorithm": "none", "sampling": "mixed", "batch": "pair"},
    *(
        {"algorithm": "eagle3", "sampling": "mixed"} | beside
        for beside in (
            {"batch": "mixed_lengths"},
            {"batch": "mixed_lengths", "steps": "5"},
            {"batch": "pair", "finish": "length"},
        )
    ),
)
# The same for DFLASH2's cells.
BLOCKS = tuple(
    {"algorithm": "dflash", "batch": "pair"} | beside
    for beside in ({}, {"finish": "length"}, {"batch": "mixed_lengths", "sampling": "mixed"})
)


# The same for DSPARK's cells.
SPARKS = tuple(
    {"algorithm": "dspark", "batch": "pair"} | beside
    for beside in (
        {},
        {"sampling": "mixed"},
        {"finish": "length"},
        {"session": "streaming", "finish": "length"},
        {"batch": "mixed_lengths"},
    )
)
# The same for depths by step times.
PRICED = tuple(
    {"algorithm": "eagle3", "batch": "mixed_lengths", "finish": "length"} | beside
    for beside in ({}, {"session": "streaming"})
)


def named(name: str) -> constraints.Constraint:
    return next(constraint for constraint in constraints.CONSTRAINTS if constraint.name == name)


@pytest.mark.parametrize("constraint", constraints.CONSTRAINTS, ids=lambda c: c.name)
def test_every_constraint_forbids_a_cell_alone(constraint):
    rows = [dict(zip(constraint.axes, values, strict=True)) for values in constraint.forbidden]
    alone = [
        Cell(**(beside | row))
        for row in rows
        for beside in (
            {},
            STATED,
            MASKED,
            DASHED,
            *MIXES,
            *CHECKED,
            *SEVERAL,
            *WINDOWS,
            *DRAWN,
            *BLOCKS,
            *SPARKS,
            *PRICED,
        )
        if {row.get("tp", "1"), row.get("acceptance", "match"), row.get("verify", "whole")} - {"1", "match", "whole"}
        or not beside
        or constraint.name.startswith(("few-", "interval-", "constrained-", "mixed-", "parallel-", "router-"))
    ]
    assert any(constraints.explain(cell) == (constraint,) for cell in alone)


@pytest.mark.parametrize("constraint", constraints.CONSTRAINTS, ids=lambda c: c.name)
def test_a_constraint_reads_only_its_declared_axes(constraint):
    source = random.Random(constraint.name)
    for _ in range(400):
        cell = Cell(*(source.choice(axis.names) for axis in AXES))
        assert constraint.forbids(cell) == constraint.applies(cell)


@pytest.fixture(scope="module", params=[4, pytest.param(1, marks=pytest.mark.nightly)], ids=["fourth", "all"])
def starts(request: pytest.FixtureRequest) -> dict[tuple[constraints.Constraint, ...], list[Cell]]:
    """Engine starts by the constraint that forbids them: all that run, and representatives of the others. Of the
    product, a random fourth outside nightly runs."""
    room, part = random.Random(2), random.Random(3)
    shapes = product(*(axis(name).names for name in SHAPE))
    shapes = (shape for shape in shapes if part.random() * request.param < 1)
    cells = [Cell(**dict(zip(SHAPE, shape, strict=True)), **room.choice(ROOMS)) for shape in shapes]
    cells += [Cell(*names, prefix_cache=cache, batch="pair") for *names, cache in RANKED]
    cells += [Cell(**one) for one in SHORT]
    cells += [Cell(acceptance=rule, **one) for rule in axis("acceptance").names[1:] for one in REFUSED]
    found: dict[tuple[constraints.Constraint, ...], list[Cell]] = {}
    for cell in cells:
        found.setdefault(constraints.explain(cell), []).append(cell)
    return {rules: alike if not rules else alike[:: -(-len(alike) // ALIKE)] for rules, alike in found.items()}


def test_the_engine_treats_every_start_as_the_matrix_expects(starts):
    outcomes = set()
    for found, alike in starts.items():
        kinds = {constraint.kind for constraint in found} - {"redundant"}
        if "impossible" in kinds:
            continue  # what the engine does with them is no cell's expectation
        for cell in alike:
            try:
                resolved = resolve(cell.config(), zoo_facts(cell))
                outcome = "rewritten" if resolved.rewrites else "runs"
                wanted = "rewritten" if "rewritten" in kinds else "runs"
                assert "refused" not in kinds and outcome == wanted, cell.id
            except ConfigError:
                outcome = "refused"
                assert "refused" in kinds, cell.id
            outcomes.add(outcome)
    assert outcomes == {"runs", "rewritten", "refused"}


@pytest.mark.parametrize(
    "constraint", [c for c in constraints.CONSTRAINTS if c.kind == "refused"], ids=lambda c: c.name
)
def test_the_engine_refuses_with_the_sentence_of_the_lifted_rule(constraint, starts):
    rule = next(rule for rule in RULES if rule.name == constraint.name)
    for cell in starts[(constraint,)]:
        assert refusal(resolve, cell.config(), zoo_facts(cell)) == rule.message(constraints.situation(cell))


@pytest.mark.parametrize(("names", "cells"), table(__file__).items())
def test_explain_names_every_constraint_that_applies(names, cells):
    for text in cells.split():
        found = [constraint.name for constraint in constraints.explain(Cell.from_id(text))]
        assert " ".join(found or ["nothing"]) == names, text


@pytest.mark.parametrize(
    ("text", "expected"),
    [("eagle3.s3.k4.n8", "runs"), ("eagle3.s3.n8", "rewritten"), ("none.s3", "refused"), ("none.v2.sync", "refused")],
)
def test_expect(text, expected):
    assert constraints.expect(Cell.from_id(text)) == expected


def test_what_is_no_cell_has_no_expectation():
    text = "cell none.tight is redundant (alone-under-pressure): a single request is never retracted"
    assert refusal(constraints.expect, Cell.from_id("none.tight")) == text
    assert refusal(constraints.expect, Cell.from_id("none.gsm.length")).startswith(
        "cell none.gsm.length is impossible (gsm-cut-short)"
    )


def test_explaining_a_cell_that_runs_gives_values_and_reasons():
    lines = constraints.explain_text("algorithm=eagle3 steps=3 topk=4").splitlines()
    assert (lines[0], lines[2]) == ("eagle3.s3.k4", "runs")
    assert "  num_draft_tokens: 8" in lines
    version = "because spec_version = v1: trees (topk > 1) default to v1; set spec_version v2 to overlap them"
    assert f"{version} (guarded by the gates lossless, ledger, effective)" in lines
    assert "because device = cpu: no GPU is visible" in lines
    lines = constraints.explain_text("standalone.s1.stream").splitlines()
    assert {"  enable_streaming_session: True", "  strict_memory: 1", "  kv_stamps: True"} <= set(lines)


@pytest.mark.parametrize(
    ("text", "rule", "end"),
    [
        (
            "eagle3.s3.n8",
            "rewritten by chain-width: a chain verifies its root and one token per step",
            "rewritten speculative_num_draft_tokens: 8 -> 4: a chain (topk 1) of 3 steps verifies 4 tokens",
        ),
        (
            Cell.from_id("none.v2.sync"),
            "refused by v2-needs-overlap: v2 is overlap scheduling",
            "engine error: spec_version v2 cannot run with disable_overlap_schedule; "
            "remove one of them or set spec_version v1",
        ),
    ],
)
def test_explaining_another_cell_gives_what_is_rewritten_or_the_engines_sentence(text, rule, end):
    assert rule in constraints.explain_text(text) and constraints.explain_text(text).endswith(end)


def test_the_gates_that_hold_a_default_judge_cells():
    named = {gate for row in DEFAULTS for gate in row.evidence}
    assert named and named <= {gate.name for gate in GATES}


def test_read_cell_takes_ids_and_assignments():
    assert constraints.read_cell("eagle3.k4") == constraints.read_cell("algorithm=eagle3 topk=4")
    assert refusal(constraints.read_cell, "medusa").startswith("cell id 'medusa' has an unknown part 'medusa'")


def test_the_tables_hash_sees_a_value_and_a_constraint(monkeypatch):
    before = constraints.tables_hash()
    monkeypatch.setattr(constraints, "CONSTRAINTS", constraints.CONSTRAINTS[1:])
    fewer = constraints.tables_hash()
    monkeypatch.setattr(constraints, "AXES", AXES[1:])
    assert len({before, fewer, constraints.tables_hash()}) == 3
