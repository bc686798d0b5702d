"""One workload on one engine: what a run holds, what no gate could judge, and answers that go on behind a tie."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.run.requests import completions, run_requests, served
from specmatrix.matrix.run.runner import resumed
from specmatrix.matrix.subjects import protocol
from specmatrix.matrix.subjects.engine_process import EngineFailed
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.matrix.workloads.request import Continuation, Refusal, RequestSpec

PROMPT = "Question: Tom has 12 apples and buys 15 more. How many apples does he have?\nAnswer:"
EVERY = frozenset(protocol.Capability) - {protocol.Capability.ORDER}


def answer(name: str, *ids: int, rid: int = 1, **fields: object) -> protocol.Answer:
    return replace(protocol.Answer(name, (1, 2), ids, "", "length", None, 0, (), meta_info={"id": rid}), **fields)


class Scripted(protocol.RunningEngine):
    """It answers what it was given, and shows every claim by its name, before the answers and behind them."""

    resolved = {"lag": 1}  # noqa: RUF012  # as the protocol has it

    def __init__(self, answers: Sequence[protocol.Answer], before: dict[str, int] | None = None) -> None:
        self.answers, self.before = list(answers), before or {}
        self.asks: list[Sequence[Any]] = []

    def generate(self, asks: Sequence[Any]) -> list[protocol.Answer]:
        self.asks.append(asks)
        return self.answers

    def counters(self):
        return {"a": 5, "b": 2} if self.asks else self.before

    def readback(self):
        return {"depth": 3}

    def journal(self):
        return [("groups", 0, 4, ((0, 8),)), ("open", 1, 0, ())]

    def trace(self):
        return "behind" if self.asks else "before"

    work = lambda self: "work"  # noqa: E731
    resources = lambda self: "resources"  # noqa: E731
    memory = lambda self: "memory"  # noqa: E731
    ranks = lambda self: "ranks"  # noqa: E731


REQUESTS = (RequestSpec("a", "?", 4, n=2), RequestSpec("no", "?", 4, refused=Refusal.CLOSED), RequestSpec("b", "?", 4))
ANSWERS = (
    answer("a", 5, rid=7, further=(answer("", 6, rid=8),)),
    answer("no", refusal="it is closed", finish="refused"),
    answer("b", 7, 9, rid=9, retractions=3),
)
EARLIER = protocol.Served("z", 1, 1, (1,), 1, 0)


def test_an_order_of_rounds_is_a_journal_of_what_a_drafter_read():
    heard = replace(answer("b", 7, rid=9), meta_info={"id": 9, "heard": (7, 8, 9)})
    found = run_requests(Scripted([heard], {}), [REQUESTS[2]], frozenset({protocol.Capability.ORDER}))
    assert found.journal and found.served == (protocol.Served("b", 9, 9, (1, 2, 7, 8, 9), 2, 0),)


@pytest.mark.parametrize(
    ("lacking", "changed"),
    [
        (None, {}),
        (protocol.Capability.JOURNAL, {"journal": None}),
        (protocol.Capability.WORK, {"work": None}),
        (protocol.Capability.RESOURCES, {"resources": None}),
        (protocol.Capability.TRACE, {"trace": None, "earlier": None}),
        (protocol.Capability.RANKS, {"ranks": None}),
    ],
)
@pytest.mark.parametrize(
    "command", [None, protocol.EngineCommand({"depth": 3}, {}, (protocol.SubjectRequest("a", (1,), {}),))]
)
def test_a_run_holds_what_the_subject_claims(lacking, changed, command):
    engine, claims = Scripted(ANSWERS, {"a": 3}), EVERY - {lacking}
    found = run_requests(engine, REQUESTS, claims, (EARLIER,), command)
    assert engine.asks == [REQUESTS if command is None else command.asks] and found.seconds > 0
    expected = protocol.Run(
        requests=(*REQUESTS[0].completions(), REQUESTS[2]),
        answers=(replace(ANSWERS[0], name="a"), answer("a#1", 6, rid=8), ANSWERS[2]),
        resolved={"lag": 1},
        readback={"depth": 3},
        evidence={"a": 2, "b": 2},
        memory="memory",
        journal=[("groups", 0, 4, ((0, 8),)), ("open", 1, 0, ())],
        work="work",
        resources="resources",
        seconds=found.seconds,
        trace="behind",
        earlier="before",
        served=(
            EARLIER,
            protocol.Served("a", 7, 7, (1, 2, 5), 2, 0),
            protocol.Served("a#1", 8, 8, (1, 2, 6), 2, 0),
            protocol.Served("b", 9, 9, (1, 2, 7, 9), 2, 3),
        ),
        attempts=((REQUESTS[1], "it is closed"),),
        ranks="ranks",
        capabilities=claims,
        flags={} if command is None else {"depth": 3},
    )
    assert found == replace(expected, **changed)
    assert not run_requests(Scripted(ANSWERS, {"a": 3}), REQUESTS, claims, None, command).served


def test_a_counter_that_falls_is_the_engines_failure():
    with pytest.raises(EngineFailed, match=r"^counter b fell by 3; counters only grow$") as found:
        run_requests(Scripted(ANSWERS, {"a": 5, "b": 5}), REQUESTS, EVERY)
    assert found.value.verb == "counters"


@pytest.mark.parametrize(
    ("fields", "number"),
    [
        ({"logprobs": (-0.5, nan)}, "nan"),
        ({"prompt_logprobs": (None, inf)}, "inf"),
        ({"top_logprobs": (((7, -0.5), (8, -inf)),)}, "-inf"),
        ({"prompt_top_logprobs": ((), ((7, nan),))}, "nan"),
        ({"prompt_top_logprobs": (None, ((7, nan),))}, "nan"),
        ({"further": (answer("", logprobs=(inf,)),)}, "inf"),
        ({"logprobs": (-0.5,), "prompt_logprobs": (None, 0.0), "top_logprobs": (((7, -0.5),),)}, ""),
    ],
)
def test_numbers_that_are_not_finite_are_the_failure_of_another_engine(fields, number):
    engine = Scripted((*ANSWERS[:2], replace(ANSWERS[2], **fields)))
    run_requests(engine, REQUESTS, EVERY)
    if not number:
        run_requests(engine, REQUESTS, EVERY - {protocol.Capability.RESOLUTION})
        return
    message = f"^the log-probabilities of b include {number}; they must be finite numbers$"
    with pytest.raises(EngineFailed, match=message):
        run_requests(engine, REQUESTS, EVERY - {protocol.Capability.RESOLUTION})


@pytest.mark.parametrize(
    ("further", "refusal", "message"),
    [
        ((), "", "a must have 2 completions, got 1"),
        ((answer(""), answer("")), "", "a must have 2 completions, got 3"),
        ((), "busy", "a must have 2 completions, got 1, as it was refused: busy"),
    ],
)
def test_another_number_of_completions_is_the_failure_of_another_engine(further, refusal, message):
    answers = (answer("a", 5, further=further, refusal=refusal), *ANSWERS[1:])
    with pytest.raises(EngineFailed, match=f"^{message}$"):
        run_requests(Scripted(answers), REQUESTS, EVERY - {protocol.Capability.RESOLUTION})


def turn(name: str, session: str, streaming: bool = True, **fields: object) -> RequestSpec:
    return RequestSpec(name, "?", 4, session=Continuation(session, streaming), **fields)


def test_turns_of_a_streaming_session_share_the_account_of_the_first():
    pairs = [
        (turn("a", "s"), answer("a", 5, rid=1)),
        (turn("b", "t"), answer("b", 5, rid=2)),
        (turn("c", "s"), answer("c", rid=3, refusal="in flight")),  # never sent
        (turn("d", "s", abort_after=0), answer("d", rid=4)),  # aborted in the queue
        (turn("e", "s", abort_after=0), answer("e", rid=5, cached_tokens=2)),
        (turn("f", "s", abort_after=0), answer("f", 5, rid=6)),
        (turn("g", "s", abort_after=1), answer("g", rid=7)),
        (turn("h", "s"), answer("h", rid=8)),
        (turn("i", "s", streaming=False), answer("i", 5, rid=9)),
        (RequestSpec("j", "?", 4, abort_after=0), answer("j", rid=10)),
        (turn("k", "t"), answer("k", 5, rid=11)),
    ]
    found = [(one.name, one.id, one.account) for one in served(pairs)]
    assert found == [
        ("a", 1, 1), ("b", 2, 2), ("e", 5, 1), ("f", 6, 1), ("g", 7, 1), ("h", 8, 1), ("i", 9, 9), ("j", 10, 10),
        ("k", 11, 2),
    ]  # fmt: skip


class Ties:
    """An oracle that finds ties of request a at tokens 2 and 4 of its text, wherever it is asked from."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def next_tie(self, target: str, request: RequestSpec, start: int, got: Sequence[int], half: bool) -> int | None:
        self.seen.append((target, request.name, start, got))
        return next((place for place in (2, 4) if place >= start), None) if request.name in ("a", "c") else None

    def text(self, target: str, request: RequestSpec) -> tuple[int, ...]:
        assert (target, request.name) == ("qwen3-mini", "a")
        return tuple(range(100, 110))


