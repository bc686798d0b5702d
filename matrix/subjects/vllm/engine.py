"""Runs asks on vLLM's own engine, step by step, so that each round of each request is seen. Runs in vLLM's environment,
where this package's dependencies are not installed.

What vLLM's suffix decoding read and drafted, call by call, so that an oracle can draft the same rounds. Runs in
vLLM's environment.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from math import exp, inf, isfinite, log
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from specmatrix.errors import ConfigError, text_of
from specmatrix.matrix.subjects.protocol import Answer, EngineCommand, Journal, JournalEntry, SubjectRequest
from specmatrix.matrix.subjects.stepped import SentAsk, SteppedEngine
from specmatrix.matrix.subjects.vllm.widen import WIDE, widen
from specmatrix.matrix.zoo.registry import resolve_path

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


# vLLM's counters by the names of `engine.core.observe.step_counter`.
COUNTERS: Final = {
    "spec.verify_rounds": "vllm:spec_decode_num_drafts",
    "spec.drafted": "vllm:spec_decode_num_draft_tokens",
    "spec.accepted": "vllm:spec_decode_num_accepted_tokens",
    "retract.done": "vllm:num_preemptions",
    "prefix.hit": "vllm:prefix_cache_hits",
}
# Fields of an ask that are read here; the others are SamplingParams.
OWN: Final = ("top_logprobs", "prompt_logprob_from", "bad_words_token_ids", "stream")
# Path of a flag's running value in vLLM's configuration, if it does not end with the flag's name.
PLACES: Final = {
    "num_gpu_blocks_override": "num_gpu_blocks",
    "tensor_parallel_size": "tensor_parallel_size",
    "attention_backend": "backend",
}
PARTS: Final = (*("model_config", "cache_config", "scheduler_config", "parallel_config", "attention_config"),)
CONFIG: Final = "config.json"
EVERY: Final = -1
FIRST_PORT, PORTS, PORT_STEP = 10_000, 20_000, 7
# What drafts are observed with, in versions that have it; no token depends on it.
METRICS: Final = "per_request_spec_decode_metrics"
ENDS: Final = ("stop", "length")
SUFFIX: Final = "suffix"


@dataclass
class Running:
    """A running completion: vLLM's latest output, the number of tokens after each step, and which tokens the prefill
    behind a preemption emitted, by their index."""

    output: Any = None
    counts: list[int] = field(default_factory=list)
    resumed: list[int] = field(default_factory=list)
    preempted: int = 0
    pieces: list[str] = field(default_factory=list)
    text: str = ""
    finish: str = ""

    @property
    def tokens(self) -> int:
        return self.counts[-1] if self.counts else 0

    def saw(self, output: Any, preempted: int = 0) -> None:
        """Note a step's output, which is cumulative. preempted: how often the request was until then."""
        self.output = output
        before, after = self.tokens, len(output.token_ids)
        if after > before:
            self.counts.append(after)
            if preempted > self.preempted and after <= before + 1:
                self.resumed += [before] * (before > 0)
                self.preempted = preempted
        self.pieces.append(output.text)
        self.text = output.text
        self.finish = output.finish_reason or ""

    @property
    def rounds(self) -> tuple[int, ...]:
        """Tokens that each step after the first emitted, without prefills."""
        steps = zip(self.counts, self.counts[1:], strict=False)
        return tuple(after - before for before, after in steps if before not in self.resumed)


@dataclass(eq=False)
class Sent(SentAsk):
    """An ask that was sent: its completions, and vLLM's output for the whole request."""

    ids: tuple[str, ...] = ()
    completions: dict[int, Running] = field(default_factory=dict)
    last: Any = None
    preempted: int = 0

    @property
    def ended(self) -> bool:
        return bool(self.finish) or all(one.finish for one in self.completions.values())


