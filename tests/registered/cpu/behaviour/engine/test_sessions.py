"""Sessions end to end: stamps of an earlier turn, what stays alive, and a turn that is closed or refused.

That every turn generates what one request with its whole history would is shown by cells, by `test_traces` and, at
every lag, by `tools.simulation`.
"""

from __future__ import annotations

import gc
from collections import Counter

import pytest

from specmatrix.engine.api import LLM
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.core.schedule.session import SessionParams
from specmatrix.engine.device.batch import StepBatch
from specmatrix.errors import RequestError
from tests.support import llama_engines

TURNS = (
    "Question: Eli had 75 keys. He gave 11 of them to Cora. How many keys are left?\nAnswer:",
    "\nQuestion: Cora had 19 keys before. How many keys does she have now?\nAnswer:",
)
CHAIN = ("EAGLE3", 3, 1, 4)
LONG, SHORT = SamplingParams(max_new_tokens=13, ignore_eos=True), SamplingParams(max_new_tokens=2, ignore_eos=True)


def start_engine(**more: object) -> LLM:
    asked = {"context_length": 320, "max_total_tokens": 1024, "enable_streaming_session": True}
    return llama_engines.start_engine(CHAIN, **asked | more)


def test_stale_kv_of_an_earlier_turn_has_a_different_stamp(monkeypatch):
    """A turn whose first position is not written reads what the previous turn wrote there, for the same position."""
    slots_at = StepBatch._slots_at

    def astray(self, at):
        return slots_at(self, at).masked_fill((at == self.start[:, None]) & (at > 0) & (self.lengths is not None), 0)

    for planted in (False, True):
        llm = start_engine(spec_version="v1", disable_radix_cache=True)
        name = llm.open_session(1000, streaming=True)
        talk(llm, name, TURNS[0], LONG)
        if planted:
            monkeypatch.setattr(StepBatch, "_slots_at", astray)
        talk(llm, name, TURNS[1], LONG)
        assert (llm.counters["stamp.wrong"] > 0) == planted


def alive() -> Counter[str]:
    """The engine's own objects, by class."""
    gc.collect()
    classes = (type(each) for each in gc.get_objects())
    return Counter(kind.__name__ for kind in classes if str(kind.__module__).startswith("specmatrix.engine.core"))


def test_at_rest_only_the_tokens_of_open_sessions_are_alive():
    before = alive()  # of other tests
    llm = start_engine(spec_version="v2", max_total_tokens=256, strict_memory=0, kv_stamps=False)
    line, tree = llm.open_session(10_000, streaming=True), llm.open_session(10_000)
    counts = []
    for number in range(8):
        rids = [llm.add([5 + number, place, *range(40)], SHORT) for place in range(6)]
        rids += [llm.add([7, 8, 9], SHORT, SessionParams(name)) for name in (line, tree, tree)]
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
    llm = start_engine()
    name = llm.open_session(400, "s", streaming=True)
    session = SessionParams(name)
    first = talk(llm, name, TURNS[0], LONG)
    for call, sentence in (
        (lambda: llm.add(TURNS[1], None, SessionParams("t")), "session 't' is not open; open it with open_session"),
        (lambda: llm.add(TURNS[1], SamplingParams(max_new_tokens=900), session), "at most the context length, 320"),
        (
            lambda: llm.add("a few words " * 40, None, session),
            "characters; allowed: at most its capacity_of_str_len, 400",
        ),
        (lambda: llm.generate([TURNS[1]] * 2, LONG, session), "several prompts of one call belong to session 's'"),
        (lambda: llm.generate([TURNS[1]], LONG, [session] * 2), "2 session parameters for 1 prompts; allowed: one, or"),
    ):
        with pytest.raises(RequestError, match=sentence):
            call()
    assert llm.counters["session.refused"] == 3 and not llm.loop.busy
    rid = llm.add(TURNS[1], LONG, session)
    llm.step()
    llm.close_session(name)
    while llm.step():
        pass
    history = [*llm.tokenizer.encode(TURNS[0]), *first.output_ids, *llm.tokenizer.encode(TURNS[1])[1:]]
    assert llm.take(rid).output_ids == start_engine().generate([history], LONG)[0].output_ids
    llama_engines.at_rest(llm)
