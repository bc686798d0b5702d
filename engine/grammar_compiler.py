"""Compiles grammars with xgrammar, in a process of its own with limits on time and memory, and keeps recent ones."""

from __future__ import annotations

import re
import signal
import weakref
from collections import OrderedDict
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
from typing import Any, Final

from specmatrix.child_process import ChildProcess, start
from specmatrix.engine.core.schedule.grammar import Constraint
from specmatrix.engine.device.token_tables import CompiledGrammar
from specmatrix.engine.grammar_table import token_table
from specmatrix.engine.models.tokenizer import Tokenizer
from specmatrix.errors import EngineError, RequestError, shown, text_of
from specmatrix.extras import require

# Limits of compiling one grammar: CPU time, memory beyond what the process has, and elapsed time on a busy machine.
LIMITS: Final = (2.0, 512 * 2**20)
SECONDS: Final = 20.0
START_SECONDS: Final = 120.0
# Recently used grammars, and refusals, that are kept.
KEPT: Final = 256
TOKENIZERS: Final = 4
# xgrammar's method for a kind, if it is not called after it.
COMPILE: Final = {"ebnf": "compile_grammar"}
TOO_LARGE: Final = "it took more than {:g} MB"
# xgrammar's messages begin with a time, a source file and, often, the condition that failed.
PLACE: Final = re.compile(r"\[[\d:]+\] \S+:\d+: (Check failed: .*? is false: )?")


