"""The gate `schedule` sees every departure of steps, pages and forwards from what the workload needs."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from specmatrix.engine.device.cuda_graphs import padded
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Blame, State
from specmatrix.matrix.gates.schedule import ScheduleGate
from specmatrix.matrix.oracles.forwards import graph_batch
from specmatrix.matrix.subjects.protocol import Moment, Stalled, StepForwards

GATE = ScheduleGate()
TIGHT = "standalone.s1.k1.v2.p4.tight.burst"
TREE = "eagle3.s3.k4.n8.v2.mixed_lengths"


def judged(measured, cell, journal=None, **log: object):
    """The verdict on a measured run with another journal or another log of its work."""
    prepared, run, baseline = measured(cell)
    work = replace(run.work, **log)
    return GATE.judge(prepared, replace(run, work=work, journal=journal or run.journal), baseline)


def changed(measured, cell, change):
    """The run's journal with `change` applied to its list of entries."""
    entries = list(measured(cell)[1].journal)
    change(entries)
    return entries


def place(entries, operation, nth=0):
    return [index for index, entry in enumerate(entries) if entry[0] == operation][nth]


def test_the_account_of_a_run_under_memory_pressure(measured):
    _, run, _ = measured(TIGHT)
    outcome = judged(measured, TIGHT)
    assert (outcome.state, outcome.message) == (State.PASS, "")
    numbers = outcome.numbers
    assert numbers["retracted"] == run.evidence["retract.done"] > 0
    assert numbers["evicted"] == run.evidence["prefix.evict"] > 0
    assert numbers["reused"] == run.evidence["prefix.hit"] + run.evidence["session.inherited"]
    assert 0 < numbers["peak_pages"] <= run.resolved["num_pages"] and numbers["needless"] == numbers["dropped"] == 0
    assert numbers["steps"] >= len(run.work.forwards) and numbers["read"] == sum(
        step.read for step in run.work.forwards
    )
    known = {one.id: one.prompt for one in run.served}
    assert numbers["computed"] + numbers["reused"] >= sum(known.values())


@pytest.mark.parametrize(
    ("cell", "runs", "needs"),
    [
        (TREE, "2 requests by 8", "2 x 4, 2 x 4, 2 x 4"),
        ("dflash.n4.mixed_lengths", "1 requests by 4", "1 x 4, 1 x 4"),
        ("ngram.v2.pair", "1 requests by 12", ""),
        ("nextn.deepseek.s2.v2.mixed_lengths", "1 requests by 3", "1 x 4, 1 x 4"),
        ("eagle3.qwen3.s3.v2.p4.nocache.c7.tight.mixed_lengths", "1 requests by 4", "1 x 1, 1 x 1, 1 x 4"),
    ],
)
def test_every_kind_of_drafter_needs_its_own_forwards(measured, cell, runs, needs):
    outcome = judged(measured, cell)
    assert (outcome.state, outcome.message) == (State.PASS, "") and outcome.numbers["forwards"] > 0
    _, run, _ = measured(cell)
    last = run.work.forwards[-1]
    twice = (*run.work.forwards[:-1], last._replace(draft=(*last.draft, (5, 1))))
    more = judged(measured, cell, forwards=twice)
    assert more.state is State.FAIL and more.message == (
        f"launch {len(twice) - 1}: a round of {runs} runs draft forwards {', '.join(filter(None, (needs, '5 x 1')))}, "
        f"and {needs or 'none'} are needed"
    )


# Requests that are retracted with nothing in flight: a session's turn, and one that keeps nothing.
AT_ONCE = {"hold": "none.v1.p256.session_retract.pair.stream.length", "close": "none.v1.tight.pair.length"}


