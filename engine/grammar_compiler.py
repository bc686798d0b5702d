"""Compiles grammars with xgrammar, each in a process with limits on time and memory, and keeps recent ones."""

from __future__ import annotations

import json
import os
import re
import signal
import warnings
import weakref
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import lru_cache, partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Final, TypeAlias, TypeVar

from specmatrix.child_process import start
from specmatrix.engine.core.schedule.grammar import Constraint
from specmatrix.engine.device.collectives import ALONE, Ranks
from specmatrix.engine.device.token_tables import CompiledGrammar, token_table
from specmatrix.engine.models.tokenizer import Tokenizer
from specmatrix.errors import EngineError, RequestError, shown, text_of
from specmatrix.extras import require

# Limits of compiling one grammar: CPU time, memory beyond what the process has, and elapsed time on a busy machine.
LIMITS: Final = (2.0, 512 * 2**20)
# CPU time of a first attempt, for which no grammar waits behind slow ones.
QUICK: Final = 0.25
SECONDS: Final = 120.0
# The last message of a fork that hit its limit of CPU time.
SLOW: Final = ("ended", -signal.SIGPROF)
# Recently used grammars, and refusals, that are kept: a large schema takes 30 MB.
RECENT: Final = 64
# xgrammar's method for a kind, if it is not called after it.
COMPILE: Final = {"ebnf": "compile_grammar"}
# xgrammar's messages begin with a time, a source file and, often, the condition that failed.
PLACE: Final = re.compile(r"\[[\d:]+\] \S+:\d+: (Check failed: .*? is false: )?")
Channel: TypeAlias = "Connection[Any, Any]"
_T = TypeVar("_T")


