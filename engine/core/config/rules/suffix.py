"""Configuration rules for suffix decoding, and the options derived from them (flags: vLLM's)."""

import math
from typing import Final

from specmatrix.engine.core.config.asked import UNASKED
from specmatrix.engine.core.config.context import Rule, RuleContext, bounded, outside, unread
from specmatrix.engine.core.config.rules.ngram import MAX_CAPACITY
from specmatrix.engine.core.draft.suffix_cache import GIB, SuffixOptions
from specmatrix.engine.core.draft.suffix_tree import TEXT_BYTES, TOKEN_BYTES

PREFIX: Final = "speculative_suffix_"
FLAGS: Final = tuple(name for name in UNASKED if name.startswith(PREFIX))
# A draft has one node more than the tree's deepest path has tokens behind its first; see MAX_DRAFT_TOKENS.
MAX_DEPTH: Final = 256
MAX_RATE: Final = 256
MAX_GB: Final = 4096


def suffix_options(s: RuleContext) -> SuffixOptions | None:
    """The options of suffix decoding; None for any other drafter."""
    if not s.traits.suffix_trees:
        return None
    return SuffixOptions(**{name.removeprefix(PREFIX): getattr(s.asked, name) for name in FLAGS})


def _most(s: RuleContext) -> int:
    """Drafts of the longest path behind the shortest match."""
    return s.asked.speculative_suffix_max_tree_depth - 1


def _context(s: RuleContext) -> int:
    asked = s.asked.context_length
    return asked if isinstance(asked, int) else s.facts.context_length


def _least_gb(s: RuleContext) -> float:
    """GiB of the trees of a request, rounded up to four digits."""
    return math.ceil(2 * (_context(s) * TOKEN_BYTES + TEXT_BYTES) / GIB * 1e4) / 1e4


SUFFIX_RULES: Final[tuple[Rule, ...]] = (
    unread("suffix-unread", "only suffix decoding has suffix trees", FLAGS, lambda t: t.suffix_trees, "use SUFFIX"),
    bounded(f"{PREFIX}max_tree_depth", 2, MAX_DEPTH, "a path holds at least a matching token and its successor"),
    Rule(
        "suffix-steps-too-deep",
        "a path of the tree holds a matching token and the drafts after it",
        lambda s: s.traits.suffix_trees and outside(s.asked.speculative_num_steps, 1, _most(s)),
        lambda s: (
            f"speculative_num_steps {s.asked.speculative_num_steps} is more than the {_most(s)} drafts of a path of "
            f"{PREFIX}max_tree_depth {_most(s) + 1} tokens; use at most {_most(s)}, or a deeper tree"
        ),
    ),
    bounded(f"{PREFIX}max_cached_requests", 0, MAX_CAPACITY, "0 keeps no outputs of other requests"),
    bounded(f"{PREFIX}max_spec_factor", 0, MAX_RATE, "drafts per matching token"),
    bounded(f"{PREFIX}max_spec_offset", -MAX_RATE, MAX_RATE, "drafts besides those that the match allows"),
    bounded(f"{PREFIX}min_token_prob", 0, 1, "a draft's probability"),
    bounded(f"{PREFIX}max_gb", 0, MAX_GB, "GiB of host memory"),
    Rule(
        "suffix-memory-too-small",
        "a request's text is in a tree of its own, and its output in that of all requests",
        lambda s: s.traits.suffix_trees and s.asked.speculative_suffix_max_gb < _least_gb(s),
        lambda s: (
            f"{PREFIX}max_gb {s.asked.speculative_suffix_max_gb:g} is too small for the trees of one request of "
            f"{_context(s)} tokens; use at least {_least_gb(s):.4f}"
        ),
    ),
)
