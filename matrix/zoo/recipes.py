"""Frozen recipes: all settings that determine a checkpoint."""

from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a model or draft head in the layouts of Llama and Qwen3.

    qk_norm: queries and keys are normed per head. tied: lm_head shares the embedding. sliding: layers with a sliding
    window of `window` tokens, the query's own included.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    head_dim: int = 32
    vocab: int = 768
    max_positions: int = 4096
    rope_theta: float = 10000.0
    eps: float = 1e-5
    qk_norm: bool = False
    tied: bool = False
    window: int = 0
    sliding: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LatentShape:
    """Sizes of a model in the layout of DeepSeek-V3.

    A head's query and key have `plain_dim` dimensions without RoPE and `head_dim` with it; the KV cache holds
    `latent_rank` + `head_dim` numbers per token. bundled: MTP layers after the model's.
    """

    hidden: int
    layers: int
    heads: int
    intermediate: int
    query_rank: int
    latent_rank: int
    plain_dim: int
    head_dim: int
    value_dim: int
    experts: int
    chosen: int
    expert_intermediate: int
    groups: int
    chosen_groups: int
    bundled: int
    shared: int = 1
    dense_layers: int = 1
    routed_scale: float = 2.5
    vocab: int = 768
    max_positions: int = 4096
    rope_theta: float = 10000.0
    eps: float = 1e-6


