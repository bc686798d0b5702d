"""A rule of SGLang in spring 2026 that this engine does not need: the overlap worker drafts chains only."""

from __future__ import annotations

from typing import Final

from specmatrix.matrix.faults.patch import Edit


def _trees_off_overlap(message: str, rewrite: str = "") -> tuple[Edit, ...]:
    """Trees requested on v2 are refused or rewritten. message, rewrite: of the rule, as source text."""
    return (
        Edit(
            "RULES",
            "    TOPK_IS_BREADTH,\n",
            "    TOPK_IS_BREADTH,\n"
            "    Rule(\n"
            '        name="tree-without-overlap",\n'
            '        why="the overlap worker drafts chains",\n'
            '        broken=lambda s: s.traits.max_lag == 1 and s.asked.spec_version == "v2" and s.asked_topk > 1,\n'
            f"        message=lambda s: {message},\n"
            f"{rewrite}"
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
    'f"spec v2 does not support topk {s.asked_topk}, so the draft runs on v1"',
    '        field="spec_version",\n        got=lambda s: "v1",\n',
)
REFUSED: Final = _trees_off_overlap(
    'f"spec_version v2 supports topk 1 only, got {s.asked_topk}; use topk 1 or spec_version v1"'
)
