"""The configuration rules: what cannot run is refused, what runs differently is rewritten; nothing else departs.

`resolve` applies the table in order and the first refusal wins; the matrix lifts the same rows as constraints, so a
cell that the matrix predicts to be refused is refused by the engine with the same message. Every predicate is total.
"""

from typing import Final

from specmatrix.engine.core.config.asked import AUTO
from specmatrix.engine.core.config.context import Rule, RuleContext, bounded, outside
from specmatrix.engine.core.config.rules.adaptive import ADAPTING
from specmatrix.engine.core.config.rules.devices import GRAPHING, SPLITTING
from specmatrix.engine.core.config.rules.draft import DRAFTING, LAYERING, PAIRING, SHAPES
from specmatrix.engine.core.config.rules.dspark import DSPARK_RULES
from specmatrix.engine.core.config.rules.ngram import NGRAM_RULES, TOPK_IS_BREADTH
from specmatrix.engine.core.config.rules.suffix import SUFFIX_RULES
from specmatrix.engine.core.draft.algorithms import ALGORITHMS

MAX_PAGE: Final = 256
MAX_SEED: Final = 2**63 - 1


def _page(s: RuleContext) -> int:
    return s.asked.page_size if isinstance(s.asked.page_size, int) else 1


def _whole_pages(s: RuleContext) -> int:
    tokens, page = s.asked.max_total_tokens, _page(s)
    return tokens // page * page if isinstance(tokens, int) and page > 0 else 0


def _uneven_pages(s: RuleContext) -> bool:
    tokens = s.asked.max_total_tokens
    return isinstance(tokens, int) and _page(s) > 0 and tokens != _whole_pages(s)


def _thresholds(s: RuleContext) -> list[tuple[str, float]]:
    named = (
        ("speculative_accept_threshold_single", s.asked.speculative_accept_threshold_single),
        ("speculative_accept_threshold_acc", s.asked.speculative_accept_threshold_acc),
    )
    return [(name, value) for name, value in named if value != 1.0]


