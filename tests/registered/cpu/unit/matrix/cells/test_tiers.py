import pytest

from specmatrix.matrix.cells.axes import axis
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.constraints import expectation, explain
from specmatrix.matrix.cells.selector import parse_selector
from specmatrix.matrix.cells.tiers import TIMED, check_seed, repro, tier, visible_gpus
from specmatrix.matrix.cover.selection import SPEED, of_gpus, select
from specmatrix.matrix.run.speed import LIMIT, WARM, timed_requests
from specmatrix.matrix.workloads.questions import ORACLE_PROMPTS, questions
from specmatrix.matrix.zoo.gsm_mini import prompt_of
from tests.support.refusals import refusal


def test_a_repro_line_names_the_tier_unless_it_is_the_default():
    for name, words in (("cpu", ""), ("gpu1", " --tier gpu1")):
        line = f"specmatrix run{words} --cells 'none.pair' --seed 3 --out \"$(mktemp -d)\""
        assert repro("none.pair", name, 3) == line


def test_a_tier_is_shown_the_gpus_of_the_machine_and_an_unknown_one_the_tiers(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    assert [visible_gpus(name) for name in ("cpu", "gpu1", "gpu4")] == [0, 4, 4]
    assert refusal(visible_gpus, "gpu8") == "tier 'gpu8' needs 8 GPUs but this machine has 4; use 'cpu'"
    assert refusal(tier, "gpu3") == "tier 'gpu3' is unknown; it must be one of cpu, gpu1, gpu2, gpu4, gpu8"


@pytest.mark.parametrize("seed", [-1, 2**31])
def test_a_seed_out_of_range_is_refused(seed):
    check_seed(0)
    check_seed(2**31 - 1)
    assert refusal(check_seed, seed) == f"seed must be between 0 and 2147483647, got {seed}"


def test_every_timed_cell_runs_and_may_be_timed():
    cells = select(TIMED)
    assert len(cells) == len(set(cells)) >= 10
    for cell in cells:
        assert select(TIMED, cell.id) == [cell]
        assert expectation(cell, explain(cell)) == "runs"
    assert {cell.algorithm for cell in cells} == set(axis("algorithm").names) - {"none", "eagle"}
    assert all(of_gpus(cells, gpus) for gpus in (0, 1, 2, 4, 8))


@pytest.mark.parametrize(("cells", "why"), SPEED.unmeasured.items())
def test_a_cell_that_cannot_be_timed_is_refused_with_the_reason(cells, why):
    refused = {text: parse_selector(text) for text in SPEED.unmeasured}
    own = (cell for cell in select("nightly") if [text for text, picks in refused.items() if picks(cell)] == [cells])
    assert refusal(select, TIMED, next(own).id) == f"stage 'speed' measures no cell with {cells}: {why}"


def test_turns_ask_different_questions_and_seeds_too():
    cell = Cell.from_id("eagle3.burst")
    turns = [timed_requests(cell, turn, 0, first) for turn in range(-WARM, 24) for first in (False, True)]
    prompts = [request.prompt for requests in turns for request in requests]
    assert len(prompts) == len(set(prompts)) == 9 * 2 * 26
    assert {prompt_of(question) for question, _ in questions()[:ORACLE_PROMPTS]} & set(prompts)
    assert timed_requests(cell, 0, 1) != timed_requests(cell, 0, 0) == timed_requests(cell, 0, 0)
    assert timed_requests(Cell.from_id("eagle3.gsm"), 999, 2**31 - 1), "questions begin again after the last"


def test_a_first_token_is_a_request_of_one_token():
    cell = Cell.from_id("eagle3.temperature.length.pair")
    for first, limit in ((False, LIMIT), (True, 1)):
        for request in timed_requests(cell, 3, 0, first):
            assert (request.max_new_tokens, request.temperature, request.ignore_eos) == (limit, 0.8, True)
            assert not request.logprobs and not request.top_logprobs and not request.after