def test_an_answer_goes_on_from_the_oracles_text_behind_each_tie():
    class Continues(protocol.RunningEngine):
        given: list[protocol.SubjectRequest] = []  # noqa: RUF012

        def generate(self, asks: Sequence[protocol.SubjectRequest]) -> list[protocol.Answer]:
            self.given += asks
            return [answer("a", *range(len(self.given), 9))]

    names = ("b", "a", "c")
    run = run_requests(
        Scripted([answer(name, 50) for name in names]), [RequestSpec(name, "?", 4) for name in names], EVERY
    )
    first = protocol.SubjectRequest("a", (1, 2), {"best": 2}, ("b",), 3, Continuation("s", True))
    command = protocol.EngineCommand({}, {}, (protocol.SubjectRequest("b", (3,), {}), first, RequestSpec("c", "?", 4)))  # type: ignore[arg-type]
    engine, ties, plain = Continues(), Ties(), prepare(Cell.from_id("none.qwen3.nocache.pair"))
    found = resumed(engine, command, plain, run, ties)  # type: ignore[arg-type]
    assert found == {"a": [(3, tuple(range(1, 9))), (5, tuple(range(2, 9)))]}
    alone = replace(first, after=(), session=None)
    given = [(1, 2, 100, 101, 102), (1, 2, 100, 101, 102, 103, 104)]
    assert engine.given == [replace(alone, input_ids=ids) for ids in given]
    assert [row[1:] for row in ties.seen] == [
        ("b", 0, (50,)), ("a", 0, (50,)), ("a", 3, tuple(range(1, 9))), ("a", 5, tuple(range(2, 9))), ("c", 0, (50,)),
    ]  # fmt: skip


def test_completions_are_requests_of_their_own():
    request = RequestSpec("q", "?", 1, seed=None, n=3)
    found = completions(request, replace(answer("q", 5), further=(answer("", 6), answer("", 7))))
    told = [(one.name, one.n, one.seed, got.name, got.output_ids) for one, got in found]
    assert told == [(name, 1, None, name, (token,)) for name, token in (("q", 5), ("q#1", 6), ("q#2", 7))]
    assert completions(request, answer("q", 5)) == [(replace(request, n=1), answer("q", 5))]
