"""Builds a running loop from a resolved configuration: the only place that wires components together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch

from specmatrix.engine import device_step
from specmatrix.engine.adaptive_policies import installed_policies, policy_of
from specmatrix.engine.core.config.adaptive_file import inline
from specmatrix.engine.core.config.asked import GIB, EngineConfig, Facts, Resolved
from specmatrix.engine.core.draft.algorithms import algorithm, is_registered
from specmatrix.engine.core.draft.depth import DraftSteps
from specmatrix.engine.core.draft.verify_budget import COSTS, VerifyBudget
from specmatrix.engine.core.memory.groups import page_groups
from specmatrix.engine.core.memory.ledger import Ledger
from specmatrix.engine.core.memory.prefix_cache import PrefixCache
from specmatrix.engine.core.observe.rank_agreement import StepDigest
from specmatrix.engine.core.observe.step_counter import Counters
from specmatrix.engine.core.schedule.scheduler import Scheduler
from specmatrix.engine.core.schedule.step import StepPlan
from specmatrix.engine.device import kv_groups
from specmatrix.engine.device.collectives import Ranks
from specmatrix.engine.device.cuda_graphs import CudaGraphs, HostWork
from specmatrix.engine.device.grammar_masks import CompiledGrammars, GrammarMasks
from specmatrix.engine.device.kv_groups import KVGroup, KVGroups, StateGroup, WindowGroup, routes_of, split
from specmatrix.engine.device.logit_rules import LogitRules
from specmatrix.engine.device.pool import StatePool
from specmatrix.engine.device.slot_table import SlotTable
from specmatrix.engine.device.staging import StagingRing
from specmatrix.engine.device.sync_counter import SyncCounter
from specmatrix.engine.device_step import DeviceExecutor, DeviceStep, InFlight, RankDigest, Step, StepRunner
from specmatrix.engine.loop import Loop
from specmatrix.engine.memory_budget import afford
from specmatrix.engine.models.causal_lm import CausalLM
from specmatrix.engine.models.loader import facts, load_target
from specmatrix.engine.models.tokenizer import Detokenizer, Tokenizer
from specmatrix.engine.spec import builders
from specmatrix.engine.spec.builders import BuildContext, Locate, build_drafter, located, named_text, new_pool
from specmatrix.engine.spec.drafter import AgreedDrafts, Drafter, DraftHooks
from specmatrix.engine.spec.guard import Guard
from specmatrix.errors import ConfigError, shown

__all__ = ["EngineSetup", "Locate", "build", "known_facts", "located", "rebuild"]


@contextmanager
def _own_settings() -> Iterator[None]:
    """Within the context the caller's default device (perhaps `meta`) and autocast have no effect."""
    with torch.device("cpu"), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        yield


@_own_settings()
def known_facts(config: EngineConfig, locate: Locate) -> Facts:
    """Facts about the requested models and the machine. Raises ConfigError on a bad folder or an unreadable file."""
    if not isinstance(config, EngineConfig):
        raise ConfigError(f"config is {shown(config)}; allowed: an EngineConfig, such as EngineConfig(model_path=...)")
    locate, draft = located(locate), config.speculative_draft_model_path
    known = facts(locate(config.model_path), None if draft is None else locate(draft), config.device)
    if not config.speculative_adaptive:
        return known
    return replace(known, adaptive_config=_slots_text(config), adaptive_policies=tuple(installed_policies()))


def _slots_text(config: EngineConfig) -> str | None:
    """The text of the adaptive configuration file; None if none is named. ConfigError if it is unreadable."""
    name = config.speculative_adaptive_config
    return None if name is None or inline(name) else named_text("speculative_adaptive_config", name)


class EngineSetup(NamedTuple):
    """Parts of an engine that its configuration does not determine.

    locate: maps a model's name to its folder. ranks: the ranks that share the target. publish: receives this rank's
    step digests for comparison; None if nothing is compared. grammars: the compiled grammars of live requests.
    """

    tokenizer: Tokenizer
    locate: Locate
    ranks: Ranks
    publish: Callable[[StepDigest], None] | None
    grammars: CompiledGrammars


