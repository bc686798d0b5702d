"""The memory that an engine will allocate is predicted: the sum against real engines, and the error sentences."""

from __future__ import annotations

import gc
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from specmatrix.engine import memory_budget as budget
from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.device.collectives import Ranks
from specmatrix.engine.device.cuda_graphs import GIB
from specmatrix.engine.memory_budget import LATER, Need, fits, group_memory, host_memory, models_of, needs
from specmatrix.engine.models.loader import load_eagle, load_eagle3, load_standalone, load_target
from specmatrix.errors import ConfigError
from specmatrix.kernels.gated_delta import scratch
from tests.support.engines import CHECKPOINTS, RUNS, engine

LLAMA = str(CHECKPOINTS / "llama-mini")


def tables(llm: LLM) -> int:
    made = [group.table for group in llm.loop.executor.kv.groups]
    return sum(table.slots.nbytes + (0 if table.writers is None else table.writers.nbytes) for table in made)


def pools(llm: LLM) -> int:
    """Pages and their stamps."""
    made = [pool for group in llm.loop.executor.kv.groups for pool in group.pools]
    whole = sum(pool.data.nbytes + (0 if pool.stamps is None else pool.stamps.nbytes) for pool in made)
    return whole - drafts(llm)


def drafts(llm: LLM) -> int:
    """Spare slots."""
    return sum(pool.data[:, pool.spare].nbytes for pool in llm.loop.executor.kv.full.pools)


def judged(llm: LLM) -> list[Need]:
    return needs(llm.resolved, models_of(llm.resolved, Path), 1)


@pytest.mark.parametrize(("algorithm", "topk"), RUNS)
@pytest.mark.parametrize("stamps", [False, True])
def test_the_sum_equals_an_engines_allocations(algorithm, topk, stamps):
    llm = engine(algorithm, topk, kv_stamps=stamps, max_running_requests=37, dtype="float32")
    executor = llm.loop.executor
    kv, rows, rotary, *weights = judged(llm)
    assert kv.device == pools(llm)
    carried = sum(buffer.nbytes for buffer in executor.relay.carried.values())
    assert tables(llm) + 0.7 * carried <= rows.device - drafts(llm) <= 1.1 * tables(llm) + 2 * carried
    draft = getattr(executor.drafter, "model", None)
    models = [executor.target, *([] if draft is None else [getattr(draft, "model", draft)])]
    assert rotary.device == sum(model.rotations.nbytes for model in models)
    assert sum(need.device for need in weights) >= executor.target.vocab_size * executor.target.hidden_size * 4


def storages() -> dict[int, int]:
    """Address and bytes of each tensor of numbers."""
    gc.collect()
    found = [one.untyped_storage() for one in gc.get_objects() if type(one) is Tensor and one.is_floating_point()]
    return {one.data_ptr(): one.nbytes() for one in found}


@pytest.mark.parametrize(
    ("target", "algorithm", "load"),
    [
        ("llama", "EAGLE3", load_eagle3),  # with an embedding of its own
        ("qwen3", "EAGLE3", load_eagle3),  # with a normalised copy of the target's
        ("llama", "EAGLE", load_eagle),  # with the target's
        ("qwen3", "STANDALONE", load_standalone),  # whose head is tied: a copy in another layout
        ("qwen35", "EAGLE3", load_eagle3),  # whose target's is
    ],
)
def test_weights_are_budgeted_as_they_are_held(target, algorithm, load):
    folders = [str(CHECKPOINTS / f"{target}-mini{end}") for end in ("", f"-{algorithm.lower()}")]
    config = EngineConfig(folders[0], speculative_algorithm=algorithm, speculative_draft_model_path=folders[1])
    resolved = LLM(replace(config, dtype="bfloat16", disable_cuda_graph=True)).resolved
    before = storages()
    models = [load_target(folders[0], "cpu", torch.bfloat16)]
    models.append(load(folders[1], models[0]))
    held = sum(size for address, size in storages().items() if address not in before)
    budgeted = sum(need.device for need in needs(resolved, models_of(resolved, Path), 1) if need.what == "weights")
    assert 0.99 < held / budgeted <= 1.005


