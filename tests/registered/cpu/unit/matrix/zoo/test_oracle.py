import json
from itertools import accumulate

import pytest
import torch

from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import model_facts, zoo_facts
from specmatrix.matrix.cover.lockfile import STAGES, stage_cells
from specmatrix.matrix.zoo import oracle
from specmatrix.matrix.zoo.oracle import DRAFTS, LAYERS, SINGLE, is_layered
from specmatrix.matrix.zoo.registry import RECIPES, margins_file, oracle_file


class Scripted:
    """Fixed probabilities of the next token, whatever came before: 0.5, 0.3, 0.2 for tokens 0, 1, 2."""

    def after(self, known, paths, states):
        return torch.zeros(len(paths), 1), torch.tensor([[0.5, 0.3, 0.2]]).log().expand(len(paths), 3)

    def to_target(self, index):
        return index


def test_a_tree_takes_the_best_products_of_all_steps():
    # Products: 0: .5, 1: .3, 00: .25, 01: .15, 10: .15, 11: .09; of the tie the lower candidate id is kept.
    proposals = oracle.Proposals(Scripted())
    assert oracle.tree_paths(proposals, [5], (2, 2, 5)) == [{(0,), (1,), (0, 0), (0, 1)}]
    assert oracle.tree_paths(proposals, [5], (2, 2, 3)) == [{(0,), (1,)}]
    assert oracle.tree_paths(proposals, [5], (3, 1, 4)) == [{(0,), (0, 0), (0, 0, 0)}]


def test_reach_and_rounds_count_the_drafts_in_a_row_that_are_right():
    tokens = [7, 7, 9, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0]
    assert oracle.reach(oracle.Proposals(Scripted()), tokens, 2) == [2, 1, 0, 7, 7]
    # The prefill emitted 9. 0 0 match and 2 is the bonus; then nothing matches; then 0 0 and a bonus.
    tokens = [7, 7, 9, 0, 0, 2, 2, 0, 0, 0]
    assert oracle.accept_lengths(oracle.Proposals(Scripted()), tokens, 2, 6, (2, 1, 3)) == [3, 1, 3]


SAMPLE = {
    "standalone": [(2, 1, 3), (2, 2, 4)],
    "eagle": [(2, 1, 3), (2, 2, 4)],
    "eagle3": [(2, 1, 3), (2, 2, 4)],
    "eagle3.parallel": [(2, 1, 3), (7, 1, 8)],
    "standalone.parallel": [(2, 1, 3), (7, 1, 8)],
    "dflash": [(1, 1, 4)],
    "dflash.dflash2": [(1, 1, 4), (1, 1, 7)],
    "dspark.vanilla": [(1, 1, 4), (1, 1, 6)],
    "dspark.gated": [(1, 1, 4), (1, 1, 6)],
    "dspark.rnn": [(1, 1, 6), (1, 1, 7)],
    "nextn": [(2, 1, 3), (3, 1, 4), (2, 2, 4)],
    SINGLE: [(2, 1, 3)],
}


@pytest.mark.parametrize("target", DRAFTS)
def test_the_stored_file_equals_its_derivation(target):
    stored = json.loads(oracle_file(target).read_text())
    chosen = min(range(oracle.PROMPTS), key=lambda index: len(stored["continuations"][index]))
    shapes = {algorithm: SAMPLE[algorithm] for algorithm in DRAFTS[target]}
    if block := RECIPES[DRAFTS[target].get("dflash", target)].block:
        shapes["dflash"] = [(1, 1, 4), (1, 1, block)]
    fresh = oracle.account(target, [oracle.questions()[chosen]], shapes)
    assert fresh["continuations"] == [stored["continuations"][chosen]]
    assert fresh["reach"] == {name: [prompts[chosen]] for name, prompts in stored["reach"].items()}
    assert fresh["logprobs"][0] == pytest.approx(stored["logprobs"][chosen], abs=2e-5)
    margins = json.loads(margins_file().read_text())[target]
    assert len(margins) == oracle.PROMPTS and [*map(list, fresh["margins"][0])] == [
        [index, pytest.approx(nats, abs=2e-5)] for index, nats in margins[chosen]
    ]
    for algorithm, wanted in fresh["acceptance"].items():
        for shape, rounds in wanted.items():
            assert rounds == [stored["acceptance"][algorithm][shape][chosen]]


@pytest.mark.parametrize("target", DRAFTS)
def test_the_reach_gives_the_rounds_of_every_chain(target):
    """Computed independently: a round of S steps accepts min(longest match at its position, S)."""
    stored = json.loads(oracle_file(target).read_text())
    assert set(stored["reach"]) == set(DRAFTS[target]) & set(oracle.ADAPTING)
    for drafter, prompts in stored["reach"].items():
        shapes = [shape for shape in stored["acceptance"][drafter] if shape.split("/")[1] == "1"]
        assert drafter == SINGLE or len(shapes) >= 5
        for shape in shapes:
            steps = int(shape.split("/")[0])
            for places, rounds in zip(prompts, stored["acceptance"][drafter][shape], strict=True):
                starts = [0, *accumulate(rounds)][:-1]
                assert rounds == [min(places[start], steps) + 1 for start in starts]


@pytest.mark.parametrize("target", DRAFTS)
def test_the_stored_file_covers_all_requests_of_cells(target):
    stored = json.loads(oracle_file(target).read_text())["acceptance"]
    shapes = oracle.covered_shapes(target)
    assert {name: {"/".join(map(str, shape)) for shape in each} for name, each in shapes.items()} == {
        name: set(each) for name, each in stored.items()
    }
    assert (7, 1, 8) in next(iter(shapes.values()))


def test_every_locked_cell_with_a_draft_of_the_zoo_is_covered():

    known, seen = {target: oracle.covered_shapes(target) for target in DRAFTS}, 0
    for cell in stage_cells(STAGES[-1]):
        shapes = known[cell.target]
        if cell.drafter not in shapes:
            continue
        try:
            resolved = resolve(cell.config(), zoo_facts(cell))
        except ConfigError:
            continue
        seen += 1
        assert (resolved.num_steps, resolved.topk, resolved.num_draft_tokens) in shapes[cell.drafter], cell.id
    assert seen > 50


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize(("topk", "width"), [(1, "auto"), (2, 3)])
def test_a_layer_drafts_each_step_where_the_engine_resolves_so(steps, topk, width):
    assert RECIPES["deepseek-mini"].shape.num_nextn_predict_layers == LAYERS
    shape = {"num_steps": steps, "eagle_topk": topk, "num_draft_tokens": width}
    flags = {f"speculative_{name}": value for name, value in shape.items()}
    resolved = resolve(EngineConfig("deepseek-mini", "NEXTN", None, **flags), model_facts("deepseek-mini"))
    chosen = (resolved.num_steps, resolved.topk, resolved.num_draft_tokens)
    assert resolved.enable_multi_layer_eagle == is_layered("nextn", chosen)
