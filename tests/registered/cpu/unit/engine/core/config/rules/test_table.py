from dataclasses import replace

import pytest

from specmatrix.engine.core.config.asked import DraftFacts, EngineConfig
from specmatrix.engine.core.config.context import RuleContext
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.engine.core.config.rules.devices import SPLITTING
from specmatrix.engine.core.config.rules.draft import PAIRING
from specmatrix.engine.core.config.rules.ngram import NGRAM_RULES, TOPK_IS_BREADTH
from specmatrix.engine.core.config.rules.table import CAPACITY, RULES
from specmatrix.engine.core.draft.algorithms import Topology, Traits
from specmatrix.errors import ConfigError
from tests.support.start_configs import HEAD, MODEL, eagle3, facts, refusal, standalone

FLAT = '{"candidate_steps": [2, 1]}'
BLOCK = DraftFacts("DFlashDraftModel", vocab_size=512, hidden_size=96, block_size=8)
LAYERS = DraftFacts("DeepseekV3ForCausalLM", 512, 128, 128, 512, "t", (-1,), prediction_layers=2)

# Rule, configuration, how the refusal begins, and what is known where it is not the usual target and its draft.
REFUSED = [
    ("nothing-to-draft", EngineConfig("m", speculative_num_steps=3), "speculative_num_steps 3 has no"),
    ("nothing-to-draft", EngineConfig("m", speculative_draft_model_path="d"), "speculative_draft_model_path"),
    ("draft-path-missing", EngineConfig("m", "EAGLE3"), "speculative_algorithm EAGLE3 needs a draft"),
    ("draft-unread", eagle3(), "the draft at d was not read; put its config.json into the facts first", facts(None)),
    ("draft-path-unread", EngineConfig("m", "NGRAM", "d"), "speculative_algorithm NGRAM uses no draft"),
    ("nothing-bundled", EngineConfig("m", "NEXTN"), "speculative_algorithm NEXTN drafts with prediction", facts()),
    (
        "block-too-wide",
        EngineConfig("m", "DFLASH", "d", speculative_num_draft_tokens=9),
        "speculative_num_draft_tokens 9 is more than the draft's block size, 8; use a value between 2 and 8",
        facts(BLOCK),
    ),
    ("steps-auto-alone", eagle3(speculative_eagle_topk=2), "speculative_num_steps auto needs"),
    ("num-steps-range", eagle3(speculative_num_steps=0), "speculative_num_steps must be between 1 and 255"),
    ("topk-range", eagle3(speculative_num_steps=1, speculative_eagle_topk=65), "speculative_eagle_topk must be"),
    (
        "num-draft-tokens-range",
        eagle3(speculative_num_steps=3, speculative_eagle_topk=2, speculative_num_draft_tokens=1),
        "speculative_num_draft_tokens must be between 2 and 256, got 1: the root and at least one draft are verified",
    ),
    (
        "tree-too-wide",
        eagle3(speculative_num_steps=2, speculative_eagle_topk=2, speculative_num_draft_tokens=8),
        "speculative_num_draft_tokens 8 is more than the root and the 6 candidates of 2 steps with topk 2; use a value",
    ),
    ("threshold-inexact", eagle3(speculative_accept_threshold_single=0.9), "speculative_accept_threshold_single must"),
    ("threshold-inexact", EngineConfig("m", speculative_accept_threshold_acc=2.0), "speculative_accept_threshold_acc"),
    (
        "v2-needs-overlap",
        EngineConfig("m", spec_version="v2", disable_overlap_schedule=True),
        "spec_version v2 cannot run with disable_overlap_schedule; remove one of them or set spec_version v1",
    ),
    ("layers-of-no-use", eagle3(enable_multi_layer_eagle=True), "enable_multi_layer_eagle true needs an"),
    (
        "layers-too-few",
        EngineConfig("m", "NEXTN", "d", speculative_num_steps=3, enable_multi_layer_eagle=True),
        "speculative_num_steps 3 is more than the draft's 2 layers with enable_multi_layer_eagle true; use a value",
        facts(LAYERS),
    ),
    (
        "layers-in-a-chain",
        EngineConfig("m", "NEXTN", "d", 2, 2, enable_multi_layer_eagle=True),
        "speculative_eagle_topk 2 is a tree, but enable_multi_layer_eagle true drafts chains; use 1, or",
        facts(LAYERS),
    ),
    ("page-size-range", EngineConfig("m", page_size=0), "page_size must be between 1 and 256 tokens, got"),
    ("chunked-prefill-size-range", EngineConfig("m", chunked_prefill_size=0), "chunked_prefill_size must be at least"),
    ("max-running-requests-range", EngineConfig("m", max_running_requests=0), "max_running_requests must be at least"),
    ("context-length-range", EngineConfig("m", context_length=1025), "context_length must be between 2"),
    (
        "window-ratio-range",
        EngineConfig("m", swa_full_tokens_ratio=1.5, disable_radix_cache=True),
        "swa_full_tokens_ratio must be above 0 and at most 1, got 1.5",
        facts(None, window=40),
    ),
    ("nothing-to-draft", EngineConfig("m", speculative_adaptive=True), "speculative_adaptive True has no"),
    (
        "adaptive-config-alone",
        eagle3(speculative_adaptive_config="slots.json"),
        "speculative_adaptive_config slots.json has no effect without speculative_adaptive; add that flag or remove",
    ),
    (
        "adaptive-config-unread",
        eagle3(speculative_adaptive=True, speculative_adaptive_config="slots.json"),
        "the file of speculative_adaptive_config slots.json was not read; put its text into Facts.adaptive_config",
    ),
    (
        "adaptive-config-wrong",
        eagle3(speculative_adaptive=True, speculative_adaptive_config='{"1": {}}'),
        "speculative_adaptive_config: slot 1: candidate_steps is missing; it must be a list of draft depths, such as",
    ),
    (
        "adaptive-config-wrong",
        eagle3(speculative_adaptive=True, speculative_adaptive_config="slots.json"),
        "speculative_adaptive_config slots.json must be a JSON object, got []",
        replace(facts(), adaptive_config="[]"),
    ),
    (
        "steps-no-candidate",
        eagle3(speculative_adaptive=True, speculative_num_steps=5),
        "speculative_num_steps 5 is not a candidate of any adaptive slot; use auto or one of 1, 3, 7",
    ),
    ("random-seed-range", EngineConfig("m", random_seed=-1), "random_seed must be between 0 and"),
    ("cuda-graph-max-bs-range", EngineConfig("m", cuda_graph_max_bs=-1), "cuda_graph_max_bs must be between 0 and"),
    ("cuda-graph-max-gb-range", EngineConfig("m", cuda_graph_max_gb=0), "cuda_graph_max_gb must be between 1 and 1024"),
    ("gpu-missing", EngineConfig("m", device="cuda"), "device cuda needs a GPU, but none is visible; use"),
]
REWRITTEN = [
    (
        "chain-width",
        eagle3(speculative_num_steps=3, speculative_num_draft_tokens=8),
        (8, 4, "a chain (topk 1) of 3 steps verifies 4 tokens"),
    ),
    (
        "window-uncached",
        eagle3(context_length=100),
        (False, True, "the target has layers with a sliding window of 40 tokens, whose pages are freed before a"),
    ),
    (
        "block-steps",
        EngineConfig("m", "DFLASH", "d", speculative_num_steps=3),
        (3, 1, "DFLASH drafts a whole block in one step"),
    ),
    (
        "chains-only",
        EngineConfig("m", "DFLASH", "d", speculative_eagle_topk=4),
        (4, 1, "DFLASH drafts chains, not trees"),
    ),
    (
        "no-step-in-flight",
        EngineConfig("m", "NGRAM", spec_version="v2"),
        ("v2", "v1", "NGRAM reads tokens on the host, so each step is resolved before the next"),
    ),
    (
        "chain-width",
        eagle3(speculative_adaptive=True, speculative_num_draft_tokens=8),
        (8, 4, "a chain (topk 1) of 3 steps verifies 4 tokens"),
    ),
    (
        "adaptive-unsupported",
        eagle3(speculative_adaptive=True, speculative_num_steps=3, speculative_eagle_topk=2),
        (True, False, "a tree (topk 2) has a fixed width, so the depth is static"),
    ),
    (
        "adaptive-unsupported",
        EngineConfig("m", "NGRAM", speculative_adaptive=True),
        (True, False, "NGRAM cannot change its draft depth, so the depth is static"),
    ),
    (
        "adaptive-unsupported",
        EngineConfig("m", "DFLASH", "d", speculative_adaptive=True),
        (True, False, "DFLASH cannot change its draft depth, so the depth is static"),
    ),
    (
        "adaptive-config-flat",
        eagle3(speculative_adaptive=True, speculative_adaptive_config=FLAT),
        (
            FLAT,
            '{"1": {"candidate_steps": [1, 2], "ema_alpha": 0.2, "update_interval": 5, "warmup_batches": 10, '
            '"down_hysteresis": -0.25, "up_hysteresis": 0.0, "ceiling_coeff": 0.0}}',
            "the flat format has no batch sizes, so it defines one slot for all of them",
        ),
    ),
    (
        "graphs-impossible",
        EngineConfig("m", cuda_graph_max_bs=8),
        (8, 0, "CUDA graphs need a GPU, so rounds run without graphs"),
    ),
    (
        "whole-pages",
        eagle3(max_total_tokens=100, page_size=16),
        (100, 96, "KV memory is allocated in pages of 16 tokens, so the size is rounded down"),
    ),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case[0])
