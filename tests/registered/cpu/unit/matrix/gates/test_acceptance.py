from dataclasses import replace

import pytest

from specmatrix.matrix.cells.cell import SHORT_CONTEXT, Cell
from specmatrix.matrix.gates.acceptance import AcceptanceGate
from specmatrix.matrix.gates.gate import Blame, State
from specmatrix.matrix.gates.occurrences import FULL, REJECTED, Seen
from specmatrix.matrix.gates.round_lengths import Rounds, RoundsPair, length_numbers, same_range
from specmatrix.matrix.gates.session import first_round_mismatch, from_a_start
from specmatrix.matrix.subjects.protocol import Answer
from specmatrix.matrix.workloads.finish import Ending
from specmatrix.matrix.workloads.predicted import Prediction
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.matrix.workloads.questions import ORACLE_PROMPTS
from specmatrix.matrix.workloads.stored_oracle import Oracle, decode, load_oracle
from specmatrix.reports.wording import count

CELL = "eagle3.s3.k4.n8.v2.p16.pair"
NAIVE = "standalone.s2.ctx.length"
NGRAM = "ngram.mixed_lengths.mixed"
DRAWN = ("eagle3.s3.k4.n8.v2.p16.topk_topp", "standalone.rules", "dflash.temperature")


@pytest.fixture(scope="session")
def gate(measured, oracle_of):
    prepared, run, _ = measured(CELL)
    known = oracle_of(prepared, run)
    return AcceptanceGate(oracle=lambda target: known)


def knowing(gate, change, texts=(), **options: object):
    """A gate whose oracle has the rounds that `change` makes of every prompt's."""
    ((key, rounds),) = gate.oracle("llama-mini").rounds.items()
    other = Oracle(texts, {key: tuple(map(change, rounds))}, ())
    return AcceptanceGate(oracle=lambda target: other, **options)


def in_rounds(run, *lengths: tuple[int, ...], **fields: object):
    """The run whose answers have these rounds."""
    answers = (replace(a, accept_lengths=each, **fields) for a, each in zip(run.answers, lengths, strict=True))
    return replace(run, answers=tuple(answers))


def test_the_same_rounds_pass(measured, gate):
    found = measured(CELL)
    outcome = found.judge(gate)
    assert outcome.state is State.PASS and outcome.interval == pytest.approx((1.0, 1.0))
    assert outcome.numbers["length"] == pytest.approx(outcome.numbers["reference"])
    assert all(0 < rate <= 1 for rate in outcome.numbers["per_position"])
    low, high = outcome.interval
    just = replace(gate, thresholds={**gate.thresholds, "low": low, "high": high})
    assert found.judge(just).state is State.PASS
    assert [f"q{question}" for question in outcome.numbers["questions"]] == [a.name for a in found.run.answers]


def test_a_draft_counts_where_it_was_verified_and_in_each_round():
    """Also if adaptive steps make rounds of different widths: of four rounds one verified two drafts."""
    pair = RoundsPair((2, 3, 2, 2), (), 0, (1, 3, 6, 8), (2, 3, 2, 2))
    measured = [Rounds(emitted=9, engine=4, oracle=4)]
    found = length_numbers(measured, [pair])
    assert found["per_position"] == [1.0, 1.0] and found["per_round"] == [1.0, 0.25]
    assert length_numbers(measured, [pair._replace(widths=())])["per_position"] == [1.0, 0.25]
    assert length_numbers(measured, [pair._replace(caps=(3,) * 4)])["per_position"] == [1.0, 0.25]


@pytest.mark.parametrize("fewer", [False, True])
def test_rounds_that_accept_less_fail_and_so_do_rounds_that_accept_more(measured, gate, fewer):
    """Every round of one side is cut to one token, so that it needs more rounds."""
    found = measured(CELL)
    cut = [(1,) * sum(answer.accept_lengths) for answer in found.run.answers]
    slow = knowing(gate, lambda rounds: (1,) * sum(rounds), gate.oracle("llama-mini").continuations)
    outcome = found.judge(gate, in_rounds(found.run, *cut)) if fewer else found.judge(slow)
    length, reference, ratio = (outcome.numbers[name] for name in ("length", "reference", "ratio"))
    assert outcome.state is State.FAIL and (ratio < 0.97 if fewer else ratio > 1.03)
    low, high = outcome.interval
    assert outcome.message == (
        f"acceptance length {length:.3f}, the oracle has {reference:.3f}: ratio {ratio:.3f}, 95 % interval {low:.3f} "
        f"to {high:.3f}, which must lie within 0.97 to 1.03; first q5 in verify round 2"
    )
    assert (length == 1.0, reference == 1.0) == (fewer, not fewer)
    note = "verify round 2 has 1 token, the oracle's 4" if fewer else "verify round 2 has 4 tokens, the oracle's 1"
    assert outcome.blame == Blame(found.run.requests[0].name, 2, note=note)