RULES: Final[tuple[Rule, ...]] = (
    *DRAFTING,
    *LAYERING,
    *ADAPTING,
    *NGRAM_RULES,
    *SUFFIX_RULES,
    *DSPARK_RULES,
    Rule(
        name="threshold-inexact",
        why="the verifier is exact: a looser threshold would change the output",
        broken=lambda s: bool(_thresholds(s)),
        message=lambda s: f"{_thresholds(s)[0][0]} must be 1.0, got {_thresholds(s)[0][1]}: the verifier is exact",
    ),
    Rule(
        name="v2-needs-overlap",
        why="v2 is overlap scheduling",
        broken=lambda s: s.asked.disable_overlap_schedule and s.asked.spec_version == "v2",
        message=lambda s: (
            "spec_version v2 cannot run with disable_overlap_schedule; remove one of them or set spec_version v1"
        ),
    ),
    *PAIRING,
    bounded("page_size", 1, MAX_PAGE, "supported KV page sizes", unit="tokens"),
    Rule(
        name="chunked-prefill-size-range",
        why="a prefill chunk holds at least one token",
        broken=lambda s: (
            isinstance(s.asked.chunked_prefill_size, int)
            and s.asked.chunked_prefill_size < 1
            and s.asked.chunked_prefill_size != -1
        ),
        message=lambda s: (
            f"chunked_prefill_size must be at least 1, or -1 for unchunked prefill, got {s.asked.chunked_prefill_size}"
        ),
    ),
    Rule(
        name="mixed-unsupported",
        why="a drafter that reads tokens on the host has no draft state that a step of prompts could extend",
        broken=lambda s: s.asked.enable_mixed_chunk and s.traits.reads_host,
        message=lambda s: (
            f"enable_mixed_chunk cannot run with {s.traits.name}, which reads tokens on the host; remove it or use one "
            f"of {', '.join(t.name for t in ALGORITHMS if not t.reads_host)}"
        ),
    ),
    Rule(
        name="max-running-requests-range",
        why="an engine must be able to run at least one request",
        broken=lambda s: isinstance(s.asked.max_running_requests, int) and s.asked.max_running_requests < 1,
        message=lambda s: f"max_running_requests must be at least 1, got {s.asked.max_running_requests}",
    ),
    Rule(
        name="context-length-range",
        why="the model was not trained for positions past its context length",
        broken=lambda s: outside(s.asked.context_length, 2, s.facts.context_length),
        message=lambda s: (
            f"context_length must be between 2 and the model's {s.facts.context_length}, got {s.asked.context_length}"
        ),
    ),
    Rule(
        name="window-ratio-range",
        why="windowed layers need KV memory, and never more than the other layers",
        broken=lambda s: not 0.0 < s.asked.swa_full_tokens_ratio <= 1.0,
        message=lambda s: f"swa_full_tokens_ratio must be above 0 and at most 1, got {s.asked.swa_full_tokens_ratio}",
    ),
    bounded("random_seed", 0, MAX_SEED, "the counter-based generator uses a 63-bit seed"),
    Rule(
        name="gpu-missing",
        why="device cuda needs a visible GPU",
        broken=lambda s: s.asked.device == "cuda" and s.facts.gpus == 0,
        message=lambda s: "device cuda needs a GPU, but none is visible; use device cpu",
    ),
    *SPLITTING,
    *GRAPHING,
    *SHAPES,
    TOPK_IS_BREADTH,
    Rule(
        name="mixed-of-whole-prompts",
        field="enable_mixed_chunk",
        why="only steps that read chunks are mixed",
        broken=lambda s: s.asked.enable_mixed_chunk and s.asked.chunked_prefill_size == -1,
        message=lambda s: "chunked_prefill_size -1 reads each prompt whole, and only steps that read chunks are mixed",
        got=lambda s: False,
    ),
    Rule(
        name="interval-of-no-state",
        why="only recurrent states have checkpoints",
        broken=lambda s: s.asked.state_interval not in (AUTO, 0) and not s.facts.recurrent,
        message=lambda s: (
            f"state_interval {s.asked.state_interval} needs a target with a recurrent state; remove state_interval"
        ),
    ),
    Rule(
        name="interval-of-whole-pages",
        why="a checkpoint is kept where a page of KV ends",
        broken=lambda s: (
            s.asked.state_interval != AUTO
            and (s.asked.state_interval < 0 or s.asked.state_interval % max(1, _page(s)) > 0)
        ),
        message=lambda s: (
            f"state_interval must be a multiple of page_size, {_page(s)}, or 0 for no checkpoints, got "
            f"{s.asked.state_interval}"
        ),
    ),
    Rule(
        name="window-uncached",
        field="disable_radix_cache",
        why="a cached page would lack the KV that sliding-window layers read",
        broken=lambda s: s.facts.window is not None and not s.asked.disable_radix_cache,
        message=lambda s: (
            f"the target has layers with a sliding window of {s.facts.window} tokens, whose pages are freed before a "
            "prefix could be reused, so nothing is cached"
        ),
        got=lambda s: True,
    ),
    Rule(
        name="state-uncached",
        field="disable_radix_cache",
        why="a cached prefix is useless without the recurrent state behind it",
        broken=lambda s: s.facts.recurrent and s.asked.state_interval == 0 and not s.asked.disable_radix_cache,
        message=lambda s: (
            "the target has layers with a recurrent state, of which no checkpoint is kept with state_interval 0, so "
            "nothing is cached"
        ),
        got=lambda s: True,
    ),
    Rule(
        name="whole-pages",
        field="max_total_tokens",
        why="KV memory is allocated in whole pages",
        broken=_uneven_pages,
        message=lambda s: f"KV memory is allocated in pages of {_page(s)} tokens, so the size is rounded down",
        got=_whole_pages,
    ),
)


def smallest_pool(s: RuleContext) -> int:
    """KV tokens that one request with a one-token prompt reserves, in whole pages.

    That is the committed token, the widths of the steps in flight and the width of the next step.
    """
    page = s.integer("page_size")
    lag = 1 if s.chosen["spec_version"] == "v2" else 0
    tokens = 1 + (lag + 1) * s.widest
    return -(-tokens // page) * page


# Checked last, over the chosen values.
INTERVAL: Final = Rule(
    name="interval-within-a-round",
    why="a round may pass one checkpoint of a recurrent state",
    broken=lambda s: 0 < s.integer("state_interval") < s.widest,
    message=lambda s: (
        f"state_interval must be at least {s.widest}, the nodes of the widest round, got {s.asked.state_interval}"
    ),
)
CAPACITY: Final = Rule(
    name="pool-too-small",
    why="the KV pool must hold at least one request",
    broken=lambda s: s.integer("max_total_tokens") < smallest_pool(s),
    message=lambda s: (
        f"max_total_tokens {s.asked.max_total_tokens} is too small for one request: a token and its steps in flight "
        f"need {smallest_pool(s)} (pages of {s.chosen['page_size']}); use at least that"
    ),
)
