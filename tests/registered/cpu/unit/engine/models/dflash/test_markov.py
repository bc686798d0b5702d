"""DSPARK's heads against those that the zoo trains, their configurations, and their engines."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.models.dflash.model import DSpark
from specmatrix.engine.models.loader import load_dflash, load_target
from specmatrix.errors import ConfigError
from tests.support.block_drafts import block_net, read, shapes_of
from tests.support.drawn_drafts import DRAFTS, PROMPTS, SAMPLED, start
from tests.support.random_drafts import random_weights, save
from tests.support.tables import table

H, R, V, GAMMA = 48, 12, 97, 5
CONFIG: dict[str, Any] = {
    "architectures": ["DSparkDraftModel"], "vocab_size": V, "hidden_size": H, "intermediate_size": 56,
    "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10, "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0, "max_position_embeddings": 256, "block_size": GAMMA, "mask_token_id": 96,
    "target_layer_ids": [0, 2], "markov_rank": R, "enable_confidence_head": True,
}  # fmt: skip
KINDS = ("vanilla", "gated", "rnn")
STEEP = json.dumps({
    "sample_batch_tokens": [*range(1, 30)], "sample_steps_per_sec": [1 / (1 + 0.3 * n) for n in range(1, 30)],
})  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    def build(kind: str = "vanilla", drop: str = "", **changes: object):
        config = CONFIG | {"markov_head_type": kind} | changes
        shapes = shapes_of(block_net(CONFIG | {"markov_head_type": kind}))
        seeing = R * config.get("confidence_head_with_markov", True)
        weights = random_weights(shapes | {"confidence_head.proj.weight": (1, H + seeing)}, 7)
        return save(tmp_path / "draft", config, {k: w for k, w in weights.items() if k != drop})

    return build


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_heads_are_their_formulas(llama_folder, folder, kind, deterministic):
    target = load_target(llama_folder(), "cpu", torch.float32, deterministic)
    made = folder(kind)
    net = read(block_net(CONFIG | {"markov_head_type": kind}, target.embedding, target.head.t()), made)
    model = load_dflash(made, target)
    assert isinstance(model, DSpark) and model.first == 0
    hidden = torch.randn(3, GAMMA, H, generator=torch.Generator().manual_seed(2))
    base, tokens = model.logits(hidden), torch.randint(0, V, (3, GAMMA), generator=torch.Generator().manual_seed(3))
    state, ours = model.block_head.begin(base, hidden), []
    for column in range(GAMMA):
        logits, state = model.block_head.step(state, column, tokens[:, column])
        ours.append(logits)
    theirs, raw = net.corrected(hidden, tokens), net.sure(hidden, tokens)
    assert (torch.stack(ours, 1) - theirs).abs().max() < 1e-5 * theirs.abs().max()
    assert (model.confidences(hidden, tokens) - torch.sigmoid(raw)).abs().max() < 1e-5
    heat = torch.tensor([1.0, 2.0, 0.5, 4.0, 1.0])
    model.calibrate(heat)
    assert (model.confidences(hidden[:, :3], tokens[:, :3]) - torch.sigmoid(raw / heat)[:, :3]).abs().max() < 1e-5
    with pytest.raises(ConfigError, match="sts_path has 2 temperatures, but the draft's block has 5 drafts; it needs"):
        model.calibrate(heat[:2])


@torch.inference_mode()
def test_other_layouts(llama_folder, folder):
    target = load_target(llama_folder(), "cpu", torch.float32)
    nested = {name: CONFIG[name] for name in ("mask_token_id", "target_layer_ids", "markov_rank")}
    model = load_dflash(
        folder(
            **dict.fromkeys(nested), dspark_config=nested, sample_from_anchor=False, confidence_head_with_markov=False
        ),
        target,
    )
    assert model.first == 1 and model.config.draft.block_size == GAMMA + 1 and model.mask_token == 96
    assert model.confidences(torch.zeros(1, 2, H), torch.zeros(1, 2).long()).shape == (1, 2)


@pytest.mark.parametrize(("changes", "sentence"), table(__file__)["refusals"])
def test_refusals(llama_folder, folder, changes, sentence):
    target = load_target(llama_folder(), "cpu", torch.float32)
    kind = "vanilla"
    with pytest.raises(ConfigError, match=sentence):
        load_dflash(folder(kind, **changes), target)


@pytest.mark.parametrize("name", [name for name in DRAFTS if name.startswith("DSPARK")])
@pytest.mark.parametrize("timing", ["v1", "v2"])
def test_lengths_change_no_text_and_a_budget_cuts_drafts(name, timing):
    greedy = [SamplingParams(40, ignore_eos=True)] * 3
    every, drafted = [], []
    budgets = [{}] + [
        {"speculative_dspark_verify_mode": "cap-accept", "speculative_dspark_sps_table_path": table}
        for table in ('{"sample_batch_tokens": [1], "sample_steps_per_sec": [9]}', STEEP)
    ]
    for budget in budgets:
        llm = start(name, "match", spec_version=timing, **budget)
        every.append([out.output_ids for params in (greedy, SAMPLED) for out in llm.generate(PROMPTS, params)])
        drafted.append(llm.counters["spec.drafted"])
        assert llm.counters["spec.accepted"] > 20 and llm.readback()["num_draft_tokens"] == 7 - (name != "DSPARK rnn")
        assert (llm.counters["spec.budgeted"] > 0) == (budget is budgets[2])
    assert every[0] == every[1] == every[2] and drafted[2] < 0.8 * drafted[0]


@pytest.mark.parametrize("rule", ["reject", "block"])
def test_greedy_rows_beside_drawn_ones_keep_their_text_under_a_budget(rule):
    params = [SamplingParams(32, ignore_eos=True), *SAMPLED[1:]]
    budget = {"speculative_dspark_verify_mode": "cap-accept", "speculative_dspark_sps_table_path": STEEP}
    plain = start("DSPARK", "match").generate(PROMPTS, params)[0].output_ids
    llm = start("DSPARK", rule, **budget)
    assert llm.generate(PROMPTS, params)[0].output_ids == plain and llm.counters["spec.budgeted"]


def test_files_are_read_and_wrong_ones_refused(tmp_path):
    table, heat = tmp_path / "costs.json", tmp_path / "heat.json"
    table.write_text(STEEP)
    heat.write_text('{"temperatures": [0.01, 0.01, 0.01, 0.01, 0.01]}')
    files = {"speculative_dspark_verify_mode": "cap-accept", "speculative_dspark_sps_table_path": str(table)}
    llm = start("DSPARK", "match", **files, speculative_dspark_confidence_sts_path=str(heat))
    sharp = llm.generate(PROMPTS, SamplingParams(24, ignore_eos=True))
    assert llm.readback()["speculative_dspark_verify_mode"] == "cap-accept" and sharp
    model = llm.loop.executor.drafter.model
    assert model.block_head.temperatures.tolist() == pytest.approx([0.01] * 5)
    heat.write_text('{"temperatures": [1]}')
    with pytest.raises(ConfigError, match="has 1 temperatures, but the draft's block has 5 drafts"):
        start("DSPARK", "match", **files, speculative_dspark_confidence_sts_path=str(heat))
    missing = {"speculative_dspark_verify_mode": "cap-accept", "speculative_dspark_sps_table_path": str(tmp_path / "x")}
    with pytest.raises(ConfigError, match=r"speculative_dspark_sps_table_path .*x cannot be read \(No such file"):
        start("DSPARK", "match", **missing)
