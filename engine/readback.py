"""The running configuration, read from the running components."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from specmatrix.engine.core.config.asked import GIB
from specmatrix.engine.core.draft.ngram_index import NgramOptions
from specmatrix.engine.core.draft.suffix_tree import SuffixOptions
from specmatrix.engine.core.schedule.session import Sessions
from specmatrix.engine.device_step import DeviceExecutor, InFlight
from specmatrix.engine.loop import Loop
from specmatrix.engine.spec.drafter import Drafter
from specmatrix.engine.spec.ngram import SuffixDrafter


def running(loop: Loop[InFlight], sessions: Sessions, owned: int) -> dict[str, Any]:
    """`LLM.readback` of an engine whose memory is not released. owned: number of requests owned by a call."""
    scheduler, executor = loop.scheduler, loop.executor
    assert isinstance(executor, DeviceExecutor)
    drafter, steps, pool = executor.drafter, scheduler.steps, executor.kv.full.pool
    groups, states, table = scheduler.ledger.groups, executor.kv.states, executor.kv.full.table
    shown = {
        "algorithm": drafter.traits.name,
        "num_steps": steps.initial if steps.adapts else drafter.steps,
        "topk": max(drafter.topk, 1) if drafter.traits.drafts else 0,
        "num_draft_tokens": steps.initial + 1 if steps.adapts else drafter.nodes,
        "adaptive_slots": [slot.as_dict() for slot in steps.slots] if steps.adapts else [],
        "lag": loop.lag,
        "speculative_ragged_verify": scheduler.ragged and executor.plain.ragged,
        "speculative_confidence_threshold": getattr(drafter, "threshold", 0.0),
        "speculative_dspark_verify_mode": "cap-accept" if getattr(drafter, "budgeted", False) else "static",
        "speculative_constrained_drafts": getattr(drafter, "constrained", False),
        "disable_grammar_tables": not executor.plain.masks.tabled,
        "page_size": scheduler.ledger.page_size,
        "num_pages": groups[0].num_pages,
        "radix_cache": scheduler.cache.enabled,
        "chunked_prefill_size": scheduler.chunk,
        "enable_mixed_chunk": scheduler.mixed,
        "max_running_requests": scheduler.max_running,
        "context_length": scheduler.context_length,
        "dtype": _name(pool.data.dtype),
        "device": pool.data.device.type,
        "enable_streaming_session": sessions.streaming,
        "enable_multi_layer_eagle": getattr(drafter, "layer_per_step", False),
        "parallel_drafting": getattr(drafter, "parallel", False),
        **_lookups(drafter),
        "strict_memory": loop.strict_memory,
        "kv_stamps": pool.stamps is not None,
        "state_interval": 0 if states is None or states.interval == table.positions else states.interval,
        "window": executor.kv.groups[-1].window,
        "window_pages": sum(
            group.num_pages
            for group, on_device in zip(groups, executor.kv.groups, strict=True)
            if on_device.window is not None
        ),
        "enable_deterministic_inference": pool.deterministic,
        "row_invariant_matmul": executor.target.row_form,
        "cuda_graph_max_bs": 0 if executor.graphs is None else executor.graphs.max_batch,
        "tp_size": executor.ranks.size,
        "alive": {**loop.alive(), **sessions.alive(), "owned": owned},
        "workers": _workers(executor),
    }
    if steps.adapts:
        shown["adaptive"] = {
            "steps": steps.steps,
            "activated": steps.activated,
            "rounds": [activation._asdict() for activation in steps.rounds],
            "trace": [record._asdict() for record in steps.trace],
        }
    if executor.graphs is not None:
        shown["graphs"], shown["graph_bytes"] = executor.graphs.memory
        shown["cuda_graph_max_gb"] = executor.graphs.bundles.max_bytes // GIB
        shown["graph_widths"] = {width: bundle.count for width, bundle in executor.graphs.bundles}
    return shown


def _workers(executor: DeviceExecutor) -> dict[str, dict[str, Any]]:
    """Options of the target, the draft and every KV pool; each must match the resolved configuration."""
    drafter, target = executor.drafter, executor.target
    drafts = getattr(drafter, "layers", None) or [getattr(drafter, "model", None)]
    workers = {"target": {"dtype": _name(target.dtype), "enable_deterministic_inference": target.deterministic}}
    for number, draft in enumerate(draft for draft in drafts if hasattr(draft, "dtype")):
        norm = getattr(draft, "norm", None) or getattr(getattr(draft, "model", None), "norm", None)
        workers[f"draft {number}"] = {"dtype": _name(draft.dtype)}
        if norm is not None:
            workers[f"draft {number}"]["enable_deterministic_inference"] = norm.own.rows is not None
    for number, pool in enumerate(executor.kv.full.pools):
        workers[f"KV pool {number}"] = {
            "dtype": _name(pool.data.dtype),
            "enable_deterministic_inference": pool.deterministic,
            "page_size": pool.page_size,
        }
    return workers


def _lookups(drafter: Drafter) -> dict[str, Any]:
    """Options of a drafter that looks tokens up, and the bytes that suffix decoding's trees may take."""
    options = getattr(drafter, "options", None)
    ngram, suffix = (asdict(options) if isinstance(options, kind) else None for kind in (NgramOptions, SuffixOptions))
    size = {"suffix_bytes": drafter.cache.size} if isinstance(drafter, SuffixDrafter) else {}
    return {"ngram": ngram, "suffix": suffix, **size}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