def test_refused_in_one_sentence_by_one_rule_alone(case):
    rule, config, sentence, *known = case
    broken, told = refusal(config, known[0] if known else facts(HEAD if config.speculative_draft_model_path else None))
    assert broken == [rule] and told.startswith(sentence)


@pytest.mark.parametrize(("rule", "config", "rewrite"), REWRITTEN)
def test_rewritten_with_requested_resolved_and_reason(rule, config, rewrite):
    draft = BLOCK if config.speculative_algorithm == "DFLASH" else HEAD
    known = facts(draft, window=40 if rule == "window-uncached" else None)
    situation = RuleContext.of(config, known)
    (row,) = (row for row in RULES if row.broken(situation))
    (made,) = resolve(config, known).rewrites
    assert row.name == rule and made.field == row.field
    assert (made.asked, made.got) == rewrite[:2] and made.reason.startswith(rewrite[2])


def test_a_wrong_file_is_refused_even_where_the_depth_would_stay_static():
    config = standalone(speculative_adaptive=True, speculative_adaptive_config="{}")
    with pytest.raises(ConfigError, match="speculative_adaptive_config has no batch size as a key; it needs at least"):
        resolve(config, facts(MODEL))


def test_every_rule_has_a_case():
    """The rules of drafts, n-grams and ranks are tested in their own files."""
    tried = {case[0] for case in (*REFUSED, *REWRITTEN)}
    assert tried == {rule.name for rule in RULES if rule not in (*PAIRING, *NGRAM_RULES, TOPK_IS_BREADTH, *SPLITTING)}


