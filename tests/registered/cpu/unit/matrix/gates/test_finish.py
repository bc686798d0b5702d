from dataclasses import replace
from itertools import accumulate

import pytest

from specmatrix.matrix.gates.finish import FinishGate
from specmatrix.matrix.gates.gate import Blame, State
from specmatrix.matrix.subjects.protocol import Capability
from specmatrix.matrix.workloads.finish import text_of
from specmatrix.matrix.workloads.questions import tokenizer

CELL = "eagle3.s3.k4.n8.v2.p16.pair"
STRING = "eagle3.s3.k4.n8.v2.p16.pair.temperature.stop_string.abort_running"
TOKEN = "eagle3.s3.k4.n8.v2.p16.pair.mixed.stop_token"
LENGTH = "eagle3.s3.k2.n6.v2.length"
ADAPTED = "eagle3.tiers.v2.mixed_lengths"
DRAWN = "none.v1.temperature"
PLAIN = "none.pair"
TIGHT = "none.v1.nocache.c7.tight.pair"
ABORTED = "none.pair.abort_running"
MIXED = "none.mixed_lengths.stops"
SCORED = "none.mixed_lengths.rules"
REPLACED = "none.pair.branch.abort_running"
GATE = FinishGate()
VOCABULARY = tokenizer().get_vocab_size()
SPOONS = " 164+475=<<164+475=639>>639 spoons."


def test_the_two_stops_and_the_limit_all_occur(measured):
    matched = {cell_id: measured(cell_id)[1].answers[0].matched for cell_id in (CELL, STRING, TOKEN, LENGTH)}
    assert matched[STRING] == "\n####" and matched[CELL] == 1 and matched[TOKEN] > 1 and matched[LENGTH] is None


def told(**changes: object):
    """A change of an answer's meta_info."""
    return {"meta_info": lambda info: {**info, **changes}}


def without(info):
    return {name: value for name, value in info.items() if name != "spec_accept_length"}