@pytest.mark.parametrize("name", ["qwen3next-mini", "qwen35-mini"])
def test_a_rank_has_room_for_the_states_of_its_own_heads(name):
    llm = LLM(EngineConfig(str(CHECKPOINTS / name), kv_stamps=True, max_running_requests=3))
    pool, models = llm.loop.executor.kv.states.pool, models_of(llm.resolved, Path)
    found = [{need.what: need.device for need in needs(llm.resolved, models, ranks)} for ranks in (1, 2)]
    held = pool.windows.nbytes + pool.states.nbytes
    assert found[0]["recurrent states"] == held + pool.stamps.nbytes
    assert found[1]["recurrent states"] == held // 2 + pool.stamps.nbytes
    part = load_target(CHECKPOINTS / name, "cpu", pool.windows.dtype, ranks=Ranks(1, 2)).state
    assert part.bytes(4) * pool.windows.shape[1] == held // 2


@pytest.mark.parametrize(("chunk", "interval", "running"), [(2048, 256, 64), (96, 0, 3), (96, 256, 200), (None, 64, 7)])
def test_the_fast_delta_rule_has_room_for_the_widest_prefill(chunk, interval, running):
    """Of n rows, the widest is as wide as the others leave of a step's tokens, or ends at a checkpoint."""
    resolved = replace(
        LLM(EngineConfig(str(CHECKPOINTS / "qwen3next-mini"), dtype="bfloat16")).resolved,
        **{
            "device": "cuda",
            "enable_deterministic_inference": False,
            "context_length": 128,
            "state_interval": interval,
        },
        **{"chunked_prefill_size": chunk, "max_running_requests": running},
    )
    models, limit = models_of(resolved, Path), chunk or 128 * running
    widest = [(n, min(limit - n + 1, 128, interval or 128)) for n in range(1, min(running, limit) + 1)]
    most = max(n * wide for n, wide in widest)
    (need,) = (one for one in needs(resolved, models, 2) if one.what == "chunks of the delta rule")
    heads, keys, values = 3, 16, 24  # of one of two ranks
    each = heads * (2 * (keys + values) + 4) + heads * 2 * keys * values / 64
    assert (
        need.what in LATER
        and need.setting == f"chunked_prefill_size {chunk or -1}"
        and 1 <= need.device / (most * each) < 1.6
    )
    for other in ({"dtype": "float32"}, {"device": "cpu"}, {"enable_deterministic_inference": True}):
        assert all(one.what != need.what for one in needs(replace(resolved, **other), models, 2))


def test_a_token_of_qwen3_next_takes_32_kilobytes():
    parts = scratch(1, 2048, 32, 128, 128, torch.bfloat16)
    assert sum(torch.empty(shape, dtype=kind).nbytes for shape, kind in parts) == 2048 * (32768 + 128) + 32 * 4


def test_what_drafts_are_drawn_from_counts():
    own = {"speculative_num_steps": 2, "speculative_acceptance": "block", "max_total_tokens": 512}
    llm = LLM(EngineConfig(str(CHECKPOINTS / "deepseek-mini"), "NEXTN", **own))
    matched = replace(llm.resolved, speculative_acceptance="match")
    more = judged(llm)[1].device - needs(matched, models_of(matched, Path), 1)[1].device
    assert more == llm.loop.executor.relay.carried["scores"].nbytes > 0


def test_windowed_layers_and_layers_of_their_own_count_as_they_are():
    llm = LLM(EngineConfig(str(CHECKPOINTS / "qwen3-mini"), kv_stamps=True, max_total_tokens=2048, page_size=8))
    assert len(llm.loop.executor.kv.groups) == 2
    kv, rows, *_ = judged(llm)
    assert (kv.device, rows.device) == (pools(llm), tables(llm))
    own = {"speculative_num_steps": 2, "enable_multi_layer_eagle": True, "max_total_tokens": 512}
    llm = LLM(EngineConfig(str(CHECKPOINTS / "deepseek-mini"), "NEXTN", **own))
    assert judged(llm)[0].device == pools(llm)


def test_a_gpu_has_graphs_besides_and_ranks_share_the_target():
    resolved = engine("EAGLE3", 3).resolved
    models = models_of(resolved, Path)
    there = replace(resolved, device="cuda", cuda_graph_max_bs=4, cuda_graph_max_gb=3)
    here, gpu, half = needs(resolved, models, 1), needs(there, models, 1), needs(there, models, 2)
    assert gpu[:2] == here[:2]
    assert gpu[3] == Need("cuda_graph_max_gb 3", "CUDA graphs", 3 * GIB)
    assert half[4].device == gpu[4].device // 2 and half[5] == gpu[5] and half[0].device < gpu[0].device