@dataclass(frozen=True, slots=True)
class HybridShape:
    """Sizes of a hybrid: Qwen3-Next with `experts`, else Qwen3.5.

    Every `interval`-th layer is gated full attention; `head_dim` of the `width` dimensions of its heads are rotated.
    The others are gated delta nets with `key_heads` heads of `key_dim`, `value_heads` of `value_dim`, and a convolution
    over `taps` tokens.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    experts: int = 0
    chosen: int = 0
    expert_intermediate: int = 0
    width: int = 32
    head_dim: int = 8
    taps: int = 4
    interval: int = 3
    bundled: int = 1
    tied: bool = False
    vocab: int = 768
    max_positions: int = 4096
    rope_theta: float = 10000.0
    eps: float = 1e-6


@dataclass(frozen=True, slots=True)
class Data:
    """gsm-mini: seed, weights of the levels in training and test splits, sizes of the splits."""

    seed: int = 20260
    mix: tuple[float, ...] = (0.08, 0.17, 0.25, 0.25, 0.15, 0.10)
    test_mix: tuple[float, ...] = (0.05, 0.10, 0.10, 0.25, 0.35, 0.15)
    train_problems: int = 700_000
    distill_problems: int = 120_000
    test_problems: int = 1000
    heldout_problems: int = 200
    level_problems: int = 250
    answer_limit: int = 320


@dataclass(frozen=True, slots=True)
class Fit:
    """One optimisation: ends at `steps` or when its share of the wall-clock budget is spent, whichever comes first."""

    steps: int
    share: float
    batch_tokens: int
    peak_rate: float
    warmup: int = 100
    weight_decay: float = 0.05
    prompt_weight: float = 0.1


@dataclass(frozen=True, slots=True)
class Recipe:
    """A checkpoint of the zoo.

    kind: "target", "standalone", "eagle", "eagle3" or "dflash"; family: layout ("llama", "qwen3", "deepseek",
    "mistral", "qwen3_next", "qwen3_5").
    aux_layers: target layers whose outputs a draft reads. draft_vocab: 0 for the target's own head and embedding.
    unroll: draft steps of the training-time test. block, mask_id: DFLASH. bundled_fit: second optimisation of a target
    with MTP layers, which trains these on the target's own answers with the target frozen. form: of the
    answers, GSM8K's "worked" lines or "json" (`gsm_mini.in_form`); a draft has its target's.
    """

    name: str
    kind: str
    shape: ModelShape | LatentShape | HybridShape
    fit: Fit
    seed: int
    target: str | None = None
    aux_layers: tuple[int, ...] = ()
    draft_vocab: int = 0
    unroll: int = 0
    family: str = "llama"
    block: int = 0
    mask_id: int = 0
    bundled_fit: Fit | None = None
    form: str = "worked"


DATA: Final = Data()

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "llama-mini", "target", ModelShape(hidden=128, layers=4, heads=4, kv_heads=2, intermediate=384),
            Fit(steps=6264, share=0.40, batch_tokens=49_152, peak_rate=4e-3, warmup=200), seed=1,
        ),
        Recipe(
            "llama-mini-standalone", "standalone",
            ModelShape(hidden=64, layers=2, heads=2, kv_heads=1, intermediate=160),
            Fit(steps=2693, share=0.15, batch_tokens=49_152, peak_rate=6e-3), seed=2, target="llama-mini",
        ),
        Recipe(
            "llama-mini-eagle3", "eagle3", ModelShape(hidden=96, layers=1, heads=3, kv_heads=1, intermediate=256),
            Fit(steps=1145, share=0.25, batch_tokens=24_576, peak_rate=4e-3, prompt_weight=0.0),
            seed=3, target="llama-mini",
            aux_layers=(0, 1, 2), draft_vocab=320, unroll=7,
        ),
        Recipe(
            "llama-mini-eagle", "eagle", ModelShape(hidden=128, layers=1, heads=8, kv_heads=4, intermediate=288),
            Fit(steps=1400, share=0.6, batch_tokens=24_576, peak_rate=4e-3, prompt_weight=0.0),
            seed=4, target="llama-mini", unroll=7,
        ),
        Recipe(
            "llama-mini-dflash", "dflash",
            ModelShape(hidden=128, layers=2, heads=3, kv_heads=1, intermediate=320, eps=1e-6, qk_norm=True),
            Fit(steps=4000, share=0.6, batch_tokens=24_576, peak_rate=4e-3, prompt_weight=0.0),
            seed=5, target="llama-mini", aux_layers=(0, 1, 2), block=6, family="qwen3",
        ),
        Recipe(
            "qwen3-mini", "target",
            ModelShape(
                hidden=112, layers=4, heads=6, kv_heads=3, intermediate=352, rope_theta=20_000.0, eps=1e-6,
                qk_norm=True, window=48, sliding=(0, 2),
            ),
            Fit(steps=6400, share=0.5, batch_tokens=49_152, peak_rate=4e-3, warmup=200), seed=6, family="qwen3",
        ),
        Recipe(
            "qwen3-mini-standalone", "standalone",
            ModelShape(
                hidden=72, layers=2, heads=4, kv_heads=2, intermediate=176, rope_theta=20_000.0, eps=1e-6, qk_norm=True,
                tied=True,
            ),
            Fit(steps=2400, share=0.3, batch_tokens=49_152, peak_rate=6e-3),
            seed=7, target="qwen3-mini", family="qwen3",
        ),
        Recipe(
            "qwen3-mini-eagle3", "eagle3",
            ModelShape(hidden=112, layers=2, heads=7, kv_heads=1, intermediate=272, eps=1e-6),
            Fit(steps=1000, share=0.6, batch_tokens=24_576, peak_rate=4e-3, prompt_weight=0.0),
            seed=8, target="qwen3-mini", aux_layers=(0, 2), unroll=7,
        ),
        Recipe(
            "deepseek-mini", "target",
            LatentShape(
                hidden=96, layers=4, heads=4, intermediate=320, query_rank=48, latent_rank=32, plain_dim=24,
                head_dim=16, value_dim=32, experts=8, chosen=2, expert_intermediate=56, groups=2, chosen_groups=1,
                bundled=2,
            ),
            Fit(steps=5000, share=0.6, batch_tokens=49_152, peak_rate=4e-3, warmup=200), seed=9, family="deepseek",
            unroll=5, bundled_fit=Fit(steps=1000, share=0.25, batch_tokens=24_576, peak_rate=2e-3, prompt_weight=0.0),
        ),
        Recipe(
            "mistral-mini", "target",
            ModelShape(
                hidden=144, layers=4, heads=6, kv_heads=2, intermediate=304, rope_theta=50_000.0, window=56,
                sliding=(0, 1, 2, 3),
            ),
            Fit(steps=4000, share=0.5, batch_tokens=49_152, peak_rate=4e-3, warmup=200), seed=10, family="mistral",
        ),
        Recipe(
            "qwen3next-mini", "target",
            HybridShape(
                hidden=96, layers=6, heads=4, kv_heads=2, intermediate=192, key_heads=2, value_heads=6, key_dim=16,
                value_dim=24, experts=6, chosen=2, expert_intermediate=36,
            ),
            Fit(steps=2770, share=0.62, batch_tokens=49_152, peak_rate=4e-3, warmup=200), seed=11, family="qwen3_next",
            unroll=5, bundled_fit=Fit(steps=1000, share=0.18, batch_tokens=24_576, peak_rate=2e-3, prompt_weight=0.0),
        ),
        Recipe(
            "qwen35-mini", "target",
            HybridShape(
                hidden=112, layers=6, heads=4, kv_heads=2, intermediate=224, key_heads=2, value_heads=6, key_dim=20,
                value_dim=16, tied=True, rope_theta=20_000.0,
            ),
            Fit(steps=2801, share=0.55, batch_tokens=49_152, peak_rate=4e-3, warmup=200), seed=12, family="qwen3_5",
            unroll=5, bundled_fit=Fit(steps=1000, share=0.14, batch_tokens=24_576, peak_rate=2e-3, prompt_weight=0.0),
        ),
        Recipe(
            "qwen35-mini-eagle3", "eagle3",
            ModelShape(hidden=80, layers=1, heads=3, kv_heads=1, intermediate=256, eps=1e-6),
            Fit(steps=965, share=0.14, batch_tokens=24_576, peak_rate=4e-3, prompt_weight=0.0),
            seed=13, target="qwen35-mini", aux_layers=(0, 2, 4), draft_vocab=320, unroll=7,
        ),
        # Answers in JSON, so that accuracy and acceptance under a grammar mean something.
        Recipe(
            "llama-mini-json", "target", ModelShape(hidden=128, layers=4, heads=4, kv_heads=2, intermediate=384),
            Fit(steps=6000, share=0.6, batch_tokens=49_152, peak_rate=4e-3, warmup=200), seed=14, form="json",
        ),
        Recipe(
            "llama-mini-json-eagle3", "eagle3",
            ModelShape(hidden=96, layers=1, heads=3, kv_heads=1, intermediate=256),
            Fit(steps=953, share=0.4, batch_tokens=24_576, peak_rate=4e-3, prompt_weight=0.0),
            seed=15, target="llama-mini-json", aux_layers=(0, 1, 2), draft_vocab=320, unroll=7, form="json",
        ),
    )
}  # fmt: skip


def smoke(recipe: Recipe) -> Recipe:
    """The same recipe cut down to a few optimiser steps, for tests on a CPU."""
    short = {"steps": 6, "batch_tokens": 2048, "warmup": 2}
    again = None if recipe.bundled_fit is None else replace(recipe.bundled_fit, **short)
    return replace(recipe, fit=replace(recipe.fit, **short), bundled_fit=again)


SMOKE_DATA: Final = replace(
    DATA,
    train_problems=400,
    distill_problems=48,
    test_problems=24,
    heldout_problems=8,
    level_problems=4,
    answer_limit=12,
)