@pytest.mark.parametrize(
    ("cell_id", "place", "change", "sentence"),
    [
        (CELL, 0, {"finish": "length", "matched": None}, "finished by length; its tokens imply stop (1)"),
        (CELL, 0, {"output_ids": lambda v: (*v, 5)}, "has 63 tokens, but must finish by stop (1) after 62"),
        (CELL, 0, {"output_ids": lambda v: v[:-1]}, "finished by stop (1); its tokens imply no finish yet"),
        (CELL, 0, {"text": lambda v: "x" + v + "x"}, r"has a text that ends in '475=<<164+475=639>>639"),
        (CELL, 0, {"finish": "abort", "matched": None}, "was aborted after 62 tokens; no abort was sent"),
        (STRING, 0, {"text": lambda v: v + "\n####"}, rf"has a text that ends in '{SPOONS}\n####'; its tokens"),
        (STRING, 0, {"matched": ">>"}, r"finished by stop ('>>'); its tokens imply stop ('\n####')"),
        (TOKEN, 0, {"text": lambda v: v + "####"}, rf"has a text that ends in '{SPOONS}\n####'; its tokens"),
        (LENGTH, 0, {"output_ids": lambda v: (*v, 5)}, "has 38 tokens, but must finish by length after 37"),
        (CELL, 0, {"accept_lengths": lambda v: (5, *v[1:])}, "accepted 5 tokens in verify round"),
        (CELL, 0, told(spec_verify_ct=0), "reports spec_verify_ct 0; expected 17"),
        (CELL, 0, told(spec_accept_length=1.0), "reports spec_accept_length 1.0; its verify"),
        (CELL, 0, {"meta_info": without}, "reports spec_accept_length None; its verify rounds give 3.64706"),
        (CELL, 0, told(spec_accept_rate=1.5), "reports spec_accept_rate 1.5; its verify"),
        (CELL, 0, told(spec_correct_drafts_histogram=[1]), "reports the histogram [1]; its"),
        (CELL, 0, told(completion_tokens=1), "reports completion_tokens 1; expected 62"),
        (CELL, 0, {"logprobs": (-0.1,)}, "has log-probabilities for 1 of 0 tokens"),
        (CELL, 0, {"top_logprobs": (((5, -0.1),),)}, "has top log-probabilities for 1 of 0 tokens"),
        (ADAPTED, 0, {"round_widths": lambda v: (*v[1:], 7)}, "accepted 5 tokens in verify round"),
        (ADAPTED, 0, {"round_widths": lambda v: (*v[:-1], 9)}, "reports spec_accept_rate 0.86; its verify"),
        (ADAPTED, 0, {"round_widths": lambda v: v[1:]}, "reports 19 round widths for 20 verify rounds"),
        (DRAWN, 0, {"accept_lengths": lambda v: v[:-1]}, "has 71 tokens; its verify rounds emitted 70"),
        (DRAWN, -1, {"logprobs": lambda v: v[:-1]}, "has log-probabilities for 2 of 3 tokens"),
        (DRAWN, -1, {"logprobs": lambda v: (0.1, *v[1:])}, "has a log-probability of 0.1; allowed: at most 0"),
        (DRAWN, -1, {"top_logprobs": lambda v: v[:-1]}, "has top log-probabilities for 2 of 3 tokens"),
        (DRAWN, -1, {"top_logprobs": lambda v: (v[0][1:], *v[1:])}, f"does not have {VOCABULARY} top log-"),
        (MIXED, 0, {"output_ids": lambda v: (*v[:5], 1, *v[6:])}, "has stop token 1 among its first 41"),
        (MIXED, 1, {"text": lambda v: v.removesuffix(".\n")}, r"has a text that ends in 'ere are"),
        (MIXED, 2, {"matched": "<<"}, "finished by stop ('<<'); its tokens imply stop ('=<<')"),
        (MIXED, 3, {"text": lambda v: v.removesuffix(">>")}, "has a text that ends in ' 10% is"),
        (MIXED, 5, {"pieces": lambda v: (*v, f" are{SPOONS}>")}, f"showed ' are{SPOONS}>' while"),
        (MIXED, 5, {"pieces": lambda v: v[-1:]}, "was streamed, but its text was never read before its end"),
        (MIXED, 5, {"pieces": lambda v: v[-2:]}, "did not show ' H' while it ran, which no stop can take away"),
        (MIXED, 5, {"pieces": lambda v: (" ", *v)}, "showed ' ' while it ran, which a stop could still take"),
        (SCORED, 0, {"prompt_logprobs": lambda v: v[1:]}, "has log-probabilities for 39 of 40 prompt tokens"),
        (SCORED, 0, {"prompt_logprobs": lambda v: (-1.0, *v[1:])}, "has a log-probability for token 0 of its"),
        (SCORED, -1, {"prompt_logprobs": lambda v: (None, *v[1:])}, "has no log-probability for token 9 of"),
        (SCORED, 2, {"prompt_logprobs": (-1.0,)}, "has log-probabilities for 1 of 0 prompt tokens"),
        (SCORED, 0, {"prompt_top_logprobs": lambda v: v[1:]}, "does not have 2 top log-probabilities for"),
        (SCORED, 0, {"prompt_top_logprobs": lambda v: tuple(top[:1] for top in v)}, "does not have 2 top log-probab"),
        (SCORED, -1, {"prompt_top_logprobs": (((5, -0.1),),)}, "does not have 0 top log-probabilities for every"),
        (REPLACED, 3, {"finish": "length"}, "finished by length, but was replaced while it ran"),
        (PLAIN, 0, told(spec_num_proposed_drafts=0), "reports spec_num_proposed_drafts 0, but no round drafted"),
        (ABORTED, -1, {"accept_lengths": lambda v: (*v, 1)}, "has 5 tokens; its verify rounds emitted 6"),
        (ABORTED, 1, {"output_ids": lambda v: v[:3]}, "was aborted after 3 tokens; the abort was sent after 5"),
    ],
)
def test_each_departure_is_named(measured, altered, cell_id, place, change, sentence):
    found = measured(cell_id)
    answer = found.run.answers[place]
    new = {name: value(getattr(answer, name)) if callable(value) else value for name, value in change.items()}
    outcome = found.judge(GATE, altered(found.run, place, **new))
    assert outcome.state is State.FAIL and outcome.numbers["faults"] == 1
    assert outcome.message.startswith(f"{answer.name} {sentence.format(**answer.meta_info)}")
    assert outcome.blame == Blame(answer.name)


def test_a_missing_answer_is_not_measured(measured):
    found, scored = measured(CELL), measured(SCORED)
    name = found.run.requests[0].name
    text = "NOT MEASURED: the run has no answer for request"
    assert found.verdict(GATE, answers=found.run.answers[1:]) == f"{text} {name}"
    assert found.verdict(GATE, requests=(), answers=()) == "NOT MEASURED: the cell has no requests"
    fewer = tuple(answer for answer in scored.run.answers if "#" not in answer.name)
    assert len(fewer) == len(scored.run.answers) - 1 and scored.verdict(GATE, answers=fewer) == f"{text} q6#1"


def test_mixed_stops_all_occur(measured):
    run = measured(MIXED).run
    minimum, kept, overlapping, asked, again, streamed = run.answers
    assert len(minimum.output_ids) == run.requests[0].min_new_tokens + 1 > 40
    assert kept.text.endswith(kept.matched) and kept.matched == ".\n"
    assert asked.text == again.text and asked.text.endswith(">>") and asked.matched != 1
    assert overlapping.matched == "=<<" and not overlapping.text.endswith("=")
    assert len(streamed.pieces) > 5 and streamed.finish == "stop"
    held = [text for text in (text_of(streamed.output_ids[:n]) for n in range(60)) if text.endswith("\n")]
    assert held and not set(held).intersection(streamed.pieces)