class VllmEngine(SteppedEngine[Sent]):
    """vLLM's LLMEngine in this process. llm, sampling: in place of vLLM's own, for a replay."""

    title = "vLLM"

    def __init__(
        self, command: EngineCommand, llm: Any = None, sampling: Callable[[Mapping[str, Any]], Any] | None = None
    ) -> None:
        self._command = command
        self._folder: TemporaryDirectory[str] | None = None
        self.llm = self._started() if llm is None else llm
        self.preempted = count_preemptions(self.llm) if llm is None else Counter[str]()
        self._sampling = _sampling_params if sampling is None else sampling
        self._sent = 0
        spec = command.flags.get("speculative_config") or {}
        self._lookups = LookupLog(self.llm) if spec.get("method") == SUFFIX else None
        self._refusals: tuple[type[Exception], ...] = (ValueError, TypeError)
        if llm is None:
            from vllm.exceptions import VLLMValidationError

            self._refusals += (VLLMValidationError,)

    @property
    def resolved(self) -> Mapping[str, Any]:
        """Precision, seed, model runner and the shape of a draft. The depth of a lookup differs from round to round."""
        flags, config = self._command.flags, self.llm.vllm_config
        runner = "v2" if getattr(config, "use_v2_model_runner", False) else "v1"
        known = {"dtype": flags["dtype"], "random_seed": flags["seed"], "model_runner": runner}
        spec = flags.get("speculative_config")
        if spec is None:
            return known
        depth = spec["num_speculative_tokens"]
        steps = 1 if spec["method"] == "dflash" else depth
        shape = known | {"num_steps": steps, "topk": 1, "num_draft_tokens": depth + 1}
        if self._lookups is None:
            return shape
        scheduler = config.scheduler_config
        return shape | {
            "ngram": None,
            "suffix": suffix_options(self.llm),
            "max_running_requests": scheduler.max_num_seqs,
            "max_round": scheduler.long_prefill_token_threshold,
        }

    def answer(self, sent: Sent) -> Answer:
        self._read(sent)
        sent.preempted = sum(often for name, often in self.preempted.items() if name.rpartition("_")[2] in sent.ids)
        drafts = "speculative_config" in self._command.flags
        first, *further = (_completion(sent, one, drafts) for one in sent.completions.values())
        answer = replace(first, further=tuple(further))
        return answer if self._lookups is None else self._heard(sent, answer)

    def readback(self) -> Mapping[str, Any]:
        """The values in vLLM's configuration, under the names of the flags."""
        config = self.llm.vllm_config
        found = {flag: _running(config, flag) for flag in self._command.flags}
        found["dtype"] = str(config.model_config.dtype).removeprefix("torch.")
        if asked := self._command.flags.get("speculative_config"):
            found["speculative_config"] = {name: _named(getattr(config.speculative_config, name)) for name in asked}
        return found

    def counters(self) -> Mapping[str, int]:
        """vLLM's own counts since the start."""
        values = {metric.name: metric for metric in self.llm.get_metrics()}
        return {ours: int(values[theirs].value) for ours, theirs in COUNTERS.items() if theirs in values}

    def journal(self) -> Journal | None:
        """The calls of suffix decoding."""
        return None if self._lookups is None else self._lookups.entries

    def close(self) -> None:
        self.llm.engine_core.shutdown()
        if self._folder is not None:
            self._folder.cleanup()

    def _heard(self, sent: Sent, answer: Answer) -> Answer:
        """An answer, and its further ones, with what suffix decoding read of them."""
        assert self._lookups is not None
        each = [answer, *answer.further]
        names = sent.ids if len(sent.ids) == len(each) else [f"{place}_{sent.ids[0]}" for place in range(len(each))]
        read = [self._lookups.heard(name) for name in (names if sent.ids else [answer.name])]
        first, *further = (
            replace(one, meta_info={"id": found.id, "heard": tuple(found.tokens), "rounds": tuple(found.rounds)})
            for one, found in zip(each, read, strict=True)
        )
        return replace(first, further=tuple(further))

    def _started(self) -> Any:
        # Below the ports that the system hands out, one of which vLLM would take between another's choice and its use.
        os.environ.setdefault("VLLM_PORT", f"{FIRST_PORT + PORT_STEP * os.getpid() % PORTS}")
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        flags, models = dict(self._command.flags), self._command.checkpoints
        if spec := flags.get("speculative_config"):
            model = {"model": self._draft(models["draft"])} if "draft" in models else {}
            flags["speculative_config"] = {**spec, **model}
            flags |= {METRICS: "detailed"} if hasattr(EngineArgs, METRICS) else {}
        try:
            arguments = EngineArgs(model=self._target(models["target"]), disable_log_stats=False, **flags)
            return LLMEngine.from_engine_args(arguments)
        except Exception as error:  # whatever a version raises for what it does not take
            raise ConfigError(f"vLLM does not start: {type(error).__name__}: {text_of(error)}") from error

    def _target(self, name: str) -> str:
        """The folder of the target, at the size that the command's variant names."""
        source = resolve_path(name)
        return self._widened(source) if self._command.variant == WIDE else str(source)

    def _widened(self, source: Path) -> str:
        widen(source, place := self._place(source))
        return str(place)

    def _place(self, source: Path) -> Path:
        """A folder for a copy, which ends with the engine."""
        self._folder = self._folder or TemporaryDirectory()
        place = Path(self._folder.name, source.name)
        place.mkdir()
        return place

    def _draft(self, name: str) -> str:
        """The folder of a draft, under the architecture that the command's variant names."""
        source = resolve_path(name)
        if self._command.variant in ("", WIDE):
            return self._widened(source) if self._command.variant else str(source)
        place = self._place(source)
        for path in source.iterdir():
            if path.name != CONFIG:
                (place / path.name).symlink_to(path)
        found = json.loads((source / CONFIG).read_text(encoding="utf-8"))
        (place / CONFIG).write_text(json.dumps({**found, "architectures": [self._command.variant]}), encoding="utf-8")
        return str(place)

    def send(self, ask: SubjectRequest) -> Sent:
        """Add an ask. vLLM refuses n > 1 where tokens are not drawn, so these completions are requests of their own."""
        count = int(ask.fields.get("n", 1))
        alone = count > 1 and not ask.fields["temperature"]
        copies = [{**ask.fields, "n": 1}] * count if alone else [ask.fields]
        ids = []
        sent = Sent(ask, completions={index: Running() for index in range(count)})
        for fields in copies:
            self._sent += 1
            name = f"{self._sent}"
            try:
                prompt = {"prompt_token_ids": list(ask.input_ids)}
                self.llm.add_request(name, prompt, self._sampling(fields))
            except self._refusals as error:
                return replace(sent, finish="refused", message=text_of(error))
            ids.append(name)
        return replace(sent, ids=tuple(ids))

    def _read(self, sent: Sent) -> None:
        """Read the whole text of an aborted completion; vLLM withholds a suffix that may begin a stop string."""
        if sent.finish != "abort" or not sent.ask.fields.get("stop"):
            return
        for one in sent.completions.values():
            if one.output is not None:
                one.text = self.llm.get_tokenizer().decode(list(one.output.token_ids), skip_special_tokens=True)

    def abort(self, sent: Sent) -> None:
        after = sent.ask.abort_after
        if after is not None and not sent.ended and sent.completions[0].tokens >= after:
            self.llm.abort_request(list(sent.ids))
            sent.finish = "abort"

    def busy(self) -> bool:
        return bool(self.llm.has_unfinished_requests())

    def step(self, sent: Mapping[str, Sent]) -> None:
        """One step of the engine."""
        owners = {name: (one, place) for one in sent.values() for place, name in enumerate(one.ids)}
        for output in self.llm.step():
            one, place = owners.get(output.request_id, (None, 0))
            if one is None or one.finish:
                continue
            one.last = output
            for completion in output.outputs:
                names = output.request_id, f"{completion.index}_{output.request_id}"
                one.completions[completion.index + place].saw(completion, sum(self.preempted[name] for name in names))


