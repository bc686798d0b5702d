"""Which targets a number of ranks can share, and on which machines."""

from __future__ import annotations

import pytest

from specmatrix.engine.core.config.asked import EngineConfig, Facts
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.engine.core.config.rules.table import RULES
from specmatrix.engine.core.draft.algorithms import Topology, Traits, forget_traits, register_traits
from specmatrix.errors import ConfigError
from specmatrix.matrix.gates.config import explicit
from tests.support.start_configs import refusal


def facts(heads: int = 8, kv_heads: int = 2, widths: tuple[int, ...] = (384,), gpus=0, state_heads=0) -> Facts:
    kind = "cuda" if gpus else "cpu"
    return Facts(
        "LlamaForCausalLM", 512, 128, 4, 1024, "t", device_kind=kind, gpus=gpus, heads=heads, kv_heads=kv_heads,
        widths=widths, state_heads=state_heads,
    )  # fmt: skip


REFUSED = [
    ("tp-size-range", 0, facts(), "tp_size must be between 1 and 64 ranks, got 0"),
    ("uneven-ranks", 4, facts(heads=6), "tp_size 4 cannot split a target with 6 attention heads, which is neither a"),
    ("uneven-ranks", 2, facts(heads=6, kv_heads=3), "tp_size 2 cannot split a target with 3 key-value heads, which is"),
    ("uneven-ranks", 4, facts(state_heads=2), "tp_size 4 cannot split a target with 2 key heads of recurrent layers"),
    ("uneven-ranks", 8, facts(widths=(384, 60)), "tp_size 8 cannot split a target with feed-forward layers of"),
    ("ranks-without-gpus", 2, facts(gpus=1), "tp_size 2 needs as many GPUs, but the number of visible GPUs is 1; use"),
]


@pytest.mark.parametrize(("rule", "ranks", "known", "sentence"), REFUSED)
def test_refused_in_one_sentence_by_one_rule_alone(rule: str, ranks: int, known: Facts, sentence: str):
    broken, told = refusal(EngineConfig("m", tp_size=ranks), known)
    assert broken == [rule] and told.startswith(sentence)
    assert rule != "uneven-ranks" or told.endswith(f"; use tp_size {ranks // 2}")


def test_every_rule_has_a_case():
    split = {rule.name for rule in RULES if rule.name.startswith("tp-") or "ranks" in rule.name}
    assert {case[0] for case in REFUSED} | {"registered-on-ranks"} == split


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16])
def test_heads_are_split_or_copied(ranks: int):
    resolved = resolve(EngineConfig("m", tp_size=ranks), facts())
    assert resolved.tp_size == explicit(resolved).tp_size == ranks


def test_a_cpu_needs_no_gpu_for_its_ranks():
    assert resolve(EngineConfig("m", tp_size=4, device="cpu"), facts(gpus=2)).device == "cpu"
    assert resolve(EngineConfig("m", tp_size=4), facts(gpus=4)).device == "cuda"


@pytest.mark.parametrize("flag", ["--tp-size", "--tensor-parallel-size", "--tp"])
def test_the_flags_are_those_of_sglang(flag: str):
    assert EngineConfig.from_flags({"model": "m", flag: "2"}).tp_size == 2


def test_a_registered_algorithm_runs_in_the_process_that_registered_it():
    register_traits(Traits("MINE", "mine", Topology.CHAIN), None)
    try:
        with pytest.raises(ConfigError, match=r"^tp_size 2 cannot run MINE, which is registered in one process only; "):
            resolve(EngineConfig("m", "MINE", tp_size=2), facts())
    finally:
        forget_traits("MINE")
