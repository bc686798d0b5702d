"""The first red request: which one a gate blames, and where its journal resolves each of its tokens."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import ClassVar

import pytest

from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Blame, Outcome, State
from specmatrix.matrix.gates.ledger import LedgerGate
from specmatrix.matrix.gates.lossless import LosslessGate
from specmatrix.matrix.run.failing_request import (
    MAX_TEXT,
    crashed_request,
    decoded,
    entry_text,
    failing_request,
    resolved_at,
    tokens_of,
)
from specmatrix.matrix.run.requests import run_requests
from specmatrix.matrix.run.runner import Runner
from specmatrix.matrix.subjects.in_process import ReferenceEngine, ReferenceSubject
from specmatrix.matrix.subjects.protocol import Answer, Capability, Memory, Run, RunningEngine, Served
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.matrix.workloads.questions import prompt_ids
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.zoo.tokenizer import BOS_ID
from specmatrix.reports.schema import CRASH, AskPages, FailingRequest
from tests.support.tables import table

WRONG, AT = 79, 7


class LyingEngine(ReferenceEngine):
    """Its second request has a wrong token."""

    def generate(self, requests: Sequence[RequestSpec]) -> list[Answer]:
        first, second, *rest = super().generate(requests)
        ids = (*second.output_ids[:AT], WRONG, *second.output_ids[AT + 1 :])
        return [first, replace(second, output_ids=ids), *rest]


class Lying(ReferenceSubject):
    def start_engine(self, config: EngineConfig) -> ReferenceEngine:
        found = super().start_engine(config)
        plain = config.speculative_algorithm == "NONE"
        return found if plain else LyingEngine(found.llm, found.clock)


@pytest.fixture(scope="module")
def told():
    runner = Runner(Lying(), seed=0, gates=(LosslessGate(),))
    return runner.run_cell(Cell.from_id("eagle3.s3.k4.n8.v2.pair")), runner


def test_the_blamed_request_is_told_token_by_token(told):
    found = told[0].first_red
    assert (found.gate, found.request, found.token, found.lag, found.note) == ("lossless", "q6", AT, 1, "")
    assert found.prompt.startswith("Question: ") and found.first == AT - 4
    expected, got = found.expected_tokens, found.got_tokens
    assert expected[:4] == got[:4] and got[4].id == WRONG != expected[4].id
    assert decoded([one.id for one in expected]) in found.expected
    assert got[4].text == decoded([WRONG])


def test_its_journal_and_pages_are_those_of_the_step_that_yielded_the_token(told):
    found, entries = told[0].first_red, told[1].engine.journal()
    places = [int(line.split()[0]) for line in found.journal]
    assert found.journal == tuple(f"{place} {entry_text(entries[place])}" for place in places)
    assert len({entries[place][1] for place in places}) == 1 and found.round
    # The KV of the last token of a round is not written yet.
    prompt = len(prompt_ids(RequestSpec("q6", found.prompt, 1)))
    assert 0 <= found.pages.committed - (prompt + AT) < 4
    free = len(found.pages.pages) * found.pages.page_size - found.pages.committed
    assert sum(found.pages.in_flight) <= free


@pytest.mark.parametrize("name", ["eagle3.s3.k4.n8.v2.p4.tight.pair", "ngram.c7.p4.mixed_lengths", "none.stream.pair"])
def test_every_token_of_every_request_has_its_round(name: str):
    cell = Cell.from_id(name)
    prepared, subject = prepare(cell), ReferenceSubject()
    engine = subject.start(subject.translate(prepared))
    run = run_requests(engine, prepared.requests, frozenset(Capability))
    entries = run.journal
    for served, answer in zip(run.served, run.answers, strict=True):
        places = [resolved_at(entries, served, token) for token in range(len(answer.output_ids))]
        assert None not in places and places[0].round == 0
        assert all(entries[one.entry][:2] == ("settle", served.account) for one in places)
        if not answer.retractions:
            ends = [1, *accumulate(answer.accept_lengths, initial=1)][1:]
            due = [sum(end <= token for end in ends) for token in range(len(places))]
            assert [one.round for one in places] == due
    assert "tight" not in name or any(one.retractions for one in run.served)


def run_with(**changes: object) -> Run:
    answers = (Answer("a", (1,), (5, 6), "", "stop", None, 0, ()),)
    return replace(Run((RequestSpec("a", "Q", 2),), answers, {}, {}, {}, None, None, 0.0), **changes)


def red_of(run: Run, base: Run | None = None, gate: str = "finish", **blame: object) -> FailingRequest:
    """The failing request of a run that blames request a."""
    outcome = Outcome(gate, State.FAIL, blame=Blame(**{"request": "a", **blame}))
    return failing_request(run, base or run, [outcome])


def answered(ids: Sequence[int], name: str = "a", text: str = "its text") -> tuple[Answer, ...]:
    other = Answer("other", (1,), (99,), "", "stop", None, 0, ())
    return (other, replace(other, name=name, output_ids=tuple(ids), text=text))


def test_only_red_outcomes_blame():
    passing = Outcome("lossless", State.PASS, blame=Blame("a"))
    unblamed = Outcome("config", State.FAIL)
    assert failing_request(run_with(), run_with(), [passing, unblamed]) is None
    later = [Outcome(name, state, blame=Blame("a")) for name, state in (("x", State.NOT_MEASURED), ("y", State.FAIL))]
    assert failing_request(run_with(), run_with(), [passing, unblamed, *later]).gate == "x", "the first that is red"


IDS = tuple(range(300, 330))
# Wrong from the 13th token on.
BASE = (*IDS[:12], *range(400, 418))


@pytest.mark.parametrize(
    ("blame", "got", "expected", "token", "first", "shown_got", "shown_expected"),
    [
        ({"token": 12}, IDS, BASE, 12, 8, IDS[8:20], BASE[8:20]),
        ({}, IDS, BASE, 12, 8, IDS[8:20], BASE[8:20]),
        ({"token": 3}, IDS, BASE, 3, 0, IDS[:11], BASE[:11]),
        ({"token": 0}, IDS, BASE, 0, 0, IDS[:8], BASE[:8]),
        # Its tokens are right: the end.
        ({}, IDS, IDS, None, 25, IDS[25:], IDS[25:]),
        ({}, (), (), None, 0, (), ()),
        ({}, IDS[:20], IDS, 20, 16, IDS[16:20], IDS[16:28]),
        ({"got": BASE, "expected": IDS, "note": "as told"}, (7,), (8,), 12, 8, BASE[8:20], IDS[8:20]),
        ({"got": (), "expected": IDS}, (7,), (8,), 0, 0, (), IDS[:8]),
        ({"got": IDS, "expected": ()}, (7,), (8,), 0, 0, IDS[:8], ()),
    ],
)
def test_the_tokens_around_the_break_are_shown(blame, got, expected, token, first, shown_got, shown_expected):
    run = run_with(answers=answered(got), resolved={"lag": 1})
    base = run_with(answers=answered(expected, text="the baseline's"))
    assert red_of(run, base, "lossless", **blame) == FailingRequest(
        "lossless",
        "a",
        prompt="Q",
        got=decoded(blame["got"]) if "got" in blame else "its text",
        expected=decoded(blame.get("expected", expected)),
        token=token,
        first=first,
        got_tokens=tokens_of(shown_got),
        expected_tokens=tokens_of(shown_expected),
        lag=1,
        note=blame.get("note", ""),
    )


def test_a_request_without_an_answer_has_no_tokens_and_a_long_text_is_cut():
    none, whole = run_with(answers=answered((), "b")), run_with(answers=answered(IDS))
    found = red_of(none, whole)
    assert (found.got, found.got_tokens, found.token, found.expected) == ("", (), 0, decoded(IDS))
    found = red_of(whole, none)
    assert (found.got, found.got_tokens, found.token, found.expected) == ("its text", tokens_of(IDS[:8]), 0, "")
    for text, shown in (("x" * MAX_TEXT,) * 2, ("x" * (MAX_TEXT + 1), "x" * (MAX_TEXT - 1) + "…")):
        long = run_with(requests=(RequestSpec("a", text, 2),), answers=answered((), text=text))
        found = red_of(long, run_with())
        assert found.prompt == found.got == shown


LIFE = [
    (verb, account, count, tuple(tuple(one) if isinstance(one, list) else one for one in pages))
    for verb, account, count, pages in table(__file__)["life"]
]
SERVED = Served("a", 7, 7, (), 10, 1)


def test_chunks_rounds_and_a_retraction_are_told_apart():
    places = [(11, 0), *[(14, 1)] * 3, (17, 2), (26, 2), *[(29, 3)] * 2]
    assert [resolved_at(LIFE, SERVED, token) for token in range(9)] == [*places, None]
    assert resolved_at(LIFE, replace(SERVED, account=9), 0) is None


def test_without_a_journal_texts_and_tokens_are_told_and_why_nothing_can_be():
    found = red_of(run_with())
    assert (found.request, found.token, found.journal, found.pages, found.round) == ("a", None, (), None, None)
    assert [one.id for one in found.got_tokens] == [5, 6]
    note = "the request could not be described: StopIteration"
    assert red_of(run_with(), request="ghost") == FailingRequest("finish", "ghost", note=note)


def test_a_turn_begins_behind_what_its_session_kept():
    steps = [("open", 0), ("settle", 8), ("settle", 3), ("hold", 10), ("resume", 2), ("settle", 6), ("settle", 2)]
    entries = [(operation, 7, positions, ()) for operation, positions in steps]
    for prompt, places in ((8, [(1, 0), (2, 1), (2, 1), (2, 1)]), (14, [(5, 0), (6, 1), (6, 1), None])):
        assert [resolved_at(entries, replace(SERVED, prompt=prompt), token) for token in range(4)] == places


def journalled(entries: Sequence, token: int, served: Served = SERVED) -> FailingRequest:
    return red_of(run_with(journal=entries, served=(replace(served, name="b", account=8), served)), token=token)


def lines(*places: int) -> tuple[str, ...]:
    return tuple(f"{place} {entry_text(LIFE[place])}" for place in places)


@pytest.mark.parametrize(
    ("token", "round_", "shown", "pages"),
    [
        (0, 0, (1, 6, 7, 8, 9, 10, 11, 12, 13, 14), AskPages(4, (1, 2, 3), 0, 10, ())),
        (3, 1, (8, 9, 10, 11, 12, 13, 14, 15, 16, 17), AskPages(4, (1, 2, 3, 4), 0, 13, ())),
        (7, 3, (23, 24, 25, 26, 27, 28, 29), AskPages(4, (1, 2, 3, 4, 5), 2, 17, ())),
        (8, None, (), None),
    ],
)
def test_the_entries_around_the_step_and_the_pages_after_it_are_shown(token, round_, shown, pages):
    found = journalled(LIFE, token)
    assert (found.round, found.journal, found.pages, found.note) == (round_, lines(*shown), pages, "")


def test_a_request_that_was_not_served_has_no_entries_and_one_of_a_single_token_those_of_its_prefill():
    run = run_with(answers=answered((5,)), journal=LIFE)
    found = red_of(run)
    assert (found.note, found.journal, found.pages) == ("", (), None)
    assert red_of(replace(run, served=(SERVED,))).round == 0


def test_a_law_that_is_broken_before_the_account_is_open_leaves_no_pages():
    found = journalled([LIFE[0], ("launch", 8, 1, ()), *LIFE[1:]], 3)
    assert (found.round, found.pages) == (None, None)
    assert found.journal == ("2 open 0", "7 reserve 8: pages 1, 2", "8 launch 8")


class Broken(RunningEngine):
    """An engine that raised amid requests a and b."""

    resolved: ClassVar = {"lag": 1}

    def __init__(self, entries: Sequence | None, sent: Sequence[Served]) -> None:
        self.entries, self.sent = entries, tuple(sent)

    def journal(self):
        return self.entries

    def unfinished(self):
        return self.sent


SENT = (replace(SERVED, tokens=(*range(300, 310), 7, 8)), Served("b", 8, 8, (*range(300, 308), 9), 8, 0))
ASKS = (RequestSpec("b", "second?", 9), RequestSpec("a", "first?", 9))


@pytest.mark.parametrize(
    ("end", "name", "ids", "note", "shown", "pages"),
    [
        (14, "a", (7, 8), "launch 4 of a, with 2 output tokens", (6, 7, 8, 9, 10, 11, 12, 13), (1, 2, 3, 4)),
        (6, "b", (9,), "settle 8 of b, with 1 output token", (2, 3, 4, 5), (9, 10)),
    ],
)
def test_a_crash_shows_the_request_whose_account_changed_last(end, name, ids, note, shown, pages):
    flights, committed = {"a": ((4,), 10), "b": ((), 8)}[name]
    assert crashed_request(Broken(LIFE[:end], SENT), ASKS) == FailingRequest(
        CRASH,
        name,
        prompt={"a": "first?", "b": "second?"}[name],
        got=decoded(ids),
        lag=1,
        note=f"the last entry of a request is {note}",
        journal=lines(*shown[-7:]),
        pages=AskPages(4, pages, 0, committed, flights),
    )


def test_a_crash_behind_a_broken_law_shows_the_pages_before_it():
    end = [("settle", 7, 9, ()), ("reserve", 7, 4, ((4,),)), ("close", 9, 0, ())]
    found = crashed_request(Broken([*LIFE[:11], *end], SENT), ASKS)
    assert found.note == "the last entry of a request is reserve 4: pages 4 of a, with 2 output tokens"
    assert found.journal == (*lines(1, 6, 7, 8, 9, 10), "11 settle 9", "12 reserve 4: pages 4")
    assert found.pages == AskPages(4, (1, 2, 3), 0, 8, (2,))


def test_a_crash_without_a_journal_or_an_entry_of_a_request_shows_none():
    for entries, sent in ((None, SENT), ([], SENT), (LIFE, ()), (LIFE[2:6], SENT[:1])):
        assert crashed_request(Broken(entries, sent), ASKS) is None


def test_a_broken_law_is_told_with_the_pages_before_it():
    entries = [LIFE[0], ("open", 1, 0, ()), ("reserve", 1, 4, ((1,),)), ("launch", 1, 4, ()), ("settle", 1, 9, ())]
    run = run_with(journal=entries, memory=Memory(12, 12, 0, 0), served=(Served("a", 1, 1, (1, 5, 6), 1, 0),))
    outcome = LedgerGate().judge(prepare(Cell.from_id("none")), run, run)
    found = failing_request(run, run, [outcome])
    assert outcome.blame == Blame("a")
    assert found.journal[-1] == "4 settle 9" and found.round is None
    assert (found.pages.pages, found.pages.in_flight, found.pages.committed) == ((1,), (4,), 0)


def test_entries_and_special_tokens_read_as_texts():
    pages = ((5, 6), (2,))
    assert [entry_text(("reserve", 1, 8, part)) for part in (pages, ())] == ["reserve 8: pages 5, 6 | 2", "reserve 8"]
    assert entry_text(("close", 1, 0, ())) == "close" and decoded([BOS_ID]) == "<|begin|>"
