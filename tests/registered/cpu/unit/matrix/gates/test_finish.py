from dataclasses import replace

import pytest

from specmatrix.matrix.gates.finish import OLDER, FinishGate
from specmatrix.matrix.gates.gate import Blame, State
from specmatrix.matrix.oracles.finish import text_of
from specmatrix.matrix.subjects.protocol import Capability

CELL = "eagle3.s3.k4.n8.v2.p16.pair"
STRING = "eagle3.s3.k4.n8.v2.p16.pair.temperature.stop_string.abort_running"
TOKEN = "eagle3.s3.k4.n8.v2.p16.pair.mixed.stop_token"
LENGTH = "eagle3.s3.k2.n6.v2.length"
ADAPTED = "eagle3.tiers.v2.mixed_lengths"
DRAWN = "none.v1.temperature"
PLAIN = "none.pair"
TIGHT = "none.v1.nocache.c7.tight.pair"
ABORTED = "none.pair.abort_running"
GATE = FinishGate()


@pytest.mark.parametrize(
    "cell_id",
    [CELL, *(pytest.param(cell, marks=pytest.mark.nightly) for cell in (STRING, TOKEN, LENGTH, ADAPTED, DRAWN))],
)
def test_what_the_reference_engine_ends_is_right(measured, cell_id):
    outcome = GATE.judge(*measured(cell_id))
    assert (outcome.state, outcome.message) == (State.PASS, "")


def test_the_two_stops_and_the_limit_all_occur(measured):
    matched = {cell_id: measured(cell_id)[1].answers[0].matched for cell_id in (CELL, STRING, TOKEN, LENGTH)}
    assert matched[STRING] == "\n####" and matched[CELL] == 1 and matched[TOKEN] > 1 and matched[LENGTH] is None


def info(answer, **changes: object):
    return {**answer.meta_info, **changes}


