"""OpenAI's HTTP API as subjects: any server that speaks it, judged by its texts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.axes import axis
from specmatrix.matrix.cells.cell import MODELS, Cell
from specmatrix.matrix.subjects.http.endpoint import BASELINE, INFO, NO_BASELINE, Endpoint, same
from specmatrix.matrix.subjects.http.sglang import START_RULES, biased, other_model, unmasked
from specmatrix.matrix.subjects.limits import request_fields
from specmatrix.matrix.subjects.profiles import profile_of
from specmatrix.matrix.subjects.protocol import (
    Answer,
    Capability,
    EngineCommand,
    Profile,
    RunningEngine,
    Subject,
    SubjectRequest,
    Unsupported,
)
from specmatrix.matrix.subjects.vllm.subject import BIASED
from specmatrix.matrix.workloads.questions import prompt_ids
from specmatrix.matrix.workloads.request import RequestSpec

if TYPE_CHECKING:
    from specmatrix.matrix.workloads.prepared_cell import PreparedCell

# Parameters of vLLM and SGLang beyond OpenAI's, under their names; sent only if a request sets them.
EXTENSIONS: Final = {
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "min_new_tokens": "min_tokens",
    "ignore_eos": "ignore_eos",
    "stop_token_ids": "stop_token_ids",
}
VLLM: Final = "vllm"
# Fields of its `structured_outputs` for grammars beyond OpenAI's; SGLang's fields have the kinds' names.
VLLMS: Final = {"regex": "regex", "ebnf": "grammar"}
SPECULATES: Final = "the server speculates"
UNSAID: Final = "the server does not say whether it speculates"
# Counter to the prefixes of its lines in /metrics, of vLLM and of `specmatrix serve`.
COUNTED: Final = {
    f"spec.{what}": (
        f"vllm:spec_decode_num_{theirs}_tokens_total",
        f'specmatrix:engine_events_total{{event="spec.{what}"',
    )
    for what, theirs in (("drafted", "draft"), ("accepted", "accepted"))
}
# Axes whose running value OpenAI's API does not report: only their defaults are supported.
SHOWN: Final = ("algorithm", "model", "batch", "sampling", "finish", "abort", "grammar")
TEXTS: Final = profile_of("openai")


@dataclass
class OpenAISubject(Subject):
    """/v1/completions with the prompt's token ids.

    model: the model's name on the server. root: its checkpoint, as vLLM reports it. drafts: whether the server
    speculates, None if unknown. server: the content of /server_info, empty if there is none. owner: of the model, as
    the server says; vLLM's servers say "vllm".
    """

    name: str = "openai"
    profile: Profile = TEXTS
    endpoint: Endpoint | None = None
    model: str = ""
    root: str = ""
    server: dict[str, Any] = field(default_factory=dict)
    drafts: bool | None = None
    owner: str = ""
    chat: bool = False

    def at(self, endpoint: Endpoint) -> Self:
        """The subject at a URL, with the server's first model. ConfigError if no server is reachable, or if the
        baseline has another model or speculates."""
        if endpoint.url is None:
            raise ConfigError(f"subject {self.name!r} is reached by --url; --launch is for sglang")
        (first, *_), running, drafts, counted = served_models(endpoint.url, endpoint.key)
        model = str(first["id"])
        if endpoint.baseline_url is not None:
            theirs, plain, speculates, _ = served_models(endpoint.baseline_url, endpoint.key)
            if model not in (names := [str(card["id"]) for card in theirs]):
                raise ConfigError(f"--baseline-url serves {', '.join(names)}; it must serve {model}, as --url does")
            if speculates:
                drafter = plain.get("speculative_algorithm", "a drafter")
                raise ConfigError(f"--baseline-url runs {drafter}; allowed: no speculation")
        claims = self.profile.capabilities | ({Capability.TOTALS} if counted else set())
        profile = replace(
            self.profile, capabilities=claims, has_baseline=endpoint.baseline_url is not None, restarts=False
        )
        root, owner = (str(first.get(key) or "") for key in ("root", "owned_by"))
        return replace(
            self, endpoint=endpoint, model=model, root=root, server=running, drafts=drafts, owner=owner, profile=profile
        )

    def version(self) -> str | None:
        return self.model or "over HTTP"

    def running(self) -> Sequence[Cell]:
        """The server's start with each drafter that it may have."""
        if self.endpoint is None:
            return ()
        every = [Cell(algorithm=one, model=model) for model in MODELS for one in axis("algorithm").names]
        every = [cell for cell in every if not any(rule.applies(cell) for rule in START_RULES)]
        if found := [cell for cell in every if not any(self._mismatches(cell))]:
            return found
        raise ConfigError(f"no cell has the server's configuration: {min(next(self._mismatches(c)) for c in every)}")

    def requests(self, cell: Cell, seed: int) -> Sequence[RequestSpec]:
        """The matrix's requests; a bias bans the tokens of those with a grammar."""
        found = super().requests(cell, seed)
        return found if cell.grammar == "none" else [*map(biased, found)]

    def translate(self, prepared: PreparedCell) -> EngineCommand | Unsupported:
        """Request bodies for the endpoint. A server without /server_info does not report its algorithm; the one that
        the user selects with --cells is then assumed."""
        cell = prepared.cell
        taken = request_fields("openai")
        if self.server or self.owner == VLLM:
            taken |= {"regex", "ebnf", "structural_tag"}
        reason = _obstacle(cell, prepared.requests, taken) or next(self._mismatches(cell, prepared.plain), "")
        drafting = self.owner == VLLM and self.drafts and not prepared.plain
        if drafting and any(request.min_p or request.logit_bias for request in prepared.requests):
            reason = reason or BIASED
        if reason := reason or unmasked(cell, self.server):
            return Unsupported(reason)
        asks = tuple(self._ask(request) for request in prepared.requests)
        return EngineCommand({}, {"target": cell.target}, asks, variant=BASELINE if prepared.plain else "")

    def start(self, command: EngineCommand) -> RunningEngine:
        """Connect to the server. ConfigError without an endpoint."""
        if self.endpoint is None or self.endpoint.url is None:
            raise ConfigError(f"subject {self.name!r} needs --url")
        url = self.endpoint.baseline_url if command.variant == BASELINE else None
        return OpenAIEngine(url or self.endpoint.url, self.endpoint.key, self.chat)

    def _mismatches(self, cell: Cell, plain: bool = False) -> Iterator[str]:
        """Yield a sentence for each value of the cell that differs from what the server reports. plain: check model and
        dtype only, for the baseline's server."""
        if self.endpoint is None:
            return
        yield from other_model(cell, *([self.server["model_path"]] if self.server else [self.model, self.root]))
        if self.server and not same("dtype", "float32", dtype := self.server.get("dtype")):
            yield f"the server runs dtype {dtype}, not float32"
        if plain:
            return
        asked = None if cell.algorithm == "none" else cell.algorithm.upper()
        if self.server:
            if not same("speculative_algorithm", asked, runs := self.server["speculative_algorithm"]):
                yield f"the server runs speculative_algorithm {runs}, not {asked}"
        elif asked is None and self.drafts is not False:
            yield SPECULATES if self.drafts else UNSAID
        elif asked is not None and self.drafts is False:
            yield f"the server does not speculate, so it does not run {asked}"

    def _ask(self, request: RequestSpec) -> SubjectRequest:
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": request.max_new_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "stop": list(request.stop) or None,
            "presence_penalty": request.presence_penalty,
            "frequency_penalty": request.frequency_penalty,
            "stream": request.stream,
        }
        if request.seed is not None:
            body["seed"] = request.seed
        if request.logit_bias:
            body["logit_bias"] = {str(token): bias for token, bias in request.logit_bias}
        for name, value in request.changed.items():
            if name in EXTENSIONS:
                body[EXTENSIONS[name]] = list(value) if isinstance(value, tuple) else value
        if request.grammar is not None:
            body |= _grammar(*request.grammar, self.owner)
        if self.chat:
            body["messages"] = [{"role": "user", "content": request.prompt}]
        return SubjectRequest(request.name, prompt_ids(request), body, request.after)


