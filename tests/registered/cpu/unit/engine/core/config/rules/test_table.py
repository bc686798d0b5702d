from dataclasses import replace

import pytest

from specmatrix.engine.core.config.asked import AUTO, DraftFacts, EngineConfig
from specmatrix.engine.core.config.context import RuleContext
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.engine.core.config.rules.devices import SPLITTING
from specmatrix.engine.core.config.rules.draft import PAIRING
from specmatrix.engine.core.config.rules.ngram import NGRAM_RULES, TOPK_IS_BREADTH
from specmatrix.engine.core.config.rules.suffix import SUFFIX_RULES
from specmatrix.engine.core.config.rules.table import CAPACITY, INTERVAL, RULES
from specmatrix.engine.core.draft.algorithms import Topology, Traits
from specmatrix.errors import ConfigError
from tests.support.start_configs import HEAD, MODEL, eagle3, facts, refusal, standalone

FLAT = '{"candidate_steps": [2, 1]}'
RAGGED = {"speculative_ragged_verify": True}
BLOCK = DraftFacts("DFlashDraftModel", vocab_size=512, hidden_size=96, block_size=8)
LAYERS = DraftFacts("DeepseekV3ForCausalLM", 512, 128, 128, 512, "t", (-1,), prediction_layers=2)


def ngram(**asked: object) -> EngineConfig:
    return EngineConfig("m", "NGRAM", **asked)


def dflash(**asked: object) -> EngineConfig:
    return EngineConfig("m", "DFLASH", "d", **asked)


def gram(**asked: object) -> EngineConfig:
    return EngineConfig("m", "NGRAM", speculative_acceptance="reject", **asked)


def layered(*sizes: int) -> EngineConfig:
    return EngineConfig("m", "NEXTN", "d", *sizes, enable_multi_layer_eagle=True)


ADAPTIVE, WINDOWED = {"speculative_adaptive": True}, facts(window=40)
STATED = replace(facts(), state_heads=2)
MASKED = facts(replace(HEAD, mask_token=0))
FILE = eagle3(**ADAPTIVE, speculative_adaptive_config="slots.json")