def test_names_are_unique_and_rewrites_name_their_value():
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all((rule.got is not None) == (rule.kind == "rewritten") for rule in RULES)


@pytest.mark.parametrize(("version", "need"), [("v1", 16), ("v2", 32)])
def test_a_pool_that_holds_no_request_is_refused_at_each_timing(version, need):
    asked = {"speculative_num_steps": 7, "page_size": 16, "spec_version": version}
    assert CAPACITY.name == "pool-too-small"
    assert resolve(eagle3(max_total_tokens=need, **asked), facts()).num_pages == need // 16
    with pytest.raises(ConfigError) as caught:
        resolve(eagle3(max_total_tokens=need - 1, **asked), facts())
    assert str(caught.value) == (
        f"max_total_tokens {need - 1} is too small for one request: a token and its steps in flight need {need} "
        "(pages of 16); use at least that"
    )


def test_a_registered_chain_without_steps_in_flight_gives_the_reason():
    traits = Traits("SLOW", "", Topology.CHAIN, max_lag=0)
    situation = RuleContext(EngineConfig("m", "SLOW", speculative_eagle_topk=2, spec_version="v2"), facts(), traits)
    assert [row.message(situation) for row in RULES if row.broken(situation) and row.kind == "rewritten"] == [
        "SLOW drafts chains, not trees",
        "SLOW does not support overlapped steps, so each step is resolved before the next",
    ]


@pytest.mark.parametrize("width", [2, 7])
def test_the_widest_legal_tree_runs(width):
    config = eagle3(speculative_num_steps=2, speculative_eagle_topk=2, speculative_num_draft_tokens=width)
    assert resolve(config, facts()).num_draft_tokens == width
