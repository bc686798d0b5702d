"""Frozen recipes: everything that decides what a checkpoint is."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a Llama-layout model (or of the EAGLE3 head, which has one layer)."""

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


@dataclass(frozen=True, slots=True)
class Data:
    """gsm-mini as the models see it: seed, weights of the levels in training and in the tests, sizes of the splits."""

    seed: int = 20260
    mix: tuple[float, ...] = (0.08, 0.17, 0.25, 0.25, 0.15, 0.10)
    test_mix: tuple[float, ...] = (0.05, 0.10, 0.10, 0.25, 0.35, 0.15)
    train_problems: int = 700_000
    distill_problems: int = 120_000
    tokenizer_problems: int = 20_000
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
    """A checkpoint of the zoo; `kind` is "target", "standalone" or "eagle3"."""

    name: str
    kind: str
    shape: Shape
    fit: Fit
    seed: int
    target: str | None = None
    aux_layers: tuple[int, ...] = ()
    draft_vocab: int = 0
    unroll: int = 0


DATA = Data()

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "llama-mini", "target", Shape(hidden=128, layers=4, heads=4, kv_heads=2, intermediate=384),
            Fit(steps=6264, share=0.40, batch_tokens=49_152, peak_rate=4e-3, warmup=200), seed=1,
        ),
        Recipe(
            "llama-mini-standalone", "standalone", Shape(hidden=64, layers=2, heads=2, kv_heads=1, intermediate=160),
            Fit(steps=2693, share=0.15, batch_tokens=49_152, peak_rate=6e-3), seed=2, target="llama-mini",
        ),
        Recipe(
            "llama-mini-eagle3", "eagle3", Shape(hidden=96, layers=1, heads=3, kv_heads=1, intermediate=256),
            Fit(steps=1145, share=0.25, batch_tokens=24_576, peak_rate=4e-3, prompt_weight=0.0),
            seed=3, target="llama-mini",
            aux_layers=(0, 1, 2), draft_vocab=320, unroll=7,
        ),
    )
}  # fmt: skip


def smoke(recipe: Recipe) -> Recipe:
    """The same recipe cut down to a few optimiser steps, for tests on a CPU."""
    return replace(recipe, fit=replace(recipe.fit, steps=6, batch_tokens=2048, warmup=2))


SMOKE_DATA = replace(
    DATA,
    train_problems=400,
    distill_problems=48,
    test_problems=24,
    heldout_problems=8,
    level_problems=4,
    answer_limit=12,
)