# Rule, configuration, how the refusal begins, and what is known where it is not the usual target and its draft.
REFUSED = [
    ("nothing-to-draft", EngineConfig("m", speculative_num_steps=3), "speculative_num_steps 3 has no"),
    ("nothing-to-draft", EngineConfig("m", speculative_draft_model_path="d"), "speculative_draft_model_path"),
    ("nothing-to-draft", EngineConfig("m", **ADAPTIVE), "speculative_adaptive True has no"),
    ("draft-path-missing", EngineConfig("m", "EAGLE3"), "speculative_algorithm EAGLE3 needs a draft"),
    ("draft-unread", eagle3(), "the draft at d was not read; put its config.json into the facts first", facts(None)),
    ("draft-path-unread", EngineConfig("m", "NGRAM", "d"), "speculative_algorithm NGRAM uses no draft"),
    ("nothing-bundled", EngineConfig("m", "NEXTN"), "speculative_algorithm NEXTN drafts with prediction", facts()),
    ("block-too-wide", dflash(speculative_num_draft_tokens=9), "speculative_num_draft_tokens 9 is more", facts(BLOCK)),
    ("steps-auto-alone", eagle3(AUTO, 2), "speculative_num_steps auto needs"),
    ("num-steps-range", eagle3(0), "speculative_num_steps must be between 1 and 255"),
    ("topk-range", eagle3(1, 65), "speculative_eagle_topk must be between 1 and 64, got 65"),
    ("num-draft-tokens-range", eagle3(3, 2, 1), "speculative_num_draft_tokens must be between 2 and 256, got 1"),
    ("tree-too-wide", eagle3(2, 2, 8), "speculative_num_draft_tokens 8 is more than the root and the 6 candidates"),
    (
        "acceptance-unused",
        EngineConfig("m", speculative_acceptance="block"),
        "speculative_acceptance block has no effect",
    ),
    ("acceptance-of-chains", eagle3(3, 2, speculative_acceptance="reject"), "speculative_acceptance reject needs the"),
    ("acceptance-of-chains", gram(speculative_eagle_topk=2), "speculative_acceptance reject needs the distribution"),
    ("ragged-adaptive", eagle3(**RAGGED, **ADAPTIVE), "speculative_ragged_verify cannot run with speculative_adaptive"),
    (
        "confidence-threshold-range",
        eagle3(**RAGGED, speculative_confidence_threshold=1.0),
        "speculative_confidence_threshold must be at least 0 and below 1, got 1.0",
    ),
    (
        "confidence-unused",
        eagle3(speculative_confidence_threshold=0.5),
        "speculative_confidence_threshold 0.5 needs speculative_ragged_verify",
    ),
    (
        "confidence-unknown",
        eagle3(3, 2, **RAGGED, speculative_confidence_threshold=0.5),
        "speculative_confidence_threshold 0.5 needs a chain (topk 1) of one of EAGLE, EAGLE3, STANDALONE, DFLASH, got "
        "EAGLE3 with topk 2",
    ),
    (
        "confidence-unknown",
        ngram(**RAGGED, speculative_confidence_threshold=0.5, speculative_eagle_topk=1),
        "speculative_confidence_threshold 0.5 needs a chain (topk 1) of one of",
    ),
    ("parallel-chains", eagle3(3, 2), "draft d predicts all steps in one forward, from mask tokens, so it d", MASKED),
    ("threshold-inexact", eagle3(speculative_accept_threshold_single=0.9), "speculative_accept_threshold_single must"),
    ("threshold-inexact", EngineConfig("m", speculative_accept_threshold_acc=2.0), "speculative_accept_threshold_acc"),
    ("v2-needs-overlap", eagle3(spec_version="v2", disable_overlap_schedule=True), "spec_version v2 cannot run with"),
    ("layers-of-no-use", eagle3(enable_multi_layer_eagle=True), "enable_multi_layer_eagle true needs an"),
    ("layers-too-few", layered(3), "speculative_num_steps 3 is more than the draft's 2 layers with", facts(LAYERS)),
    ("layers-in-a-chain", layered(2, 2), "speculative_eagle_topk 2 is a tree, but enable_multi", facts(LAYERS)),
    ("page-size-range", EngineConfig("m", page_size=0), "page_size must be between 1 and 256 tokens, got"),
    ("chunked-prefill-size-range", EngineConfig("m", chunked_prefill_size=0), "chunked_prefill_size must be at least"),
    (
        "mixed-unsupported",
        ngram(enable_mixed_chunk=True),
        "enable_mixed_chunk cannot run with NGRAM, which reads tokens on the host; remove it or use one of NONE, EAGLE",
    ),
    ("max-running-requests-range", EngineConfig("m", max_running_requests=0), "max_running_requests must be at least"),
    ("context-length-range", EngineConfig("m", context_length=1025), "context_length must be between 2"),
    (
        "window-ratio-range",
        eagle3(swa_full_tokens_ratio=1.5, disable_radix_cache=True),
        "swa_full_tokens_ratio must be above 0 and at most 1, got 1.5",
        WINDOWED,
    ),
    (
        "adaptive-config-alone",
        eagle3(speculative_adaptive_config="s.json"),
        "speculative_adaptive_config s.json has no",
    ),
    ("adaptive-config-unread", FILE, "the file of speculative_adaptive_config slots.json was not read; put its text"),
    (
        "adaptive-config-wrong",
        eagle3(**ADAPTIVE, speculative_adaptive_config='{"1": {}}'),
        "speculative_adaptive_config: slot 1: candidate_steps is missing",
    ),
    (
        "adaptive-config-wrong",
        FILE,
        "speculative_adaptive_config slots.json must be a JSON object, got []",
        replace(facts(), adaptive_config="[]"),
    ),
    ("steps-no-candidate", eagle3(6, **ADAPTIVE), "speculative_num_steps 6 is not a candidate of any adaptive slot"),
    ("random-seed-range", EngineConfig("m", random_seed=-1), "random_seed must be between 0 and"),
    ("cuda-graph-max-bs-range", EngineConfig("m", cuda_graph_max_bs=-1), "cuda_graph_max_bs must be between 0 and"),
    ("cuda-graph-max-gb-range", EngineConfig("m", cuda_graph_max_gb=0), "cuda_graph_max_gb must be between 1 and 1024"),
    ("interval-of-no-state", eagle3(state_interval=16), "state_interval 16 needs a target with a recurrent state"),
    (
        "interval-of-whole-pages",
        eagle3(page_size=16, state_interval=24),
        "state_interval must be a multiple of",
        STATED,
    ),
    ("interval-of-whole-pages", eagle3(state_interval=-4), "state_interval must be a multiple of page_size, 1", STATED),
    ("gpu-missing", EngineConfig("m", device="cuda"), "device cuda needs a GPU, but none is visible; use"),
]
SLOT = (
    '{"1": {"candidate_steps": [1, 2], "ema_alpha": 0.2, "update_interval": 5, "warmup_batches": 10, '
    '"down_hysteresis": -0.25, "up_hysteresis": 0.0, "ceiling_coeff": 0.0}}'
)
# Rule, configuration, what was requested, what runs instead, and how the reason begins.
REWRITTEN = [
    ("chain-width", eagle3(3, AUTO, 8), 8, 4, "a chain (topk 1) of 3 steps verifies 4 tokens"),
    ("chain-width", eagle3(AUTO, AUTO, 8, **ADAPTIVE), 8, 4, "a chain (topk 1) of 3 steps verifies 4 tokens"),
    ("window-uncached", eagle3(context_length=100), False, True, "the target has layers with a sliding window of 40"),
    ("state-uncached", eagle3(state_interval=0), False, True, "the target has layers with a recurrent state, of which"),
    ("block-steps", dflash(speculative_num_steps=3), 3, 1, "DFLASH drafts a whole block in one step"),
    (
        "constrained-drafts-unknown",
        ngram(speculative_constrained_drafts=True),
        True,
        False,
        "NGRAM does not choose each",
    ),
    ("chains-only", dflash(speculative_eagle_topk=4), 4, 1, "DFLASH drafts chains, not trees"),
    ("no-step-in-flight", ngram(spec_version="v2"), "v2", "v1", "NGRAM reads tokens on the host, so each step is"),
    ("adaptive-unsupported", eagle3(3, 2, **ADAPTIVE), True, False, "a tree (topk 2) has a fixed width, so the depth"),
    ("adaptive-unsupported", ngram(**ADAPTIVE), True, False, "NGRAM cannot change its draft depth, so the depth is"),
    ("adaptive-unsupported", dflash(**ADAPTIVE), True, False, "DFLASH cannot change its draft depth, so the depth is"),
    (
        "adaptive-config-flat",
        eagle3(**ADAPTIVE, speculative_adaptive_config=FLAT),
        FLAT,
        SLOT,
        "the flat format has no batch sizes, so it defines one slot for all of them",
    ),
    ("graphs-impossible", EngineConfig("m", cuda_graph_max_bs=8), 8, 0, "CUDA graphs need a GPU, so rounds run"),
    (
        "mixed-of-whole-prompts",
        eagle3(enable_mixed_chunk=True, chunked_prefill_size=-1),
        True,
        False,
        "chunked_prefill_size -1 reads each prompt whole",
    ),
    ("whole-pages", eagle3(max_total_tokens=100, page_size=16), 100, 96, "KV memory is allocated in pages of 16"),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case[0])