@pytest.mark.parametrize(
    "cell",
    [
        "none.session_retract.pair.stream.length",
        *AT_ONCE.values(),
        "dflash.c7.mixed_lengths",
        "dflash.m4.mixed_lengths.abort_queued",
        "standalone.qwen3.s1.k2.v1.p64.nocache.tight.pair.stream.mixed.abort_running",  # sessions give up their windows
    ],
)
def test_retracted_turns_aborts_and_chunks_that_share_a_budget_are_predicted(measured, cell):
    outcome = judged(measured, cell)
    assert (outcome.state, outcome.message) == (State.PASS, "")
    assert bool(outcome.numbers["retracted"]) == cell.endswith("length")
    assert outcome.numbers["dropped"] == measured(cell)[1].evidence["session.dropped"]


@pytest.mark.parametrize(
    "cell",
    [
        "ngram.qwen3.s3.n16.sync.p16.nocache.c7.tight.pair.branch.mixed.length.abort_running",
        "ngram.qwen3.v1.p4.nocache.c7.tight.mixed_lengths.branch.temperature.length.abort_running",
        "ngram.qwen3.s5.k2.n16.sync.p16.nocache.c7.session_retract.m4.mixed_lengths.stream.topk_topp.length.abort_queued",
        "standalone.qwen3.s3.k2.n6.v2.p4.nocache.c7.tight.mixed_lengths",
    ],
)
def test_requests_wait_for_window_pages_of_each_kind(measured, cell):
    """One page more or less for a request, or another share of overrun or lag, admits another one in some of these."""
    outcome = judged(measured, cell)
    assert (outcome.state, outcome.message) == (State.PASS, "")


@pytest.mark.parametrize("operation", AT_ONCE)
def test_a_retraction_that_frees_another_account_fails_and_blames_the_youngest(measured, operation):
    cell, outcomes = AT_ONCE[operation], []
    for at, (found, _, *rest) in enumerate(measured(cell)[1].journal):
        if found == operation:
            journal = changed(
                measured, cell, lambda entries, at=at, rest=rest: entries.__setitem__(at, (operation, 99, *rest))
            )
            outcomes.append(judged(measured, cell, journal=journal))
    assert {outcome.state for outcome in outcomes} == {State.FAIL}
    seen = next(outcome for outcome in outcomes if "the youngest, is retracted; got " in outcome.message)
    text = f"expected that {seen.blame.request}, the youngest, is retracted; got {operation} of 99"
    assert re.fullmatch(rf"step \d+: {text}( \(\d+\))?", seen.message), seen.message


def test_a_request_that_nobody_answered_goes_by_its_number(measured):
    prepared, run, baseline = measured(AT_ONCE["close"])
    outcome = GATE.judge(prepared, replace(run, served=run.served[1:]), baseline)
    text = "step 1: request 1 keeps its pages after its last step"
    assert (outcome.state, outcome.message, outcome.blame) == (State.FAIL, text, None)


def test_a_step_that_reads_too_much_or_too_little_fails(measured):
    _, run, _ = measured(TREE)
    first = run.work.forwards[0]
    ((_, longest),) = first.target
    for read in (first.read + 16, 1):
        outcome = judged(measured, TREE, forwards=(first._replace(read=read), *run.work.forwards[1:]))
        text = f"launch 0: a prefill reads {read} KV positions of each request, and {longest} are needed"
        assert (outcome.state, outcome.message) == (State.FAIL, text)


def test_a_second_target_forward_fails(measured):
    _, run, _ = measured(TREE)
    one = run.work.forwards[3]
    again = (*run.work.forwards[:3], one._replace(target=one.target * 2), *run.work.forwards[4:])
    text = "launch 3: a round of 5 requests by 8 runs target forwards 5 x 8, 5 x 8"
    assert judged(measured, TREE, forwards=again).message == text


@pytest.mark.parametrize(("cell", "scored"), [(TREE, False), ("none.mixed_lengths.rules", True)])
def test_a_prefill_with_the_logits_of_too_many_or_too_few_positions_fails(measured, cell, scored):
    first, *others = measured(cell)[1].work.forwards
    ((requests, width),) = first.target
    due = requests * (1 + width) if scored else requests
    assert first.logits == due and judged(measured, cell).state is State.PASS
    for rows in (due - 1, requests * width, 0):
        outcome = judged(measured, cell, forwards=(first._replace(logits=rows), *others))
        words = (
            f"launch 0: a prefill of {requests} requests by {width} computes {rows} rows of logits; {due} are needed"
        )
        assert (outcome.state, outcome.message) == (State.FAIL, words)


