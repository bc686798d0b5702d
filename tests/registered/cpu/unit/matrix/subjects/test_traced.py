"""Traces of the reference engine: what they show is what the engine did, and they change nothing."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.lossless import LosslessGate
from specmatrix.matrix.run.explain import UNLIKE, UNTRACED, traced
from specmatrix.matrix.run.prepared_cell import prepare
from specmatrix.matrix.run.red_ask import entry_text
from specmatrix.matrix.run.runner import Runner
from specmatrix.matrix.subjects import traced as trace_module
from specmatrix.matrix.subjects.in_process import ReferenceEngine, ReferenceSubject
from specmatrix.matrix.subjects.protocol import Answer, Profile, RequestSpec, RunningEngine
from specmatrix.matrix.subjects.traced import Tracer

pytestmark = pytest.mark.register(est_seconds=3, stage="pr")


@pytest.mark.parametrize("name", ["eagle3.s3.k4.n8.v2.p4.tight.pair", "ngram.c7.v1.pair.mixed"])
def test_a_trace_shows_what_the_engine_did_and_changes_nothing(name: str):
    prepared, subject = prepare(Cell.from_id(name)), ReferenceSubject()
    command = subject.translate(prepared)
    plain, watched = subject.start(command), subject.start(command)
    tracer, known = Tracer(watched), len(watched.journal()[0])
    answers = watched.generate(prepared.requests)
    assert answers == plain.generate(prepared.requests)
    names = {answer.meta_info["id"]: answer.name for answer in answers}
    events = tracer.events(names)
    entries = [f"{names.get(one[1], 'ledger')}: {entry_text(one)}" for one in watched.journal()[0][known:]]
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
    timeline = traced(ReferenceSubject(), prepare(Cell.from_id("eagle3.s3.k4.n8.v2.ragged")))
    drafts = {
        (event.step, row.request): row.tree
        for event in timeline.events
        for row in event.rows
        if event.event == "launch"
    }
    rounds = [event for event in timeline.events if event.event == "resolve" and not event.prefill]
    compared = 0
    for event in rounds:
        for row in event.rows:
            path = [node for node in drafts[event.step, row.request] if node.accepted]
            assert list(row.tokens) == [node.draw for node in path][: len(row.tokens)]
            assert [node.token for node in path[1:]] == [node.draw for node in path[:-1]]
            compared += len(row.tokens)
    assert compared > 100 and timeline.note == ""


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


def test_a_trace_ends_with_the_error_of_its_run(monkeypatch):
    found = traced(ReferenceSubject(), prepare(Cell.from_id("none")))
    assert found.note == "" and found.events

    def broken(self: Tracer, *given: object) -> None:
        raise KeyError("no such row")

    monkeypatch.setattr(Tracer, "resolved", broken)
    found = traced(ReferenceSubject(), prepare(Cell.from_id("none")))
    assert found.note == "the traced run ended with KeyError: 'no such row'"
    assert {event.event for event in found.events} == {"schedule", "launch"}


def test_a_long_trace_says_where_it_ends(monkeypatch):
    whole = len(traced(ReferenceSubject(), prepare(Cell.from_id("none"))).events)
    for most, note in ((5, "the trace ends after 5 events"), (whole, "")):
        monkeypatch.setattr(trace_module, "MOST_EVENTS", most)
        found = traced(ReferenceSubject(), prepare(Cell.from_id("none")))
        assert (len(found.events), found.note) == (most, note)


class RecordsOptions(ReferenceSubject):
    def start(self, command):
        self.flags = command.flags
        raise OSError("no GPU")


def test_what_is_traced_is_asked_to_run_without_graphs():
    subject = RecordsOptions()
    wide = replace(prepare(Cell.from_id("none")), tier="gpu1")
    assert traced(subject, wide).note == "the engine did not start: OSError: no GPU"
    assert subject.flags["cuda_graph_max_bs"] == 0


class Remote(ReferenceSubject):
    profile = Profile(ReferenceSubject.profile.capabilities)


class BareEngine(RunningEngine):
    """An engine that shows nothing."""

    def generate(self, asks):
        return []


class Grouped(ReferenceSubject):
    """Its engine is not the one of this process, as with several ranks."""

    def start(self, command):
        return BareEngine()


class Refusing(ReferenceSubject):
    def start(self, command):
        raise OSError("no memory")


@pytest.mark.parametrize(
    ("subject", "cell", "note"),
    [
        (Remote(), "none", UNTRACED),
        (Grouped(), "none.tp2.pair", UNTRACED),
        (Refusing(), "none", "the engine did not start: OSError: no memory"),
    ],
)
def test_what_cannot_be_traced_is_said(subject, cell: str, note: str):
    found = traced(subject, prepare(Cell.from_id(cell)))
    assert (found.events, found.note) == ((), note)
