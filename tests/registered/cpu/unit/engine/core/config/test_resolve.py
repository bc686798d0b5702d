from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmatrix.engine.core.config.adaptive_file import DEFAULT_SLOTS, AdaptiveSlot
from specmatrix.engine.core.config.asked import AUTO, DraftFacts, EngineConfig, Facts
from specmatrix.engine.core.config.context import RuleContext
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.engine.core.config.rules.table import RULES
from specmatrix.engine.core.draft.algorithms import Topology, Traits, forget_traits, register_traits, tree_pool
from specmatrix.errors import ConfigError
from specmatrix.matrix.gates.config import explicit

# What an EngineConfig field is called once it is resolved, where the names differ.
RESOLVED_NAME = {
    "speculative_num_steps": "num_steps",
    "speculative_eagle_topk": "topk",
    "speculative_num_draft_tokens": "num_draft_tokens",
    "speculative_draft_model_path": "draft_path",
}


HEAD = DraftFacts("LlamaForCausalLMEagle3", 512, 96, 128, 300, "t", (1, 2, 3))
MODEL = DraftFacts("LlamaForCausalLM", 512, 64, None, None, "t")
BLOCK = DraftFacts("DFlashDraftModel", 512, 64, block_size=12)
NEXT = DraftFacts("DeepseekV3ForCausalLM", 512, 128, prediction_layers=3)
DRAFT_OF = {"NONE": None, "STANDALONE": MODEL, "EAGLE3": HEAD, "NGRAM": None, "DFLASH": BLOCK, "NEXTN": NEXT} | {
    "SUFFIX": None,
    "DSPARK": replace(BLOCK, architecture="DSparkDraftModel", confidence_head=True),
}
SLOTS = {None: DEFAULT_SLOTS, '{"4": {"candidate_steps": [1, 3]}}': (AdaptiveSlot(4, (1, 3)),)}
BLOCKS = ("DFLASH", "DSPARK")
ANY = st.integers(-(2**70), 2**70)
# Legal values that rules refuse or rewrite.
CLASHES = {"page_size": 16, "max_total_tokens": 1000, "speculative_eagle_topk": 2, "speculative_adaptive": True}


def auto(values: st.SearchStrategy[int]) -> st.SearchStrategy[object]:
    return st.one_of(st.just(AUTO), values)


KINDS = ("LlamaForCausalLM", "Qwen3ForCausalLM", NEXT.architecture)


def known(draft: st.SearchStrategy[DraftFacts | None], kinds: tuple[str, ...] = KINDS) -> st.SearchStrategy[Facts]:
    return st.builds(
        Facts,
        architecture=st.sampled_from(kinds),
        vocab_size=st.just(512),
        hidden_size=st.just(128),
        num_layers=st.just(4),
        context_length=st.sampled_from([100, 1024, 131072]),
        tokenizer_hash=st.sampled_from([None, "t"]),
        draft=draft,
        bundled=st.sampled_from([None, replace(NEXT, architecture="DeepseekV3ForCausalLMNextN")]),
        device_kind=st.sampled_from(["cpu", "cuda"]),
        gpus=st.sampled_from([0, 1]),
        window=st.sampled_from([None, None, 40]),
    )


WILD = st.builds(
    EngineConfig,
    model_path=st.just("m"),
    speculative_algorithm=st.sampled_from(
        ["NONE", "standalone", "EAGLE3", "STANDALONE", "ngram", "NEXTN", "DFLASH", "medusa"]
    ),
    speculative_draft_model_path=st.sampled_from([None, "d", "d", "d"]),
    speculative_num_steps=auto(ANY),
    speculative_eagle_topk=auto(ANY),
    speculative_num_draft_tokens=auto(ANY),
    speculative_adaptive=st.booleans(),
    speculative_adaptive_config=st.sampled_from([None, "f", "{", '{"candidate_steps": [2]}', '{"1": {}}']),
    speculative_accept_threshold_single=st.floats(allow_nan=False),
    spec_version=st.sampled_from([AUTO, "v1", "v2"]),
    disable_overlap_schedule=st.booleans(),
    page_size=auto(ANY),
    chunked_prefill_size=auto(ANY),
    max_total_tokens=auto(ANY),
    max_running_requests=auto(ANY),
    context_length=auto(ANY),
    device=st.sampled_from([AUTO, "cpu", "cuda"]),
    random_seed=ANY,
)
WILD_FACTS = known(
    st.sampled_from(
        [
            None,
            HEAD,
            MODEL,
            replace(HEAD, mask_token=0),
            DraftFacts("LlamaForCausalLM", 500, 64, None, None, "u"),
            DraftFacts("LlamaForCausalLMEagle3", 512, 96, 256, 900, None, (1, 2, 9)),
        ]
    )
)


