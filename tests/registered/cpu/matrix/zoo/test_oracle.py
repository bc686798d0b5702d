import json
from itertools import pairwise

import pytest
import torch

from matrix.zoo.gsm_mini import prompt_of
from matrix.zoo.oracle import ORACLE_FILE, PROMPTS, Proposals, accept_lengths, account, locked_shapes, tree_paths
from matrix.zoo.registry import TEST

pytestmark = pytest.mark.register(est_seconds=10, tier="cpu", stage="pr")


class Scripted:
    """Fixed probabilities of the next token, whatever came before: 0.5, 0.3, 0.2 for tokens 0, 1, 2."""

    def after(self, known, paths, states):
        return torch.zeros(len(paths), 1), torch.tensor([[0.5, 0.3, 0.2]]).log().expand(len(paths), 3)

    def to_target(self, index):
        return index


def test_a_tree_takes_the_best_products_of_all_steps():
    # Products: 0: .5, 1: .3, 00: .25, 01: .15, 10: .15, 11: .09; of the tie the lower candidate id is kept.
    proposals = Proposals(Scripted())
    assert tree_paths(proposals, 5, (2, 2, 5)) == {(0,), (1,), (0, 0), (0, 1)}
    assert tree_paths(proposals, 5, (2, 2, 3)) == {(0,), (1,)}
    assert tree_paths(proposals, 5, (3, 1, 4)) == {(0,), (0, 0), (0, 0, 0)}


def test_rounds_count_matches_and_the_bonus_to_the_end():
    # The prefill emitted 9. 0 0 match and 2 is the bonus; then nothing matches; then 0 0 and a bonus.
    tokens = [7, 7, 9, 0, 0, 2, 2, 0, 0, 0]
    assert accept_lengths(Proposals(Scripted()), tokens, 2, 6, (2, 1, 3)) == [3, 1, 3]


def test_the_stored_file_is_what_the_account_gives():
    stored = json.loads(ORACLE_FILE.read_text())
    questions = [json.loads(line)["question"] for line in TEST.read_text().splitlines()[:PROMPTS]]
    shapes = {"standalone": [(2, 1, 3), (2, 2, 4)], "eagle3": [(2, 1, 3), (2, 2, 4)]}
    chosen = min(range(PROMPTS), key=lambda index: len(stored["continuations"][index]))
    fresh = account([questions[chosen]], shapes)
    assert prompt_of(questions[chosen])
    assert fresh["continuations"] == [stored["continuations"][chosen]]
    for algorithm, wanted in fresh["acceptance"].items():
        for shape, rounds in wanted.items():
            assert rounds == [stored["acceptance"][algorithm][shape][chosen]]


def test_the_stored_file_covers_every_locked_shape():
    stored = json.loads(ORACLE_FILE.read_text())
    for algorithm, shapes in locked_shapes().items():
        assert {"/".join(map(str, shape)) for shape in shapes} <= set(stored["acceptance"][algorithm])


def test_wider_trees_of_the_same_beams_never_need_more_rounds_in_all():
    stored = json.loads(ORACLE_FILE.read_text())["acceptance"]["standalone"]
    for narrow, wide in pairwise(["2/4/6", "2/4/8", "2/4/16"]):
        assert sum(map(len, stored[wide])) <= sum(map(len, stored[narrow]))
