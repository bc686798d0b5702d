from dataclasses import replace

import pytest

from specmatrix.engine.core.config.asked import AUTO, DraftFacts, EngineConfig, Facts
from specmatrix.engine.core.config.defaults import DEFAULTS
from specmatrix.engine.core.config.resolve import ORDER, resolve
from specmatrix.matrix.gates.config import explicit
from tests.support.start_configs import eagle3

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


@pytest.mark.parametrize(
    ("config", "known", "shape"),
    [
        (EngineConfig("m"), facts(), (0, 0, 1)),
        (EngineConfig("m", "STANDALONE", "d"), facts(MODEL), (3, 1, 4)),
        (eagle3(), facts(HEAD), (5, 4, 8)),
        (eagle3(), facts(HEAD, "Qwen3ForCausalLM"), (3, 1, 4)),
        (eagle3(3), facts(HEAD), (3, 1, 4)),
        (eagle3(), facts(replace(HEAD, mask_token=0)), (7, 1, 8)),
        (EngineConfig("m", "STANDALONE", "d"), facts(replace(MODEL, mask_token=0)), (7, 1, 8)),
        (eagle3(1, 2), facts(HEAD), (1, 2, 3)),
        (eagle3(1, 4), facts(HEAD), (1, 4, 5)),
        (eagle3(3, 4), facts(HEAD), (3, 4, 8)),
        (eagle3(5, 4, 16), facts(HEAD), (5, 4, 16)),
        (EngineConfig("m", "NGRAM"), facts(), (11, 10, 12)),
        (EngineConfig("m", "NGRAM", speculative_num_draft_tokens=5), facts(), (4, 10, 5)),
        (EngineConfig("m", "NGRAM", speculative_eagle_topk=1), facts(), (11, 1, 12)),
        (EngineConfig("m", "NGRAM", None, 3, 1), facts(), (3, 1, 4)),
        (EngineConfig("m", "NGRAM", None, 3, 2), facts(), (3, 2, 12)),
        (EngineConfig("m", "NGRAM", None, 3, 2, 15), facts(), (3, 2, 15)),
        (EngineConfig("m", "NGRAM", None, 1, 4), facts(), (1, 4, 5)),
        (EngineConfig("m", "NGRAM", speculative_ngram_max_bfs_breadth=3), facts(), (11, 3, 12)),
        (EngineConfig("m", "DFLASH", "d"), facts(BLOCK), (1, 1, 7)),
        (EngineConfig("m", "DFLASH", "d"), facts(replace(BLOCK, block_size=None)), (1, 1, 16)),
        (EngineConfig("m", "DFLASH", "d", speculative_num_draft_tokens=4), facts(BLOCK), (1, 1, 4)),
        (EngineConfig("m", "DFLASH", "d", 3, 2, 4), facts(BLOCK), (1, 1, 4)),
        (EngineConfig("m", "NEXTN"), replace(facts(), bundled=NEXT), (5, 4, 8)),
        (eagle3(speculative_acceptance="reject"), facts(HEAD), (3, 1, 4)),
        (EngineConfig("m", "NGRAM", speculative_acceptance="block"), facts(), (11, 1, 12)),
        (EngineConfig("m", "NEXTN"), replace(facts(None, "DeepseekV3ForCausalLM"), bundled=NEXT), (3, 1, 4)),
    ],
)
def test_shape(config, known, shape):
    resolved = resolve(config, known)
    assert (resolved.num_steps, resolved.topk, resolved.num_draft_tokens) == shape


@pytest.mark.parametrize(
    ("config", "version", "because"),
    [
        (EngineConfig("m"), "v2", "overlap scheduling is the default"),
        (EngineConfig("m", disable_overlap_schedule=True), "v1", "overlap scheduling is disabled, so steps run"),
        (eagle3(), "v1", "trees (topk > 1) default to v1; set spec_version v2 to overlap them"),
        (eagle3(3), "v2", "overlap scheduling is the default"),
    ],
    ids=["plain", "overlap-off", "automatic-tree", "explicit-chain"],
)
def test_spec_version_is_decided_after_the_shape(config, version, because):
    resolved = resolve(config, facts(HEAD))
    (reason,) = (reason for reason in resolved.reasons if reason.field == "spec_version")
    assert (resolved.spec_version, resolved.lag) == (version, int(version == "v2"))
    assert reason.value == version and reason.because.startswith(because)


@pytest.mark.parametrize(("asked", "got"), [({}, "v1"), ({"spec_version": "v1"}, "v1"), ({"spec_version": "v2"}, "v1")])
def test_a_drafter_that_reads_the_host_waits_for_every_step(asked, got):
    resolved = resolve(EngineConfig("m", "NGRAM", **asked), facts())
    assert (resolved.spec_version, resolved.lag) == (got, 0)
    said = [r.because for r in resolved.reasons if r.field == "spec_version"]
    assert said == ([] if asked else ["the drafter needs each step's result before the next step"])
    assert len(resolved.rewrites) == (asked.get("spec_version") == "v2")


@pytest.mark.parametrize(
    ("asked", "breadth", "because"),
    [
        ({}, 10, "the default n-gram breadth is 10"),
        ({"speculative_eagle_topk": 3}, 3, "the n-gram breadth is topk"),
        ({"speculative_ngram_max_bfs_breadth": 4}, 4, None),
    ],
)
def test_the_breadth_of_an_ngram_tree_is_its_topk(asked, breadth, because):
    resolved = resolve(EngineConfig("m", "NGRAM", **asked), facts())
    assert resolved.ngram.max_bfs_breadth == resolved.topk == breadth
    said = [r.because for r in resolved.reasons if r.field == "speculative_ngram_max_bfs_breadth"]
    assert said == ([because] if because else [])
    assert resolve(EngineConfig("m"), facts()).ngram is None


def test_bundled_weights_are_in_the_targets_checkpoint():
    known = replace(facts(), bundled=NEXT)
    resolved = resolve(EngineConfig("m", "NEXTN"), known)
    (reason,) = (r for r in resolved.reasons if r.field == "speculative_draft_model_path")
    assert resolved.draft_path == reason.value == "m"
    assert reason.because == "the target's checkpoint contains the draft's layers"
    again = resolve(explicit(resolved), known)
    assert again.start_hash() == resolved.start_hash() and not again.reasons
    own = resolve(EngineConfig("m", "NEXTN", "d"), replace(known, draft=NEXT))
    assert own.draft_path == "d" and all(r.field != "speculative_draft_model_path" for r in own.reasons)


@pytest.mark.parametrize(("config", "running"), [(EngineConfig("m"), 64), (eagle3(), 48)])
def test_running_requests_follow_the_drafter(config, running):
    assert resolve(config, facts(HEAD if config.speculative_draft_model_path else None)).max_running_requests == running


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
