"""The gate `schedule` sees every departure of steps, pages and forwards from what the workload needs."""

import re
from dataclasses import replace

import pytest

from specmatrix.engine.device.cuda_graphs import padded
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Blame, State
from specmatrix.matrix.gates.schedule import ScheduleGate
from specmatrix.matrix.oracles.forwards import graph_batch
from specmatrix.matrix.subjects.observations import Moment, StepForwards
from specmatrix.matrix.subjects.protocol import Stalled

GATE = ScheduleGate()
TIGHT = "standalone.s1.k1.v2.p4.tight.burst"
TREE = "eagle3.s3.k4.n8.v2.mixed_lengths"


def judged(measured, cell, journal=None, **log: object):
    """The verdict on a measured run with another journal or another log of its work."""
    found = measured(cell)
    return found.judge(GATE, journal=journal or found.run.journal, work=replace(found.run.work, **log))


def test_the_account_of_a_run_under_memory_pressure(measured):
    run, outcome = measured(TIGHT).run, judged(measured, TIGHT)
    assert (outcome.state, outcome.message) == (State.PASS, "")
    numbers = outcome.numbers
    assert numbers["retracted"] == run.evidence["retract.done"] > 0
    assert numbers["evicted"] == run.evidence["prefix.evict"] > 0
    assert numbers["reused"] == run.evidence["prefix.hit"] + run.evidence["session.inherited"]
    assert 0 < numbers["peak_pages"] <= run.resolved["num_pages"] and numbers["needless"] == numbers["dropped"] == 0
    assert numbers["steps"] >= len(run.work.forwards)
    assert numbers["read"] == sum(step.read for step in run.work.forwards)
    prompts = {one.id: one.prompt for one in run.served}
    assert numbers["computed"] + numbers["reused"] >= sum(prompts.values())


@pytest.mark.parametrize(
    ("cell", "runs", "needs"),
    [
        (TREE, "1 requests by 8", "1 x 4, 1 x 4, 1 x 4"),
        ("dflash.n4.mixed_lengths", "1 requests by 4", "1 x 4, 1 x 4"),
        ("ngram.v2.pair", "1 requests by 12", ""),
        ("nextn.deepseek.s2.v2.mixed_lengths", "1 requests by 3", "1 x 4, 1 x 4"),
        ("eagle3.qwen3.s3.v2.p4.nocache.c7.tight.mixed_lengths", "1 requests by 4", "1 x 1, 1 x 1, 1 x 4"),
    ],
)
def test_every_kind_of_drafter_needs_its_own_forwards(measured, cell, runs, needs):
    outcome, (*first, last) = judged(measured, cell), measured(cell).run.work.forwards
    assert (outcome.state, outcome.message) == (State.PASS, "") and outcome.numbers["forwards"] > 0
    more = judged(measured, cell, forwards=(*first, last._replace(draft=(*last.draft, (5, 1)))))
    ran = ", ".join(filter(None, (needs, "5 x 1")))
    text = f"launch {len(first)}: a round of {runs} runs draft forwards {ran}, and {needs or 'none'} are needed"
    assert (more.state, more.message) == (State.FAIL, text)


# Requests that are retracted with nothing in flight: a session's turn, and one that keeps nothing.
HOLD = "none.v1.p256.session_retract.pair.stream.length"
AT_ONCE = {"hold": HOLD, "close": "none.v1.tight.pair.length"}
REUSED = "eagle3.s5.v2.m4.burst"


