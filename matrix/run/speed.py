"""The speed of a green cell: with its drafter and without, by turns, beside a fixed piece of work."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median, quantiles
from typing import Final, NamedTuple

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Number, Outcome, State
from specmatrix.matrix.gates.pairing import first_difference
from specmatrix.matrix.run.prepared_cell import PreparedCell
from specmatrix.matrix.run.provenance import this_host
from specmatrix.matrix.run.turns import by_turns
from specmatrix.matrix.subjects.protocol import Answer, Capability, RunningEngine, Subject, Unsupported
from specmatrix.matrix.workloads.build import tokenizer
from specmatrix.matrix.workloads.timed import WARM, timed_requests
from specmatrix.reports.gate_numbers import RATIOS, SPEED
from specmatrix.reports.speed import level

# Turns of one request where nothing else runs on a GPU, and on a CPU, which is noisier; half as many of a batch.
GPU_TURNS, CPU_TURNS = 24, 60
# Observers of the gates that cost time; what is computed stays the same.
UNWATCHED: Final = {"kv_stamps": False, "strict_memory": 0}
# Rounds of the fixed work, its rows, its matrices and their width, and its objects. With a small footprint it would not
# feel what slows an engine: on a busy machine that lost 15 % it lost 1 %.
ROUNDS, ROWS, MATRICES, WIDTH, OBJECTS = 12, 4, 24, 256, 400
# A first token that was disturbed leaves at least this share of the time to the others.
LEAST_REST: Final = 0.1
# The share of the timed requests whose answers may differ, by ties.
MOST_DIFFERENT: Final = 0.1

Clock = Callable[[], float]


class TimedTurn(NamedTuple):
    """One turn of one side: seconds of its requests and of those of one token, tokens in all and of the longest."""

    seconds: float
    first: float
    tokens: int
    longest: int
    answers: tuple[tuple[int, ...], ...]

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds

    @property
    def each(self) -> float:
        """Seconds per output token of a request after its first."""
        return max(self.seconds - self.first, LEAST_REST * self.seconds) / max(1, self.longest - 1)


class TimedEngine:
    """An engine that is timed. prepared: the cell as it runs there. watch: the clock."""

    def __init__(self, subject: Subject, prepared: PreparedCell, engine: RunningEngine, watch: Clock) -> None:
        self.subject, self.prepared, self.engine, self.watch = subject, prepared, engine, watch

    def sample(self, turn: int) -> TimedTurn:
        """Run a turn's requests, and those that end with their first token."""
        seconds, answers = self._timed(turn, first=False)
        first, _ = self._timed(turn, first=True)
        lengths = [len(answer.output_ids) or len(tokenizer().encode(answer.text).ids) for answer in answers]
        return TimedTurn(seconds, first, sum(lengths), max(lengths), tuple(answer.output_ids for answer in answers))

    def _timed(self, turn: int, first: bool) -> tuple[float, list[Answer]]:
        requests = timed_requests(self.prepared.cell, turn, self.prepared.seed, first)
        command = self.subject.translate(replace(self.prepared, workload=lambda *_: requests))
        if isinstance(command, Unsupported):
            raise ConfigError(f"{self.subject.name} cannot be timed: {command.reason}")
        begin = self.watch()
        answers = self.engine.generate(command.asks)
        return self.watch() - begin, answers


def plain_cell(prepared: PreparedCell, foreign: bool) -> PreparedCell:
    """The cell without its drafter: another engine's defaults, the reference engine's same start otherwise."""
    cell = prepared.cell
    plain = prepared.default_baseline.cell if foreign else cell.baseline
    same = {"batch": cell.batch, "sampling": cell.sampling, "finish": cell.finish}
    return replace(prepared, cell=plain._replace(**same), constraints=(), expectation="runs")


