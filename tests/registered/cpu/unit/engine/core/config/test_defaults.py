from dataclasses import replace

import pytest

from specmatrix.engine.core.config.asked import AUTO, DraftFacts, EngineConfig, Facts
from specmatrix.engine.core.config.defaults import DEFAULTS
from specmatrix.engine.core.config.resolve import ORDER, resolve
from specmatrix.matrix.gates.config import explicit

HEAD = DraftFacts("LlamaForCausalLMEagle3", 512, 96)
MODEL = DraftFacts("LlamaForCausalLM", 512, 64)

BLOCK = DraftFacts("DFlashDraftModel", 512, 64, block_size=7)
NEXT = DraftFacts("DeepseekV3ForCausalLMNextN", 512, 128)


def facts(draft: DraftFacts | None = None, architecture: str = "LlamaForCausalLM", gpus: int = 0) -> Facts:
    return Facts(architecture, 512, 128, 4, 1024, None, draft, "cuda" if gpus else "cpu", gpus)


def test_every_auto_field_ends_in_a_row_that_always_applies():
    rows = {field: [row for row in DEFAULTS if row.field == field] for field in ORDER}
    assert all(row[-1].condition in ("always", "otherwise", "a tree", "explicit steps") for row in rows.values())
    autos = {name for name in EngineConfig.__dataclass_fields__ if getattr(EngineConfig("m"), name) == AUTO}
    assert set(ORDER) == autos - {"speculative_ngram_max_bfs_breadth", "enable_multi_layer_eagle"}


def test_a_shape_that_is_chosen_as_a_whole_needs_evidence():
    rows = {(row.field, row.condition): row.evidence for row in DEFAULTS}
    shape = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
    assert all(rows[field, "otherwise"] == ("lossless", "acceptance") for field in shape)
    assert all(rows[field, "a tree"] == () for field in shape[2:])


def test_bundled_weights_are_in_the_targets_checkpoint():
    known = replace(facts(architecture="DeepseekV3ForCausalLM"), bundled=NEXT)
    resolved = resolve(EngineConfig("m", "NEXTN"), known)
    (reason,) = (r for r in resolved.reasons if r.field == "speculative_draft_model_path")
    assert resolved.draft_path == reason.value == "m"
    assert reason.because == "the target's checkpoint contains the draft's layers"
    again = resolve(explicit(resolved), known)
    assert again.start_hash() == resolved.start_hash() and not again.reasons
    own = resolve(EngineConfig("m", "NEXTN", "d"), replace(known, draft=NEXT))
    assert own.draft_path == "d" and all(r.field != "speculative_draft_model_path" for r in own.reasons)


@pytest.mark.parametrize(
    ("asked", "gpus", "device", "dtype"),
    [("auto", 0, "cpu", "float32"), ("auto", 1, "cuda", "bfloat16"), ("cpu", 1, "cpu", "float32")],
)
def test_device_follows_the_machine_and_dtype_the_device(asked, gpus, device, dtype):
    resolved = resolve(EngineConfig("m", device=asked), facts(gpus=gpus))
    assert (resolved.device, resolved.dtype) == (device, dtype)


@pytest.mark.parametrize(
    ("asked", "tokens"),
    [
        ({"max_running_requests": 4, "context_length": 100}, 4 * (100 + 2)),
        ({"max_running_requests": 4, "context_length": 100, "page_size": 64}, 448),
        ({}, 65536),
        ({"page_size": 7}, 65541),
    ],
)
def test_the_pool_holds_every_running_request_up_to_a_limit(asked, tokens):
    resolved = resolve(EngineConfig("m", **asked), facts())
    assert resolved.max_total_tokens == tokens == resolved.num_pages * resolved.page_size
    assert not resolved.rewrites
