"""SGLang's native HTTP API as a subject: SGLang's server, `specmatrix serve`, or any other that speaks it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, Self

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.subjects.http.endpoint import BASELINE, INFO, NO_BASELINE, Endpoint
from specmatrix.matrix.subjects.http.launch_flags import (
    biased,
    launch_flags,
    mismatches,
    running_start,
    same,
    unjudged_sizes,
    unmasked,
    unreported,
)
from specmatrix.matrix.subjects.profiles import profile_of
from specmatrix.matrix.subjects.protocol import (
    AcceptanceRule,
    EngineCommand,
    Profile,
    RunningEngine,
    Subject,
    SubjectRequest,
    Unsupported,
)
from specmatrix.matrix.workloads.questions import prompt_ids
from specmatrix.matrix.workloads.request import RequestSpec

if TYPE_CHECKING:
    from specmatrix.matrix.workloads.prepared_cell import PreparedCell

SIZES: Final = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
# Of an aborted request: without a grammar, behind whose end plain decoding would go on.
ENDLESS: Final[dict[str, Any]] = {
    **dict.fromkeys(("json_schema", "regex", "ebnf", "structural_tag")),
    **{"max_new_tokens": 256, "ignore_eos": True, "stop": (), "stop_token_ids": ()},
}
SUFFIX: Final = "SGLang has no suffix decoding"
SIZED: Final = ("standalone", "eagle", "eagle3", "nextn")
PAIRED: Final = ("lossless", "accuracy")
# Fields of a request that another value than the default makes unsupported.
ABSENT: Final = {
    "bad_words_ids": "SGLang's API has no bad_words_ids of several tokens",
    "allowed_token_ids": "SGLang's API has no allowed_token_ids",
    "n": "SGLang's further completions have no seeds of their own",
    "beside": "HTTP does not show which requests run at one time",
    "clock": "the clock of a server cannot be set",
    "replaced": "HTTP does not show which requests run at one time",
}
# Fields with the same name in sampling_params.
SAME: Final = (
    *("max_new_tokens", "min_new_tokens", "temperature", "top_k", "top_p", "min_p", "ignore_eos", "no_stop_trim"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)
NATIVE: Final = profile_of("sglang")


@dataclass
class SglangSubject(Subject):
    """SGLang's native API; without an endpoint it only translates. server: the configuration that a running server
    reports."""

    name: str = "sglang"
    profile: Profile = NATIVE
    endpoint: Endpoint | None = None
    server: dict[str, Any] = field(default_factory=dict)

    def at(self, endpoint: Endpoint) -> Self:
        """The subject at an endpoint. ConfigError if no server is reachable, or if the baseline speculates."""
        if endpoint.url is None:
            return replace(self, endpoint=endpoint)
        from specmatrix.matrix.subjects.http.connection import Connection

        with Connection(endpoint.url, endpoint.key) as server:
            running = server.get(*INFO)
        if endpoint.baseline_url is not None:
            with Connection(endpoint.baseline_url, endpoint.key) as server:
                baseline = server.get(*INFO)
            if baseline.get("speculative_algorithm") is not None:
                raise ConfigError(f"--baseline-url runs {baseline['speculative_algorithm']}; allowed: no speculation")
            model, other = (
                PurePath(str(one.get("model_path") or "no named model")).name for one in (running, baseline)
            )
            if model != other:
                raise ConfigError(f"--baseline-url serves {other}; it must serve {model}, as --url does")
            if not same("dtype", "float32", dtype := baseline.get("dtype")):
                raise ConfigError(f"--baseline-url runs dtype {dtype}; allowed: float32")
        unpaired = () if endpoint.baseline_url is not None else PAIRED
        excluded = dict.fromkeys(unpaired, NO_BASELINE)
        if why := unjudged_sizes(running):
            excluded["acceptance"] = why
        rules = {"": _rule(running)}
        profile = replace(self.profile, restarts=False, excluded=excluded, has_baseline=not unpaired, acceptance=rules)
        return replace(self, endpoint=endpoint, server=running, profile=profile)

    def version(self) -> str | None:
        return str(self.server.get("version", "over HTTP"))

    def running(self) -> Sequence[Cell]:
        """The start that the server at the URL runs. ConfigError if no cell has it."""
        return () if self.endpoint is None or self.endpoint.url is None else (running_start(self.server),)

    def requests(self, cell: Cell, seed: int) -> Sequence[RequestSpec]:
        """The matrix's requests; where each has its own rule or stop, only those that SGLang's API supports. Without
        reasoning, which SGLang ends by a parser that knows models by name; a bias bans tokens. A request that is
        aborted has more to say than a server computes until the abort arrives."""
        own = cell.sampling == "rules" or cell.finish == "stops"
        found = super().requests(cell, seed) if own else [*map(biased, super().requests(cell, seed))]
        if (cell.memory, cell.context, cell.session) == ("ample", "model", "none"):
            found = [replace(one, **ENDLESS) if one.abort_after else one for one in found]
        sent = {one.name: one for one in found if not (own and any(_unread((one,))))}
        return [replace(one, after=tuple(name for name in one.after if name in sent)) for one in sent.values()]

    def translate(self, prepared: PreparedCell) -> EngineCommand | Unsupported:
        """Flags of SGLang's server, and asks as bodies of /generate."""
        cell, baseline = prepared.cell, prepared.plain and self.endpoint is not None and self.endpoint.url is not None
        reason = next(_unread(prepared.requests), "")
        if self.endpoint is not None and self.endpoint.url is not None:
            if not baseline:
                reason = next(mismatches(cell, self.server), "") or _overfull(prepared.requests, self.server) or reason
                reason = reason or unmasked(cell, self.server)
            elif self.endpoint.baseline_url is None:
                reason = NO_BASELINE
        elif cell.algorithm == "suffix":
            reason = SUFFIX
        else:
            reason = reason or next(unreported(cell), "")
        if reason:
            return Unsupported(reason)
        # The baseline server has the defaults that it was started with.
        flags = {"speculative_algorithm": None} if baseline else launch_flags(cell)
        if not self.server:
            flags |= _every_size(prepared)
        return EngineCommand(
            flags, prepared.checkpoints, tuple(map(_ask, prepared.requests)), variant=BASELINE if baseline else ""
        )

    def start(self, command: EngineCommand) -> RunningEngine:
        """Connect to the server, or start it. ConfigError if it is not reachable or refuses its flags."""
        from specmatrix.matrix.subjects.http.sglang_engine import SglangEngine

        if self.endpoint is None:
            raise ConfigError(f"subject {self.name!r} needs --url or --launch")
        return SglangEngine(self.endpoint, command, self.profile.start_seconds)


