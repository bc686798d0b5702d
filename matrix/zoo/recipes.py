"""Frozen recipes: all settings that determine a checkpoint, from data/recipes.json."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final


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
class Dflash2Parts:
    """DFLASH2: taps of the convolutions, channels of a group; rank of the selector, candidates of a draft."""

    taps: int
    group: int
    rank: int
    candidates: int


@dataclass(frozen=True, slots=True)
class BlockHeads:
    """DSPARK's heads: the Markov head's kind ("vanilla", "gated", "rnn") and rank; whether a block's known token
    predicts the first draft."""

    kind: str
    rank: int
    from_anchor: bool = True


@dataclass(frozen=True, slots=True)
class Recipe:
    """A checkpoint of the zoo.

    kind: "target", "standalone", "eagle", "eagle3", "dflash" or "dspark"; family: layout ("llama", "qwen3", "deepseek",
    "mistral", "qwen3_next", "qwen3_5").
    aux_layers: target layers whose outputs a draft reads. draft_vocab: 0 for the target's own head and embedding.
    unroll: draft steps of the training-time test. block: of DFLASH and DSPARK, one more than the drafts; dflash2: of
    DFLASH2; heads: of DSPARK; mask_id: their mask token, and of a draft that is `parallel` (P-EAGLE, PARD). base: the
    draft whose weights a fit starts from. problems: how many of the distillation problems it uses, 0 for all.
    bundled_fit: second optimisation of a target with MTP layers, which trains these on the target's own answers with
    the target frozen. form: of the answers, GSM8K's "worked" lines or "json" (`gsm_mini.in_form`); a draft has its
    target's.
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
    dflash2: Dflash2Parts | None = None
    heads: BlockHeads | None = None
    mask_id: int = 0
    bundled_fit: Fit | None = None
    form: str = "worked"
    parallel: bool = False
    base: str = ""
    problems: int = 0


DATA: Final = Data()

# The shapes of targets in layouts other than Llama's.
SHAPES: Final = {"deepseek": LatentShape, "qwen3_next": HybridShape, "qwen3_5": HybridShape}


def _built(kind: Any, given: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any dataclass of this file
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


def _recipe(name: str, given: Mapping[str, Any]) -> Recipe:
    shape = SHAPES.get(given.get("family", ""), ModelShape)
    kinds = {"shape": shape, "fit": Fit, "bundled_fit": Fit, "dflash2": Dflash2Parts, "heads": BlockHeads}
    parts = {part: _built(kind, given[part]) for part, kind in kinds.items() if part in given}
    found: Recipe = _built(Recipe, {**given, **parts, "name": name})
    return found


# Plain JSON, so that an engine in an environment of its own reads it too.
_TABLE: Final[dict[str, Any]] = json.loads(
    Path(__file__).with_name("data").joinpath("recipes.json").read_text(encoding="utf-8")
)
RECIPES: Final = {name: _recipe(name, given) for name, given in _TABLE.items()}


def smoke(recipe: Recipe) -> Recipe:
    """The same recipe cut down to a few optimiser steps, for tests on a CPU."""
    short = {"steps": 6, "batch_tokens": 2048, "warmup": 2}
    again = None if recipe.bundled_fit is None else replace(recipe.bundled_fit, **short)
    return replace(recipe, fit=replace(recipe.fit, **short), bundled_fit=again, problems=0)


SMOKE_DATA: Final = replace(
    DATA,
    train_problems=400,
    distill_problems=48,
    test_problems=24,
    heldout_problems=8,
    level_problems=4,
    answer_limit=12,
)
