"""The answers of an engine with and without a drafter, in blocks: the sequential test may end the run after each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

from specmatrix.engine.core.config.asked import AUTO, EngineConfig
from specmatrix.errors import ConfigError, EngineError
from specmatrix.matrix.accuracy.task import EXTRACTORS, Sample, Split, evaluate, offline, split
from specmatrix.matrix.cells.axes import AXES, describe
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.zoo.published.pairs import ModelPair
from specmatrix.matrix.zoo.registry import resolve_path, verify_cells
from specmatrix.reports.render.console import Counter, counting
from specmatrix.reports.stats import detectable_drop, loss_evidence, paired_difference, sequential_mcnemar, wilson

# Axes that the task decides: it has its own questions, sampling parameters and stop strings.
FILES: Final = ("accuracy.json", "accuracy.md")
FIXED: Final = ("sampling", "finish", "abort")


@dataclass(frozen=True, slots=True)
class ComparedEngine:
    """An engine of the comparison: its name in the report and its configuration."""

    name: str
    config: EngineConfig


@dataclass(frozen=True, slots=True)
class Compared:
    """algorithm: the cell's, in lower case. folders: of each model that either engine loads, the target first."""

    algorithm: str
    baseline: ComparedEngine
    cell: ComparedEngine
    folders: Mapping[str, Path]

    def locate(self, name: str) -> Path:
        """The folder of a model, or the file of the zoo's corpus."""
        return self.folders[name] if name in self.folders else resolve_path(name)


def of_cell(text: str) -> Compared:
    """A zoo cell by its id. ConfigError if it is unknown or sets an axis that the task decides."""
    cell = Cell.from_id(text)
    asked = [(axis.name, cell.values[axis.name]) for axis in AXES if axis.name in FIXED]
    if own := [(name, value) for name, value in asked if value != Cell._field_defaults[name]]:
        raise ConfigError(f"cell {text} sets {describe(own)}, which the task decides; omit it")
    if cell.ranks > 1:
        raise ConfigError(f"cell {text} must have 1 rank for accuracy, got {cell.ranks}; omit tp{cell.tp}")
    names = [name for name in (cell.target, cell.draft) if name is not None]
    baseline, start = (ComparedEngine(each.id, _ample(each)) for each in (cell.canonical, cell))
    verify_cells([cell])
    return Compared(cell.algorithm, baseline, start, {name: resolve_path(name) for name in names})


def of_pair(pair: ModelPair, folders: Mapping[str, Path]) -> Compared:
    """A pair of published checkpoints in `folders`."""
    baseline = ComparedEngine(f"{pair.target}.none", _deterministic(pair.baseline))
    return Compared(pair.algorithm.lower(), baseline, ComparedEngine(pair.name, _deterministic(pair.config)), folders)


def _ample(cell: Cell) -> EngineConfig:
    """The cell's configuration, with ample memory sized for the task's questions instead of the cell's workload."""
    config = _deterministic(cell.config())
    return config if cell.memory != "ample" else replace(config, max_total_tokens=AUTO)


def _deterministic(config: EngineConfig) -> EngineConfig:
    """Deterministic inference, so that a difference between the runs is a fault and not rounding."""
    return replace(config, enable_deterministic_inference=True)


MAX_EXAMPLES: Final = 5
# Questions per evaluation of the sequential test: enough to fill a batch several times, as each block costs lm-eval
# another second.
BLOCK: Final = 64


@dataclass(frozen=True, slots=True)
class Asking:
    """The task's settings. num_fewshot: examples per prompt."""

    task: str
    data: Path
    train: Path | None = None
    limit: int | None = None
    num_fewshot: int = 0
    max_new_tokens: int = 256

    def __post_init__(self) -> None:
        for name, low, high in (("num_fewshot", 0, MAX_EXAMPLES), ("max_new_tokens", 1, None), ("limit", 1, None)):
            value = getattr(self, name)
            if value is not None and (value < low or (high is not None and value > high)):
                allowed = f"at least {low}" if high is None else f"{low} to {high}"
                raise ConfigError(f"{name} must be {allowed}, got {value}")

    def questions(self) -> Split:
        """The questions and examples of the files. DataError as `split`."""
        return split(self.data, self.train, self.num_fewshot, self.limit)


