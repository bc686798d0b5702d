"""When the configuration rules for DSPARK apply (flags: SGLang's; the mode is its SGLANG_RAGGED_VERIFY_MODE)."""

from typing import Final

from specmatrix.engine.core.config.asked import Reason
from specmatrix.engine.core.config.context import Conditions, Named, RuleContext

RAGGED: Final = "speculative_ragged_verify"
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
    return size > 0 and isinstance(width, int) and width != size + 1


def _uncalibrated(s: RuleContext) -> bool:
    """Whether confidences are calibrated that nothing reads."""
    read = budgeted(s) or s.asked.speculative_confidence_threshold > 0
    return s.asked.speculative_dspark_confidence_sts_path is not None and not read


BROKEN: Final[Conditions] = {
    "dspark-block-too-wide": lambda s: s.asked.speculative_dspark_block_size > _trained(s),
    "dspark-width": _uncounted,
    "dspark-without-confidence": lambda s: budgeted(s) and s.draft is not None and not s.draft.confidence_head,
    "dspark-costs-unused": lambda s: s.asked.speculative_dspark_sps_table_path is not None and not budgeted(s),
    "dspark-calibration-unused": _uncalibrated,
    "dspark-uncosted": lambda s: s.asked.speculative_dspark_verify_mode != "static" and not budgeted(s),
}
NAMED: Final[Named] = {"trained": _trained}
