import json
import math
from collections import Counter

import pytest
from safetensors.torch import load_file

from specmatrix.cli import main
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.matrix.cells.model_facts import model_facts
from specmatrix.matrix.zoo import lengths
from specmatrix.matrix.zoo.command import lines
from specmatrix.matrix.zoo.oracle_drafts import DRAFTS, SINGLE
from specmatrix.matrix.zoo.registry import CHECKPOINTS

PROMPTS = ["Question: Tom has 12 apples and buys 30 more. How many apples does he have?\nAnswer:"] * 2


def test_a_ratio_is_of_sums_and_its_interval_of_prompts():
    value, low, high = lengths.ratio([6, 10], [4, 4])
    assert value == 2.0
    # Residuals -2 and 2 about the ratio, two draws: sqrt(2 / 1 * 8) / 8.
    assert high - value == pytest.approx(1.959964 * math.sqrt(16) / 8) == value - low
    assert lengths.ratio([8, 4], [4, 2]) == (2.0, 2.0, 2.0)


def test_every_draft_of_the_zoo_is_in_the_table_and_has_a_control():
    made = lengths.plans(list(DRAFTS))
    assert {(plan.target, plan.algorithm) for plan in made if not plan.random} == {
        (target, algorithm) for target, drafts in DRAFTS.items() for algorithm in drafts
    } | {("llama-mini", "ngram")}
    controls = {(plan.target, plan.algorithm) for plan in made if plan.random}
    assert controls == {(target, name) for target, drafts in DRAFTS.items() for name in drafts if name != SINGLE}
    assert [shape.steps for shape in lengths.CHAINS] == [1, 2, 3, 5, 7]
    assert lengths.MeasurementPlan("qwen3-mini", "eagle3", "qwen3-mini-eagle3", lengths.RequestedShape(7, 1, 8)) in made


def test_every_draft_is_measured_in_several_shapes_and_each_runs_as_requested():
    made = [plan for plan in lengths.plans(list(DRAFTS)) if not plan.random]
    assert len(made) == len(set(made))
    shapes = Counter((plan.target, plan.algorithm) for plan in made)
    assert min(shapes.values()) == shapes["deepseek-mini", SINGLE] == 2
    assert min(count for (_, algorithm), count in shapes.items() if algorithm != SINGLE) == 5
    for plan in made:
        name = plan.algorithm.partition(".")[0].upper()
        asked = EngineConfig(plan.target, name, plan.draft, disable_radix_cache=True, **plan.shape.flags())
        assert resolve(asked, model_facts(plan.target, plan.draft)).rewrites == (), plan


@pytest.mark.parametrize(
    ("name", "drafts"), [("deepseek-mini", ("model.layers.4.", "model.layers.5.")), ("llama-mini-eagle3", ("",))]
)
def test_a_control_keeps_the_target_and_everything_that_is_no_matrix(name, drafts, tmp_path):
    control = load_file(lengths.with_random_weights(name, tmp_path) / "model.safetensors")
    real = load_file(CHECKPOINTS / name / "model.safetensors")
    assert control.keys() == real.keys()
    changed = {key for key in real if not control[key].equal(real[key])}
    matrices = {key for key in real if real[key].dim() == 2 and real[key].is_floating_point()}
    assert changed == {key for key in matrices if key.startswith(drafts)}


def test_a_draft_accepts_more_than_its_control(tmp_path):
    drafts = "llama-mini-eagle", str(lengths.with_random_weights("llama-mini-eagle", tmp_path))
    real, control = (
        lengths.measure("llama-mini", "eagle", one, lengths.RequestedShape(3, 1, 4), PROMPTS, 24) for one in drafts
    )
    assert (real.steps, real.topk, real.draft_tokens, real.prompts) == (3, 1, 4, 2)
    assert 2.5 < real.length <= 4.0 and len(real.rates) == 3
    assert 1.0 <= control.length < 1.1 and control.rounds > 2 * real.rounds
    assert lengths.measure("llama-mini", "dflash", "llama-mini-dflash", lengths.OWN, PROMPTS, 24).draft_tokens == 6


def test_the_ngram_match_type_is_recorded():
    row = lengths.measure(
        "llama-mini", "ngram", None, lengths.RequestedShape(nodes=8, ngram=(("match_type", "PROB"),)), PROMPTS, 24
    )
    assert row.as_dict()["ngram"] == {"match_type": "PROB"}
    assert "| llama-mini | ngram | - | 7 / 10 / 8, match_type PROB |" in lines([row], "two.jsonl", 24)[-1]


def test_the_command_prints_a_table_or_numbers(capsys, tmp_path):
    data = tmp_path / "two.jsonl"
    data.write_text('{"question": "How much is 3 plus 4?", "answer": "#### 7"}\n' * 3)
    words = ["zoo", "acceptance", "llama-mini", "--algorithm", "dflash", "--tokens", "12"]
    assert main([*words, "--data", str(data), "--prompts", "2"]) == 0
    out = capsys.readouterr().out
    assert "on 2 prompts of two.jsonl: greedy, float32, at most 12 new tokens" in out
    assert "| llama-mini | dflash | llama-mini-dflash | 1 / 1 / 6 |" in out
    assert f"| llama-mini | dflash | {lengths.RANDOM} | 1 / 1 / 6 |" in out
    assert main([*words, "--prompts", "3", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["draft_tokens"], row["prompts"]) for row in rows] == [(2, 3), (3, 3), (4, 3), (5, 3), (6, 3), (6, 3)]
    own, control = rows[-2:]
    assert control["length"] < 1.1 < own["low"] <= own["length"] <= own["high"]
