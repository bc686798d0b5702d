"""Drafts unlike their target: other weights, precision, context and vocabulary.

Answers stay, and each round accepts what naive drafts of the same files accept, which share no code with the engine.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.acceptance import combination
from specmatrix.matrix.gates.finish import FinishGate
from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.gates.lossless import LosslessGate
from specmatrix.matrix.gates.schedule import ScheduleGate
from specmatrix.matrix.oracles.naive_rounds import NaiveCheck, naive_check
from specmatrix.matrix.run.requests import run_requests
from specmatrix.matrix.subjects.in_process import ReferenceSubject
from specmatrix.matrix.subjects.protocol import Run
from specmatrix.matrix.workloads.prepared_cell import PreparedCell, prepare
from specmatrix.matrix.zoo import oracle
from specmatrix.matrix.zoo.registry import CHECKPOINTS, resolve_path

CELLS = (
    "standalone.s3.v2.p4.pair",
    "eagle.s3.k4.n8.v2.p4.pair",
    "eagle3.s3.k4.n8.v2.p16.pair",
    "dflash.v2.pair",
    "nextn.deepseek.s2.v2.pair",
)
Weights = dict[str, Tensor]
Change = Callable[[Weights, dict[str, Any]], None]


# Prediction layers lie behind a target's four layers; these are copies of its tables there.
BUNDLED = ("model.layers.4.", "model.layers.5.")
COPIES = (".embed_tokens.weight", ".shared_head.head.weight")


def drafts_own(cell: str, weights: Weights) -> list[str]:
    """The floating-point weights of a cell's draft."""
    within = cell.startswith("nextn")
    names = [name for name in weights if not within or (name.startswith(BUNDLED) and not name.endswith(COPIES))]
    return [name for name in names if weights[name].is_floating_point()]


def garbage(cell: str) -> Change:
    """Weights of the same size that were never trained."""

    def change(weights: Weights, config: dict[str, Any]) -> None:
        generator = torch.Generator().manual_seed(3)
        for name in drafts_own(cell, weights):
            old = weights[name].float()
            weights[name] = (torch.randn(old.shape, generator=generator) * old.std() + old.mean()).to(old.dtype)

    return change


def in_bf16(cell: str) -> Change:
    """A file of another precision than the target's."""

    def change(weights: Weights, config: dict[str, Any]) -> None:
        for name in drafts_own(cell, weights):
            weights[name] = weights[name].to(torch.bfloat16)
        config["torch_dtype"] = config["dtype"] = "bfloat16"

    return change


def of_few_positions(cell: str) -> Change:
    """A draft whose context is shorter than the texts."""

    def change(weights: Weights, config: dict[str, Any]) -> None:
        config["max_position_embeddings"] = 48

    return change


def variant(tmp_path: Path, name: str, change: Change) -> Callable[[str], Path]:
    """Where the zoo's models are found if one of them is changed: a folder with all of them."""
    for folder in CHECKPOINTS.iterdir():
        (tmp_path / folder.name).symlink_to(folder)
    (tmp_path / name).unlink()
    shutil.copytree(CHECKPOINTS / name, tmp_path / name)
    weights = load_file(tmp_path / name / "model.safetensors")
    config = json.loads((tmp_path / name / "config.json").read_text())
    change(weights, config)
    save_file({key: value.contiguous() for key, value in weights.items()}, tmp_path / name / "model.safetensors")
    (tmp_path / name / "config.json").write_text(json.dumps(config))
    return lambda asked: tmp_path / asked if (tmp_path / asked).exists() else resolve_path(asked)


def served(cell: str, locate: Callable[[str], Path] = resolve_path) -> tuple[PreparedCell, Run, Run]:
    torch.set_num_threads(1)
    prepared, subject = prepare(Cell.from_id(cell)), ReferenceSubject(locate)
    claims = subject.profile.capabilities
    run = run_requests(subject.start_engine(prepared.configuration), prepared.requests, claims)
    plain = ReferenceSubject().start_engine(prepared.baseline.configuration)
    return prepared, run, run_requests(plain, prepared.baseline.requests, claims)


def followed(prepared: PreparedCell, run: Run) -> list[NaiveCheck]:
    """Each request's rounds against the naive drafts of `oracle_drafts.CHECKPOINTS`."""
    drafts = oracle.Drafts(prepared.cell.target)
    shape = combination(prepared.cell, run.resolved)[1:]
    return [
        naive_check(
            prepared.cell.target, prepared.cell.algorithm, [shape] * len(answer.accept_lengths), answer.prompt_ids,
            answer.output_ids, answer.accept_lengths, drafts=lambda target: drafts,
        )
        for answer in run.answers
    ]  # fmt: skip


def per_round(run: Run) -> float:
    lengths = [length for answer in run.answers for length in answer.accept_lengths]
    return sum(lengths) / len(lengths)


@pytest.mark.parametrize(
    ("cell", "kind"),
    [(cell, kind) for cell in CELLS for kind in (garbage, in_bf16)] + [(cell, of_few_positions) for cell in CELLS[:-1]],
)
def test_rounds_are_those_of_naive_drafts_of_the_same_files(cell, kind, tmp_path, monkeypatch):
    name = prepare(Cell.from_id(cell)).cell.draft or "deepseek-mini"
    locate = variant(tmp_path, name, kind(cell))
    prepared, run, baseline = served(cell, locate)
    for gate in (LosslessGate(), FinishGate(), ScheduleGate()):
        outcome = gate.judge(prepared, run, baseline)
        assert outcome.state is State.PASS, f"{gate.name}: {outcome.message}"
    monkeypatch.setattr(oracle, "CHECKPOINTS", tmp_path)
    found = followed(prepared, run)
    assert [check.place for check in found] == [None] * len(found)
    assert sum(check.rounds for check in found) > 8
    usual = per_round(served(cell)[1])
    assert (per_round(run) < 0.75 * usual) == (kind is garbage)
    monkeypatch.undo()
    if kind is garbage:
        assert any(check.place is not None for check in followed(prepared, run)), "the zoo's drafts accept others"