def count_preemptions(llm: Any) -> Counter[str]:
    """Preemptions from now on, by the name that a request was sent under, of several completions with their number
    before it, as its scheduler makes them: answers tell how many, in later versions than 0.25, but not when."""
    counts, scheduler = Counter[str](), llm.engine_core.engine_core.scheduler
    real = scheduler._preempt_request

    def preempt(request: Any, *given: Any, **more: Any) -> Any:
        counts[request.request_id.partition("-")[0]] += 1  # vLLM adds random digits
        return real(request, *given, **more)

    scheduler._preempt_request = preempt
    return counts


def _sampling_params(fields: Mapping[str, Any]) -> Any:
    from vllm import SamplingParams

    given = {name: value for name, value in fields.items() if name not in OWN}
    if "logit_bias" in given:
        given["logit_bias"] = {int(token): bias for token, bias in given["logit_bias"].items()}
    if "structured_outputs" in given:
        from vllm.sampling_params import StructuredOutputsParams

        given["structured_outputs"] = StructuredOutputsParams(**given["structured_outputs"])
    found = SamplingParams(**given)
    if "bad_words_token_ids" in fields:  # vLLM takes words; these are what it makes of them
        found._bad_words_token_ids = [list(word) for word in fields["bad_words_token_ids"]]
    return found


def _running(config: Any, flag: str) -> Any:
    """A flag's value, wherever vLLM's configuration holds it; None if it is nowhere."""
    name = PLACES.get(flag, flag)
    for part in PARTS:
        found = getattr(getattr(config, part), name, None)
        if found is not None:
            return _named(found)
    return None


def _named(value: Any) -> Any:
    return value.name if isinstance(value, Enum) else value