def test_rounds_as_graphs_are_padded_and_read_in_larger_multiples(measured):
    """The oracle's padded batch is the engine's; only rounds are, and only where graphs are on."""
    assert [graph_batch(size) for size in range(1, 65)] == [padded(size) for size in range(1, 65)]
    prepared, run, baseline = measured(TREE)
    on = replace(run, resolved={**run.resolved, "cuda_graph_max_bs": 8})
    forwards = run.work.forwards
    assert forwards[1].target == ((5, 8),)
    wide = tuple((8, tokens) for _, tokens in forwards[1].draft)
    graph = StepForwards(forwards[1].at, 256, ((8, 8),), wide, 64)

    def verdict(first, second, of=on):
        work = replace(run.work, forwards=(first, second, *forwards[2:]))
        outcome = GATE.judge(prepared, replace(of, work=work), baseline)
        return outcome.message

    assert verdict(forwards[0], graph) == verdict(forwards[0], graph._replace(read=0, target=(), draft=())) == ""
    for text, *given in (
        ("round of 5 requests by 8 runs target forwards 8 x 8", forwards[0], graph, run),
        ("round of 5 requests by 8 runs target forwards 6 x 8", forwards[0], graph._replace(target=((6, 8),))),
        (
            "round of 8 requests by 8 runs draft forwards 8 x 4, 8 x 4, 5 x 4, and 8 x 4, 8 x 4, 8 x 4 are needed",
            forwards[0],
            graph._replace(draft=(*wide[:-1], (5, 4))),
        ),
        ("round reads 512 KV positions of each request, and 62 are needed", forwards[0], graph._replace(read=512)),
        ("round of 8 requests by 8 computes 40 rows of logits; 64 are needed", forwards[0], graph._replace(logits=40)),
        ("prefill reads 256 KV positions of each request, and 54 are needed", forwards[0]._replace(read=256), graph),
    ):
        assert verdict(*given) == f"launch {int('round' in text)}: a {text}"


def test_another_number_of_steps_than_launches_fails(measured):
    _, run, _ = measured(TREE)
    outcome = judged(measured, TREE, forwards=run.work.forwards[1:])
    launches = len(run.work.forwards)
    text = f"{launches - 1} steps were launched, and {launches} are in the journal"
    assert (outcome.state, outcome.message) == (State.FAIL, text)


def test_a_cached_page_that_is_not_reused_fails_and_blames_its_request(measured):
    cell = "eagle3.s5.v2.m4.burst"

    def shorten(entries):
        at = next(index for index, entry in enumerate(entries) if entry[0] == "open" and entry[3])
        operation, account, positions, (pages,) = entries[at]
        entries[at] = operation, account, positions - 1, (pages[:-1],)

    outcome = judged(measured, cell, journal=changed(measured, cell, shorten))
    text = f"step {outcome.numbers['steps']}: expected that q11 reuses 2 cached tokens; got 1"
    assert (outcome.state, outcome.message, outcome.blame) == (State.FAIL, text, Blame("q11"))


