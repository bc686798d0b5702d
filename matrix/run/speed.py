"""The speed of a green cell: an engine with its drafter and one without, timed by turns with a fixed amount of work, on
several engine starts."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any, Final, NamedTuple, TypeVar

from specmatrix import HOME
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.tiers import STARTS
from specmatrix.matrix.gates.gate import Number, Outcome, State
from specmatrix.matrix.gates.pairing import first_difference
from specmatrix.matrix.run.provenance import this_host
from specmatrix.matrix.subjects.engine_process import EngineProcess, start_engine
from specmatrix.matrix.subjects.protocol import Answer, Capability, EngineCommand, RunningEngine, Subject, Unsupported
from specmatrix.matrix.workloads.build import LIMITS, SAMPLING
from specmatrix.matrix.workloads.prepared_cell import PreparedCell, prepare
from specmatrix.matrix.workloads.questions import questions, tokenizer
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.zoo.gsm_mini import prompt_of
from specmatrix.reports.speed import RATIOS, SPEED, level

LIMIT: Final = 64
# Warm-up turns, not timed.
WARM: Final = 2


def timed_requests(cell: Cell, turn: int, seed: int, first: bool = False) -> tuple[RequestSpec, ...]:
    """The requests of a turn, numbered from -`WARM`. first: those that end with their first token, on other
    questions."""
    how, batch = SAMPLING[cell.sampling], len(LIMITS[cell.batch])
    begin = (2 * (turn + WARM) + first) * batch + 1000 * seed // 7
    return tuple(
        RequestSpec(
            name=f"t{turn}.{place}",
            prompt=prompt_of(questions()[(begin + place) % len(questions())][0]),
            max_new_tokens=1 if first else LIMIT,
            **how,
            seed=place,
            ignore_eos=cell.finish == "length",
        )
        for place in range(batch)
    )


Result = TypeVar("Result")


def by_turns(calls: Sequence[Callable[[int], Result]], turns: int, warm: int = 1) -> list[list[Result]]:
    """The results of each call by turn. Every second turn makes the calls in reverse order.

    A call gets the number of the turn, from 0; results of the `warm` turns before, with numbers below 0, are dropped.
    """
    found: list[list[Result]] = [[] for _ in calls]
    for turn in range(-warm, turns):
        places = range(len(calls)) if turn < 0 or turn % 2 == 0 else reversed(range(len(calls)))
        for place in places:
            result = calls[place](turn)
            if turn >= 0:
                found[place].append(result)
    return found


# Observers of the gates that cost time; what is computed stays the same.
UNWATCHED: Final = {"kv_stamps": False, "strict_memory": 0}
# Rounds of the fixed work, its rows, its matrices and their width, and its objects. With a small memory footprint it
# would not slow down with the engine: on a busy machine that lost 15 % it lost 1 %.
ROUNDS, ROWS, MATRICES, WIDTH, OBJECTS = 12, 4, 24, 256, 400
# Minimum share of the time attributed to the other tokens if the first one was disturbed.
MIN_REST: Final = 0.1

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
        return max(self.seconds - self.first, MIN_REST * self.seconds) / max(1, self.longest - 1)


class StartSamples(NamedTuple):
    """What one start of both engines measured, by turn: with the drafter, without it, and seconds of the fixed work."""

    mine: list[TimedTurn]
    base: list[TimedTurn]
    works: list[float]


def timed_turn(subject: Subject, prepared: PreparedCell, engine: RunningEngine, watch: Clock, turn: int) -> TimedTurn:
    """Run a turn's requests, and those that end with their first token. prepared: the cell as it runs on the engine.
    watch: the clock."""

    def timed(first: bool) -> tuple[float, list[Answer]]:
        requests = timed_requests(prepared.cell, turn, prepared.seed, first)
        command = subject.translate(replace(prepared, workload=lambda *_: requests))
        if isinstance(command, Unsupported):
            raise ConfigError(f"{subject.name} cannot be timed: {command.reason}")
        begin = watch()
        answers = engine.generate(command.asks)
        return watch() - begin, answers

    seconds, answers = timed(first=False)
    first, _ = timed(first=True)
    lengths = [len(one.output_ids) or len(tokenizer().encode(one.text, add_special_tokens=False)) for one in answers]
    return TimedTurn(seconds, first, sum(lengths), max(lengths), tuple(answer.output_ids for answer in answers))


class TimedPair:
    """Both engines, started here. ConfigError if the subject cannot run the cell without its drafter."""

    def __init__(self, subject: Subject, prepared: PreparedCell) -> None:
        self.subject, self.prepared = subject, prepared
        self.engines: list[RunningEngine] = []
        plain = prepared.default_baseline if subject.profile.foreign else plain_cell(prepared, foreign=False)
        try:
            for each in (prepared, plain):
                command = subject.translate(each)
                if isinstance(command, Unsupported):
                    raise ConfigError(f"{subject.name} cannot be timed: {command.reason}")
                unwatched = {} if subject.profile.foreign else UNWATCHED
                self.engines.append(start_engine(subject, replace(command, flags={**command.flags, **unwatched})))
        except BaseException:
            self.stop()
            raise

    def samples(self, turns: int) -> StartSamples:
        """Time `turns` turns of both engines and of the fixed work."""
        _, watch = clock_of(self.subject, self.prepared)
        work = fixed_work(self.prepared.gpus > 0)
        plain = plain_cell(self.prepared, self.subject.profile.foreign)
        ours, theirs = (
            partial(timed_turn, self.subject, prepared, engine, watch)
            for prepared, engine in zip((self.prepared, plain), self.engines, strict=True)
        )

        def worked(_: int) -> float:
            begin = watch()
            work()
            return watch() - begin

        calls: Sequence[Callable[[int], Any]] = (ours, theirs, worked)
        return StartSamples(*by_turns(calls, turns, WARM))

    @property
    def resolved(self) -> Mapping[str, Any]:
        """The resolved configuration of the engine with the drafter; other readings likewise."""
        return self.engines[0].resolved

    @property
    def start_hash(self) -> str:
        return self.engines[0].start_hash

    def readback(self) -> Mapping[str, Any]:
        return self.engines[0].readback()

    def stop(self) -> None:
        """End both engines, whatever state they are in."""
        for engine in self.engines:
            if isinstance(engine, EngineProcess):
                engine.stop()
            else:
                with suppress(Exception):  # the first error is the one to report
                    engine.close()


class PairStart:
    """Starts a pair in its own process, for `PairProcess`."""

    def __init__(self, subject: Subject, prepared: PreparedCell) -> None:
        self.subject, self.profile = subject, subject.profile
        self.cell, self.tier, self.seed = prepared.cell, prepared.tier, prepared.seed
        self.home = HOME

    def python(self) -> str:
        return ""

    def start(self, _: EngineCommand) -> TimedPair:
        """The pair. RuntimeError in a process that imports other sources, such as those without a planted fault."""
        import torch

        if self.home != HOME:
            raise RuntimeError(f"the process imports {HOME}, not {self.home}")
        torch.set_num_threads(1)
        pair = TimedPair(self.subject, prepare(self.cell, self.tier, self.seed, subject=self.subject.name))
        # Otherwise the objects left by loading would be garbage-collected repeatedly, at times that differ between
        # starts.
        gc.collect()
        gc.freeze()
        return pair


class PairProcess(EngineProcess):
    """A pair in its own process, which ends with it. EngineFailed if it crashes or hangs."""

    def __init__(self, subject: Subject, prepared: PreparedCell) -> None:
        super().__init__(PairStart(subject, prepared), EngineCommand({}, {}, ()))  # type: ignore[arg-type]  # no Subject

    def samples(self, turns: int) -> StartSamples:
        """As `TimedPair.samples`."""
        found: StartSamples = self.call("samples", turns, seconds=self.answer_seconds * (turns + WARM))
        return found


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


def fixed_work(gpu: bool) -> Callable[[], float]:
    """A call that does the same work every time, on a GPU or a CPU."""
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
                state = torch.nn.functional.rms_norm(torch.nn.functional.silu(state @ matrix), (WIDTH,))
        return float(state.sum()) + total  # waits for the device

    return work


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
