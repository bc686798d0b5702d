"""The first red request: which one a gate blames, and where its journal resolves each of its tokens."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import pytest

from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Blame, Outcome, State
from specmatrix.matrix.gates.ledger import LedgerGate
from specmatrix.matrix.gates.lossless import LosslessGate
from specmatrix.matrix.run.prepared_cell import prepare
from specmatrix.matrix.run.red_ask import decoded, entry_text, red_ask, resolved_at
from specmatrix.matrix.run.runner import Runner, drive
from specmatrix.matrix.subjects.in_process import ReferenceEngine, ReferenceSubject
from specmatrix.matrix.subjects.protocol import Answer, Capability, Memory, RequestSpec, Run, Served
from specmatrix.matrix.workloads.build import prompt_ids

pytestmark = pytest.mark.register(est_seconds=2, stage="pr")

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
    found, entries = told[0].first_red, told[1].engine.journal()[0]
    places = [int(line.split()[0]) for line in found.journal]
    assert found.journal == tuple(f"{place} {entry_text(entries[place])}" for place in places)
    assert len({entries[place][1] for place in places}) == 1 and found.round
    # The KV of the last token of a round is not written yet.
    prompt = len(prompt_ids(RequestSpec("q6", found.prompt, 1)))
    assert 0 <= found.pages.committed - (prompt + AT) < 4
    free = len(found.pages.pages) * found.pages.page_size - found.pages.committed
    assert sum(found.pages.in_flight) <= free


@pytest.mark.parametrize("name", ["eagle3.s3.k4.n8.v2.p4.tight.pair", "ngram.c7.p4.ragged", "none.stream.pair"])
def test_every_token_of_every_request_has_its_round(name: str):
    cell = Cell.from_id(name)
    prepared, subject = prepare(cell), ReferenceSubject()
    engine = subject.start(subject.translate(prepared))
    run = drive(engine, prepared.requests, frozenset(Capability))
    entries, _, size = run.journal
    for served, answer in zip(run.served, run.answers, strict=True):
        places = [resolved_at(entries, size, served, token) for token in range(len(answer.output_ids))]
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


def test_only_red_outcomes_blame():
    passing = Outcome("lossless", State.PASS, blame=Blame("a"))
    unblamed = Outcome("config", State.FAIL)
    assert red_ask(run_with(), run_with(), [passing, unblamed]) is None


def test_without_a_journal_texts_and_tokens_are_told():
    found = red_ask(run_with(), run_with(), [Outcome("finish", State.FAIL, blame=Blame("a"))])
    assert (found.request, found.token, found.journal, found.pages, found.round) == ("a", None, (), None, None)
    assert [one.id for one in found.got_tokens] == [5, 6]


def test_what_cannot_be_described_keeps_the_verdict_and_says_why():
    found = red_ask(run_with(), run_with(), [Outcome("finish", State.FAIL, blame=Blame("ghost"))])
    assert found.request == "ghost" and found.note.startswith("the request could not be described: StopIteration")


def test_a_broken_law_is_told_with_the_pages_before_it():
    entries = [("open", 1, ()), ("reserve", 1, (4, 1)), ("launch", 1, (4,)), ("settle", 1, (9,))]
    run = run_with(journal=(entries, 4, 4), memory=Memory(4, 4, 0, 0), served=(Served("a", 1, 1, (1, 5, 6), 1, 0),))
    outcome = LedgerGate().judge(prepare(Cell.from_id("none")), run, run)
    found = red_ask(run, run, [outcome])
    assert outcome.blame == Blame("a")
    assert found.journal[-1] == "3 settle 9" and found.round is None
    assert (found.pages.pages, found.pages.in_flight, found.pages.committed) == ((1,), (4,), 0)


def test_entries_read_as_sentences():
    assert entry_text(("reserve", 1, (8, 5, 6))) == "reserve 8: pages 5, 6"
    assert entry_text(("reserve", 1, (8,))) == "reserve 8"
    assert entry_text(("close", 1, ())) == "close"
