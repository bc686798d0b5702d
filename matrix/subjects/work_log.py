"""Records the operations requested of a reference engine and the forwards that it runs, each with its position in the
journal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, cast
from weakref import WeakMethod, WeakSet

from torch import Tensor

from specmatrix.engine.api import LLM
from specmatrix.engine.core.memory.ledger import Entry
from specmatrix.engine.core.schedule.request import Phase, Request
from specmatrix.engine.core.schedule.step import StepPlan, StepResult
from specmatrix.engine.spec.drafter import DraftTree
from specmatrix.matrix.subjects.observations import Budgeted, Moment, SentRequest, StepForwards, WorkLog


class WorkRecorder:
    """Attaches to an engine without changing its results. journal: of the engine, as it grows.

    A round that replays as a CUDA graph has no forwards here: a graph runs no Python.
    """

    def __init__(self, llm: LLM, journal: Sequence[Entry]) -> None:
        self._journal = journal
        self._moments: list[Moment] = []
        self._sent: dict[int, SentRequest] = {}
        self._forwards: list[StepForwards] = []
        self._drawn: dict[tuple[int, int], list[tuple[tuple[int, float], ...]]] = defaultdict(list)
        self._budgets: list[Budgeted] = []
        self._stale: list[int] = []
        self._live = llm.loop.scheduler.requests
        self._requests: WeakSet[Request] = WeakSet()
        self._executors: WeakSet[Any] = WeakSet()
        loop, sessions = cast(Any, llm.loop), cast(Any, llm.sessions)
        add, step, abort = weak_method(loop, "add"), weak_method(loop, "step"), weak_method(loop.scheduler, "abort")
        close, opened = weak_method(sessions, "close"), sessions.sessions

        def noted_add(request: Request) -> None:
            add(request)
            params = request.params
            facts = request.prompt, params.max_new_tokens, request.holds, params.logprob_start_len
            self._sent[request.rid] = SentRequest(request.rid, request.account, *facts)
            self._requests.add(request)
            self._note("send", request.rid)

        def noted_step() -> None:
            self._note("step")
            step()

        def noted_abort(rid: int) -> bool:
            self._note("abort", rid)
            place = len(self._moments)
            stopped: bool = abort(rid)
            if not stopped:  # it had ended before
                del self._moments[place - 1]
            return stopped

        def noted_close(name: str) -> None:
            if name in opened and opened[name].account:
                self._note("end", opened[name].account)
            close(name)

        loop.add, loop.step, loop.scheduler.abort, sessions.close = noted_add, noted_step, noted_abort, noted_close
        self.attach(loop.executor)

    def attach(self, executor: Any) -> None:  # noqa: ANN401 - an executor of any stack
        """Also record what this executor runs: an engine has a new one once its memory or weights are renewed."""
        launch, begin = weak_method(executor, "launch"), weak_method(executor.plain.kv, "begin")

        def noted_launch(plan: StepPlan) -> object:
            self._forwards.append(StepForwards(len(self._journal), 0, (), ()))
            if plan.budget is not None:
                self._budgets.append(Budgeted(tuple(row.rid for row in plan.rows), plan.budget))
            return launch(plan)

        collect = weak_method(executor, "collect")

        def noted_collect(handle: Any) -> object:  # noqa: ANN401 - of any executor
            result: StepResult = collect(handle)
            if result.lengths is not None:
                self._forwards[-1] = self._forwards[-1]._replace(verified=max(result.lengths))
            if result.stamps_wrong and not self._stale:
                self._stale = [row.rid for row in handle.plan.rows] + [0] * handle.plan.prefill
            if result.confidences is not None and result.lengths is not None:
                rows = tuple(row.rid for row in handle.plan.rows)
                rooms = tuple(self._room(rid) for rid in rows)
                sure = tuple(map(tuple, result.confidences))
                self._budgets.append(Budgeted(rows, None, tuple(result.lengths), sure, rooms))
            return result

        def noted_begin(*given: object) -> object:
            kv = begin(*given)
            last = self._forwards[-1]
            self._forwards[-1] = last._replace(read=last.read + kv.slots[0].read.shape[1])
            return kv

        logits = weak_method(executor.target, "logits")

        def noted_logits(hidden: Tensor) -> object:
            last = self._forwards[-1]
            self._forwards[-1] = last._replace(logits=last.logits + hidden[..., 0].numel())
            return logits(hidden)

        verify = executor.plain.verify

        def noted_verify(logits: Tensor, tree: DraftTree, start: Tensor, rows: Any, *given: object) -> object:  # noqa: ANN401
            if tree.q is not None and not logits.is_cuda:
                drafts = tree.tokens[:, 1:]
                chances = tree.q.gather(2, drafts[..., None])[..., 0].tolist()
                keys = zip(rows.seed.tolist(), start.tolist(), strict=True)
                for key, *pair in zip(keys, drafts.tolist(), chances, strict=True):
                    self._drawn[key].append(tuple(zip(*pair, strict=True)))
            return verify(logits, tree, start, rows, *given)

        executor.launch, executor.plain.kv.begin, executor.plain.verify = noted_launch, noted_begin, noted_verify
        executor.collect = noted_collect
        executor.target.logits = noted_logits
        self._count(executor.target, "forward", "target")
        for model in _models(executor.drafter):
            self._count(model, "forward", "draft")
            if hasattr(model, "context"):
                self._count(model, "context", "draft")
        self._executors.add(executor)

    def retracted(self, rid: int) -> None:
        """Record that a request is about to be retracted from outside."""
        self._note("retract", rid)

    def flushed(self) -> None:
        """Record that the cache is about to be emptied."""
        self._note("flush")

    @property
    def executors(self) -> int:
        """Number of executors still alive besides the running one."""
        return len(self._executors) - 1

    def log(self) -> WorkLog:
        """Everything since the engine's start."""
        forwards, budgets = tuple(self._forwards), tuple(self._budgets)
        return WorkLog(tuple(self._moments), dict(self._sent), forwards, self._drawn, budgets, self._stale)

    @property
    def alive(self) -> int:
        """Number of request objects still alive."""
        return len(self._requests)

    def _room(self, rid: int) -> int:
        request = self._live.get(rid)
        return request.limit - request.num_tokens if request is not None and request.phase is Phase.RUNNING else 0

    def _note(self, what: str, number: int = 0) -> None:
        self._moments.append(Moment(len(self._journal), what, number))

    def _count(self, model: Any, name: str, kind: str) -> None:  # noqa: ANN401 - a target or any draft model
        run = weak_method(model, name)

        def counted(tokens: Tensor, *given: object, **named: object) -> object:
            shape = int(tokens.shape[0]), int(tokens.shape[1])
            last = self._forwards[-1]
            mine = (*(last.target if kind == "target" else last.draft), shape)
            self._forwards[-1] = last._replace(target=mine) if kind == "target" else last._replace(draft=mine)
            return run(tokens, *given, **named)

        setattr(model, name, counted)


def weak_method(owner: Any, name: str) -> Callable[..., Any]:  # noqa: ANN401 - any part of the engine
    """A method that does not keep its owner alive, so that a dropped engine is freed at once."""
    if name in vars(owner):  # attached before, in the same way
        wrapped: Callable[..., Any] = vars(owner)[name]
        return wrapped
    bound = WeakMethod(getattr(owner, name))

    def call(*given: object, **named: object) -> Any:  # noqa: ANN401 - as the method
        method = bound()
        assert method is not None
        return method(*given, **named)

    return call


def _models(drafter: Any) -> list[Any]:  # noqa: ANN401 - the draft networks of any built-in drafter
    found = getattr(drafter, "layers", None) or [getattr(drafter, "model", None)]
    return [model for model in dict.fromkeys(found) if model is not None]
