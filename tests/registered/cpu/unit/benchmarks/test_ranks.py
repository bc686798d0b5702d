"""Ranks side by side: the table, its rows, and one run over gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from specmatrix.benchmarks.ranks import ON_CPU, DrawnShare, by_size, drawn_weights, markdown, sizes_of
from specmatrix.benchmarks.shapes import write_frame
from specmatrix.engine.device.collectives import Ranks
from specmatrix.engine.models.config import load_model_config
from specmatrix.engine.models.loader import load_target
from specmatrix.errors import ConfigError


@pytest.mark.nightly
def test_the_benchmark_runs_over_gloo_from_its_command_line(tmp_path):
    command = [sys.executable, "-m", "specmatrix.benchmarks.ranks", "--cpu", "--json", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record == json.loads((tmp_path / "ranks.json").read_text())
    assert (tmp_path / "ranks.md").read_text() == markdown(record) + "\n"
    found = [(row["kind"], row["batch"], row["ranks"]) for row in record["rows"]]
    assert found == [(kind, batch, ranks) for kind in ("decode", "eagle3") for batch in (1, 3) for ranks in (1, 2)]
    for row in record["rows"]:
        assert 0 < row["min_ms"] <= row["ms"] <= row["max_ms"] and row["repetitions"] == 2
        assert row["ranks"] > 1 or row["ratio"] == row["efficiency"] == 1


def test_ratios_are_taken_turn_by_turn_and_shared_by_the_ranks():
    one, four = by_size("decode", 32, {4: [0.001, 0.002, 0.002], 1: [0.004, 0.004, 0.006]})
    assert one.as_dict()["ratio"] == 1.0
    shown = four.as_dict()
    assert [shown[name] for name in ("ranks", "ms", "min_ms", "max_ms")] == [4, 2.0, 1.0, 2.0]
    assert [shown[name] for name in ("ratio", "min_ratio", "max_ratio", "efficiency")] == [3.0, 2.0, 4.0, 0.75]


def test_the_ranks_share_one_drawn_target(tmp_path):
    config = load_model_config(write_frame(tmp_path, ON_CPU.shape))
    cpu = torch.device("cpu")
    whole = DrawnShare({}, "whole", config, Ranks(), cpu)("model.layers.0.mlp.up_proj.weight", 56, 32)
    parts = [
        DrawnShare({}, "part", config, Ranks(n, 2), cpu)("model.layers.0.mlp.up_proj.weight", 28, 32) for n in (0, 1)
    ]
    assert torch.equal(torch.cat(parts), whole) and 0.015 < float(whole.float().std()) < 0.025
    other = DrawnShare({}, "whole", config, Ranks(), cpu)("model.layers.1.mlp.up_proj.weight", 56, 32)
    assert not torch.equal(other, whole)
    with drawn_weights():
        assert load_target(tmp_path, "cpu", torch.bfloat16).num_layers == 6
    with pytest.raises(ConfigError, match=r"tensor 'model\.embed_tokens\.weight' is missing"):
        load_target(tmp_path, "cpu", torch.bfloat16)


def test_only_numbers_of_ranks_that_there_are_gpus_for_run():
    assert sizes_of([], 1) == [1] and sizes_of([], 7) == [1, 2, 4] and sizes_of([8, 1], 8) == [1, 8]
    with pytest.raises(ConfigError, match=r"^benchmark 'ranks' cannot run 8 ranks here; allowed: 1, 2, 4$"):
        sizes_of([8], 4)
    with pytest.raises(ConfigError, match=r"^benchmark 'ranks' cannot run 3 ranks here; allowed: 1, 2, 4$"):
        sizes_of([3], 4)
    with pytest.raises(ConfigError, match=r"^benchmark 'ranks' needs a GPU but this machine has none; use --cpu"):
        sizes_of([], 0)
