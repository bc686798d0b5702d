"""Configuration rules for n-gram drafting, and the options derived from them (flags: SGLang's)."""

from collections.abc import Callable
from typing import Final

from specmatrix.engine.core.config.asked import AUTO, UNASKED, Reason
from specmatrix.engine.core.config.context import BREADTH, Rule, RuleContext, bounded, gram_room, gram_width, unread
from specmatrix.engine.core.draft.ngram_index import NgramOptions

PREFIX: Final = "speculative_ngram_"
FLAGS: Final = tuple(name for name in UNASKED if name.startswith(PREFIX))
MAX_BREADTH: Final = 64
MAX_DEPTH: Final = 1024
MAX_CAPACITY: Final = 10**9
CORPUS: Final = "speculative_ngram_external_corpus_path"
BUDGET: Final = "speculative_ngram_external_sam_budget"


def ngram_options(s: RuleContext) -> tuple[NgramOptions | None, tuple[Reason, ...]]:
    """An n-gram drafter's options and the reasons for the automatic ones; None for any other drafter."""
    if not s.traits.irregular:
        return None, ()
    asked = {name.removeprefix(PREFIX): getattr(s.asked, name) for name in FLAGS}
    reasons: tuple[Reason, ...] = ()
    if asked["max_bfs_breadth"] == AUTO:
        asked["max_bfs_breadth"] = breadth = s.asked_topk
        requested = s.asked.speculative_eagle_topk != AUTO
        because = "the n-gram breadth is topk" if requested else f"the default n-gram breadth is {BREADTH}"
        reasons = (Reason(f"{PREFIX}max_bfs_breadth", breadth, because),)
    return NgramOptions(**asked), reasons


def _other_topk(s: RuleContext) -> bool:
    topk, breadth = s.asked.speculative_eagle_topk, s.asked.speculative_ngram_max_bfs_breadth
    return s.traits.irregular and AUTO not in (topk, breadth) and topk != breadth


def _too_wide(s: RuleContext) -> bool:
    width = s.asked.speculative_num_draft_tokens
    return s.asked_topk > 1 and isinstance(width, int) and width > gram_room(s)


def _sam(s: RuleContext) -> int:
    return s.asked.speculative_ngram_external_sam_budget


def _path(s: RuleContext) -> str | None:
    return s.asked.speculative_ngram_external_corpus_path


def _rule(name: str, why: str, broken: Callable[[RuleContext], bool], say: Callable[[RuleContext], str]) -> Rule:
    return Rule(name, why, lambda s: s.traits.irregular and broken(s), say)


NGRAM_RULES: Final[tuple[Rule, ...]] = (
    unread(
        "ngram-unread",
        "only an n-gram drafter has an index",
        FLAGS,
        lambda traits: traits.irregular,
        "use an n-gram drafter",
    ),
    bounded(f"{PREFIX}min_bfs_breadth", 1, MAX_BREADTH, "an inner node has at least one child"),
    bounded(f"{PREFIX}max_bfs_breadth", 1, MAX_BREADTH, "an inner node has at least one child"),
    bounded(f"{PREFIX}max_trie_depth", 2, MAX_DEPTH, "a window holds at least a matching token and its successor"),
    bounded(f"{PREFIX}capacity", 1, MAX_CAPACITY, "the index holds at least one window"),
    bounded(f"{PREFIX}external_corpus_max_tokens", 1, MAX_CAPACITY, "a corpus has at least one token"),
    _rule(
        "ngram-breadths-crossed",
        "the minimum breadth cannot exceed the maximum",
        lambda s: s.asked.speculative_ngram_min_bfs_breadth > s.asked_topk,
        lambda s: (
            f"speculative_ngram_min_bfs_breadth {s.asked.speculative_ngram_min_bfs_breadth} is more than the maximum "
            f"breadth, {s.asked_topk}; it must be between 1 and {s.asked_topk}"
        ),
    ),
    _rule(
        "ngram-tree-too-wide",
        "a tree of this depth and topk cannot have more nodes",
        _too_wide,
        lambda s: (
            f"speculative_num_draft_tokens {s.asked.speculative_num_draft_tokens} is more than the {gram_room(s)} "
            f"nodes of the fullest tree of {s.asked.speculative_num_steps} steps with topk {s.asked_topk}; use a value "
            f"between 2 and {gram_room(s)}"
        ),
    ),
    _rule(
        "ngram-corpus-unused",
        "without a budget the corpus drafts no node",
        lambda s: _path(s) is not None and _sam(s) < 1,
        lambda s: f"{CORPUS} {_path(s)} needs {BUDGET} of at least 1, got {_sam(s)}",
    ),
    _rule(
        "ngram-budget-unused",
        "the budget has no effect without a corpus",
        lambda s: _path(s) is None and _sam(s) != 0,
        lambda s: f"{BUDGET} {_sam(s)} needs {CORPUS}; set it or remove the budget",
    ),
    _rule(
        "ngram-budget-too-wide",
        "the root is not a draft token",
        lambda s: _path(s) is not None and _sam(s) > gram_width(s) - 1,
        lambda s: (
            f"{BUDGET} {_sam(s)} is more than the {gram_width(s) - 1} draft tokens of a round; use a value "
            f"between 1 and {gram_width(s) - 1}"
        ),
    ),
)
TOPK_IS_BREADTH: Final = Rule(
    name="topk-is-breadth",
    field="speculative_eagle_topk",
    why="an n-gram tree's topk is its breadth",
    broken=_other_topk,
    message=lambda s: (
        f"the topk of {s.traits.name} is its breadth, speculative_ngram_max_bfs_breadth "
        f"{s.asked.speculative_ngram_max_bfs_breadth}"
    ),
    got=lambda s: s.asked_topk,
)
