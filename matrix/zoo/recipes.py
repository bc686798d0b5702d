"""Frozen recipes: all settings that determine a checkpoint, from data/recipes.json."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

# The fields of a model's config.json as attributes.
Shape: TypeAlias = SimpleNamespace


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
    """DFLASH2's part of `dflash_config`: taps of the convolutions, channels of a group; rank of the selector,
    candidates of a draft."""

    conv_kernel_size: int
    conv_group_size: int
    selector_rank: int
    selector_top_k: int


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

    kind: "target", "standalone", "eagle", "eagle3", "dflash" or "dspark". config: the fields of its config.json, but
    for those of a draft (`config_json.config_of`).
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
    config: dict[str, Any]
    fit: Fit
    seed: int
    target: str | None = None
    aux_layers: tuple[int, ...] = ()
    draft_vocab: int = 0
    unroll: int = 0
    block: int = 0
    dflash2: Dflash2Parts | None = None
    heads: BlockHeads | None = None
    mask_id: int = 0
    bundled_fit: Fit | None = None
    form: str = "worked"
    parallel: bool = False
    base: str = ""
    problems: int = 0

    @property
    def shape(self) -> Shape:
        """What a net is built from."""
        return Shape(**self.config)


DATA: Final = Data()


def _built(kind: Any, given: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any dataclass of this file
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


# Plain JSON, so that an engine in an environment of its own reads it too.
_TABLE: Final[dict[str, Any]] = json.loads(
    Path(__file__).with_name("data").joinpath("recipes.json").read_text(encoding="utf-8")
)


def _recipe(name: str, layout: str, config: dict[str, Any], **given: Any) -> Recipe:  # noqa: ANN401 - of any field
    kinds = {"fit": Fit, "bundled_fit": Fit, "dflash2": Dflash2Parts, "heads": BlockHeads}
    parts = {part: _built(kind, given[part]) for part, kind in kinds.items() if part in given}
    found: Recipe = _built(Recipe, {**given, **parts, "name": name, "config": _TABLE["layouts"][layout] | config})
    return found


RECIPES: Final[dict[str, Recipe]] = {name: _recipe(name, **given) for name, given in _TABLE["recipes"].items()}


def smoke(recipe: Recipe) -> Recipe:
    """The same recipe cut down to a few optimiser steps, for tests on a CPU."""
    short = {"steps": 6, "batch_tokens": 2048, "warmup": 2}
    again = None if recipe.bundled_fit is None else replace(recipe.bundled_fit, **short)
    return replace(recipe, fit=replace(recipe.fit, **short), bundled_fit=again, problems=0)


SMOKE_DATA: Final = replace(DATA, **_TABLE["smoke_data"])
