"""SGLang's native HTTP API as a subject: SGLang's server, `specmatrix serve`, or any other that speaks it.

A cell's start axes as SGLang's flags, whether a running server has them, and requests as servers take them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, Self

from packaging.version import InvalidVersion, Version

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.axes import START_AXES, axis
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.constraints import CONSTRAINTS
from specmatrix.matrix.subjects.http.endpoint import BASELINE, INFO, NO_BASELINE, Endpoint, same
from specmatrix.matrix.subjects.limits import declared, reasons
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

NO_MASKS: Final = {"device": "cpu", "grammar_backend": "xgrammar"}
UNMASKED: Final = (
    "SGLang's xgrammar masks need a GPU: on a CPU such a request ends the server (sglang#35356); allowed: "
    "--grammar-backend llguidance"
)
UNTAGGED: Final = "llguidance compiles no structural tag of xgrammar's form; allowed: --grammar-backend xgrammar"
# A bias after which no token is sampled.
BANNED: Final = -100.0
# A chunk of this size splits no prompt of the matrix.
WHOLE: Final = 2048
NO_V1: Final = "the server has no v1: with `disable_overlap_schedule` it runs v2 synchronously"
# The first version of SGLang without v1.
V2_ONLY: Final = Version("0.5.13")
REASONS: Final = reasons("server")
# Constraints that rule out a start, whatever its requests.
START_RULES: Final = tuple(
    rule for rule in CONSTRAINTS if rule.kind != "rewritten" and {*START_AXES}.issuperset(rule.axes)
)


def launch_flags(cell: Cell) -> dict[str, Any]:
    """The start axes' flags under SGLang's names; None and False stand for its defaults."""
    asked, drafts = cell.config(), cell.algorithm != "none"
    sizes = {
        "speculative_num_steps": cell.steps,
        "speculative_eagle_topk": cell.topk,
        "speculative_num_draft_tokens": cell.draft_tokens,
        "max_running_requests": cell.slots,
        "mamba_track_interval": cell.state_interval,
    }
    flags: dict[str, Any] = {
        "speculative_algorithm": cell.algorithm.upper() if drafts else None,
        **{flag: int(value) for flag, value in sizes.items() if value != "auto"},
        "page_size": int(cell.page_size),
        "disable_radix_cache": cell.prefix_cache == "off",
        "tp_size": cell.ranks,
        "dtype": cell.numerics if cell.numerics == "float32" else None,
    }
    if cell.prefill_chunk != "off":
        flags["chunked_prefill_size"] = int(cell.prefill_chunk)
    if cell.context != "model":
        flags["context_length"] = asked.context_length
    if cell.memory != "ample":
        flags["max_total_tokens"] = asked.max_total_tokens
    if cell.session == "streaming":  # a request axis, but servers must be told at their start
        flags["enable_streaming_session"] = True
    if cell.spec_version == "v1" or cell.overlap == "off":
        flags["disable_overlap_schedule"] = True
    elif cell.spec_version == "v2":
        flags["disable_overlap_schedule"] = False
    return flags


def mismatches(cell: Cell, running: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each value of the cell's start axes that the server does not have. running: as /server_info
    reports it."""
    yield from other_model(cell, running.get("model_path", ""))
    for flag, value in launch_flags(cell).items():
        if flag not in running:
            if value not in (None, False):
                yield f"the server does not report {flag}"
        elif not same(flag, value, running[flag]):
            yield f"the server runs {flag} {running[flag]}, not {value}"
    chunk = running.get("chunked_prefill_size")
    if cell.prefill_chunk == "off" and chunk not in (None, -1) and int(chunk) < WHOLE:
        yield f"the server runs chunked_prefill_size {chunk}, which splits prompts"
    yield from unreported(cell)
    if cell.adaptive == "off" and running.get("speculative_adaptive"):
        yield REASONS["adaptive!=off"]
    if cell.mixed_chunk == "off" and running.get("enable_mixed_chunk"):
        yield REASONS["mixed_chunk!=off"]
    if cell.spec_version == "v1" and not has_v1(running):
        yield NO_V1


def unreported(cell: Cell) -> Iterator[str]:
    """A sentence for each value of the cell's axes that no server reports."""
    yield from (limit.why for limit in declared("server") if limit.forbids(cell))


def running_start(running: Mapping[str, Any]) -> Cell:
    """The start that matches a running server in every value, explicit values preferred to defaults. ConfigError if
    there is none."""
    cell, near = Cell(), dict[str, list[str]]()
    for name in ("model", *START_AXES):
        amiss = {value: len([*mismatches(cell._replace(**{name: value}), running)]) for value in axis(name).names}
        least = [value for value in reversed(amiss) if amiss[value] == min(amiss.values())]
        # Values that send no flag match any server; otherwise every value mismatches.
        near[name] = least if len(least) < len(amiss) or {"auto", "on"}.intersection(least) else [axis(name).default]
        cell = cell._replace(**{name: near[name][0]})
    for values in product(*near.values()):
        cell = cell._replace(**dict(zip(near, values, strict=True)))
        if not any(mismatches(cell, running)) and not any(rule.applies(cell) for rule in START_RULES):
            return cell
    why = [*mismatches(cell, running), *(f"{cell.id}: {rule.why}" for rule in START_RULES if rule.applies(cell))][0]
    raise ConfigError(f"no cell has the server's configuration: {why}; `specmatrix axes` lists what cells have")


def unjudged_sizes(running: Mapping[str, Any]) -> str:
    """Why acceptance is not judged at a server's draft sizes, "" if it is: the oracle covers the sizes of cells
    only."""
    steps, topk, nodes = (
        running.get(f"speculative_{name}") for name in ("num_steps", "eagle_topk", "num_draft_tokens")
    )
    chain = topk == 1 and nodes == (steps or 0) + 1
    sizes = {"steps": steps, "topk": topk, "draft_tokens": None if chain else nodes}
    odd = [f"{name} {size}" for name, size in sizes.items() if size and str(size) not in axis(name).names]
    return f"no cell has the server's {' and '.join(odd)}, so the oracle has no rounds of that size" if odd else ""


def has_v1(running: Mapping[str, Any]) -> bool:
    """Whether a server supports v1 besides v2: one that reports its spec version, or an old version of SGLang."""
    try:
        return "spec_version" in running or Version(str(running["version"])) < V2_ONLY
    except (InvalidVersion, KeyError):
        return False


def other_model(cell: Cell, *names: object) -> Iterator[str]:
    """Yield a sentence if none of the names (or paths) of a server's model is the cell's target."""
    served = list(dict.fromkeys(PurePath(str(name)).name for name in names if name))
    if cell.target not in served:
        runs = f"runs the model {' or '.join(served)}" if served else "does not name its model"
        yield f"the server {runs}, not {cell.target}"


def unmasked(cell: Cell, running: Mapping[str, Any]) -> str:
    """Why a running SGLang server cannot follow the cell's grammar, "" if it can."""
    if cell.grammar != "none" and NO_MASKS.items() <= running.items():
        return UNMASKED
    return UNTAGGED if cell.grammar == "tagged" and running.get("grammar_backend") == "llguidance" else ""


def biased(request: RequestSpec) -> RequestSpec:
    """The request without what SGLang's and OpenAI's APIs lack: reasoning, and banned tokens, which a bias bans where
    they are single ones and the request has no bias."""
    request, banned = replace(request, reasoning_end_ids=()), request.bad_words_ids
    if request.logit_bias or any(len(word) > 1 for word in banned):
        return request
    return replace(request, bad_words_ids=(), logit_bias=tuple((token, BANNED) for (token,) in banned))


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
