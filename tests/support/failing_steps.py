"""An engine whose steps are made to fail at a chosen place, and what must hold afterwards."""

from __future__ import annotations

import torch

from specmatrix.engine.api import LLM
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.device.cuda_graphs import CudaGraphs
from tests.support import llama_engines
from tests.support.llama_engines import PROMPTS, drain

__all__ = ["MOMENTS", "PARAMS", "PROMPTS", "VERSIONS", "at_rest", "drain", "plant", "start_engine"]

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
    llm = llama_engines.start_engine(("EAGLE3", 3, 2, 6), spec_version=version, **more)
    if graphs:
        executor = llm.loop.executor
        executor.run.graphs = CudaGraphs(4, torch.device("cpu"), llm.loop.counters)
    return llm


def at_rest(llm: LLM) -> None:
    """Nothing is held or in flight, every page is free or cached, the journal replays, every stamp was right."""
    assert not llm.loop.pending and not llm.loop.scheduler.requests
    llama_engines.at_rest(llm, stepped=False)


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
