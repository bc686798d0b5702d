"""From a resolved configuration to a running loop: the one place where the parts are put together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from engine.core.algorithm import algorithm
from engine.core.config import Facts, Resolved
from engine.core.ledger import Ledger
from engine.core.prefix import PrefixCache
from engine.core.probes import Probes
from engine.core.schedule import Scheduler
from engine.device.pool import KVPool
from engine.device.relay import Relay
from engine.device.staging import StagingRing
from engine.device.table import SlotTable
from engine.launch import DeviceExecutor, InFlight
from engine.loop import Loop
from engine.models.llama import Llama
from engine.models.loader import load_draft, load_target
from engine.models.tokenizer import Detokenizer, Tokenizer
from engine.spec.autoregressive import AutoregressiveDrafter
from engine.spec.drafter import Drafter
from engine.spec.plain import PlainDrafter

Locate = Callable[[str], Path]


def build(resolved: Resolved, facts: Facts, tokenizer: Tokenizer, locate: Locate) -> Loop[InFlight]:
    """Load the models and wire ledger, scheduler, executor and loop. ConfigError on a bad checkpoint."""
    device, dtype = torch.device(resolved.device), getattr(torch, resolved.dtype)
    slack = (resolved.lag + 1) * resolved.num_draft_tokens
    positions = resolved.context_length + slack
    target = load_target(locate(resolved.model_path), resolved.device, dtype, resolved.enable_deterministic_inference)
    drafter, draft_pools = _drafter(resolved, facts, target, locate)
    probes = Probes()
    ledger = Ledger(resolved.num_pages, resolved.page_size, strict=resolved.strict_memory == 2)
    cache = PrefixCache(ledger, drafter.traits.key_span, resolved.radix_cache)
    scheduler = Scheduler(
        ledger,
        cache,
        probes,
        max_running=resolved.max_running_requests,
        width=drafter.nodes,
        slack=slack,
        chunk=resolved.chunked_prefill_size,
        context_length=resolved.context_length,
    )
    rows = resolved.max_running_requests + 1
    table_width = -(-positions // resolved.page_size) * resolved.page_size
    executor = DeviceExecutor(
        target,
        drafter,
        (_pool(resolved, target, device, dtype, resolved.kv_stamps), *draft_pools),
        SlotTable(rows, table_width, resolved.page_size, device, resolved.kv_stamps),
        Relay(rows, drafter.topk, drafter.carry, dtype, device),
        StagingRing(resolved.lag, device),
    )
    return Loop(
        scheduler,
        executor,
        probes,
        lag=resolved.lag,
        eos_ids=tokenizer.eos_ids,
        text_stream=lambda: Detokenizer(tokenizer),
        strict_memory=resolved.strict_memory,
    )


def _drafter(resolved: Resolved, facts: Facts, target: Llama, locate: Locate) -> tuple[Drafter, tuple[KVPool, ...]]:
    traits = algorithm(resolved.algorithm)
    if not traits.drafts:
        return PlainDrafter(), ()
    assert resolved.draft_path is not None and facts.draft is not None
    device, dtype = torch.device(resolved.device), getattr(torch, resolved.dtype)
    model = load_draft(
        locate(resolved.draft_path),
        traits.name,
        target,
        resolved.device,
        dtype,
        resolved.enable_deterministic_inference,
    )
    pool = _pool(resolved, model, device, dtype, stamps=False)
    drafter = AutoregressiveDrafter(
        traits,
        model,
        pool,
        steps=resolved.num_steps,
        topk=resolved.topk,
        nodes=resolved.num_draft_tokens,
        capture=facts.draft.aux_layers,
    )
    return drafter, (pool,)


def _pool(resolved: Resolved, model: Llama, device: torch.device, dtype: torch.dtype, stamps: bool) -> KVPool:
    return KVPool(
        model.num_layers,
        resolved.num_pages + 1,
        resolved.page_size,
        model.num_kv_heads,
        model.head_dim,
        dtype,
        device,
        stamps=stamps,
        deterministic=resolved.enable_deterministic_inference,
    )
