"""Runs requests on an engine and collects the data that gates judge."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import isfinite
from time import perf_counter

from specmatrix.matrix.subjects.engine_process import EngineFailed
from specmatrix.matrix.subjects.protocol import Answer, Capability, EngineCommand, Run, RunningEngine, Served
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.reports.wording import count


def run_requests(
    engine: RunningEngine,
    requests: Sequence[RequestSpec],
    capabilities: frozenset[Capability],
    history: Sequence[Served] | None = (),
    command: EngineCommand | None = None,
) -> Run:
    """Run requests on an engine. history: the requests that it has already served, None if unknown. command: their
    translation, None for the reference engine, which takes them as they are. EngineFailed if another engine returns a
    number that is not finite, a wrong number of completions, or a decreasing counter."""
    before = engine.counters()
    traces = Capability.TRACE in capabilities
    earlier = engine.trace() if traces else None
    start = perf_counter()
    answers = engine.generate(requests if command is None else command.asks)
    seconds = perf_counter() - start
    both = list(zip(requests, answers, strict=True))
    # The reference engine ends a request before it returns a number that is not finite.
    for request, answer in both if Capability.RESOLUTION not in capabilities else ():
        if wrong := _wrong(request, answer):
            raise EngineFailed(wrong)
    kept = [pair for request, answer in both if request.refused is None for pair in completions(request, answer)]
    evidence = {name: number - before.get(name, 0) for name, number in engine.counters().items()}
    if fallen := [name for name, number in evidence.items() if number < 0]:
        raise EngineFailed(f"counter {fallen[0]} fell by {-evidence[fallen[0]]}; counters only grow", "counters")
    journal = engine.journal() if {Capability.JOURNAL, Capability.ORDER} & capabilities else None
    return Run(
        requests=tuple(each for one in requests if one.refused is None for each in one.completions()),
        answers=tuple(answer for _, answer in kept),
        resolved=engine.resolved,
        readback=engine.readback(),
        evidence=evidence,
        memory=engine.memory(),
        journal=journal,
        work=engine.work() if Capability.WORK in capabilities else None,
        resources=engine.resources() if Capability.RESOURCES in capabilities else None,
        seconds=seconds,
        trace=engine.trace() if traces else None,
        earlier=earlier,
        served=() if history is None else (*history, *served(kept)),
        attempts=tuple((request, answer.refusal) for request, answer in both if request.refused is not None),
        ranks=engine.ranks() if Capability.RANKS in capabilities else None,
        capabilities=capabilities,
        flags={} if command is None else command.flags,
    )


def completions(request: RequestSpec, answer: Answer) -> list[tuple[RequestSpec, Answer]]:
    """A request's completions with their answers, as requests of their own; the answers may be fewer."""
    pairs = zip(request.completions(), (answer, *answer.further), strict=False)
    return [(one, replace(found, name=one.name)) for one, found in pairs]


def _wrong(request: RequestSpec, answer: Answer) -> str:
    """A fault in another engine's answer that no gate can judge, or "": a number that is not finite, or a wrong number
    of completions."""
    if numbers := [value for value in _logprobs(answer) if not isfinite(value)]:
        return f"the log-probabilities of {answer.name} include {numbers[0]}; they must be finite numbers"
    got = 1 + len(answer.further)
    if request.refused is not None or got == request.n:
        return ""
    refusal = f", as it was refused: {answer.refusal}" if answer.refusal else ""
    return f"{answer.name} must have {count(request.n, 'completion')}, got {got}{refusal}"


def _logprobs(answer: Answer) -> Iterator[float]:
    """All log-probabilities of an answer, those of its prompt, of alternatives and of further completions included."""
    for one in (answer, *answer.further):
        yield from one.logprobs
        yield from (value for value in one.prompt_logprobs if value is not None)
        for top in (*one.top_logprobs, *(top for top in one.prompt_top_logprobs if top)):
            yield from (value for _, value in top)


def served(answered: Iterable[tuple[RequestSpec, Answer]]) -> Iterator[Served]:
    """The served requests of a workload; turns of a streaming session share the ledger account of its first turn."""
    accounts: dict[str, int] = {}
    for request, answer in answered:
        if answer.refusal:
            continue
        name = str(answer.meta_info.get("id", 0))
        account = rid = int(name) if name.isdigit() else 0  # an engine without a journal may have other names
        if request.session is not None and request.session.streaming:
            account = accounts.setdefault(request.session.id, rid)
            if request.abort_after == 0 and not answer.output_ids and not answer.cached_tokens:
                continue
        tokens = (*answer.prompt_ids, *answer.meta_info.get("heard", answer.output_ids))
        rounds = tuple(answer.accept_lengths)
        yield Served(answer.name, rid, account, tokens, len(answer.prompt_ids), answer.retractions, rounds)
