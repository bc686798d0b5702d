"""The catalogue fits today's sources: a fault that no longer applies is an error, not a skip."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from specmatrix.matrix.cover.lockfile import stage_cells
from specmatrix.matrix.faults.fault import catalogue, sources
from specmatrix.matrix.faults.kill_matrix import DETECTORS
from specmatrix.matrix.faults.plant import planted

# The classes of defects that this engine can have; the others need recurrent state.
CLASSES = {
    "page alignment",
    "sliding-window pool / eviction",
    "NaN / uninitialised memory",
    "stale or un-restored state",
    "sampling distribution",
    "logit rules",
    "structured output",
    "CUDA-graph capture, padding, buffer size",
    "stride / indexing",
    "config parsing, weights, draft/target mix-up",
    "KV leak / over-allocation",
    "off-by-one length or KV position",
    "silent fallback / ignored parameter",
    "stop / EOS / length-cap handling",
    "logprob",
    "tokenizer",
    "RNG / seed",
    "prefix-cache semantics under EAGLE",
    "race / missing stream order",
    "metric misreport",
    "the test itself",
    "TP/DP rank divergence or idle-rank asymmetry",
    "wrong or flipped default",
}


@pytest.fixture(scope="module")
def locked() -> list:
    return stage_cells("pr")


def test_there_are_enough_faults_with_ids_of_their_own():
    ids = [fault.id for fault in catalogue()]
    assert len(ids) == len(set(ids))
    assert len([fault for fault in catalogue() if fault.runs_on("cpu")]) >= 60
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", name) for name in ids)


def test_every_class_that_this_engine_can_have_is_there():
    assert {fault.category for fault in catalogue()} == CLASSES


def test_every_gate_is_expected_of_some_fault():
    assert {gate for fault in catalogue() for gate in fault.expected} == set(DETECTORS)


@pytest.fixture(scope="module")
def texts() -> Iterator[dict[Path, str]]:
    with planted(None) as tree:
        yield sources(tree)


def code(text: str) -> str:
    """A source text without comments and white space."""
    return re.sub(r"#.*|\s", "", text)


def test_every_fault_applies_and_leaves_valid_python(texts: dict[Path, str]):
    for fault in catalogue():
        changes = fault.patch.changes(texts)
        assert changes, fault.id
        for text in changes.values():
            ast.parse(text)
        for edit in fault.patch.edits:
            assert code(edit.old) != code(edit.new), fault.id


def test_every_fault_names_its_origin_and_the_gates_that_must_detect_it(locked: list):
    for fault in catalogue():
        assert re.search(r"#\d+|^rule: |arXiv \d{4}\.\d{5}", fault.origin), fault.id
        assert fault.expected and set(fault.expected) <= set(DETECTORS), fault.id
        assert 1 <= len(fault.chosen(locked)) + len(fault.operations) <= 8, fault.id
        assert fault.why, fault.id
