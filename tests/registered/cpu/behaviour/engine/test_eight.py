"""Eight ranks over gloo: the path of the tier gpu8, with heads that are split and heads that are copied."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.parallel.client import RankedLLM
from specmatrix.engine.parallel.pool import end_idle_group
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cover.lockfile import stage_cells
from specmatrix.matrix.run.runner import reference_runner
from tests.support.diverging_rank import last_hands_out_other_pages
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
def test_eight_ranks_generate_what_one_generates_and_the_gate_names_a_divergent_one(tmp_path):
    """One test, so that one worker starts the processes, and once."""
    for target, draft, changes in SPLIT:
        split_heads(tmp_path, target, draft, changes)
    copied_heads()


def split_heads(folder: Path, target: str, draft: str | None, changes: dict[str, int]) -> None:
    """Both generate the same tokens, and all eight ranks publish the same digests for every step."""
    write(folder / target, target, **changes)
    if draft is not None:
        write(folder / draft, draft)
    asked = {
        "speculative_algorithm": "NEXTN" if draft is None else "EAGLE3",
        "speculative_draft_model_path": None if draft is None else str(folder / draft),
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
    one = LLM(EngineConfig(str(folder / target), **asked))
    eight = RankedLLM(EngineConfig(str(folder / target), tp_size=SIZE, **asked))
    said = [output.output_ids for output in eight.generate(PROMPTS, PARAMS)]
    assert said == [output.output_ids for output in one.generate(PROMPTS, PARAMS)]
    agreement = eight.group.agreement
    assert (agreement.ranks, agreement.divergence, len(set(agreement.digests))) == (SIZE, None, 1)
    assert agreement.planned == agreement.read == eight.counters["rank.step"] > 3
    eight.close()


def copied_heads() -> None:
    """A cell of llama-mini, whose four heads are copied: it passes, and fails once rank 7 allocates pages in a
    different order."""
    cell = Cell.from_id("eagle3.tp8.s3.k4.n8.pair")
    assert cell in stage_cells("nightly")
    runner = reference_runner(0)
    record = runner.run_cell(cell)
    verdicts = {gate.name: gate.state for gate in record.gates}
    assert record.state == "PASS" and {"ranks", "lossless", "acceptance", "ledger"} <= verdicts.keys()
    assert set(verdicts.values()) == {"PASS"}
    runner.engine.group.call(last_hands_out_other_pages)
    record = runner.run_cell(cell)
    (gate,) = record.gates
    assert (record.state, gate.name, gate.state) == ("FAIL", "ranks", "FAIL")
    assert gate.message is not None
    assert gate.message.startswith("step ") and gate.message.endswith(" of rank 7 and of rank 0 differ")
    runner.close()