@pytest.mark.parametrize(
    "cell",
    [
        "none.session_retract.pair.stream.length",
        *AT_ONCE.values(),
        "dflash.c7.mixed_lengths",
        "dflash.m4.mixed_lengths.abort_queued",
        "eagle3.s3.v2.pair.abort_running",
        "standalone.qwen3.s1.k2.v1.p64.nocache.tight.pair.stream.mixed.abort_running",  # sessions give up their windows
        # One page more or less of a window, or another share of overrun or lag, admits another one in some of these.
        "ngram.qwen3.s3.n16.sync.p16.nocache.c7.tight.pair.branch.mixed.length.abort_running",
        "ngram.qwen3.v1.p4.nocache.c7.tight.mixed_lengths.branch.temperature.length.abort_running",
        "ngram.qwen3.s5.k2.n16.sync.p16.nocache.c7.session_retract.m4.mixed_lengths.stream.topk_topp.length.abort_queued",
        "standalone.qwen3.s3.k2.n6.v2.p4.nocache.c7.tight.mixed_lengths",
    ],
)
def test_retractions_aborts_windows_and_chunks_that_share_a_budget_are_predicted(measured, cell):
    outcome, evidence = judged(measured, cell), measured(cell).run.evidence
    assert (outcome.state, outcome.message) == (State.PASS, "")
    assert outcome.numbers["retracted"] == evidence["retract.done"]
    assert outcome.numbers["dropped"] == evidence["session.dropped"]


@pytest.mark.parametrize("operation", AT_ONCE)
def test_a_retraction_that_frees_another_account_fails_and_blames_the_youngest(measured, operation):
    cell, outcomes = AT_ONCE[operation], []
    for at, (found, _, *rest) in enumerate(entries := measured(cell).run.journal):
        if found == operation:
            journal = [*entries[:at], (operation, 99, *rest), *entries[at + 1 :]]
            outcomes.append(judged(measured, cell, journal=journal))
    assert {outcome.state for outcome in outcomes} == {State.FAIL}
    seen = next(outcome for outcome in outcomes if "the youngest, is retracted; got " in outcome.message)
    text = f"expected that {seen.blame.request}, the youngest, is retracted; got {operation} of 99"
    assert re.fullmatch(rf"step \d+: {text}( \(\d+\))?", seen.message), seen.message


def test_a_request_that_nobody_answered_goes_by_its_number(measured):
    found = measured(AT_ONCE["close"])
    outcome = found.judge(GATE, served=found.run.served[1:])
    assert outcome.state is State.FAIL and outcome.blame is None and "request 1 keeps its pages" in outcome.message


def test_other_forwards_are_named(measured):
    forwards = measured(TREE).run.work.forwards
    first, one, ((_, longest),) = forwards[0], forwards[3], forwards[0].target
    twice = one._replace(target=one.target * 2)
    reads = "launch 0: a prefill reads {} KV positions of each request, and {} are needed"
    for changed, text in (
        ((first._replace(read=first.read + 16), *forwards[1:]), reads.format(first.read + 16, longest)),
        ((first._replace(read=1), *forwards[1:]), reads.format(1, longest)),
        (
            (*forwards[:3], twice, *forwards[4:]),
            "launch 3: a round of 5 requests by 8 runs target forwards 5 x 8, 5 x 8",
        ),
        (forwards[1:], f"{len(forwards) - 1} steps were launched, and {len(forwards)} are in the journal"),
    ):
        outcome = judged(measured, TREE, forwards=changed)
        assert (outcome.state, outcome.message) == (State.FAIL, text)


@pytest.mark.parametrize(("cell", "scored"), [(TREE, False), ("none.mixed_lengths.rules", True)])
def test_a_prefill_with_the_logits_of_too_many_or_too_few_positions_fails(measured, cell, scored):
    first, *others = measured(cell).run.work.forwards
    ((requests, width),) = first.target
    due = requests * (1 + width) if scored else requests
    assert first.logits == due and judged(measured, cell).state is State.PASS
    for rows in (due - 1, requests * width, 0):
        outcome = judged(measured, cell, forwards=(first._replace(logits=rows), *others))
        text = f"prefill of {requests} requests by {width} computes {rows} rows of logits; {due} are needed"
        assert (outcome.state, outcome.message) == (State.FAIL, f"launch 0: a {text}")


def test_a_round_of_suffix_decoding_is_as_wide_as_its_longest_draft(measured):
    cell = "suffix.mixed_lengths.mixed"
    forwards = measured(cell).run.work.forwards
    place = next(place for place, one in enumerate(forwards) if one.verified > 1)
    ((requests, width),) = forwards[place].target
    assert 1 < width < max(one.verified for one in forwards) and judged(measured, cell).state is State.PASS
    padded = forwards[place]._replace(target=((requests, width + 1),))
    outcome = judged(measured, cell, forwards=(*forwards[:place], padded, *forwards[place + 1 :]))
    text = f"round of {requests} requests by {width} runs target forwards {requests} x {width + 1}"
    assert (outcome.state, outcome.message) == (State.FAIL, f"launch {place}: a {text}")


