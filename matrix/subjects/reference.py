"""The reference engine in this process as a subject."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.api import LLM, Output
from engine.core.config import EngineConfig
from engine.core.request import SamplingParams
from matrix.subjects.protocol import Answer, Ask, Capability, Memory
from matrix.zoo.registry import resolve_path

# How the model names of a cell become folders.
checkpoint = resolve_path


class ReferenceSubject:
    """Launches the engine in process; shows everything that a gate can ask for. locate: model name to its folder."""

    name = "reference"
    capabilities = frozenset(Capability)

    def __init__(self, locate: Callable[[str], Path] = resolve_path) -> None:
        self._locate = locate

    def launch(self, config: EngineConfig) -> ReferenceSession:
        """Load the models and wire the engine. ConfigError for what cannot run."""
        return ReferenceSession(LLM(config, self._locate))


class ReferenceSession:
    """One engine in process, driven step by step so that a request can be aborted at a token."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm

    @property
    def resolved(self) -> Mapping[str, Any]:
        return self.llm.resolved.as_dict()

    @property
    def launch_hash(self) -> str:
        return self.llm.resolved.launch_hash()

    def generate(self, asks: Sequence[Ask]) -> list[Answer]:
        """Run the asks together to their end. RequestError if one of them can never run."""
        rids = [self.llm.add(ask.prompt, sampling(ask)) for ask in asks]
        stops = {rid: ask.abort_after for rid, ask in zip(rids, asks, strict=True) if ask.abort_after is not None}
        more = True
        while more:
            more = self.llm.step()
            for rid in [rid for rid, after in stops.items() if len(self.llm.request(rid).output) >= after]:
                del stops[rid]
                more |= self.llm.abort(rid)
        return [self._answer(ask, rid) for ask, rid in zip(asks, rids, strict=True)]

    def _answer(self, ask: Ask, rid: int) -> Answer:
        prompt = tuple(self.llm.request(rid).prompt)
        return answer(ask, prompt, self.llm.take(rid))

    def readback(self) -> Mapping[str, Any]:
        return self.llm.readback()

    def counters(self) -> Mapping[str, int]:
        return self.llm.probes

    def journal(self) -> tuple[Sequence[tuple[str, int, tuple[int, ...]]], int, int]:
        ledger = self.llm.loop.scheduler.ledger
        return self.llm.journal, ledger.num_pages, ledger.page_size

    def memory(self) -> Memory:
        ledger = self.llm.loop.scheduler.ledger
        return Memory(ledger.num_pages, len(ledger.free), ledger.cached, len(ledger.accounts))

    def close(self) -> None:
        """Nothing to return: the engine goes with its last reference."""


def sampling(ask: Ask) -> SamplingParams:
    """The engine's parameters of an ask."""
    return SamplingParams(
        max_new_tokens=ask.max_new_tokens,
        temperature=ask.temperature,
        top_k=ask.top_k,
        top_p=ask.top_p,
        seed=ask.seed,
        stop=ask.stop,
        stop_token_ids=ask.stop_token_ids,
        ignore_eos=ask.ignore_eos,
        top_logprobs_num=ask.top_logprobs,
    )


def answer(ask: Ask, prompt_ids: tuple[int, ...], output: Output) -> Answer:
    """An engine's output in the words of the protocol."""
    return Answer(
        name=ask.name,
        prompt_ids=prompt_ids,
        output_ids=output.output_ids,
        text=output.text,
        finish=output.finish.reason,
        matched=output.finish.matched,
        cached_tokens=output.cached_tokens,
        accept_lengths=output.accept_lengths,
        logprobs=output.logprobs,
        top_logprobs=output.top_logprobs,
        meta_info=output.meta_info,
    )
