"""Mixed steps: while prompts are read, running requests go on by one token a step, and no text changes."""

import pytest

from tests.support.mixed_steps import MIXING, compare


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize(("algorithm", "topk"), MIXING)
def test_texts_and_log_probabilities_are_those_without_mixed_steps(algorithm, topk, version):
    compare(algorithm, topk, version)