@pytest.mark.parametrize(
    ("cell_id", "change", "sentence"),
    [
        (CELL, lambda a: {"finish": "length", "matched": None}, "finished by length; its tokens imply stop (1)"),
        (CELL, lambda a: {"output_ids": (*a.output_ids, 5)}, "has 63 tokens, but must finish by stop (1) after 62"),
        (CELL, lambda a: {"output_ids": a.output_ids[:-1]}, "finished by stop (1); its tokens imply no finish yet"),
        (CELL, lambda a: {"text": "x" + a.text + "x"}, r"has a text that ends in '475=<<164+475=639>>639"),
        (CELL, lambda a: {"finish": "abort", "matched": None}, "was aborted after 62 tokens; no abort was sent"),
        (
            STRING,
            lambda a: {"text": a.text + "\n####"},
            r"has a text that ends in ' 164+475=<<164+475=639>>639 spoons.\n####'; "
            r"its tokens decode to 'e are 164+475=<<164+475=639>>639 spoons.'",
        ),
        (STRING, lambda a: {"matched": ">>"}, r"finished by stop ('>>'); its tokens imply stop ('\n####')"),
        (
            TOKEN,
            lambda a: {"text": a.text + "####"},
            r"has a text that ends in ' 164+475=<<164+475=639>>639 spoons.\n####'; "
            r"its tokens decode to ' are 164+475=<<164+475=639>>639 spoons.\n'",
        ),
        (LENGTH, lambda a: {"output_ids": (*a.output_ids, 5)}, "has 38 tokens, but must finish by length after 37"),
        (CELL, lambda a: {"accept_lengths": (5, *a.accept_lengths[1:])}, "accepted 5 tokens in one verify round"),
        (CELL, lambda a: {"meta_info": info(a, spec_verify_ct=0)}, "reports spec_verify_ct 0; expected 17"),
        (CELL, lambda a: {"meta_info": info(a, spec_accept_length=1.0)}, "reports spec_accept_length 1.0; its verify"),
        (
            CELL,
            lambda a: {"meta_info": {key: value for key, value in a.meta_info.items() if key != "spec_accept_length"}},
            "reports spec_accept_length None; its verify rounds give 3.64706",
        ),
        (CELL, lambda a: {"meta_info": info(a, spec_accept_rate=1.5)}, "reports spec_accept_rate 1.5; its verify"),
        (CELL, lambda a: {"meta_info": info(a, spec_correct_drafts_histogram=[1])}, "reports the histogram [1]; its"),
        *(
            (
                CELL,
                lambda a, key=key: {"meta_info": info(a, **{key: None})},
                f"reports {key} None, an older name of {name}, which is {{{name}}}",
            )
            for key, name in OLDER.items()
        ),
        (CELL, lambda a: {"meta_info": info(a, completion_tokens=1)}, "reports completion_tokens 1; expected 62"),
        (ADAPTED, lambda a: {"round_widths": (*a.round_widths[1:], 7)}, "accepted 5 tokens in one verify round"),
        (ADAPTED, lambda a: {"round_widths": (*a.round_widths[:-1], 9)}, "reports spec_accept_rate 0.86; its verify"),
        (ADAPTED, lambda a: {"round_widths": a.round_widths[1:]}, "reports 19 round widths for 20 verify rounds"),
        (DRAWN, lambda a: {"accept_lengths": a.accept_lengths[:-1]}, "has 71 tokens; its verify rounds emitted 70"),
    ],
)
def test_each_departure_is_named(measured, altered, cell_id, change, sentence):
    prepared, run, baseline = measured(cell_id)
    outcome = GATE.judge(prepared, altered(run, 0, **change(run.answers[0])), baseline)
    assert outcome.state is State.FAIL and outcome.numbers["faults"] == 1
    name = run.requests[0].name
    assert outcome.message.startswith(f"{name} {sentence.format(**run.answers[0].meta_info)}")
    assert outcome.blame == Blame(name)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda a: {"logprobs": a.logprobs[:-1]}, "has log-probabilities for 2 of 3 tokens"),
        (lambda a: {"top_logprobs": a.top_logprobs[:-1]}, "has top log-probabilities for 2 of 3 tokens"),
        (lambda a: {"logprobs": (0.1, *a.logprobs[1:])}, "has a log-probability of 0.1; allowed: at most 0"),
        (
            lambda a: {"top_logprobs": (a.top_logprobs[0][1:], *a.top_logprobs[1:])},
            "does not have {asked} top log-probabilities for every token",
        ),
    ],
)
def test_log_probabilities_are_complete(measured, altered, change, sentence):
    prepared, run, baseline = measured(DRAWN)
    outcome = GATE.judge(prepared, altered(run, -1, **change(run.answers[-1])), baseline)
    name = run.answers[-1].name
    text = f"{name} {sentence.format(asked=run.requests[-1].top_logprobs)}"
    assert (outcome.state, outcome.blame) == (State.FAIL, Blame(name)) and outcome.message.startswith(text)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda a: {"logprobs": (-0.1,)}, "has log-probabilities for 1 of 0 tokens"),
        (lambda a: {"top_logprobs": (((5, -0.1),),)}, "has top log-probabilities for 1 of 0 tokens"),
    ],
)
def test_log_probabilities_are_returned_on_request_only(measured, altered, change, sentence):
    prepared, run, baseline = measured(CELL)
    outcome = GATE.judge(prepared, altered(run, 0, **change(run.answers[0])), baseline)
    assert (outcome.state, outcome.message) == (State.FAIL, f"{run.answers[0].name} {sentence}")


def test_a_missing_answer_is_not_measured(measured):
    prepared, run, baseline = measured(CELL)
    outcome = GATE.judge(prepared, replace(run, answers=run.answers[1:]), baseline)
    assert (outcome.state, outcome.message) == (
        State.NOT_MEASURED,
        f"the run has no answer for request {run.requests[0].name}",
    )
    outcome = GATE.judge(prepared, replace(run, requests=(), answers=()), baseline)
    assert (outcome.state, outcome.message) == (State.NOT_MEASURED, "the cell has no requests")


MIXED = "none.mixed_lengths.stops"


def test_mixed_stops_all_occur(measured):
    _, run, _ = measured(MIXED)
    minimum, kept, overlapping, asked, again, streamed = run.answers
    assert GATE.judge(*measured(MIXED)).state is State.PASS
    assert len(minimum.output_ids) == run.requests[0].min_new_tokens + 1 > 40
    assert kept.text.endswith(kept.matched) and kept.matched == ".\n"
    assert asked.text == again.text and asked.text.endswith(">>") and asked.matched != 1
    assert overlapping.matched == "=<<" and not overlapping.text.endswith("=")
    assert len(streamed.pieces) > 5 and streamed.finish == "stop"
    held = [text for text in (text_of(streamed.output_ids[:n]) for n in range(60)) if text.endswith("\n")]
    assert held and not set(held).intersection(streamed.pieces)


