"""Checks that task accuracy is that of plain decoding."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Number, Outcome, PackageGate, State
from specmatrix.matrix.gates.pairing import AnswerPair, pairs, unpaired
from specmatrix.matrix.subjects.protocol import Capability, Run
from specmatrix.matrix.workloads.prepared_cell import PreparedCell
from specmatrix.matrix.zoo.registry import CHECKPOINTS
from specmatrix.reports.stats import mcnemar, wilson

# As in lm-eval's gsm8k task, or a member of a JSON answer. Each extractor catches what the other misses (overrun text,
# a missing last line).
STRICT: Final = re.compile(r'(?:####|"answer":) (-?[0-9.,]+)')
FLEXIBLE: Final = re.compile(r"-?[$0-9.,]{2,}|-?[0-9]+")
EXTRACTORS: Final = ("strict", "flexible")


@cache
def card_accuracy(target: str, root: Path = CHECKPOINTS) -> float | None:
    """Test-split accuracy (0 to 1) from the card of a zoo target; None without a card."""
    file = root / target / "card.json"
    if not file.is_file():
        return None
    return float(json.loads(file.read_text(encoding="utf-8"))["accuracy"]["test"]["share"])


@dataclass
class AccuracyGate(PackageGate):
    """Correct answers paired with the baseline's, by two extractors; a tripwire detects a collapse on both sides."""

    name: str = "accuracy"
    needs: frozenset[Capability] = frozenset({Capability.TOKEN_IDS})
    card: Callable[[str], float | None] = card_accuracy

    def applies(self, cell: Cell) -> bool:
        """Exam cells."""
        return cell.batch == "gsm"

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """NOT MEASURED without questions or without the target's card."""
        if missing := unpaired(self.name, run, baseline):
            return missing
        graded = [pair for pair in pairs(run, baseline) if pair.request.answer is not None]
        if not graded:
            return self.not_measured("no request has a reference answer")
        card = self.card(prepared.cell.target)
        if card is None:
            return self.not_measured(f"target {prepared.cell.target} has no card.json with its accuracy")
        numbers, interval = _numbers(graded)
        numbers["card_test_share"] = card
        rate = card * (1.0 if prepared.cell.sampling == "greedy" else self.thresholds["sampled_share"])
        fault = self._worse(numbers) or self._collapsed(numbers, len(graded), card, rate)
        return Outcome(self.name, State.FAIL if fault else State.PASS, numbers, interval, fault)

    def _worse(self, numbers: Mapping[str, Number]) -> str:
        for extractor, suffix in zip(EXTRACTORS, ("", "_flexible"), strict=True):
            lost, won = int(str(numbers[f"lost{suffix}"])), int(str(numbers[f"won{suffix}"]))
            p = mcnemar(lost, won)
            if p < self.thresholds["alpha"]:
                return f"{lost} answers lost and {won} won against plain decoding ({extractor} extractor, p = {p:.2g})"
        return ""

    def _collapsed(self, numbers: Mapping[str, Number], n: int, card: float, rate: float) -> str:
        """A sentence if fewer answers are correct than `rate` explains; catches a loss on both sides, which pairing
        misses."""
        right = round(float(str(numbers["accuracy"])) * n)
        if binomial_below(right, n, rate) < self.thresholds["collapse"]:
            share = "" if rate == card else f" (at least {rate:.1%} expected under sampling)"
            return f"{right} of {n} answers are correct; the target's card says {card:.1%}{share}"
        return ""


def extract(text: str, extractor: str) -> str | None:
    """The normalised number that a text gives as its answer; None without one."""
    found = STRICT.findall(text)[:1] if extractor == "strict" else FLEXIBLE.findall(text)[-1:]
    return _plain(found[0]) if found else None


def right(text: str, reference: str, extractor: str) -> bool:
    """True if the text's answer is the number after the reference's `####`."""
    return extract(text, extractor) == _plain(reference.rsplit("####", 1)[-1])


def binomial_below(k: int, n: int, rate: float) -> float:
    """P(X <= k) for n trials with success probability `rate`, exact."""
    from scipy.special import bdtr

    return float(bdtr(k, n, rate))


def _plain(number: str) -> str:
    return number.replace(",", "").replace("$", "").strip().rstrip(".")


def _numbers(graded: list[AnswerPair]) -> tuple[dict[str, Number], tuple[float, float]]:
    numbers: dict[str, Number] = {"n": len(graded)}
    n = len(graded)
    interval = (0.0, 1.0)
    for extractor, suffix in zip(EXTRACTORS, ("", "_flexible"), strict=True):
        both = [
            tuple(right(one.text, pair.request.answer or "", extractor) for one in (pair.answer, pair.baseline))
            for pair in graded
        ]
        mine = [answer for answer, _ in both]
        numbers[f"accuracy{suffix}"] = sum(mine) / n
        numbers[f"baseline{suffix}"] = sum(base for _, base in both) / n
        numbers[f"lost{suffix}"] = sum(base and not answer for answer, base in both)
        numbers[f"won{suffix}"] = sum(answer and not base for answer, base in both)
        if not suffix:
            interval = wilson(sum(mine), n)
            numbers["outcomes"] = "".join("01"[ok] for ok in mine)
    return numbers, interval