@st.composite
def runnable(draw: st.DrawFn) -> tuple[EngineConfig, Facts]:
    """A request in which each value is legal; a pool too small for one request is the only possible refusal."""
    algorithm = draw(st.sampled_from(list(DRAFT_OF)))
    drafted = algorithm != "NONE"
    steps = draw(auto(st.integers(1, 6))) if drafted else AUTO
    topk = draw(auto(st.integers(1, 5))) if steps != AUTO else AUTO
    children = 1 if topk == AUTO else topk
    widest = tree_pool(steps, topk) + 1 if children > 1 and algorithm != "DFLASH" else 11
    width = draw(auto(st.integers(2, widest))) if steps != AUTO else AUTO
    if algorithm == "SUFFIX" and steps != AUTO:
        topk, width = 1, steps + 1
    disabled = draw(st.booleans())
    adaptive = steps in (AUTO, 1, 3) and algorithm.startswith("EAGLE") and children == 1 and draw(st.booleans())
    layered = algorithm == "NEXTN" and steps in (AUTO, 1, 2, 3) and children == 1
    grams = {"speculative_ngram_match_type": "PROB", "speculative_ngram_capacity": 99}
    config = EngineConfig(
        "m",
        algorithm,
        "d" if DRAFT_OF[algorithm] else None,
        steps,
        topk,
        width,
        adaptive,
        draw(st.sampled_from(list(SLOTS))) if adaptive else None,
        enable_multi_layer_eagle=draw(st.sampled_from([AUTO, False, *([True] if layered else [])])),
        spec_version=draw(st.sampled_from([AUTO, "v1"] if disabled else [AUTO, "v1", "v2"])),
        disable_overlap_schedule=disabled,
        page_size=draw(auto(st.integers(1, 64))),
        disable_radix_cache=draw(st.booleans()),
        swa_full_tokens_ratio=draw(st.sampled_from([1.0, 0.8, 0.3])),
        chunked_prefill_size=draw(auto(st.sampled_from([-1, 1, 7]))),
        max_total_tokens=draw(auto(st.integers(400, 5000))),
        max_running_requests=draw(auto(st.integers(1, 64))),
        context_length=draw(auto(st.integers(2, 100))),
        dtype=draw(st.sampled_from([AUTO, "float32", "bfloat16"])),
        device=draw(st.sampled_from([AUTO, "cpu"])),
        disable_cuda_graph=draw(st.booleans()),
        cuda_graph_max_bs=draw(auto(st.integers(0, 64))),
        cuda_graph_max_gb=draw(st.integers(1, 9)),
        random_seed=draw(st.integers(0, 9)),
        strict_memory=draw(st.integers(0, 2)),
        kv_stamps=draw(st.booleans()),
        enable_deterministic_inference=draw(st.booleans()),
        **(grams if algorithm == "NGRAM" else {}),
    )
    return config, draw(known(st.just(DRAFT_OF[algorithm]), KINDS[2:] if algorithm == "NEXTN" else KINDS))


def attempt(config: EngineConfig, facts: Facts) -> object:
    try:
        return resolve(config, facts)
    except ConfigError as error:
        return str(error)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(WILD, WILD_FACTS)
def test_total_and_pure(config, facts):
    first = attempt(config, facts)
    assert attempt(config, facts) == first
    if isinstance(first, str):
        assert first and "\n" not in first


