"""Settings that users combine, over the zoo's models, for tests and benchmarks of the whole resolution.

A new value, or a new field of EngineConfig with its values, is a new row here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from specmatrix.engine.core.config.asked import AUTO, EngineConfig, Facts
from specmatrix.matrix.cells.model_facts import model_facts


@dataclass(frozen=True, slots=True)
class KnobSetting:
    """One choice of a knob: its label, the EngineConfig fields and the facts that it sets."""

    label: str
    asked: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Knob:
    """Mutually exclusive settings; the first is the default."""

    name: str
    settings: tuple[KnobSetting, ...]


# Targets of the zoo with the algorithms asked for on them, and the drafts that bring weights of their own.
MODELS: Final[dict[str, dict[str, str | None]]] = {
    "llama-mini": {
        "NONE": None,
        "STANDALONE": "llama-mini-standalone",
        "EAGLE": "llama-mini-eagle",
        "EAGLE3": "llama-mini-eagle3",
        "NEXTN": None,
        "NGRAM": None,
        "DFLASH": "llama-mini-dflash",
    },
    "qwen3-mini": {
        "NONE": None,
        "STANDALONE": "qwen3-mini-standalone",
        "EAGLE3": "qwen3-mini-eagle3",
        "NGRAM": None,
    },
    "deepseek-mini": {"NONE": None, "NEXTN": None, "NGRAM": None},
}


def _models() -> Knob:
    """Target, algorithm and draft, which belong together."""
    settings = []
    for target, drafts in MODELS.items():
        for name, draft in drafts.items():
            facts = model_facts(target, draft)
            asked = {"model_path": target, "speculative_algorithm": name, "speculative_draft_model_path": draft}
            known = {field: getattr(facts, field) for field in Facts.__dataclass_fields__}
            settings.append(KnobSetting(f"{target}/{name}", asked, known))
    return Knob("models", tuple(settings))


def _knob(name: str, *values: object) -> Knob:
    """The values of one field of EngineConfig."""
    return Knob(name, tuple(KnobSetting(str(value), {name: value}) for value in values))


def _slots(label: str, text: str | None = None) -> KnobSetting:
    return KnobSetting(label, {"speculative_adaptive": True, "speculative_adaptive_config": text})


GPU: Final = {"device_kind": "cuda", "gpus": 1}
KNOBS: Final[tuple[Knob, ...]] = (
    _models(),
    _knob("speculative_num_steps", AUTO, 1, 2, 3, 5, 7),
    _knob("speculative_eagle_topk", AUTO, 1, 2, 4),
    _knob("speculative_num_draft_tokens", AUTO, 4, 6, 8, 16),
    Knob(
        "adaptive",
        (
            KnobSetting("off"),
            _slots("default slots"),
            _slots("own slots", '{"1": {"candidate_steps": [2, 5]}, "4": {"candidate_steps": [1]}}'),
            _slots("flat slots", '{"candidate_steps": [1, 3]}'),
        ),
    ),
    _knob("enable_multi_layer_eagle", AUTO, True, False),
    _knob("speculative_ngram_max_bfs_breadth", AUTO, 3),
    _knob("spec_version", AUTO, "v1", "v2"),
    _knob("disable_overlap_schedule", False, True),
    _knob("page_size", AUTO, 1, 4, 16, 64, 256),
    _knob("max_total_tokens", AUTO, 12_288, 1_000, 24),
    _knob("max_running_requests", AUTO, 4),
    _knob("context_length", AUTO, 256),
    _knob("chunked_prefill_size", AUTO, -1, 7, 32),
    _knob("disable_radix_cache", False, True),
    _knob("swa_full_tokens_ratio", 1.0, 0.5),
    _knob("enable_streaming_session", False, True),
    _knob("tp_size", 1, 2, 4),
    _knob("dtype", AUTO, "float32", "bfloat16"),
    _knob("cuda_graph_max_bs", AUTO, 0, 8),
    Knob(
        "machine",
        (
            KnobSetting("CPU"),
            KnobSetting("GPU", facts=GPU),
            KnobSetting("GPU, device cpu", {"device": "cpu"}, GPU),
            KnobSetting("CPU, device cuda", {"device": "cuda"}),
        ),
    ),
)


def configured(knobs: tuple[Knob, ...], point: Sequence[int]) -> tuple[EngineConfig, Facts]:
    """One combination: its configuration and the facts about models and machine. point: a setting's index per knob."""
    settings = [knob.settings[index] for knob, index in zip(knobs, point, strict=True)]
    asked = {name: value for setting in settings for name, value in setting.asked.items()}
    facts = {name: value for setting in settings for name, value in setting.facts.items()}
    return EngineConfig(**asked), Facts(**facts)