def clock_of(subject: Subject, prepared: PreparedCell) -> tuple[str, Clock]:
    """CPU time of this process where it does all the work, so that a busy machine matters less, else wall time."""
    if subject.profile.in_process and not prepared.gpus and prepared.cell.ranks == 1:
        return "cpu", time.process_time
    return "wall", time.perf_counter


def measure(
    subject: Subject, prepared: PreparedCell, engine: RunningEngine, plain: RunningEngine, turns: int | None = None
) -> Outcome:
    """The speed of a cell on two engines, with its drafter and without. FAIL if their answers differ, NOT MEASURED
    without tokens. turns: None for the usual number."""
    name, watch = clock_of(subject, prepared)
    device, work = fixed_work(prepared.gpus > 0)
    foreign = Capability.RESOLUTION not in subject.profile.capabilities
    ours = TimedEngine(subject, prepared, engine, watch)
    theirs = TimedEngine(subject, plain_cell(prepared, foreign), plain, watch)

    def worked(_: int) -> float:
        begin = watch()
        work()
        return watch() - begin

    calls: Sequence[Callable[[int], TimedTurn | float]] = (ours.sample, theirs.sample, worked)
    usual = (GPU_TURNS if prepared.gpus else CPU_TURNS) // (1 if prepared.cell.batch == "single" else 2)
    mine, base, works = by_turns(calls, turns or usual, WARM)
    return judged(mine, base, works, name, device, compares(subject, prepared.cell))  # type: ignore[arg-type]


def compares(subject: Subject, cell: Cell) -> bool:
    """Whether the answers with and without a drafter must be equal."""
    claims = subject.profile.capabilities
    return Capability.TOKEN_IDS in claims and (cell.sampling == "greedy" or Capability.SAMPLED_IDENTITY in claims)


def judged(
    mine: Sequence[TimedTurn], base: Sequence[TimedTurn], works: Sequence[float], clock: str, device: str, compare: bool
) -> Outcome:
    """The outcome of the samples of each turn, with the drafter and without, and of the fixed work's seconds."""
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
    middle, interval = level(ratios["speed"])
    numbers: dict[str, Number] = {"clock": clock, "device": device, "turns": len(pairs), "speed_up": rounded(middle)}
    for prefix, side in (("", mine), ("baseline_", base)):
        numbers[f"{prefix}tokens_per_second"] = rounded(median(sample.rate for sample in side))
        numbers[f"{prefix}first_token_ms"] = rounded(1e3 * median(sample.first for sample in side))
        numbers[f"{prefix}output_token_ms"] = rounded(1e3 * median(sample.each for sample in side))
    numbers["work_ms"] = rounded(1e3 * median(works))
    tenths = quantiles(works, n=10)
    numbers["work_spread"] = rounded((tenths[-1] - tenths[0]) / median(works))
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
    if len(wrong) <= MOST_DIFFERENT * len(both):
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


def fixed_work(gpu: bool) -> tuple[str, Callable[[], float]]:
    """The names of GPU and processor, and a call that does the same work there every time."""
    import torch

    device = "cuda" if gpu else "cpu"
    chance = torch.Generator().manual_seed(0)
    start = torch.randn(ROWS, WIDTH, generator=chance).to(device)
    weights = [(torch.randn(WIDTH, WIDTH, generator=chance) / WIDTH**0.5).to(device) for _ in range(MATRICES)]

    def work() -> float:
        state, total = start, 0
        for _ in range(ROUNDS):
            names = {str(place): [place] for place in range(OBJECTS)}
            total += sum(names[str(place)][0] for place in range(0, OBJECTS, 3))
            for matrix in weights:
                state = torch.nn.functional.silu(state @ matrix)
                state = state * torch.rsqrt((state * state).mean(-1, keepdim=True) + 1e-6)
        return float(state.sum()) + total  # waits for the device

    names = [torch.cuda.get_device_name()] if gpu else []
    return ", ".join([*names, str(this_host()["cpu"])]), work