@settings(max_examples=100, deadline=None, derandomize=True)
@given(runnable())
def test_explicit_values_are_kept_or_rewritten_and_automatic_ones_have_a_reason(ask):
    config, facts = ask
    resolved = resolve(config, facts)
    rewrites = {rewrite.field: rewrite for rewrite in resolved.rewrites}
    reasons = {reason.field: reason for reason in resolved.reasons}
    groups = [(kind, resolved.as_dict()[kind] or {}) for kind in ("ngram", "suffix")]
    grams = {f"speculative_{kind}_{name}": value for kind, group in groups for name, value in group.items()}
    for field in fields(config):
        asked = getattr(config, field.name)
        if field.name.startswith(("speculative_ngram_", "speculative_suffix_")):
            assert field.name not in grams or grams[field.name] == (
                reasons.pop(field.name).value if asked == AUTO else asked
            )
            continue
        name = RESOLVED_NAME.get(field.name, field.name)
        if name == "speculative_dspark_block_size":
            continue
        if name == "enable_multi_layer_eagle" and config.speculative_algorithm != "NEXTN":
            assert not resolved.enable_multi_layer_eagle
        elif name == "speculative_ragged_verify" and not asked:
            assert resolved.speculative_ragged_verify is (config.speculative_algorithm == "SUFFIX")
            assert (reasons.pop(name, None) is not None) is resolved.speculative_ragged_verify
        elif asked == AUTO:
            assert reasons.pop(field.name).value == getattr(resolved, name)
        elif name == "disable_radix_cache" and name in rewrites:
            assert not asked and rewrites[name].got is True and not resolved.radix_cache
        elif field.name in rewrites:
            assert rewrites[field.name].asked == asked
            assert rewrites[field.name].got == getattr(resolved, name) != asked
        elif name == "chunked_prefill_size":
            assert resolved.chunked_prefill_size == (None if asked == -1 else asked)
        elif name == "disable_radix_cache":
            assert resolved.radix_cache is not asked
        elif name == "disable_overlap_schedule":
            assert not asked or resolved.spec_version == "v1"
        elif name == "disable_cuda_graph":
            assert not asked or resolved.cuda_graph_max_bs == 0
        elif name == "speculative_adaptive":
            assert bool(resolved.adaptive_slots) is asked
        elif name == "speculative_adaptive_config":
            assert resolved.adaptive_slots == (SLOTS[asked] if config.speculative_adaptive else ())
            assert (reasons.pop(name, None) is not None) is (asked is None and config.speculative_adaptive)
        elif not name.startswith("speculative_accept"):
            assert getattr(resolved, {"speculative_algorithm": "algorithm"}.get(name, name)) == asked
    assert not reasons


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.one_of(runnable(), st.tuples(WILD, WILD_FACTS)), st.sampled_from([{}, CLASHES]))
def test_the_first_broken_rule_refuses_and_without_one_the_others_rewrite(ask, changes):
    config, facts = replace(ask[0], **changes), ask[1]
    try:
        context = RuleContext.of(config, facts)
    except ConfigError as error:
        assert attempt(config, facts) == str(error)
        return
    found, broken = attempt(config, facts), [rule for rule in RULES if rule.broken(context)]
    refused = [rule.message(context) for rule in broken if rule.kind == "refused"]
    if isinstance(found, str):
        assert found == refused[0] if refused else found.startswith("max_total_tokens ")
        return
    assert not refused
    rewritten = [(rule.field, getattr(config, rule.field), rule.got(context)) for rule in broken]
    assert [(one.field, one.asked, one.got) for one in found.rewrites] == rewritten


@settings(max_examples=100, deadline=None, derandomize=True)
@given(runnable())
def test_resolution_is_idempotent_on_explicit_values(ask):
    config, facts = ask
    resolved = resolve(config, facts)
    again = resolve(explicit(resolved), facts)
    assert again.start_hash() == resolved.start_hash()
    assert again.rewrites == ()
    drafting = {"speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens"}
    assert {reason.field for reason in again.reasons} == (set() if resolved.num_steps else drafting)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(runnable())
