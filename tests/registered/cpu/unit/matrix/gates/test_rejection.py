import re
from dataclasses import replace

import pytest
import torch

from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.gates.rejection import RejectionGate

TOKEN, BLOCK = "standalone.reject.pair.topk_topp", "eagle3.block.c7.tight.pair.mixed.length"
GATE = RejectionGate()


@pytest.mark.parametrize("cell", [TOKEN, BLOCK])
def test_rounds_are_recomputed_by_the_cells_rule(measured, cell):
    found = measured(cell)
    outcome = found.judge(GATE)
    numbers = outcome.numbers
    assert (outcome.state, outcome.message) == (State.PASS, "") and GATE.applies(found.prepared.cell)
    assert numbers["rounds"] >= 16 and numbers["left"] == 0 and numbers["p"] > 1e-5
    assert len(numbers["per_position"]) == len(numbers["due_per_position"]) == 3
    other = "block" if cell == TOKEN else "reject"
    swapped = replace(found.prepared, cell=found.prepared.cell._replace(acceptance=other))
    assert GATE.judge(swapped, found.run, found.baseline).state is State.FAIL


def test_a_token_and_a_count_that_the_seed_does_not_give_are_named(measured, altered):
    found = measured(TOKEN)
    place = next(i for i, answer in enumerate(found.run.answers) if len(answer.accept_lengths) > 10)
    answer = found.run.answers[place]
    ids = (*answer.output_ids[:-1], 5) if answer.output_ids[-1] != 5 else (*answer.output_ids[:-1], 6)
    every = [replace(found.run, answers=(one,)) for one in (answer, replace(answer, output_ids=ids))]
    right, wrong = (found.judge(GATE, run, requests=found.run.requests) for run in every)
    assert right.numbers["left"] == 0 and wrong.numbers["left"] == 1
    assert wrong.message.endswith(f"instead of {wrong.message.rpartition('instead of ')[2]}")
    assert wrong.message.startswith(f"1 of {right.numbers['rounds']} rounds differ from what p, q and the seed give, ")
    assert wrong.blame.request == answer.name and answer.output_ids[wrong.blame.token] is not None
    index = next(i for i, length in enumerate(answer.accept_lengths) if length > 1)
    fewer = (*answer.accept_lengths[:index], answer.accept_lengths[index] - 1, *answer.accept_lengths[index + 1 :])
    assert found.judge(GATE, altered(found.run, place, accept_lengths=fewer)).state is State.FAIL


def test_another_seed_or_temperature_than_the_requests_is_seen(measured):
    found = measured(TOKEN)
    for change in ({"seed": 5}, {"temperature": 1.1}, {"top_k": 6}, {"top_p": 0.8}):
        requests = tuple(replace(request, **change) for request in found.run.requests)
        assert found.judge(GATE, requests=requests).state is State.FAIL, change


def test_another_q_than_drew_the_drafts_is_seen_whatever_the_tokens(measured):
    found, right = measured(TOKEN), measured(TOKEN).judge(GATE).numbers
    assert right["q"] < GATE.thresholds["q"] / 20 and right["q_rounds"] > right["rounds"] / 2

    def judged(near):
        drawn = {key: near([[(t, float(torch.tensor(q).bfloat16())) for t, q in one] for one in each])
                 for key, each in found.run.work.drawn.items()}  # fmt: skip
        return found.judge(GATE, replace(found.run, work=replace(found.run.work, drawn=drawn)))

    rounded, gap = judged(list), judged(list).numbers["q"]
    assert rounded.message == f"q of a draft differs by up to {gap:.2g} from the distribution that drew it"
    assert rounded.state is State.FAIL and gap > 5 * GATE.thresholds["q"] and rounded.numbers["left"] == 0
    assert judged(lambda each: []).state is State.NOT_MEASURED
    other = judged(lambda each: [[(token + 1, q) for token, q in one] for one in each])
    said = r"the drafts of (\w+) at token \d+ are not \[[\d, ]+\], which q and the seed give"
    assert re.fullmatch(said, other.message)[1] == other.blame.request and other.state is State.FAIL


def test_a_draft_accepted_more_often_than_p_and_q_say_fails(measured):
    found, strict = measured(TOKEN), RejectionGate()
    strict.thresholds = {**strict.thresholds, "alpha": 1.1}
    outcome = found.judge(strict)
    assert outcome.state is State.FAIL and outcome.message.startswith("draft ") and "; p and q give " in outcome.message


def test_few_rounds_are_not_measured(measured):
    found = measured(TOKEN)
    few = tuple(answer for answer in found.run.answers if answer.name.startswith("d"))[:2]
    outcome = found.judge(GATE, answers=few)
    text = f"{outcome.numbers['rounds']} rounds of sampled requests ran; the test needs 6, and q of some"
    assert (outcome.state, outcome.message) == (State.NOT_MEASURED, text)
