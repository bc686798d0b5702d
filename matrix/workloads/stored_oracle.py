"""Reads an oracle file: greedy continuations by transformers, and each drafter's acceptance lengths on them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from specmatrix.matrix.workloads.questions import ORACLE_PROMPTS, questions
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.zoo.gsm_mini import prompt_of
from specmatrix.matrix.zoo.registry import oracle_file

_NAME: Final = re.compile(r"q(\d+)(\.again)?")
_WAVE: Final = re.compile(r"w\d+\.\d+")

Combination = tuple[str, int, int, int]  # drafter (lower case), steps, topk, draft tokens


@dataclass(frozen=True)
class Oracle:
    """`continuations[i]`: token ids after prompt i. `logprobs[i]`: of these tokens, in nats.
    `rounds[combination][i]`: tokens per verify round of prompt i, bonus included; a continuation's first token belongs
    to no round. `reach[drafter][i][p]`: consecutive correct drafts of a chain in a round that starts after p tokens of
    earlier rounds."""

    continuations: tuple[tuple[int, ...], ...]
    rounds: Mapping[Combination, tuple[tuple[int, ...], ...]]
    logprobs: tuple[tuple[float, ...], ...]
    reach: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)

    def continuation(self, request: RequestSpec) -> tuple[int, ...]:
        """Token ids after the prompt of a request that has an `oracle_index`."""
        index = oracle_index(request)
        return () if index is None else self.continuations[index]

    def scores(self, request: RequestSpec) -> tuple[float, ...]:
        """Log-probabilities of these tokens in nats."""
        index = oracle_index(request)
        return () if index is None else self.logprobs[index]


def rewriting(target: str) -> str:
    """The command that recomputes a target's oracle and writes its file."""
    return f"python -m specmatrix.matrix.zoo.oracle {target}"


def oracle_index(request: RequestSpec) -> int | None:
    """Index of a request's prompt in the oracle, by its name (in waves by its text); None if not included, or if logit
    rules or a session's history give the request another text."""
    if request.ruled or (request.session is not None and request.session.follows is not None):
        return None
    if _WAVE.fullmatch(request.name):
        return _indices().get(request.prompt)
    found = _NAME.fullmatch(request.name)
    index = int(found[1]) if found else ORACLE_PROMPTS
    return index if index < ORACLE_PROMPTS else None


@cache
def _indices() -> dict[str, int]:
    return {prompt_of(question): index for index, (question, _) in enumerate(questions()[:ORACLE_PROMPTS])}


def oracle_of(target: str) -> Oracle | None:
    """The oracle of a zoo target; None without a file."""
    return load_oracle(oracle_file(target))


@cache
def load_oracle(path: Path) -> Oracle | None:
    """Load an oracle file; None if there is none, which gates report as NOT MEASURED."""
    if not path.is_file():
        return None
    return decode(json.loads(path.read_text(encoding="utf-8")))


def decode(body: Mapping[str, Any]) -> Oracle:
    """{"continuations": [ids], "logprobs": [nats], "acceptance": {drafter: {"steps/topk/draft_tokens": [rounds]}},
    "reach": {drafter: [counts]}}."""
    rounds: dict[Combination, tuple[tuple[int, ...], ...]] = {}
    for algorithm, combinations in body["acceptance"].items():
        for shape, prompts in combinations.items():
            steps, topk, width = (int(part) for part in shape.split("/"))
            rounds[algorithm.lower(), steps, topk, width] = tuple(map(tuple, prompts))
    reach = {name: tuple(map(tuple, prompts)) for name, prompts in body.get("reach", {}).items()}
    return Oracle(tuple(map(tuple, body["continuations"])), rounds, tuple(map(tuple, body["logprobs"])), reach)
