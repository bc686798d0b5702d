"""Random timed traces on the real engine: requests arrive, are aborted, belong to sessions and are streamed, and memory
is short. Each answer is that of the request alone without a drafter, and nothing is left at the end.

A failure is shrunk, and printed as the shortest trace that still fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from typing import ClassVar, NamedTuple

import pytest
from hypothesis import Phase as Stage
from hypothesis import seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.observe.step_counter import COUNTERS, GPU, RANKS, ZERO
from specmatrix.engine.core.schedule.request import Finish, Phase, Request, SamplingParams
from specmatrix.engine.core.schedule.session import SessionParams
from specmatrix.errors import RequestError
from specmatrix.matrix.cells.cell import ADAPTIVE_TEXTS
from tests.support.engines import CHECKPOINTS, DRAFTS, TARGETS
from tests.support.failing_steps import at_rest

TEXTS = (
    "Question: Eli had 75 keys. He gave 11 of them to Cora. How many keys are left?\nAnswer:",
    "75 - 11 = 64. 75 - 11 = 64. 75 - 11 = 64. 75 - 11 = 64.",
)
PARAMS: dict[str, dict[str, object]] = {
    "greedy": {},
    "sampled": {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "seed": 3},
    "stopped": {"stop": ("4", "= 6")},
    "forced": {"ignore_eos": True, "return_logprob": True},
}
CHAIN = {"speculative_num_steps": 3, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4}
TREE = {"speculative_num_steps": 3, "speculative_eagle_topk": 2, "speculative_num_draft_tokens": 6}
ADAPTIVE = {"speculative_adaptive": True, "speculative_adaptive_config": ADAPTIVE_TEXTS["tiers"]}
SUBJECTS = (
    ("NONE", {}),
    ("EAGLE3", TREE),
    ("EAGLE", ADAPTIVE),
    ("STANDALONE", CHAIN),
    ("DFLASH", {"speculative_ragged_verify": True, "speculative_confidence_threshold": 0.5}),
    ("NGRAM", {"speculative_num_draft_tokens": 6, "speculative_ngram_max_bfs_breadth": 3}),
    ("NEXTN", CHAIN),
)
MAX_STEPS = 2000  # of any trace
MAX_OPEN = 2  # streams, and sessions of each kind
PICK = st.integers(0, 5)  # one of those that there are, the latest first
TIMEOUT = st.sampled_from([None, None, 9.0])
OFFSET = st.sampled_from([0, 0, 1, 9])
WAIT = st.sampled_from([0, 0, 1, 1, 2, 4, 7])  # engine steps before the event
# Of a single model without a window, whose context is longer than its memory, of requests without grammars, of batches
# smaller than the slot that may draft nothing, and of depths by the average of what was accepted.
NOT_MET = {*GPU, *RANKS, *ZERO, "window.slid", "finish.context", "adaptive.undrafted", "adaptive.held", "spec.budgeted"}
NOT_MET |= {name for name in COUNTERS if name.startswith(("grammar.", "mixed."))}
RARELY_MET = {"session.refused", "session.restored", "session.spared", "session.trimmed"}


class Wanted(NamedTuple):
    """A request's own prompt, the first `length` tokens of a text, and its parameters."""

    text: int
    length: int
    how: str
    new: int

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(max_new_tokens=self.new, **PARAMS[self.how])


WANTED = st.builds(
    Wanted,
    text=st.integers(0, len(TEXTS) - 1),
    length=st.integers(1, 20),
    how=st.sampled_from(list(PARAMS)),
    new=st.sampled_from([1, 3, 9, 24]),
)


def start_engine(algorithm: str, **fields: object) -> LLM:
    draft = DRAFTS.get(algorithm)
    return LLM(
        EngineConfig(
            str(CHECKPOINTS / TARGETS.get(algorithm, "llama-mini")),
            speculative_algorithm=algorithm,
            speculative_draft_model_path=draft and str(CHECKPOINTS / draft),
            context_length=256,
            **fields,
        )
    )