@dataclass
class OpenAIChatSubject(OpenAISubject):
    """/v1/chat/completions: the server's template makes the prompt, so texts are compared with the baseline's only."""

    name: str = "openai-chat"
    profile: Profile = field(
        default_factory=lambda: replace(
            TEXTS, excluded={"oracle": "the server's chat template makes the prompt, so the oracle has another one"}
        )
    )
    chat: bool = True

    def at(self, endpoint: Endpoint) -> Self:
        """As OpenAISubject.at. ConfigError without a baseline."""
        if endpoint.baseline_url is None:
            raise ConfigError(f"subject 'openai-chat' compares texts with a baseline's only: {NO_BASELINE}")
        return super().at(endpoint)


def served_models(url: str, key: str | None) -> tuple[list[dict[str, Any]], dict[str, Any], bool | None, bool]:
    """(models, configuration under SGLang's flag names or empty, whether the server speculates or None, whether it
    counts drafts). ConfigError without a model."""
    from specmatrix.matrix.subjects.http.connection import Connection

    with Connection(url, key) as server:
        models = server.get("/v1/models").get("data")
        if not isinstance(models, list) or not models or not all(isinstance(m, dict) and m.get("id") for m in models):
            raise ConfigError(f"{url} serves no model")
        running, metrics = server.find(*INFO), server.text("/metrics")
    counted = totals(metrics).keys() == COUNTED.keys()
    if {"speculative_algorithm", "model_path"} <= running.keys():  # another engine may have an endpoint of this name
        return models, running, running["speculative_algorithm"] is not None, counted
    return models, {}, counted if "vllm:" in metrics else None, counted