class GrammarCompiler:
    """The grammars of one engine's requests. Safe to call from several threads.

    live: compiled grammars that a request or the cache holds. Engines with equal tokenizers
    share a process and its cache; the process starts with the first grammar.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.live: weakref.WeakValueDictionary[Constraint, CompiledGrammar] = weakref.WeakValueDictionary()
        self._tokenizer, self._vocab_size = tokenizer, vocab_size

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        """The compiled grammar. RequestError if xgrammar refuses it or its limits do not suffice; ConfigError without
        the extra `grammar`. Takes no time for a live grammar; others wait for each other."""
        if (live := self.live.get(constraint)) is not None:
            return live
        require("xgrammar")
        ends = tuple(sorted(self._tokenizer.eos_ids))
        found = _process(self._tokenizer.backend_tokenizer.to_str(), ends, self._vocab_size).compile(constraint)
        if isinstance(found, str):
            kind, text = constraint
            raise RequestError(f"{kind} is {shown(text)}; allowed: a grammar that xgrammar compiles ({found})")
        self.live[constraint] = found
        return found


class CompilerProcess:
    """A process that compiles for one tokenizer, and its recent grammars. It ends with this process, or when a limit is
    hit; then the next grammar starts another. Safe to call from several threads.

    tokenizer: the text of tokenizer.json. eos_ids: the tokens that end a text. vocab_size: the model's, whose tokens
    beyond the tokenizer's are never allowed, as special tokens are not. limits: of one grammar, in seconds of CPU time
    and bytes.
    """

    def __init__(
        self, tokenizer: str, eos_ids: tuple[int, ...], vocab_size: int, limits: tuple[float, int] = LIMITS
    ) -> None:
        import tokenizers
        import xgrammar
        from transformers import PreTrainedTokenizerFast

        library = tokenizers.Tokenizer.from_str(tokenizer)
        special = {token for token, kind in library.get_added_tokens_decoder().items() if kind.special}
        ends = [token for token in eos_ids if token < vocab_size]
        fast: Any = PreTrainedTokenizerFast  # transformers has no types
        read = xgrammar.TokenizerInfo.from_huggingface(
            fast(tokenizer_object=library), vocab_size=vocab_size, stop_token_ids=ends
        )
        texts = [b"" if token in special else text for token, text in enumerate(read.decoded_vocab)]
        self._library = xgrammar
        raw, spaced = xgrammar.VocabType.RAW, read.add_prefix_space
        self._tokens = xgrammar.TokenizerInfo(
            texts, raw, vocab_size=vocab_size, stop_token_ids=ends, add_prefix_space=spaced
        )
        self._limits = limits
        self._running: tuple[ChildProcess, Connection[Any, Any]] | None = None
        self._recent: OrderedDict[Constraint, CompiledGrammar | str] = OrderedDict()
        self._lock = Lock()

    def compile(self, constraint: Constraint) -> CompiledGrammar | str:
        """The compiled grammar, or why there is none."""
        with self._lock:
            if constraint not in self._recent:
                self._recent[constraint] = self._compile(constraint)
            self._recent.move_to_end(constraint)
            while len(self._recent) > KEPT:
                self._recent.popitem(last=False)
            return self._recent[constraint]

    def _compile(self, constraint: Constraint) -> CompiledGrammar | str:
        try:
            if self._running is not None and self._running[0].wait(0) is not None:
                self._stop()  # it was killed between two grammars
            if self._running is None:
                self._start()
            assert self._running is not None
            self._running[1].send(constraint)
            kind, answer = self._received(SECONDS) or ("refused", self._limit())
            found = self._received(SECONDS) if kind == "done" else (None,)
        except BaseException:
            self._stop()
            raise
        if found is None:
            self._stop()
        if kind != "done":
            return str(answer)
        grammar = self._library.CompiledGrammar.deserialize_json(answer, self._tokens)
        return CompiledGrammar(grammar, found and found[0])

    def _received(self, seconds: float) -> Any:  # noqa: ANN401 - as `serve` sends it
        """The process's next message; None if it ends before, or sends none in time."""
        assert self._running is not None
        try:
            return self._running[1].recv() if self._running[1].poll(seconds) else None
        except (EOFError, OSError):
            return None

    def _limit(self) -> str:
        """The limit that the process hit. EngineError if something else killed it."""
        assert self._running is not None
        seconds, memory = self._limits
        status = self._running[0].wait(1.0)
        if status in (-signal.SIGKILL, -signal.SIGTERM):
            raise EngineError(f"the process that compiles grammars was killed by signal {-status}; ask again")
        self._stop()
        late = {None: SECONDS, -signal.SIGPROF: seconds}.get(status)
        return TOO_LARGE.format(memory / 2**20) if late is None else f"it took more than {late:g} s"

    def _start(self) -> None:
        """Start the process. EngineError if it does not."""
        process, _ = self._running = start(serve, self._tokens.serialize_json(), *self._limits)
        weakref.finalize(self, process.stop)
        if not self._received(START_SECONDS):
            process.kill()
            raise EngineError(f"the process that compiles grammars does not start: {process.output_end(2000)}")

    def _stop(self) -> None:
        if self._running is not None:
            process, connection = self._running
            self._running = None
            connection.close()
            process.stop()


_process = lru_cache(TOKENIZERS)(CompilerProcess)


def serve(tokens: str, seconds: float, memory: int, connection: Connection[Any, Any]) -> None:
    """What the process runs. tokens: a serialised xgrammar.TokenizerInfo. connection: receives each constraint and
    sends ("done", serialised grammar) and then (its TokenTable or None,), or ("refused", why)."""
    import resource

    import xgrammar

    info = xgrammar.TokenizerInfo.deserialize_json(tokens)
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    compiler.compile_regex("a")
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    size = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + memory, resource.RLIM_INFINITY))
    connection.send(True)
    while True:
        kind, text = connection.recv()
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            compiled = getattr(compiler, COMPILE.get(kind, f"compile_{kind}"))(text)
            answer = "done", str(compiled.serialize_json())
        except Exception as error:
            full = isinstance(error, MemoryError) or "bad_alloc" in str(error)
            answer = "refused", TOO_LARGE.format(memory / 2**20) if full else text_of(PLACE.sub("", str(error)))
        signal.setitimer(signal.ITIMER_PROF, 0)
        connection.send(answer)
        if answer[0] == "done":
            signal.setitimer(signal.ITIMER_PROF, seconds)
            table = token_table(compiled, info)
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.send((table,))
