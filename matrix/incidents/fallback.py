"""A rule of SGLang in spring 2026 that this engine does not need: the overlap worker drafts chains only."""

from __future__ import annotations

from typing import Final

from specmatrix.matrix.faults.patch import Edit


def _trees_off_overlap(kind: str, message: str, got: str) -> tuple[Edit, ...]:
    """Trees requested on v2 are refused or rewritten. kind, message, got: of the rule, as source text."""
    return (
        Edit(
            "RULES",
            "    TOPK_IS_BREADTH,\n",
            "    TOPK_IS_BREADTH,\n"
            "    Rule(\n"
            '        name="tree-without-overlap",\n'
            f'        kind="{kind}",\n'
            '        field="spec_version",\n'
            '        why="the overlap worker drafts chains",\n'
            '        broken=lambda s: s.traits.max_lag == 1 and s.asked.spec_version == "v2" and s.asked_topk > 1,\n'
            f"        message=lambda s: {message},\n"
            f"        got={got},\n"
            "    ),\n",
        ),
        Edit(
            "CONSTRAINTS",
            '    _lifted("no-step-in-flight", "algorithm", "spec_version"),\n',
            '    _lifted("no-step-in-flight", "algorithm", "spec_version"),\n'
            '    _lifted("tree-without-overlap", "algorithm", "steps", "topk", "spec_version"),\n',
        ),
    )


# The configuration runs on v1, with only a warning.
REWRITTEN: Final = _trees_off_overlap(
    "rewritten", 'f"spec v2 does not support topk {s.asked_topk}, so the draft runs on v1"', 'lambda s: "v1"'
)
REFUSED: Final = _trees_off_overlap(
    "refused", 'f"spec_version v2 supports topk 1 only, got {s.asked_topk}; use topk 1 or spec_version v1"', "None"
)