def test_refused_in_one_sentence_by_one_rule_alone(case):
    rule, config, sentence, *known = case
    broken, told = refusal(config, known[0] if known else facts(HEAD if config.speculative_draft_model_path else None))
    assert broken == [rule] and told.startswith(sentence)


@pytest.mark.parametrize(("rule", "config", "asked", "got", "reason"), REWRITTEN)
def test_rewritten_with_requested_resolved_and_reason(rule, config, asked, got, reason):
    draft = BLOCK if config.speculative_algorithm == "DFLASH" else HEAD
    known = facts(draft, window=40 if rule == "window-uncached" else None)
    known = replace(known, state_heads=2 * (rule == "state-uncached"))
    situation = RuleContext.of(config, known)
    (row,) = (row for row in RULES if row.broken(situation))
    (made,) = resolve(config, known).rewrites
    assert row.name == rule and made.field == row.field
    assert (made.asked, made.got) == (asked, got) and made.reason.startswith(reason)


def test_a_wrong_file_is_refused_even_where_the_depth_would_stay_static():
    config = standalone(speculative_adaptive=True, speculative_adaptive_config="{}")
    with pytest.raises(ConfigError, match="speculative_adaptive_config has no batch size as a key; it needs at least"):
        resolve(config, facts(MODEL))


def test_every_rule_has_a_case():
    """The rules of drafts, n-grams and ranks are tested in their own files."""
    tried = {case[0] for case in (*REFUSED, *REWRITTEN)}
    elsewhere = (*PAIRING, *NGRAM_RULES, TOPK_IS_BREADTH, *SUFFIX_RULES, *SPLITTING)
    assert tried == {rule.name for rule in RULES if rule not in elsewhere}


def test_names_are_unique_and_rewrites_name_their_value():
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all((rule.got is not None) == (rule.kind == "rewritten") for rule in RULES)


def test_a_checkpoint_is_no_nearer_than_the_widest_round():
    assert INTERVAL.name == "interval-within-a-round"
    kept = resolve(eagle3(7, state_interval=8, max_total_tokens=90), STATED)
    assert (kept.states, kept.state_tokens) == (48 + 11, 8)
    for config in (eagle3(7, state_interval=7), eagle3(**ADAPTIVE, state_interval=7)):
        with pytest.raises(ConfigError, match="state_interval must be at least 8, the nodes of the widest"):
            resolve(config, STATED)


@pytest.mark.parametrize(("version", "need"), [("v1", 16), ("v2", 32)])
def test_a_pool_that_holds_no_request_is_refused_at_each_timing(version, need):
    asked = {"speculative_num_steps": 7, "page_size": 16, "spec_version": version}
    assert CAPACITY.name == "pool-too-small"
    assert resolve(eagle3(max_total_tokens=need, **asked), facts()).num_pages == need // 16
    with pytest.raises(ConfigError, match=rf"{need - 1} is too small for one request: .* need {need} \(pages of 16\)"):
        resolve(eagle3(max_total_tokens=need - 1, **asked), facts())


def test_a_registered_chain_without_steps_in_flight_gives_the_reason():
    traits = Traits("SLOW", "", Topology.CHAIN, max_lag=0)
    situation = RuleContext(EngineConfig("m", "SLOW", speculative_eagle_topk=2, spec_version="v2"), facts(), traits)
    assert [row.message(situation) for row in RULES if row.broken(situation) and row.kind == "rewritten"] == [
        "SLOW drafts chains, not trees",
        "SLOW does not support overlapped steps, so each step is resolved before the next",
    ]


@pytest.mark.parametrize("width", [2, 7])
def test_the_widest_legal_tree_runs(width):
    assert resolve(eagle3(2, 2, width), facts()).num_draft_tokens == width
