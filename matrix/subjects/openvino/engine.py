"""Runs asks on OpenVINO GenAI's pipeline, step by step, so that each round of each request is seen. Runs in OpenVINO's
environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, Final

from specmatrix.errors import ConfigError, text_of
from specmatrix.matrix.subjects.protocol import Answer, EngineCommand, SubjectRequest
from specmatrix.matrix.subjects.stepped import SentAsk, SteppedEngine
from specmatrix.matrix.zoo.registry import resolve_path

# Of the model and of its draft.
DEVICE: Final = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "INFERENCE_NUM_THREADS": 1}
# Flags that each request has.
DRAFTING: Final = ("num_assistant_tokens", "max_ngram_size", "tree_depth", "branching_factor")
LOOKUP: Final = "max_ngram_size"
# Fields of an ask that are read here; the others are GenerationConfig's.
OWN: Final = ("stream", "no_stop_trim")
GRAMMAR: Final = "structured_output_config"
SETS: Final = ("stop_token_ids", "stop_strings")
FINISH: Final = {"STOP": "stop", "LENGTH": "length"}
RUNNING, FINISHED = "RUNNING", "FINISHED"


@dataclass
class Completion:
    """Tokens as they were read, how many with each step, the texts after these, and how it ended, "" if it runs."""

    ids: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    finish: str = ""


@dataclass(eq=False)
class Sent(SentAsk):
    """An ask that was sent. handle: None if it was refused. finish: "ended" where each completion says how. rounds:
    tokens of each step after the first, as the engine counts them."""

    handle: Any = None
    completions: dict[int, Completion] = field(default_factory=dict)
    rounds: tuple[int, ...] = ()


class OpenVinoEngine(SteppedEngine[Sent]):
    """A ContinuousBatchingPipeline in this process. pipeline, genai: in place of OpenVINO's own, for a replay."""

    title = "OpenVINO GenAI"

    def __init__(self, command: EngineCommand, pipeline: Any = None, genai: Any = None) -> None:
        if genai is None:
            import openvino_genai

            genai = openvino_genai
        self._command, self._genai, self._sent = command, genai, 0
        self._drafting = {name: command.flags[name] for name in DRAFTING if name in command.flags}
        self.pipeline = self._started() if pipeline is None else pipeline
        self._tokenizer = self.pipeline.get_tokenizer()

    def _started(self) -> Any:
        genai, flags = self._genai, self._command.flags
        try:
            from specmatrix.matrix.subjects.openvino.gguf import converted

            paths = {role: converted(resolve_path(name)) for role, name in self._command.checkpoints.items()}
            more: dict[str, Any] = {"prompt_lookup": True} if LOOKUP in flags else {}
            if "draft" in paths:
                more["draft_model"] = genai.draft_model(paths["draft"], "CPU", **DEVICE)
            scheduler = genai.SchedulerConfig()
            for name, value in flags.items():
                if name not in DRAFTING:
                    setattr(scheduler, name, value)
            target = paths["target"]
            return genai.ContinuousBatchingPipeline(target, genai.Tokenizer(target), scheduler, "CPU", **DEVICE, **more)
        except Exception as error:  # whatever a version raises for what it does not take
            raise ConfigError(f"OpenVINO GenAI does not start: {type(error).__name__}: {text_of(error)}") from error

    @property
    def resolved(self) -> Mapping[str, Any]:
        """The shape of a draft. That of a lookup differs from round to round."""
        depth = self._drafting.get("num_assistant_tokens")
        if not depth or LOOKUP in self._drafting:
            return {}
        steps, children = self._drafting.get("tree_depth", depth), self._drafting.get("branching_factor", 1)
        return {"num_steps": steps, "topk": children, "num_draft_tokens": depth + 1}

    def generate(self, asks: Sequence[SubjectRequest]) -> list[Answer]:
        answers = super().generate(asks)
        while self.busy():  # what was aborted leaves with a step
            self.pipeline.step()
        return answers

    def close(self) -> None:
        self.pipeline = None

    def send(self, ask: SubjectRequest) -> Sent:
        config = self._genai.GenerationConfig()
        for name, value in {**ask.fields, **self._drafting}.items():
            if name == GRAMMAR:
                value = self._genai.StructuredOutputConfig(**value)
            if name not in OWN:
                setattr(config, name, set(value) if name in SETS else value)
        self._sent += 1
        try:
            return Sent(ask, handle=self.pipeline.add_request(self._sent, _tensor(ask.input_ids), config))
        except (RuntimeError, ValueError) as error:
            return Sent(ask, finish="refused", message=text_of(error))

    def abort(self, sent: Sent) -> None:
        after = sent.ask.abort_after
        tokens = max((len(one.ids) for one in sent.completions.values()), default=0)
        if after is not None and not sent.ended and tokens >= after:
            sent.handle.cancel()
            sent.finish = "abort"

    def busy(self) -> bool:
        return bool(self.pipeline.has_non_finished_requests())

    def step(self, sent: Mapping[str, Sent]) -> None:
        self.pipeline.step()
        for one in sent.values():
            if not one.ended:
                self._read(one)

    def _read(self, sent: Sent) -> None:
        """Read what the last step yielded."""
        handle = sent.handle
        while handle.can_read():  # not once it is cancelled
            for number, output in handle.read().items():
                one = sent.completions.setdefault(number, Completion())
                ids = [*takewhile(lambda token: token >= 0, output.generated_ids)]
                if len(ids) < len(output.generated_ids):
                    # The padding of a lookup's drafts. Nothing behind it means anything.
                    handle.cancel()
                    sent.finish, sent.message = "error", "OpenVINO GenAI returned the token -1, which is none"
                one.finish = FINISH.get(output.finish_reason.name, "")
                if ids:
                    one.ids += ids
                    one.counts.append(len(ids))
                    one.logprobs += output.generated_log_probs
                    one.pieces += [self._text(sent.ask, one)[0]] * sent.ask.fields["stream"]
        status = handle.get_status().name
        if sent.ended:
            return
        if status == FINISHED:
            sent.finish = "ended"
            if hasattr(handle, "get_perf_metrics"):  # since 2026.4
                sent.rounds = tuple(filter(None, handle.get_perf_metrics().raw_metrics.m_batch_sizes))[1:]
        elif status != RUNNING:
            sent.finish, sent.message = "error", f"OpenVINO GenAI ended it as {status}"

    def answer(self, sent: Sent) -> Answer:
        found = [one for _, one in sorted(sent.completions.items())] or [Completion()]
        first, *further = (self._completion(sent, one) for one in found)
        return replace(first, further=tuple(further))

    def _completion(self, sent: Sent, one: Completion) -> Answer:
        ask, finish = sent.ask, one.finish if sent.finish == "ended" else sent.finish
        text, matched = self._text(ask, one)
        rounds = tuple(one.counts[1:])
        if ask.fields.get("stop_strings"):
            # What may begin a stop string is read later: the rounds of such a request are the engine's own count. In 1
            # of 10 runs of ngram.n8.temperature.stop_string (seed 3) it was one token short of the text.
            whole = 1 + sum(sent.rounds) >= len(one.ids)
            rounds = sent.rounds if whole else (*filter(None, (one.counts[0] - 1, *one.counts[1:])),)
        return Answer(
            ask.id,
            ask.input_ids,
            tuple(one.ids),
            text,
            finish,
            sent.message if finish == "error" else matched,
            0,
            rounds if self._drafting else (),
            logprobs=tuple(one.logprobs) if ask.fields.get("logprobs") else (),
            pieces=tuple(dict.fromkeys(one.pieces)),
        )

    def _text(self, ask: SubjectRequest, one: Completion) -> tuple[str, int | str | None]:
        """The text of a completion, and the stop token or string that ended it."""
        ids, keeps = one.ids, ask.fields["no_stop_trim"]
        if one.finish != "stop":
            return self._decoded(ids), None
        if ids and ids[-1] in ask.fields["stop_token_ids"] and not ask.fields["ignore_eos"]:
            return self._decoded(ids if keeps else ids[:-1]), ids[-1]
        text = self._decoded(ids)
        hits = [(text.find(stop), -len(stop), stop) for stop in ask.fields.get("stop_strings", ()) if stop in text]
        if not hits:
            return text, None
        start, _, stop = min(hits)
        return text[: start + len(stop) * keeps], stop

    def _decoded(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids))).rstrip("�")


def _tensor(ids: Sequence[int]) -> Any:
    import numpy
    import openvino

    return openvino.Tensor(numpy.array([ids], dtype=numpy.int64))