@pytest.mark.parametrize(
    ("place", "change", "sentence"),
    [
        (0, lambda a: {"output_ids": (*a.output_ids[:5], 1, *a.output_ids[6:])}, "has stop token 1 among its first 41"),
        (1, lambda a: {"text": a.text.removesuffix(a.matched)}, r"has a text that ends in 'ere are"),
        (2, lambda a: {"matched": "<<"}, "finished by stop ('<<'); its tokens imply stop ('=<<')"),
        (3, lambda a: {"text": a.text.removesuffix(">>")}, "has a text that ends in ' 10% is"),
        (5, lambda a: {"pieces": (*a.pieces, a.text + ">")}, "showed ' are 164+475=<<164+475=639>>639 spoons.>' while"),
        (5, lambda a: {"pieces": a.pieces[-1:]}, "was streamed, but its text was never read before its end"),
        (5, lambda a: {"pieces": a.pieces[-2:]}, "did not show ' H' while it ran, which no stop can take away"),
        (5, lambda a: {"pieces": (a.text[:1], *a.pieces)}, "showed ' ' while it ran, which a stop could still take"),
    ],
)
def test_each_departure_of_mixed_stops_is_named(measured, altered, place, change, sentence):
    prepared, run, baseline = measured(MIXED)
    outcome = GATE.judge(prepared, altered(run, place, **change(run.answers[place])), baseline)
    assert outcome.state is State.FAIL and outcome.message.startswith(f"{run.answers[place].name} {sentence}")


def test_another_engine_may_end_at_the_stop_string_that_ends_first_and_hold_back_more_text(measured, altered):
    prepared, run, baseline = measured(MIXED)
    foreign = replace(run, capabilities=run.capabilities - {Capability.RESOLUTION})
    for matched, state in (("=<<", State.PASS), ("=<", State.PASS), ("<<", State.FAIL)):
        assert GATE.judge(prepared, altered(foreign, 2, matched=matched), baseline).state is state
    assert GATE.judge(prepared, altered(run, 2, matched="=<"), baseline).state is State.FAIL
    held = altered(foreign, 5, pieces=("", *run.answers[5].pieces[-2:]))
    assert GATE.judge(prepared, held, baseline).state is State.PASS


SCORED = "none.mixed_lengths.rules"


@pytest.mark.parametrize(
    ("place", "change", "sentence"),
    [
        (0, lambda a: {"prompt_logprobs": a.prompt_logprobs[1:]}, "has log-probabilities for 39 of 40 prompt tokens"),
        (0, lambda a: {"prompt_logprobs": (-1.0, *a.prompt_logprobs[1:])}, "has a log-probability for token 0 of its"),
        (-1, lambda a: {"prompt_logprobs": (None, *a.prompt_logprobs[1:])}, "has no log-probability for token 9 of"),
        (2, lambda a: {"prompt_logprobs": (-1.0,)}, "has log-probabilities for 1 of 0 prompt tokens"),
        (0, lambda a: {"prompt_top_logprobs": a.prompt_top_logprobs[1:]}, "does not have 2 top log-probabilities for"),
        (
            0,
            lambda a: {"prompt_top_logprobs": tuple(top[:1] for top in a.prompt_top_logprobs)},
            "does not have 2 top log-probabilities for every prompt token",
        ),
        (-1, lambda a: {"prompt_top_logprobs": (((5, -0.1),),)}, "does not have 0 top log-probabilities for every"),
    ],
)
def test_log_probabilities_of_prompts_are_complete(measured, altered, place, change, sentence):
    prepared, run, baseline = measured(SCORED)
    assert GATE.judge(prepared, run, baseline).state is State.PASS
    outcome = GATE.judge(prepared, altered(run, place, **change(run.answers[place])), baseline)
    assert outcome.state is State.FAIL and outcome.message.startswith(f"{run.answers[place].name} {sentence}")


def test_a_missing_completion_is_not_measured(measured):
    prepared, run, baseline = measured(SCORED)
    fewer = tuple(answer for answer in run.answers if "#" not in answer.name)
    assert len(fewer) == len(run.answers) - 1
    outcome = GATE.judge(prepared, replace(run, answers=fewer), baseline)
    assert (outcome.state, outcome.message) == (State.NOT_MEASURED, "the run has no answer for request q6#1")


def test_a_replace_must_end_what_still_runs(measured, altered):
    prepared, run, baseline = measured("none.pair.branch.abort_running")
    (place,) = [place for place, request in enumerate(run.requests) if request.replaced]
    assert run.answers[place].finish == "abort" and GATE.judge(prepared, run, baseline).state is State.PASS
    outcome = GATE.judge(prepared, altered(run, place, finish="length"), baseline)
    name = run.requests[place].name
    assert outcome.message == f"{name} finished by length, but was replaced while it ran"


