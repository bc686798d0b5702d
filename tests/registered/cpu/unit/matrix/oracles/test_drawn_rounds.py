from collections import Counter
from dataclasses import replace

import pytest
import torch

from specmatrix.matrix.oracles.drawn_rounds import Text, drawn_round
from specmatrix.matrix.oracles.joint_law import joint_law
from specmatrix.matrix.workloads.questions import prompt_ids
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.reports.stats import law_fit

REQUEST = RequestSpec("d", "Question:", 3, temperature=1.0)  # where every draft accepts some
SEEDS = 400


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize("algorithm", ["standalone", "dflash"])
def test_rounds_of_many_seeds_follow_the_targets_law_and_their_own_chances(algorithm, block):
    """The first token is the likeliest; the two behind it are drawn, by one round or by two."""
    prompt, law = prompt_ids(REQUEST), joint_law("llama-mini", REQUEST)
    ((first,), total), *_ = joint_law("llama-mini", replace(REQUEST, max_new_tokens=1)).items()
    behind = {path[1:]: share for path, share in law.items() if path[0] == first}
    outputs, chances, accepted = Counter[tuple[int, ...]](), 0.0, 0
    with torch.inference_mode():
        for seed in range(SEEDS):
            output = [first]
            while len(output) < 3:
                text = Text("llama-mini", algorithm, REQUEST, seed, prompt, tuple(output))
                known = len(prompt) + len(output) - 1
                one = drawn_round(text, text.draft((2, 1, 3)), known, 2, block)
                if len(output) == 1:
                    chances, accepted = chances + one.chances[0], accepted + (len(one.tokens) > 1)
                output += one.tokens
            outputs[tuple(output[1:3])] += 1
    counts = [outputs.pop(path, 0) for path in behind]
    shares = [share / total for share in behind.values()]
    assert law_fit([*counts, sum(outputs.values())], [*shares, max(0.0, 1 - sum(shares))], 1e-3).p > 1e-3
    if not block:
        assert abs(accepted - chances) < 4 * (SEEDS * 0.25) ** 0.5
    assert 0 < accepted < SEEDS
