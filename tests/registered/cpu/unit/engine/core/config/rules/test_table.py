"""Rules that no flags of the golden file break, or not at every timing."""

from dataclasses import replace

import pytest

from specmatrix.engine.core.config.asked import DraftFacts, EngineConfig
from specmatrix.engine.core.config.context import RuleContext
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.engine.core.config.rules.table import BROKEN, LATE, NAMED, ROWS, RULES
from specmatrix.engine.core.draft.algorithms import Topology, Traits, forget_traits, register_traits
from specmatrix.errors import ConfigError
from tests.support.start_configs import HEAD, MODEL, eagle3, facts, standalone

ADAPTIVE = {"speculative_adaptive": True}
STATED = replace(facts(), state_heads=2)


def test_a_wrong_file_is_refused_even_where_the_depth_would_stay_static():
    config = standalone(speculative_adaptive=True, speculative_adaptive_config="{}")
    with pytest.raises(ConfigError, match="speculative_adaptive_config has no batch size as a key; it needs at least"):
        resolve(config, facts(MODEL))


def test_names_are_unique_and_rewrites_name_their_value():
    assert len({rule.name for rule in (*RULES, *LATE)}) == len(ROWS)
    assert all((rule.got is not None) == (rule.kind == "rewritten") for rule in RULES)


def test_every_condition_and_value_belongs_to_a_row():
    assert BROKEN.keys() == {row["name"] for row in ROWS if not {"low", "unread"} & row.keys()}
    read = {name for row in ROWS for name in NAMED if f"{{{name}" in row.get("message", "") or row.get("made") == name}
    assert read == NAMED.keys()


def test_a_checkpoint_is_no_nearer_than_the_widest_round():
    kept = resolve(eagle3(7, state_interval=8, max_total_tokens=90), STATED)
    assert (kept.states, kept.state_tokens) == (48 + 11, 8)
    for config in (eagle3(7, state_interval=7), eagle3(**ADAPTIVE, state_interval=7)):
        with pytest.raises(ConfigError, match="state_interval must be at least 8, the nodes of the widest"):
            resolve(config, STATED)


@pytest.mark.parametrize(("version", "need"), [("v1", 16), ("v2", 32)])
def test_a_pool_that_holds_no_request_is_refused_at_each_timing(version, need):
    asked = {"speculative_num_steps": 7, "page_size": 16, "spec_version": version}
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


def test_rounds_of_a_registered_drafter_are_no_graphs():
    register_traits(Traits("OWN", "a user's", Topology.CHAIN), None)
    try:
        assert resolve(EngineConfig("m", "OWN"), facts(None, gpus=1)).cuda_graph_max_bs == 0
    finally:
        forget_traits("OWN")


def test_bundled_layers_are_checked_like_a_draft_of_their_own():
    wide = DraftFacts("DeepseekV3ForCausalLMNextN", vocab_size=512, hidden_size=96, target_hidden_size=96)
    known = replace(facts(None), architecture="DeepseekV3ForCausalLM", bundled=wide)
    with pytest.raises(ConfigError, match="reads hidden states of width 96, but the target's have width 128"):
        resolve(EngineConfig("m", "NEXTN"), known)
    with pytest.raises(ConfigError, match=r"NEXTN needs .* DeepseekV3ForCausalLMNextN, but m is a LlamaForC"):
        resolve(EngineConfig("m", "NEXTN"), replace(known, bundled=MODEL))


def test_prediction_layers_continue_the_states_of_their_own_architecture_only():
    layers = DraftFacts("Qwen3NextForCausalLM", 512, 128, 128, prediction_layers=1)
    known = replace(facts(layers), architecture="DeepseekV3ForCausalLM")
    asked = EngineConfig("m", "NEXTN", "d")
    sentence = "architecture that ends in DeepseekV3ForCausalLMNextN, but d is a Qwen3NextForCausalLMNextN"
    with pytest.raises(ConfigError, match=f"^NEXTN needs a draft {sentence}$"):
        resolve(asked, known)
    assert resolve(asked, replace(known, architecture=layers.architecture)).draft_path == "d"


def test_facts_of_a_draft_that_is_not_read_do_not_refuse_plain_decoding():
    assert resolve(EngineConfig("m"), facts(replace(HEAD, tokenizer_hash="other"))).algorithm == "NONE"
