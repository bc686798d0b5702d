"""The documented example runs as a user would run it, and drafts as documented."""

from __future__ import annotations

import re
import runpy

import pytest

from specmatrix import HOME
from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.plugin import forget_algorithm
from specmatrix.errors import ConfigError
from specmatrix.matrix.zoo.registry import resolve_path

EXAMPLE = HOME / "examples" / "copy_the_prompt.py"


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


def test_its_own_check_refuses_with_its_own_message(copying):
    with pytest.raises(ConfigError, match="COPY copies at most 32 tokens a round, got 40; ask for fewer"):
        LLM(EngineConfig("llama-mini", "copy", speculative_num_steps=40), resolve_path)
