"""Requests that end at the last position of the context, as the engine counts it, whatever they continue."""

from dataclasses import replace

import pytest

from specmatrix.matrix.cells.cell import SHORT_CONTEXT, Cell, asked
from specmatrix.matrix.run.requests import run_requests
from specmatrix.matrix.subjects.in_process import ReferenceSubject
from specmatrix.matrix.workloads.boundaries import fill_context
from specmatrix.matrix.workloads.build import workload
from specmatrix.matrix.workloads.questions import tokenizer
from specmatrix.matrix.workloads.request import Continuation, Refusal, RequestSpec


def tokens(text: str) -> int:
    """A begin token and one for each word."""
    return 1 + len(text.split())


def request(name: str, prompt: str, limit: int, session: Continuation | None = None, *after: str) -> RequestSpec:
    return RequestSpec(name, prompt, limit, session=session, after=after)


def test_only_a_request_without_a_successor_is_longer():
    line = Continuation("s", True)
    requests = [
        request("a", "one two", 5, line),
        request("b", "three", 4, Continuation("s", True, "a"), "a"),
        request("c", "four five", 1, Continuation("s", True, "b"), "b"),
        request("plain", "six", 9),
    ]
    first, second, over, last, plain = fill_context(requests, 40, tokens)
    assert (first, second) == (requests[0], requests[1])
    # 1 + 2 + 5, then 1 + 4, then 2: a continuation has no begin token.
    assert (last.name, last.max_new_tokens, last.after) == ("c", 40 - 15, ("b", "c.over"))
    assert (over.name, over.max_new_tokens, over.after, over.refused) == ("c.over", 26, ("b",), Refusal.CONTEXT)
    assert (plain.name, plain.max_new_tokens) == ("plain", 40 - 2)


def test_a_branch_keeps_the_shared_part_of_its_history():
    root = request("root", "one two three", 6, Continuation("b", False))
    bare = request("bare", "x", 1, Continuation("b", False, "root", drop_previous_output=True))
    back = request("back", "x", 1, Continuation("b", False, "root", offset=2, replace=True))
    far = replace(request("far", "x", 1, Continuation("b", False, "root", offset=1_000_000)), refused=Refusal.RANGE)
    longer = {one.name: one.max_new_tokens for one in fill_context([root, bare, back, far], 30, tokens)}
    assert longer == {"root": 6, "bare.over": 26, "bare": 25, "back.over": 28, "back": 27, "far": 1}


@pytest.mark.parametrize("kind", ["pair.length", "pair.stream.length", "pair.branch.length"])
def test_they_end_there_in_the_engine_and_a_token_more_is_refused(kind):
    cell = Cell.from_id(f"none.v1.p16.ctx.{kind}")
    subject = ReferenceSubject()
    engine = subject.start_engine(asked(cell))
    run = run_requests(engine, workload(cell, 0), subject.profile.capabilities)
    whole = {a.name: len(a.prompt_ids) + len(a.output_ids) for a in run.answers}
    followed = {one.session.follows for one in run.requests if one.session is not None}
    ends = [name for name in whole if name not in followed]
    assert ends and {whole[name] for name in ends} == {SHORT_CONTEXT} == {engine.resolved["context_length"]}
    assert run.evidence["finish.context"] == len(ends)
    assert {a.finish for a in run.answers} == {"length"}
    over = {one.name: sentence for one, sentence in run.attempts if one.name.endswith(".over")}
    assert len(over) == (0 if kind == "pair.length" else len(ends))
    assert all(f"is {SHORT_CONTEXT + 1} tokens; allowed: at most the context" in text for text in over.values())


def test_a_longer_context_has_the_other_requests():
    short, model = (workload(Cell.from_id(f"none.{context}pair.length"), 0) for context in ("ctx.", ""))
    assert [one.max_new_tokens for one in model] == [37, 53]
    for one, other in zip(short, model, strict=True):
        assert one.prompt == other.prompt
        assert one.max_new_tokens == SHORT_CONTEXT - len(tokenizer().encode(one.prompt).ids)
