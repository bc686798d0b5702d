"""The step loop at lags 0 to 3 over a toy device: tokens of plain decoding, every law, every page freed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmatrix.engine.core.memory.groups import SlidingWindow
from specmatrix.engine.core.memory.ledger import replay
from specmatrix.engine.core.schedule.request import Phase, SamplingParams
from specmatrix.errors import LedgerError, RequestError
from specmatrix.matrix.oracles.ledger import audit
from tools.simulation.toy import VOCAB, reference, request, toy_loop

JOB = st.tuples(
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12),
    st.integers(1, 14),
    st.sampled_from([(), ("ab",), ("c",), ("dd", "e")]),
    st.sampled_from([None, None, 0, 3]),
)


def drain(loop, jobs, eos, aborts):
    requests = [
        request(i + 1, prompt, SamplingParams(max_new_tokens=n, stop=stop))
        for i, (prompt, n, stop, _) in enumerate(jobs)
    ]
    for r in requests:
        loop.add(r)
    for _ in range(20_000):
        if not loop.busy:
            return requests
        loop.step()
        for r in requests:
            after = aborts.get(r.rid)
            if after is not None and len(r.output) >= after and r.phase is not Phase.DONE:
                loop.abort(r.rid)
    raise AssertionError("the loop does not end")


def windows_of(tokens, page_size, longest, flying, spare=0):
    """A group whose pages are enough for one request of `longest` positions."""
    if tokens is None:
        return []
    return [SlidingWindow(SlidingWindow(1, page_size, tokens).budget(0, longest, flying) + spare, page_size, tokens)]


class Failing:
    """A toy executor whose calls fail as `plan` says: by number of the call, before or after the real one."""

    def __init__(self, executor, failures) -> None:
        self.executor, self.failures, self.calls = executor, dict(failures), 0

    def _call(self, function, argument):
        self.calls += 1
        kind, late = self.failures.pop(self.calls, (None, False))
        if kind is not None and not late:
            raise kind()
        result = function(argument)
        if kind is not None:
            raise kind()
        return result

    def launch(self, plan):
        return self._call(self.executor.launch, plan)

    def collect(self, handle):
        return self._call(self.executor.collect, handle)

    def drop(self):
        self.executor.drop()

    def clear(self, free):
        self.executor.clear(free)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    jobs=st.lists(JOB, min_size=1, max_size=5),
    lag=st.integers(0, 3),
    page_size=st.sampled_from([1, 3]),
    width=st.integers(1, 4),
    extra=st.integers(0, 20),
    chunk=st.sampled_from([None, 3]),
    window=st.sampled_from([None, 4]),
    mixed=st.booleans(),
    failures=st.dictionaries(
        st.integers(1, 60), st.tuples(st.sampled_from([RuntimeError, KeyboardInterrupt]), st.booleans()), max_size=6
    ),
)
def test_failed_or_interrupted_steps_change_nothing(jobs, lag, page_size, width, extra, chunk, window, mixed, failures):
    longest = max(len(p) + n for p, n, _, _ in jobs) + (lag + 1) * width
    windows = windows_of(window, page_size, longest, (lag + 1) * max(width, chunk or longest))
    pages = -(-longest // page_size) + extra
    sizes = {"page_size": page_size, "pages": pages, "width": width, "rows": 4, "chunk": chunk, "windows": windows}
    loop = toy_loop(lag=lag, mixed=mixed, **sizes)
    loop.executor = Failing(loop.executor, failures)
    requests = [
        request(i, prompt, SamplingParams(max_new_tokens=new, stop=stop))
        for i, (prompt, new, stop, _) in enumerate(jobs, 1)
    ]
    for r in requests:
        loop.add(r)
    for _ in range(20_000):
        try:
            if not loop.busy:
                break
            loop.step()
        except KeyboardInterrupt:
            assert not loop.pending and not any(a.in_flight for a in loop.scheduler.ledger.accounts.values())
        loop.scheduler.check()
    for r in requests:
        out, text, finish = reference(r.prompt, r.params)
        if r.finish.reason == "error":
            assert RuntimeError in dict(failures.values()) and r.output == out[: len(r.output)]
        else:
            assert (r.output, r.text, r.finish) == (out, text, finish)
    ledger = loop.scheduler.ledger
    assert not ledger.accounts and not ledger.counts.held
    replay(ledger.journal)
    audit(ledger.journal)


def test_a_retracted_request_is_not_admitted_into_the_pages_it_gave_up():
    loop = toy_loop(lag=2, page_size=2, pages=18, rows=5)
    jobs = [([4, 10, 10, 4, 10, 5, 7, 0, 8], 9, (), None), ([4], 14, (), None), ([4, 9, 3, 4, 6, 5, 8, 3], 9, (), None)]
    requests = drain(loop, jobs, (), {})
    assert max(r.retractions for r in requests) <= 2


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_steps_behind_a_stop_string_are_dropped_and_none_is_launched_behind_a_certain_end(lag):
    for stop, wasted, launched in (((), 0, 6), (("d",), lag, 4 + lag)):
        loop = toy_loop(lag=lag, page_size=4, pages=20)
        drain(loop, [([1, 2], 6, stop, None)], (), {})
        counts = loop.counters.counts
        assert counts["overlap.dropped"] == wasted and bool(counts["overlap.in_flight"]) is bool(lag)
        assert counts["prefill.step"] + counts["decode.round"] == launched


def test_a_window_holds_a_few_pages_of_a_long_answer_and_bounds_admission():
    windows = [SlidingWindow(14, 2, 4)]
    loop = toy_loop(lag=1, page_size=2, pages=60, width=2, rows=4, chunk=3, windows=windows)
    requests = drain(loop, [([i, 1, 2, 3, 4], 20, (), None) for i in range(4)], (), {})
    assert [r.output for r in requests] == [reference(r.prompt, r.params)[0] for r in requests]
    # A row needs 4 + 2 * 3 positions at most, on 6 pages, so two rows run at once where four would fit without.
    assert loop.counters.counts["window.slid"] > 20 and loop.counters.counts["queue.waited"] > 0
    with pytest.raises(RequestError, match="pool of 10 tokens of sliding-window layers, as 12 are needed at once"):
        toy_loop(lag=1, page_size=2, pages=60, width=2, chunk=3, windows=[SlidingWindow(5, 2, 4)]).add(
            request(1, [1], SamplingParams(max_new_tokens=30))
        )


def test_no_progress_is_a_bug_and_raises():
    loop = toy_loop(lag=0, page_size=2, pages=10)
    stuck = request(1, [1], SamplingParams(max_new_tokens=2))
    loop.add(stuck)
    loop.scheduler.free_rows.clear()
    with pytest.raises(LedgerError, match="no request can run and nothing is in flight"):
        loop.step()
