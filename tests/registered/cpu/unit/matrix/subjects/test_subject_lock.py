"""The own cells of subjects: each can be run, and together they cover every pair of values that the subject can run."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.constraints import CONSTRAINTS, explain
from specmatrix.matrix.cover import lockfile
from specmatrix.matrix.cover.lockfile import LOCK_FILE, own_lock_file, read, stage_cells, subject_cells, write
from specmatrix.matrix.cover.selection import select
from specmatrix.matrix.subjects import subject_lock
from specmatrix.matrix.subjects.protocol import Capability, Profile, Subject, Unsupported
from specmatrix.matrix.subjects.registry import load_subject
from specmatrix.matrix.subjects.subject_lock import check_own, drawn_cells, extend_own, limited_subjects, rules_of
from specmatrix.matrix.subjects.translations import translated
from specmatrix.matrix.workloads.build import draws_apply
from specmatrix.matrix.workloads.prepared_cell import prepare

SUBJECTS = list(limited_subjects())
SMALL = load_subject("transformers-dynamic")


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Locks are read and written in their own folder."""
    place = tmp_path / "cells.lock"
    place.write_bytes(LOCK_FILE.read_bytes())
    monkeypatch.setattr(lockfile, "LOCK_FILE", place)
    monkeypatch.setattr(subject_lock, "LOCK_FILE", place)
    return tmp_path / f"{SMALL.name}.lock"


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_the_committed_lock_is_complete(subject: Subject):
    report = check_own(subject)
    assert report.path.name == f"{subject.name}.lock" and report.problems == ()
    assert report.pairs[0] == report.pairs[1] > 500 and report.cells["smoke"] <= 15 and report.cells["pr"] <= 110


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_limits_say_what_the_translation_does(subject: Subject):
    """A cell is unsupported exactly if a limit forbids it; so its own cells all run."""
    for cell in [*stage_cells("nightly"), *subject_cells("pr", subject.name)]:
        if all(rule.kind == "optional" for rule in explain(cell)):
            found = translated(subject, prepare(cell, workload=subject.requests, subject=subject.name))
            beyond = any(limit.forbids(cell) for limit in subject.limits())
            assert isinstance(found, Unsupported) == beyond, (cell.id, found)


@pytest.mark.nightly
def test_a_lock_is_made_from_nothing_and_not_changed_again(elsewhere):
    assert not elsewhere.exists() and extend_own(SMALL)[0] == 0
    assert check_own(SMALL).ok and extend_own(SMALL) == (0, 0)


def test_a_dropped_row_an_impossible_one_and_other_limits_are_noticed(elsewhere):
    elsewhere.write_bytes((LOCK_FILE.parent / elsewhere.name).read_bytes())
    lock = read(elsewhere)
    lock.cells["pr"] = [Cell.from_id("eagle3"), *lock.cells["pr"][3:-1]]
    lock.tables = "0" * 12
    write(lock, elsewhere)
    first, second, third, fourth = check_own(SMALL).problems
    assert first == "axes, constraints or limits changed since the lock was written; run `specmatrix lock --extend`"
    assert second == "eagle3: transformers has no EAGLE drafter"
    assert third.startswith("stage pr leaves ") and "combinations of 2 values uncovered: " in third
    assert fourth == "standalone.rules, whose draws are judged, is missing"


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_draws_are_judged_with_each_drafter(subject: Subject):
    """Without sampled identity no other gate sees which tokens were sampled."""
    drawn = drawn_cells(subject)
    ways = {"temperature", "topk_topp", "rules"} - (
        {"rules"} if subject.name.startswith(("vllm", "llamacpp", "openvino", "onnx", "mlx")) else set()
    )
    assert {cell.sampling for cell in drawn} == ways and all(map(draws_apply, drawn))
    able = {cell.algorithm for cell in subject_cells("pr", subject.name)}
    assert {cell.algorithm for cell in drawn} == able
    more = replace(subject.profile, capabilities=subject.profile.capabilities | {Capability.SAMPLED_IDENTITY})
    assert not drawn_cells(Judged(more))


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_optional_cells_are_locked_where_no_batch_makes_them_so(subject: Subject):
    optional = {rule for rule in CONSTRAINTS if rule.kind == "optional"}
    assert {rule.name for rule in optional} == {"few-rules-batch", "few-stops-batch", "few-windows-batch"}
    batches = not any(limit.axes == ("batch",) for limit in subject.limits())
    assert optional & {*rules_of(subject)} == (optional if batches else set())
    locked = [cell for cell in stage_cells("pr", own_lock_file(subject.name)) if cell.batch == "single"]
    for value in ("rules", "stops", "mistral"):
        assert any(value in cell for cell in locked) != batches


class Judged(Subject):
    """A subject without limits."""

    name = "judged"

    def __init__(self, profile: Profile) -> None:
        self.profile = profile


def test_a_subject_runs_its_own_cells_and_at_night_all_others_too():
    own, rules = stage_cells("pr", own_lock_file("vllm")), rules_of(load_subject("vllm"))
    assert select("pr", listed=partial(subject_cells, subject="vllm")) == own
    assert not any(rule.applies(cell) for cell in own for rule in rules)
    assert subject_cells("nightly", "vllm") == list(dict.fromkeys([*own, *stage_cells("nightly")]))
    assert own_lock_file("sglang") == own_lock_file("reference") == LOCK_FILE