def test_a_stream_that_never_had_to_wait_for_a_stop_string_is_not_measured(measured, altered):
    found = measured(MIXED)
    asked, answer = found.run.requests[0], found.run.answers[0]
    texts = (text_of(answer.output_ids[:end]) for end in accumulate(answer.accept_lengths, initial=1))
    answers, alone = (replace(answer, pieces=("", *texts, answer.text)),), (replace(asked, stream=True, stop=("~~",)),)
    text = "NOT MEASURED: no streamed text ended in the beginning of a stop string, which a reader must not see"
    assert found.verdict(GATE, requests=alone, answers=answers) == text


def test_another_engine_has_its_own_rule_on_stop_strings_that_one_token_completes(measured, altered):
    found = measured(MIXED)
    foreign = replace(found.run, capabilities=found.run.capabilities - {Capability.RESOLUTION})
    for matched, state in (("=<<", State.PASS), ("=<", State.PASS), ("<<", State.FAIL)):
        assert found.judge(GATE, altered(foreign, 2, matched=matched)).state is state
    assert found.judge(GATE, altered(found.run, 2, matched="=<")).state is State.FAIL
    # SGLang takes the first of the list, and cuts the text there.
    listed = altered(foreign, 2, matched="<<", text=foreign.answers[2].text + "=")
    assert found.judge(GATE, listed).state is State.PASS
    held = altered(foreign, 5, pieces=("", *foreign.answers[5].pieces[-2:]))
    assert found.judge(GATE, held).state is State.PASS


def test_a_tree_is_accepted_to_its_depth_and_a_chain_as_a_whole(measured, altered):
    found = measured(CELL)
    long = altered(found.run, 0, accept_lengths=(5, *found.run.answers[0].accept_lengths[1:]))
    text = f"FAIL: {found.run.requests[0].name} accepted 5 tokens in verify round 1; allowed: 1 to 4"
    verdicts = [found.verdict(GATE, long, resolved={"topk": topk}) == text for topk in (2, 1)]
    assert verdicts == [True, False]


def test_log_probabilities_are_at_most_0_but_for_rounding(measured, altered):
    found = measured(DRAWN)
    for value, state in ((1e-6, State.PASS), (2e-6, State.FAIL)):
        high = altered(found.run, -1, logprobs=(value, *found.run.answers[-1].logprobs[1:]))
        assert found.judge(GATE, high).state is state


def test_rounds_account_for_the_tokens_after_a_retraction_too(measured, altered):
    found = measured(TIGHT)
    place, answer = next(pair for pair in enumerate(found.run.answers) if pair[1].retractions)
    for lengths in (answer.accept_lengths[3:], (*answer.accept_lengths, 1, 1)):
        verdict = found.verdict(GATE, altered(found.run, place, accept_lengths=lengths))
        least, most = 1 + len(lengths), 1 + len(lengths) + answer.retractions
        text = f"{answer.name} has {len(answer.output_ids)} tokens; its verify rounds emitted {least} to {most}"
        assert verdict == f"FAIL: {text}"


def test_the_number_of_requests_with_a_fault_is_told(measured, altered):
    """So that a waiver can bound it."""
    found = measured(PLAIN)
    run = altered(altered(found.run, 0, finish="length"), 1, finish="length")
    assert found.judge(GATE, run).message.endswith("; 2 of 2 requests have a fault")


def test_an_abort_ends_what_still_runs(measured, altered):
    found = measured(ABORTED)
    requests = (replace(found.run.requests[0], abort_after=5), *found.run.requests[1:])
    ended = altered(found.run, 0, finish="abort", matched=None)
    outcome = found.judge(GATE, ended, requests=requests)
    text = "q5 was aborted, but its tokens already finish by stop (1)"
    assert (outcome.state, outcome.message, outcome.blame) == (State.FAIL, text, Blame("q5"))
    assert outcome.numbers == {"requests": 2, "faults": 1, "abort": 2}


@pytest.mark.parametrize("cell_id", [CELL, TIGHT])
def test_tokens_accepted_behind_an_end_are_counted(measured, cell_id):
    found, run = measured(cell_id), measured(cell_id).run
    over = {one.name: 1 + sum(one.accept_lengths) - len(one.output_ids) for one in run.answers}
    emitted, named = sum(over.values()), ", ".join(f"{name} {more}" for name, more in over.items() if more)
    most = emitted + sum(one.retractions for one in run.answers)
    assert (most > emitted) == (cell_id == TIGHT)
    bound = emitted if most == emitted else f"{emitted} to {most}"
    for counted in (emitted - 1, most + 1):
        text = f"the engine counts {counted} tokens behind the ends of requests; their rounds emitted {bound} ({named})"
        assert found.verdict(GATE, evidence={"finish.overshoot": counted}) == f"FAIL: {text}"
    silent = replace(run, capabilities=run.capabilities - {Capability.COUNTERS})
    assert found.verdict(GATE, silent, evidence={"finish.overshoot": most + 1}) == "PASS"
