"""Eight ranks over gloo: the path of the tier gpu8 with split heads. Cells of the stage nightly have copied ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.parallel.client import RankedLLM
from specmatrix.engine.parallel.group import end_idle_group
from tests.support.published_layouts import write

SIZE = 8
PROMPTS = ["Question: Ann has 3 pens and buys 4. How many pens has she?\nAnswer:", "Question: Tom has 12 apples."]
PARAMS = SamplingParams(max_new_tokens=10, ignore_eos=True)
SHAPE = {"num_attention_heads": 16, "num_key_value_heads": 8, "moe_intermediate_size": 24, "num_hidden_layers": 3}
# Target, draft, and what differs from their small shapes: each rank holds two heads and their key head, or two latent
# heads.
SPLIT = (
    ("qwen3-8b", "qwen3-8b-eagle3", SHAPE | {"num_hidden_layers": 8}),
    ("deepseek-v3", None, SHAPE | {"num_key_value_heads": 16}),
)


@pytest.fixture(scope="module", autouse=True)
def nobody_left() -> Iterator[None]:
    yield
    end_idle_group()


@pytest.mark.nightly
@pytest.mark.parametrize(("target", "draft", "changes"), SPLIT)
def test_eight_ranks_generate_what_one_generates(tmp_path, target, draft, changes) -> None:
    """Both generate the same tokens, and all eight ranks publish the same digests for every step."""
    write(tmp_path / target, target, **changes)
    if draft is not None:
        write(tmp_path / draft, draft)
    asked = {
        "speculative_algorithm": "NEXTN" if draft is None else "EAGLE3",
        "speculative_draft_model_path": None if draft is None else str(tmp_path / draft),
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 4,
        "speculative_num_draft_tokens": 8,
        "device": "cpu",
        "dtype": "float32",
        "context_length": 128,
        "max_total_tokens": 256,
        "page_size": 4,
        "strict_memory": 2,
    }
    one = LLM(EngineConfig(str(tmp_path / target), **asked))
    eight = RankedLLM(EngineConfig(str(tmp_path / target), tp_size=SIZE, **asked))
    said = [output.output_ids for output in eight.generate(PROMPTS, PARAMS)]
    assert said == [output.output_ids for output in one.generate(PROMPTS, PARAMS)]
    agreement = eight.group.agreement
    assert (agreement.ranks, agreement.divergence, len(set(agreement.digests))) == (SIZE, None, 1)
    assert agreement.planned == agreement.read == eight.counters["rank.step"] > 3
    eight.close()
