from dataclasses import replace

import pytest

from specmatrix.matrix.cells.cell import SHORT_CONTEXT, Cell
from specmatrix.matrix.gates.acceptance import AcceptanceGate, same_range
from specmatrix.matrix.gates.gate import Blame, State
from specmatrix.matrix.gates.round_alignment import first_round_mismatch
from specmatrix.matrix.oracles.transformers import Oracle, decode, load_oracle
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.reports.wording import count

CELL = "eagle3.s3.k4.n8.v2.p16.pair"


@pytest.fixture(scope="session")
def gate(measured, oracle_of):
    prepared, run, _ = measured(CELL)
    known = oracle_of(prepared, run)
    return AcceptanceGate(oracle=lambda target: known)


def test_the_same_rounds_pass(measured, gate):
    outcome = gate.judge(*measured(CELL))
    assert outcome.state is State.PASS and outcome.interval == pytest.approx((1.0, 1.0))
    assert outcome.numbers["length"] == pytest.approx(outcome.numbers["reference"])
    assert all(0 < rate <= 1 for rate in outcome.numbers["per_position"])
    low, high = outcome.interval
    just = replace(gate, thresholds={**gate.thresholds, "low": low, "high": high})
    assert just.judge(*measured(CELL)).state is State.PASS
    asked = [f"q{question}" for question in outcome.numbers["questions"]]
    assert asked == [answer.name for answer in measured(CELL)[1].answers]


@pytest.mark.parametrize("fewer", [0, 1])
def test_rounds_that_accept_less_fail_and_so_do_rounds_that_accept_more(measured, gate, fewer):
    """Every round of one side is cut to one token, so that it needs more rounds."""
    prepared, run, baseline = measured(CELL)
    cut = [(1,) * sum(answer.accept_lengths) for answer in run.answers]
    if fewer:
        answers = tuple(replace(a, accept_lengths=lengths) for a, lengths in zip(run.answers, cut, strict=True))
        outcome = gate.judge(prepared, replace(run, answers=answers), baseline)
        assert outcome.numbers["ratio"] < 0.97
    else:
        ((key, rounds),) = gate.oracle("llama-mini").rounds.items()
        slow = {key: tuple((1,) * sum(lengths) for lengths in rounds)}
        outcome = AcceptanceGate(oracle=lambda target: Oracle(gate.oracle("llama-mini").continuations, slow, ())).judge(
            prepared, run, baseline
        )
        assert outcome.numbers["ratio"] > 1.03
    assert outcome.state is State.FAIL
    length, reference, ratio = (outcome.numbers[name] for name in ("length", "reference", "ratio"))
    low, high = outcome.interval
    assert outcome.message == (
        f"acceptance length {length:.3f}, the oracle has {reference:.3f}: ratio {ratio:.3f}, 95 % interval {low:.3f} "
        f"to {high:.3f}, which must lie within 0.97 to 1.03"
    )
    assert (length == 1.0, reference == 1.0) == (bool(fewer), not fewer)
    note = "verify round 2 has 1 token, the oracle's 4" if fewer else "verify round 2 has 4 tokens, the oracle's 1"
    assert outcome.blame == Blame(run.requests[0].name, 2, note=note)


def test_the_naive_drafts_follow_a_request_to_the_end_of_the_context(measured):
    """One late round that accepts another number of tokens is red, although the stored oracle does not reach it."""
    prepared, run, baseline = measured("standalone.s2.ctx.length")
    outcome = AcceptanceGate().judge(prepared, run, baseline)
    assert outcome.state is State.PASS and outcome.numbers["naive_rounds"] > 5
    assert SHORT_CONTEXT - 8 <= outcome.numbers["naive_reach"] < SHORT_CONTEXT
    lengths = list(run.answers[0].accept_lengths)
    starts = [sum(lengths[:at]) for at in range(len(lengths))]
    prompt = len(run.answers[0].prompt_ids)
    late = next(at for at, start in enumerate(starts) if start + prompt > 160 and lengths[at] != lengths[at + 1])
    lengths[late : late + 2] = reversed(lengths[late : late + 2])
    answer = replace(run.answers[0], accept_lengths=tuple(lengths))
    # Drawn requests are not followed, and do not end the walk.
    drawn = replace(run.requests[0], name="d0", temperature=0.8)
    both = replace(run, requests=(drawn, *run.requests), answers=(replace(answer, name="d0"), answer))
    outcome = AcceptanceGate().judge(prepared, both, baseline)
    name = run.requests[0].name
    text = f"1 requests differ from naive drafts at late positions, first {name} in verify round {late + 1}"
    assert (outcome.state, outcome.message) == (State.FAIL, text)
    assert outcome.blame.token == 1 + starts[late]