@_own_settings()
def build(resolved: Resolved, facts: Facts, setup: EngineSetup) -> Loop[InFlight]:
    """Load the models and wire ledger, scheduler, executor and loop.

    Raises ConfigError on a bad checkpoint, or if the engine would not fit into memory.
    """
    tokenizer, _, ranks, publish, _ = setup
    context = _loaded(resolved, facts, setup)
    drafter = build_drafter(context)
    counters = Counters()
    groups = page_groups(
        resolved.num_pages,
        resolved.page_size,
        resolved.window,
        resolved.window_pages,
        resolved.overrun,
        resolved.states if facts.recurrent else 0,
        resolved.state_tokens // resolved.page_size,
    )
    ledger = Ledger(*groups, strict=resolved.strict_memory == 2)
    cache = PrefixCache(ledger, drafter.key_span, resolved.radix_cache)
    scheduler = Scheduler(
        ledger,
        cache,
        counters,
        max_running=resolved.max_running_requests,
        steps=_steps(resolved, drafter, counters),
        overrun=resolved.overrun,
        chunk=resolved.chunked_prefill_size,
        context_length=resolved.context_length,
        host_tokens=drafter.traits.reads_host,
        ragged=resolved.speculative_ragged_verify,
        topk=drafter.topk,
        mixed=resolved.enable_mixed_chunk,
        budget=_budget(resolved),
    )
    observers = [] if publish is None else [RankDigest(ledger, publish, counters)]
    return Loop(
        scheduler,
        _executor(context, drafter, scheduler, setup),
        counters,
        lag=resolved.lag,
        eos_ids=tokenizer.eos_ids,
        text_stream=lambda: Detokenizer(tokenizer),
        strict_memory=resolved.strict_memory,
        isolates=ranks.size == 1,
        observers=observers,
    )


@_own_settings()
def rebuild(
    loop: Loop[InFlight], resolved: Resolved, facts: Facts, setup: EngineSetup, drafter: Drafter | None
) -> DeviceExecutor:
    """Load the models again, with new device buffers, for a loop without requests, sessions and cached pages.

    drafter: the drafter to keep, None to build a new one. ConfigError as for `build`, with the loop unchanged.
    """
    context = _loaded(resolved, facts, setup)
    drafter = build_drafter(context) if drafter is None else drafter
    return _executor(context, drafter, loop.scheduler, setup)


def _loaded(resolved: Resolved, facts: Facts, setup: EngineSetup) -> BuildContext:
    """Load the target's weights, after checking that the whole engine fits into memory."""
    tokenizer, locate, ranks = setup[:3]
    afford(resolved, locate, ranks.size)
    target = load_target(
        locate(resolved.model_path),
        resolved.device,
        getattr(torch, resolved.dtype),
        resolved.enable_deterministic_inference,
        ranks,
        resolved.positions,
    )
    kv = _kv(resolved, target)
    return BuildContext(algorithm(resolved.algorithm), resolved, facts, target, kv, locate, tokenizer)


def _executor(context: BuildContext, drafter: Drafter, scheduler: Scheduler, setup: EngineSetup) -> DeviceExecutor:
    """Build the executor and its stack of steps, DeviceStep innermost. With `publish`, results include draft tokens."""
    resolved, device, ranks, audited = context.resolved, context.device, setup.ranks, setup.publish is not None
    relay = builders.build_relay(context.traits, _rows(resolved), drafter, device)
    guard = _guard(resolved, drafter, context.target, scheduler.steps)
    hooks: DraftHooks = guard or drafter
    agreed = AgreedDrafts(hooks, ranks)
    rules = LogitRules(context.target.vocab_size, setup.tokenizer.eos_ids, _rows(resolved), resolved.positions, device)
    graphs = graphs_for(resolved, device, scheduler.counters)
    on_host = _at_once if graphs is None else graphs.on_host
    size, tabled = (_rows(resolved), context.target.vocab_size), not resolved.disable_grammar_tables
    masks = GrammarMasks(setup.grammars, size, scheduler.counters, on_host, device, tabled, ranks)
    hooks = agreed if audited or ranks.size > 1 else hooks
    rule, ragged = resolved.speculative_acceptance, resolved.speculative_ragged_verify
    plain = DeviceStep(context.target, hooks, drafter.capture, context.kv, relay, rules, masks, ranks, rule, ragged)
    step: Step = plain
    if guard is not None:
        step = device_step.GuardedStep(step, guard)
    if audited:
        step = device_step.AuditedStep(step, agreed)
    return DeviceExecutor(
        plain,
        step,
        StepRunner(step, plain, graphs),
        StagingRing(resolved.lag, device),
        drafter=drafter,
        guard=guard,
        around=SyncCounter(graphs) if graphs is not None and resolved.strict_memory else None,
    )


