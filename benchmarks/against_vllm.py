"""The engine against vLLM's CPU build: tokens per second, plain and speculative, batch 1 and 8, in one run.

vLLM runs in its own environment and process, eagerly, on one thread; while one side is timed, the other waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from specmatrix.benchmarks.decoding import PAIRS
from specmatrix.benchmarks.metric import Metric, red, unmeasured
from specmatrix.benchmarks.pairs import interleave
from specmatrix.benchmarks.speculation import DRAFTS, STEPS, speculative
from specmatrix.benchmarks.subjects import NEW_TOKENS, difference, engine, fixed, prompts
from specmatrix.engine.api import LLM
from specmatrix.matrix.subjects.engine_process import EngineProcess
from specmatrix.matrix.subjects.protocol import Ask, EngineCommand
from specmatrix.matrix.subjects.vllm.subject import OFFLINE, ONE_THREAD, VllmSubject

# By batch size.
PLAIN: Final = {1: 4.0, 8: 2.0}
DRAFTED: Final = {1: 3.5, 8: 2.0}
FLAGS: Final[dict[str, Any]] = {"dtype": "float32", "enforce_eager": True, "enable_prefix_caching": False, "seed": 0}
FIELDS: Final = {"max_tokens": NEW_TOKENS, "temperature": 0.0, "ignore_eos": True, "logprobs": None, "top_logprobs": 0}


def measure() -> Iterator[Metric]:
    """A metric for each batch size, first without and then with the same draft on both sides."""
    draft = {"draft": str(DRAFTS["standalone"])}
    spec = {"method": "draft_model", "num_speculative_tokens": STEPS}
    yield from _compared(engine(), {}, {}, "plain_decoding", PLAIN)
    drafted = {"speculative_config": spec, "per_request_spec_decode_metrics": "detailed"}
    yield from _compared(speculative("standalone"), drafted, draft, f"speculative_decoding_k{STEPS}", DRAFTED)


def _compared(
    ours: LLM, flags: dict[str, Any], draft: dict[str, str], kind: str, goals: dict[int, float]
) -> Iterator[Metric]:
    subject = VllmSubject()
    if subject.version() is None:
        why = "vLLM is not installed; `specmatrix subjects install vllm` installs it"
        yield from (unmeasured(f"{kind}_batch_{batch}_vs_vllm", None, why) for batch in goals)
        return
    command = EngineCommand(FLAGS | flags, {"target": "llama-mini"} | draft, environment=OFFLINE | ONE_THREAD)
    theirs = EngineProcess(subject, command)
    try:
        for batch, goal in goals.items():
            yield _metric(ours, theirs, prompts(ours, batch), f"{kind}_batch_{batch}_vs_vllm", goal, subject)
    finally:
        theirs.stop()


def _metric(
    ours: LLM, theirs: EngineProcess, asked: Sequence[tuple[int, ...]], name: str, goal: float, subject: VllmSubject
) -> Metric:
    asks = [Ask(str(place), prompt, FIELDS) for place, prompt in enumerate(asked)]
    expected = [answer.output_ids for answer in theirs.generate(asks)]
    wrong = difference(ours.generate(asked, fixed(top_logprobs=2)), expected)
    if wrong:
        return red(name, goal, f"tokens differ from vLLM's: {wrong}")
    pairs = interleave(lambda: ours.generate(asked, fixed()), lambda: theirs.generate(asks), PAIRS)
    rates = (len(asked) * NEW_TOKENS / min(taken) for taken in (pairs.ours, pairs.theirs))
    note = "at best {:,.0f} tokens/s against {:,.0f} of vLLM {}".format(*rates, subject.version())
    return pairs.metric(name, goal, note=note)
