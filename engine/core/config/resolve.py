"""From the requested to the resolved configuration: pure, total, every value before any decision that depends on it."""

from dataclasses import fields
from itertools import chain
from typing import Any, Final

from specmatrix.engine.core.config.asked import AUTO, UNASKED, EngineConfig, Facts, Reason, Resolved, Rewrite
from specmatrix.engine.core.config.context import RuleContext
from specmatrix.engine.core.config.defaults import DEFAULTS, default_for
from specmatrix.engine.core.config.rules.adaptive import table_reasons
from specmatrix.engine.core.config.rules.draft import layer_per_step, layer_reasons
from specmatrix.engine.core.config.rules.dspark import RAGGED, ragged_reasons
from specmatrix.engine.core.config.rules.ngram import ngram_options
from specmatrix.engine.core.config.rules.suffix import suffix_options
from specmatrix.engine.core.config.rules.table import LATE, RULES
from specmatrix.engine.core.draft.algorithms import own_check
from specmatrix.engine.core.memory.groups import window_pages
from specmatrix.errors import ConfigError, EngineError, described, is_interrupt

# In table order: a field is chosen after everything that its rows read.
ORDER: Final = tuple(dict.fromkeys(row.field for row in DEFAULTS))
# What `Resolved` and `EngineConfig` have under the same name and with the same meaning.
SAME: Final = tuple(
    field.name
    for field in fields(Resolved)
    if field.name in UNASKED and field.name not in ("chunked_prefill_size", "enable_multi_layer_eagle")
)


def resolve(config: EngineConfig, facts: Facts) -> Resolved:
    """Resolve the requested configuration for these models.

    Every automatic value has a Reason and every departure from an explicit value a Rewrite.
    Raises ConfigError with one sentence that names the fix if the configuration cannot run.
    """
    situation = RuleContext.of(config, facts)
    _refuse(situation)
    rewrites = _rewrites(situation)
    reasons = _choose(situation, {rewrite.field: rewrite.got for rewrite in rewrites})
    for rule in LATE:
        if rule.broken(situation):
            raise ConfigError(rule.message(situation))
    return _resolved(situation, reasons, rewrites)


def _refuse(situation: RuleContext) -> None:
    check = own_check(situation.traits.name)
    if check is not None:
        try:
            check(situation.asked, situation.facts)
        except BaseException as error:  # user code may raise anything
            if isinstance(error, EngineError) or is_interrupt(error):
                raise
            raise ConfigError(f"the check of {situation.traits.name} failed: {described(error)}") from error
    for rule in RULES:
        if rule.got is None and rule.broken(situation):
            raise ConfigError(rule.message(situation))


def _rewrites(situation: RuleContext) -> tuple[Rewrite, ...]:
    return tuple(
        Rewrite(rule.field, getattr(situation.asked, rule.field), rule.got(situation), rule.message(situation))
        for rule in RULES
        if rule.got is not None and rule.broken(situation)
    )


def _choose(situation: RuleContext, rewritten: dict[str, Any]) -> tuple[Reason, ...]:
    """Fill `situation.chosen` field by field; returns the reasons of the automatic values."""
    reasons = []
    for field in ORDER:
        value = rewritten.get(field, getattr(situation.asked, field))
        if value == AUTO:
            reason = default_for(field, situation)
            reasons.append(reason)
            value = reason.value
        situation.chosen[field] = value
    own = path_reasons, table_reasons, layer_reasons, ragged_reasons
    return (*reasons, *chain.from_iterable(why(situation) for why in own), *ngram_options(situation)[1])


def _draft_path(situation: RuleContext) -> str | None:
    """The draft's path: that of the target's checkpoint for bundled weights without their own path."""
    asked = situation.asked
    bundled = situation.traits.draft_weights == "bundled"
    return asked.speculative_draft_model_path or (asked.model_path if bundled else None)


def path_reasons(situation: RuleContext) -> tuple[Reason, ...]:
    """The reason for a draft path that was not set explicitly."""
    path = _draft_path(situation)
    if path == situation.asked.speculative_draft_model_path:
        return ()
    return (Reason("speculative_draft_model_path", path, "the target's checkpoint contains the draft's layers"),)


def _resolved(situation: RuleContext, reasons: tuple[Reason, ...], rewrites: tuple[Rewrite, ...]) -> Resolved:
    asked = situation.asked
    chosen: dict[str, Any] = situation.chosen
    uncached = any(rewrite.field == "disable_radix_cache" for rewrite in rewrites)
    given = {rewrite.field: rewrite.got for rewrite in rewrites} | chosen
    same: dict[str, Any] = {name: given.get(name, getattr(asked, name)) for name in SAME}
    same[RAGGED] = same[RAGGED] or bool(ragged_reasons(situation))
    return Resolved(
        **same,
        draft_path=_draft_path(situation),
        algorithm=situation.traits.name,
        num_steps=chosen["speculative_num_steps"],
        topk=chosen["speculative_eagle_topk"],
        num_draft_tokens=chosen["speculative_num_draft_tokens"],
        lag=1 if chosen["spec_version"] == "v2" else 0,
        radix_cache=not (asked.disable_radix_cache or uncached),
        chunked_prefill_size=None if chosen["chunked_prefill_size"] == -1 else chosen["chunked_prefill_size"],
        num_pages=chosen["max_total_tokens"] // chosen["page_size"],
        enable_multi_layer_eagle=situation.traits.layered and layer_per_step(situation)[0],
        parallel_drafting=situation.parallel,
        window=situation.facts.window,
        window_pages=_window_pages(situation),
        adaptive_slots=situation.adaptive.slots if situation.adaptive else (),
        ngram=ngram_options(situation)[0],
        suffix=suffix_options(situation),
        reasons=reasons,
        rewrites=rewrites,
    )


def _window_pages(situation: RuleContext) -> int:
    chosen: dict[str, Any] = situation.chosen
    lag, chunk = int(chosen["spec_version"] == "v2"), chosen["chunked_prefill_size"]
    return window_pages(
        situation.facts.window,
        pages=chosen["max_total_tokens"] // chosen["page_size"],
        page_size=chosen["page_size"],
        ratio=situation.asked.swa_full_tokens_ratio,
        rows=chosen["max_running_requests"],
        steps=lag + 1,
        width=situation.widest,
        chunk=chosen["context_length"] if chunk == -1 else chunk,
    )