def totals(metrics: str) -> dict[str, int]:
    """Parse the draft counters of a server's /metrics."""
    lines = metrics.splitlines()
    found = {name: [line for line in lines if line.startswith(begins)] for name, begins in COUNTED.items()}
    return {name: sum(int(float(row.split()[-1])) for row in rows) for name, rows in found.items() if rows}


def _grammar(kind: str, text: str, owner: str) -> dict[str, Any]:
    """A request's grammar in OpenAI's response format, or in a field of the server's own."""
    if kind == "json_schema":
        schema = {"name": "answer", "schema": json.loads(text), "strict": True}
        return {"response_format": {"type": kind, kind: schema}}
    if kind == "structural_tag":
        return {"response_format": json.loads(text)}
    return {"structured_outputs": {VLLMS[kind]: text}} if owner == VLLM else {kind: text}


def _obstacle(cell: Cell, requests: Sequence[RequestSpec], taken: Set[str]) -> str:
    """Why a cell cannot run, "" if it can. taken: fields of a request that are translated."""
    for name, value in cell.values.items():
        if name not in SHOWN and value != axis(name).default:
            return f"OpenAI's API does not say which {name} runs"
    for request in requests:
        for name in request.changed:
            if name not in taken:
                return f"OpenAI's API has no {name}"
    return ""


class OpenAIEngine(RunningEngine):
    """A server at a URL."""

    def __init__(self, url: str, key: str | None, chat: bool) -> None:
        from specmatrix.matrix.subjects.http.connection import Connection

        self._server, self._path = Connection(url, key), "/v1/chat/completions" if chat else "/v1/completions"
        self._chat = chat

    def generate(self, asks: Sequence[SubjectRequest]) -> list[Answer]:
        """Send all asks, concurrently where they do not wait for each other."""
        from specmatrix.matrix.subjects.http.connection import ask_all

        return ask_all(asks, self._send, lambda ask, answer: None)

    def counters(self) -> Mapping[str, int]:
        """The server's draft counters, including other clients' requests."""
        return totals(self._server.text("/metrics"))

    def close(self) -> None:
        self._server.close()

    def _send(self, ask: SubjectRequest) -> Answer:
        from specmatrix.matrix.subjects.http.connection import RefusedAsk

        body = dict(ask.fields) | ({} if self._chat else {"prompt": list(ask.input_ids)})
        text, finish, pieces = "", "", list[str]()
        try:
            for choice in self._choices(body):
                text += _said(choice)
                pieces += [text] if body["stream"] else []
                finish = choice.get("finish_reason") or finish
        except RefusedAsk as refused:
            return Answer(ask.id, ask.input_ids, (), "", "refused", None, 0, (), refusal=str(refused))
        return Answer(ask.id, ask.input_ids, (), text, finish, None, 0, (), pieces=tuple(dict.fromkeys(pieces)))

    def _choices(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        parts = [*self._server.stream(self._path, body)] if body["stream"] else [self._server.post(self._path, body)]
        return [choice for part in parts for choice in part["choices"]]


def _said(choice: Mapping[str, Any]) -> str:
    """The text of a choice, or of a chunk of it."""
    found = choice.get("message") or choice.get("delta") or choice
    return str(found.get("content" if found is not choice else "text") or "")
