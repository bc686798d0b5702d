"""The reference subject: its capabilities, and requests that are aborted at a token."""

import pickle
from dataclasses import replace

import pytest

from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.scheduler import Scheduler
from specmatrix.errors import ConfigError, RequestError
from specmatrix.matrix.cells.cell import ENGINE_SEED, Cell, asked
from specmatrix.matrix.subjects.http.openai import OpenAISubject
from specmatrix.matrix.subjects.http.sglang import SglangSubject
from specmatrix.matrix.subjects.in_process import Progress, ReferenceEngine, ReferenceSubject
from specmatrix.matrix.subjects.observations import Trace
from specmatrix.matrix.subjects.protocol import Capability, EngineCommand, Stalled, Unsupported
from specmatrix.matrix.subjects.translations import translated
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.matrix.workloads.request import Continuation, Refusal, RequestSpec

PROMPT = "Question: Tom has 12 apples and buys 15 more. How many apples does he have?\nAnswer:"


def engine_of(cell: str) -> ReferenceEngine:
    return ReferenceSubject().start_engine(asked(Cell.from_id(cell)))


def test_answers_come_in_the_order_of_the_requests():
    engine = engine_of("eagle3.s3.k4.n8")
    first = RequestSpec("long", PROMPT, 20, ignore_eos=True, top_logprobs=2)
    requests = [first, RequestSpec("short", PROMPT + " Now", 5)]
    long, short = engine.generate(requests)
    assert (long.name, len(long.output_ids), long.finish) == ("long", 20, "length")
    assert (short.name, len(short.output_ids)) == ("short", 5)
    assert len(long.logprobs) == len(long.top_logprobs) == 20 and short.logprobs == ()
    assert long.prompt_ids == short.prompt_ids[: len(long.prompt_ids)]
    assert sum(long.accept_lengths) >= 19 and long.meta_info["completion_tokens"] == 20


@pytest.mark.parametrize("algorithm", ["none", "eagle3"])
def test_abort_after_some_tokens(algorithm: str):
    engine = engine_of(algorithm)
    kept, cut = engine.generate(
        [RequestSpec("kept", PROMPT, 20, ignore_eos=True), RequestSpec("cut", PROMPT, 20, abort_after=5)]
    )
    assert (kept.finish, len(kept.output_ids)) == ("length", 20)
    assert cut.finish == "abort" and 5 <= len(cut.output_ids) < 20
    assert cut.output_ids == kept.output_ids[: len(cut.output_ids)]
    assert engine.counters()["abort.running"] == 1


def test_a_request_that_an_idle_engine_has_lost_is_a_stall(monkeypatch):
    monkeypatch.setattr(Scheduler, "abort", lambda own, rid: own.end(own.requests[rid], None))
    engine = engine_of("none")
    with pytest.raises(Stalled, match=r"cut has had \d+ output tokens since step \d+"):
        engine.generate([RequestSpec("cut", PROMPT, 20, ignore_eos=True, abort_after=5)])


def test_a_request_that_the_engine_stopped_answers_with_the_cause(monkeypatch):
    engine = engine_of("none")
    monkeypatch.setattr(engine.llm.loop.executor.plain, "_round", lambda *_: [][0])
    (answer,) = engine.generate([RequestSpec("q", PROMPT, 8)])
    assert answer.finish == "error" and "made the engine raise IndexError: list index out of range" in answer.matched


def test_a_drafter_that_breaks_its_protocol_is_read_back():
    engine = engine_of("eagle3.s3.k4.n8")
    assert "drafter_error" not in engine.readback()
    engine.llm.loop.executor.drafter.propose = lambda batch, relay: None
    with pytest.warns(RuntimeWarning, match="it is not called again"):
        engine.generate([RequestSpec("q", PROMPT, 4)])
    assert "proposed a NoneType, not a DraftTree" in engine.readback()["drafter_error"]


def test_requests_are_sent_once_their_predecessors_have_ended():
    engine = engine_of("none.nocache")
    waits = RequestSpec("third", PROMPT, 3, after=("first", "second"))
    requests = [waits, RequestSpec("first", PROMPT, 3), RequestSpec("second", PROMPT, 9)]
    third, first, second = engine.generate(requests)
    assert first.meta_info["id"] < third.meta_info["id"] > second.meta_info["id"]
    with pytest.raises(RequestError, match=r"request late waits for \('nobody',\), which did not all end"):
        engine.generate([RequestSpec("late", PROMPT, 3, after=("nobody",))])


