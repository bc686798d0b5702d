"""A server of llama.cpp, started for one command."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, Final

import httpx

from specmatrix.errors import ConfigError
from specmatrix.matrix.subjects.environment import LLAMACPP
from specmatrix.matrix.subjects.http.connection import OUTPUT_TAIL, PORT, RefusedAsk, ask_all, started
from specmatrix.matrix.subjects.llamacpp.gguf import converted
from specmatrix.matrix.subjects.protocol import Answer, EngineCommand, RunningEngine, SubjectRequest
from specmatrix.matrix.zoo.registry import resolve_path

# One thread, float32 throughout, and no cache of prompts but each slot's own.
ALWAYS: Final = (
    *("--threads", "1", "--threads-batch", "1", "--threads-http", "64", "--flash-attn", "off"),
    *("--cache-type-k", "f32", "--cache-type-v", "f32", "--cache-ram", "0", "--no-warmup"),
)
# A server that aborts prints why; its stack would push that out of what is kept of its output.
PLAINLY: Final = ("env", "GGML_NO_BACKTRACE=1")
DRAFT: Final = ("--spec-draft-type-k", "f32", "--spec-draft-type-v", "f32", "--spec-draft-threads", "1")
# For a server that aborts to print where.
END_SECONDS: Final = 2.0
FINISH: Final = {"eos": "stop", "word": "stop", "limit": "length"}


class LlamaCppEngine(RunningEngine):
    """A server that is started here and ends with `close`. restored: whether its slots were, in the latest call."""

    def __init__(self, command: EngineCommand, seconds: float) -> None:
        self._command, self._model = command, converted(resolve_path(command.checkpoints["target"]))
        self._counts: Counter[str] = Counter()
        self._lock, self.restored = Lock(), False
        self._reported: dict[str, Any] = {}
        with ExitStack() as stack:
            # A server erases slots only if it may save them.
            place = stack.enter_context(TemporaryDirectory())
            self._server, self._process = started(self._words(f"{place}/"), seconds, "llama.cpp")
            stack.callback(self._process.stop)
            stack.callback(self._server.close)
            found = self._server.get("/props")
            context = found["default_generation_settings"]["n_ctx"]
            self._check(model=found["model_path"], parallel=found["total_slots"])
            due = command.flags.get("kv-unified-per-slot", command.flags["ctx-size"] // command.flags["parallel"])
            if context != due:
                raise ConfigError(f"llama.cpp's server runs contexts of {context} tokens, not {due}")
            self._open = stack.pop_all()

    def _words(self, place: str) -> list[str]:
        """The server's command. place: where it may save slots."""
        flags, checkpoints = self._command.flags, self._command.checkpoints
        words = [*PLAINLY, LLAMACPP.server(), "--model", str(self._model), *ALWAYS, "--slot-save-path", place]
        if "draft" in checkpoints:
            reads = flags["spec-type"] != "draft-simple"
            draft = converted(
                resolve_path(checkpoints["draft"]), resolve_path(checkpoints["target"]) if reads else None
            )
            words += ["--spec-draft-model", str(draft), *DRAFT]
        words += [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        return [*words, "--host", "127.0.0.1", "--port", PORT]

    @property
    def resolved(self) -> Mapping[str, Any]:
        """The shape of a draft. That of a lookup differs from round to round."""
        flags = self._command.flags
        if (depth := flags.get("spec-draft-n-max")) is None:
            return {}
        steps = 1 if flags["spec-type"] == "draft-dflash" else depth
        return {"num_steps": steps, "topk": 1, "num_draft_tokens": depth + 1}

    def generate(self, asks: Sequence[SubjectRequest]) -> list[Answer]:
        """Send all asks to empty slots, concurrently where they do not wait for each other."""
        self._erase()
        self.restored = False
        try:
            return ask_all(asks, self._send, lambda ask, answer: None)
        except httpx.HTTPError as error:
            self._process.wait(END_SECONDS)
            said = self._process.output_end(OUTPUT_TAIL)
            raise RuntimeError(f"llama.cpp's server failed: {error}; end of its output:\n{said}") from None

    def _erase(self) -> None:
        for slot in range(self._command.flags["parallel"]):
            self._server.post(f"/slots/{slot}?action=erase", {})

    def _restore(self) -> None:
        """Save all slots, erase and restore them, before the first ask of a call that wants it; nothing else runs."""
        with self._lock:
            if self.restored:
                return
            names = [(slot, {"filename": f"{slot}"}) for slot in range(self._command.flags["parallel"])]
            saved = [self._server.post(f"/slots/{slot}?action=save", name)["n_saved"] for slot, name in names]
            self._erase()
            for (slot, name), tokens in zip(names, saved, strict=True):
                if tokens:
                    self._server.post(f"/slots/{slot}?action=restore", name)
            self.restored = True

    def readback(self) -> Mapping[str, Any]:
        """What /props and the answers report of the command's flags."""
        return self._reported

    def _check(self, **reported: object) -> None:
        """Keep what the server reports of the command's flags. ConfigError if it runs something else."""
        for name, value in reported.items():
            flag = name.replace("_", "-")
            if value != (asked := str(self._model) if flag == "model" else self._command.flags[flag]):
                raise ConfigError(f"llama.cpp's server runs {flag} {value}, not {asked}")
            self._reported[flag] = value

    def counters(self) -> Mapping[str, int]:
        """spec.drafted and spec.accepted, summed over the answers."""
        return dict(self._counts)

    def close(self) -> None:
        """End the server."""
        self._open.close()

    def _send(self, ask: SubjectRequest) -> Answer:
        body = {**ask.fields, "prompt": list(ask.input_ids)}
        try:
            if body.pop("restore", False):
                self._restore()
            if body["stream"]:
                found = [*self._streamed(ask, body)]
            else:
                whole = self._server.post("/completion", body)
                found = [self._answer(ask, one) for one in (whole if isinstance(whole, list) else [whole])]
        except RefusedAsk as refused:
            return Answer(ask.id, ask.input_ids, (), "", "refused", None, 0, (), refusal=str(refused))
        return replace(found[0], further=tuple(found[1:]))

    def _streamed(self, ask: SubjectRequest, body: Mapping[str, Any]) -> Iterator[Answer]:
        """Read a stream to its end, or close the connection after the ask's number of tokens, which aborts it."""
        streams = defaultdict[int, Stream](Stream)
        for part in self._server.stream("/completion", {**body, "timings_per_token": True}):
            if "error" in part:
                raise RuntimeError(f"llama.cpp's server failed in a stream: {part['error']['message']}")
            read = streams[part["index"]]
            read.add(part)
            if ask.abort_after is not None and len(read.tokens) >= ask.abort_after:
                break
        for _, read in sorted(streams.items()):
            yield self._answer(ask, {**read.last, "content": read.text, "tokens": read.tokens}, read)

    def _answer(self, ask: SubjectRequest, found: Mapping[str, Any], read: Stream | None = None) -> Answer:
        """found: the last part of a stream, or a whole answer."""
        times, ids, kind = found["timings"], tuple(found["tokens"]), found.get("stop_type")
        with self._lock:
            self._counts["spec.drafted"] += times.get("draft_n", 0)
            self._counts["spec.accepted"] += times.get("draft_n_accepted", 0)
        if found["stop"]:
            # The list of drafters begins with "none".
            self._check(spec_type=found["generation_settings"]["speculative.types"].removeprefix("none,"))
        if len(ids) != times["predicted_n"]:
            held = f"{len(ids)} of its {times['predicted_n']} tokens"
            raise RuntimeError(f"llama.cpp's server streamed {held}: the others' text ends inside a character")
        rows = found.get("completion_probabilities") or ()
        rounds = read.rounds if read else ()
        return Answer(
            ask.id,
            ask.input_ids,
            ids,
            found["content"],
            FINISH[kind] if kind else "abort",
            {"word": found.get("stopping_word"), "eos": ids[-1] if ids else None}.get(kind or ""),
            int(times["cache_n"]),
            tuple(emitted for emitted, _ in rounds),
            logprobs=tuple(row["logprob"] for row in rows),
            top_logprobs=tuple(tuple((top["id"], top["logprob"]) for top in row["top_logprobs"]) for row in rows),
            pieces=tuple(dict.fromkeys(read.pieces)) if read else (),
            round_widths=tuple(nodes for _, nodes in rounds),
        )


class Stream:
    """A completion as it is streamed, a token at a time.

    rounds: tokens that each verify round emitted, and its nodes. last: the last part.
    """

    def __init__(self) -> None:
        self.tokens, self.pieces, self.rounds = list[int](), list[str](), list[tuple[int, int]]()
        self.last: Mapping[str, Any] = {}
        self._drafted, self._accepted, self._left = 0, 0, 0

    @property
    def text(self) -> str:
        """All of its text."""
        return self.pieces[-1]

    def add(self, part: Mapping[str, Any]) -> None:
        """Add a part. A round counts its drafts when its first token is sent."""
        drafted, accepted = (part["timings"].get(name, 0) for name in ("draft_n", "draft_n_accepted"))
        for token in part["tokens"]:
            if drafted > self._drafted:
                self.rounds.append((1, 1 + drafted - self._drafted))
                self._left = accepted - self._accepted
            elif self._left:
                emitted, nodes = self.rounds[-1]
                self.rounds[-1], self._left = (emitted + 1, nodes), self._left - 1
            elif self.tokens:
                self.rounds.append((1, 1))
            self.tokens.append(token)
            self._drafted, self._accepted = drafted, accepted
        self.pieces.append((self.pieces[-1] if self.pieces else "") + part["content"])
        self.last = part