def alter(entries, operation, nth, change):
    at = place(entries, operation, nth)
    found, account, number, pages = entries[at]
    entries[at] = found, account, *change(number, pages)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda entries: alter(entries, "reserve", 0, lambda n, pages: (n + 1, pages)),
            "36 positions of q4 are reserved; got 37",
        ),
        (lambda entries: entries.pop(place(entries, "reserve", 5)), "2 positions of q4 are reserved; got reserve of 2"),
        (
            lambda entries: alter(entries, "launch", 0, lambda n, pages: (n - 1, pages)),
            "a prompt chunk of q4 with 36 positions is launched; got 35 positions",
        ),
        (
            lambda entries: alter(entries, "launch", 7, lambda n, pages: (n - 1, pages)),
            "a round of q3 with 2 positions is launched; got 1 positions",
        ),
        (lambda entries: entries.pop(place(entries, "launch", 5)), "a round of q4 with 2 positions is launched; got"),
        (
            lambda entries: alter(entries, "evict", 0, lambda n, pages: (n, ((pages[0][0] % 40 + 1,),))),
            "the page evicted for q4 is a least recently used one; got another",
        ),
        (lambda entries: entries.pop(place(entries, "evict")), "a page is evicted for q4; got reserve of 1 (2)"),
        (
            lambda entries: alter(entries, "donate", 0, lambda n, pages: (n - 1, (pages[0][:-1],))),
            "9 pages of q4 are cached; got 8",
        ),
        (lambda entries: entries.pop(place(entries, "donate")), "9 pages of q4 are cached; got settle of 2 (32)"),
        (lambda entries: entries.pop(place(entries, "open", 1)), "q8 is admitted; got reserve of 2 (32)"),
        (lambda entries: entries.pop(place(entries, "close")), "nothing more is launched or freed in this step; got"),
        (
            lambda entries: entries.insert(place(entries, "evict"), entries[place(entries, "evict")]),
            "2 positions of q4 are reserved; got evict of 0 (1)",
        ),
        (
            lambda entries: entries.insert(place(entries, "close", 2), ("open", 99, 0, ())),
            "nothing more is launched or freed in this step; got open of 99",
        ),
    ],
)
def test_a_journal_of_other_work_fails(measured, change, text):
    outcome = judged(measured, TIGHT, journal=changed(measured, TIGHT, change))
    assert (outcome.state, outcome.numbers["needless"]) == (State.FAIL, 1)
    assert outcome.message.startswith(f"step {outcome.numbers['steps']}: expected that {text}")
    name = re.search(r"\bq\d+", text)
    assert outcome.blame == (name and Blame(name[0]))


def test_pages_that_are_kept_after_the_last_step_are_named(measured):
    outcome = judged(measured, TIGHT, journal=changed(measured, TIGHT, lambda entries: entries.pop()))
    text = f"step {outcome.numbers['steps']}: q8.again keeps its pages after its last step"
    assert (outcome.state, outcome.message, outcome.blame) == (State.FAIL, text, Blame("q8.again"))


def test_a_flush_empties_the_cache(measured):
    _, run, _ = measured(TIGHT)
    moments = (*run.work.moments, Moment(len(run.journal), "flush", 0))
    outcome = judged(measured, TIGHT, moments=moments)
    text = f"step {outcome.numbers['steps']}: expected that the cache is emptied of {run.memory.cached} more pages"
    assert (outcome.state, outcome.message) == (State.FAIL, text + "; got nothing of 0")


@pytest.mark.parametrize(
    ("operation", "change", "text"),
    [
        ("resume", lambda at, *_: ("open", at, 0, ()), "q4.turn2 resumes its session; got open of 1"),
        ("resume", lambda at, *_: ("resume", at, 1, ()), "q4.turn2 computes 0 positions of its session again; got 1"),
        ("hold", lambda at, n, pages: ("hold", at, n - 1, pages), "q4 leaves 206 positions to its session; got 205"),
        ("hold", lambda at, *_: ("close", at, 0, ()), "q4 leaves 206 positions to its session; got close"),
        ("close", lambda at, *_: ("close", 99, 0, ()), "session account 1 is closed for q8.turn2; got close of 99"),
    ],
)
def test_other_pages_of_sessions_are_named(measured, operation, change, text):
    cell = AT_ONCE["hold"]

    def first(entries):
        at = place(entries, operation)
        entries[at] = change(*entries[at][1:])

    outcome = judged(measured, cell, journal=changed(measured, cell, first))
    assert outcome.state is State.FAIL
    assert outcome.message.startswith(f"step {outcome.numbers['steps']}: expected that {text}")
    assert outcome.blame == Blame(re.search(r"\bq\d[.\w]*", text)[0])


