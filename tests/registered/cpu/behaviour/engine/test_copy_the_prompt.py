"""The documented example runs as a user would run it, and drafts as documented."""

from __future__ import annotations

import re
import runpy

import pytest
import torch

from specmatrix import HOME
from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.plugin import forget_algorithm
from specmatrix.errors import ConfigError
from specmatrix.matrix.zoo.registry import resolve_path

EXAMPLE = HOME / "examples" / "copy_the_prompt.py"
PROMPT = [7, 8, 9, 300, 301, 7, 8, 20, 21, 22]


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def copying():
    """The example's names, with its algorithm registered."""
    yield runpy.run_path(str(EXAMPLE))
    forget_algorithm("COPY")


def test_the_example_shows_acceptance_and_equal_tokens(capsys):
    try:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    finally:
        forget_algorithm("COPY")
    said = capsys.readouterr().out
    accepts = re.match(r"COPY accepts (\d\.\d\d) tokens per round, no drafter 1.00\n", said)
    assert accepts and float(accepts[1]) > 1.05
    assert "tokens are the same: yes\n" in said and "#### 64" in said


@pytest.mark.parametrize("more", [{}, {"spec_version": "v1", "page_size": 3, "chunked_prefill_size": 4}])
def test_it_copies_what_followed_the_last_two_tokens(copying, more):
    sizes = {"speculative_num_steps": 3, "max_total_tokens": 1024}
    llm = LLM(EngineConfig("llama-mini", "COPY", strict_memory=2, **sizes, **more), resolve_path)
    drafter = llm.loop.executor.drafter
    trees = []

    class Watch:
        def __getattr__(self, name: str) -> object:
            return getattr(drafter, name)

        def propose(self, batch, relay):
            trees.append((batch, drafter.propose(batch, relay)))
            return trees[-1][1]

    llm.loop.executor.guard.drafter = Watch()
    rid = llm.add(PROMPT, SamplingParams(max_new_tokens=30, ignore_eos=True, temperature=1.2, seed=5))
    while llm.step():
        pass
    tokens = llm.request(rid).tokens
    matched = 0
    for batch, tree in trees:
        start = int(batch.start)
        if start + 1 > len(tokens):
            continue
        known = tokens[: start + 1]
        places = [i for i in range(1, start) if known[i - 1 : i + 1] == known[start - 1 :]]
        if places:
            matched += 1
            wanted = [known[min(places[-1] + 1 + i, start)] for i in range(3)]
            assert tree.tokens[0, 1:].tolist() == wanted
    assert matched and llm.drafter_error is None


def test_its_own_check_refuses_with_its_own_message(copying):
    with pytest.raises(ConfigError, match="COPY copies at most 32 tokens a round, got 40; ask for fewer"):
        LLM(EngineConfig("llama-mini", "copy", speculative_num_steps=40), resolve_path)