def test_plain_decoding_reports_no_metric_of_speculation(measured, altered):
    prepared, run, baseline = measured(PLAIN)
    answer = run.answers[0]
    assert GATE.judge(prepared, run, baseline).state is State.PASS
    told = altered(run, 0, meta_info=info(answer, spec_num_proposed_drafts=0))
    outcome = GATE.judge(prepared, told, baseline)
    assert outcome.message == f"{answer.name} reports spec_num_proposed_drafts 0, but no round drafted"


def test_a_tree_is_accepted_to_its_depth_and_a_chain_as_a_whole(measured, altered):
    prepared, run, baseline = measured(CELL)
    long = altered(run, 0, accept_lengths=(5, *run.answers[0].accept_lengths[1:]))
    for topk, named in ((2, True), (1, False)):
        told = replace(long, resolved={**run.resolved, "topk": topk})
        text = f"{run.requests[0].name} accepted 5 tokens in one verify round; allowed: 1 to 4"
        assert (GATE.judge(prepared, told, baseline).message == text) is named


def test_log_probabilities_are_at_most_0_but_for_rounding(measured, altered):
    prepared, run, baseline = measured(DRAWN)
    for value, state in ((1e-6, State.PASS), (2e-6, State.FAIL)):
        high = altered(run, -1, logprobs=(value, *run.answers[-1].logprobs[1:]))
        assert GATE.judge(prepared, high, baseline).state is state


def test_rounds_account_for_the_tokens_after_a_retraction_too(measured, altered):
    prepared, run, _ = measured(TIGHT)
    assert GATE.judge(*measured(TIGHT)).state is State.PASS
    place = next(index for index, answer in enumerate(run.answers) if answer.retractions)
    answer = run.answers[place]
    for lengths in (answer.accept_lengths[3:], (*answer.accept_lengths, 1, 1)):
        outcome = GATE.judge(prepared, altered(run, place, accept_lengths=lengths), run)
        least, most = 1 + len(lengths), 1 + len(lengths) + answer.retractions
        text = f"{answer.name} has {len(answer.output_ids)} tokens; its verify rounds emitted {least} to {most}"
        assert (outcome.state, outcome.message) == (State.FAIL, text)


def test_an_abort_ends_what_still_runs_and_not_before_it_was_sent(measured, altered):
    prepared, run, _ = measured(ABORTED)
    early = altered(run, 1, output_ids=run.answers[1].output_ids[:3])
    outcome = GATE.judge(prepared, early, run)
    assert (outcome.state, outcome.message) == (State.FAIL, "q6 was aborted after 3 tokens; the abort was sent after 5")
    requests = (replace(run.requests[0], abort_after=5), *run.requests[1:])
    ended = altered(replace(run, requests=requests), 0, finish="abort", matched=None)
    outcome = GATE.judge(prepared, ended, run)
    text = "q5 was aborted, but its tokens already finish by stop (1)"
    assert (outcome.state, outcome.message, outcome.blame) == (State.FAIL, text, Blame("q5"))
    assert outcome.numbers == {"requests": 2, "faults": 1, "abort": 2}


def test_an_aborted_request_has_the_tokens_of_all_its_rounds(measured, altered):
    prepared, run, _ = measured(ABORTED)
    place = next(index for index, answer in enumerate(run.answers) if answer.finish == "abort")
    answer = run.answers[place]
    assert GATE.judge(*measured(ABORTED)).state is State.PASS
    outcome = GATE.judge(prepared, altered(run, place, accept_lengths=(*answer.accept_lengths, 1)), run)
    text = f"{answer.name} has 5 tokens; its verify rounds emitted 6"
    assert (outcome.state, outcome.message) == (State.FAIL, text)


@pytest.mark.parametrize("cell_id", [CELL, LENGTH, TIGHT])
def test_tokens_accepted_behind_an_end_are_counted(measured, with_evidence, cell_id):
    prepared, run, baseline = measured(cell_id)
    emitted = sum(1 + sum(one.accept_lengths) - len(one.output_ids) for one in run.answers)
    most = emitted + sum(one.retractions for one in run.answers)
    assert (most > emitted) == (cell_id == TIGHT) and GATE.judge(prepared, run, baseline).state is State.PASS
    bound = emitted if most == emitted else f"{emitted} to {most}"
    for counted in (emitted - 1, most + 1):
        outcome = GATE.judge(prepared, with_evidence(run, {"finish.overshoot": counted}), baseline)
        assert (outcome.state, outcome.message) == (
            State.FAIL,
            f"the engine counts {counted} tokens behind the ends of requests; their rounds emitted {bound}",
        )
    silent = replace(run, capabilities=run.capabilities - {Capability.COUNTERS})
    assert GATE.judge(prepared, with_evidence(silent, {"finish.overshoot": most + 1}), baseline).state is State.PASS