@cache
def plain(target: str) -> LLM:
    config = EngineConfig(str(CHECKPOINTS / target), context_length=256, max_total_tokens=512, disable_radix_cache=True)
    return LLM(config)


@cache
def tokens_of(target: str, wanted: Wanted) -> tuple[int, ...]:
    """BOS included."""
    return tuple(plain(target).tokenizer.encode(TEXTS[wanted.text])[: wanted.length])


@cache
def alone(target: str, prompt: tuple[int, ...], params: SamplingParams) -> tuple[tuple[int, ...], str, Finish, int]:
    """Tokens, text, finish and number of logprobs of a request alone, without a drafter."""
    (output,) = plain(target).generate([prompt], params)
    return output.output_ids, output.text, output.finish, len(output.logprobs)


@dataclass(eq=False, slots=True)
class OpenRequest:
    """A request of the trace. shown: how many tokens it had when an event may have aborted it. checked: its answer was
    checked."""

    request: Request
    shown: int | None = None
    checked: bool = False

    @property
    def history(self) -> tuple[int, ...]:
        return tuple(self.request.tokens)

    @property
    def live(self) -> bool:
        return self.request.phase is not Phase.DONE


@dataclass(eq=False, slots=True)
class Talk:
    """A session. used: time of its last use. asked: its requests that can be continued. history: of a streaming one."""

    name: str
    streaming: bool
    timeout: float | None
    used: float
    asked: list[OpenRequest] = field(default_factory=list)
    live: list[OpenRequest] = field(default_factory=list)
    history: tuple[int, ...] = ()


@dataclass(eq=False, slots=True)
class StreamReader:
    """A stream: its text so far, and the whole text."""

    pieces: Iterator[str]
    whole: str
    said: str = ""


