"""An engine that has served 20,000 requests is no larger than one that has served 2,000."""

from __future__ import annotations

import ctypes
import gc
import sys
from pathlib import Path

import pytest

from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.core.schedule.session import SessionParams
from specmatrix.matrix.zoo.registry import resolve_path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what a process holds is read from /proc")

EARLY, LATE = 2_000, 20_000
MAX_MB = 10.0  # MB


def held() -> float:
    """Resident MB of this process, without what the allocator keeps for later."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 1e6


def serve(llm: LLM, number: int) -> int:
    """64 requests: alone, as turns of streaming sessions and as branches; every ninth is aborted after one step."""
    if number % 8 == 0:
        for name in list(llm.sessions.sessions):
            llm.close_session(name)
        llm.open_session(10_000, "tree")
        for line in range(8):
            llm.open_session(10_000, f"line{line}", streaming=True)
    rids = [
        llm.add([1, 5 + number % 300, 5 + number // 300, 9 + place], SamplingParams(max_new_tokens=2 + place % 3))
        for place in range(48)
    ]
    for place in range(8):
        rids.append(llm.add([7, 8 + place], SamplingParams(max_new_tokens=3), SessionParams(f"line{place}")))
        rids.append(llm.add([11 + place, number % 300], SamplingParams(max_new_tokens=2), SessionParams("tree")))
    llm.step()
    for rid in rids[::9]:
        llm.abort(rid)
    while llm.step():
        pass
    for rid in rids:
        llm.take(rid)
    return len(rids)


ADAPTIVE = {"speculative_algorithm": "EAGLE3", "speculative_draft_model_path": "llama-mini-eagle3"}
ADAPTIVE |= {"speculative_adaptive": True}


@pytest.mark.parametrize("drafts", [{}, ADAPTIVE], ids=["plain", "adaptive"])
def test_what_is_held_does_not_grow_with_the_requests_served(drafts):
    sizes = {"max_running_requests": 64, "max_total_tokens": 1024, "context_length": 256}
    llm = LLM(EngineConfig("llama-mini", enable_streaming_session=True, **sizes, **drafts), resolve_path)
    served = number = 0
    early = 0.0
    while served < LATE:
        served += serve(llm, number)
        number += 1
        if served >= EARLY and not early:
            early = held()
    assert held() - early <= MAX_MB