def test_what_is_resolved_can_run(ask):
    config, facts = ask
    resolved = resolve(config, facts)
    assert resolved.lag == int(resolved.spec_version == "v2")
    assert resolved.num_pages * resolved.page_size == resolved.max_total_tokens
    assert resolved.max_total_tokens >= 1 + (1 + resolved.lag) * resolved.max_draft_tokens
    assert all(s + 1 <= resolved.max_draft_tokens for slot in resolved.adaptive_slots for s in slot.candidate_steps)
    assert resolved.num_draft_tokens == resolved.num_steps + 1 or resolved.topk > 1 or resolved.algorithm in BLOCKS
    assert resolved.lag <= (resolved.algorithm != "NGRAM")
    assert resolved.context_length <= facts.context_length
    windowed = facts.window is not None
    assert (resolved.window_pages >= 1) == windowed and resolved.window_pages <= resolved.num_pages
    assert not (windowed and resolved.radix_cache)


@pytest.mark.parametrize(
    ("asked", "shape"),
    [
        ({}, (3, 1, 4)),
        ({"speculative_num_steps": 7}, (7, 1, 8)),
        ({"speculative_eagle_topk": 1}, (3, 1, 4)),
        (
            {"speculative_adaptive_config": '{"1": {"candidate_steps": [2, 5]}, "9": {"candidate_steps": [4]}}'},
            (4, 1, 5),
        ),
        ({"speculative_adaptive_config": '{"1": {"candidate_steps": [2, 5]}}'}, (5, 1, 6)),
    ],
)
def test_adaptive_steps_begin_in_the_middle_of_all_candidates_or_as_requested(asked, shape):
    facts = Facts("LlamaForCausalLM", 512, 128, 4, 1024, draft=HEAD)
    resolved = resolve(EngineConfig("m", "EAGLE3", "d", speculative_adaptive=True, **asked), facts)
    assert (resolved.num_steps, resolved.topk, resolved.num_draft_tokens) == shape
    assert resolved.lag == 1 and not resolved.rewrites


def test_adaptive_steps_size_memory_by_the_widest_round():
    facts = Facts("LlamaForCausalLM", 512, 128, 4, 100, draft=HEAD, window=8)
    one = {"page_size": 1, "max_running_requests": 1, "spec_version": "v2", "swa_full_tokens_ratio": 0.9}

    def sized(**asked: object):
        return resolve(EngineConfig("m", "EAGLE3", "d", speculative_num_steps=1, **one, **asked), facts)

    narrow, wide = sized(), sized(speculative_adaptive=True)
    assert (narrow.max_draft_tokens, wide.max_draft_tokens, wide.num_draft_tokens) == (2, 8, 2)
    assert (narrow.max_total_tokens, wide.max_total_tokens) == (100 + 2 * 2, 100 + 2 * 8)
    with pytest.raises(ConfigError, match="max_total_tokens 16 is too small for one request: a token and its steps in"):
        sized(speculative_adaptive=True, max_total_tokens=16)


def test_the_text_of_a_file_and_the_same_text_in_place_resolve_alike():
    facts = Facts("LlamaForCausalLM", 512, 128, 4, 1024, draft=HEAD)
    text = '{"1": {"candidate_steps": [1, 2]}, "4": {"candidate_steps": [1], "ema_alpha": 0.5}}'
    known = replace(facts, adaptive_config=text)
    ask = EngineConfig("m", "EAGLE3", "d", speculative_adaptive=True)
    named = resolve(replace(ask, speculative_adaptive_config="slots.json"), known)
    assert named == resolve(replace(ask, speculative_adaptive_config=text), facts)
    assert named.as_dict()["adaptive_slots"][1]["ema_alpha"] == 0.5
    assert named.start_hash() != resolve(ask, facts).start_hash()


def test_an_algorithms_own_check_sees_the_request_and_the_facts_and_its_failure_is_refused():
    facts = Facts("LlamaForCausalLM", 512, 128, 4, 1024)
    seen: list[object] = []

    def check(asked, known):
        seen.extend((asked, known))
        if asked.random_seed:
            raise KeyError("seed")

    register_traits(Traits("MINE", "mine", Topology.CHAIN), check)
    try:
        config = EngineConfig("m", "mine", speculative_num_steps=2)
        assert resolve(config, facts).algorithm == "MINE" and seen == [config, facts]
        with pytest.raises(ConfigError, match=r"^the check of MINE failed: KeyError: 'seed'"):
            resolve(replace(config, random_seed=3), facts)
    finally:
        forget_traits("MINE")
