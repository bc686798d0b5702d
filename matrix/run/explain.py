"""Reruns a cell's requests on a fresh engine with tracing, and adds the trace to the record."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

from msgspec import structs

from specmatrix.errors import described
from specmatrix.matrix.subjects.protocol import Subject, Unsupported
from specmatrix.matrix.workloads.prepared_cell import PreparedCell
from specmatrix.reports.schema import CellResult, FailingRequest, Timeline

Explain = Literal["none", "draft", "red", "every"]
# Total trace time per worker for the drafts of red cells.
TRACE_SECONDS: Final = 20.0
UNTRACED: Final = "only the reference engine with one rank is traced"
UNLIKE: Final = (
    "the traced run on a fresh engine yielded other tokens, so what is red depends on what its engine ran before"
)
UNLIKE_GRAPHS: Final = (
    "the traced run, on a fresh engine without CUDA graphs, yielded other tokens, so what is red depends on graphs or "
    "on what its engine ran before"
)
GRAPHS: Final = "cuda_graph_max_bs"


def explained(result: CellResult, subject: Subject, prepared: PreparedCell) -> CellResult:
    """The record with a timeline, and its first red request with the draft of its round."""
    timeline = traced(subject, prepared)
    ask = result.first_red
    if ask is not None and timeline.events:
        graphs = (result.start.resolved or {}).get(GRAPHS)
        ask = with_tree(ask, timeline, UNLIKE_GRAPHS if graphs else UNLIKE)
    return structs.replace(result, timeline=timeline, first_red=ask)


def traced(subject: Subject, prepared: PreparedCell) -> Timeline:
    """The steps of the cell's requests on a fresh engine without CUDA graphs, which run no Python and so would show no
    drafts; up to its error if it raises one."""
    command = subject.translate(prepared)
    if isinstance(command, Unsupported) or not subject.profile.in_process:
        return Timeline(note=UNTRACED)
    # Import torch, which neither a report nor another engine needs.
    from specmatrix.matrix.run.requests import completions
    from specmatrix.matrix.run.tracer import MAX_EVENTS, Tracer
    from specmatrix.matrix.subjects.in_process import Conversation, ReferenceEngine

    try:
        flags = {name: 0 if name == GRAPHS else value for name, value in command.flags.items()}
        engine = subject.start(replace(command, flags=flags))
    except Exception as error:  # what refuses the cell is in its record
        return Timeline(note=f"the engine did not start: {described(error)}")
    if not isinstance(engine, ReferenceEngine):
        engine.close()
        return Timeline(note=UNTRACED)
    tracer, note, names = Tracer(engine), "", dict[int, str]()

    def renew(what: str) -> None:
        engine.renew(what)
        tracer.attach()

    talk = Conversation(engine.llm, engine.clock, prepared.requests, renew, engine.retract)
    try:
        answers = talk.answers()
        for request, answer in zip(prepared.requests, answers, strict=True):
            names |= {int(one.meta_info["id"]): one.name for _, one in completions(request, answer) if one.meta_info}
    except Exception as error:  # the trace up to it is what the reader needs
        note = f"the traced run ended with {described(error)}"
        names = {rid: name for name, rid in talk.rids.items()}
    if tracer.cut:
        note = "; ".join(filter(None, (note, f"the trace ends after {MAX_EVENTS:,} events")))
    return Timeline(tracer.events(names), note)


def with_tree(ask: FailingRequest, timeline: Timeline, unlike: str) -> FailingRequest:
    """The request with the draft of the round that yielded its wrong token, in a trace that shows the same tokens; with
    the note `unlike` if it does not."""
    if ask.token is None:
        return ask
    yielded, steps = dict[int, int](), dict[int, int]()
    for event in timeline.events:
        for row in event.rows:
            if row.request == ask.request and row.start is not None:
                for place, token in enumerate(row.tokens, row.start):
                    yielded[place], steps[place] = token.id, event.step
    got = {ask.first + place: token.id for place, token in enumerate(ask.got_tokens)}
    if any(yielded.get(place) != token for place, token in got.items()):
        return structs.replace(ask, note=unlike)
    launched = {
        event.step: row
        for event in timeline.events
        for row in event.rows
        if event.event == "launch" and row.request == ask.request
    }
    drafted = launched.get(steps.get(ask.token, -1))
    return ask if drafted is None else structs.replace(ask, tree=drafted.tree, note=drafted.note or ask.note)