def test_rounds_as_graphs_are_padded_and_read_in_larger_multiples(measured):
    """The oracle's padded batch is the engine's; only rounds are, and only where graphs are on."""
    assert [graph_batch(size) for size in range(1, 65)] == [padded(size) for size in range(1, 65)]
    found, work = measured(TREE), measured(TREE).run.work
    first, second, *others = work.forwards
    assert second.target == ((5, 8),)
    wide = tuple((8, tokens) for _, tokens in second.draft)
    graph = StepForwards(second.at, 256, ((8, 8),), wide, 64)

    def message(one, two, most=8):
        forwards = replace(work, forwards=(one, two, *others))
        return found.judge(GATE, work=forwards, resolved={"cuda_graph_max_bs": most} if most else {}).message

    assert message(first, graph) == message(first, graph._replace(read=0, target=(), draft=())) == ""
    drafts = "8 x 4, 8 x 4, 5 x 4, and 8 x 4, 8 x 4, 8 x 4 are needed"
    for text, *given in (
        ("round of 5 requests by 8 runs target forwards 8 x 8", first, graph, None),
        ("round of 5 requests by 8 runs target forwards 6 x 8", first, graph._replace(target=((6, 8),))),
        (f"round of 8 requests by 8 runs draft forwards {drafts}", first, graph._replace(draft=(*wide[:-1], (5, 4)))),
        ("round reads 512 KV positions of each request, and 62 are needed", first, graph._replace(read=512)),
        ("round of 8 requests by 8 computes 40 rows of logits; 64 are needed", first, graph._replace(logits=40)),
        ("prefill reads 256 KV positions of each request, and 54 are needed", first._replace(read=256), graph),
    ):
        assert message(*given) == f"launch {int('round' in text)}: a {text}"


def fewer(operation, account, number, pages):
    """One position less, and one page less where there are any."""
    return [(operation, account, number - 1, tuple(each[:-1] for each in pages))]


@pytest.mark.parametrize(
    ("cell", "operation", "nth", "change", "text"),
    [
        (TIGHT, "reserve", 0, lambda op, at, n, p: [(op, at, n + 1, p)], "36 positions of q4 are reserved; got 37"),
        (TIGHT, "reserve", 5, lambda *_: [], "2 positions of q4 are reserved; got reserve of 2"),
        (TIGHT, "launch", 0, fewer, "a prompt chunk of q4 with 36 positions is launched; got 35 positions"),
        (TIGHT, "launch", 7, fewer, "a round of q3 with 2 positions is launched; got 1 positions"),
        (TIGHT, "launch", 5, lambda *_: [], "a round of q4 with 2 positions is launched; got"),
        (TIGHT, "launch", 5, lambda *entry: [entry[:2]], "the journal cannot be followed at entry 21: IndexError: "),
        (TIGHT, "evict", 0, lambda op, at, n, p: [(op, at, n, ((p[0][0] % 40 + 1,),))], "the page evicted for q4 is"),
        (TIGHT, "evict", 0, lambda *_: [], "a page is evicted for q4; got reserve of 1 (2)"),
        (TIGHT, "evict", 0, lambda *entry: [entry, entry], "2 positions of q4 are reserved; got evict of 0 (1)"),
        (TIGHT, "donate", 0, fewer, "9 pages of q4 are cached; got 8"),
        (TIGHT, "donate", 0, lambda *_: [], "9 pages of q4 are cached; got settle of 2 (32)"),
        (TIGHT, "donate", 5, lambda _, at, *__: [("close", at, 0, ())], "23 pages of q4 are cached; got none"),
        (TIGHT, "open", 1, lambda *_: [], "q8 is admitted; got reserve of 2 (32)"),
        (TIGHT, "close", 0, lambda *_: [], "nothing more is launched or freed in this step; got"),
        (TIGHT, "close", 2, lambda *entry: [("open", 99, 0, ()), entry], "nothing more is launched or freed in this "),
        (TIGHT, "close", -1, lambda *_: [], "q17 keeps its pages after its last step"),
        (TREE, "close", -1, lambda *entry: [entry, ("open", 99, 0, ())], "nothing more is launched or freed in this "),
        (REUSED, "open", 4, fewer, "q5 reuses 40 cached tokens; got 39"),
        (HOLD, "resume", 0, lambda _, at, *__: [("open", at, 0, ())], "q4.turn2 resumes its session; got open of 1"),
        (HOLD, "resume", 0, lambda op, at, *_: [(op, at, 1, ())], "q4.turn2 computes 0 positions of its session again"),
        (HOLD, "hold", 0, fewer, "q4 leaves 206 positions to its session; got 205"),
        (HOLD, "hold", 0, lambda _, at, *__: [("close", at, 0, ())], "q4 leaves 206 positions to its session; got "),
        (HOLD, "close", 0, lambda *_: [("close", 99, 0, ())], "session account 1 is closed for q8.turn2; got close"),
    ],
)
def test_a_journal_of_other_work_fails(measured, cell, operation, nth, change, text):
    """Its oracle must not end in an exception either, which would hide the verdicts of the other gates."""
    entries = list(measured(cell).run.journal)
    at = [index for index, entry in enumerate(entries) if entry[0] == operation][nth]
    entries[at : at + 1] = change(*entries[at])
    outcome = judged(measured, cell, journal=entries)
    assert (outcome.state, outcome.numbers["needless"]) == (State.FAIL, 1)
    found = outcome.message.removeprefix(f"step {outcome.numbers['steps']}: ")
    assert found.removeprefix("expected that ").startswith(text)
    name = re.search(r"\bq\d[.\w]*", text)
    assert outcome.blame == (name and Blame(name[0]))


