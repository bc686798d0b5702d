"""Traces of the reference engine: what they show is what the engine did, and they change nothing."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
from msgspec.structs import replace as replace_struct

from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.lossless import LosslessGate
from specmatrix.matrix.run import tracer as trace_module
from specmatrix.matrix.run.explain import UNLIKE, UNLIKE_GRAPHS, UNTRACED, explained, traced, with_tree
from specmatrix.matrix.run.failing_request import entry_text, tokens_of
from specmatrix.matrix.run.provenance import lost
from specmatrix.matrix.run.runner import Runner
from specmatrix.matrix.run.tracer import Tracer
from specmatrix.matrix.subjects.in_process import ReferenceEngine, ReferenceSubject
from specmatrix.matrix.subjects.protocol import Answer, Profile, RunningEngine, Unsupported
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.reports.schema import FailingRequest, StepEvent, StepRow, Timeline, Token, TreeNode


@pytest.mark.parametrize("name", ["eagle3.s3.k4.n8.v2.p4.tight.pair", "ngram.c7.v1.pair.mixed"])
def test_a_trace_shows_what_the_engine_did_and_changes_nothing(name: str):
    prepared, subject = prepare(Cell.from_id(name)), ReferenceSubject()
    command = subject.translate(prepared)
    plain, watched = subject.start(command), subject.start(command)
    tracer, known = Tracer(watched), len(watched.journal())
    answers = watched.generate(prepared.requests)
    assert answers == plain.generate(prepared.requests)
    names = {answer.meta_info["id"]: answer.name for answer in answers}
    events = tracer.events(names)
    entries = [f"{names.get(one[1], 'ledger')}: {entry_text(one)}" for one in watched.journal()[known:]]
    seen = [line for event in events for line in event.journal]
    assert seen == entries[: len(seen)] and len(entries) - len(seen) <= 2 * len(answers)  # pages are freed behind it
    steps = {event.step for event in events}
    assert [event.step for event in events if event.event == "launch"] == sorted(steps)
    assert {event.event for event in events} == {"schedule", "launch", "resolve"}
    rows = [row for event in events for row in event.rows]
    assert not [row.note for row in rows if row.note]
    for answer in answers:
        mine = [row for row in rows if row.request == answer.name]
        assert [token.id for row in mine for token in row.tokens] == list(answer.output_ids)
        assert mine[-1].outcome and max(row.width for row in mine if row.tree) == max(answer.round_widths)


def test_the_draws_along_the_accepted_path_are_the_tokens_of_the_round():
    timeline = traced(ReferenceSubject(), prepare(Cell.from_id("eagle3.s3.k4.n8.v2.mixed_lengths")))
    launches = [event for event in timeline.events if event.event == "launch"]
    drafts = {(event.step, row.request): row.tree for event in launches for row in event.rows}
    rounds = [event for event in timeline.events if event.event == "resolve" and not event.prefill]
    compared = [(row, drafts[event.step, row.request]) for event in rounds for row in event.rows]
    for row, draft in compared:
        path = [node for node in draft if node.accepted]
        assert list(row.tokens) == [node.draw for node in path][: len(row.tokens)]
        assert [node.token for node in path[1:]] == [node.draw for node in path[:-1]]
    assert sum(len(row.tokens) for row, _ in compared) > 100 and timeline.note == ""


def test_a_red_token_has_the_draft_of_the_round_that_yielded_it():
    prepared = prepare(Cell.from_id("eagle3.s3.k4.n8.v2.pair"))
    engine = ReferenceSubject().start(ReferenceSubject().translate(prepared))
    timeline = traced(ReferenceSubject(), prepared)
    for answer in engine.generate(prepared.requests):
        ids = answer.output_ids
        for begin, end in pairwise(accumulate(answer.accept_lengths, initial=1)):
            for place in range(begin, min(end, len(ids))):
                first = max(0, place - 4)
                known = {"token": place, "first": first, "got_tokens": tokens_of(ids[first:end])}
                ask = FailingRequest("lossless", answer.name, **known)
                found = with_tree(ask, timeline, UNLIKE)
                draws = tuple(node.draw.id for node in found.tree if node.accepted)
                assert draws[: len(ids) - begin] == ids[begin:end] and found == replace_struct(ask, tree=found.tree)


def event(what: str, step: int, **rows: StepRow) -> StepEvent:
    return StepEvent(what, step, False, tuple(replace_struct(row, request=name) for name, row in rows.items()))


def yielded(start: int, *ids: int) -> StepRow:
    return StepRow("", 2, tokens=tokens_of(ids), start=start)


NODE = TreeNode(-1, Token(5, "a"), Token(6, "b"), 0.5, True)
DRAWN, OTHER = (NODE,), (replace_struct(NODE, margin=0.25),)
# The tokens 4 to 6 of request a are 7, 8 and 9: the first two of step 2, the other of step 3.
TIMELINE = Timeline(
    (
        event("launch", 1, a=StepRow("", 2, tree=OTHER)),
        event("launch", 2, b=StepRow("", 2, tree=OTHER), a=StepRow("", 2, tree=DRAWN, note="an old root")),
        event("launch", 3, a=StepRow("", 2, tree=OTHER)),
        event("resolve", 2, b=yielded(4, 3, 4), a=yielded(4, 7, 8)),
        event("resolve", 3, a=yielded(6, 9)),
    )
)
ASK = FailingRequest("lossless", "a", token=5, first=4, got_tokens=tokens_of([7, 8, 9]), note="it was wrong")


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, {"tree": DRAWN, "note": "an old root"}),
        ({"token": 4}, {"tree": DRAWN, "note": "an old root"}),
        ({"token": 6}, {"tree": OTHER}),
        ({"token": 7}, {}),
        ({"token": None}, {}),
        ({"token": None, "got_tokens": tokens_of([1])}, {}),
        ({"token": 6, "first": 5}, {"note": UNLIKE}),
        ({"got_tokens": tokens_of([7, 8, 9, 1])}, {"note": UNLIKE}),
        ({"got_tokens": tokens_of([7, 1])}, {"note": UNLIKE}),
        ({"request": "b"}, {"note": UNLIKE}),
        ({"request": "c"}, {"note": UNLIKE}),
    ],
)
def test_the_draft_is_that_of_the_blamed_request_and_of_the_step_of_its_token(changed, expected):
    ask = replace_struct(ASK, **changed)
    assert with_tree(ask, TIMELINE, UNLIKE) == replace_struct(ask, **expected)


@pytest.mark.parametrize(("graphs", "note"), [(8, UNLIKE_GRAPHS), (0, UNLIKE), (None, UNLIKE)])
def test_other_tokens_may_be_those_of_graphs_where_the_cell_had_any(graphs, note):
    prepared = prepare(Cell.from_id("none"))
    result = lost(prepared, "x")
    start = replace_struct(result.start, resolved=None if graphs is None else {"cuda_graph_max_bs": graphs})
    result = replace_struct(result, start=start, first_red=ASK)
    found = explained(result, ReferenceSubject(), prepared)
    assert found == replace_struct(result, timeline=found.timeline, first_red=replace_struct(ASK, note=note))
    assert found.timeline.events
    untraced = explained(result, Remote(), prepared)
    assert untraced == replace_struct(result, timeline=Timeline(note=UNTRACED)), "its note stays"
    assert explained(replace_struct(result, first_red=None), Remote(), prepared).first_red is None


def test_rounds_behind_a_renewal_are_traced_too(monkeypatch):
    renewed, renew = [], ReferenceEngine.renew
    monkeypatch.setattr(ReferenceEngine, "renew", lambda self, what: (renewed.append(what), renew(self, what)))
    requests = tuple(
        RequestSpec(name, "Question: 1+1?", 9, renewal=renewal, after=after)
        for name, renewal, after in (("a", "", ()), ("b", "weights", ("a",)), ("c", "memory", ("b",)))
    )
    found = traced(ReferenceSubject(), prepare(Cell.from_id("eagle3"), workload=lambda *_: requests))
    assert renewed == ["weights", "memory"]
    rounds = [event for event in found.events if event.event == "launch" and not event.prefill]
    assert {row.request for event in rounds for row in event.rows} == {"a", "b", "c"} and found.note == ""
    assert all(row.tree for event in rounds for row in event.rows)


class Lying(ReferenceSubject):
    """Its answers have a wrong token, which its engine never drew."""

    def start_engine(self, config: EngineConfig) -> ReferenceEngine:
        engine = super().start_engine(config)
        return LyingEngine(engine.llm, engine.clock) if config.speculative_algorithm != "NONE" else engine


class LyingEngine(ReferenceEngine):
    def generate(self, requests: Sequence[RequestSpec]) -> list[Answer]:
        first, *rest = super().generate(requests)
        return [replace(first, output_ids=(79, *first.output_ids[1:])), *rest]


def test_a_trace_with_other_tokens_is_no_evidence_of_the_first_run():
    runner = Runner(Lying(), seed=0, gates=(LosslessGate(),), explain="red")
    cell = runner.run_cell(Cell.from_id("eagle3.s3.pair"))
    assert cell.first_red.note == UNLIKE and cell.first_red.tree == () and cell.timeline.events
    assert Runner(ReferenceSubject(), seed=0, explain="red").run_cell(Cell.from_id("none")).timeline is None


def test_red_cells_are_traced_for_their_drafts_until_the_time_is_over(monkeypatch):
    seconds = iter([0.0, 1.0, 22.0, 30.0, 31.0, 32.0, *range(40, 60)])
    monkeypatch.setattr("specmatrix.matrix.run.runner.perf_counter", lambda: next(seconds))
    runner = Runner(Lying(), seed=0, gates=(LosslessGate(),), explain="draft")
    first, second = (runner.run_cell(Cell.from_id("eagle3.s3.pair")) for _ in range(2))
    assert (first.first_red.note, second.first_red.note) == (UNLIKE, "")
    assert (first.timeline, runner.run_cell(Cell.from_id("none")).first_red) == (None, None)


def test_a_trace_says_where_it_ends_and_with_which_error(monkeypatch):
    def trace_of():
        return traced(ReferenceSubject(), prepare(Cell.from_id("none")))

    whole = trace_of()
    for most, note in ((5, "the trace ends after 5 events"), (len(whole.events), "")):
        monkeypatch.setattr(trace_module, "MAX_EVENTS", most)
        assert (len(trace_of().events), trace_of().note) == (most, note)

    def broken(self: Tracer, *given: object) -> None:
        raise KeyError("no such row")

    monkeypatch.setattr(Tracer, "resolved", broken)
    found, error = trace_of(), "the traced run ended with KeyError: 'no such row'"
    assert found.note == error and {event.event for event in found.events} == {"schedule", "launch"}
    names = {request.name for request in prepare(Cell.from_id("none")).requests}
    assert {row.request for event in found.events for row in event.rows} == names
    monkeypatch.setattr(trace_module, "MAX_EVENTS", 1)
    assert trace_of().note == f"{error}; the trace ends after 1 events"


class Refusing(ReferenceSubject):
    def start(self, command):
        self.flags = command.flags
        raise OSError("no memory")


def test_what_is_traced_is_asked_to_run_without_graphs():
    subject = Refusing()
    traced(subject, replace(prepare(Cell.from_id("none")), tier="gpu1"))
    assert subject.flags["cuda_graph_max_bs"] == 0


class Remote(ReferenceSubject):
    profile = Profile(ReferenceSubject.profile.capabilities)


class BareEngine(RunningEngine):
    """An engine that shows nothing."""

    closed = False

    def generate(self, asks):
        return []

    def close(self):
        self.closed = True


class Grouped(ReferenceSubject):
    """Its engine is not the one of this process, as with several ranks."""

    def start(self, command):
        self.engine = BareEngine()
        return self.engine


class Unable(ReferenceSubject):
    def translate(self, prepared):
        return Unsupported("it has no such cell")


@pytest.mark.parametrize(
    ("subject", "cell", "note"),
    [
        (Remote(), "none", UNTRACED),
        (Grouped(), "none.tp2.pair", UNTRACED),
        (Unable(), "none", UNTRACED),
        (Refusing(), "none", "the engine did not start: OSError: no memory"),
    ],
)
def test_what_cannot_be_traced_is_said(subject, cell: str, note: str):
    found = traced(subject, prepare(Cell.from_id(cell)))
    assert (found.events, found.note) == ((), note)
    assert not isinstance(subject, Grouped) or subject.engine.closed
