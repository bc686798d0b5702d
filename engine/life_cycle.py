"""Releases and resumes an idle engine's device memory, and updates its weights, as SGLang's calls of the same names.

The scheduler, its ledger, the counters and the journal are kept; everything on the device is rebuilt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

import torch

from specmatrix.engine.build import EngineSetup, known_facts, rebuild
from specmatrix.engine.core.config.asked import EngineConfig, Facts, Resolved
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.engine.device_step import DeviceExecutor, InFlight, ReleasedExecutor
from specmatrix.engine.loop import Loop
from specmatrix.engine.spec.drafter import Drafter
from specmatrix.errors import ConfigError, RequestError, shown

# SGLang's tags of the memory that an engine may release.
TAGS: Final = ("kv_cache", "weights", "cuda_graph")
# Fields of Resolved that may differ for other weights.
PATHS: Final = ("model_path", "draft_path", "reasons")


@dataclass(eq=False)
class LifeCycle:
    """Memory and weight operations on one loop; callers must guard them. config, facts, resolved: the engine's."""

    loop: Loop[InFlight]
    config: EngineConfig
    facts: Facts
    resolved: Resolved
    setup: EngineSetup
    released: bool = False
    _kept: Drafter | None = None

    def release(self, tags: Sequence[str] | None) -> None:
        """Free all device memory and the weights. RequestError unless the engine is idle and all tags are given."""
        _whole(tags)
        if self.released:
            raise RequestError("the engine's memory is released already; allowed next: resume_memory_occupation")
        self._empty("release_memory_occupation")
        self._drop()

    def resume(self, tags: Sequence[str] | None) -> None:
        """Reload the weights and reallocate the memory. RequestError if nothing is released; ConfigError if the
        checkpoint or the memory is no longer available, in which case the memory stays released."""
        _whole(tags)
        if not self.released:
            raise RequestError("the engine's memory is not released; allowed first: release_memory_occupation")
        self._take(self.config, self.facts, self.resolved)

    def update(self, model_path: str, draft_model_path: str | None) -> None:
        """Load other weights of the same shape: the target's from `model_path`, the draft's from `draft_model_path`, by
        default from its current path. ConfigError if they cannot run; the engine then keeps its weights."""
        self._empty("update_weights_from_disk")
        if self.released:
            raise RequestError("the engine's memory is released; allowed first: resume_memory_occupation")
        config = self._with_paths(model_path, draft_model_path)
        facts = known_facts(config, self.setup.locate)
        resolved = resolve(config, facts)
        for field in fields(Resolved):
            old, new = getattr(self.resolved, field.name), getattr(resolved, field.name)
            if old != new and field.name not in PATHS:
                raise ConfigError(
                    f"model_path {shown(model_path)} resolves to {field.name} {shown(new)} instead of {shown(old)}; "
                    "weights of another shape need their own engine"
                )
        if facts.tokenizer_hash != self.facts.tokenizer_hash:
            raise ConfigError(f"model_path {shown(model_path)} has another tokenizer, which needs its own engine")
        old = self.config, self.facts, self.resolved
        self._drop()
        try:
            self._take(config, facts, resolved)
        except ConfigError:
            self._take(*old)
            raise

    def _with_paths(self, model_path: str, draft_model_path: str | None) -> EngineConfig:
        draft = self.config.speculative_draft_model_path
        for name, path, absent in (("model_path", model_path, ""), ("draft_model_path", draft_model_path, None)):
            if (path != absent and not isinstance(path, str)) or path == "":
                raise RequestError(f"{name} is {shown(path)}; allowed: a model's name or folder")
        if draft_model_path is not None and draft is None:
            raise RequestError("draft_model_path is given, but the engine has no draft model; allowed: none")
        return replace(self.config, model_path=model_path, speculative_draft_model_path=draft_model_path or draft)

    def _empty(self, verb: str) -> None:
        """Empty the prefix cache. RequestError if requests run, or sessions hold KV."""
        scheduler = self.loop.scheduler
        running = len(scheduler.waiting) + len(scheduler.active)
        if running or self.loop.busy:
            raise RequestError(
                f"{verb} needs an idle engine, but {max(1, running)} of its requests are running or queued; wait for "
                "their end or abort them"
            )
        if scheduler.ledger.accounts:
            raise RequestError(
                f"{verb} needs an engine without sessions that hold KV, but {len(scheduler.ledger.accounts)} of them "
                "do; close them first"
            )
        scheduler.cache.evict(len(scheduler.cache.nodes))

    def _drop(self) -> None:
        executor = self.loop.executor
        assert isinstance(executor, DeviceExecutor)
        # A drafter that reads host tokens has no device memory, so it is kept.
        self._kept = executor.drafter if executor.drafter.traits.reads_host else None
        self.loop.executor = ReleasedExecutor()
        self.released = True
        del executor
        if self.resolved.device == "cuda":
            torch.cuda.empty_cache()

    def _take(self, config: EngineConfig, facts: Facts, resolved: Resolved) -> None:
        self.loop.executor = rebuild(self.loop, resolved, facts, self.setup, self._kept)
        self.config, self.facts, self.resolved = config, facts, resolved
        self.released, self._kept = False, None


def _whole(tags: Sequence[str] | None) -> None:
    if tags is not None and (isinstance(tags, str) or not isinstance(tags, Sequence) or set(tags) != set(TAGS)):
        raise RequestError(f"tags is {shown(tags)}; allowed: all of {', '.join(TAGS)} together, or none for the same")
