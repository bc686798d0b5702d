"""The memory requirements of a pair, computed from the published configurations by the engine's own resolution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from specmatrix.engine.core.config.asked import GIB, Resolved
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.matrix.zoo.published.models import Published
from specmatrix.matrix.zoo.published.pairs import ModelPair
from specmatrix.matrix.zoo.published.size import bundled, held, stored

if TYPE_CHECKING:  # a runtime import would import torch
    from specmatrix.engine.models.config import ModelConfig

Configs: TypeAlias = "Mapping[str, ModelConfig]"
# bfloat16, which every pair runs in.
BYTES: Final = 2
# An allowance for what is not computed: CUDA, graphs, the activations of the widest step, and copies during loading.
SPARE: Final = 4 * GIB


@dataclass(frozen=True, slots=True)
class Needs:
    """Sizes in bytes. disk: the files. target, draft: the loaded models. token: KV of one token in both.

    kv: of all `tokens` that the engine reserves. loading: the target's full checkpoint before its conversion to the
    engine's layout. total: required GPU memory, including SPARE.
    """

    disk: int
    target: int
    draft: int
    token: int
    tokens: int
    kv: int
    loading: int

    @property
    def total(self) -> int:
        return max(self.loading, self.target + self.draft + self.kv) + SPARE

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {name: getattr(self, name) for name in (*self.__slots__, "total")} | {"spare": SPARE}


def config_of(model: Published) -> ModelConfig:
    """The model configuration from a published config.json. ConfigError if the engine cannot run it."""
    from specmatrix.engine.models.config import read_model_config

    return read_model_config(model.config, Path(model.repo) / "config.json")


def resolved(pair: ModelPair, configs: Configs | None = None) -> Resolved:
    """The resolution on one GPU. configs: model configurations read from files; default: the published ones."""
    from specmatrix.engine.models.loader import facts_of

    target, draft = _both(pair, configs)
    return resolve(pair.config, facts_of(target, draft, "cuda", 1))


def needs(pair: ModelPair, configs: Configs | None = None) -> Needs:
    """The memory requirements of a pair with its start configuration; configs as in `resolved`."""
    target, draft = _both(pair, configs)
    start = resolved(pair, configs)
    tokens = start.max_total_tokens
    near = sum(window is not None for window in target.windows)
    layer = BYTES * target.kept_numbers()
    kept, drafted = 0, 0
    if draft is not None:
        kept, drafted = held(draft, target), draft.num_layers * draft.kept_numbers()
    elif pair.algorithm == "NEXTN":
        kept, drafted = bundled(target), target.bundled_layers * target.kept_numbers()
    files = stored(target) + (0 if draft is None else stored(draft, target.num_layers))
    everywhere = (target.num_layers - near) * layer + BYTES * drafted
    return Needs(
        disk=BYTES * files,
        target=BYTES * held(target),
        draft=BYTES * kept,
        token=everywhere + near * layer,
        tokens=tokens,
        kv=tokens * everywhere + start.window_pages * start.page_size * near * layer,
        loading=BYTES * stored(target),
    )


def _both(pair: ModelPair, configs: Configs | None) -> tuple[ModelConfig, ModelConfig | None]:
    known = configs or {name: config_of(model) for name, model in pair.models.items()}
    return known[pair.target], None if pair.draft is None else known[pair.draft]