def _rule(running: Mapping[str, Any]) -> AcceptanceRule:
    """What accepts drafts of sampled requests on a server with this configuration: thresholds below 1 lose the target's
    law, by how much SGLang does not say. A server of the reference engine names its rule."""
    single, total = (running.get(f"speculative_accept_threshold_{name}") for name in ("single", "acc"))
    if min(1.0 if one is None else float(one) for one in (single, total)) < 1:
        return AcceptanceRule("lossy", "speculative_accept_threshold_single and _acc are below 1")
    drawn = "reject" if running.get("speculative_use_rejection_sampling") else "match"
    named = running.get("speculative_acceptance", drawn)
    return AcceptanceRule(str(named), "speculative_use_rejection_sampling, or speculative_acceptance of this engine")


def _every_size(prepared: PreparedCell) -> dict[str, int]:
    """The draft sizes as flags: SGLang's server requires all of them or none."""
    cell, found = prepared.cell, prepared.predicted
    given = {cell.steps, cell.topk, cell.draft_tokens} != {"auto"}
    if not given or cell.algorithm not in SIZED or isinstance(found, ConfigError):
        return {}
    sizes = found.num_steps, found.topk, found.num_draft_tokens
    return {flag: int(size) for flag, size in zip(SIZES, sizes, strict=True)}


def _overfull(requests: tuple[RequestSpec, ...], running: Mapping[str, Any]) -> str:
    """A reason if more requests are sent at once than the server runs and queues; "" if it reports no limit."""
    slots, queue = running.get("max_running_requests"), running.get("max_queued_requests")
    at_once = sum(not request.after for request in requests)
    if slots is None or queue is None or at_once <= slots + queue:
        return ""
    return f"the cell sends more requests at once than the server runs and queues ({slots} and {queue})"


def _unread(requests: tuple[RequestSpec, ...]) -> Iterator[str]:
    """Yield a reason for each request field or behaviour that cannot be translated."""
    for request in requests:
        if request.refused is not None:
            continue
        yield from (ABSENT[name] for name in request.changed if name in ABSENT)
        if request.abort_after == 0:
            yield "HTTP does not show when a request is queued"
        if request.abort_after is not None and request.session is not None and request.session.streaming:
            yield "a turn may end before its abort arrives, which decides what the next turn continues"


def _ask(request: RequestSpec) -> SubjectRequest:
    """A body of /generate without the prompt: sampling_params and the options for log-probabilities and streaming.

    A request that a session must refuse is not sent, as no gate judges it here; requests that wait for it wait for the
    turn during which it was due.
    """
    if request.refused is not None:
        after = request.after if request.beside is None else (*request.after, request.beside)
        return SubjectRequest(request.name, prompt_ids(request), {"sent": False}, after)
    sampling: dict[str, Any] = {
        **{name: getattr(request, name) for name in SAME},
        "stop": list(request.stop),
        "stop_token_ids": list(request.stop_token_ids),
    }
    if request.seed is not None:
        sampling["sampling_seed"] = request.seed
    if request.logit_bias:
        sampling["logit_bias"] = {str(token): bias for token, bias in request.logit_bias}
    if request.grammar is not None:
        sampling |= [request.grammar]
    scored = bool(request.logprobs or request.top_logprobs or request.prompt_logprobs >= 0)
    body = {
        "sampling_params": sampling,
        "return_logprob": scored,
        "logprob_start_len": request.prompt_logprobs,
        "top_logprobs_num": request.top_logprobs,
        "stream": request.stream,
    }
    if request.closes_after is not None:
        body["closes_after"] = request.closes_after  # not sent; tells the engine when to close the session
    return SubjectRequest(request.name, prompt_ids(request), body, request.after, request.abort_after, request.session)