def test_the_naive_drafts_follow_a_request_to_the_end_of_the_context(measured):
    """One late round that accepts another number of tokens is red, although the stored oracle does not reach it."""
    found, run, gate = measured(NAIVE), measured(NAIVE).run, AcceptanceGate()
    outcome = found.judge(gate)
    ends, rounds, means = zip(*outcome.numbers["by_context"], strict=True)
    assert (sum(rounds), ends[-1]) == (len(run.answers[0].accept_lengths), 512) and min(means) > 1
    assert outcome.state is State.PASS and outcome.numbers["naive_rounds"] > 5
    assert SHORT_CONTEXT - 8 <= outcome.numbers["naive_reach"] < SHORT_CONTEXT
    lengths, prompt = list(run.answers[0].accept_lengths), len(run.answers[0].prompt_ids)
    starts = [sum(lengths[:at]) for at in range(len(lengths))]
    late = next(at for at in range(len(lengths) - 11, len(lengths)) if lengths[at] > 1)
    lengths[late : late + 1] = [lengths[late] - 1, 1]
    answer = replace(run.answers[0], accept_lengths=tuple(lengths))
    outcome = found.judge(gate, answers=(answer,))
    where = f"verify round {late + 1}, at position {prompt + starts[late]}"
    text = f"1 request with other rounds than naive drafts, first {answer.name} in {where}"
    assert (outcome.state, outcome.message, outcome.blame.token) == (State.FAIL, text, 1 + starts[late])


def test_a_shorter_answer_is_no_loss():
    for mine, oracle, due in (((3, 3), (3, 3, 1, 1, 1, 1), (6, 2, 2)), ((4, 4), (4, 1), (5, 1.25, 2))):
        found = same_range(mine, oracle)
        assert (found.emitted, found.engine, found.oracle) == due