def test_it_shows_everything_and_the_resolution():
    subject = ReferenceSubject()
    engine = subject.start_engine(asked(Cell.from_id("eagle3.s3.k4.n8.v2.p4")))
    assert subject.profile.capabilities == frozenset(Capability)
    assert engine.resolved["num_draft_tokens"] == engine.readback()["num_draft_tokens"] == 8
    assert len(engine.start_hash) == 12
    engine.close()


def test_the_trace_of_adaptive_steps_goes_back_to_the_start():
    engine = engine_of("eagle3.tiers.v1.pair")
    assert engine.trace() == Trace((), ()) and engine_of("eagle3.pair").trace() is None
    answers = [engine.generate([RequestSpec(name, PROMPT, 20)])[0] for name in ("a", "b")]
    seen = engine.trace()
    assert seen is not None and seen.lost == 0
    answered = [pair for one in answers for pair in zip(one.round_widths, one.accept_lengths, strict=True)]
    assert [(each.width, 1 + each.correct[0]) for each in seen.observations] == answered
    assert list(seen.rounds) == [(1, width) for width, _ in answered]
    assert [each.activated for each in seen.observations] == list(range(1, len(answered) + 1))


def test_wrong_configuration_and_a_wrong_request_are_refused():
    with pytest.raises(ConfigError, match="model 'gpt' is neither a folder nor in the zoo"):
        ReferenceSubject().start_engine(EngineConfig("gpt"))
    refused, answered = (
        ReferenceSubject()
        .start_engine(asked(Cell()))
        .generate([RequestSpec("a", PROMPT, 0), RequestSpec("b", PROMPT, 2)])
    )
    assert refused.refusal.startswith("max_new_tokens is 0") and len(answered.output_ids) == 2


def in_session(name: str, session: str = "a", timeout: float | None = None, **fields: object) -> RequestSpec:
    turn = Continuation(session, True, timeout=timeout)
    return replace(RequestSpec(name, PROMPT, 9, ignore_eos=True, session=turn), **fields)


def test_refused_turns_are_answers_with_a_sentence():
    engine = engine_of("eagle3.v2.p4")
    requests = [
        in_session("first"),
        in_session("busy", beside="first", refused=Refusal.IN_FLIGHT),
        in_session("unknown", session="b", refused=Refusal.CLOSED),
        in_session("second", after=("first", "busy")),
    ]
    first, busy, unknown, second = engine.generate(requests)
    assert [len(answer.output_ids) for answer in (first, second)] == [9, 9]
    assert busy.refusal == "session 'a' has request 1 in flight; a streaming session runs one request at a time"
    assert (busy.finish, busy.output_ids, first.refusal) == ("refused", (), "")
    assert unknown.refusal == "session 'b' is not open; open it with open_session"
    assert engine.memory().accounts == 0


def test_the_clock_closes_idle_sessions_only():
    engine = engine_of("eagle3.v2.p4")
    requests = [
        in_session("first", timeout=60.0),
        in_session("busy", timeout=60.0, beside="first", clock=61.0, refused=Refusal.IN_FLIGHT),
        in_session("early", timeout=60.0, after=("first",), clock=59.0),
        in_session("late", timeout=60.0, after=("early",), clock=61.0, refused=Refusal.CLOSED),
    ]
    _, busy, early, late = engine.generate(requests)
    assert "in flight" in busy.refusal and early.cached_tokens > 0
    assert late.refusal == "session 'a' is not open; open it with open_session"
    assert (engine.counters()["session.timed_out"], engine.memory().accounts) == (1, 0)


def test_a_session_closed_while_it_decodes_ends_its_turn():
    engine = engine_of("eagle3.v2.p4")
    requests = [in_session("turn", closes_after=1), in_session("late", after=("turn",), refused=Refusal.CLOSED)]
    turn, late = engine.generate(requests)
    assert (turn.finish, len(turn.output_ids)) == ("length", 9)
    assert late.refusal and engine.memory().accounts == 0


