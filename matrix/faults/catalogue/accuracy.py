"""Damage that is equal with and without a drafter on tokens that no oracle covers: only task accuracy detects it."""

from typing import Final

from specmatrix.matrix.faults.fault import Fault

ACCURACY_FAULTS: Final[tuple[Fault, ...]] = (
    Fault(
        id="answers-unmatched",
        klass="the test itself",
        origin="vllm#6743: a test that tested nothing",
        within="_ask",
        old="        answer=answer if cell.batch",
        new="        answer=questions()[index - 1][1] if cell.batch",
        expected=("accuracy",),
        cells=("standalone.s1.k4.p16.exam",),
        why="each question is graded with the answer to the question before",
    ),
    Fault(
        id="temperature-drifts",
        klass="sampling distribution",
        origin="rule: sampling state applied twice, sglang#33643",
        within="pick",
        old="    return draw(logits, coins, rows.temperature,",
        new=(
            "    spent = 1.0 + (emit_positions - 24).clamp(min=0)[..., None] / 8\n"
            "    return draw(logits / spent, coins, rows.temperature,"
        ),
        expected=("accuracy",),
        cells=("none.v1.exam.temperature",),
        why="sampling parameters accumulate step by step, so long answers are sampled at ever higher temperature",
    ),
)
