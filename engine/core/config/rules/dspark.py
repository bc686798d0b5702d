"""Configuration rules for DSPARK (flags: SGLang's; the mode is its SGLANG_RAGGED_VERIFY_MODE)."""

from typing import Final

from specmatrix.engine.core.config.asked import UNASKED, Reason
from specmatrix.engine.core.config.context import Rule, RuleContext, bounded, unread
from specmatrix.engine.core.draft.verify_budget import COSTS, TEMPERATURES

RAGGED: Final = "speculative_ragged_verify"
PREFIX: Final = "speculative_dspark_"
FLAGS: Final = tuple(name for name in UNASKED if name.startswith(PREFIX))
MODE: Final = f"{PREFIX}verify_mode"
SIZE: Final = f"{PREFIX}block_size"
MAX_DRAFTS: Final = 255


def budgeted(s: RuleContext) -> bool:
    """Whether a budget shortens rows."""
    capped = s.asked.speculative_dspark_verify_mode != "static"
    return capped and s.asked.speculative_dspark_sps_table_path is not None


def ragged_reasons(s: RuleContext) -> tuple[Reason, ...]:
    """Why rows verify fewer drafts than the widest, without having been asked to."""
    why = "a budget over the batch says how many drafts each row verifies" if budgeted(s) else ""
    why = "suffix decoding verifies only the tokens that it drafts" if s.traits.suffix_trees else why
    return (Reason(RAGGED, True, why),) if why and not s.asked.speculative_ragged_verify else ()


def _trained(s: RuleContext) -> int:
    """The drafts of the checkpoint's block."""
    return (s.draft.block_size if s.draft and s.draft.block_size else MAX_DRAFTS + 1) - 1


def _uncounted(s: RuleContext) -> bool:
    """Whether the requested width is not that of the requested block."""
    size, width = s.asked.speculative_dspark_block_size, s.asked.speculative_num_draft_tokens
    return s.traits.budgets and size > 0 and isinstance(width, int) and width != size + 1


def _uncalibrated(s: RuleContext) -> bool:
    """Whether confidences are calibrated that nothing reads."""
    read = budgeted(s) or s.asked.speculative_confidence_threshold > 0
    return s.asked.speculative_dspark_confidence_sts_path is not None and not read


DSPARK_RULES: Final[tuple[Rule, ...]] = (
    unread(
        "dspark-unread",
        "only DSPARK has a block without its known token, and a budget",
        FLAGS,
        lambda traits: traits.budgets,
        "use DSPARK",
    ),
    bounded(SIZE, 0, MAX_DRAFTS, "drafts of a block, 0 for the checkpoint's"),
    Rule(
        "dspark-block-too-wide",
        "the draft was trained for its own block size",
        lambda s: s.traits.budgets and s.asked.speculative_dspark_block_size > _trained(s),
        lambda s: f"{SIZE} {s.asked.speculative_dspark_block_size} is more than the draft's {_trained(s)}; use less",
    ),
    Rule(
        "dspark-width",
        "a round verifies the root and the block's drafts",
        _uncounted,
        lambda s: (
            f"speculative_num_draft_tokens {s.asked.speculative_num_draft_tokens} is not {SIZE} "
            f"{s.asked.speculative_dspark_block_size} + 1, the block's drafts and the root; remove one of them"
        ),
    ),
    Rule(
        "dspark-without-confidence",
        "a budget needs to know how likely each draft is",
        lambda s: s.traits.budgets and budgeted(s) and s.draft is not None and not s.draft.confidence_head,
        lambda s: (
            f"{MODE} cap-accept needs a draft with a confidence head, and "
            f"{s.asked.speculative_draft_model_path} has none; use static"
        ),
    ),
    Rule(
        "dspark-costs-unused",
        "static rounds verify every draft",
        lambda s: s.traits.budgets and s.asked.speculative_dspark_sps_table_path is not None and not budgeted(s),
        lambda s: f"{COSTS} has no effect with {MODE} static; set cap-accept or remove the table",
    ),
    Rule(
        "dspark-calibration-unused",
        "only a budget and a threshold read confidences",
        lambda s: s.traits.budgets and _uncalibrated(s),
        lambda s: (
            f"{TEMPERATURES} has no effect with {MODE} static and speculative_confidence_threshold 0; set one of them "
            "or remove the file"
        ),
    ),
    Rule(
        "dspark-uncosted",
        "without costs every draft is worth its verification",
        lambda s: s.traits.budgets and s.asked.speculative_dspark_verify_mode != "static" and not budgeted(s),
        lambda s: f"{COSTS} names no table of rates, so every draft is verified",
        MODE,
        lambda s: "static",
    ),
)
