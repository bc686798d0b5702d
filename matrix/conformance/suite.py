"""The contract that every draft algorithm, built in or custom, must satisfy.

Whatever the algorithm proposes, the engine's output equals that of plain decoding, at both timings, with pages, chunked
prefill, retraction, cached prompts and sampling, and however many drafts each row of a batch accepts; the drafter
matches its traits; and it is never disabled. With
strict_memory the engine validates every proposal against the protocol (`engine.spec.drafter`); the suite inspects what
the hooks do to their inputs, to the host and to the process.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from specmatrix.engine.api import LLM, Output
from specmatrix.engine.build import Locate
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.config.defaults import SHAPE
from specmatrix.engine.core.draft.algorithms import Topology, Traits, is_registered
from specmatrix.engine.core.schedule.request import Phase, SamplingParams
from specmatrix.matrix.conformance.forced_counts import Drafted, ForcedCounts, first_difference
from specmatrix.matrix.conformance.inspector import inspect_drafter, restored_process_state
from specmatrix.matrix.oracles.ngram import Grams
from specmatrix.reports.wording import spans

PROMPTS: Final = (
    "Question: A garden is 19 feet long and 5 feet wide. What is its area in square feet?\nAnswer:",
    "Question: Eli had 75 keys. He gave 11 of them to Cora. How many keys are left?\nAnswer:",
    "Question: Eli had 75 keys.",
)
PARAMS: Final = (
    SamplingParams(max_new_tokens=24),
    SamplingParams(max_new_tokens=20, temperature=0.9, seed=3, ignore_eos=True),
    SamplingParams(max_new_tokens=17, temperature=0.6, top_k=20, seed=4, return_logprob=True),
)
_TABLE: Final = msgspec.yaml.decode(
    Path(__file__).with_name("starts.yaml").read_bytes(), type=dict[str, dict[str, dict[str, Any]]]
)
STARTS, FORCED = _TABLE["starts"], _TABLE["forced"]
FORCED_PARAMS: Final = (
    SamplingParams(max_new_tokens=160, ignore_eos=True),
    SamplingParams(max_new_tokens=160, ignore_eos=True, temperature=0.9, seed=3),
    SamplingParams(max_new_tokens=160, ignore_eos=True),
)
STRICT: Final = {"strict_memory": 2, "kv_stamps": True}


class StartResult(NamedTuple):
    """The result of one engine start. violations: a message for each.

    rounds: tokens of every verify round, by request, of the first pass over the prompts. retracted: number of
    retractions.
    """

    start: str
    violations: tuple[str, ...]
    rounds: tuple[tuple[int, ...], ...]
    retracted: int

    @property
    def tokens_per_round(self) -> float:
        every = [length for each in self.rounds for length in each]
        return sum(every) / len(every) if every else 0.0


def run_suite(traits: Traits, asked: Mapping[str, Any], locate: Locate) -> Iterator[StartResult]:
    """Test an algorithm in a sequence of engine starts.

    asked: configuration fields shared by all starts, including the target. ConfigError or RequestError if they cannot
    run.
    """
    shared: dict[str, Any] = {**STRICT, **asked, "speculative_algorithm": traits.name}
    without_draft = {name: value for name, value in asked.items() if not name.startswith("speculative_")}
    plain_engine = LLM(EngineConfig.from_flags(without_draft), locate)
    plain, long = (plain_engine.generate(PROMPTS, params) for params in (PARAMS, FORCED_PARAMS))
    for shape, sizes in shapes(traits, asked).items():
        for name, start in STARTS.items():
            config = EngineConfig.from_flags({**start, **sizes, **shared})
            yield _result(f"{shape}, {name}", traits, config, locate, plain)
        for name, start in FORCED.items() if traits.drafts else ():
            config = EngineConfig.from_flags({**start, **sizes, **shared})
            yield _forced_result(f"{shape}, {name}", traits, config, locate, long)


def shapes(traits: Traits, asked: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """The draft shapes to test: the requested one, else a chain, a tree and adaptive chains as far as supported."""
    if not traits.drafts:
        return {"no drafts": {}}
    if asked.keys() & {*SHAPE}:
        return {"as requested": {}}
    if traits.block:
        return {"block": {}}
    known: dict[str, dict[str, object]] = {"chain": {"speculative_num_steps": 3, "speculative_eagle_topk": 1}}
    if traits.topology is Topology.TREE:
        known["tree"] = {"speculative_num_steps": 3, "speculative_eagle_topk": 3}
    if traits.adaptive:
        known["adaptive"] = {"speculative_adaptive": True}
    return known


def _result(start: str, traits: Traits, config: EngineConfig, locate: Locate, plain: Sequence[Output]) -> StartResult:
    with warnings.catch_warnings():
        # The same message is among the violations.
        warnings.filterwarnings("ignore", message="the drafter of ", category=RuntimeWarning)
        with restored_process_state() as changes:
            llm = LLM(config, locate)
            inspected = inspect_drafter(llm)
            # In the second pass the prompts are cached.
            first, second = (llm.generate(PROMPTS, PARAMS) for _ in range(2))
    violations = [llm.drafter_error] if llm.drafter_error is not None else []
    violations += inspected.violations if inspected is not None else ()
    violations += [f"the drafter of {traits.name} {change}" for change in changes]
    violations += [*_differences(first, plain), *_differences(second, plain)]
    violations += [message for holds, message in _requirements(llm, traits) if not holds]
    rounds = tuple(output.accept_lengths for output in first)
    return StartResult(start, tuple(dict.fromkeys(violations)), rounds, llm.counters["retract.done"])


def _forced_result(
    start: str, traits: Traits, config: EngineConfig, locate: Locate, plain: Sequence[Output]
) -> StartResult:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the drafter of ", category=RuntimeWarning)
        llm = LLM(config, locate)
        executor: Any = llm.loop.executor
        requests = llm.loop.scheduler.requests
        encoded = [tuple(llm.tokenizer.prompt_ids(prompt, llm.vocab_size)) for prompt in PROMPTS]
        texts = {prompt: (*prompt, *output.output_ids) for prompt, output in zip(encoded, plain, strict=True)}
        own = is_registered(traits.name) or llm.resolved.ngram is None or llm.resolved.ngram.external_corpus_path
        grams = None if own else Grams(llm.resolved.as_dict()["ngram"])
        drafter = ForcedCounts(
            executor.guard.drafter,
            texts,
            lambda: {one.row: tuple(one.prompt) for one in requests.values() if one.phase is Phase.RUNNING},
            grams,
        )
        executor.guard.drafter = drafter
        first = llm.generate(PROMPTS, FORCED_PARAMS)
        together, alone = drafter.begin(), []
        for prompt, params in zip(PROMPTS, FORCED_PARAMS, strict=True):
            alone += llm.generate([prompt], [params])
    violations = [llm.drafter_error] if llm.drafter_error is not None else []
    violations += [*_differences(first, plain), *_differences(alone, plain)]
    if not violations:
        violations += [drafter.wrong] if drafter.wrong else []
        violations += () if traits.irregular and grams is None else drafter.unforced()
        violations += _dependent(traits, llm, drafter, together)
    violations += [message for holds, message in _requirements(llm, traits) if not holds]
    return StartResult(start, tuple(violations), tuple(output.accept_lengths for output in first), 0)


def _dependent(
    traits: Traits, llm: LLM, drafter: ForcedCounts, together: Mapping[tuple[int, int], Drafted]
) -> Iterator[str]:
    """A message if a request is drafted for differently in a batch, where its rounds are its own; adaptive chains as
    far as both are deep."""
    adapts = bool(llm.resolved.adaptive_slots)
    if (traits.rounds == "own" or adapts) and (at := first_difference(together, drafter.drafted, adapts)) is not None:
        yield (
            f"request {at[0] + 1} at position {at[1]}: the drafts are {list(together[at].tokens[1:])} beside requests "
            f"that accepted other numbers of drafts, alone {list(drafter.drafted[at].tokens[1:])}"
        )


def _differences(outputs: Sequence[Output], plain: Sequence[Output]) -> Iterator[str]:
    """Errors and wrong tokens, each with the requests that have it."""
    found: dict[str, list[int]] = {}
    for number, (output, expected) in enumerate(zip(outputs, plain, strict=True), start=1):
        if output.finish.message is not None:
            found.setdefault(output.finish.message, []).append(number)
        elif output.output_ids != expected.output_ids:
            pairs = enumerate(zip_longest(output.output_ids, expected.output_ids))
            index, (got, wanted) = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
            found.setdefault(f"token {index} is {got}, with plain decoding {wanted}", []).append(number)
    for text, numbers in found.items():
        yield f"request{'s' * (len(numbers) > 1)} {spans(numbers)}: {text}"


def _requirements(llm: LLM, traits: Traits) -> list[tuple[bool, str]]:
    """The requirements on an engine after its answers: whether each holds, and the message if it does not."""
    executor: Any = llm.loop.executor
    ledger, resolved = llm.loop.scheduler.ledger, llm.resolved
    drafter, counters, lag = executor.drafter, llm.counters, llm.loop.lag
    names = [carry.name for carry in drafter.carries]
    leaked = ledger.counts.held
    most, pools = resolved.max_draft_tokens, len(executor.kv.full.pools) - 1
    idle = traits.drafts and not counters["spec.drafted"] and llm.drafter_error is None
    return [
        (not idle, "no drafts were proposed"),
        (drafter.traits is traits, "the drafter's traits are not the registered ones"),
        (drafter.nodes == most, f"the drafter's nodes must be {most}, the largest round, got {drafter.nodes}"),
        (
            bool(drafter.capture) == traits.needs_hidden,
            f"the drafter captures layers {drafter.capture}, but needs_hidden is {traits.needs_hidden}",
        ),
        (pools == traits.own_kv, f"the drafter has {pools} KV pools, but own_kv is {traits.own_kv}"),
        (len(set(names)) == len(names), f"the names of carries must be distinct, got {', '.join(names)}"),
        (lag <= traits.max_lag, f"lag must be at most max_lag {traits.max_lag}, got {lag}"),
        (counters["stamp.wrong"] == 0, "KV slots of the target hold positions other than the ledger records"),
        (not leaked, f"{leaked} pages were leaked"),
    ]