def _at_once(work: HostWork, plan: StepPlan) -> None:
    """The host's work in a round without CUDA graphs."""
    work(plan)


def _kv(resolved: Resolved, target: CausalLM) -> KVGroups:
    """The target's groups: layers without and with a sliding window, and recurrent ones. All windowed layers have the
    same window."""
    windows = [target.window_of(layer) for layer in range(target.num_layers)]
    routes = routes_of(windows)
    groups = []
    pages_of = [resolved.num_pages, *([] if resolved.window is None else [resolved.window_pages])]
    for layout, pages in zip(split(target.kv, routes), pages_of, strict=False):
        pool = new_pool(resolved, layout, pages, resolved.kv_stamps)
        table = SlotTable(
            _rows(resolved), resolved.positions, resolved.page_size, torch.device(resolved.device), resolved.kv_stamps
        )
        groups.append(WindowGroup(pool, table, resolved.window or 0) if groups else KVGroup(pool, table))
    states = None if target.state is None else _states(resolved, target, groups[0].table)
    return (kv_groups.StampedGroups if resolved.kv_stamps else KVGroups)(groups, routes, states)


def _states(resolved: Resolved, target: CausalLM, writers: SlotTable) -> StateGroup:
    """The group of recurrent layers: the states' slots, and node slots for each row of the widest round."""
    assert target.state is not None
    slots, rows, width = resolved.states, _rows(resolved), resolved.max_draft_tokens
    device, interval = torch.device(resolved.device), resolved.state_tokens
    pool = StatePool(target.state, 1 + slots + rows * width, target.dtype, device, resolved.kv_stamps)
    table = SlotTable(rows, -(-resolved.positions // interval), 1, device, stamps=False)
    return StateGroup(pool, table, writers, slots, width, interval)


def _budget(resolved: Resolved) -> VerifyBudget | None:
    """The budget of verified drafts; None without a table of rates. ConfigError if its file is unreadable or wrong."""
    path = resolved.speculative_dspark_sps_table_path
    return None if path is None else VerifyBudget.parse(named_text(COSTS, path))


def _rows(resolved: Resolved) -> int:
    """Rows of the device tables: one per running request, and row 0 for padding."""
    return resolved.max_running_requests + 1


def graphs_for(resolved: Resolved, device: torch.device, counters: Counters) -> CudaGraphs | None:
    """The CUDA graphs of verify rounds, within their memory limit."""
    if not resolved.cuda_graph_max_bs:
        return None
    return CudaGraphs(resolved.cuda_graph_max_bs, device, counters, max_bytes=resolved.cuda_graph_max_gb * GIB)


def _guard(resolved: Resolved, drafter: Drafter, target: CausalLM, steps: DraftSteps) -> Guard | None:
    """The guard of a drafter: registered drafters are always checked, built-in ones only under strict_memory."""
    registered = is_registered(resolved.algorithm)
    if not (resolved.strict_memory or registered):
        return None
    return Guard(drafter, target.vocab_size, steps.stop, not registered, resolved.speculative_acceptance != "match")


def _steps(resolved: Resolved, drafter: Drafter, counters: Counters) -> DraftSteps:
    """The controller of draft depth: adaptive, or static at the drafter's depth."""
    if resolved.adaptive_slots:
        slots, first = resolved.adaptive_slots, resolved.num_steps
        policy, graph_batch = policy_of(slots, first), resolved.cuda_graph_max_bs
        return DraftSteps(slots, first, counters, policy=policy, graph_batch=graph_batch)
    return DraftSteps.static(drafter.steps, drafter.nodes, counters)
