"""An engine whose steps are made to fail at a chosen place, and what must hold afterwards."""

from __future__ import annotations

import torch

from specmatrix import HOME
from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.memory.replay import replay
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.device.cuda_graphs import CudaGraphs

ZOO = HOME / "matrix" / "zoo" / "checkpoints"
PROMPTS = (
    "Question: A garden is 19 feet long and 5 feet wide. What is its area in square feet?\nAnswer:",
    "Question: Eli had 75 keys. He gave 11 of them to Cora. How many keys are left?\nAnswer:",
    "Question: Gus saves $75 a week for 3 weeks. He had $94 before. How much does Gus have now?\nAnswer:",
)
PARAMS = SamplingParams(max_new_tokens=24, ignore_eos=True)
VERSIONS = ("v1", "v2")
# Where a step can fail, as (attribute of the executor, function).
PLACES = {
    "upload": ("kv", "extend"),
    "admission of rows": ("relay", "admit"),
    "staging": ("staging", "put"),
    "graph capture": ("graphs", "run"),
    "drafter": ("drafter", "propose"),
    "target": ("target", "forward"),
    "verification": ("plain", "verify"),
    "collect": ("staging", "take"),
}
# Every place while a step is in flight, and without one in front of the launch, on the device and behind it.
MOMENTS = [*((place, "v2") for place in PLACES), *((place, "v1") for place in ("upload", "target", "collect"))]


def start_engine(version="v2", graphs=False, **more: object) -> LLM:
    asked = {
        "context_length": 256,
        "max_total_tokens": 700,
        "speculative_draft_model_path": "llama-mini-eagle3",
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 2,
        "speculative_num_draft_tokens": 6,
        "strict_memory": 2,
        "kv_stamps": True,
    }
    config = EngineConfig("llama-mini", speculative_algorithm="EAGLE3", spec_version=version, **(asked | more))
    llm = LLM(config, lambda name: ZOO / name)
    if graphs:
        executor = llm.loop.executor
        executor.run.graphs = CudaGraphs(4, torch.device("cpu"), llm.loop.counters)
    return llm


def at_rest(llm: LLM) -> None:
    """Nothing is held or in flight, every page is free or cached, the journal replays, every stamp was right."""
    loop, ledger = llm.loop, llm.loop.scheduler.ledger
    assert not loop.pending and not loop.scheduler.requests
    assert not ledger.accounts and not ledger.counts.held
    replay(llm.journal)
    assert llm.counters["stamp.wrong"] == 0


def plant(monkeypatch, llm: LLM, place: str, error: BaseException, victim=None, times=None, tokens=0) -> list[int]:
    """Raise at a place in steps that hold `victim` (any step if None), at most `times` times, once it has shown
    `tokens` tokens. Returns the number of requests of each step that failed."""
    executor, failed = llm.loop.executor, []
    launch, collect = executor.launch, executor.collect
    current = []

    def launched(plan):
        current[:] = [plan]
        return launch(plan)

    def collected(handle):
        current[:] = [handle.plan]
        return collect(handle)

    monkeypatch.setattr(executor, "launch", launched)
    monkeypatch.setattr(executor, "collect", collected)
    owner, name = PLACES[place]
    at = getattr(executor, owner)
    real = getattr(at, name)

    def raising(*args: object, **kwargs: object):
        (plan,) = current
        rids = [row.rid for row in plan.rows]
        due = victim is None or (victim in rids and len(llm.request(victim).output) >= tokens)
        if due and (times is None or len(failed) < times):
            failed.append(len(rids))
            raise error
        return real(*args, **kwargs)

    monkeypatch.setattr(at, name, raising)
    return failed