class PairedRun(NamedTuple):
    """The answers of both sides to the same questions, with their tests. starts: configuration and counters by side."""

    baseline: Sequence[Sample]
    cell: Sequence[Sample]
    tests: tuple[Test, ...]
    starts: dict[str, dict[str, Any]]


def paired_run(asking: Asking, questions: Split, compared: Compared) -> PairedRun:
    """Ask the baseline all questions, then the cell until all are answered or a loss is certain: a GPU has no room for
    both engines."""
    offline()
    starts: dict[str, dict[str, Any]] = {}
    cell, tests = list[Sample](), tuple[Test, ...]()
    with counting(2 * len(questions.asked), "answer") as counter:
        with _asking(asking, compared, starts, counter, "baseline", compared.baseline) as ask:
            baseline = ask(questions)
        del ask  # it holds the engine
        with _asking(asking, compared, starts, counter, "cell", compared.cell) as ask:
            for block in questions.blocks(BLOCK):
                cell += ask(block)
                tests = pair(baseline[: len(cell)], cell)
                if any(test.state is State.FAIL for test in tests):
                    break
    return PairedRun(baseline[: len(cell)], cell, tests, starts)


@contextmanager
def _asking(
    asking: Asking,
    compared: Compared,
    starts: dict[str, dict[str, Any]],
    counter: Counter,
    side: str,
    engine: ComparedEngine,
) -> Iterator[Callable[[Split], Sequence[Sample]]]:
    """Yield a function that answers questions with one side; on exit, store its configuration and counters in
    `starts`."""
    from specmatrix.matrix.accuracy.model import EngineModel  # imports lm-eval

    start = time.perf_counter()
    model = EngineModel(engine.config, compared.locate, partial(counter, f"{side} {engine.name}"))
    yield lambda block: evaluate(asking.task, block, model, asking.max_new_tokens)
    starts[side] = {
        "cell": engine.name,
        "resolved": model.llm.resolved.as_dict(),
        "readback": dict(model.llm.readback()),
        "evidence": dict(model.evidence),
        "seconds": time.perf_counter() - start,
    }


# The false-positive rate per comparison of equal engines, and each test's share of it.
FALSE_ALARMS: Final = 0.01
TESTS: Final = 2 * len(EXTRACTORS) + 1
ALPHA: Final = FALSE_ALARMS / TESTS
# Power: the share of runs with a true drop that must be red for the drop to count as detectable.
POWER: Final = 0.8
# With fewer right answers than this, even losing all of them would not reach ALPHA.
MIN_RIGHT: Final = next(lost for lost in count(1) if loss_evidence(lost, 0) > 1 / ALPHA)


class PairingError(EngineError):
    """Two runs that did not see the same prompts."""


@dataclass(frozen=True, slots=True)
class Test:
    """One paired test over n questions. baseline, cell: questions that are good there; lost, won: discordant ones."""

    __test__ = False  # not a pytest class

    name: str
    n: int
    baseline: int
    cell: int
    lost: int
    won: int
    p: float
    state: State
    message: str

    def as_dict(self) -> dict[str, Any]:
        """As JSON-serialisable data. The 95 % interval and the detectable drop are fractions of the questions."""
        return asdict(self) | {
            "baseline_interval": list(wilson(self.baseline, self.n)),
            "cell_interval": list(wilson(self.cell, self.n)),
            "difference_interval": list(paired_difference(self.lost, self.won, self.n)),
            "alpha": ALPHA,
            "detectable_drop": detectable_drop(self.baseline, self.won, self.n, ALPHA, POWER, _at_the_end),
            "power": POWER,
            "state": str(self.state),
        }


