"""What vLLM's suffix decoding read and drafted, call by call, so that an oracle can draft the same rounds. Runs in
vLLM's environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from specmatrix.matrix.subjects.protocol import JournalEntry

CALLS: Final = ("start_request", "add_active_response", "speculate", "stop_request")
OPTIONS: Final = ("max_tree_depth", "max_cached_requests", "max_spec_factor", "min_token_prob")


@dataclass
class Heard:
    """What the drafter read of a completion: the tokens of its output, also behind a stop, and how many each verify
    round emitted."""

    id: int
    tokens: list[int] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    prompt: int = 0  # its length, until the step that reads it


class LookupLog:
    """Attaches to the drafter of an engine in this process. entries: a journal of its calls, in which a request that
    starts anew after a preemption is first forgotten."""

    def __init__(self, llm: Any) -> None:
        self.entries: list[JournalEntry] = []
        self._heard: dict[str, Heard] = {}
        cache = cache_of(llm)
        for name in CALLS:
            setattr(cache, name, partial(self._call, name, getattr(cache, name)))

    def heard(self, name: str) -> Heard:
        """Of a completion by vLLM's name for it."""
        return self._heard.setdefault(name, Heard(len(self._heard)))

    def _call(self, what: str, real: Any, request: str, *given: Any, **more: Any) -> Any:
        one = self.heard(request.partition("-")[0])  # vLLM adds random digits
        if what == "start_request":
            if one.tokens:
                self._note("forget", one)
            self._note("open", one)
            one.prompt = len(given[0])
        elif what == "add_active_response":
            read = one.prompt + len(one.tokens) if one.prompt else len(given[0])
            self._note("settle", one, read)
            one.rounds += [] if one.prompt else [len(given[0])]
            one.tokens += map(int, given[0])
            one.prompt = 0
        else:
            self._note("launch" if what == "speculate" else "close", one)
        return real(request, *given, **more)

    def _note(self, operation: str, one: Heard, number: int = 0) -> None:
        self.entries.append((operation, one.id, number, ()))


def cache_of(llm: Any) -> Any:
    """The SuffixDecodingCache of an engine whose only worker is in this process."""
    return llm.engine_core.engine_core.model_executor.driver_worker.worker.model_runner.drafter.suffix_cache


def suffix_options(llm: Any) -> Mapping[str, Any]:
    """The drafter's options, named as the reference engine resolves them."""
    config = llm.vllm_config.speculative_config
    return {name: getattr(config, f"suffix_decoding_{name}") for name in OPTIONS} | {"max_spec_offset": 0.0}
