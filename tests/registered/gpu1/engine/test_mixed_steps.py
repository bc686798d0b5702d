"""Mixed steps run eagerly between rounds that are CUDA graphs."""

import pytest

from tests.support.mixed_steps import MIXING, compare


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize(("algorithm", "topk"), MIXING)
def test_texts_are_those_without_mixed_steps_beside_graphs(algorithm, topk, version):
    llm = compare(algorithm, topk, version, device="cuda", dtype="float32")
    assert llm.counters["graph.replayed"] > 0 and not llm.counters["stamp.wrong"]
