import random
from itertools import product

import pytest

from specmatrix.engine.core.config.defaults import DEFAULTS
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.engine.core.config.rules.table import RULES
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells import constraints
from specmatrix.matrix.cells.axes import AXES, START_AXES, axis
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.constraints import (
    CONSTRAINTS,
    Constraint,
    expect,
    explain,
    explain_text,
    read_cell,
    situation,
    tables_hash,
)
from specmatrix.matrix.cells.model_facts import zoo_facts
from specmatrix.matrix.gates.registry import GATES

SHAPE = [name for name in START_AXES[: START_AXES.index("page_size")] if name != "tp"]
ROOMS = ({}, {"page_size": "64", "prefix_cache": "off", "memory": "tight"})
RANKED = product(axis("algorithm").names, axis("model").names, ("2", "4", "8"), axis("prefix_cache").names)
# Starts that one set of constraints forbids are alike to the engine: so many of them are resolved, spread evenly.
ALIKE = 60


# What several ranks, and requests with logit rules or mixed stops, may run: one more value is the only fault.
SEVERAL = (
    {"batch": "pair", "session": "streaming", "finish": "length"},
    {"batch": "mixed_lengths"},
    {"algorithm": "eagle3", "batch": "pair"},
    {"algorithm": "eagle3", "batch": "pair", "steps": "3"},
    {"algorithm": "eagle3", "batch": "pair", "steps": "3", "topk": "4"},
)
# The same for Mistral's cells.
WINDOWS = tuple(
    {"prefix_cache": "off"} | beside
    for beside in (
        {"batch": "mixed_lengths"},
        *({"algorithm": name, "batch": "pair"} for name in ("none", "standalone", "ngram")),
    )
)


def named(name: str) -> Constraint:
    return next(constraint for constraint in CONSTRAINTS if constraint.name == name)


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=lambda c: c.name)
def test_every_constraint_forbids_a_cell_alone(constraint):
    rows = [dict(zip(constraint.axes, values, strict=True)) for values in constraint.forbidden]
    alone = [
        Cell(**(beside | row))
        for row in rows
        for beside in ({}, *SEVERAL, *WINDOWS)
        if row.get("tp", "1") != "1" or not beside or constraint.name.startswith("few-")
    ]
    assert any(explain(cell) == (constraint,) for cell in alone)


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=lambda c: c.name)
def test_a_constraint_reads_only_its_declared_axes(constraint):
    source = random.Random(constraint.name)
    for _ in range(400):
        cell = Cell(*(source.choice(axis.names) for axis in AXES))
        assert constraint.forbids(cell) == constraint.applies(cell)


@pytest.fixture(scope="module")
def starts() -> dict[tuple[Constraint, ...], list[Cell]]:
    """Engine starts by the constraint that forbids them: all that run, and representatives of the others."""
    room = random.Random(2)
    shapes = product(*(axis(name).names for name in SHAPE))
    cells = [Cell(**dict(zip(SHAPE, shape, strict=True)), **room.choice(ROOMS)) for shape in shapes]
    cells += [Cell(*names, prefix_cache=cache, batch="pair") for *names, cache in RANKED]
    found: dict[tuple[Constraint, ...], list[Cell]] = {}
    for cell in cells:
        found.setdefault(explain(cell), []).append(cell)
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