def test_a_flush_empties_the_cache(measured):
    run = measured(TIGHT).run
    outcome = judged(measured, TIGHT, moments=(*run.work.moments, Moment(len(run.journal), "flush", 0)))
    text = f"expected that the cache is emptied of {run.memory.cached} more pages; got nothing of 0"
    assert outcome.state is State.FAIL and outcome.message.endswith(text)


def test_without_evidence_nothing_is_measured(measured):
    found = measured(TREE)
    assert GATE.applies(Cell.from_id("none.pair"))
    assert found.verdict(GATE, journal=None) == "NOT MEASURED: the subject provides no ledger journal"
    assert found.verdict(GATE, work=None) == "NOT MEASURED: the subject provides no log of its work"
    one = {"journal": [("groups", 0, 1, ((0, 9),))], "moments": found.run.work.moments[:1]}
    for log, text in ((one, "no forward of the networks was seen"), ({"moments": ()}, "no log of its work")):
        outcome = judged(measured, TREE, **log, forwards=())
        assert outcome.state is State.NOT_MEASURED and outcome.message.endswith(text)


def test_a_request_that_was_sent_later_changes_what_is_needed(measured):
    """The account depends on the log, not on the journal alone."""
    moments = list(measured(TREE).run.work.moments)
    first = moments.pop(next(at for at, moment in enumerate(moments) if moment.what == "send"))
    late = next(at for at, moment in enumerate(moments) if moment.what == "step") + 1
    moments.insert(late, Moment(moments[late].at, "send", first.id))
    assert judged(measured, TREE, moments=tuple(moments)).state is State.FAIL


def test_a_stall_blames_the_request_without_progress():
    outcome = GATE.judge_stall(Stalled(65, 1494, 55, "q20", 0, 1))
    assert outcome.state is State.FAIL and outcome.blame is not None and outcome.blame.request == "q20"
    assert outcome.numbers == {"steps": 65, "needless": 1}
    text = "the requests have not ended after 65 steps; the last 55 yielded no token; q20 has had 0 output "
    assert outcome.message == text + "tokens since step 1"
    nobody = GATE.judge_stall(Stalled(12, 11, 1, "", 0, 0))
    assert nobody.blame is None and nobody.message.endswith(
        "they need at most 11; none of them runs, but the engine is busy"
    )
