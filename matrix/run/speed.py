"""The speed of a green cell: with its drafter and without, by turns, on several engine starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from statistics import median
from typing import Final

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.tiers import STARTS
from specmatrix.matrix.gates.gate import Number, Outcome, State
from specmatrix.matrix.gates.pairing import first_difference
from specmatrix.matrix.run.provenance import this_host
from specmatrix.matrix.run.timed_pair import PairProcess, StartSamples, TimedPair, TimedTurn, clock_of
from specmatrix.matrix.subjects.protocol import Capability, Subject
from specmatrix.matrix.workloads.prepared_cell import PreparedCell
from specmatrix.reports.speed import RATIOS, SPEED, level

# Turns of each start with one request; half as many with a batch.
TURNS: Final = 32
# The share of the timed requests whose answers may differ, by ties.
MAX_DIFFERENT: Final = 0.1


def measure(subject: Subject, prepared: PreparedCell, starts: int) -> Outcome:
    """A cell's speed over several starts of each engine. FAIL if its answers with a drafter and without differ, NOT
    MEASURED without tokens."""
    turns = TURNS // (1 if prepared.cell.batch == "single" else 2)
    found = list(samples(subject, prepared, turns, starts))
    name, _ = clock_of(subject, prepared)
    return judged(found, name, prepared.gpus, compares(subject, prepared.cell))


def samples(subject: Subject, prepared: PreparedCell, turns: int, starts: int) -> Iterator[StartSamples]:
    """The samples of each start, timed one after the other.

    The reference engine gets a new process for every start, since per-process differences, such as memory placement,
    affect speed. Single-rank engines load in parallel, up to `STARTS`, and wait for their turn.
    """
    if not subject.profile.in_process:  # each engine already has its own process
        for _ in range(starts):
            pair = TimedPair(subject, prepared)
            try:
                yield pair.samples(turns)
            finally:
                pair.stop()
        return
    ahead = STARTS if prepared.cell.ranks == 1 else 1
    for begin in range(0, starts, ahead):
        loading = list[Future[PairProcess]]()
        try:
            with ThreadPoolExecutor(ahead) as pool:
                loading += (pool.submit(PairProcess, subject, prepared) for _ in range(min(ahead, starts - begin)))
            for one in loading:
                yield one.result().samples(turns)
                one.result().stop()
        finally:
            for one in loading:
                if one.exception() is None:
                    one.result().stop()


def compares(subject: Subject, cell: Cell) -> bool:
    """Whether the answers with and without a drafter must be equal."""
    claims = subject.profile.capabilities
    return Capability.TOKEN_IDS in claims and (cell.sampling == "greedy" or Capability.SAMPLED_IDENTITY in claims)


def judged(starts: Sequence[StartSamples], clock: str, gpus: int, compare: bool) -> Outcome:
    """The outcome of the samples of several starts with equal numbers of turns."""
    mine = [turn for start in starts for turn in start.mine]
    base = [turn for start in starts for turn in start.base]
    works = [seconds for start in starts for seconds in start.works]
    if not all(sample.tokens and sample.seconds > 0 for sample in (*mine, *base)):
        return Outcome(SPEED, State.NOT_MEASURED, message="a timed turn has no tokens or took no time")
    pairs = list(zip(mine, base, strict=True))
    ratios = {
        "speed": [one.rate / other.rate for one, other in pairs],
        "first_token": [other.first / one.first for one, other in pairs],
        "output_token": [other.each / one.each for one, other in pairs],
        "own_speed": [one.rate * spent for one, spent in zip(mine, works, strict=True)],
        "plain_speed": [one.rate * spent for one, spent in zip(base, works, strict=True)],
    }
    turns = len(pairs) // len(starts)
    middle, interval = level([ratios["speed"][begin : begin + turns] for begin in range(0, len(pairs), turns)])
    setting: dict[str, Number] = {"clock": clock, "device": device_name(gpus > 0), "gpus": gpus}
    numbers: dict[str, Number] = {**setting, "starts": len(starts), "turns": turns, "speed_up": rounded(middle)}
    for prefix, side in (("", mine), ("baseline_", base)):
        numbers[f"{prefix}tokens_per_second"] = rounded(median(sample.rate for sample in side))
        numbers[f"{prefix}first_token_ms"] = rounded(1e3 * median(sample.first for sample in side))
        numbers[f"{prefix}output_token_ms"] = rounded(1e3 * median(sample.each for sample in side))
    numbers["work_ms"] = rounded(1e3 * median(works))
    numbers |= {RATIOS[name]: [rounded(value) for value in found] for name, found in ratios.items()}
    fault = _different(pairs) if compare else ""
    return Outcome(SPEED, State.FAIL if fault else State.PASS, numbers, interval, fault)


def _different(pairs: Sequence[tuple[TimedTurn, TimedTurn]]) -> str:
    """A sentence if too many answers differ from plain decoding."""
    both = [
        (turn, place, *texts)
        for turn, (one, other) in enumerate(pairs)
        for place, texts in enumerate(zip(one.answers, other.answers, strict=True))
    ]
    wrong = [row for row in both if row[2] != row[3]]
    if len(wrong) <= MAX_DIFFERENT * len(both):
        return ""
    turn, place, mine, theirs = wrong[0]
    at = first_difference(mine, theirs)
    return (
        f"{len(wrong)} of {len(both)} timed requests differ from plain decoding, first t{turn}.{place} at token {at}, "
        "so their speed means nothing"
    )


def rounded(value: float) -> float:
    """Five significant digits."""
    return float(f"{value:.5g}")


def device_name(gpu: bool) -> str:
    """The names of GPU, if any, and processor."""
    import torch

    return ", ".join([*([torch.cuda.get_device_name()] if gpu else []), str(this_host()["cpu"])])