@pytest.mark.parametrize(
    ("rounds", "text"),
    [(103, ""), (104, "3.846, the oracle has 4.000: ratio 0.962"), (97, "4.124, the oracle has 4.000: ratio 1.031")],
)
def test_the_band_for_one_prompt(measured, gate, rounds, text):
    """One prompt has no spread: its ratio itself must lie in the band. 400 tokens, the oracle takes 100 rounds."""
    found = measured(CELL)
    lengths = (400 // rounds,) * (rounds - 1)
    known = iter(
        [(4,) * 100 if index == int(found.run.requests[0].name[1:]) else () for index in range(ORACLE_PROMPTS)]
    )
    # Half precision rounds a draft's choice now and then, so only the ratio counts there.
    run = in_rounds(found.run, (*lengths, 400 - sum(lengths)), ())
    outcome = found.judge(knowing(gate, lambda _: next(known)), run, resolved={"dtype": "bfloat16"})
    assert outcome.interval is None and outcome.numbers["ratio"] == pytest.approx(100 / rounds)
    assert outcome.state is (State.FAIL if text else State.PASS)
    assert outcome.message.partition(";")[0] == (
        text and f"acceptance length {text}, which must lie within 0.97 to 1.03"
    )


@pytest.mark.parametrize("memory", ["ample", "tight"])
def test_one_round_that_leaves_the_oracle_fails_in_float32(measured, gate, altered, memory):
    found, answer = measured(CELL), measured(CELL).run.answers[0]
    lengths = list(answer.accept_lengths)
    at = next(i for i in range(len(lengths) - 2) if lengths[i] != lengths[i + 1])
    lengths[at : at + 2] = one, other = lengths[at + 1], lengths[at]
    found = found._replace(prepared=prepare(found.prepared.cell._replace(memory=memory)))
    outcome = found.judge(gate, altered(found.run, 0, accept_lengths=tuple(lengths)))
    assert outcome.interval == pytest.approx((1.0, 1.0))
    assert outcome.state is State.FAIL and outcome.numbers["left"] == 1
    assert outcome.message == f"1 of 2 requests differ from the oracle, first {answer.name} in verify round {at + 1}"
    note = f"verify round {at + 1} has {count(one, 'token')}, the oracle's {other}"
    assert outcome.blame == Blame(answer.name, 1 + sum(lengths[:at]), note=note) and not outcome.accept


def test_a_retracted_request_keeps_the_oracles_rounds_from_where_it_resumes(measured, gate, altered):
    """Round 3 starts one token later because a prefill gave the token in between; rounds aligned with the oracle again
    are equal."""
    found, name = measured(CELL), measured(CELL).run.requests[0].name
    own = gate.oracle("llama-mini")
    mine = next(iter(own.rounds.values()))[int(name[1:])]
    oracle = knowing(gate, lambda rounds: (3, 2, 1, 4, 2, 3, 1) if rounds == mine else rounds, own.continuations)

    def judged(lengths, outside):
        return found.judge(oracle, altered(found.run, 0, accept_lengths=lengths, outside_rounds=outside))

    outcome = judged((3, 2, 4, 2, 3, 1), (0, 6))
    assert (outcome.state, outcome.numbers["retracted"]) == (State.PASS, 1)
    assert judged((3, 2, 4, 2, 3, 1), ()).message.endswith(f"first {name} in verify round 3")
    shifted = judged((3, 2, 4, 1, 3, 1), (0, 6))
    assert shifted.message.endswith(f"first {name} in verify round 4")
    assert shifted.blame.note == "verify round 4 has 1 token, the oracle's 2"


@pytest.mark.parametrize(("retractions", "state"), [(0, State.FAIL), (1, State.PASS)])
def test_where_everybody_was_retracted_the_ratio_has_a_wider_band(measured, gate, retractions, state):
    found, lengths = measured(CELL), (4,) * 82 + (3,) * 24
    run = in_rounds(found.run, lengths, lengths, retractions=retractions)
    outcome = found.judge(knowing(gate, lambda _: (4,) * 100), run, resolved={"dtype": "bfloat16"})
    assert outcome.state is state


@pytest.mark.parametrize(("lengths", "state"), [((4, 4, 4, 1), State.PASS), ((4, 2, 2, 1), State.FAIL)])
def test_another_engine_may_draft_less_in_its_last_round(measured, gate, lengths, state):
    found = measured(CELL)
    run = in_rounds(found.run, lengths, lengths)
    judged = found.judge(knowing(gate, lambda _: (4,) * 100, exact=False), run)
    assert judged.state is state
    assert (": ratio 0.667, which must lie within 0.9 to 1.1; first q5 in verify round 2" in judged.message) == (
        state is State.FAIL
    )
    assert found.judge(knowing(gate, lambda _: (4,) * 100), run).state is State.FAIL


@pytest.mark.parametrize(("late", "state"), [((4,) * 16, State.PASS), ((3,) * 21, State.FAIL)])
def test_a_prompt_that_returns_late_in_an_engines_life_accepts_what_it_did_first(measured, gate, late, state):
    """Few of many requests, which the ratio of all of them does not show."""
    found = measured(CELL)
    request, answer = found.run.requests[0], found.run.answers[0]
    names = [f"q{number % 32}{'.again' * (number // 32)}" for number in range(56)]
    answers = [replace(answer, name=one, accept_lengths=late if one in names[48:] else (4,) * 16) for one in names]
    run = replace(found.run, requests=[replace(request, name=one) for one in names], answers=answers)
    outcome = found.judge(knowing(gate, lambda _: (4,) * 100, exact=False), run)
    assert outcome.state is state and outcome.numbers["ratio"] > 0.94
    assert ("; ratio 0.750 in requests behind 735 rounds of others" in outcome.message) == (state is State.FAIL)


@pytest.mark.parametrize(
    ("mine", "oracle", "starts", "left"),
    [
        # A prefill gave one token after the second round.
        ((3, 2, 4, 2, 3, 1), (3, 2, 1, 4, 2, 3, 1), (1, 4, 7, 11, 13, 16), None),
        ((3, 1, 4, 2, 9), (3, 2, 1, 4, 2, 3, 1), (1, 4, 5, 9, 11), 1),
        ((3, 2, 4), (3, 2, 1, 1), (1, 4, 6), None),  # the last common round may be cut
        ((3, 1, 4), (3, 2, 1), (1, 4, 5), 1),
    ],
)
def test_rounds_are_compared_where_they_begin(mine, oracle, starts, left):
    assert first_round_mismatch(mine, oracle, starts) == left


def test_without_evidence_nothing_is_measured(measured, gate):
    found, ngrams = measured(CELL), measured(NGRAM)
    for oracle in (None, Oracle((), {}, ())):
        outcome = found.judge(AcceptanceGate(oracle=lambda target, known=oracle: known))
        assert outcome.accept == "python -m specmatrix.matrix.zoo.oracle llama-mini"
        text = "the oracle has no rounds for eagle3 with (steps, topk, draft tokens) = (3, 4, 8)"
        assert (outcome.state, outcome.message) == (State.NOT_MEASURED, text)
    adapted = found._replace(prepared=prepare(Cell.from_id("nextn.deepseek.s3.tiers.pair")))
    silent = tuple(replace(a, output_ids=a.output_ids[:1], accept_lengths=()) for a in ngrams.run.answers)
    for verdict, text in (
        (adapted.verdict(AcceptanceGate(oracle=lambda target: Oracle((), {}, ()))), "no correct-draft counts for next"),
        (found.verdict(gate, in_rounds(found.run, (), ())), "no greedy request on the oracle's prompts decoded a"),
        (ngrams.verdict(gate, journal=None), "the subject provides no journal"),
        (ngrams.verdict(gate, answers=silent, journal=[]), "no request decoded a verify round"),
    ):
        assert verdict.startswith("NOT MEASURED: ") and text in verdict
    assert ngrams.judge(gate, answers=silent, journal=[]).numbers["rounds"] == 0
    text = "FAIL: account 1 of the journal belongs to no answered request"
    assert ngrams.verdict(gate, served=ngrams.run.served[1:]) == text


@pytest.mark.parametrize("cell_id", ["eagle3", "eagle3.pair.mixed", "eagle3.s3.ramp.length"])
def test_it_applies_to_drafted_requests(gate, cell_id):
    assert gate.applies(Cell.from_id(cell_id))
    for other in ("none", "none.ramp.length", "none.temperature", "eagle3.abort_running"):
        assert not gate.applies(Cell.from_id(other))
    drawn = Cell.from_id("eagle3.temperature")
    assert gate.applies(drawn) and not replace(gate, exact=False).applies(drawn), "only exact rounds show draws"


def test_beside_an_abort_the_rounds_of_the_others_are_the_oracles(measured):
    """The aborted request's own are not compared, and another engine's are too few."""
    found, gate = measured("eagle3.s3.k4.n8.v2.p16.pair.abort_running"), AcceptanceGate()
    assert found.judge(gate).numbers["prompts"] == 1 and found.verdict(gate) == "PASS"
    first, aborted = found.run.answers
    slow = tuple(replace(one, accept_lengths=(1, *one.accept_lengths)) for one in (first, aborted))
    assert found.verdict(gate, answers=(first, slow[1])) == "PASS" and aborted.finish == "abort"
    assert found.judge(gate, answers=(slow[0], aborted)).state is State.FAIL
    cell = Cell.from_id("eagle3.pair.abort_running")
    assert gate.applies(cell) and not replace(gate, exact=False).applies(cell)


@pytest.mark.parametrize("cell_id", DRAWN)
def test_rounds_of_sampled_and_ruled_requests_are_those_of_naive_drafts(measured, cell_id):
    """No oracle has their texts; one round that accepts another number of tokens is red."""
    found, gate = measured(cell_id), AcceptanceGate()
    outcome = found.judge(gate)
    # Not a last round, whose drafts may have gone on past the end of the text.
    rounds = sum(len(one.accept_lengths) - 1 for one in found.run.answers)
    assert outcome.state is State.PASS and outcome.numbers["naive_rounds"] >= rounds > 5
    answer = next(answer for answer in found.run.answers if len(answer.accept_lengths) > 3)
    first, *rest = answer.accept_lengths
    wrong = replace(answer, accept_lengths=(first + 1, *rest))
    outcome = found.judge(gate, answers=(wrong,))
    where = f"verify round 1, at position {len(answer.prompt_ids)}"
    assert outcome.message == f"1 request with other rounds than naive drafts, first {answer.name} in {where}"
    silent = replace(answer, accept_lengths=())
    assert found.verdict(gate, answers=(silent,)) == "NOT MEASURED: no request had a verify round to compare"


def test_static_rounds_of_waves_are_the_oracles(measured):
    """Fifty short answers against the oracle of whole answers."""
    found, gate = measured("eagle3.s3.k4.n8.v2.p16.ramp.length"), AcceptanceGate()
    outcome = found.judge(gate)
    assert outcome.state is State.PASS and (outcome.numbers["prompts"], outcome.numbers["left"]) == (50, 0)


def test_the_file_is_read(tmp_path):
    assert load_oracle(tmp_path / "none.json") is None
    rounds = {"EAGLE3": {"3/4/8": [[2, 1]]}}
    held = {"continuations": [[1, 2, 3]], "logprobs": [[-0.5, 0.0, -2.0]], "acceptance": rounds}
    assert decode(held) == Oracle(((1, 2, 3),), {("eagle3", 3, 4, 8): ((2, 1),)}, ((-0.5, 0.0, -2.0),))


def test_rounds_of_ngrams_are_replayed_drawn_ones_too(measured):
    found, gate = measured(NGRAM), AcceptanceGate()
    numbers = found.judge(gate).numbers
    assert found.verdict(gate) == "PASS" and numbers["left"] == 0
    lengths = [length for answer in found.run.answers for length in answer.accept_lengths]
    assert numbers["rounds"] == len(lengths) > 100 and 0 < numbers["mixed"] < len(lengths)
    assert numbers["length"] == sum(lengths) / len(lengths)
    assert gate.applies(Cell.from_id("ngram.m4.burst.temperature.abort_queued"))


@pytest.mark.parametrize("change", [1, -1])
def test_one_different_ngram_round_fails(measured, altered, change):
    found, gate = measured(NGRAM), AcceptanceGate()
    lengths, name = list(found.run.answers[1].accept_lengths), found.run.requests[1].name
    at = next(i for i, length in enumerate(lengths) if i > 3 and length > 1)
    lengths[at] += change
    outcome = found.judge(gate, altered(found.run, 1, accept_lengths=tuple(lengths)))
    text = f"1 of 5 requests differ from the replay, first {name} in verify round {at + 1}"
    blame = Blame(name, 1 + sum(lengths[:at]))
    assert (outcome.state, outcome.message, outcome.blame) == (State.FAIL, text, blame)
    fewer = found.judge(gate, altered(found.run, 1, accept_lengths=tuple(lengths[:at])))
    assert fewer.message.endswith(f"in verify round {at + 1}")


def test_in_bf16_only_rounds_on_the_oracles_text_are_compared(measured, altered):
    found, gate = measured("eagle3.s3.k4.n8.v2.fast.pair.mixed"), AcceptanceGate()
    ids, lengths = found.run.answers[0].output_ids, found.run.answers[0].accept_lengths

    def parted(at, rounds=lengths):
        other = (*ids[:at], ids[at] ^ 1, *ids[at + 1 :])
        return found.judge(gate, altered(found.run, 0, output_ids=other, accept_lengths=rounds))

    whole, part = found.judge(gate), parted(12)
    assert whole.state is part.state is State.PASS
    assert whole.numbers["emitted"][0] > 40 > 12 >= part.numbers["emitted"][0] > 0
    last = 1 + sum(lengths[:3])
    assert parted(last).numbers["emitted"][0] == last - 1, "a round that ends with the last equal token counts"
    # Behind the tie other rounds are no loss; before it they are.
    assert parted(12, (*lengths[:5], *[1] * sum(lengths[5:]))).state is State.PASS
    assert parted(12, (1,) * sum(lengths)).state is State.FAIL


def test_rounds_that_begin_with_the_first_token_are_compared_from_the_first_common_start_on():
    assert from_a_start((3, 4, 2), (2, 4, 1, 3), True) == ((4, 2), (4, 1, 3))
    assert from_a_start((2, 7), (2, 4, 1, 3), True) == ((2, 7), (2, 4, 1, 3))
    answer = Answer("q", (9,), (5, 6, 7, 8), "", "length", None, 0, (3, 1), drafts_first=True)
    assert (answer.round_starts, replace(answer, drafts_first=False).round_starts) == ((0, 3), (1, 4))


def test_rounds_that_begin_with_the_first_token_must_have_what_the_oracle_has_from_where_both_begin_one():
    """A draft that the oracle rejects in a round that the engine never begins is not due."""
    (request,) = prepare(Cell.from_id("standalone.s1.length")).requests
    due = Prediction((2, 1, 2, 2, 2), Ending(9, "length", None, ""), 2, False)
    answer = Answer("q5", (9,), (5,) * 9, "", "length", None, 0, (2, 2, 2, 2, 1), drafts_first=True)
    seen = Seen(request, answer, due, 2)
    assert [*seen.rounds] == [2, 2] and not REJECTED.due(seen) and FULL.due(seen)
    assert REJECTED.due(seen._replace(answer=replace(answer, drafts_first=False)))
    assert not FULL.due(seen._replace(request=replace(request, abort_after=1)))