@pytest.mark.parametrize("constraint", [c for c in CONSTRAINTS if c.kind == "refused"], ids=lambda c: c.name)
def test_the_engine_refuses_with_the_sentence_of_the_lifted_rule(constraint, starts):
    rule = next(rule for rule in RULES if rule.name == constraint.name)
    for cell in starts[(constraint,)]:
        with pytest.raises(ConfigError) as caught:
            resolve(cell.config(), zoo_facts(cell))
        assert str(caught.value) == rule.message(situation(cell))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("eagle3.s3.k4.n8", []),
        ("eagle3.s3.k2.n4", ["equal-widths"]),
        ("eagle3.s3.k1.n4", []),
        ("eagle3.s3.n8", ["chain-width"]),
        ("eagle3.s1.k2.n4", ["tree-too-wide"]),
        ("eagle3.k4", ["steps-auto-alone"]),
        ("none.s3", ["nothing-to-draft"]),
        ("none.v2.sync", ["v2-needs-overlap"]),
        ("none.v1.sync", ["v1-without-overlap"]),
        ("none.tight", ["alone-under-pressure"]),
        ("none.session_retract.pair.stream.length", []),
        ("none.session_retract.stream.length", ["session_retract-for-turns"]),
        ("none.session_retract.pair.length", ["session_retract-for-turns"]),
        ("none.session_retract.pair.stream", ["session_retract-for-turns"]),
        ("none.ctx.pair.branch.length", []),
        ("none.ctx.pair", ["context-out-of-reach"]),
        ("none.ctx.mixed_lengths.length", ["context-out-of-reach"]),
        ("none.ctx.tight.pair.length", ["context-out-of-reach"]),
        ("none.tp2.ctx.pair.length", ["few-ranks-context"]),
        ("none.tp2.pair.branch", []),
        ("none.m4.pair", ["slots-unfilled"]),
        ("none.mixed", ["mixed-alone"]),
        ("none.burst.abort_queued", ["queue-empty"]),
        ("none.m4.burst.abort_queued", []),
        ("none.gsm.length", ["gsm-cut-short"]),
        ("none.tight.gsm", ["gsm-under-pressure"]),
        ("none.s3.tight.mixed", ["nothing-to-draft", "alone-under-pressure", "mixed-alone"]),
        ("nextn.deepseek.s2", []),
        ("eagle3.tiers.s2", []),
        ("eagle3.tiers.s5", ["steps-no-candidate"]),
        ("eagle3.table.ramp.length", []),
        ("eagle3.s2.table", ["steps-no-candidate", "table-of-one-drafter"]),
        ("eagle.table", ["table-of-one-drafter"]),
        ("eagle3.flat", ["adaptive-config-flat"]),
        ("eagle.s3.flat", ["steps-no-candidate", "adaptive-config-flat"]),
        ("eagle3.s3.k4.n8.tiers", ["adaptive-unsupported"]),
        ("eagle3.s3.k4.tiers", ["adaptive-unsupported"]),
        ("eagle3.k4.tiers", ["steps-auto-alone", "adaptive-unsupported"]),
        ("standalone.tiers", ["adaptive-unsupported"]),
        ("ngram.tiers", ["adaptive-unsupported"]),
        ("dflash.tiers", ["adaptive-unsupported"]),
        ("none.tiers", ["nothing-to-draft"]),
        ("eagle3.k1.tiers", ["chain-of-its-own-width"]),
        ("nextn", ["nothing-bundled"]),
        ("nextn.qwen3", ["nothing-bundled", "window-uncached"]),
        ("eagle3.qwen3.nocache", []),
        ("eagle.qwen3.nocache", ["no-draft-trained"]),
        ("standalone.deepseek", ["no-draft-trained"]),
    ],
)
def test_explain_names_every_constraint_that_applies(text, names):
    assert [constraint.name for constraint in explain(Cell.from_id(text))] == names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("eagle3.s3.k4.n8", "runs"),
        ("eagle3.s3.n8", "rewritten"),
        ("none.s3", "refused"),
        ("eagle3.s3.n8.v2.sync", "refused"),
    ],
)
def test_expect(text, expected):
    assert expect(Cell.from_id(text)) == expected


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("none.tight", "cell none.tight is redundant (alone-under-pressure): a single request is never retracted"),
        (
            "none.gsm.length",
            "cell none.gsm.length is impossible (gsm-cut-short): a truncated or aborted answer cannot be graded",
        ),
    ],
)
def test_what_is_no_cell_has_no_expectation(text, sentence):
    with pytest.raises(ConfigError) as caught:
        expect(Cell.from_id(text))
    assert str(caught.value) == sentence


def test_explaining_a_cell_that_runs_gives_values_and_reasons():
    lines = explain_text("algorithm=eagle3 steps=3 topk=4").splitlines()
    assert lines[0] == "eagle3.s3.k4"
    assert lines[2] == "runs"
    assert "  num_draft_tokens: 8" in lines
    version = "because spec_version = v1: trees (topk > 1) default to v1; set spec_version v2 to overlap them"
    assert f"{version} (guarded by the gates lossless, ledger, effective)" in lines
    assert "because device = cpu: no GPU is visible" in lines


def test_the_gates_that_hold_a_default_judge_cells():
    named = {gate for row in DEFAULTS for gate in row.evidence}
    assert named and named <= {gate.name for gate in GATES}


def test_explaining_a_cell_shows_the_configuration_that_a_run_has():
    lines = explain_text("standalone.s1.stream").splitlines()
    assert {"  enable_streaming_session: True", "  strict_memory: 1", "  kv_stamps: True"} <= set(lines)


def test_explaining_a_rewritten_cell_gives_requested_and_resolved():
    text = explain_text("eagle3.s3.n8")
    assert "rewritten by chain-width: a chain verifies its root and one token per step" in text
    assert text.endswith(
        "rewritten speculative_num_draft_tokens: 8 -> 4: a chain (topk 1) of 3 steps verifies 4 tokens"
    )


def test_explaining_a_refused_cell_gives_the_engines_sentence():
    text = explain_text(Cell.from_id("none.v2.sync"))
    assert "refused by v2-needs-overlap: v2 is overlap scheduling" in text
    assert text.endswith(
        "engine error: spec_version v2 cannot run with disable_overlap_schedule; "
        "remove one of them or set spec_version v1"
    )


def test_read_cell_takes_ids_and_assignments():
    assert read_cell("eagle3.k4") == read_cell("algorithm=eagle3 topk=4")
    with pytest.raises(ConfigError, match="cell id 'medusa' has an unknown part 'medusa'"):
        read_cell("medusa")


def test_the_tables_hash_sees_a_value_and_a_constraint(monkeypatch):
    before = tables_hash()
    monkeypatch.setattr(constraints, "CONSTRAINTS", CONSTRAINTS[1:])
    fewer = tables_hash()
    monkeypatch.setattr(constraints, "AXES", AXES[1:])
    assert len({before, fewer, tables_hash()}) == 3
