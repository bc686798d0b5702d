"""When the configuration rules for n-gram drafting apply, and its options (flags: SGLang's)."""

from typing import Final

from specmatrix.engine.core.config.asked import AUTO, UNASKED, Reason
from specmatrix.engine.core.config.context import BREADTH, Conditions, Named, RuleContext, gram_room, gram_width
from specmatrix.engine.core.draft.ngram_index import NgramOptions

PREFIX: Final = "speculative_ngram_"
FLAGS: Final = tuple(name for name in UNASKED if name.startswith(PREFIX))


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
    return AUTO not in (topk, breadth) and topk != breadth


def _too_wide(s: RuleContext) -> bool:
    width = s.asked.speculative_num_draft_tokens
    return s.asked_topk > 1 and isinstance(width, int) and width > gram_room(s)


def _sam(s: RuleContext) -> int:
    return s.asked.speculative_ngram_external_sam_budget


def _path(s: RuleContext) -> str | None:
    return s.asked.speculative_ngram_external_corpus_path


BROKEN: Final[Conditions] = {
    "ngram-breadths-crossed": lambda s: s.asked.speculative_ngram_min_bfs_breadth > s.asked_topk,
    "ngram-tree-too-wide": _too_wide,
    "ngram-corpus-unused": lambda s: _path(s) is not None and _sam(s) < 1,
    "ngram-budget-unused": lambda s: _path(s) is None and _sam(s) != 0,
    "ngram-budget-too-wide": lambda s: _path(s) is not None and _sam(s) > gram_width(s) - 1,
    "topk-is-breadth": _other_topk,
}
NAMED: Final[Named] = {"gram_room": gram_room, "gram_drafts": lambda s: gram_width(s) - 1}