def _completion(sent: Sent, one: Running, drafts: bool) -> Answer:
    ask, output, last = sent.ask, one.output, sent.last
    if output is None:  # aborted before its first token
        return Answer(ask.id, ask.input_ids, (), "", sent.finish, None, 0, ())
    ids = tuple(output.token_ids)
    finish = sent.finish or one.finish
    matched = output.stop_reason if finish == "stop" else None
    if finish == "stop" and matched is None:  # vLLM does not name its end-of-sequence token
        matched = ids[-1]
    metrics = getattr(output, "spec_decode_metrics", None)
    if metrics is not None and finish in ENDS and not agree(one.rounds, metrics.per_step_accepted):
        accepted = list(metrics.per_step_accepted)
        raise RuntimeError(
            f"vLLM reports {accepted} accepted drafts by round of {ask.id}; its steps emitted {one.rounds}, and "
            f"prefills one token behind {[0, *one.resumed]} of {one.tokens}"
        )
    logprobs, top = _scores(ask, output, ids)
    prompt, prompt_top = _prompt_scores(ask, last)
    told = getattr(getattr(last, "metrics", None), "num_preemptions", None)
    return Answer(
        ask.id,
        ask.input_ids,
        ids,
        one.text,
        finish,
        matched,
        int(last.num_cached_tokens or 0),
        one.rounds if drafts else (),
        outside_rounds=(0, *one.resumed) if drafts and one.resumed else (),
        logprobs=logprobs,
        top_logprobs=top,
        retractions=sent.preempted if told is None else int(told),
        pieces=tuple(dict.fromkeys(one.pieces)) if ask.fields.get("stream") else (),
        prompt_logprobs=prompt,
        prompt_top_logprobs=prompt_top,
    )


def agree(rounds: Sequence[int], accepted: Sequence[int]) -> bool:
    """Whether vLLM's accepted drafts per round match the tokens that its steps emitted. Steps without drafts emit one
    token and do not appear in `accepted`; the end of the text may cut the last round. vLLM also counts a prefill of one
    token, which it pads with placeholders, as a round without an accepted draft."""
    if accepted and not accepted[0] and _match(rounds, accepted[1:]):
        return True
    return _match(rounds, accepted)


def _match(rounds: Sequence[int], accepted: Sequence[int]) -> bool:
    left = [count + 1 for count in accepted]
    for place, emitted in enumerate(rounds):
        cut = place == len(rounds) - 1
        if left and (left[0] == emitted or (cut and left[0] > emitted)):
            left.pop(0)
        elif emitted != 1:
            return False
    return not left


def _scores(
    ask: SubjectRequest, output: Any, ids: Sequence[int]
) -> tuple[tuple[float, ...], tuple[tuple[tuple[int, float], ...], ...]]:
    """Log-probabilities of the output tokens and their likeliest alternatives, after the temperature."""
    if ask.fields["logprobs"] is None:
        return (), ()
    heat = ask.fields["temperature"] if ask.fields["logprobs"] == EVERY else 1.0
    rows = [dict(_tempered(row, heat)) for row in output.logprobs]
    # A token that its rules ban has no finite one.
    chosen = tuple(row.get(token, -inf) for row, token in zip(rows, ids, strict=True))
    count = ask.fields["top_logprobs"]
    return chosen, tuple(_best(row, count) for row in rows) if count else ()


def _prompt_scores(
    ask: SubjectRequest, last: Any
) -> tuple[tuple[float | None, ...], tuple[tuple[tuple[int, float], ...], ...]]:
    """As `_scores`, for the prompt's tokens from the first requested one; None for the prompt's first token."""
    start = ask.fields.get("prompt_logprob_from")
    if start is None:
        return (), ()
    chosen: list[float | None] = []
    top: list[tuple[tuple[int, float], ...]] = []
    for token, row in list(zip(ask.input_ids, last.prompt_logprobs, strict=True))[start:]:
        scores = {} if row is None else dict(_tempered(row, 1.0))
        chosen.append(scores.get(token))
        top.append(_best(scores, ask.fields["top_logprobs"]))
    return tuple(chosen), tuple(top)


def _tempered(row: Mapping[int, Any], heat: float) -> Iterator[tuple[int, float]]:
    """Rescale a row of scores to a temperature. One other than 1 needs the score of every token."""
    scores = {token: score.logprob for token, score in row.items() if isfinite(score.logprob)}
    if heat == 1:
        yield from scores.items()
        return
    whole = log(sum(exp(score / heat) for score in scores.values()))
    for token, score in scores.items():
        yield token, score / heat - whole


def _best(scores: Mapping[int, float], count: int) -> tuple[tuple[int, float], ...]:
    """The likeliest tokens, those of equal score by id."""
    return tuple(sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))[:count])