def test_pages_that_must_be_cached_and_are_closed_instead_are_named(measured):
    def closed(entries):
        at = next(at for at, pair in enumerate(pairwise(entries)) if [each[0] for each in pair] == ["donate", "close"])
        entries[at] = "close", entries[at][1], 0, ()

    message = judged(measured, TIGHT, journal=changed(measured, TIGHT, closed)).message
    assert re.search(r": expected that \d+ pages of q\d+ are cached; got none$", message), message


def test_an_abort_ends_its_request(measured):
    cell = "eagle3.s3.v2.pair.abort_running"
    assert any(moment.what == "abort" for moment in measured(cell)[1].work.moments)
    outcome = judged(measured, cell)
    assert (outcome.state, outcome.message) == (State.PASS, "")


def test_a_journal_that_no_engine_could_write_fails(measured):
    """Its oracle must not end in an exception, which would hide the verdicts of the other gates."""

    def spoil(entries):
        at = place(entries, "launch", 5)
        entries[at] = "launch", entries[at][1]

    outcome = judged(measured, TIGHT, journal=changed(measured, TIGHT, spoil))
    text = "the journal cannot be followed at entry 21: IndexError: tuple index out of range"
    assert (outcome.state, outcome.message) == (State.FAIL, f"step {outcome.numbers['steps']}: {text}")


def test_an_engine_that_runs_on_after_its_workload_fails(measured):
    _, run, _ = measured(TREE)
    late = judged(measured, TREE, journal=[*run.journal, ("open", 99, 0, ())])
    text = f"step {late.numbers['steps']}: expected that nothing more is launched or freed in this step; got open of 99"
    assert (late.state, late.message, late.blame) == (State.FAIL, text, None)


def test_without_evidence_nothing_is_measured(measured):
    prepared, run, baseline = measured(TREE)
    silent = GATE.judge(prepared, replace(run, journal=None), baseline)
    assert (silent.state, silent.message) == (State.NOT_MEASURED, "the subject provides no ledger journal")
    blind = GATE.judge(prepared, replace(run, work=None), baseline)
    assert (blind.state, blind.message) == (State.NOT_MEASURED, "the subject provides no log of its work")
    unseen = judged(measured, TREE, journal=[("groups", 0, 1, ((0, 9),))], moments=run.work.moments[:1], forwards=())
    assert (unseen.state, unseen.message) == (State.NOT_MEASURED, "no forward of the networks was seen")
    idle = judged(measured, TREE, moments=(), forwards=())
    assert (idle.state, idle.message) == (State.NOT_MEASURED, "the subject provides no log of its work")


def test_a_request_that_was_sent_later_changes_what_is_needed(measured):
    """The account depends on the log, not on the journal alone."""
    _, run, _ = measured(TREE)
    sends = [moment for moment in run.work.moments if moment.what == "send"]
    late = run.work.moments.index(next(moment for moment in run.work.moments if moment.what == "step")) + 1
    moved = [moment for moment in run.work.moments if moment != sends[0]]
    moved.insert(late, Moment(moved[late].at, "send", sends[0].id))
    assert judged(measured, TREE, moments=tuple(moved)).state is State.FAIL


def test_a_stall_blames_the_request_without_progress():
    outcome = GATE.judge_stall(Stalled(65, 1494, 55, "q20", 0, 1))
    assert outcome.state is State.FAIL and outcome.blame is not None and outcome.blame.request == "q20"
    assert outcome.numbers == {"steps": 65, "needless": 1}
    assert outcome.message == (
        "the requests have not ended after 65 steps, of which the last 55 yielded no token; q20 has had 0 output "
        "tokens since step 1"
    )
    nobody = GATE.judge_stall(Stalled(12, 11, 1, "", 0, 0))
    assert nobody.blame is None and nobody.message == (
        "the requests have not ended after 12 steps; they need at most 11; none of them runs, but the engine is busy"
    )


def test_it_applies_to_every_cell():
    assert GATE.applies(Cell.from_id("none.pair"))
