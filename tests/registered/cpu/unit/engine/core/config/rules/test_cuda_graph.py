"""Which engines run their rounds as CUDA graphs, and for how many requests."""

from __future__ import annotations

import pytest

from specmatrix.engine.core.config.asked import EngineConfig, Facts
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.engine.core.draft.algorithms import Topology, Traits, forget_traits, register_traits

GPU = Facts("LlamaForCausalLM", 512, 128, 4, 1024, device_kind="cuda", gpus=1)


def resolved(**asked: object):
    return resolve(EngineConfig("m", **asked), GPU)


@pytest.mark.parametrize(
    ("asked", "batch"),
    [
        ({}, 64),
        ({"max_running_requests": 9}, 9),
        ({"max_running_requests": 500}, 160),
        ({"cuda_graph_max_bs": 24}, 24),
        ({"cuda_graph_max_bs": 0}, 0),
        ({"disable_cuda_graph": True}, 0),
        ({"device": "cpu"}, 0),
        ({"speculative_algorithm": "NGRAM"}, 0),
    ],
)
def test_the_largest_batch_that_is_a_graph(asked, batch):
    made = resolved(**asked)
    assert (made.cuda_graph_max_bs, made.rewrites) == (batch, ())


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"device": "cpu"}, "CUDA graphs need a GPU"),
        ({"disable_cuda_graph": True}, "CUDA graphs are disabled"),
        ({"speculative_algorithm": "NGRAM"}, "NGRAM reads tokens on the host in every round"),
    ],
)
def test_an_impossible_request_is_rewritten_with_its_cause(asked, why):
    (rewrite,) = resolved(cuda_graph_max_bs=8, **asked).rewrites
    assert (rewrite.asked, rewrite.got, rewrite.reason) == (8, 0, f"{why}, so rounds run without graphs")


def test_rounds_of_a_registered_drafter_are_no_graphs():
    register_traits(Traits("OWN", "a user's", Topology.CHAIN), None)
    try:
        assert resolved(speculative_algorithm="OWN").cuda_graph_max_bs == 0
    finally:
        forget_traits("OWN")
