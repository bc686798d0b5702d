"""The answers of both sides of a comparison, in blocks: the sequential test may end it after each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from specmatrix.errors import ConfigError
from specmatrix.matrix.accuracy.compared import Compared, ComparedEngine, ComparedServer, served
from specmatrix.matrix.accuracy.task import Sample, Split, evaluate, offline, split
from specmatrix.matrix.accuracy.verdict import Test, pair
from specmatrix.matrix.gates.gate import State
from specmatrix.reports.render.progress import Counter, counting

if TYPE_CHECKING:  # a runtime import would import lm-eval
    from specmatrix.matrix.accuracy.model import TaskModel, Tick

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
    """Ask both sides until all questions are answered or a loss is certain.

    Running servers answer block by block in alternation; otherwise the baseline answers all questions first.
    """
    offline()
    starts: dict[str, dict[str, Any]] = {}
    baseline, cell = list[Sample](), list[Sample]()
    tests: tuple[Test, ...] = ()
    with counting(2 * len(questions.asked), "answer") as counter, ExitStack() as stack:
        ask = partial(_asking, asking, compared, starts, counter)
        if compared.run:
            of_baseline = stack.enter_context(ask("baseline", compared.baseline))
        else:
            known = iter(_all(ask("baseline", compared.baseline), questions))
            of_baseline = lambda block: [next(known) for _ in block.asked]  # noqa: E731 - a def cannot be assigned here
        of_cell = stack.enter_context(ask("cell", compared.cell))
        for block in questions.blocks(BLOCK):
            baseline += of_baseline(block)
            cell += of_cell(block)
            tests = pair(baseline, cell)
            if any(test.state is State.FAIL for test in tests):
                break
    return PairedRun(baseline, cell, tests, starts)


def _all(asked: AbstractContextManager[Callable[[Split], Sequence[Sample]]], questions: Split) -> Sequence[Sample]:
    """All answers of a side; its engine is closed afterwards."""
    with asked as ask:
        return ask(questions)


@contextmanager
def _opened(compared: Compared, one: ComparedEngine | ComparedServer, tick: Tick) -> Iterator[TaskModel]:
    """Yield an lm-eval model backed by one side. ConfigError if it cannot start."""
    if isinstance(one, ComparedServer):
        with served(one) as server:
            from specmatrix.matrix.accuracy.served import ServedModel

            yield ServedModel(server, tick)
        return
    from specmatrix.matrix.accuracy.model import EngineModel

    yield EngineModel(one.config, compared.locate, tick)


@contextmanager
def _asking(
    asking: Asking,
    compared: Compared,
    starts: dict[str, dict[str, Any]],
    counter: Counter,
    side: str,
    engine: ComparedEngine | ComparedServer,
) -> Iterator[Callable[[Split], Sequence[Sample]]]:
    """Yield a function that answers questions with one side; on exit, store its configuration and counters in
    `starts`."""
    start = time.perf_counter()
    with _opened(compared, engine, partial(counter, f"{side} {engine.name}")) as model:
        yield lambda block: evaluate(asking.task, block, model, asking.max_new_tokens)
        starts[side] = {
            "cell": engine.name,
            "resolved": dict(model.resolved),
            "readback": dict(model.readback),
            "evidence": dict(model.evidence),
            "seconds": time.perf_counter() - start,
        }
