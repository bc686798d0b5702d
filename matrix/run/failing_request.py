"""Describes the first request that a red gate blames: texts, tokens around the break, round, journal and pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from specmatrix.errors import described
from specmatrix.matrix.gates.gate import Blame, Outcome, State
from specmatrix.matrix.gates.pairing import first_difference
from specmatrix.matrix.oracles.ledger import Audit, AuditError, audit
from specmatrix.matrix.subjects.protocol import Answer, Capability, Journal, JournalEntry, Run, RunningEngine, Served
from specmatrix.matrix.workloads.questions import tokenizer
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.reports.schema import CRASH, AskPages, FailingRequest, Token
from specmatrix.reports.wording import count

# Tokens shown before the first wrong token, and from it on.
BEFORE: Final = 4
AFTER: Final = 8
# Entries of the journal shown up to the step, and after it.
ENTRIES_BEFORE: Final = 7
ENTRIES_AFTER: Final = 3
MAX_TEXT: Final = 2000


class Settled(NamedTuple):
    """Where the journal resolves a token: the entry, and the request's verify round (0 for its prefill)."""

    entry: int
    round: int


def failing_request(run: Run, baseline: Run, outcomes: Sequence[Outcome]) -> FailingRequest | None:
    """The first request that a red outcome blames; None if none blames any."""
    for outcome in outcomes:
        if outcome.state is not State.PASS and outcome.blame is not None:
            try:
                return _described(outcome.gate, outcome.blame, run, baseline)
            except Exception as error:  # a defective run may contain anything; its verdict stands
                note = f"the request could not be described: {described(error)}"
                return FailingRequest(outcome.gate, outcome.blame.request, note=note)
    return None


def crashed_request(engine: RunningEngine, requests: Sequence[RequestSpec]) -> FailingRequest | None:
    """The request whose ledger account an engine changed last before it raised; None if it shows none."""
    sent = {one.account: one for one in engine.unfinished()}
    journal = engine.journal()
    last = next((entry for entry in reversed(journal or ()) if entry[1] in sent), None)
    if journal is None or last is None:
        return None
    one = sent[last[1]]
    prompt = next(request.prompt for request in requests if request.name == one.name)
    output = one.tokens[one.prompt :]
    note = f"the last entry of a request is {entry_text(last)} of {one.name}, with {count(len(output), 'output token')}"
    got, lag = _cut(decoded(output)), engine.resolved.get("lag")
    found = FailingRequest(CRASH, one.name, prompt=_cut(prompt), got=got, lag=lag, note=note)
    end, table = _audited(journal, None)
    return _with_entries(found, journal, one.account, len(journal) if end is None else end, table)


def _described(gate: str, blame: Blame, run: Run, baseline: Run) -> FailingRequest:
    request = next(each for each in run.requests if each.name == blame.request)
    mine, base = _answer(run, request.name), _answer(baseline, request.name)
    got = blame.got if blame.got is not None else mine.output_ids if mine else ()
    expected = blame.expected if blame.expected is not None else base.output_ids if base else ()
    # The break, or the end of a request whose tokens are right.
    at = blame.token if blame.token is not None else first_difference(got, expected)
    middle = max(0, len(got) - 1) if at is None else at
    first = max(0, middle - BEFORE)
    found = FailingRequest(
        gate,
        request.name,
        prompt=_cut(request.prompt),
        got=_cut(mine.text if mine and blame.got is None else decoded(got)),
        expected=_cut(decoded(expected)),
        token=at,
        first=first,
        got_tokens=tokens_of(got[first : middle + AFTER]),
        expected_tokens=tokens_of(expected[first : middle + AFTER]),
        lag=run.resolved.get("lag"),
        note=blame.note,
    )
    served = next((one for one in run.served if one.name == request.name), None)
    if served is None or run.journal is None or Capability.JOURNAL not in run.capabilities:
        return found
    return _with_journal(found, run.journal, served, middle)


def _with_journal(found: FailingRequest, journal: Journal, served: Served, token: int) -> FailingRequest:
    """Add the round that resolved a token, the ledger's entries around it and the page table after it.

    If an entry of the account breaks a law, show the entries around that one and the page table before it.
    """
    place = resolved_at(journal, served, token)
    asked = None if place is None else place.entry + 1
    end, table = _audited(journal, asked)
    if end is None:
        return found
    verify_round = place.round if place is not None and end == asked else None
    return replace(_with_entries(found, journal, served.account, end, table), round=verify_round)


def _audited(journal: Journal, end: int | None) -> tuple[int | None, Audit]:
    """(index, ledger) after the first `end` entries (None: all), or before the first entry that breaks a law."""
    try:
        return end, audit(journal[:end])
    except AuditError as broken:
        return broken.index, audit(journal[: broken.index])


def _with_entries(found: FailingRequest, entries: Journal, account: int, end: int, table: Audit) -> FailingRequest:
    own = [index for index, entry in enumerate(entries) if entry[1] == account]
    shown = [index for index in own if index < end][-ENTRIES_BEFORE:] + [i for i in own if i >= end][:ENTRIES_AFTER]
    return replace(
        found,
        journal=tuple(f"{index} {entry_text(entries[index])}" for index in shown),
        pages=_page_table(table, account),
    )


def resolved_at(entries: Journal, served: Served, token: int) -> Settled | None:
    """The entry that settles the step of a request's output token; None if there is none.

    The prefill, and each one after a retraction, ends with its own token; a round adds what it accepts.
    """
    committed = emitted = rounds = 0
    prefilling = False
    for index, (operation, account, positions, _) in enumerate(entries):
        if account != served.account:
            continue
        if operation in ("open", "hold"):
            committed = positions
            prefilling = True
        elif operation == "resume":
            committed -= positions
            prefilling = True
        elif operation == "settle":
            committed += positions
            if prefilling and committed < served.prompt + emitted:
                continue  # a chunk that is not the last
            rounds += not prefilling
            prefilling, emitted = False, committed - served.prompt + 1
            if emitted > token:
                return Settled(index, rounds)
    return None


def _page_table(table: Audit, account: int) -> AskPages | None:
    holding = table.holdings.get(account)
    if holding is None:
        return None
    lane = table.groups[0].lanes[account]
    return AskPages(table.size, tuple(lane.pages), lane.shared, holding.committed, tuple(holding.flights))


def entry_text(entry: JournalEntry) -> str:
    """A journal entry as text, with the pages of each KV group: `reserve 8: pages 5, 6 | 2`."""
    operation, _, number, pages = entry
    text = operation if operation == "close" else f"{operation} {number}"
    return text + (f": pages {' | '.join(', '.join(map(str, part)) for part in pages)}" if pages else "")


def tokens_of(ids: Sequence[int]) -> tuple[Token, ...]:
    """Tokens with their texts."""
    return tuple(Token(int(one), decoded([one])) for one in ids)


def decoded(ids: Sequence[int]) -> str:
    """The text of tokens, special ones included."""
    return str(tokenizer().decode(list(ids), skip_special_tokens=False))


def _answer(run: Run, name: str) -> Answer | None:
    return next((answer for answer in run.answers if answer.name == name), None)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
