import json
from dataclasses import replace

import pytest

from specmatrix.engine.core.config.asked import KINDS, EngineConfig, Facts
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.errors import ConfigError
from tests.support.tables import table

FLAGS = ", ".join("--" + name.replace("_", "-") for name in KINDS)
FACTS = Facts("LlamaForCausalLM", vocab_size=512, hidden_size=128, num_layers=4, context_length=1024)


def refusal(flags: dict[str, object]) -> str:
    with pytest.raises(ConfigError) as caught:
        EngineConfig.from_flags(flags)
    return str(caught.value)


@pytest.mark.parametrize("flag", ["--page-size", "page-size", "page_size"])
def test_flags_take_dashes_and_underscores(flag):
    assert EngineConfig.from_flags({"model_path": "m", flag: "16"}).page_size == 16


def test_flags_parse_text_by_field():
    config = EngineConfig.from_flags(
        {
            "--model": "m",
            "--speculative-draft-model": "d",
            "--page-size": "auto",
            "--disable-radix-cache": "true",
            "--disable-overlap-schedule": "False",
            "--speculative-accept-threshold-acc": "0.5",
            "--chunked-prefill-size": "-1",
            "--spec-version": "v2",
            "--strict-memory": "2",
            "--enable-multi-layer-eagle": "False",
        }
    )
    values = {"chunked_prefill_size": -1, "spec_version": "v2", "strict_memory": 2, "enable_multi_layer_eagle": False}
    values |= {"disable_radix_cache": True, "speculative_accept_threshold_acc": 0.5}
    assert config == EngineConfig("m", speculative_draft_model_path="d", **values)


@pytest.mark.parametrize(
    ("flag", "value", "rule"),
    [
        ("--speculative-acceptance", "block", "block"),
        ("--speculative-use-rejection-sampling", "true", "reject"),
        ("--speculative-use-rejection-sampling", False, "match"),
        ("rejection_sample_method", "standard", "reject"),
        ("rejection_sample_method", "block", "block"),
    ],
)
def test_an_acceptance_rule_is_spelled_as_by_sglang_or_vllm(flag, value, rule):
    assert EngineConfig.from_flags({"model": "m", flag: value}).speculative_acceptance == rule


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        *table(__file__)["bad_flags"],
        ({"model": "m", "bogus": True}, f"unknown flag '--bogus'; it must be one of {FLAGS}"),
        ({"model": 4097 * "a"}, f"model_path must be at most 4096 characters, got '{199 * 'a'}..."),
    ],
)
def test_bad_flags_are_refused_in_one_sentence(flags, sentence):
    assert refusal(flags).startswith(sentence)


def test_as_dict_is_json_in_field_order():
    resolved = resolve(EngineConfig("m", max_total_tokens=50, page_size=16), FACTS)
    values = json.loads(json.dumps(resolved.as_dict()))
    assert list(values)[:3] == ["model_path", "draft_path", "algorithm"]
    assert values["num_pages"] == 3
    assert values["rewrites"] == [
        {
            "field": "max_total_tokens",
            "asked": 50,
            "got": 48,
            "reason": "KV memory is allocated in pages of 16 tokens, so the size is rounded down",
        }
    ]
    assert {"field": "spec_version", "value": "v2", "because": "overlap scheduling is the default"} in values["reasons"]


def test_start_hash_sees_values_only():
    resolved = resolve(EngineConfig("m"), FACTS)
    assert len(resolved.start_hash()) == 12
    assert replace(resolved, reasons=(), rewrites=()).start_hash() == resolved.start_hash()
    assert replace(resolved, lag=0).start_hash() != resolved.start_hash()