HUGE = {
    "max_total_tokens": (10**12, "max_total_tokens 1000000000000 takes 1,952,052.1 GiB for KV and the engine "),
    "max_running_requests": (
        10**9,
        "max_running_requests 1000000000 of context_length 4096 takes 30,569.7 GiB for slot tables and drafts and the ",
    ),
}


@pytest.mark.parametrize("field", HUGE)
@pytest.mark.parametrize("scale", [1, 10**18])
def test_a_number_that_does_not_fit_is_named_before_anything_is_loaded(field, scale, monkeypatch):
    monkeypatch.setattr("specmatrix.engine.build.load_target", None)
    value, sentence = HUGE[field]
    if scale > 1:
        sentence = f"{field} {value * scale} "
    asked = EngineConfig(LLAMA, **{field: value * scale})
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}.* GiB of host memory is free; lower that setting"):
        LLM(asked)


def test_a_context_of_a_billion_is_named(tmp_path):
    shutil.copytree(LLAMA, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 10**9}))
    with pytest.raises(ConfigError, match=r"^max_running_requests 64 of context_length 1000000000 takes 484\.2 "):
        LLM(EngineConfig(str(tmp_path)))
    with pytest.raises(ConfigError, match=r"^context_length 1000000000 takes \d+\.\d GiB for rotary positions and "):
        LLM(EngineConfig(str(tmp_path), max_running_requests=1))
    assert LLM(EngineConfig(str(tmp_path), context_length=256)).generate([[5, 6]])


def test_a_layer_that_the_weights_lack_is_named_first(tmp_path, monkeypatch):
    """Its KV would not fit, but the number is wrong, not too large."""
    llm = LLM(EngineConfig(LLAMA))
    free = sum(need.device + need.host for need in judged(llm)) + GIB // 16
    monkeypatch.setattr(budget, "host_memory", lambda: free)
    shutil.copytree(LLAMA, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 4000}))
    with pytest.raises(ConfigError, match=r"^LlamaForCausalLM: tensor 'model.layers.\d.*' is missing from the"):
        LLM(EngineConfig(str(tmp_path)))


def test_the_largest_need_is_named_and_unknown_sizes_refuse_nothing():
    found = [Need("max_total_tokens 5", "KV", 3 * GIB), Need("dtype float32 of /x", "weights", 9 * GIB // 2)]
    sizes = [need.device for need in found]
    fits(found, sizes, None, "host memory")
    fits(found, sizes, sum(sizes), "host memory")
    sentence = (
        r"dtype float32 of /x takes 4\.5 GiB for weights and the engine 7\.5 GiB in total, but only 7\.0 GiB of GPU m"
    )
    with pytest.raises(ConfigError, match=f"^{sentence}"):
        fits(found, sizes, 7 * GIB, "GPU memory")


@pytest.mark.parametrize(
    ("line", "folder", "names", "left"),
    [
        ("0::/", "", ("memory.max", "memory.current"), 700),
        ("0::/outer/inner", "outer", ("memory.max", "memory.current"), 700),
        ("4:cpu,memory:/a/b", "memory/a/b", ("memory.limit_in_bytes", "memory.usage_in_bytes"), 700),
        ("3:cpuset:/", "", ("memory.max", "memory.current"), None),
    ],
)
def test_a_control_groups_limit_is_heeded(line, folder, names, left, tmp_path):
    """1,000 bytes are allowed, 500 used, of which 200 are pages of files."""
    place = tmp_path / folder
    place.mkdir(parents=True, exist_ok=True)
    for name, text in zip((*names, "memory.stat"), ("1000\n", "500\n", "cache 9\ninactive_file 200\n"), strict=True):
        (place / name).write_text(text)
    (tmp_path / "groups").write_text(f"{line}\n")
    assert list(group_memory(tmp_path, tmp_path / "groups")) == ([] if left is None else [left])
    (place / names[0]).write_text("max\n")
    assert list(group_memory(tmp_path, tmp_path / "groups")) == []


def test_this_host_reports_its_resources():
    free = host_memory()
    assert free is None or 0 < free < 1 << 50