def test_several_completions_are_one_answer_with_further_ones():
    """Beside another request, and each as if it were asked alone with the engine's seed plus its place."""
    engine = engine_of("eagle3.s3.k4.n8.v2")
    one, beside = RequestSpec("q", PROMPT, 12, 2.0, seed=None, n=3), RequestSpec("r", PROMPT, 30, stream=True)
    many, other = engine.generate([one, beside])
    alone = engine.generate([replace(one, name=f"q{i}", n=1, seed=ENGINE_SEED + i) for i in range(3)])
    found = [many, *many.further]
    assert [answer.name for answer in found] == ["q", "q#1", "q#2"]
    assert [answer.output_ids for answer in found] == [answer.output_ids for answer in alone]
    assert len({answer.output_ids for answer in found}) == 3
    assert {answer.prompt_ids for answer in found} == {other.prompt_ids}
    assert len(other.pieces) > 3 and not other.further and engine.memory().accounts == 0
    (lone,) = engine_of("none").generate([RequestSpec("q", PROMPT, 60, ignore_eos=True, n=2)])
    assert [len(one.output_ids) for one in (lone, *lone.further)] == [60, 60], "completions alone make progress"


def test_log_probabilities_of_a_prompt_come_with_its_answer():
    first = RequestSpec("a", PROMPT, 1, prompt_logprobs=0, top_logprobs=2)
    whole, rest = engine_of("none.c7").generate([first, RequestSpec("b", PROMPT, 1, prompt_logprobs=20)])
    assert whole.prompt_logprobs[0] is None and len(whole.prompt_logprobs) == len(whole.prompt_ids)
    assert rest.prompt_logprobs == whole.prompt_logprobs[20:] and {len(top) for top in rest.prompt_top_logprobs} == {0}
    assert [len(top) for top in whole.prompt_top_logprobs] == [0, *[2] * (len(whole.prompt_ids) - 1)]


def test_a_cell_with_a_grammar_is_unsupported_without_its_extra(monkeypatch):
    prepared = prepare(Cell.from_id("eagle3.mixed_lengths.regex"), "cpu", 0, OpenAISubject().requests)
    reads_tokens, reads_texts = (ReferenceSubject(), SglangSubject()), OpenAISubject(owner="vllm")
    assert not any(isinstance(translated(one, prepared), Unsupported) for one in (*reads_tokens, reads_texts))
    monkeypatch.setattr("specmatrix.extras.find_spec", lambda name: None)
    lacks = Unsupported("xgrammar is not installed; install the extra: pip install 'specmatrix[grammar]'")
    assert [translated(one, prepared) for one in reads_tokens] == [lacks, lacks]
    assert isinstance(translated(reads_texts, prepared), EngineCommand)
    assert isinstance(translated(ReferenceSubject(), prepare(Cell(), "cpu", 0)), EngineCommand)


def test_a_request_that_gains_a_token_per_step_is_within_the_budget():
    progress = Progress(chunk=None, lag=1)
    progress.sent(40, 30)
    for count in range(31):
        progress.step({"a": count})
    assert progress.steps == 31 <= progress.limit == 66


def test_steps_without_a_token_are_a_stall_that_names_the_request():
    progress = Progress(chunk=7, lag=0)
    progress.sent(40, 30)
    progress.sent(20, 30)
    assert progress.patience == 2 * (10 + 1 + 8 + 1)
    progress.step({"a": 3, "b": 1})
    progress.step({"a": 3, "b": 2})
    with pytest.raises(Stalled) as caught:
        for _ in range(progress.patience + 1):
            progress.step({"a": 3, "b": 2})
    assert (caught.value.request, caught.value.tokens, caught.value.since) == ("a", 3, 1)
    assert caught.value.idle == progress.patience + 1


def test_too_many_steps_are_a_stall_although_tokens_come_and_go():
    progress = Progress(chunk=None, lag=0)
    progress.sent(1, 4)
    with pytest.raises(Stalled, match=r"have not ended after 13 steps; they need at most 12; a has had"):
        for step in range(20):
            progress.step({"a": step % 2})
    with pytest.raises(Stalled, match="none of them runs"):
        Progress(chunk=None, lag=0).step({})
    stalled = Stalled(65, 1494, 55, "q20", 0, 1)
    again = pickle.loads(pickle.dumps(stalled))
    assert str(again) == str(stalled) and again.request == "q20", "it arrives whole from a rank"
