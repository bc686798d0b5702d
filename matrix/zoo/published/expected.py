"""What others measured with the published checkpoints on GSM8K. Data only, and the intervals that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from specmatrix.reports.stats.proportions import wilson

TRTLLM: Final = "NVIDIA/TensorRT-LLM at 0120c5c2, tests/integration/defs/accuracy/references/gsm8k.yaml"
# TensorRT-LLM runs lm-eval's task too: 5 examples, no chat template, at most 256 tokens, all 1,319 questions. But its
# examples are random ones, where this project takes the first.
QUESTIONS: Final = 1319
# The probability of a share as low as measured, if the figure is true, below which it is a collapse. At 74 % and 1,319
# questions that is a share 4.5 points lower; other examples move it by less.
COLLAPSE: Final = 1e-4


@dataclass(frozen=True, slots=True)
class ExpectedAccuracy:
    """Share of right answers of plain decoding, the mean over both extractors of lm-eval, of `questions`."""

    share: float
    questions: int
    source: str

    @property
    def interval(self) -> tuple[float, float]:
        """At 95 %."""
        return wilson(round(self.share * self.questions), self.questions)


@dataclass(frozen=True, slots=True)
class ExpectedLength:
    """Tokens per round that somebody measured on GSM8K. but: what was different, so that no run is judged by it."""

    low: float
    high: float
    source: str
    but: str


ACCURACY: Final[Mapping[str, ExpectedAccuracy]] = {
    "llama-3.1-8b-instruct": ExpectedAccuracy(0.7420, QUESTIONS, TRTLLM),
    "qwen3-8b": ExpectedAccuracy(0.871114, QUESTIONS, TRTLLM),
}
LENGTHS: Final[Mapping[str, ExpectedLength]] = {
    "llama-3.1-8b.eagle3": ExpectedLength(
        2.55, 2.97, "SpecForge's SpecBundle data", "chains of 3 to 7 steps on SGLang instead of a tree"
    ),
    "llama-3.1-8b.standalone": ExpectedLength(
        3.65, 3.65, "sglang#25295", "4 steps instead of 3, and SGLang's own prompt"
    ),
    "qwen3-8b.dflash": ExpectedLength(
        6.3, 6.4, "sglang#16818 and z-lab/dflash#7", "the chat template and a prompt that asks to reason step by step"
    ),
}


def collapsed(target: str, right: float, questions: int) -> str:
    """A sentence if so few right answers contradict the published figure, "" if not or without one.

    right: of plain decoding, the mean over both extractors.
    """
    expected = ACCURACY.get(target)
    if expected is None:
        return ""
    from scipy.special import bdtr

    if float(bdtr(int(right), questions, expected.share)) >= COLLAPSE:
        return ""
    return (
        f"plain decoding answers {right:g} of {questions:,} questions correctly ({right / questions:.1%}), where "
        f"{expected.source} has {expected.share:.1%}"
    )