def pair(baseline: Sequence[Sample], cell: Sequence[Sample]) -> tuple[Test, ...]:
    """Tests of accuracy and validity under each extractor, and of answers that end before the length limit.

    PairingError if the runs differ in a question or in its prompt.
    """
    if [s.line for s in baseline] != [s.line for s in cell]:
        raise PairingError(f"the runs must answer the same questions, got {len(baseline)} and {len(cell)}")
    for one, other in zip(baseline, cell, strict=True):
        if one.prompt_hash != other.prompt_hash:
            raise PairingError(f"the prompts of line {one.line} differ between the runs, so answers cannot be paired")
    both = baseline, cell
    right = (_test(f"right by {name}", *([s.right[name] for s in side] for side in both)) for name in EXTRACTORS)
    valid = (_test(f"an answer by {name}", *([s.valid[name] for s in side] for side in both)) for name in EXTRACTORS)
    return *right, *valid, _test("ended before the limit", *([not s.by_length for s in side] for side in both))


def unproven(algorithm: str, evidence: Mapping[str, int]) -> str:
    """Why a cell's run proves nothing about its drafter, "" if drafts were proposed and accepted."""
    silent = [counter for counter in ("spec.drafted", "spec.accepted") if not evidence.get(counter)]
    if algorithm == "none" or not silent:
        return ""
    return f"the cell requests {algorithm}, but {silent[0]} stayed 0, so its answers prove nothing about speculation"


def overall(tests: Sequence[Test], doubt: str) -> State:
    """FAIL if any test fails, else NOT MEASURED if any lacks evidence or there is a doubt."""
    states = {test.state for test in tests} | ({State.NOT_MEASURED} if doubt else set())
    return next((state for state in (State.FAIL, State.NOT_MEASURED) if state in states), State.PASS)


def counts(samples: Sequence[Sample]) -> Mapping[str, int | float]:
    """Statistics of a run besides accuracy. tokens_per_round is over the verify rounds of all answers."""
    rounds = sum(s.rounds for s in samples)
    tokens = sum(s.tokens for s in samples)
    numbers: dict[str, int | float] = {"questions": len(samples), "tokens": tokens, "rounds": rounds}
    for extractor in EXTRACTORS:
        numbers[f"right_{extractor}"] = sum(s.right[extractor] for s in samples)
        numbers[f"invalid_{extractor}"] = sum(not s.valid[extractor] for s in samples)
    numbers["ended_by_length"] = sum(s.by_length for s in samples)
    numbers["retractions"] = retractions = sum(s.retractions for s in samples)
    # Every prefill, the first and each after a retraction, yields a token without a round.
    numbers["tokens_per_round"] = (tokens - len(samples) - retractions) / rounds if rounds else 0.0
    return numbers


def _at_the_end(lost: int, won: int) -> float:
    """An upper bound on the sequential test's p value, which may have been smaller earlier."""
    return 1 / loss_evidence(lost, won)


def _test(name: str, before: Sequence[bool], after: Sequence[bool]) -> Test:
    """before, after: whether each question is good on the baseline and on the cell."""
    losses = [was for was, now in zip(before, after, strict=True) if was != now]
    lost, won = sum(losses), len(losses) - sum(losses)
    p = sequential_mcnemar(losses)
    state, message = State.PASS, ""
    if p < ALPHA:
        state = State.FAIL
        message = f"the cell loses {lost} questions of {len(before)} and wins {won} (p = {p:.2g}, allowed {ALPHA})"
    elif name.startswith("right") and sum(before) < MIN_RIGHT:
        state = State.NOT_MEASURED
        message = (
            f"the baseline answers {sum(before)} of {len(before)} questions correctly; with fewer than {MIN_RIGHT} "
            "even losing all of them would not be significant"
        )
    return Test(name, len(before), sum(before), sum(after), lost, won, p, state, message)