def test_a_shorter_answer_is_no_loss():
    measured = same_range((3, 3), (3, 3, 1, 1, 1, 1))
    assert (measured.emitted, measured.engine, measured.oracle) == (6, 2, 2)
    part = same_range((4, 4), (4, 1))
    assert (part.emitted, part.engine, part.oracle) == (5, 1.25, 2)


@pytest.mark.parametrize(
    ("rounds", "state"), [(100, State.PASS), (103, State.PASS), (104, State.FAIL), (98, State.PASS), (97, State.FAIL)]
)
def test_the_band_for_one_prompt(measured, gate, rounds, state):
    """One prompt has no spread: its ratio itself must lie in the band. 400 tokens, the oracle takes 100 rounds."""
    prepared, run, baseline = measured(CELL)
    lengths = [(400 // rounds,) * (rounds - 1), ()]
    lengths[0] = (*lengths[0], 400 - sum(lengths[0]))
    answers = tuple(replace(a, accept_lengths=each) for a, each in zip(run.answers, lengths, strict=True))
    ((key, known),) = gate.oracle("llama-mini").rounds.items()
    prompts = [()] * len(known)
    prompts[int(run.requests[0].name[1:])] = (4,) * 100
    outcome = AcceptanceGate(oracle=lambda target: Oracle((), {key: tuple(prompts)}, ())).judge(
        # Half precision rounds a draft's choice now and then, so only the ratio counts there.
        prepared,
        replace(run, answers=answers, resolved={**run.resolved, "dtype": "bfloat16"}),
        baseline,
    )
    assert outcome.interval is None and outcome.numbers["ratio"] == pytest.approx(100 / rounds)
    assert outcome.state is state
    text = {97: "4.124, the oracle has 4.000: ratio 1.031", 104: "3.846, the oracle has 4.000: ratio 0.962"}.get(rounds)
    assert outcome.message == ((text and f"acceptance length {text}, which must lie within 0.97 to 1.03") or "")


@pytest.mark.parametrize("memory", ["ample", "tight"])
def test_one_round_that_leaves_the_oracle_fails_in_float32(measured, gate, memory):
    prepared, run, baseline = measured(CELL)
    answer = run.answers[0]
    at = next(
        i for i in range(len(answer.accept_lengths) - 2) if answer.accept_lengths[i] != answer.accept_lengths[i + 1]
    )
    lengths = list(answer.accept_lengths)
    lengths[at : at + 2] = reversed(lengths[at : at + 2])
    moved = replace(run, answers=(replace(answer, accept_lengths=tuple(lengths)), *run.answers[1:]))
    outcome = gate.judge(prepare(prepared.cell._replace(memory=memory)), moved, baseline)
    assert outcome.interval == pytest.approx((1.0, 1.0))
    assert outcome.state is State.FAIL and outcome.numbers["left"] == 1
    name, one, other = answer.name, *lengths[at : at + 2]
    assert outcome.message == f"1 of 2 requests differ from the oracle, first {name} in verify round {at + 1}"
    note = f"verify round {at + 1} has {count(one, 'token')}, the oracle's {other}"
    assert outcome.blame == Blame(name, 1 + sum(lengths[:at]), note=note) and not outcome.accept


def test_a_retracted_request_keeps_the_oracles_rounds_from_where_it_resumes(measured, gate):
    """Round 3 starts one token later because a prefill gave the token in between; rounds aligned with the oracle again
    are equal."""
    prepared, run, baseline = measured(CELL)
    name = run.requests[0].name
    ((key, known),) = gate.oracle("llama-mini").rounds.items()
    rounds = list(known)
    rounds[int(name[1:])] = (3, 2, 1, 4, 2, 3, 1)
    oracle = AcceptanceGate(
        oracle=lambda target: Oracle(gate.oracle("llama-mini").continuations, {key: tuple(rounds)}, ())
    )

    def judged(lengths, retractions):
        answer = replace(run.answers[0], accept_lengths=lengths, retractions=retractions)
        return oracle.judge(prepared, replace(run, answers=(answer, *run.answers[1:])), baseline)

    assert judged((3, 2, 4, 2, 3, 1), 1).state is State.PASS
    assert judged((3, 2, 4, 2, 3, 1), 1).numbers["retracted"] == 1
    assert judged((3, 2, 4, 2, 3, 1), 0).message.endswith(f"first {name} in verify round 3")
    shifted = judged((3, 2, 4, 1, 3, 1), 1)
    assert shifted.message.endswith(f"first {name} in verify round 4")
    assert shifted.blame.note == "", "which of the oracle's rounds it should be depends on the retraction"


def test_where_everybody_was_retracted_the_ratio_has_a_wider_band(measured, gate):
    prepared, run, baseline = measured(CELL)
    ((key, known),) = gate.oracle("llama-mini").rounds.items()
    oracle = AcceptanceGate(oracle=lambda target: Oracle((), {key: ((4,) * 100,) * len(known)}, ()))
    half = replace(run, resolved={**run.resolved, "dtype": "bfloat16"})
    for retractions, state in ((0, State.FAIL), (1, State.PASS)):
        answers = tuple(replace(a, accept_lengths=(4,) * 82 + (3,) * 24, retractions=retractions) for a in run.answers)
        assert oracle.judge(prepared, replace(half, answers=answers), baseline).state is state


@pytest.mark.parametrize(("lengths", "state"), [((4, 4, 4, 1), State.PASS), ((4, 2, 2, 1), State.FAIL)])
def test_another_engine_may_draft_less_in_its_last_round(measured, gate, lengths, state):
    prepared, run, baseline = measured(CELL)
    ((key, known),) = gate.oracle("llama-mini").rounds.items()
    oracle = Oracle((), {key: ((4,) * 100,) * len(known)}, ())
    answers = tuple(replace(a, accept_lengths=lengths) for a in run.answers)
    judged = AcceptanceGate(oracle=lambda target: oracle, exact=False).judge(
        prepared, replace(run, answers=answers), baseline
    )
    assert judged.state is state
    assert judged.message.endswith(": ratio 0.667, which must lie within 0.9 to 1.1") == (state is State.FAIL)
    exact = AcceptanceGate(oracle=lambda target: oracle).judge(prepared, replace(run, answers=answers), baseline)
    assert exact.state is State.FAIL


@pytest.mark.parametrize(
    ("mine", "retractions", "left"),
    [
        ((3, 2, 4, 2, 3, 1), 1, None),  # one token of the oracle's third round came from a prefill
        ((3, 2, 4, 2, 3, 1), 0, 2),
        ((3, 1, 4, 2, 9), 0, 1),
        ((3, 1, 4, 2, 9), 2, None),
        ((3, 2, 4, 1, 3, 1), 1, 3),
        ((2, 4, 2, 3, 1), 9, None),
    ],
)
def test_rounds_move_by_one_with_each_retraction(mine, retractions, left):
    assert first_round_mismatch(mine, (3, 2, 1, 4, 2, 3, 1), retractions) == left


def test_the_last_common_round_may_be_cut():
    assert first_round_mismatch((3, 2, 4), (3, 2, 1, 1)) is None
    assert first_round_mismatch((3, 1, 4), (3, 2, 1)) == 1
    assert first_round_mismatch((), (1,)) is None


def test_a_missing_combination_is_not_measured(measured, gate):
    prepared, run, baseline = measured(CELL)
    for oracle in (lambda target: None, lambda target: Oracle((), {}, ())):
        outcome = AcceptanceGate(oracle=oracle).judge(prepared, run, baseline)
        assert (outcome.state, outcome.message) == (
            State.NOT_MEASURED,
            "the oracle has no rounds for eagle3 with (steps, topk, draft tokens) = (3, 4, 8)",
        )
        assert outcome.accept == "python -m specmatrix.matrix.zoo.oracle llama-mini"
    adapted = prepare(Cell.from_id("nextn.deepseek.s3.tiers.pair"))
    outcome = AcceptanceGate(oracle=lambda target: Oracle((), {}, ())).judge(adapted, run, baseline)
    text = "the oracle has no correct-draft counts for nextn.single"
    assert (outcome.state, outcome.message) == (State.NOT_MEASURED, text)
    silent = replace(run, answers=tuple(replace(a, accept_lengths=()) for a in run.answers))
    outcome = gate.judge(prepared, silent, baseline)
    assert (outcome.state, outcome.message) == (
        State.NOT_MEASURED,
        "no greedy request on the oracle's prompts decoded a verify round",
    )


@pytest.mark.parametrize(
    ("cell_id", "applies"),
    [
        ("none", False),
        ("eagle3", True),
        ("eagle3.temperature", False),
        ("eagle3.pair.mixed", True),
        ("eagle3.abort_running", False),
        ("eagle3.s3.ramp.length", True),
        ("none.ramp.length", False),
    ],
)
def test_it_applies_to_greedy_drafted_requests(gate, cell_id, applies):
    assert gate.applies(Cell.from_id(cell_id)) is applies


WAVES = "eagle3.s3.k4.n8.v2.p16.ramp.length"


def test_static_rounds_of_waves_are_the_oracles(measured, altered):
    """Fifty short answers against the oracle of whole answers; one different round fails."""
    prepared, run, baseline = measured(WAVES)
    outcome = AcceptanceGate().judge(prepared, run, baseline)
    assert outcome.state is State.PASS and (outcome.numbers["prompts"], outcome.numbers["left"]) == (50, 0)
    place, answer = next((i, a) for i, a in enumerate(run.answers) if len(a.accept_lengths) > 3)
    lengths = (answer.accept_lengths[0] - 1 or 2, *answer.accept_lengths[1:])
    outcome = AcceptanceGate().judge(prepared, altered(run, place, accept_lengths=lengths), baseline)
    assert outcome.message == f"1 of 50 requests differ from the oracle, first {answer.name} in verify round 1"


def test_the_file_is_read(tmp_path):
    assert load_oracle(tmp_path / "none.json") is None
    oracle = decode(
        {"continuations": [[1, 2, 3]], "logprobs": [[-0.5, 0.0, -2.0]], "acceptance": {"EAGLE3": {"3/4/8": [[2, 1]]}}}
    )
    assert oracle == Oracle(((1, 2, 3),), {("eagle3", 3, 4, 8): ((2, 1),)}, ((-0.5, 0.0, -2.0),))


NGRAM = "ngram.mixed_lengths.mixed"


def test_rounds_of_ngrams_are_replayed_drawn_ones_too(measured):
    outcome = AcceptanceGate().judge(*measured(NGRAM))
    assert outcome.state is State.PASS and outcome.numbers["left"] == 0
    lengths = [length for answer in measured(NGRAM)[1].answers for length in answer.accept_lengths]
    assert outcome.numbers["rounds"] == len(lengths) > 100 and 0 < outcome.numbers["mixed"] < len(lengths)
    assert outcome.numbers["length"] == sum(lengths) / len(lengths)
    assert AcceptanceGate().applies(Cell.from_id("ngram.m4.burst.temperature.abort_queued"))


@pytest.mark.parametrize("change", [1, -1])
def test_one_different_ngram_round_fails(measured, altered, change):
    prepared, run, baseline = measured(NGRAM)
    lengths = list(run.answers[1].accept_lengths)
    at = next(i for i, length in enumerate(lengths) if i > 3 and length > 1)
    lengths[at] += change
    outcome = AcceptanceGate().judge(prepared, altered(run, 1, accept_lengths=tuple(lengths)), baseline)
    assert outcome.state is State.FAIL
    name = run.requests[1].name
    assert outcome.message == f"1 of 5 requests differ from the replay, first {name} in verify round {at + 1}"
    assert outcome.blame == Blame(name, 1 + sum(lengths[:at]))
    fewer = AcceptanceGate().judge(prepared, altered(run, 1, accept_lengths=tuple(lengths[:at])), baseline)
    assert fewer.message.endswith(f"in verify round {at + 1}")


def test_ngrams_without_evidence_are_not_measured(measured):
    prepared, run, baseline = measured(NGRAM)
    outcome = AcceptanceGate().judge(prepared, replace(run, journal=None), baseline)
    assert (outcome.state, outcome.message) == (State.NOT_MEASURED, "the subject provides no ledger journal")
    outcome = AcceptanceGate().judge(prepared, replace(run, served=run.served[1:]), baseline)
    text = "account 1 of the journal belongs to no answered request"
    assert (outcome.state, outcome.message) == (State.FAIL, text)
    silent = tuple(replace(answer, output_ids=answer.output_ids[:1], accept_lengths=()) for answer in run.answers)
    nobody = replace(run, answers=silent, journal=[])
    outcome = AcceptanceGate().judge(prepared, nobody, baseline)
    assert (outcome.state, outcome.message) == (State.NOT_MEASURED, "no request decoded a verify round")
    assert outcome.numbers["rounds"] == 0


def test_in_bf16_only_rounds_on_the_oracles_text_are_compared(measured, altered):
    prepared, run, baseline = measured("eagle3.s3.k4.n8.v2.fast.pair.mixed")
    gate = AcceptanceGate()
    whole = gate.judge(prepared, run, baseline)
    ids, lengths = run.answers[0].output_ids, run.answers[0].accept_lengths
    left = altered(run, 0, output_ids=(*ids[:12], ids[12] ^ 1, *ids[13:]))
    part = gate.judge(prepared, left, baseline)
    assert whole.state is part.state is State.PASS
    assert whole.numbers["emitted"][0] > 40 > 12 >= part.numbers["emitted"][0] > 0
    # A round that ends with the last equal token counts.
    ends = [1 + sum(lengths[:at]) for at in range(len(lengths) + 1)]
    last = ends[3]
    parted = altered(run, 0, output_ids=(*ids[:last], ids[last] ^ 1, *ids[last + 1 :]))
    assert gate.judge(prepared, parted, baseline).numbers["emitted"][0] == last - 1
    # Behind the tie other rounds are no loss; before it they are.
    later = altered(left, 0, accept_lengths=(*lengths[:5], *[1] * sum(lengths[5:])))
    assert gate.judge(prepared, later, baseline).state is State.PASS
    worse = altered(left, 0, accept_lengths=(1,) * sum(lengths))
    assert gate.judge(prepared, worse, baseline).state is State.FAIL