class EngineTrace(RuleBasedStateMachine):
    """The events of a trace, in any order."""

    met: ClassVar[Counter[str]] = Counter()  # over all traces

    def __init__(self, subject: tuple[str, dict[str, object]]) -> None:
        super().__init__()
        self.subject = subject

    @initialize(
        version=st.sampled_from(["v2", "v1"]),
        page_size=st.sampled_from([1, 4, 4, 16]),
        memory=st.sampled_from([64, 96]),
        rows=st.sampled_from([4, 2]),
        chunk=st.sampled_from([5, 64]),
        uncached=st.sampled_from([False, False, False, True]),
    )
    def start(self, version, page_size, memory, rows, chunk, uncached):
        algorithm, shape = self.subject
        self.target = TARGETS.get(algorithm, "llama-mini")
        self.llm = start_engine(
            algorithm,
            spec_version=version,
            page_size=page_size,
            max_total_tokens=memory,
            max_running_requests=rows,
            chunked_prefill_size=chunk,
            disable_radix_cache=uncached,
            enable_streaming_session=True,
            strict_memory=2,
            kv_stamps=True,
            **shape,
        )
        self.now = 0.0
        self.llm.clock = lambda: self.now
        self.asked: list[OpenRequest] = []  # whose results were not taken
        self.talks: list[Talk] = []
        self.readers: list[StreamReader] = []

    @rule(each=st.lists(WANTED, min_size=1, max_size=4), wait=WAIT)
    def arrive(self, each, wait):
        self.step(wait)
        for wanted in each:
            self._ask(wanted)

    @precondition(lambda self: self.asked)
    @rule(pick=PICK, wait=WAIT)
    def abort(self, pick, wait):
        self.step(wait)
        self._abort(_picked(self.asked, pick))

    @precondition(lambda self: any(not one.live for one in self.asked))
    @rule(pick=PICK)
    def take(self, pick):
        self._take(_picked([one for one in self.asked if not one.live], pick))

    @rule(wanted=WANTED, pick=PICK, timeout=TIMEOUT, wait=WAIT, cut=st.sampled_from([None, None, 2, 5]))
    def turn(self, wanted, pick, timeout, wait, cut):
        """The next turn of a streaming session as soon as the previous one has finished; `cut`: aborted after steps."""
        talk = self._talk(True, pick, timeout)
        self._until(lambda: not talk.asked or talk.asked[-1].request.finish is not None)
        self.step(wait)
        if talk.asked and talk.asked[-1].request.finish != Finish("abort"):
            talk.history = talk.asked[-1].history
        one = self._ask(wanted, talk, SessionParams(talk.name), talk.history)
        if one and cut:
            self.step(cut)
            self._abort(one)

    @rule(wanted=WANTED, pick=PICK, timeout=TIMEOUT, wait=WAIT, back=PICK, offset=OFFSET, drop=st.booleans())
    def branch(self, wanted, pick, timeout, wait, back, offset, drop):
        """A request of an ordinary session that continues a finished one, or replaces all."""
        talk = self._talk(False, pick, timeout)
        self.step(wait)
        finished = [one for one in talk.asked if one.request.finish is not None]
        if not finished or (drop and offset):
            running = [one for one in talk.asked if one.request.finish is None]
            if self._ask(wanted, talk, SessionParams(talk.name, replace=True)):
                for one in running:
                    one.shown = len(one.request.output)
                    assert one.request.finish is not None, "a replaced request goes on"
                del talk.asked[:-1]
            return
        one = _picked(finished, back)
        history = one.request.prompt if drop else one.history
        offset = min(offset, len(history))
        params = SessionParams(talk.name, one.request.rid, offset, drop_previous_output=drop)
        self._ask(wanted, talk, params, history[: offset or None])

    @precondition(lambda self: self.talks)
    @rule(pick=PICK, wait=WAIT)
    def close(self, pick, wait):
        talk = _picked(self.talks, pick)
        self.step(wait)
        if talk in self.talks:
            self.talks.remove(talk)
            self.llm.close_session(talk.name)

    @precondition(lambda self: len(self.readers) < MAX_OPEN)
    @rule(wanted=WANTED)
    def stream(self, wanted):
        """Begin a stream; its request arrives with the first read."""
        prompt = tokens_of(self.target, wanted)
        if self._fits(prompt, wanted.new):
            pieces = self.llm.stream(prompt, wanted.params)
            self.readers.append(StreamReader(pieces, alone(self.target, prompt, wanted.params)[1]))

    @precondition(lambda self: self.readers)
    @rule(pick=PICK, wait=WAIT)
    def read(self, pick, wait):
        """One piece of text, and as many steps as it takes."""
        self.step(wait)
        reader = _picked(self.readers, pick)
        piece = next(reader.pieces, None)
        reader.said += piece or ""
        assert reader.whole.startswith(reader.said)
        if piece is None:
            self.readers.remove(reader)
            assert reader.said == reader.whole

    @precondition(lambda self: self.readers)
    @rule(pick=PICK)
    def abandon(self, pick):
        reader = _picked(self.readers, pick)
        self.readers.remove(reader)
        reader.pieces.close()
        running = [each for each in self.llm.loop.scheduler.requests.values() if each.finish is None]
        known = [one for one in self.asked if one.request.finish is None]
        assert len(running) <= len(known) + len(self.readers), "an abandoned request goes on"

    def step(self, count):
        for _ in range(count):
            self.now += 1
            self._time_out()
            self.llm.step()
            self._time_out()
            requests = self.llm.loop.scheduler.requests.values()
            assert self.llm.loop.busy or all(each.phase is Phase.DONE for each in requests), "a request was lost"
            for one in self.asked:
                if not one.live and not one.checked:
                    self._check(one)

    def teardown(self):
        if not hasattr(self, "llm"):
            return
        assert self.llm.health == "ok"
        self._until(lambda: not self.llm.loop.busy)
        while self.readers:
            self.read(0, 0)
        for one in list(self.asked):
            self._take(one)
        for talk in self.talks:
            self.llm.close_session(talk.name)
        self.llm.step()  # frees what an abort of a waiting turn left
        at_rest(self.llm)
        assert not self.llm.sessions.sessions and not self.llm.sessions.closing
        EngineTrace.met.update(self.llm.counters)

    def _until(self, ended):
        for _ in range(MAX_STEPS):
            if ended():
                return
            self.step(1)
        raise AssertionError(f"it has not ended after {MAX_STEPS} steps")

    def _talk(self, streaming, pick, timeout):
        """A session of this kind; a new one if `pick` is past those that are open."""
        those = [talk for talk in self.talks if talk.streaming is streaming]
        if pick % MAX_OPEN < len(those):
            return _picked(those, pick)
        name = self.llm.open_session(10_000, streaming=streaming, timeout=timeout)
        self.talks.append(Talk(name, streaming, timeout, self.now))
        return self.talks[-1]

    def _abort(self, one):
        if one.request.finish is None:
            one.shown = len(one.request.output)
        self.llm.abort(one.request.rid)

    def _ask(self, wanted, talk=None, params=None, history=()):
        """Queue a request; None if it is refused, which it must be exactly if it cannot run."""
        tokens = tokens_of(self.target, wanted)
        prompt = (*history, *tokens[bool(history) :])  # a BOS token is no part of a continuation
        valid = (talk is None or talk in self.talks) and len(prompt) > len(history) and self._fits(prompt, wanted.new)
        try:
            rid = self.llm.add(tokens, wanted.params, params)
        except RequestError as error:
            assert not valid, f"a valid request was refused: {error}"
            return None
        assert valid, "an invalid request was accepted"
        one = OpenRequest(self.llm.request(rid))
        assert one.request.prompt == prompt
        self.asked.append(one)
        if talk is not None:
            talk.used = self.now
            talk.asked.append(one)
            talk.live.append(one)
        return one

    def _fits(self, prompt, new):
        resolved = self.llm.resolved
        length = len(prompt) + new
        return length <= 256 and length + resolved.overrun <= resolved.num_pages * resolved.page_size

    def _time_out(self):
        """Exactly the sessions close that were idle for too long."""
        for talk in list(self.talks):
            talk.live = [one for one in talk.live if one.live]
            if talk.live:
                talk.used = self.now
            elif talk.timeout is not None and self.now - talk.used > talk.timeout:
                self.talks.remove(talk)

    def _check(self, one):
        request, one.checked = one.request, True
        found = (tuple(request.output), request.text, request.finish, len(request.logprobs))
        expected = alone(self.target, request.prompt, request.params)
        if request.finish == Finish("abort"):
            assert one.shown is not None, "a request that nobody aborted was aborted"
            assert found[0] == expected[0][: one.shown], (found, expected)
        else:
            assert found == expected

    def _take(self, one):
        self.asked.remove(one)
        output, request = self.llm.take(one.request.rid), one.request
        assert (output.output_ids, output.text, output.finish) == (tuple(request.output), request.text, request.finish)
        if not one.checked:
            self._check(one)


def _picked(those, pick):
    return those[-1 - pick % len(those)]


@pytest.mark.parametrize(
    ("traces", "events", "rare"),
    [(3, 30, RARELY_MET), pytest.param(100, 50, set(), marks=pytest.mark.nightly)],
    ids=["few", "many"],
)
def test_every_request_of_a_trace_is_answered_as_if_it_were_alone(traces, events, rare):
    EngineTrace.met.clear()
    bounds = settings(
        max_examples=traces,
        stateful_step_count=events,
        deadline=None,
        database=None,
        phases=(Stage.generate, Stage.shrink),
        report_multiple_bugs=False,
    )
    for number, subject in enumerate(SUBJECTS):
        try:
            run_state_machine_as_test(seed(number)(partial(EngineTrace, subject)), settings=bounds)
        except Exception as error:
            error.add_note(f"with {subject}")
            raise
    # Otherwise the traces prove less than they say.
    assert {name for name in COUNTERS if not EngineTrace.met[name]} - NOT_MET - rare == set()
