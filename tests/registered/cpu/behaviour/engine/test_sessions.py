"""Sessions end to end: stamps of an earlier turn, what stays alive, and a turn that is closed or refused.

That every turn generates what one request with its whole history would is shown by cells, `test_traces` and
`test_loop_sessions`.
"""

from __future__ import annotations

import gc
import re
from collections import Counter
from functools import cache

import pytest

from specmatrix import HOME
from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.memory.replay import replay
from specmatrix.engine.core.schedule.request import Finish, SamplingParams
from specmatrix.engine.core.schedule.session import SessionParams
from specmatrix.engine.device.batch import StepBatch
from specmatrix.errors import RequestError

ZOO = HOME / "matrix" / "zoo" / "checkpoints"
TURNS = (
    "Question: Eli had 75 keys. He gave 11 of them to Cora. How many keys are left?\nAnswer:",
    "\nQuestion: Cora had 19 keys before. How many keys does she have now?\nAnswer:",
    "\nQuestion: She loses 3 keys. How many keys are left?\nAnswer:",
)
# Ends inside a run and at its end, by length; by the model's own end.
ENDS = (
    SamplingParams(max_new_tokens=13, ignore_eos=True),
    SamplingParams(max_new_tokens=60),
    SamplingParams(max_new_tokens=8, ignore_eos=True),
)
NONE, CHAIN = ("NONE", 0, 0, 0), ("EAGLE3", 3, 1, 4)


def start_engine(shape=NONE, **more: object) -> LLM:
    algorithm, steps, topk, nodes = shape
    drafts: dict[str, object] = {"speculative_algorithm": algorithm}
    if algorithm != "NONE":
        drafts |= {
            "speculative_draft_model_path": f"llama-mini-{algorithm.lower()}",
            "speculative_num_steps": steps,
            "speculative_eagle_topk": topk,
            "speculative_num_draft_tokens": nodes,
        }
    asked = {
        "context_length": 320,
        "max_total_tokens": 1024,
        "strict_memory": 2,
        "kv_stamps": True,
        "enable_streaming_session": True,
    }
    return LLM(EngineConfig("llama-mini", **(asked | drafts | more)), lambda name: ZOO / name)


@cache
def resent(ends) -> tuple[tuple[tuple[int, ...], str, Finish], ...]:
    """The output of each turn when the whole history is sent again, without a drafter, session or cache."""
    llm = start_engine(disable_radix_cache=True, spec_version="v1", page_size=1)
    history: list[int] = []
    said = []
    for text, params in zip(TURNS, ends, strict=True):
        history += llm.tokenizer.encode(text)[1 if history else 0 :]
        (out,) = llm.generate([history], params)
        history += out.output_ids
        said.append((out.output_ids, out.text, out.finish))
    return tuple(said)


def at_rest(llm: LLM) -> None:
    ledger = llm.loop.scheduler.ledger
    assert not ledger.accounts and not ledger.counts.held
    replay(llm.journal)
    assert llm.counters["stamp.checked"] > 0 and llm.counters["stamp.wrong"] == 0


def test_stale_kv_of_an_earlier_turn_has_a_different_stamp(monkeypatch):
    """A turn whose first position is not written reads what the previous turn wrote there, for the same position."""
    slots_at = StepBatch._slots_at

    def astray(self, at):
        return slots_at(self, at).masked_fill((at == self.start[:, None]) & (at > 0) & (self.lengths is not None), 0)

    for planted in (False, True):
        llm = start_engine(CHAIN, spec_version="v1", disable_radix_cache=True)
        name = llm.open_session(1000, streaming=True)
        talk(llm, name, TURNS[0], ENDS[0])
        if planted:
            monkeypatch.setattr(StepBatch, "_slots_at", astray)
        talk(llm, name, TURNS[1], ENDS[2])
        assert (llm.counters["stamp.wrong"] > 0) == planted


def alive() -> Counter[str]:
    """The engine's own objects, by class."""
    gc.collect()
    classes = (type(each) for each in gc.get_objects())
    return Counter(kind.__name__ for kind in classes if str(kind.__module__).startswith("specmatrix.engine.core"))


def test_at_rest_only_the_tokens_of_open_sessions_are_alive():
    before = alive()  # of other tests
    llm = start_engine(CHAIN, spec_version="v2", max_total_tokens=256, strict_memory=0, kv_stamps=False)
    short = SamplingParams(max_new_tokens=2, ignore_eos=True)
    line, tree = llm.open_session(10_000, streaming=True), llm.open_session(10_000)
    counts = []
    for number in range(8):
        rids = [llm.add([5 + number, place, *range(40)], short) for place in range(6)]
        rids += [llm.add([7, 8, 9], short, SessionParams(name)) for name in (line, tree, tree)]
        llm.step()
        for rid in (rids[0], rids[-1], *([rids[6]] if number % 2 else [])):
            llm.abort(rid)
        while llm.step():
            pass
        for rid in rids:
            llm.take(rid)
        counts.append(alive() - before)
    # A session remembers its requests; the prefix cache, and what the line holds, go where pages are needed.
    assert [count.pop("Branch") for count in counts] == list(range(2, 18, 2))
    assert all(count.pop("Node") <= 257 and count.pop("Account", 0) <= 1 for count in counts)
    assert counts[-1] == counts[-3] == counts[2]
    assert not {"Request", "Transcript", "StopRules", "SpecMetrics"} & counts[-1].keys()
    for name in (line, tree):
        llm.close_session(name)
    assert not {"Branch", "Session"} & (alive() - before).keys()


def talk(llm: LLM, name: str, text: str, params: SamplingParams):
    (out,) = llm.generate([text], params, SessionParams(name))
    return out


def test_close_with_a_turn_in_flight_and_refusals_disturb_no_other_request():
    llm = start_engine(CHAIN)
    name = llm.open_session(400, "s", streaming=True)
    talk(llm, name, TURNS[0], ENDS[0])
    for bad, sentence in (
        (SessionParams(name, replace=True), "session 's' is streaming and replace is True; allowed: False"),
        (SessionParams(name, offset=2), "session 's' is streaming and offset is 2; allowed: 0"),
        (SessionParams("t"), "session 't' is not open; open it with open_session"),
    ):
        with pytest.raises(RequestError, match=f"^{re.escape(sentence)}$"):
            llm.add(TURNS[1], None, bad)
    with pytest.raises(RequestError, match="tokens; allowed: at most the context length, 320"):
        llm.add(TURNS[1], SamplingParams(max_new_tokens=900), SessionParams(name))
    with pytest.raises(RequestError, match="characters; allowed: at most its capacity_of_str_len, 400"):
        llm.add("a few words " * 40, None, SessionParams(name))
    with pytest.raises(RequestError, match=r"several prompts of one call belong to session 's'"):
        llm.generate([TURNS[1]] * 2, ENDS[0], SessionParams(name))
    with pytest.raises(RequestError, match="2 session parameters for 1 prompts; allowed: one, or one per prompt"):
        llm.generate([TURNS[1]], ENDS[0], [SessionParams(name)] * 2)
    assert llm.counters["session.refused"] == 5 and not llm.loop.busy
    rid = llm.add(TURNS[1], ENDS[1], SessionParams(name))
    llm.step()
    llm.close_session(name)
    while llm.step():
        pass
    assert llm.take(rid).output_ids == resent(ENDS)[1][0]
    at_rest(llm)
