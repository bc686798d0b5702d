"""An engine with its drafter and one without, timed alternately with a fixed amount of work."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

from specmatrix import HOME
from specmatrix.errors import ConfigError
from specmatrix.matrix.run.turns import by_turns
from specmatrix.matrix.subjects.engine_process import EngineProcess, start_engine
from specmatrix.matrix.subjects.protocol import (
    Answer,
    Capability,
    EngineCommand,
    RunningEngine,
    Subject,
    Unsupported,
)
from specmatrix.matrix.workloads.prepared_cell import PreparedCell, prepare
from specmatrix.matrix.workloads.questions import tokenizer
from specmatrix.matrix.workloads.timed import WARM, timed_requests

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


class TimedEngine:
    """An engine that is timed. prepared: the cell as it runs there. watch: the clock."""

    def __init__(self, subject: Subject, prepared: PreparedCell, engine: RunningEngine, watch: Clock) -> None:
        self.subject, self.prepared, self.engine, self.watch = subject, prepared, engine, watch

    def sample(self, turn: int) -> TimedTurn:
        """Run a turn's requests, and those that end with their first token."""
        seconds, answers = self._timed(turn, first=False)
        first, _ = self._timed(turn, first=True)
        lengths = [
            len(one.output_ids) or len(tokenizer().encode(one.text, add_special_tokens=False)) for one in answers
        ]
        return TimedTurn(seconds, first, sum(lengths), max(lengths), tuple(answer.output_ids for answer in answers))

    def _timed(self, turn: int, first: bool) -> tuple[float, list[Answer]]:
        requests = timed_requests(self.prepared.cell, turn, self.prepared.seed, first)
        command = self.subject.translate(replace(self.prepared, workload=lambda *_: requests))
        if isinstance(command, Unsupported):
            raise ConfigError(f"{self.subject.name} cannot be timed: {command.reason}")
        begin = self.watch()
        answers = self.engine.generate(command.asks)
        return self.watch() - begin, answers


class TimedPair:
    """Both engines, started here. ConfigError if the subject cannot run the cell without its drafter."""

    def __init__(self, subject: Subject, prepared: PreparedCell) -> None:
        self.subject, self.prepared = subject, prepared
        self.engines: list[RunningEngine] = []
        plain = prepared.default_baseline if is_foreign(subject) else plain_cell(prepared, foreign=False)
        try:
            for each in (prepared, plain):
                command = subject.translate(each)
                if isinstance(command, Unsupported):
                    raise ConfigError(f"{subject.name} cannot be timed: {command.reason}")
                unwatched = {} if is_foreign(subject) else UNWATCHED
                self.engines.append(start_engine(subject, replace(command, flags={**command.flags, **unwatched})))
        except BaseException:
            self.stop()
            raise

    def samples(self, turns: int) -> StartSamples:
        """Time `turns` turns of both engines and of the fixed work."""
        _, watch = clock_of(self.subject, self.prepared)
        work = fixed_work(self.prepared.gpus > 0)
        plain = plain_cell(self.prepared, is_foreign(self.subject))
        ours, theirs = (
            TimedEngine(self.subject, prepared, engine, watch)
            for prepared, engine in zip((self.prepared, plain), self.engines, strict=True)
        )

        def worked(_: int) -> float:
            begin = watch()
            work()
            return watch() - begin

        calls: Sequence[Callable[[int], Any]] = (ours.sample, theirs.sample, worked)
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


def is_foreign(subject: Subject) -> bool:
    """Whether it is another engine than the reference engine."""
    return Capability.RESOLUTION not in subject.profile.capabilities


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
