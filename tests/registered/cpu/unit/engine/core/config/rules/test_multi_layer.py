"""When each step of a chain is drafted by its own prediction layer."""

from __future__ import annotations

import pytest

from specmatrix.engine.core.config.asked import AUTO, DraftFacts, EngineConfig, Facts
from specmatrix.engine.core.config.resolve import resolve


def facts(layers: int = 3) -> Facts:
    brings = DraftFacts("DeepseekV3ForCausalLM", 512, 128, 128, 512, "t", (-1,), prediction_layers=layers)
    bundled = DraftFacts("DeepseekV3ForCausalLMNextN", 512, 128, 128, 512, "t", (-1,), prediction_layers=layers)
    return Facts("DeepseekV3ForCausalLM", 512, 128, 4, 1024, "t", brings, bundled=bundled)


def nextn(steps: object = AUTO, topk: object = AUTO, asked: object = AUTO, **more: object) -> EngineConfig:
    sizes = {"speculative_num_steps": steps, "speculative_eagle_topk": topk, "enable_multi_layer_eagle": asked}
    return EngineConfig("m", "NEXTN", **sizes, **more)


@pytest.mark.parametrize(
    ("config", "layers", "runs", "because"),
    [
        (nextn(), 3, True, "the draft has a layer for each step of the chain"),
        (nextn(2), 3, True, "the draft has a layer for each step of the chain"),
        (nextn(), 2, False, "a tree, or a depth beyond the draft's layers, is drafted by the first layer alone"),
        (nextn(2, 2), 3, False, "a tree, or a depth beyond the draft's layers, is drafted by the first layer alone"),
        (nextn(1), 1, False, "the draft has a single layer, which is applied repeatedly"),
        (nextn(3, speculative_adaptive=True), 3, False, "adaptive steps change the depth, so the first layer is"),
    ],
)
def test_automatic_choice_with_its_reason(config, layers, runs, because):
    resolved = resolve(config, facts(layers))
    (reason,) = (r for r in resolved.reasons if r.field == "enable_multi_layer_eagle")
    assert resolved.enable_multi_layer_eagle is reason.value is runs
    assert reason.because.startswith(because)


@pytest.mark.parametrize(
    ("layers", "asked", "shape"), [(3, True, (3, 1, 4)), (2, True, (2, 1, 3)), (2, False, (3, 1, 4))]
)
def test_a_layer_per_step_is_as_deep_as_there_are_layers(layers, asked, shape):
    resolved = resolve(nextn(asked=asked), facts(layers))
    assert (resolved.num_steps, resolved.topk, resolved.num_draft_tokens) == shape
    assert resolved.enable_multi_layer_eagle is asked
    assert "enable_multi_layer_eagle" not in {reason.field for reason in resolved.reasons}


def test_a_layer_per_step_keeps_the_depth_static():
    resolved = resolve(nextn(2, asked=True, speculative_adaptive=True), facts())
    (rewrite,) = resolved.rewrites
    assert rewrite.reason == "multi-layer drafting has a fixed depth, so the depth is static"
    assert resolved.enable_multi_layer_eagle and not resolved.adaptive_slots


def test_other_algorithms_have_no_such_choice():
    resolved = resolve(EngineConfig("m"), facts())
    assert not resolved.enable_multi_layer_eagle
    assert "enable_multi_layer_eagle" not in {reason.field for reason in resolved.reasons}
    assert resolve(EngineConfig("m", enable_multi_layer_eagle=False), facts()) == resolved


def test_a_named_checkpoint_may_bring_the_layers():
    resolved = resolve(nextn(speculative_draft_model_path="d"), facts())
    assert resolved.draft_path == "d" and resolved.enable_multi_layer_eagle
