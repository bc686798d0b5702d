"""When the configuration rules for suffix decoding apply, and its options (flags: vLLM's)."""

import math
from typing import Final

from specmatrix.engine.core.config.asked import UNASKED
from specmatrix.engine.core.config.context import Conditions, Named, RuleContext, outside
from specmatrix.engine.core.draft.suffix_tree import GIB, TEXT_BYTES, TOKEN_BYTES, SuffixOptions

PREFIX: Final = "speculative_suffix_"
FLAGS: Final = tuple(name for name in UNASKED if name.startswith(PREFIX))


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


BROKEN: Final[Conditions] = {
    "suffix-steps-too-deep": lambda s: outside(s.asked.speculative_num_steps, 1, _most(s)),
    "suffix-memory-too-small": lambda s: s.asked.speculative_suffix_max_gb < _least_gb(s),
}
NAMED: Final[Named] = {"longest_path": _most, "context": _context, "least_gb": _least_gb}