class GrammarCompiler:
    """The grammars of one engine's requests. Safe to call from several threads.

    live: compiled grammars that a request or the cache holds. Engines with equal tokenizers share a process and its
    cache; the process starts with the first grammar. ranks: rank 0 compiles for all, as each may hit a limit.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, ranks: Ranks = ALONE) -> None:
        self.live: weakref.WeakValueDictionary[Constraint, CompiledGrammar] = weakref.WeakValueDictionary()
        self._tokenizer, self._vocab_size, self._ranks = tokenizer, vocab_size, ranks

    def compile(self, constraint: Constraint, quick: bool = False) -> CompiledGrammar | None:
        """The compiled grammar; with `quick` None if it takes longer than QUICK. RequestError if xgrammar refuses it or
        its limits do not suffice; ConfigError without the extra `grammar`. Takes no time for a live grammar; others do
        not wait for each other."""
        found = self._ranks.shared(partial(self._compile, constraint, quick))
        if found is not None:
            self.live[constraint] = found
        return found

    def _compile(self, constraint: Constraint, quick: bool) -> CompiledGrammar | None:
        if (live := self.live.get(constraint)) is not None:
            return live
        require("xgrammar")
        ends = tuple(sorted(self._tokenizer.eos_ids))
        found = _process(self._tokenizer.text, ends, self._vocab_size).compile(constraint, quick)
        if isinstance(found, str):
            kind, text = constraint
            raise RequestError(f"{kind} is {shown(text)}; allowed: a grammar that xgrammar compiles ({found})")
        return found


class CompilerProcess:
    """A process whose forks compile for one tokenizer, and its recent grammars. Safe to call from several threads.

    Each grammar has a fork of its own, so that a slow one is in front of no other and ends alone when it hits a limit.
    The process ends with this one; if something kills it, the next grammar starts another.

    tokenizer: the text of tokenizer.json. eos_ids: the tokens that end a text. vocab_size: the model's, whose tokens
    beyond the tokenizer's are never allowed, as special tokens are not. limits: of one grammar, in seconds of CPU time
    and bytes. compile: as `_compile`, once for equal arguments.
    """

    def __init__(
        self, tokenizer: str, eos_ids: tuple[int, ...], vocab_size: int, limits: tuple[float, int] = LIMITS
    ) -> None:
        import tokenizers
        import xgrammar
        from transformers import PreTrainedTokenizerFast

        library = tokenizers.Tokenizer.from_str(tokenizer)
        special = {token for token, kind in library.get_added_tokens_decoder().items() if kind.special}
        sizes: Any = {"vocab_size": vocab_size, "stop_token_ids": [token for token in eos_ids if token < vocab_size]}
        fast: Any = PreTrainedTokenizerFast  # transformers has no types
        read = xgrammar.TokenizerInfo.from_huggingface(fast(tokenizer_object=library), **sizes)
        texts = [b"" if token in special else text for token, text in enumerate(read.decoded_vocab)]
        self._library, sizes["add_prefix_space"] = xgrammar, read.add_prefix_space
        self._tokens = xgrammar.TokenizerInfo(texts, xgrammar.VocabType.RAW, **sizes)
        self._limits = limits
        self._starting, self.compile = Lock(), _once(self._compile, RECENT)
        self._start()

    def _compile(self, constraint: Constraint, quick: bool = False) -> CompiledGrammar | str | None:
        """The compiled grammar, or why there is none; with `quick` None after QUICK seconds of CPU time. EngineError if
        its process is killed or does not start."""
        seconds = min(QUICK, self._limits[0]) if quick else self._limits[0]
        with self._fork() as answers:
            with suppress(ConnectionError):  # the fork has ended, as the next message says
                answers.send((constraint, seconds))
            kind, answer = self._received(answers)
            then, table = self._received(answers) if kind == "done" else (kind, answer)
        if (then, table) == SLOW and (quick or kind != "done"):
            return None if quick else f"it took more than {seconds:g} s"
        if kind == "done":
            grammar = self._library.CompiledGrammar.deserialize_json(answer, self._tokens)
            return CompiledGrammar(grammar, table if then == "table" else None)
        if kind == "refused":
            return str(answer)
        if self._process.wait(0.1) is not None:
            self._process.stop()  # its output is complete then
        said = f"ended with status {answer}; ask again {self._process.output_end(2000)}"
        raise EngineError(f"the process that compiles the grammar {said.strip()}")

    def _start(self) -> None:
        self._process, self._connection = start(serve, self._tokens.serialize_json(), self._limits[1])
        weakref.finalize(self, self._process.stop)

    def _fork(self) -> Channel:
        """A connection to a new fork."""
        ours, theirs = Pipe()
        with self._starting, theirs, suppress(ConnectionError):  # the process has ended, and so has the connection
            if self._process.wait(0) is not None:
                self._start()
            send_handle(self._connection, theirs.fileno(), self._process.pid)
        return ours

    def _received(self, answers: Channel) -> tuple[str, Any]:
        """The next message, ("ended", status) if the sender has ended. EngineError if none comes in time, for which a
        process that answers nobody is killed."""
        try:
            if not answers.poll(SECONDS):
                self._process.kill()
                raise EngineError(f"the grammar was not compiled within {SECONDS:g} s; ask again")
            found: tuple[str, Any] = answers.recv()
        except (EOFError, OSError):
            return "ended", -signal.SIGKILL
        return found


def _once(function: Callable[..., _T], size: int) -> Callable[..., _T]:
    """The function, which keeps its latest results and runs once for the same arguments of several threads."""
    locks, results = lru_cache(size)(lambda *_: Lock()), lru_cache(size)(function)

    def result(*asked: Hashable) -> _T:
        with locks(*asked):
            return results(*asked)

    return result


_process = _once(CompilerProcess, 4)


def serve(tokens: str, memory: int, connection: Channel) -> None:
    """What the process runs. tokens: a serialised xgrammar.TokenizerInfo. connection: receives connections, each for a
    constraint, which a fork answers."""
    import xgrammar

    info = xgrammar.TokenizerInfo.deserialize_json(tokens)
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    compiler.compile_regex("a")
    # The other threads only wait: for the end of the standard input, and of forks.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    while True:
        answers: Channel = Connection(recv_handle(connection))
        if (pid := os.fork()) == 0:
            try:
                connection.close()
                _answer(compiler, memory, answers)
            finally:
                os._exit(0)
        Thread(target=_tell_status, args=(pid, answers), daemon=True).start()


def _tell_status(pid: int, connection: Channel) -> None:
    """Send a fork's status when it ends: 0 if it has answered."""
    with connection, suppress(OSError):  # the other end is closed after an answer
        connection.send(("ended", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))


def _read(kind: str, text: str) -> Any:  # noqa: ANN401 - xgrammar has no types
    """The text, but an xgrammar.StructuralTag for SGLang's older form, `structures` behind `triggers`."""
    import xgrammar

    if kind != "structural_tag" or "structures" not in (asked := json.loads(text)):
        return text
    items = [xgrammar.StructuralTagItem.model_validate(item) for item in asked["structures"]]
    return xgrammar.StructuralTag.from_legacy_structural_tag(items, asked.get("triggers"))


def _answer(compiler: Any, memory: int, answers: Channel) -> None:  # noqa: ANN401 - xgrammar has no types
    """Receive a constraint and its limit of CPU time; send ("done", serialised grammar), then ("table", its TokenTable
    or None); or ("refused", why)."""
    import resource

    (kind, text), seconds = answers.recv()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    size = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + memory, resource.RLIM_INFINITY))
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        compiled = getattr(compiler, COMPILE.get(kind, f"compile_{kind}"))(_read(kind, text))
        answer = "done", str(compiled.serialize_json())
    except Exception as error:
        full = isinstance(error, MemoryError) or "bad_alloc" in str(error)
        answer = "refused", f"it took more than {memory / 2**20:g} MB" if full else text_of(PLACE.sub("", str(error)))
    signal.setitimer(signal.ITIMER_PROF, 0)  # whole messages only
    answers.send(answer)
    if answer[0] == "done":
        signal.setitimer(signal.ITIMER_PROF, seconds)
        table = token_table(compiled)
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.send(("table", table))
