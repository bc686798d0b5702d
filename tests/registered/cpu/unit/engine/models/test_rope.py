"""Rotary frequencies against transformers, and the paired form against the rotate-half form."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import yarn_apply_mscale
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from specmatrix.engine.models.config_reader import ConfigReader
from specmatrix.engine.models.rope import RopeConfig, frequencies, pair_up, rotate, rotated, rotations
from specmatrix.errors import ConfigError

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 64}
ROWS = [
    {"rope_type": "default", "rope_theta": 10000.0},
    {"rope_type": "linear", "rope_theta": 300.0, "factor": 2.5},
    LLAMA3,
    LLAMA3 | {"original_max_position_embeddings": 64, "low_freq_factor": 2.0},
    YARN,
    YARN | {"beta_fast": 4, "beta_slow": 2, "truncate": False, "factor": 3.5},
    YARN | {"original_max_position_embeddings": 4096, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0},
]


def read(raw) -> RopeConfig:
    return RopeConfig.read(ConfigReader(raw, Path("config.json")))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["rope_type"])
@pytest.mark.parametrize("head_dim", [8, 24, 128])
def test_frequencies_match_transformers(row, head_dim):
    theirs = LlamaRotaryEmbedding(LlamaConfig(hidden_size=head_dim, num_attention_heads=1, rope_parameters=row))
    ours = frequencies(read({"rope_parameters": row}), head_dim)
    torch.testing.assert_close(ours, theirs.inv_freq, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"factor": 0.5},
        {"attention_factor": 1.25},
        {"mscale": 0.7},
        {"mscale": 0.7, "mscale_all_dim": 1.3},
        {"mscale": 1.0, "mscale_all_dim": 1.0},
    ],
)
def test_yarn_lengthens_pairs_as_transformers_does(changes):
    theirs = LlamaRotaryEmbedding(LlamaConfig(hidden_size=16, num_attention_heads=1, rope_parameters=YARN | changes))
    ours = read({"rope_parameters": YARN | changes})
    assert ours.attention_factor == pytest.approx(theirs.attention_scaling, rel=1e-6)
    assert ours.score_factor == pytest.approx(yarn_apply_mscale(YARN | changes, 1.0), rel=1e-6)
    rotation = rotations(ours, 16, 50, torch.device("cpu"))
    cos, sin = theirs(torch.zeros(1), torch.arange(50)[None])
    torch.testing.assert_close(torch.view_as_real(rotation), torch.stack((cos[0, :, :8], sin[0, :, :8]), -1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_rotated_copy_equals_rotation_in_place(dtype):
    rotation = rotations(RopeConfig(100.0), 6, 5, torch.device("cpu"))[:, None]
    wide = torch.randn(5, 31).to(dtype)
    part = wide[:, 12:24]
    copy = rotated(part, 6, rotation)
    rows = part.clone()
    rotate(rows, 2, 6, rotation)
    assert torch.equal(copy, rows.view(5, 2, 6))


def test_the_old_spelling_means_the_same():
    old = {"rope_theta": 500000.0, "rope_scaling": {**LLAMA3, "type": "llama3"}}
    del old["rope_scaling"]["rope_theta"], old["rope_scaling"]["rope_type"]
    assert read(old) == read({"rope_parameters": LLAMA3})
    assert read({"rope_theta": 5.0, "rope_scaling": None}) == RopeConfig(5.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_turning_pairs_equals_rotating_halves(dtype):
    """Scores of rotated queries and keys equal those of the rotate-half form that checkpoints are trained with."""
    torch.manual_seed(0)
    heads, d, tokens, width = 3, 8, 5, 16
    x, weight = torch.randn(tokens, width), torch.randn(heads * d, width)
    rotation = rotations(RopeConfig(100.0), d, 40, torch.device("cpu"))[7 : 7 + tokens]
    half = (x @ weight.T).view(1, tokens, heads, d).transpose(1, 2)
    angle = torch.arange(7, 7 + tokens)[:, None] * frequencies(RopeConfig(100.0), d)
    cos, sin = angle.cos().repeat(1, 2)[None], angle.sin().repeat(1, 2)[None]
    theirs, _ = apply_rotary_pos_emb(half, half, cos, sin)
    ours = torch.cat((x @ pair_up(weight, d).T, torch.full((tokens, d), 9.0)), 1).to(dtype)
    rotate(ours, heads, d, rotation[:, None])
    assert bool((ours[:, heads * d :] == 9.0).all())
    ours = ours[:, : heads * d].float().view(1, tokens, heads, d).transpose(1, 2)
    bound = 1e-4 if dtype is torch.float32 else 1.0
    torch.testing.assert_close(ours @ ours.mT, theirs @ theirs.mT, atol=bound, rtol=1e-5)


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        ({"rope_parameters": {"rope_type": "dynamic"}}, "rope_type 'dynamic' is not supported; allowed: default"),
        ({"rope_parameters": YARN | {"beta_fast": -1}}, "beta_fast must be a positive number for rope_type 'yarn'"),
        ({"rope_parameters": YARN | {"mscale": "big"}}, "mscale must be a number of at least 0 for rope_type 'yarn'"),
        ({"rope_parameters": YARN | {"truncate": 1}}, "truncate must be true or false for rope_type 'yarn', got 1"),
        ({"rope_scaling": {"type": "linear"}}, "factor must be a positive number for rope_type 'linear', got None"),
        ({"rope_theta": "big"}, "rope_theta must be a positive number for rope_type 'default', got 'big'"),
        ({"rope_parameters": LLAMA3 | {"low_freq_factor": 0}}, "low_freq_factor must be a positive number for"),
    ],
)
def test_refusals(raw, sentence):
    with pytest.raises(ConfigError, match=sentence):
        read(raw)
